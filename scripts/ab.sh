#!/usr/bin/env bash
# ab.sh [OPTIONS] A B -- ARGS: which of two programs is faster, by `bench ARGS` in turn: A B, B A, A B, ... with pauses, so that
# warming up, cooling down and neighbours fall on both alike. Prints medians, and for each measure the ratio B/A pair by pair with
# its spread and a verdict. A and B are command lines: "env RL_X=0 build/redlite" compares a switch.
#   --pairs N      pairs of runs (default 7)
#   --pause S      seconds between runs (default 2)
#   --json FILE    the record, for benchmarks/
#   scripts/ab.sh build-old/redlite build/redlite -- -m model.gguf -p 512 -n 64
set -eu
pairs=7 pause=2 json=
while [ $# -gt 0 ]; do
    case $1 in
    --pairs) pairs=$2 && shift 2 ;;
    --pause) pause=$2 && shift 2 ;;
    --json) json=$2 && shift 2 ;;
    *) break ;;
    esac
done
[ $# -ge 3 ] && [ "$3" = -- ] || { echo "usage: ab.sh [--pairs N] [--pause S] [--json FILE] A B -- ARGS" >&2 && exit 2; }
exec python3 "$(dirname "$0")/ab.py" "$pairs" "$pause" "$json" "$@"
