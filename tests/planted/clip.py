"""Bugs in clipped means, of everyone and of samples."""

from planted.mutant import Mutant

_ALL = "privacy/test_clip.py::"
_SAMPLES = "privacy/test_sampled_clip.py::"
_ENDS = _ALL + "test_the_sensitivity_is_attained_by_a_user_at_both_ends_of_the_ball"
_LENGTH = _ALL + "test_a_vector_is_clipped_to_the_radius_and_never_longer_than_the_sensitivity_allows"
_ALIKE = _ALL + "test_totals_do_not_depend_on_order_blocks_or_partitions"
_ROUNDING = "test_the_sensitivities_are_at_least_what_the_proof_says_of_rounding"
_NEIGHBOURS = _SAMPLES + "test_one_user_moves_the_mean_by_at_most_its_sensitivity_in_every_round"
_ATTAINED = _SAMPLES + "test_the_sensitivity_is_attained"
_COST = _SAMPLES + "test_every_round_is_a_sampled_gaussian_release"
_COUNTS = _SAMPLES + "test_another_number_of_vectors_than_sampled_is_refused"
_ROUNDS = _SAMPLES + "test_a_sample_serves_one_release_and_rounds_are_counted"

_TOTALS = "privacy/test_totals.py::"
_FUSED = _TOTALS + "test_the_compiled_loop_adds_up_what_the_vectors_contribute"
_PARTS = _TOTALS + "test_totals_are_the_same_for_any_order_partition_and_number_of_threads"

