"""Bugs in outlier removal on all vectors and on samples."""

from planted.mutant import Mutant

MUTANTS = [
    Mutant(
        "released mean gets half its noise multiplier",
        "privacy/means/tight.py",
        "record.noise_multiplier)\n",
        "record.noise_multiplier / 2)\n",
        "privacy/test_outlier_removal.py::test_what_leaves_is_the_tight_filtered_mean_with_noise_of_the_tight_sensitivity",
    ),
    Mutant(
        "score where the h-index is meant",
        "privacy/means/tight.py",
        "self._gate.passes(c.h_index(counts))",
        "self._gate.passes(round(c.score(counts)))",
        "privacy/test_outlier_removal.py::test_the_test_is_on_the_h_index_at_its_threshold",
    ),
    Mutant(
        "test skipped",
        "privacy/means/tight.py",
        "        if not self._gate.passes(c.h_index(counts)):\n",
        "        if False:\n",
        "privacy/test_outlier_removal.py::test_the_test_is_on_the_h_index_at_its_threshold",
    ),
    Mutant(
        "half the noise of the single test",
        "privacy/means/outlier_removal.py",
        "1 / self.test_epsilon",
        "0.5 / self.test_epsilon",
        "privacy/test_outlier_removal.py::test_the_noise_of_the_test_is_what_its_epsilon_pays_for",
    ),
    Mutant(
        "half the noise of AboveThreshold",
        "privacy/means/outlier_removal.py",
        "4 / self.test_epsilon",
        "2 / self.test_epsilon",
        "privacy/test_outlier_removal.py::test_the_noise_of_the_test_is_what_its_epsilon_pays_for",
    ),
    Mutant(
        "deficit released for free",
        "privacy/means/sampled_outlier_removal.py",
        "precision = 1 / self.deficit_std**2 + 1 / self.noise_multiplier**2",
        "precision = 1 / self.noise_multiplier**2",
        "privacy/test_sampled_outlier_removal.py::test_deficit_and_mean_are_one_gaussian_release",
    ),
    Mutant(
        "the same sample in every round",
        "privacy/means/sampled_outlier_removal.py",
        "        return users[coins]\n",
        "        return users[: coins.sum()]\n",
        "privacy/test_sampled_outlier_removal.py::test_batches_are_poisson_samples",
    ),
    Mutant(
        "neighbours counted at twice the radius",
        "privacy/means/tight.py",
        "counts = c.neighbour_counts(rows, radius)",
        "counts = c.neighbour_counts(rows, 2 * radius)",
        "privacy/test_outlier_removal.py::test_vectors_one_and_a_half_radii_apart_are_not_neighbours",
    ),
    Mutant(
        "neighbours of a sample counted at twice the radius",
        "privacy/means/sampled_outlier_removal.py",
        "counts = c.neighbour_counts(rows, radius)",
        "counts = c.neighbour_counts(rows, 2 * radius)",
        "privacy/test_sampled_outlier_removal.py::test_vectors_one_and_a_half_radii_apart_are_not_neighbours",
    ),
    Mutant(
        "outliers keep their weights",
        "privacy/means/tight.py",
        "c.tight_ramp(record.n_vectors, record.slack)",
        "c.Ramp(1.0, record.n_vectors - record.slack - 1)",
        "privacy/test_outlier_removal.py::test_the_released_mean_moves_by_at_most_its_sensitivity_for_swaps_with_partial_weights",
    ),
    Mutant(
        "outliers of a sample keep their weights",
        "privacy/means/sampled_outlier_removal.py",
        "c.minibatch_ramp(batch, record.slack, record.share)",
        "c.Ramp(1.0, batch - record.slack - 1)",
        "privacy/test_sampled_outlier_removal.py::test_partial_weights_follow_the_ramp_of_the_batch",
    ),
    Mutant(
        "the ramp forgets the tolerated outliers",
        "privacy/means/tight.py",
        "c.tight_ramp(record.n_vectors, record.slack)",
        "c.tight_ramp(record.n_vectors, record.slack - record.outliers)",
        "privacy/test_outlier_removal.py::test_the_released_mean_moves_by_at_most_its_sensitivity_for_swaps_with_partial_weights",
    ),
    Mutant(
        "the noise of a sample forgets the tolerated outliers",
        "privacy/means/sampled_outlier_removal.py",
        "c.added_user_sensitivity(self.smallest_batch, self.slack, radius, self.share)",
        "c.added_user_sensitivity(self.smallest_batch, self.slack - self.outliers, radius, self.share)",
        "privacy/test_sampled_outlier_removal.py::test_what_leaves_is_the_filtered_mean_with_noise_that_does_not_tell_the_batch_size",
    ),
    Mutant(
        "the ramp of a sample forgets the tolerated outliers",
        "privacy/means/sampled_outlier_removal.py",
        "c.minibatch_ramp(batch, record.slack, record.share)",
        "c.minibatch_ramp(batch, record.slack - record.outliers, record.share)",
        "privacy/test_sampled_outlier_removal.py::test_partial_weights_follow_the_ramp_of_the_batch",
    ),
]
