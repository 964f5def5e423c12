"""Parts of the users of Parquet files, so that several processes can read them: ranges of users, or of row groups.

Errors speak of files, columns and the order of rows, never of a cell.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from userdp.data.grouping import Groups
from userdp.data.schema import Schema, decoded, ids, texts
from userdp.data.tables import broken, open_parquet
from userdp.data.users import UserData

_FEWER = "Expected at least 2 users in each of {} partitions: use fewer of them."
_UNSORTED = (
    "Expected rows that are sorted by user, through all files in the order of their names; they are not: sort them, or "
    "leave out sorted_by_user."
)


def columns_of(schema: Schema) -> list[str]:
    """The columns that a schema needs."""
    return [name for name in (schema.user, schema.target, *schema.features) if name is not None]


def ranges(n_users: int, n_parts: int) -> list[int]:
    """Where contiguous near-equal parts begin, and the end."""
    return [n_users * part // n_parts for part in range(n_parts + 1)]


def part_by_users(path: str | os.PathLike[str], schema: Schema, part: int, n_parts: int) -> pa.Table:
    """The rows of one of near-equal ranges of users, who are numbered by first appearance, in the file's order."""
    table = open_parquet(path)
    owners = ids(table[schema.user])
    groups = Groups.make(owners, len(owners), None, None)
    edges = ranges(len(groups.offsets) - 1, n_parts)
    first, last = edges[part], edges[part + 1]
    if last - first < 2:
        raise ValueError(_FEWER.format(n_parts))
    own = slice(groups.offsets[first], groups.offsets[last])
    mine = np.zeros(len(owners), dtype=bool)
    mine[own if groups.order is None else groups.order[own]] = True
    names, kept, start = columns_of(schema), [], 0
    for columns in table.batches(names):
        batch = pa.RecordBatch.from_arrays(columns, names)
        kept.append(batch.filter(pa.array(mine[start : start + len(batch)])))
        start += len(batch)
    if start != len(mine):
        raise ValueError("Expected columns to be as long as the user column: the file changed meanwhile.")
    return pa.Table.from_batches(kept)


def part_by_row_groups(path: str | os.PathLike[str], schema: Schema, part: int, n_parts: int) -> pa.Table:
    """The rows of users who begin in one of near-equal ranges of row groups, of files that are sorted by user.

    There may be one such user or none, where another one has many rows: that is no error, or one person would make it.
    """
    open_parquet(path)  # says what is wrong with a path
    try:
        files = [pq.ParquetFile(file) for file in _files(Path(path))]
        groups = [(file, number) for file in files for number in range(file.num_row_groups)]
        edges = ranges(len(groups), n_parts)
        read = [groups[number] for number in range(edges[part], edges[part + 1])]
        names = columns_of(schema)
        tables = [file.read_row_group(number, columns=names).select(names) for file, number in read]
        before = None  # the user of the row before: their rows are another part's
        for file, number in reversed(groups[: edges[part]]):
            owners = _owners(file.read_row_group(number, columns=[schema.user]), schema.user)
            if len(owners):
                before = owners[-1]
                break
        table = pa.concat_tables(tables) if tables else files[0].schema_arrow.empty_table().select(names)
        table = table.slice(_leading(_owners(table, schema.user), before))
        if len(table) == 0:
            return table
        last, following = _owners(table, schema.user)[-1], []
        for file, number in groups[edges[part + 1] :]:
            more = file.read_row_group(number, columns=names).select(names)
            same = _leading(_owners(more, schema.user), last)
            following.append(more.slice(0, same))
            if same < len(more):
                break
    except (pa.ArrowException, OSError):
        raise ValueError(broken(Path(path))) from None
    table = pa.concat_tables([table, *following])
    owners = _owners(table, schema.user)
    if owners.null_count == 0 and not pc.all(pc.less_equal(owners[:-1], owners[1:]), min_count=0).as_py():
        raise ValueError(_UNSORTED)
    return table


def users_in_order(table: pa.Table, schema: Schema, options: Mapping[str, Any]) -> tuple[UserData, int]:
    """The users of a sorted part, and how many they are; filled up to two with users without rows, who come last."""
    owners = _owners(table, schema.user)
    if owners.null_count or (len(owners) and not owners[0].equals(owners[-1])):
        data = UserData.from_schema(table, schema, **options)
        return data, data.n_users
    n_users, made_up = min(1, len(owners)), [1, 2]  # two more users, of rows without cells, who are left out again
    columns = [pa.chunked_array([*table[name].chunks, pa.nulls(2, table[name].type)]) for name in table.column_names]
    columns[table.column_names.index(schema.user)] = pa.chunked_array([[0] * len(owners) + made_up])
    filled = UserData.from_schema(pa.table(columns, table.column_names), schema, **options)
    return replace(filled.taken(np.arange(n_users)), user_ids=tuple(texts(owners[:n_users]))), n_users


def check_order(ends: list[tuple[object, object]]) -> None:
    """Refuse parts of which one does not begin with a later user than the one before it ends with."""
    for (_, last), (first, _) in pairwise(ends):
        if not _compared(last) < _compared(first):
            raise ValueError(_UNSORTED)


def _compared(user: object) -> Any:
    """An id in the order that Arrow sorts a part's in: text by its bytes, which need not be UTF-8."""
    return user.encode(errors="surrogateescape") if isinstance(user, str) else user


def _files(path: Path) -> list[str]:
    if not path.is_dir():
        return [os.fspath(path)]
    from pyarrow import dataset  # loads pandas

    return sorted(dataset.dataset(path, format="parquet").files)


def _owners(table: pa.Table, user: str) -> pa.Array:
    cells = decoded(ids(table[user]))
    return cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells


def _leading(owners: pa.Array, user: pa.Scalar | None) -> int:
    """How many of the first rows are this user's."""
    if user is None or not user.is_valid:
        return 0
    others = pc.invert(pc.equal(owners, user))
    found = pc.index(others, True).as_py()
    return len(owners) if found < 0 else int(found)
