# Sourced by the checking scripts: a list of checks with one line each, a summary, and what they share of the live comparison.
#
#   check NAME COMMAND...   runs; the command's last output line stands behind the name, all of it only on failure
#   skip NAME REASON
#   finish                  the summary "N passed, N failed, N skipped"; exits 0 when something passed and nothing failed
#
# With CHECKS_JSON=FILE the list is written there too. Scratch files go to $work, which is removed at the end.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
redlite=${REDLITE:-$root/build/redlite}
records=$root/build/peer/records compare=$root/build/peer/compare peer=$root/build/peer/peer
shared=${REDLITE_SHARED:-$root/../shared}
bundled=$root/models/tiny-q4_k_m.gguf
passed=0 failed=0 skipped=0 rows=()
mkdir -p "$root/build"
work=$(mktemp -d "$root/build/checks.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

note() { # note VERDICT NAME SECONDS TEXT
    printf '%3d %-7s %s%s (%s s)\n' $((passed + failed + skipped)) "$1" "$2" "${4:+: $4}" "$3"
    rows+=("$1"$'\t'"$2"$'\t'"$3"$'\t'"$4")
}

check() {
    local name=$1 start=$SECONDS
    shift
    if "$@" >"$work/check.log" 2>&1; then
        passed=$((passed + 1))
        note ok "$name" $((SECONDS - start)) "$(tail -n 1 "$work/check.log")"
    else
        failed=$((failed + 1))
        note FAILED "$name" $((SECONDS - start)) ""
        tail -n 40 "$work/check.log" | sed 's/^/      /'
        return 1
    fi
}

skip() {
    skipped=$((skipped + 1))
    note skipped "$1" 0 "$2"
}

finish() {
    if [ -n "${CHECKS_JSON:-}" ]; then
        printf '%s\n' "${rows[@]}" | python3 -c '
import json, sys
rows = [dict(zip(("verdict", "name", "seconds", "text"), line.rstrip("\n").split("\t"))) for line in sys.stdin]
json.dump({"passed": int(sys.argv[1]), "failed": int(sys.argv[2]), "skipped": int(sys.argv[3]), "checks": rows}, sys.stdout, indent=1)
' $passed $failed $skipped >"$CHECKS_JSON"
    fi
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ] && [ $passed -gt 0 ]
    exit
}

# ---- llama.cpp ------------------------------------------------------------------------------------------------------------

