"""The measuring part of bench.sh, which documents it."""
import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

SETS = {"prefill": ["pp512", "pp2048"], "prefill8192": ["pp8192"], "prefillfull": ["pp512", "pp1100", "pp2048", "pp8192"],
        "decode": ["tg64"], "peers": ["pp512", "pp2048", "tg64"]}
CHUNK = 2048  # tokens of a prefill pass, for every program: all are fastest with large ones


def parse_test(name):
    """(prompt, generate, depth) of a test's name."""
    m = re.fullmatch(r"(pp|tg)([1-9]\d*)(?:@(\d+))?", name)
    if not m:
        sys.exit(f"bench: {name} is no test; expected ppN or tgN, with @DEPTH or without")
    n, depth = int(m[2]), int(m[3] or 0)
    return (n, 0, depth) if m[1] == "pp" else (0, n, depth)


def busy_seconds():
    """Processor time anyone has had since the start, all cores; None where the system does not tell."""
    try:
        with open("/proc/stat") as f:
            user, nice, system, _idle, _wait, irq, soft, steal = map(int, f.readline().split()[1:9])
    except OSError:
        return None
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def execute(command):
    """Standard output of the command, and what running it took."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        before, start = busy_seconds(), time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall, after = time.monotonic() - start, busy_seconds()
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            sys.exit(f"bench: {shlex.join(command)}: {err.read().strip()[-2000:]}")
        others = None
        if before is not None:
            others = max(0.0, after - before - usage.ru_utime - usage.ru_stime) / wall / os.cpu_count()
        return out.read(), {"wall_seconds": round(wall, 2), "others_share": others and round(others, 4),
                            "peak_rss_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)}


class Redlite:
    def __init__(self, name, path, model, threads, settings):
        self.name, self.report = name, None
        self.command = [path, "bench", "--json", "-q", "-m", model, "-t", str(threads), "-r", "1", *shlex.split(settings)]

    def arguments(self, prompt, generate, depth):
        return self.command + ["-p", str(prompt), "-n", str(generate), "-d", str(depth)]

    def speed(self, text):
        self.report = json.loads(text)
        return self.report["results"][0]["median_tokens_per_second"]


class LlamaBench:
    """llama-bench of either project. ik_llama.cpp names a depth by -gp and has no -d."""

    def __init__(self, name, path, model, threads, ik):
        self.name, self.ik = name, ik
        self.command = [path, "-m", model, "-t", str(threads), "-fa", "1", "-b", str(CHUNK), "-ub", str(CHUNK), "-r", "1",
                        "-o", "json"]

    def arguments(self, prompt, generate, depth):
        if not self.ik:
            return self.command + ["-p", str(prompt), "-n", str(generate), "-d", str(depth)]
        if depth and prompt:
            return None
        if depth:
            return self.command + ["-p", "0", "-n", "0", "-gp", f"{depth},{generate}"]
        return self.command + ["-p", str(prompt), "-n", str(generate)]

    def speed(self, text):
        return json.loads(text[text.index("["):])[-1]["avg_ts"]


class Driver:
    """A prebuilt llama.cpp under tests/peer; it decodes behind the prompt, so a depth is a prompt that is not counted."""

    def __init__(self, name, path, libraries, model, threads):
        self.name = name
        self.command = [path, "--threads", str(threads), "--batch", str(CHUNK), libraries, model, "bench"]
        self.column = 0

    def arguments(self, prompt, generate, depth):
        if depth and prompt:
            return None
        self.column = 0 if prompt else 1
        return self.command + [str(prompt or depth), str(generate), "1"]

    def speed(self, text):
        return float(text.split()[self.column])


def cores():
    """Physical cores, the threads that every program gets."""
    try:
        with open("/proc/cpuinfo") as f:
            text = f.read()
        ids = set(zip(re.findall(r"^physical id\s*: (\d+)", text, re.M), re.findall(r"^core id\s*: (\d+)", text, re.M)))
        return len(ids) or os.cpu_count()
    except OSError:
        return os.cpu_count()


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--only", default="prefill,decode")
    p.add_argument("--tests", default="")
    p.add_argument("--reps", type=int, default=3)
    p.add_argument("--cool", type=float, default=5)
    p.add_argument("--threads", type=int, default=cores())
    p.add_argument("--settings", action="append")
    p.add_argument("--ik", default=os.environ.get("REDLITE_IK_BENCH", ""))
    p.add_argument("--llama", default="")
    p.add_argument("--driver", default="")
    p.add_argument("--libraries", default="")
    p.add_argument("--first", default="")
    p.add_argument("--prefix", default="")
    p.add_argument("--note", default="")
    p.add_argument("--json", default="")
    p.add_argument("redlite")
    p.add_argument("model")
    return p.parse_args()


def programs(o):
    settings = o.settings or [""]
    found = [Redlite("redlite" + (f" {s}" if s else ""), o.redlite, o.model, o.threads, s) for s in settings]
    if o.ik:
        found.append(LlamaBench("ik_llama.cpp", o.ik, o.model, o.threads, True))
    if o.llama:
        found.append(LlamaBench("llama.cpp", o.llama, o.model, o.threads, False))
    if o.driver:
        found.append(Driver("llama.cpp", o.driver, o.libraries, o.model, o.threads))
    return found


def measure(o, test, field):
    """{program: [sample, ...]}, the programs in turn and every second round backwards."""
    samples = {p.name: [] for p in field}
    for rep in range(o.reps):
        for p in field if rep % 2 == 0 else reversed(field):
            command = p.arguments(*parse_test(test))
            if command is None or (rep > 0 and p.name in o.first.split(",")):
                continue
            time.sleep(o.cool)
            text, sample = execute(shlex.split(o.prefix) + command)
            sample["tokens_per_second"] = round(p.speed(text), 3)
            samples[p.name].append(sample)
            print(f"{test} {p.name} {sample['tokens_per_second']:.2f} ({sample['wall_seconds']} s, others "
                  f"{100 * (sample['others_share'] or 0):.1f} %)", file=sys.stderr)
    return samples


def show(test, samples, ours):
    rows = []
    base = None
    for name, list_ in samples.items():
        if not list_:
            continue
        speeds = sorted(s["tokens_per_second"] for s in list_)
        median = statistics.median(speeds)
        base = base or median
        row = {"test": test, "program": name, "median": round(median, 3), "slowest": speeds[0], "fastest": speeds[-1],
               "first_program_over_this": round(base / median, 3), "peak_rss_bytes": max(s["peak_rss_bytes"] for s in list_),
               "others_share": max(s["others_share"] or 0 for s in list_), "samples": list_}
        rows.append(row)
        print(f"| {test:<12} | {name:<28} | {median:9.2f} | {speeds[0]:9.2f} | {speeds[-1]:9.2f} | {base / median:6.2f} | "
              f"{row['peak_rss_bytes'] / 2**30:6.2f} | {100 * row['others_share']:5.1f} % |", flush=True)
    return rows


def main():
    o = options()
    field = programs(o)
    tests = o.tests.split(",") if o.tests else []
    for name in [] if tests else o.only.split(","):
        if name not in SETS:
            sys.exit(f"bench: --only {name}: expected {', '.join(SETS)}")
        if name == "peers" and len(field) == len(o.settings or [""]):
            sys.exit("bench: --only peers needs --ik or --llama")
        tests += [t for t in SETS[name] if t not in tests]
    for t in tests:
        parse_test(t)
    print("| test         | program                      |    median |   slowest |   fastest | times  | GiB    | others  |")
    print("| ------------ | ---------------------------- | --------: | --------: | --------: | -----: | -----: | ------: |")
    rows = []
    for t in tests:
        rows += show(t, measure(o, t, field), field[0])
        if o.json:
            report = field[0].report
            words = [os.path.basename(w) if "/" in w and w != o.json else w for w in shlex.split(os.environ.get("BENCH_COMMAND", ""))]
            record = {"kind": "bench", "command": "scripts/" + shlex.join(words), "date": time.strftime("%Y-%m-%d %H:%M"), "build": report["build"], "machine": report["cpu"],
                      "physical_cores": report["physical_cores"], "memory_bytes": report["memory_bytes"], "model": report["model"],
                      "settings": report["settings"], "pass_tokens": CHUNK, "note": o.note, "results": rows}
            record["model"]["path"] = os.path.basename(record["model"]["path"])
            with open(o.json, "w") as f:
                json.dump(record, f, indent=1)
                f.write("\n")


main()
