"""`userdp columns`: a first description of a table's columns, to be filled in by hand."""

from __future__ import annotations

import tomllib
from pathlib import Path

import typer

from userdp.cli import options as o
from userdp.cli import show
from userdp.data.columns import first_description
from userdp.data.schema import require_column
from userdp.data.tables import open_table, whole_file


def columns(
    data: o.Table,
    *,
    user_column: str | None = o.data("Column that says whose row it is: left out."),
    target: str | None = o.data("Column to predict: left out."),
    output: Path | None = o.output("Description to write (TOML); else it is printed.", None, "--output", "-o"),
    json: o.Json = None,
) -> None:
    """Write a first description of a table's columns, from names and types only.

    Protected: no cell is looked at, so what is written depends on no user.

    [bold]Example[/bold]

    userdp columns shop.parquet --user-column user --target bought --output shop.toml
    """
    table = open_table(data)
    left_out = [name for name in (user_column, target) if name is not None]
    for name in left_out:
        require_column(table.column_names, name)
    text = first_description(table, left_out)
    show.check_files(output, json, read=[data])
    if output is not None:
        with whole_file(output) as new:
            new.write_text(text, encoding="utf-8")
    if not show.as_json({"output": output and str(output), "columns": tomllib.loads(text)}, json):
        written = f"The description is in {output}: fill it in, then `userdp fit {data} --columns {output}` ..."
        typer.echo(text if output is None else written)
