"""Bugs in local randomisers."""

from planted.mutant import Mutant

_TESTS = "test_local.py::"

MUTANTS = [
    Mutant(
        "votes: the truth too often",
        "LocalVotes.truth",
        "self.n_bins",
        "(self.n_bins - 1)",
        _TESTS + "test_no_two_bins_differ_by_more_than_epsilon_in_how_often_they_are_named",
    ),
    Mutant(
        "votes: always the truth",
        "_Votes.release",
        "self._noise.integers(len(own), n_bins)",
        "own",
        _TESTS + "test_votes_are_named_as_often_as_the_proof_says",
    ),
    Mutant(
        "votes: one other bin for all",
        "_Votes.release",
        "len(own), n_bins",
        "1, n_bins",
        _TESTS + "test_every_user_tosses_a_coin_and_has_another_bin_ready",
    ),
    Mutant(
        "votes: the last bin is never drawn",
        "_Votes.release",
        "(own), n_bins",
        "(own), max(1, n_bins - 1)",
        _TESTS + "test_every_user_tosses_a_coin_and_has_another_bin_ready",
    ),
    Mutant(
        "votes charged at half",
        "LocalVotes.cost",
        "epsilon",
        "epsilon / 2",
        _TESTS + "test_costs_are_in_closed_form",
    ),
    Mutant(
        "reports: noise of one radius",
        "_Reports.release",
        "2 *",
        "",
        _TESTS + "test_the_sensitivity_is_attained_and_noise_is_a_multiple_of_it",
    ),
    Mutant(
        "reports: not clipped",
        "_Reports.release",
        "np.clip(values, -radius, radius)",
        "values",
        _TESTS + "test_a_replacement_changes_what_one_user_tells_and_by_no_more_than_the_sensitivity",
    ),
    Mutant(
        "reports: half the noise",
        "_Reports.release",
        "noise_multiplier",
        "noise_multiplier / 2",
        _TESTS + "test_the_sensitivity_is_attained_and_noise_is_a_multiple_of_it",
    ),
    Mutant(
        "reports: one noise for all, on their mean",
        "_Reports.release",
        "told = self._noise.gaussian(clipped, 2 * radius, self._record.noise_multiplier)",
        "noise = self._noise.gaussian(np.zeros(1), 2 * radius, self._record.noise_multiplier)\ntold = clipped + noise",
        _TESTS + "test_each_user_has_noise_of_its_own",
    ),
    Mutant(
        "reports charged at half",
        "LocalReports.cost",
        "1",
        "0.5",
        _TESTS + "test_costs_are_in_closed_form",
    ),
    Mutant(
        "local: another number of vectors than priced",
        "own_values",
        "!= n_priced or n_vectors",
        "",
        _TESTS + "test_only_what_was_priced_is_released",
    ),
    Mutant(
        "local: a session releases again",
        "_once",
        'raise RuntimeError("These users have told what was paid for.")',
        "pass",
        _TESTS + "test_only_what_was_priced_is_released",
    ),
    Mutant(
        "local: coordinates that are not finite are kept",
        "own_values",
        "np.where(np.isfinite(values), values, 0.0)",
        "values",
        _TESTS + "test_users_tell_their_own_coordinate_and_means_are_of_those",
    ),
]
