"""Files that the tests of the command line share."""

from __future__ import annotations

import sys
import types

import pyarrow as pa
import pytest
from support_cli import BUDGET, COLUMNS, SEEDED, people, run

from userdp.data.tables import write_table


@pytest.fixture(scope="session")
def table():
    return pa.table(people())


@pytest.fixture(scope="session")
def files(tmp_path_factory, table):
    """One data file a format, and models that were fitted to it."""
    folder = tmp_path_factory.mktemp("people")
    for suffix in ("parquet", "csv", "arrow"):
        write_table(table, folder / f"data.{suffix}")
    for name, arguments in {
        "flag": ("--target", "flag"),
        "text": ("--target", "text", "--classes", "no,yes"),
        "three": ("--target", "three", "--classes", "low,mid,top"),
        "svm": ("--target", "whole", "--classes", "1,2", "--loss", "squared_hinge"),
        "amount": ("--target", "amount", "--loss", "squared", "--target-range", "0,20"),
    }.items():
        result = run(
            "fit", folder / "data.parquet", *COLUMNS, *BUDGET, *SEEDED, *arguments, "-o", folder / f"{name}.json"
        )
        assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def stub_report(monkeypatch):
    """A report writer that writes a line."""
    module = types.ModuleType("userdp.report")
    module.write_report = lambda model, path, title=None: path.write_text(f"<html>{model.solver_}</html>")
    module.report_facts = lambda record: {}
    monkeypatch.setitem(sys.modules, "userdp.report", module)
