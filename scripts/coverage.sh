#!/usr/bin/env bash
# coverage.sh: lines of src/ that the tests execute, per file and in all. Needs gcc and its gcov; builds in build-coverage.
set -eu
cd "$(dirname "$0")/.."
cmake --preset coverage >/dev/null
cmake --build --preset coverage
find build-coverage -name '*.gcda' -delete
ctest --test-dir build-coverage -LE slow -j"$(getconf _NPROCESSORS_ONLN)" --output-on-failure
find build-coverage/CMakeFiles -name '*.gcda' -print0 | xargs -0 gcov -n -r -s "$PWD" 2>/dev/null | awk -F"[':% ]+" '
    /^File/ { file = $2 }
    /^Lines executed/ && file ~ /^src\/.*\.c$/ { share[file] = $3; lines[file] = $5; file = "" }
    END {
        for (f in lines) { printf "%6.2f%% of %5d  %s\n", share[f], lines[f], f | "sort -k4"; hit += share[f] * lines[f] / 100; all += lines[f] }
        close("sort -k4")
        if (all) printf "%6.2f%% of %5d  in all\n", 100 * hit / all, all
    }'
