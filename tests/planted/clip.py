"""Bugs in clipped means."""

from planted.mutant import Mutant

MUTANTS = [
    Mutant(
        "clipped means get the noise of one radius",
        "Clip.sensitivity",
        "else 2",
        "else 1",
        "privacy/test_clip.py::test_the_sensitivity_is_attained_by_a_user_at_both_ends_of_the_ball",
    ),
    Mutant(
        "vectors are not clipped",
        "clipped_sum",
        "radius / np.maximum(np.sqrt(squares[easy]), radius)",
        "np.ones(np.count_nonzero(easy))",
        "privacy/test_clip.py::test_the_sensitivity_is_attained_by_a_user_at_both_ends_of_the_ball",
    ),
    Mutant(
        "wild vectors are not clipped",
        "clipped_sum",
        "min(largest, radius / length)",
        "largest",
        "privacy/test_clip.py::test_the_sensitivity_is_attained_by_a_user_at_both_ends_of_the_ball",
    ),
    Mutant(
        "wild vectors are clipped in each coordinate only",
        "clipped_sum",
        "/ length",
        "",
        "privacy/test_clip.py::test_a_vector_is_clipped_to_the_radius_and_never_longer_than_the_sensitivity_allows",
    ),
    Mutant(
        "vectors that are not finite are kept",
        "clipped_sum",
        "0 < largest < math.inf",
        "largest != 0",
        "privacy/test_clip.py::test_vectors_of_all_sizes_add_up",
    ),
    Mutant(
        "clipped rounds charged as one",
        "Clip.cost",
        "self.rounds",
        "1",
        "privacy/test_clip.py::test_the_cost_is_that_of_the_gaussians_alone",
    ),
    Mutant(
        "clipped means get half their noise multiplier",
        "clip._Session.release",
        "noise_multiplier",
        "noise_multiplier / 2",
        "privacy/test_clip.py::test_each_round_has_noise_of_multiplier_times_sensitivity",
    ),
    Mutant(
        "more clipped vectors than priced",
        "clip._Session.release",
        "!=",
        "<",
        "privacy/test_clip.py::test_another_number_of_vectors_than_priced_is_refused",
    ),
    Mutant(
        "blocks of one round with different radii",
        "clip._Session.add",
        "self._seen and radius != self._radius",
        "False",
        "privacy/test_clip.py::test_the_blocks_of_a_round_share_one_radius",
    ),
    Mutant(
        "a clipped round goes on from a failed one",
        "clip._Session.choose",
        "self._begin()",
        "",
        "privacy/test_clip.py::test_a_round_begins_anew_whatever_became_of_the_one_before",
    ),
    Mutant(
        "rounding of clipped sums not paid for",
        "Clip.sensitivity",
        "+ 2.0**-50 * self.n_vectors**2",
        "",
        "privacy/test_clip.py::test_the_sensitivity_is_at_least_what_the_proof_says_of_rounding",
    ),
    Mutant(
        "clip: blocks of any width",
        "clip._Session.add",
        "self._seen and vectors.shape[1] != self._total.size",
        "False",
        "privacy/test_clip.py::test_blocks_of_different_width_are_refused",
    ),
    Mutant(
        "clip: more rounds than priced",
        "clip._Session.release",
        "self._rounds_left == 0",
        "False",
        "privacy/test_clip.py::test_a_session_releases_no_more_rounds_than_priced",
    ),
    Mutant(
        "clip: rounds are not counted",
        "clip._Session.release",
        "self._rounds_left -= 1",
        "",
        "privacy/test_clip.py::test_a_session_releases_no_more_rounds_than_priced",
    ),
]
