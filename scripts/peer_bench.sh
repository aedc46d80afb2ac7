#!/usr/bin/env bash
# peer_bench.sh NAME [MODEL [PROMPT [N]]]: Red Lite and the prebuilt llama.cpp in turn on one machine: prefill of PROMPT tokens
# (default 512) and N decoded ones (default 64), nine pairs after a warm-up, both with a thread for each core and at their best
# (llama.cpp: weights rearranged, flash attention as it chooses). Writes benchmarks/NAME.json, from which charts.py draws.
# PEER_PAIRS and PEER_PAUSE change the number of pairs and the pause between runs.
. "$(dirname "$0")/checks.sh"
name=${1:?usage: peer_bench.sh NAME [MODEL [PROMPT [N]]]} model=${2:-$bundled} prompt=${3:-512} n=${4:-64}
find_peer || { echo "peer_bench: $peer_missing" >&2 && exit 1; }
mkdir -p "$root/benchmarks"
threads=$(getconf _NPROCESSORS_ONLN)
for pair in $(seq 0 "${PEER_PAIRS:-9}"); do
    sleep "${PEER_PAUSE:-0.5}"
    "$redlite" bench -q --json -r 1 -m "$model" -p "$prompt" -n "$n" -t "$threads" >"$work/ours.json" || exit 1
    sleep "${PEER_PAUSE:-0.5}"
    run_peer --threads "$threads" --batch 512 "$model" bench "$prompt" "$n" 1 >"$work/theirs" || exit 1
    [ "$pair" -eq 0 ] && continue # warms the page cache
    python3 -c 'import json, sys; d = json.load(open(sys.argv[1]))
print(*[r["median_tokens_per_second"] for r in d["results"]], *open(sys.argv[2]).read().split())' "$work/ours.json" "$work/theirs" >>"$work/pairs"
done
python3 - "$work/ours.json" "$work/pairs" "$(run_peer "$model" version)" "$name" "$prompt" "$n" >"$root/benchmarks/$name.json" <<'END'
import json, sys, time
report, pairs = json.load(open(sys.argv[1])), [[float(x) for x in line.split()] for line in open(sys.argv[2])]
columns = list(zip(*pairs))
s = report["settings"]
print(json.dumps({
    "title": "Red Lite and llama.cpp on " + report["model"]["name"], "unit": "tokens per second",
    "machine": f'{report["cpu"]}, {report["physical_cores"]} cores, {report["memory_bytes"] / 2**30:.0f} GiB',
    "date": time.strftime("%Y-%m-%d"), "command": f"scripts/peer_bench.sh {sys.argv[4]} MODEL {sys.argv[5]} {sys.argv[6]}",
    "versions": {"redlite": report["version"], "llama.cpp": sys.argv[3]},
    "settings": {"isa": s["isa"], "threads": s["threads"], "precision": s["precision"]},
    "groups": [f"prefill {sys.argv[5]}", f"decode {sys.argv[6]}"],
    "series": [{"name": "Red Lite", "samples": [columns[0], columns[1]]},
               {"name": "llama.cpp", "samples": [columns[2], columns[3]]}]}, indent=1))
END
python3 "$root/scripts/charts.py" && python3 "$root/scripts/charts.py" --table "$name"
