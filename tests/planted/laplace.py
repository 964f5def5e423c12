"""Bugs in clipped means without delta: Laplace noise on 1-norms."""

from planted.mutant import Mutant

_LAPLACE = "privacy/test_laplace_clip.py::"
_NOISE = _LAPLACE + "test_each_round_has_laplace_noise_of_multiplier_times_sensitivity"
_DRAWN = _LAPLACE + "test_released_noise_is_laplace_with_scale_multiplier_times_sensitivity"
_ENDS = _LAPLACE + "test_the_sensitivity_is_attained_by_a_user_at_both_ends_of_the_ball"
_MOVED = _LAPLACE + "test_no_replacement_moves_the_total_by_more_than_the_sensitivity_in_the_1_norm"
_COST = _LAPLACE + "test_every_round_costs_one_over_its_multiplier_and_nothing_else"
_PURE = "solvers/test_whitened_clip.py::test_without_delta_every_release_is_pure_and_epsilons_add_up_to_the_budget"
_SAID = "test_pure.py::test_a_fit_says_what_it_guarantees_and_spends"

MUTANTS = [
    Mutant("Laplace noise halved", "SecureNoise.laplace", "sensitivity, epsilon", "sensitivity / 2, epsilon", _DRAWN),
    Mutant(
        "clipped means get Laplace noise of half the scale",
        "Clip.released",
        "1 / self.noise_multiplier",
        "2 / self.noise_multiplier",
        _NOISE,
    ),
    Mutant(
        "a replacement gets the Laplace noise of adding a user",
        "Clip.released",
        "noise.laplace(mean, self.sensitivity(radius, mean.size)",
        "noise.laplace(mean, self.sensitivity(radius, mean.size) / 2",
        _NOISE,
    ),
    Mutant(
        "a replacement is charged as adding a user",
        "Clip.cost",
        "1 / self.noise_multiplier",
        "0.5 / self.noise_multiplier",
        _COST,
    ),
    Mutant("Laplace rounds charged as one", "Clip.cost", "math.inf),) * self.rounds", "math.inf),)", _COST),
    Mutant(
        "2-norms clipped where 1-norms are paid for",
        "ClippedTotal.__call__",
        "laplace=self.laplace",
        "laplace=False",
        _ENDS + " " + _MOVED,
    ),
    Mutant(
        "entries clipped by their squares where 1-norms are paid for",
        "clip._add_sparse",
        "np.abs(entries) if laplace else entries * entries",
        "entries * entries",
        _LAPLACE + "test_totals_of_entries_are_those_of_the_vectors " + _LAPLACE + "test_nor_does_one_of_entries",
    ),
    Mutant("1-norms are roots", "clip._clipped", "sizes if laplace else np.sqrt(sizes)", "np.sqrt(sizes)", _ENDS),
    Mutant("1-norms are sums with signs", "clip._sizes_1", "np.sign(rows)", "np.ones_like(rows)", _ENDS + " " + _MOVED),
    Mutant(
        "acute vectors get Laplace noise for vectors at a right angle",
        "Clip.__post_init__",
        "self.laplace and (self.acute or",
        "self.laplace and (",
        _LAPLACE + "test_what_has_no_proof_with_laplace_noise_is_refused",
    ),
    Mutant(
        "samples with Laplace noise are released without a price",
        "Clip.__post_init__",
        "or self.samples_users",
        "",
        _LAPLACE + "test_what_has_no_proof_with_laplace_noise_is_refused",
    ),
    Mutant(
        "a plan without delta has a Gaussian release",
        "whitened_clip._steps",
        "laplace=layout.pure",
        "laplace=layout.pure and share.label != CURVATURE",
        _PURE,
    ),
    Mutant(
        "Gaussian noise beside many pure parts is told to be free",
        "accounting.epsilon_at",
        "math.inf if cost.gaussian or cost.subsampled else math.fsum(cost.pure)",
        "math.fsum(cost.pure)",
        "privacy/test_accounting.py::test_epsilons_of_many_pure_parts_add_up_and_bound_what_they_compose_to",
    ),
    Mutant(
        "adding a user is told to cost nothing without delta",
        "statement._added_epsilon",
        "Cost(ratio**2 * cost.gaussian, pure, cost.subsampled)",
        "Cost(ratio**2 * cost.gaussian, (), cost.subsampled)",
        _SAID,
    ),
]
