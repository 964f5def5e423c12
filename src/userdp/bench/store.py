"""Results in one JSON file, written whole after every cell: whatever ends a run, what was done is kept.

A cell is what is measured under one set of settings. It counts as done if the file holds it with the same settings and
the same version of userdp; cells that failed are tried again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import userdp
from userdp.data.tables import check_place, whole_file

FORMAT = "userdp bench 1"
NOTE = "NOT PRIVATE: runs were seeded and scored on the data itself. For data that may be published."

Record = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """`settings` say what is measured; `context` what is needed for it but changes nothing, such as paths."""

    settings: Record
    context: Record = field(default_factory=dict)

    @property
    def key(self) -> str:
        return json.dumps(self.settings, sort_keys=True, allow_nan=False)


class Store:
    """The cells in a file. One process writes at a time."""

    def __init__(self, path: Path, run: Record) -> None:
        self.path, self._run, self._number = check_place(path), run, -1
        self._runs, records = _read(path) if path.exists() else ([], [])
        self._records: dict[str, Record] = {Cell(record["settings"]).key: record for record in records}

    def done(self, cell: Cell) -> bool:
        record = self._records.get(cell.key)
        return record is not None and record["version"] == userdp.__version__ and "error" not in record["result"]

    def add(self, cell: Cell, result: Record) -> None:
        """Keep a result, in place of an earlier one of the same settings."""
        if self._number < 0:
            self._runs.append(self._run)
            self._number = len(self._runs) - 1
        self._records.pop(cell.key, None)
        facts = {"version": userdp.__version__, "run": self._number}
        self._records[cell.key] = {"settings": cell.settings, **facts, "result": result}
        whole = {"format": FORMAT, "note": NOTE, "runs": self._runs, "cells": list(self._records.values())}
        text = json.dumps(whole, indent=1, allow_nan=False)
        with whole_file(self.path) as new:
            new.write_text(text)

    def records(self, cells: list[Cell]) -> list[Record]:
        """What is known of these cells, in their order."""
        return [self._records[cell.key] for cell in cells if cell.key in self._records]


def read_records(path: Path) -> list[Record]:
    """All cells of a file of results."""
    if not path.exists():
        raise FileNotFoundError(f"Expected results of `userdp bench` at {path}, found nothing there: check the path.")
    return _read(path)[1]


def _read(path: Path) -> tuple[list[Record], list[Record]]:
    try:
        whole = json.loads(path.read_text())
        if whole["format"] != FORMAT:
            raise KeyError
        return list(whole["runs"]), list(whole["cells"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"Expected {path} to hold results of `userdp bench`: choose another file.") from None