# A prebuilt release from the npm registry, kept in build/; REDLITE_PEER names the folder of an unpacked package instead.
# Returns 1 with the reason in $peer_missing.
peer_package=@node-llama-cpp/linux-x64@3.22.1
find_peer() {
    local folder=${REDLITE_PEER:-$root/build/peer/package}
    peer_libraries=$folder/bins/linux-x64 peer_missing=
    if [ ! -x "$peer" ]; then
        peer_missing="the driver is built for x86-64 Linux only (or run make build)"
    elif [ ! -d "$peer_libraries" ]; then
        if ! command -v npm >/dev/null; then
            peer_missing="npm is not installed"
        elif ! (cd "$work" && npm pack --silent "$peer_package" >/dev/null 2>&1 && tar xzf ./*.tgz && rm ./*.tgz &&
            mv package "$root/build/peer/package") || [ ! -d "$peer_libraries" ]; then
            peer_missing="the npm registry does not give $peer_package"
        fi
    fi
    [ -z "$peer_missing" ]
}

run_peer() { # run_peer OPTIONS MODEL COMMAND...: options are those of tests/peer/peer.c
    local options=(--threads "$(getconf _NPROCESSORS_ONLN)")
    while [[ $1 == --* ]]; do
        case $1 in --threads | --batch | --last) options+=("$1" "$2") && shift 2 ;; *) options+=("$1") && shift ;; esac
    done
    "$peer" "${options[@]}" "$peer_libraries" "$@"
}

# ---- Small helpers --------------------------------------------------------------------------------------------------------

commas() { tr -s ' \n' ',' <"$1" | sed 's/^,//; s/,$//'; }
count() { wc -w <"$1"; }
vocabulary() { "$redlite" info --json -m "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["shape"]["vocabulary"])'; }

# text_ids MODEL N OUT: the first N ids of the evaluation text, repeated when it is shorter.
text_ids() {
    local once=$work/text.ids
    "$redlite" tokenize -q --ids -m "$1" -f "$root/tests/data/eval.txt" | tr -s ' \n' '\n\n' | grep . >"$once"
    [ -s "$once" ] || { echo "the evaluation text gives no tokens" && return 1; }
    rm -f "$3"
    while [ ! -e "$3" ] || [ "$(count "$3")" -lt "$2" ]; do cat "$once" >>"$3"; done
    head -n "$2" "$3" >"$once" && mv "$once" "$3"
}

# make_judge MODEL: sets $judge to the model as float32, on which llama.cpp does not round activations, or to the model itself
# when that would take more than $CHECKS_F32_MIB; $judge_exact tells which.
make_judge() {
    local mib
    mib=$(("$("$redlite" info --json -m "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["parameters"])')" / 262144))
    judge=$1 judge_exact=false
    [ "$mib" -le "${CHECKS_F32_MIB:-2048}" ] || return 0
    judge=$work/f32.gguf judge_exact=true
    rm -f "$judge"
    run_peer "$1" quantize "$judge" F32
}

# parity_of MODEL IDS OPTIONS...: redlite parity, its report in one line; router mismatches are failures with 8-bit activations
# too, for every stage is given the judge's own input.
parity_of() {
    local model=$1 ids=$2 status
    shift 2
    rm -f "$work/parity.json"
    "$redlite" parity -q --json -m "$model" --tokens "$(commas "$ids")" -c $(($(count "$ids") + 1)) "$@" >"$work/parity.json"
    status=$?
    python3 - "$work/parity.json" <<'END' || return 1
import json, sys
d = json.load(open(sys.argv[1]))
shown = [s for s in d["stages"] if s["layers"]]
worst = max((s for s in shown if s["rms"] > 0), key=lambda s: s["rms_error"] / s["rms"])
print("worst stage %s %.1e, logits %.2e, KL %.1e, argmax %d/%d, router mismatches %d (%s, %d stages)" % (
    worst["stage"], worst["rms_error"] / worst["rms"], d["logits_max_abs"], d["kl_max"],
    d["positions"] - d["argmax_mismatches"], d["positions"], d["router_mismatches"], d["isa"], len(shown)))
sys.exit(len(shown) < 20 or d["router_mismatches"] > 0)
END
    return $status
}

# Backends besides ref that can run here.
backends() { "$redlite" version | sed -n 's/^backends: //p' | tr ' ' '\n' | grep -v -x ref; }

# random_ids N LIMIT SEED OUT: below LIMIT.
random_ids() {
    awk -v n="$1" -v limit="$2" -v seed="$3" 'BEGIN { srand(seed); for (i = 0; i < n; i++) print int(rand() * limit) }' >"$4"
}

# A dump is made anew or not at all: what lies there from an earlier run is deleted first, so a failed run leaves nothing that
# could be compared.
our_logits() { # our_logits OUT MODEL IDS OPTIONS...
    local out=$1 model=$2 ids=$3 n
    shift 3
    n=$(count "$ids")
    rm -f "$out"
    "$redlite" logits -q -m "$model" --tokens "$(commas "$ids")" -c $((n + 1)) "$@" -o "$out"
}
peer_logits() { # peer_logits OUT MODEL IDS OPTIONS...
    local out=$1 model=$2 ids=$3
    shift 3
    rm -f "$out"
    run_peer "$@" "$model" logits "$out" "$ids"
}

mean_kl() { sed 's/.* mean \([^,]*\),.*/\1/' <<<"$1"; }

# With 8-bit activations both programs move away from the exact judge ($work/judge). Ours may not be further away than llama.cpp
# itself ($work/theirs), but for chance: on few positions one router tie can double a mean.
as_good_as_peer() { # VOCABULARY POSITIONS
    local theirs ours
    theirs=$("$compare" --argmax "$2" "$1" "$2" "$work/judge" "$work/theirs") &&
        ours=$("$compare" --argmax "$2" "$1" "$2" "$work/judge" "$work/ours") || return 1
    echo "$ours (llama.cpp: ${theirs#*, })"
    awk -v a="$(mean_kl "$ours")" -v b="$(mean_kl "$theirs")" 'BEGIN { exit !(a <= 2 * b + 2e-3) }'
}
