"""Bugs in clipped means."""

from planted.mutant import Mutant

MUTANTS = [
    Mutant(
        "clipped means get the noise of one radius",
        "privacy/mechanisms/clip.py",
        "if self.acute else 2\n",
        "if self.acute else 1\n",
        "privacy/test_clip.py::test_the_sensitivity_is_attained_by_a_user_at_both_ends_of_the_ball",
    ),
    Mutant(
        "vectors are not clipped",
        "privacy/mechanisms/clip.py",
        "factors = radius / np.maximum(np.sqrt(squares[easy]), radius)",
        "factors = np.ones(np.count_nonzero(easy))",
        "privacy/test_clip.py::test_the_sensitivity_is_attained_by_a_user_at_both_ends_of_the_ball",
    ),
    Mutant(
        "wild vectors are not clipped",
        "privacy/mechanisms/clip.py",
        "total += scaled * min(largest, radius / length)",
        "total += scaled * largest",
        "privacy/test_clip.py::test_the_sensitivity_is_attained_by_a_user_at_both_ends_of_the_ball",
    ),
    Mutant(
        "wild vectors are clipped in each coordinate only",
        "privacy/mechanisms/clip.py",
        "total += scaled * min(largest, radius / length)",
        "total += scaled * min(largest, radius)",
        "privacy/test_clip.py::test_a_vector_is_clipped_to_the_radius_and_never_longer_than_the_sensitivity_allows",
    ),
    Mutant(
        "vectors that are not finite are kept",
        "privacy/mechanisms/clip.py",
        "        if 0 < largest < math.inf:\n",
        "        if largest != 0:\n",
        "privacy/test_clip.py::test_vectors_of_all_sizes_add_up",
    ),
    Mutant(
        "clipped rounds charged as one",
        "privacy/mechanisms/clip.py",
        "math.nextafter(self.rounds / self.noise_multiplier**2, math.inf)",
        "math.nextafter(1 / self.noise_multiplier**2, math.inf)",
        "privacy/test_clip.py::test_the_cost_is_that_of_the_gaussians_alone",
    ),
    Mutant(
        "clipped means get half their noise multiplier",
        "privacy/mechanisms/clip.py",
        "sensitivity, record.noise_multiplier)",
        "sensitivity, record.noise_multiplier / 2)",
        "privacy/test_clip.py::test_each_round_has_noise_of_multiplier_times_sensitivity",
    ),
    Mutant(
        "more clipped vectors than priced",
        "privacy/mechanisms/clip.py",
        "        if seen != record.n_vectors:\n",
        "        if seen < record.n_vectors:\n",
        "privacy/test_clip.py::test_another_number_of_vectors_than_priced_is_refused",
    ),
    Mutant(
        "blocks of one round with different radii",
        "privacy/mechanisms/clip.py",
        "if self._seen and radius != self._radius:",
        "if False:",
        "privacy/test_clip.py::test_the_blocks_of_a_round_share_one_radius",
    ),
    Mutant(
        "a clipped round goes on from a failed one",
        "privacy/mechanisms/clip.py",
        "        self._begin()\n        return users\n",
        "        return users\n",
        "privacy/test_clip.py::test_a_round_begins_anew_whatever_became_of_the_one_before",
    ),
    Mutant(
        "rounding of clipped sums not paid for",
        "privacy/mechanisms/clip.py",
        " + 2.0**-50 * self.n_vectors**2)",
        ")",
        "privacy/test_clip.py::test_the_sensitivity_is_at_least_what_the_proof_says_of_rounding",
    ),
    Mutant(
        "clip: blocks of any width",
        "privacy/mechanisms/clip.py",
        "        if self._seen and vectors.shape[1] != self._total.size:\n",
        "        if False:\n",
        "privacy/test_clip.py::test_blocks_of_different_width_are_refused",
    ),
    Mutant(
        "clip: more rounds than priced",
        "privacy/mechanisms/clip.py",
        "        if self._rounds_left == 0:\n",
        "        if False:\n",
        "privacy/test_clip.py::test_a_session_releases_no_more_rounds_than_priced",
    ),
    Mutant(
        "clip: rounds are not counted",
        "privacy/mechanisms/clip.py",
        "        self._rounds_left -= 1\n",
        "",
        "privacy/test_clip.py::test_a_session_releases_no_more_rounds_than_priced",
    ),
]
