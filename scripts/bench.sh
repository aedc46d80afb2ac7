#!/usr/bin/env bash
# bench.sh [OPTIONS] MODEL: speed on this machine by `redlite bench`, against other programs in turn when they are given, one
# repetition of each after the other, so that a change of clock or a busy neighbour falls on all alike. Prints medians, spread and
# ratios, and how much of the processor something else had meanwhile: above a few percent a number is worth nothing.
#   --only LIST        prefill (512 and 2048 tokens), prefill8192, prefillfull (512, 1100, 2048, 8192), decode, peers (prefill and
#                      decode, other programs required); default prefill,decode
#   --tests LIST       instead: ppN, tgN, either with @DEPTH: pp512,tg64,tg64@8192
#   --reps N           repetitions of each program (default 3)
#   --cool S           seconds between runs (default 5)
#   --threads N        default: one per physical core
#   --settings "..."   options of `redlite bench`, e.g. "--precision exact"; may be repeated: each is a program of its own
#   --ik PATH          llama-bench of ik_llama.cpp (or $REDLITE_IK_BENCH)
#   --llama PATH       llama-bench of llama.cpp (or $REDLITE_LLAMA_BENCH); --llama prebuilt: the release that `make parity` uses
#   --first NAMES      programs whose repetitions stop after the first, e.g. llama.cpp where a run takes minutes
#   --prefix "CMD"     put before every run: a lock, taskset
#   --note TEXT        kept in the record
#   --json FILE        the record, for benchmarks/
#   scripts/bench.sh --only peers --ik ~/ik/llama-bench --llama prebuilt --json benchmarks/x.json model.gguf
. "$(dirname "$0")/checks.sh"
llama=${REDLITE_LLAMA_BENCH:-}
BENCH_COMMAND="bench.sh$(printf ' %q' "$@")"
export BENCH_COMMAND
arguments=()
while [ $# -gt 1 ]; do
    if [ "$1" = --llama ]; then llama=$2; else arguments+=("$1" "$2"); fi
    shift 2
done
[ $# -eq 1 ] && [[ $1 != -* ]] || { echo "usage: bench.sh [OPTIONS] MODEL (see the head of this file)" >&2 && exit 2; }
if [ "$llama" = prebuilt ]; then
    find_peer || { echo "bench: no prebuilt llama.cpp: $peer_missing" >&2 && exit 1; }
    arguments+=(--driver "$peer" --libraries "$peer_libraries")
elif [ -n "$llama" ]; then
    arguments+=(--llama "$llama")
fi
python3 "$root/scripts/bench.py" "${arguments[@]}" "$redlite" "$1"
