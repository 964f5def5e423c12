"""Bugs in sparse rows: in their structure, in vectors by their entries, and in what these add to a total."""

from planted.mutant import Mutant

_CLIP = "privacy/test_sparse_clip.py::"
_ROWS = "test_sparse.py::"
_OWN = _ROWS + "test_a_users_entries_are_its_own_to_the_last_bit"
_MALFORMED = _ROWS + "test_a_malformed_structure_is_refused_in_the_same_words"
_NO_VECTOR = _CLIP + "test_entries_that_are_no_vector_count_as_not_finite"

MUTANTS = [
    Mutant(
        "a column of entries may come twice",
        "_add_clipped_entries",
        "and last_seen[columns[k]] != row",
        "",
        _NO_VECTOR,
    ),
    Mutant(
        "negative columns of entries are added", "_add_clipped_entries", "0 <= columns[k] <", "columns[k] <", _NO_VECTOR
    ),
    Mutant(
        "entries may lie beyond what is held",
        "clipped_total_of_entries",
        "or np.any(counts > held - starts)",
        "",
        _CLIP + "test_entries_that_are_not_there_are_refused",
    ),
    Mutant("a user's columns stay seen", "entries._mean_gradients", "seen[touched[t]] = False", "", _OWN),
    Mutant("a user's gradient stays for the next", "entries._mean_gradients", "gradient[e, c] = 0.0", "", _OWN),
    Mutant(
        "a user's squares stay for the next",
        "entries._mean_squares",
        "sums[e], seen[e] = 0.0, False",
        "seen[e] = False",
        _OWN,
    ),
    Mutant(
        "slopes that are not finite pass where rows are empty",
        "entries._mean_gradients",
        "finite = finite and math.isfinite(own[c])",
        "",
        _ROWS + "test_users_without_rows_or_entries",
    ),
    Mutant("columns beyond the last are read", "sparse._fits", "held.max() < n_columns", "True", _MALFORMED),
    Mutant("columns before the first are read", "sparse._fits", "held.min() >= 0", "True", _MALFORMED),
    Mutant("row pointers may fall", "sparse._fits", "or not np.all(indptr[1:] >= indptr[:-1])", "", _MALFORMED),
    Mutant("a row's entries stay for the next", "sparse.taken", "spread[rows.indices[k]] = 0", "pass", _OWN),
]
