"""Bugs in what is learned of columns: levels of many users, and where numbers lie."""

from planted.mutant import Mutant

_FILE = "privacy/test_vocabulary.py::"
_MOVED = _FILE + "test_one_user_moves_counts_by_at_most_the_sensitivity_and_few_of_them"
_MAP = _FILE + "test_the_noise_is_opendp_s_and_its_map_certifies_what_is_charged"
_NOISE = _FILE + "test_counts_have_the_noise_that_was_priced"
_OWN = _FILE + "test_nobody_s_own_level_shows"
_BLOCKS = _FILE + "test_it_releases_once_of_all_vectors_whatever_their_blocks"
_APART = _FILE + "test_histograms_never_point_apart_and_are_at_most_1_long"
_ALONE = _FILE + "test_own_levels_are_of_the_user_alone"
_ONCE = _FILE + "test_a_text_counts_once_for_a_user_and_only_if_it_is_one"

MUTANTS = [
    Mutant(
        "levels with half of the noise",
        "Vocabulary.noise",
        "self.noise_multiplier,",
        "self.noise_multiplier / 2,",
        _MAP,
    ),
    Mutant("a threshold that nothing is charged for", "Vocabulary.noise", "self.failure,", "0.4,", _MAP),
    Mutant("the failure of a vocabulary is not charged", "Vocabulary.cost", ", failure=self.failure", "", _MAP),
    Mutant(
        "half of a vocabulary's Gaussian cost",
        "Vocabulary.cost",
        "1 / self.noise_multiplier**2",
        "0.5 / self.noise_multiplier**2",
        _MAP,
    ),
    Mutant(
        "a user counts in full for each of its levels",
        "Vocabulary.weight",
        "4**self.bits // n_levels",
        "4**self.bits",
        _MOVED,
    ),
    Mutant("the sensitivity of adding a user", "Vocabulary.sensitivity", "2 * 4**self.bits", "4**self.bits", _MOVED),
    Mutant(
        "a user's text counts as often as it is there",
        "vocabulary._Session.add",
        "np.unique(owners * len(texts) + codes)",
        "np.sort(owners * len(texts) + codes)",
        _ONCE,
    ),
    Mutant(
        "levels are released without a threshold",
        "SecureNoise.thresholded",
        "_threshold_measurement(std, threshold)(dict(counts))",
        "counts",
        _OWN,
    ),
    Mutant(
        "levels show from below the threshold",
        "SecureNoise.thresholded",
        "(std, threshold)",
        "(std, threshold * 4 // 5)",
        _FILE + "test_counts_show_from_the_threshold_on_and_not_from_below",
    ),
    Mutant(
        "levels without noise in private runs",
        "SecureNoise.thresholded",
        "dict(_threshold_measurement(std, threshold)(dict(counts)))",
        "{k: c for k, c in counts.items() if c >= threshold}",
        _NOISE,
    ),
    Mutant("a vocabulary is released twice", "vocabulary._Session.release", "self._left <= 0", "False", _BLOCKS),
    Mutant("any number of users is taken for all", "vocabulary._Session.release", "self._left != 0", "False", _BLOCKS),
    Mutant(
        "users of long histories weigh more",
        "Histograms.of_users",
        "counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)",
        "counts",
        _APART,
    ),
    Mutant(
        "histograms of several columns are too long",
        "Histograms.of_users",
        "/ math.sqrt(self.n_columns)",
        "",
        _APART,
    ),
    Mutant(
        "levels that others have most come first",
        "OwnLevels.of_users",
        "np.lexsort((code, -counts, owner))",
        "np.lexsort((code, -np.bincount(code)[code], owner))",
        _FILE + "test_own_levels_are_the_most_frequent_ones " + _ALONE,
    ),
    Mutant(
        "rows of other users after a preparation",
        "Curator.prepare",
        "not np.array_equal(data.offsets, self._given.offsets)",
        "False",
        _FILE + "test_rows_are_exchanged_for_the_same_users_only",
    ),
    Mutant(
        "what columns learn is not in the plan that is charged",
        "fitting.fitted",
        "*before, ",
        "",
        "test_columns.py::test_the_example_of_the_docs",
    ),
    Mutant(
        "the range of targets is read off the data",
        "Preparation.prepared",
        "range_of_targets(masses[-1], self._least(mechanism))",
        "(float(self._frame.targets.min()), float(self._frame.targets.max()))",
        "test_targets.py::test_what_is_learned_of_targets_depends_on_releases_alone",
    ),
    Mutant(
        "bins that noise fills are in the range of targets",
        "learned_columns._held",
        "masses > least",
        "masses > 0",
        "test_targets.py::test_a_range_is_of_all_bins_that_are_clear_and_one_more",
    ),
    Mutant(
        "rows are asked for with the targets",
        "Preparation.asked",
        "rows = parts[0] if len(parts) == 1 else np.hstack(parts)",
        "rows = np.hstack([*parts, self._frame.rows])",
        "test_targets.py::test_what_is_asked_of_targets_is_each_users_histogram_and_nothing_else",
    ),
    Mutant(
        "people who are scored learn the range",
        "LinearModel._check_evaluate",
        "if self._learns_range:",
        "if False:",
        "test_targets.py::test_what_does_not_go_with_a_learned_range_is_refused_before_the_charge",
    ),
]
