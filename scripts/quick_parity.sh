#!/usr/bin/env bash
# quick_parity.sh MODEL [--long] [--batch N]: the comparison to run after every change of a kernel.
#   stages   every backend against ref, stage by stage, both precisions
#   logits   against llama.cpp in passes of N (without --batch: 96, 256, 512, 1100 and 2048)
#   greedy   24 tokens against llama.cpp
#   --long   1100 positions instead of 96
# Where the model fits as float32 (CHECKS_F32_MIB, default 2048) llama.cpp judges free of rounded activations and the bounds are
# tight; else both round and the bounds are those for a long context. Exit status 0 when all pass.
. "$(dirname "$0")/checks.sh"
model= positions=96 batches="96 256 512 1100 2048"
while [ $# -gt 0 ]; do
    case $1 in
    --long) positions=1100 ;;
    --batch) batches=${2:?--batch needs a number} && shift ;;
    -*) echo "quick_parity: unknown option $1" >&2 && exit 2 ;;
    *) model=$1 ;;
    esac
    shift
done
[ -f "${model:-$bundled}" ] || { echo "quick_parity: no file $model" >&2 && exit 2; }
model=${model:-$bundled}
ids=$work/ids short=$work/short
text_ids "$model" $positions "$ids" && head -n 96 "$ids" >"$short" || exit 2
vocab=$(vocabulary "$model")

for backend in $(backends); do
    check "stages, $backend exact" parity_of "$model" "$short" --backend "$backend" --precision exact
    check "stages, $backend fast" parity_of "$model" "$short" --backend "$backend" --precision fast
done

if ! find_peer; then
    skip "llama.cpp" "$peer_missing"
    finish
fi
check "llama.cpp's model" make_judge "$model" || finish
check "llama.cpp's logits" peer_logits "$work/judge" "$judge" "$ids" --exact || finish

if $judge_exact; then check "llama.cpp's logits with 8-bit activations" peer_logits "$work/theirs" "$model" "$ids" || finish; fi

# Against an exact judge exact precision shows float32 rounding in another order, and 8-bit activations must be as good as
# llama.cpp's. When the judge rounds too, two roundings meet.
logits() { # BACKEND PRECISION BATCH
    our_logits "$work/ours" "$model" "$ids" --backend "$1" --precision "$2" --batch "$3" || return 1
    if ! $judge_exact; then
        "$compare" --max-abs 4.0 --mean-kl 2e-2 --argmax $((positions / 20 + 1)) "$vocab" $positions "$work/judge" "$work/ours"
    elif [ "$2" = exact ]; then
        "$compare" --max-abs 1e-3 --max-kl 1e-6 "$vocab" $positions "$work/judge" "$work/ours"
    else
        as_good_as_peer "$vocab" $positions
    fi
}
greedy() { # BACKEND
    local ours theirs
    theirs=$(run_peer --exact "$judge" greedy 24 "$short") &&
        ours=$("$redlite" generate -q --ids --ignore-eog --temp 0 -n 24 -m "$model" --precision exact --backend "$1" \
            --tokens "$(commas "$short")" | xargs) || return 1
    [ "$(wc -w <<<"$theirs")" -eq 24 ] && [ "$ours" = "$theirs" ] && echo "24 ids the same" && return
    printf 'llama.cpp %s\nours      %s\n' "$theirs" "$ours"
    return 1
}
for backend in $(backends); do
    for batch in $batches; do
        check "logits at $positions, $backend exact, passes of $batch" logits "$backend" exact "$batch"
        check "logits at $positions, $backend fast, passes of $batch" logits "$backend" fast "$batch"
    done
    check "greedy, $backend" greedy "$backend"
done
finish
