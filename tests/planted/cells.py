"""Where one person's cells would decide about types, widths, or between success and an error."""

from planted.mutant import Mutant

_TYPES = "hostile/test_hostile_types.py::"
_FILES = "hostile/test_hostile_files.py::"

MUTANTS = [
    Mutant(
        "lists: the first row decides how many features there are",
        "data/schema.py",
        "    if isinstance(X, (list, tuple)) and width is not None:\n",
        "    width = len(X[0]) if isinstance(X, list) and isinstance(X[0], list) and width is None else width\n"
        "    if isinstance(X, (list, tuple)) and width is not None:\n",
        _TYPES + "test_lists_are_refused_by_their_type",
    ),
    Mutant(
        "lists: most rows decide how many features there are",
        "data/schema.py",
        "    if isinstance(X, (list, tuple)) and width is not None:\n",
        "    if isinstance(X, (list, tuple)):\n"
        "        width = sorted(len(row) for row in X if _is_row(row))[len(X) // 2] if width is None else width\n",
        _TYPES + "test_lists_are_refused_by_their_type",
    ),
    Mutant(
        "numbers: a column is text if most of its cells are",
        "data/schema.py",
        "            return _numbers_in_text(column.cells)\n",
        "            found = _numbers_in_text(column.cells)\n"
        "            if 2 * np.isnan(found).sum() > len(found):\n"
        '                raise TypeError(f"Expected {what} to be numeric.")\n'
        "            return found\n",
        _TYPES + "test_lines_of_csv",
    ),
    Mutant(
        "numbers: the type of objects is inferred from all cells",
        "data/schema.py",
        "            return np.fromiter(map(_number, column), dtype=np.float64, count=len(column))\n",
        "            return np.asarray(pa.array(column, from_pandas=True).cast(pa.float64()))\n",
        _TYPES + "test_cells_in_tables_by_name",
    ),
    Mutant(
        "numbers: large integers are refused",
        "data/schema.py",
        "column.cast(pa.float64(), safe=False))\n\n\ndef _numbers_in_text",
        "column.cast(pa.float64()))\n\n\ndef _numbers_in_text",
        _TYPES + "test_cells_in_tables_by_name",
    ),
    Mutant(
        "labels: one that cannot be looked up raises",
        "data/schema.py",
        "    except Exception:  # not hashable, or of a type that refuses to be compared\n",
        "    except KeyError:\n",
        _TYPES + "test_labels",
    ),
    Mutant(
        "labels: text that is no UTF-8 raises",
        "data/schema.py",
        "    if declared(column) != TEXT:\n        return list",
        "    if True:\n        return list",
        _TYPES + "test_words_in_typed_files",
    ),
    Mutant(
        "CSV: one person's bytes make the file unreadable",
        "data/tables.py",
        "check_utf8=types is None",
        "check_utf8=True",
        _TYPES + "test_lines_of_csv",
    ),
    Mutant(
        "CSV: one person's wide row makes the file unreadable",
        "data/tables.py",
        "            if types is not None and pa.float64() in types.values():",
        "            if types is not None:",
        _TYPES + "test_lines_of_csv",
    ),
    Mutant(
        "Arrow: one person's bytes make the file unreadable",
        "data/tables.py",
        "    return as_bytes(array) if declared(array) == TEXT else array\n",
        "    return array\n",
        _TYPES + "test_words_in_typed_files",
    ),
    Mutant(
        "CSV: one person's id decides who others are",
        "data/tables.py",
        "        texts = [schema.user] if schema.classes is None else [schema.user, schema.target]\n",
        "        texts = [] if schema.classes is None else [schema.user, schema.target]\n",
        _FILES + "test_ids_of_csv_are_told_apart_the_same_whatever_others_are_called",
    ),
    Mutant(
        "CSV: one slip changes other people's numbers",
        "data/schema.py",
        "|(?i:inf|infinity))",
        ")",
        _FILES + "test_a_cell_of_csv_means_the_same_whatever_others_write",
    ),
    Mutant(
        "classes of CSV read off its cells",
        "cli/tables.py",
        "        if is_boolean(column):\n            return [False, True]\n",
        '        if is_boolean(column) or set(column.cells.to_pylist()) <= {"true", "false"}:\n'
        "            return [False, True]\n",
        "cli/test_cli_labels.py::test_classes_of_csv_are_never_read_off_it",
    ),
    Mutant(
        "row cap: keys from a generator that can be guessed",
        "data/grouping.py",
        "        return np.frombuffer(os.urandom(8 * n), dtype=np.uint64)\n",
        "        return np.random.default_rng().random(n)\n",
        "test_data.py::test_the_cap_draws_from_the_operating_system",
    ),
]
