#!/usr/bin/env bash
# fuzz.sh [seconds]: runs every fuzzer of build-fuzz that long, as many at a time as there are processors. Starts from
# tests/fuzz/corpus/NAME; what fuzz_NAME finds is kept in build-fuzz/corpus/NAME, an input that fails in build-fuzz/failures.
set -u
cd "$(dirname "$0")/.."
seconds=${1:-60}
export seconds
fuzzers=$(find build-fuzz/fuzz -maxdepth 1 -type f -name 'fuzz_*' -perm -u+x 2>/dev/null | sort)
[ -n "$fuzzers" ] || { echo "fuzz: there are no fuzzers"; exit 0; }
mkdir -p build-fuzz/failures

one() {
    name=$(basename "$1")
    name=${name#fuzz_}
    mkdir -p "build-fuzz/corpus/$name"
    seeds=()
    [ -d "tests/fuzz/corpus/$name" ] && seeds=("tests/fuzz/corpus/$name")
    if "$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="build-fuzz/failures/$name-" "build-fuzz/corpus/$name" "${seeds[@]}" >"build-fuzz/fuzz_$name.log" 2>&1; then
        echo "fuzz: $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "build-fuzz/fuzz_$name.log") inputs, no failure"
    else
        tail -n 40 "build-fuzz/fuzz_$name.log"
        echo "fuzz: $name FAILED"
        return 1
    fi
}
export -f one
printf '%s\n' "$fuzzers" | xargs -P "$(getconf _NPROCESSORS_ONLN)" -I{} bash -c 'one {}'
