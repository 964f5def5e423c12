"""Count the lines that docs/reading-map.md tells of each file, and of the table: python docs/reading_map.py"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parent / "reading-map.md"
_COUNTED = re.compile(r"(\]\(([\w./-]+\.(?:py|md))\)\s(?:\| |\())(\d+)")
_TOTAL = re.compile(r"^These are ([\d,]+) lines", flags=re.MULTILINE)


def lines_of(file: str) -> int:
    """How many lines a file has, by its address in the page."""
    return len((PAGE.parent / file).read_text().splitlines())


def counted(text: str) -> dict[str, int]:
    """What the page tells of each file."""
    return {file: int(number) for _, file, number in _COUNTED.findall(text)}


def total(text: str) -> int:
    """What the page tells of its table."""
    (found,) = _TOTAL.findall(text)
    return int(found.replace(",", ""))


def rows(text: str) -> str:
    """The page's table alone."""
    return "\n".join(line for line in text.splitlines() if line.startswith("|"))


def page() -> str:
    """The page with lines as they are."""
    text = _COUNTED.sub(lambda match: f"{match[1]}{lines_of(match[2])}", PAGE.read_text())
    return _TOTAL.sub(f"These are {sum(counted(rows(text)).values()):,} lines", text)


if __name__ == "__main__":
    PAGE.write_text(page())
