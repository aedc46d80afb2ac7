#!/usr/bin/env python3
"""mutate.py [WORD...]: tests the tests. Applies every fault of tests/faults.txt (or those whose name holds one of the words) to a
copy of the tree, builds what its tests need, and runs them: a fault is caught when a test fails. Exit status 1 when one is
missed or no longer applies to the code, 2 when the tests fail without any fault. The copy lies in build-mutate and is kept,
so a second run builds little."""
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "build-mutate" / "tree"
BUILD = ROOT / "build-mutate" / "build"


def read_faults(path):
    faults = []
    for line in path.read_text().splitlines():
        if line.startswith("fault: "):
            faults.append({"name": line[7:], "old": [], "new": []})
        elif line.startswith("in: "):
            faults[-1]["file"] = line[4:]
        elif line.startswith("tests: "):
            faults[-1]["tests"] = ["test_" + t for t in line[7:].split("|")]
        elif line.startswith("-"):
            faults[-1]["old"].append(line[1:])
        elif line.startswith("+"):
            faults[-1]["new"].append(line[1:])
    return faults


def copy_tree():
    """The tracked and new files of the working tree; unchanged ones keep their time, so that nothing is built twice."""
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True)
    wanted = {name for name in files.stdout.decode().split("\0") if name and (ROOT / name).is_file()}
    for name in wanted:
        source, target = ROOT / name, COPY / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    for path in COPY.rglob("*"):
        if path.is_file() and str(path.relative_to(COPY)) not in wanted:
            path.unlink()


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def build(targets):
    done = run("cmake", "--build", str(BUILD), "--target", *targets)
    return done.returncode == 0, done.stdout


def failing(tests):
    """The first of the tests that fails, or None; a hang is a failure."""
    for test in tests:
        done = run("ctest", "--test-dir", str(BUILD), "-R", f"^{test}$", "--timeout", "120", "--no-tests=error")
        if done.returncode != 0:
            return test
    return None


def try_fault(fault):
    path = COPY / fault["file"]
    text = path.read_text()
    old, new = "\n".join(fault["old"]), "\n".join(fault["new"])
    if text.count(old) != 1:
        return "stale", f"its text stands {text.count(old)} times in {fault['file']}"
    path.write_text(text.replace(old, new))
    try:
        ok, log = build(fault["tests"])
        if not ok:
            return "stale", "does not compile: " + (re.findall(r"error: .*", log) or ["?"])[0]
        test = failing(fault["tests"])
        return ("caught", "by " + test) if test else ("MISSED", "by " + ", ".join(fault["tests"]))
    finally:
        path.write_text(text)


def main():
    faults = [f for f in read_faults(ROOT / "tests" / "faults.txt")
              if len(sys.argv) < 2 or any(word in f["name"] for word in sys.argv[1:])]
    copy_tree()
    setup = run("cmake", "-S", str(COPY), "-B", str(BUILD), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DREDLITE_BENCH=OFF")
    if setup.returncode != 0:
        sys.exit(setup.stdout)
    tests = sorted({t for f in faults for t in f["tests"]})
    ok, log = build(tests)
    broken = failing(tests) if ok else "the build"
    if broken:
        print(log if not ok else f"{broken} fails without any fault")
        return 2
    counts = {"caught": 0, "MISSED": 0, "stale": 0}
    for i, fault in enumerate(faults, 1):
        start = time.time()
        verdict, detail = try_fault(fault)
        counts[verdict] += 1
        print(f"{i:3} {verdict:7} {fault['name']}: {detail} ({time.time() - start:.0f} s)", flush=True)
    print(f"{counts['caught']} caught, {counts['MISSED']} missed, {counts['stale']} stale")
    return 0 if counts["caught"] == len(faults) else 1


sys.exit(main())
