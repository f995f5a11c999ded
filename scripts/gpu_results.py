#!/usr/bin/env python3
"""Of what gpu-check.sh has written into its folder: results.json, results.md and the table on the screen. Fails if a
check did."""

import json
import sys
from pathlib import Path


def lines_of(path):
    return path.read_text().splitlines() if path.exists() else []


def table(card, steps, figures):
    yield from [f"Card: {card}", "", "| check | verdict | s |", "|---|---|---|"]
    yield from (f"| {s['name']} | {s['verdict']} | {s['seconds']} |" for s in steps)
    yield from ["", "| figure | value | byte floor |", "|---|---|---|"]
    for f in figures:
        if "not_measured" in f:
            why = f["not_measured"].replace("|", "/")
            yield f"| {f['name']} | not measured: {why} | - |"
        else:
            floor = f"{f['floor']:.1f}" if f["floor"] else "-"
            yield f"| {f['name']} | {f['value']:.2f} {f['unit']} | {floor} |"


def main():
    out = Path(sys.argv[1])
    steps = [dict(zip(("name", "verdict", "seconds"), line.split("\t"))) for line in lines_of(out / "steps.tsv")]
    figures = [json.loads(line) for line in lines_of(out / "figures.jsonl")]
    card = (out / "card.txt").read_text().strip()
    (out / "results.json").write_text(json.dumps({"card": card, "steps": steps, "figures": figures}, indent=1) + "\n")
    text = "\n".join(table(card, steps, figures)) + "\n"
    (out / "results.md").write_text(text)
    print(text, end="")
    sys.exit(any(s["verdict"].startswith("FAIL") for s in steps))


if __name__ == "__main__":
    main()
