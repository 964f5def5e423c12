"""Where one person's cells would decide about types, widths, or between success and an error."""

from planted.mutant import Mutant

_TYPES = "hostile/test_hostile_types.py::"
_FILES = "hostile/test_hostile_files.py::"

MUTANTS = [
    Mutant(
        "lists: the first row decides how many features there are",
        "schema.matrix",
        "if isinstance(X, (list, tuple)) and width is not None:",
        "width = len(X[0]) if isinstance(X, list) and isinstance(X[0], list) and width is None else width\n"
        "if isinstance(X, (list, tuple)) and width is not None:",
        _TYPES + "test_lists_are_refused_by_their_type",
    ),
    Mutant(
        "lists: most rows decide how many features there are",
        "schema.matrix",
        "if isinstance(X, (list, tuple)) and width is not None:",
        "if isinstance(X, (list, tuple)):\n"
        "    width = sorted(len(row) for row in X if _is_row(row))[len(X) // 2] if width is None else width",
        _TYPES + "test_lists_are_refused_by_their_type",
    ),
    Mutant(
        "numbers: a column is text if most of its cells are",
        "numbers",
        "return _numbers_in_text(column.cells)",
        "found = _numbers_in_text(column.cells)\n"
        "if 2 * np.isnan(found).sum() > len(found):\n"
        '    raise TypeError(f"Expected {what} to be numeric.")\n'
        "return found",
        _TYPES + "test_lines_of_csv",
    ),
    Mutant(
        "numbers: the type of objects is inferred from all cells",
        "numbers",
        "fromiter(map(_number, column), dtype=np.float64, count=len(column))",
        "asarray(pa.array(column, from_pandas=True).cast(pa.float64()))",
        _TYPES + "test_cells_in_tables_by_name",
    ),
    Mutant(
        "numbers: large integers are refused",
        "schema._floats",
        "safe=False",
        "safe=True",
        _TYPES + "test_cells_in_tables_by_name",
    ),
    Mutant(
        "labels: one that cannot be looked up raises",
        "schema._code",
        "Exception",
        "KeyError",
        _TYPES + "test_labels",
    ),
    Mutant(
        "labels: text that is no UTF-8 raises",
        "texts",
        "declared(column) != TEXT",
        "True",
        _TYPES + "test_words_in_typed_files",
    ),
    Mutant(
        "CSV: one person's bytes make the file unreadable",
        "_as_text",
        "UnicodeEncodeError",
        "ZeroDivisionError",
        _TYPES + "test_lines_of_csv",
    ),
    Mutant(
        "CSV: one person's wide row makes the file unreadable",
        "_open_csv",
        '(row + [""] * width)[:width] if len(row) != width else row',
        "row",
        _TYPES + "test_lines_of_csv",
    ),
    Mutant(
        "Arrow: one person's bytes make the file unreadable",
        "_without_text",
        "as_bytes(array) if declared(array) == TEXT else",
        "",
        _TYPES + "test_words_in_typed_files",
    ),
    Mutant(
        "CSV: text behind one user's quote makes the file unreadable",
        "_csv_rows",
        "delimiter=delimiter)",
        "delimiter=delimiter, strict=True)",
        "test_table_files.py::test_rows_of_any_length_are_their_owner_s_matter",
    ),
    Mutant(
        "CSV: a quote that is not closed takes other users' rows",
        "_csv_rows",
        "if before != list(_END):",
        "if False:",
        "test_table_files.py::test_unreadable_files",
    ),
    Mutant(
        "classes of CSV read off its cells",
        "classes_of",
        "(column):",
        '(column) or set(column.cells.to_pylist()) <= {"true", "false"}:',
        "cli/test_cli_labels.py::test_classes_of_csv_are_never_read_off_it",
    ),
    Mutant(
        "row cap: keys from a generator that can be guessed",
        "draws",
        "frombuffer(os.urandom(8 * n), dtype=np.uint64)",
        "random.default_rng().random(n)",
        "test_data.py::test_the_cap_draws_from_the_operating_system",
    ),
    Mutant(
        "weights: where there are too few, other rows' are taken",
        "UserData.from_arrays",
        "if counted is not None and len(counted) != len(X):",
        "if False:",
        "test_data.py::test_weights_are_cut_off_and_one_for_each_row",
    ),
    Mutant(
        "weights: rows may count more often than once",
        "UserData.__post_init__",
        "np.fmin(np.fmax(weights, 0.0), 1.0)",
        "weights",
        "test_data.py::test_weights_are_cut_off_and_one_for_each_row",
    ),
]
