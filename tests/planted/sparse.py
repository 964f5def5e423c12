"""Bugs in sparse rows: in their structure, in vectors by their entries, and in what these add to a total."""

from planted.mutant import Mutant

_CLIP = "privacy/test_sparse_clip.py::"
_ROWS = "test_sparse.py::"
_OWN = _ROWS + "test_a_users_entries_are_its_own_to_the_last_bit"
_MALFORMED = _ROWS + "test_a_malformed_structure_is_refused_in_the_same_words"
_COLUMNS = _CLIP + "test_entries_of_one_column_are_added_up_before_they_are_clipped"

MUTANTS = [
    Mutant(
        "entries of one column are clipped one by one", "clip._add_sparse", "rows.sum_duplicates()", "pass", _COLUMNS
    ),
    Mutant(
        "sums of a column's entries are written to what was given",
        "clip._add_sparse",
        "else vectors.copy()",
        "else vectors",
        _COLUMNS,
    ),
    Mutant(
        "columns that there are not are added",
        "clip._add_sparse",
        "rows.check_format()",
        "pass",
        _CLIP + "test_columns_that_there_are_not_are_refused",
    ),
    Mutant("columns beyond the last are read", "sparse._fits", "indices.max() < n_columns", "True", _MALFORMED),
    Mutant("columns before the first are read", "sparse._fits", "indices.min() >= 0", "True", _MALFORMED),
    Mutant("row pointers may fall", "sparse._fits", "or np.any(indptr[1:] < indptr[:-1])", "", _MALFORMED),
]
