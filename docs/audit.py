"""Put docs/audit-results.json and docs/independent-audit.json into docs/audit.md as tables: python docs/audit.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESULTS, PAGE = FOLDER / "audit-results.json", FOLDER / "audit.md"
INDEPENDENT = FOLDER / "independent-audit.json"
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->"
BEGIN_INDEPENDENT, END_INDEPENDENT = "<!-- independent -->\n", "<!-- end of independent -->"


def strongest(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each mechanism and mode the attack that proves most, and every finding that exceeds its claim."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for f in findings:
        key = f["what"], f["mode"]
        if key not in best or (f["bound"], f["shaped"] or 0) > (best[key]["bound"], best[key]["shaped"] or 0):
            best[key] = f
    return [f for f in findings if not f["holds"] or f is best[f["what"], f["mode"]]]


def table(results: dict[str, Any]) -> str:
    """How many findings there are, and the strongest of each mechanism."""
    findings = results["findings"]
    exceeded = sum(not f["holds"] for f in findings)
    lines = [
        f"{len(findings)} attacks, {exceeded} exceed their claim; confidence {results['confidence']:g} in all.",
        "",
        "| what | mode | attack | delta | claim | bound | shaped | runs | measured |",
        "|---|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for f in strongest(findings):
        shaped = "" if f["shaped"] is None else f"{f['shaped']:.2f}"
        numbers = f"{f['delta']:g} | {f['claim']:.2f} | {f['bound']:.2f} | {shaped} | {f['runs']:,}"
        mark = "" if f["holds"] else " EXCEEDED"
        measured = f.get("date", results["date"])
        lines.append(f"| {f['what']} | {f['mode']} | {f['attack']}{mark} | {numbers} | {measured} |")
    return "\n".join(lines) + "\n"


def independent_table(results: dict[str, Any]) -> str:
    """What the other auditor found."""
    lines = [
        f"Measured {results['date']} by {results['auditor']}; confidence {results['confidence']:g} for all lines.",
        "",
        "| what | delta | claim | bound | if Gaussian | AUC | AUC allowed | runs | result |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for f in results["lines"]:
        gaussian = "" if f["gdp"] is None else f"{f['gdp']:.2f}"
        epsilons = f"{f['delta']:g} | {f['claim']:.2f} | {f['bound']:.2f} | {gaussian}"
        areas, result = f"{f['auc']:.3f} | {f['allowed']:.3f}", "holds" if f["holds"] else "exceeded"
        lines.append(f"| {f['what']} | {epsilons} | {areas} | {f['runs']:,} | {result} |")
    return "\n".join(lines) + "\n"


def filled(text: str, begin: str, end: str, content: str) -> str:
    """The text with this content between two marks."""
    head, rest = text.split(begin)
    return head + begin + "\n" + content + "\n" + end + rest.split(end)[1]


def page() -> str:
    """docs/audit.md with the newest tables."""
    text = filled(PAGE.read_text(), BEGIN, END, table(json.loads(RESULTS.read_text())))
    return filled(text, BEGIN_INDEPENDENT, END_INDEPENDENT, independent_table(json.loads(INDEPENDENT.read_text())))


if __name__ == "__main__":
    PAGE.write_text(page())
