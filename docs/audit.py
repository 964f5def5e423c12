"""Put docs/audit-results.json into docs/audit.md as a table: python docs/audit.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESULTS, PAGE = FOLDER / "audit-results.json", FOLDER / "audit.md"
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->"


def table(results: dict[str, Any]) -> str:
    """The findings, strongest attacks first within each name."""
    lines = [
        f"Measured {results['date']}; confidence {results['confidence']:g} for the whole table.",
        "",
        "| what | mode | attack | delta | claim | bound | shaped | runs |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for f in results["findings"]:
        shaped = "" if f["shaped"] is None else f"{f['shaped']:.2f}"
        numbers = f"{f['delta']:g} | {f['claim']:.2f} | {f['bound']:.2f} | {shaped} | {f['runs']:,}"
        mark = "" if f["holds"] else " EXCEEDED"
        lines.append(f"| {f['what']} | {f['mode']} | {f['attack']}{mark} | {numbers} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """docs/audit.md with the newest table."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    return head + BEGIN + "\n" + table(json.loads(RESULTS.read_text())) + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page())
