#!/usr/bin/env python3
"""charts.py: draws docs/charts/NAME.svg from every record benchmarks/NAME.json, and nothing by hand.

  charts.py                draws all
  charts.py --check        exit status 1 when a chart is not what its record gives, a record lacks what makes it repeatable, or a
                           page of docs/ shows a chart that has no record
  charts.py --table NAME   a record's medians as lines of text

Records are those of bench.sh. Bars are medians; the line on a bar runs from the slowest to the fastest sample."""
import html
import json
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDS, CHARTS = ROOT / "benchmarks", ROOT / "docs" / "charts"
NEEDED = ("command", "date", "build", "machine", "model", "settings", "results")
COLOURS = ("#b3261e", "#5f6b7a", "#d9a441", "#3b7a57")
WIDTH, LEFT, BAR, GAP = 720, 120, 22, 20


def load(path):
    """The record, with its tests in order and {program: [speeds of each test]}."""
    record = json.loads(path.read_text())
    missing = [key for key in NEEDED if not record.get(key)]
    if missing:
        raise ValueError(f"{path.name} lacks {', '.join(missing)}")
    rows = record["results"]
    record["tests"] = list(dict.fromkeys(row["test"] for row in rows))
    record["programs"] = {name: [[sample["tokens_per_second"] for row in rows if (row["program"], row["test"]) == (name, test)
                                  for sample in row["samples"]] for test in record["tests"]]
                          for name in dict.fromkeys(row["program"] for row in rows)}
    return record


def text(x, y, content, size=13, anchor="start", weight="normal", colour="#1c1b1f"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
            f'fill="{colour}">{html.escape(content)}</text>')


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def draw(record):
    """Horizontal bars, each test on a scale of its own: prefill and decode differ by more than a common one can show."""
    programs, y, out = record["programs"], 58, []
    room = WIDTH - LEFT - 90
    for at_test, test in enumerate(record["tests"]):
        shown = [(i, speeds[at_test]) for i, speeds in enumerate(programs.values()) if speeds[at_test]]
        top = max(max(samples) for _, samples in shown)
        out.append(text(LEFT - 10, y + len(shown) * BAR / 2 + 4, test, anchor="end"))
        for i, samples in shown:
            middle = statistics.median(samples)
            length, low, high = (room * v / top for v in (middle, min(samples), max(samples)))
            out.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 4}" fill="{COLOURS[i % len(COLOURS)]}"/>')
            out.append(f'<line x1="{LEFT + low:.1f}" x2="{LEFT + high:.1f}" y1="{y + BAR / 2 - 2:.1f}" '
                       f'y2="{y + BAR / 2 - 2:.1f}" stroke="#1c1b1f" stroke-width="1.5"/>')
            out.append(text(LEFT + max(length, high) + 6, y + BAR / 2 + 3, number(middle), size=12))
            y += BAR
        y += GAP
    x = LEFT
    for i, name in enumerate(programs):
        out.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{COLOURS[i % len(COLOURS)]}"/>')
        out.append(text(x + 18, y + 11, name, size=12))
        x += 40 + 8 * len(name)
    about = f'{record["machine"]}, {record["physical_cores"]} cores; {record["date"]}; {record["command"]}'
    out.append(text(10, y + 38, about, size=10, colour="#5f6b7a"))
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 50}" font-family="sans-serif">',
            f'<rect width="{WIDTH}" height="{y + 50}" fill="#ffffff"/>', text(10, 24, record["model"]["name"], 16, weight="bold"),
            text(10, 42, "tokens per second, median; line: slowest to fastest", 11, colour="#5f6b7a")]
    return "\n".join(head + out + ["</svg>"]) + "\n"


def check(records):
    problems = []
    for name, record in records.items():
        chart = CHARTS / f"{name}.svg"
        if not chart.exists():
            problems.append(f"{chart.relative_to(ROOT)} is missing")
        elif chart.read_text() != draw(record):
            problems.append(f"{chart.relative_to(ROOT)} is not what benchmarks/{name}.json gives: run scripts/charts.py")
    shown = {name for page in (ROOT / "docs").glob("*.md") for name in re.findall(r"charts/([\w.-]+)\.svg", page.read_text())}
    drawn = {chart.stem for chart in CHARTS.glob("*.svg")}
    problems += [f"chart {name} has no record in benchmarks/" for name in sorted((shown | drawn) - set(records))]
    problems += [f"no page of docs/ shows chart {name}" for name in sorted(set(records) - shown)]
    return problems


def main():
    try:
        records = {path.stem: load(path) for path in sorted(RECORDS.glob("*.json"))}
    except (ValueError, KeyError, TypeError) as problem:
        print(f"charts: {problem}")
        return 1
    if sys.argv[1:] == ["--check"]:
        problems = check(records)
        for problem in problems:
            print(f"charts: {problem}")
        return 1 if problems else 0
    if sys.argv[1:2] == ["--table"]:
        record = records[sys.argv[2]]
        for i, test in enumerate(record["tests"]):
            print(f"{test:<16}", "   ".join(f"{name} {number(statistics.median(speeds[i]))}"
                                            for name, speeds in record["programs"].items() if speeds[i]))
        return 0
    CHARTS.mkdir(parents=True, exist_ok=True)
    for name, record in records.items():
        (CHARTS / f"{name}.svg").write_text(draw(record))
    return 0


sys.exit(main())
