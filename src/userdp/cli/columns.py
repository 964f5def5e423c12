"""`userdp columns`: a first description of a table's columns, for people to fill in."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import typer

from userdp.cli import options as o
from userdp.cli import show
from userdp.data.columns import first_description
from userdp.data.schema import require_column
from userdp.data.tables import check_place, open_table, whole_file


def columns(
    data: o.Table,
    *,
    user_column: Annotated[str | None, o.option(o.DATA, "Column that says whose row it is: left out.")] = None,
    target: Annotated[str | None, o.option(o.DATA, "Column to predict: left out.")] = None,
    output: Annotated[
        Path | None, o.option(o.OUTPUT, "Description to write (TOML); else it is printed.", "--output", "-o")
    ] = None,
    json: o.Json = None,
) -> None:
    """Write a first description of a table's columns, from names and types only.

    Protected: no cell is looked at, so what is written tells of nobody.

    [bold]Example[/bold]

    userdp columns shop.parquet --user-column user --target bought --output shop.toml
    """
    table = open_table(data)
    left_out = [name for name in (user_column, target) if name is not None]
    for name in left_out:
        require_column(table.column_names, name)
    text = first_description(table, left_out)
    show.check_json(json, data, *([] if output is None else [output]))
    if output is not None:
        check_place(output, data)
        with whole_file(output) as new:
            new.write_text(text, encoding="utf-8")
    told = {"output": None if output is None else str(output), "columns": tomllib.loads(text)}
    if show.as_json(told, json):
        return
    if output is None:
        typer.echo(text)
        return
    typer.echo(f"The description is in {output}: fill it in, then `userdp fit {data} --columns {output}` ...")
