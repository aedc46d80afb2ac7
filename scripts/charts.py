#!/usr/bin/env python3
"""charts.py: draws docs/charts/NAME.svg from every record benchmarks/NAME.json, and nothing by hand.

  charts.py                draws all
  charts.py --check        exit status 1 when a chart is not what its record gives, a record lacks what makes it repeatable, or a
                           page of docs/ shows a chart that has no record
  charts.py --table NAME   a record's medians as lines of text

A record says what was measured (title, unit, groups, series with the samples of each group) and how to do it again (machine,
date, command, versions). Bars are medians; the line on a bar runs from the smallest to the largest sample."""
import html
import json
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDS, CHARTS = ROOT / "benchmarks", ROOT / "docs" / "charts"
NEEDED = ("title", "unit", "machine", "date", "command", "versions", "groups", "series")
COLOURS = ("#b3261e", "#5f6b7a", "#d9a441", "#3b7a57")
WIDTH, LEFT, BAR, GAP = 720, 120, 22, 20


def load(path):
    record = json.loads(path.read_text())
    missing = [key for key in NEEDED if not record.get(key)]
    if missing:
        raise ValueError(f"{path.name} lacks {', '.join(missing)}")
    for series in record["series"]:
        if len(series["samples"]) != len(record["groups"]) or not all(series["samples"]):
            raise ValueError(f"{path.name}: series {series['name']} does not have samples for every group")
    return record


def text(x, y, content, size=13, anchor="start", weight="normal", colour="#1c1b1f"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
            f'fill="{colour}">{html.escape(content)}</text>')


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def draw(record):
    """Horizontal bars, each group on a scale of its own: prefill and decode differ by more than a common one can show."""
    series, y, out = record["series"], 58, []
    room = WIDTH - LEFT - 90
    for group, label in enumerate(record["groups"]):
        top = max(max(s["samples"][group]) for s in series)
        out.append(text(LEFT - 10, y + len(series) * BAR / 2 + 4, label, anchor="end"))
        for i, s in enumerate(series):
            samples, at = s["samples"][group], y + i * BAR
            middle = statistics.median(samples)
            length, low, high = (room * v / top for v in (middle, min(samples), max(samples)))
            out.append(f'<rect x="{LEFT}" y="{at}" width="{length:.1f}" height="{BAR - 4}" fill="{COLOURS[i % len(COLOURS)]}"/>')
            out.append(f'<line x1="{LEFT + low:.1f}" x2="{LEFT + high:.1f}" y1="{at + BAR / 2 - 2:.1f}" '
                       f'y2="{at + BAR / 2 - 2:.1f}" stroke="#1c1b1f" stroke-width="1.5"/>')
            out.append(text(LEFT + max(length, high) + 6, at + BAR / 2 + 3, number(middle), size=12))
        y += len(series) * BAR + GAP
    x = LEFT
    for i, s in enumerate(series):
        out.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{COLOURS[i % len(COLOURS)]}"/>')
        out.append(text(x + 18, y + 11, s["name"], size=12))
        x += 40 + 8 * len(s["name"])
    out.append(text(10, y + 38, f'{record["machine"]}; {record["date"]}; {record["command"]}', size=10, colour="#5f6b7a"))
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 50}" font-family="sans-serif">',
            f'<rect width="{WIDTH}" height="{y + 50}" fill="#ffffff"/>', text(10, 24, record["title"], 16, weight="bold"),
            text(10, 42, record["unit"] + ", median; line: smallest to largest", 11, colour="#5f6b7a")]
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
        return 1 if problems or not records else 0
    if sys.argv[1:2] == ["--table"]:
        record = records[sys.argv[2]]
        for group, label in enumerate(record["groups"]):
            middles = [statistics.median(s["samples"][group]) for s in record["series"]]
            print(f"{label:<16}", "   ".join(f"{s['name']} {number(m)}" for s, m in zip(record["series"], middles)),
                  f"  ratio {middles[0] / middles[-1]:.2f}")
        return 0
    CHARTS.mkdir(parents=True, exist_ok=True)
    for name, record in records.items():
        (CHARTS / f"{name}.svg").write_text(draw(record))
    return 0


sys.exit(main())
