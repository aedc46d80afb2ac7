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

# text_ids MODEL N OUT: the first N ids of the evaluation text.
text_ids() {
    "$redlite" tokenize -q --ids -m "$1" -f "$root/tests/data/eval.txt" | tr -s ' \n' '\n\n' | head -n "$2" >"$3"
    [ "$(count "$3")" -eq "$2" ] || { echo "the evaluation text has fewer than $2 tokens" && return 1; }
}

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