MUTANTS = [
    Mutant(
        "a total of any number of users",
        "clip._Session.release_total",
        "int(total[-1]) != self._asked",
        "False",
        _TOTALS + "test_totals_of_other_numbers_of_users_are_refused",
    ),
    Mutant(
        "a total clipped to another radius",
        "clip._Session.release_total",
        "radius != self._radius",
        "False",
        _TOTALS + "test_a_total_is_released_with_the_radius_it_was_clipped_to",
    ),
    Mutant("clipped means get the noise of one radius", "Clip.sensitivity", "else 2", "else 1", _ENDS),
    Mutant(
        "vectors are not clipped",
        "clip._clipped",
        "np.where(short, 1.0, 1 / (sizes if laplace else np.sqrt(sizes)))",
        "1.0",
        _ENDS,
    ),
    Mutant("wild vectors are not clipped", "clip._clipped", "sizes = size_of(scaled)\n        lost", "lost", _ENDS),
    Mutant(
        "lengths are divided by squares",
        "clip._clipped",
        "np.sqrt(sizes)",
        "sizes",
        _LENGTH,
    ),
    Mutant(
        "vectors that are not finite are kept",
        "clip._clipped",
        "np.where(spread(lost), 0.0, scaled)",
        "scaled",
        _ALL + "test_vectors_of_all_sizes_add_up",
    ),
    Mutant(
        "a vector's integers depend on where it stands",
        "clip._clipped",
        "* 2.0**bits",
        "* 2.0**bits * (1 + np.arange(len(sizes)) % 2 * 1e-9)",
        _ALIKE,
    ),
    Mutant(
        "whole numbers are rounded up",
        "clip._clipped",
        "scaled.astype",
        "np.ceil(scaled).astype",
        _ALL + "test_whole_numbers_are_rounded_towards_0_exactly",
    ),
    Mutant(
        "users added up side by side get no room for rounding",
        "Clip.sensitivity",
        " + SHARED_ROUNDING",
        "",
        _ALL + "test_the_sensitivity_is_at_least_what_the_proof_says_of_rounding",
    ),
    Mutant(
        "vectors are clipped to one length, whatever the radius",
        "clip._clipped",
        "entries * (1 / radius)",
        "entries * 1.0",
        _ALL + "test_vectors_are_clipped_to_radii_of_all_sizes",
    ),
    Mutant("totals leave their integers", "grid_bits", "62", "66", _ALL + "test_no_total_leaves_its_integers"),
    Mutant(
        "clipped rounds charged as one",
        "Clip.cost",
        "self.rounds / self.noise_multiplier",
        "1 / self.noise_multiplier",
        _ALL + "test_the_cost_is_that_of_the_gaussians_alone",
    ),
    Mutant(
        "clipped means get half their noise multiplier",
        "Clip.released",
        "mean.size), self.noise_multiplier",
        "mean.size), self.noise_multiplier / 2",
        _ALL + "test_each_round_has_noise_of_multiplier_times_sensitivity",
    ),
    Mutant(
        "more clipped vectors than priced",
        "clip._Session.release",
        "len(vectors) != self._asked",
        "len(vectors) < self._asked",
        _ALL + "test_another_number_of_vectors_than_priced_is_refused " + _COUNTS,
    ),
    Mutant(
        "fewer vectors than were sampled",
        "clip._Session.release",
        "len(vectors) != self._asked",
        "len(vectors) > self._asked",
        _COUNTS,
    ),
    Mutant(
        "rounding of means of totals not paid for",
        "Clip.sensitivity",
        "+ self.n_vectors",
        "",
        _ALL + "test_the_sensitivity_is_at_least_what_the_proof_says_of_rounding " + _SAMPLES + _ROUNDING,
    ),
    Mutant(
        "the grid turns acute vectors for nothing",
        "Clip.sensitivity",
        "+ 4 * math.sqrt(dimension) * 2.0**-self.bits",
        "",
        "privacy/test_acute_clip.py::test_rounding_to_a_coarse_grid_is_paid_for",
    ),
    Mutant(
        "clip: more rounds than priced",
        "clip._Session.release_total",
        "self._rounds_left == 0",
        "False",
        _ALL + "test_a_session_releases_no_more_rounds_than_priced",
    ),
    Mutant(
        "clip: rounds are not counted",
        "clip._Session.release_total",
        "self._rounds_left -= 1",
        "",
        _ALL + "test_a_session_releases_no_more_rounds_than_priced",
    ),
    Mutant(
        "means of samples get the noise of all users",
        "Clip.sensitivity",
        "/ self.expected",
        "/ self.n_vectors",
        _ATTAINED,
    ),
    Mutant("sampled rounds charged as one", "Clip.cost", "adding, self.rounds", "adding, 1", _COST),
    Mutant(
        "an addition charged with the noise of a replacement twice over",
        "Clip.cost",
        "2 * self.noise_multiplier",
        "4 * self.noise_multiplier",
        _COST,
    ),
    Mutant(
        "sums divided by all users' number",
        "Clip.released",
        "self.bits, self.expected",
        "self.bits, self.n_vectors",
        _SAMPLES + "test_sums_of_the_sample_are_divided_by_how_many_are_expected",
    ),
    Mutant(
        "everyone is sampled",
        "clip._Session.choose",
        "users[self._noise.poisson_mask(np.full(len(users), record.sampling_probability))]",
        "users",
        _SAMPLES + "test_samples_are_poisson_and_fresh",
    ),
    Mutant(
        "the user asked for an empty sample counts",
        "clip._Session.choose",
        "max(1, len(chosen)), len(chosen) > 0",
        "max(1, len(chosen)), True",
        _SAMPLES + "test_an_empty_sample_is_noise_alone_and_tells_that_it_knows_nothing",
    ),
    Mutant(
        "another number of users than priced",
        "clip._Session.choose",
        "len(users) != record.n_vectors",
        "False",
        _SAMPLES + "test_another_number_of_users_than_priced_is_refused",
    ),
    Mutant(
        "a sample serves twice",
        "clip._Session.release_total",
        "self._asked = 0",
        "pass",
        _ROUNDS,
    ),
    Mutant(
        "totals beyond all radii are released",
        "clip._Session.release_total",
        "or np.linalg.norm(total[:-1].astype(float)) > longest",
        "",
        "privacy/test_totals.py::test_totals_that_no_sum_of_clipped_vectors_can_be_are_refused",
    ),
]
