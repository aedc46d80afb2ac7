#!/usr/bin/env bash
# long_positions.sh MODEL [P...]: the last 100 logits after P positions (default 4096 8192) computed in large passes, token by
# token, and by llama.cpp, each against each. Errors that grow with the position (a recurrent state, a cache row, an angle) show
# here and nowhere else. LONG_BACKEND names the backend (default cpu).
#
# Hard bounds, for any model and precision: max-abs 4.0, from 8192 positions on 5.0, and KL and argmax as below. Where llama.cpp
# can read the model as float32, exact precision is held to a thousandth of that.
. "$(dirname "$0")/checks.sh"
model=${1:-$bundled}
shift
[ -f "$model" ] || { echo "long_positions: no file $model" >&2 && exit 2; }
backend=${LONG_BACKEND:-cpu} vocab=$(vocabulary "$model") last=100
[ $# -gt 0 ] || set -- 4096 8192

have_peer=true
if find_peer; then
    check "llama.cpp's model" make_judge "$model" || finish
else
    have_peer=false
    skip "llama.cpp" "$peer_missing"
fi

dump() { # dump OUT IDS OPTIONS...: the program's last logits
    local out=$1 ids=$2
    shift 2
    our_logits "$out" "$model" "$ids" --backend "$backend" --last $last "$@"
}
tight() { "$compare" --max-abs "$1" --max-kl 1e-6 --argmax 0 "$vocab" $last "$2" "$3"; }
wide() { "$compare" --max-abs "$1" --max-kl 0.5 --mean-kl 2e-2 --argmax 8 "$vocab" $last "$2" "$3"; }

for positions; do
    limit=4.0
    [ "$positions" -lt 8192 ] || limit=5.0
    ids=$work/ids
    check "$positions: text" text_ids "$model" "$positions" "$ids" || continue
    check "$positions: exact, passes" dump "$work/batched" "$ids" --precision exact || continue
    check "$positions: exact, token by token" dump "$work/steps" "$ids" --precision exact --batch 1
    check "$positions: token by token against passes" tight 1e-3 "$work/batched" "$work/steps"
    check "$positions: 8-bit activations, passes" dump "$work/fast" "$ids" --precision fast
    check "$positions: 8-bit activations against exact" wide $limit "$work/batched" "$work/fast"
    $have_peer || continue
    check "$positions: llama.cpp" peer_logits "$work/judge" "$judge" "$ids" --exact --last $last || continue
    if $judge_exact; then
        check "$positions: exact against llama.cpp" tight 4e-3 "$work/judge" "$work/batched"
    else
        check "$positions: exact against llama.cpp" wide $limit "$work/judge" "$work/batched"
    fi
    check "$positions: 8-bit activations against llama.cpp" wide $limit "$work/judge" "$work/fast"
done
finish
