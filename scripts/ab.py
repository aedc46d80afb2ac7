"""ab.py PAIRS PAUSE JSON A B -- ARGS: the measuring part of ab.sh, which documents it."""
import json
import math
import shlex
import statistics
import subprocess
import sys
import time

# Student's t, two-sided 95 %, for 1, 2, ... degrees of freedom; beyond the table the normal quantile is near enough.
T95 = [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]


def run(command, args):
    """One `bench` with one repetition: {measure: tokens per second}, and the report."""
    done = subprocess.run(shlex.split(command) + ["bench", "--json", "-q", "-r", "1", *args], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"ab: {command}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    return {r["test"]: r["median_tokens_per_second"] for r in report["results"]}, report


def verdict(ratios):
    """Geometric mean of the ratios, its 95 % interval from the paired logarithms, and the words for it."""
    logs = [math.log(r) for r in ratios]
    centre = statistics.mean(logs)
    if len(logs) < 2:
        return math.exp(centre), None, "one pair shows nothing"
    t = T95[len(logs) - 2] if len(logs) - 2 < len(T95) else 1.96
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(centre - half), math.exp(centre + half)
    words = "B is faster" if low > 1 else "B is slower" if high < 1 else "no difference shown"
    return math.exp(centre), (low, high), words


def main():
    pairs, pause, out, commands, args = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:6], sys.argv[7:]
    samples = [[], []]
    report = None
    for pair in range(pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        for which in order:
            time.sleep(pause)
            speeds, report = run(commands[which], args)
            samples[which].append(speeds)
        print(f"pair {pair + 1} of {pairs}", file=sys.stderr)
    record = {"kind": "ab", "date": time.strftime("%Y-%m-%d"), "machine": report["cpu"], "cores": report["physical_cores"],
              "model": report["model"]["name"], "args": args, "a": commands[0], "b": commands[1], "measures": []}
    for name in samples[0][0]:
        a, b = [s[name] for s in samples[0]], [s[name] for s in samples[1]]
        ratio, interval, words = verdict([y / x for x, y in zip(a, b)])
        shown = f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "-"
        print(f"{name:<16} A {statistics.median(a):9.2f}  B {statistics.median(b):9.2f} tok/s   B/A {ratio:.3f} ({shown})   {words}")
        record["measures"].append({"name": name, "a": a, "b": b, "ratio": ratio, "interval": interval, "verdict": words})
    if out:
        with open(out, "w") as f:
            json.dump(record, f, indent=1)
            f.write("\n")


main()
