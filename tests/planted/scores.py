"""Bugs in private evaluations: what people contribute, what it costs, and whose rows are read."""

from planted.mutant import Mutant

_FILE = "privacy/test_scores.py::"
_APART = _FILE + "test_no_two_vectors_point_apart_and_fractions_are_at_most_1_long"
_ALONE = _FILE + "test_a_person_s_vector_is_the_same_bit_by_bit_whoever_else_there_is"
_MOST = _FILE + "test_who_has_more_rows_than_the_most_counts_no_more"
_ACUTE = _FILE + "test_means_are_not_taken_for_vectors_that_never_point_apart"
_BUDGET = "test_evaluating.py::test_the_releases_cost_the_budget_and_no_more"
_CHARGED = "test_evaluating.py::test_one_charge_before_anything_is_read"
_HELD = "test_evaluating.py::test_held_out_people_pay_for_the_evaluation_alone"

MUTANTS = [
    Mutant(
        "off-diagonal products count twice",
        "triangle",
        "math.sqrt(2)",
        "2.0",
        _APART,
    ),
    Mutant(
        "products of coordinates keep one sign only off the diagonal",
        "ScoreSquares.of_users",
        "means[:, :, None] * means[:, None, :]",
        "np.abs(means)[:, :, None] * means[:, None, :]",
        _APART,
    ),
    Mutant("rows are counted, not their fraction", "_divisors", "counts, 1", "1, 1", _APART),
    Mutant(
        "who has more rows than the most counts more",
        "_divisors",
        "np.maximum(counts, 1 if most_rows is None else most_rows)",
        "np.maximum(counts, 1) if most_rows is None else np.full(len(counts), most_rows)",
        _MOST,
    ),
    Mutant(
        "scores are divided by the mean number of rows of all",
        "ScoreMeans.of_users",
        "_divisors(rows.counts, self.most_rows)[:, None]",
        "max(1.0, rows.counts.mean())",
        _ALONE,
    ),
    Mutant(
        "means of scores are taken for vectors that never point apart",
        "curator._ACUTE",
        "ScoreSquares)",
        "ScoreSquares, __import__('userdp.statistics.scores').statistics.scores.ScoreMeans)",
        _ACUTE,
    ),
    Mutant(
        "bins of an evaluation are not counted in its budget",
        "evaluation_steps",
        "1 - _SPREAD_FRACTION - _BINS_FRACTION * layout.needs_cells",
        "1 - _SPREAD_FRACTION",
        _BUDGET,
    ),
    Mutant(
        "half of the noise of scores alone, in their ellipsoid",
        "evaluation_steps",
        "1 / math.sqrt(fraction * mu_squared)",
        "(0.5 if label == SCORES else 1) / math.sqrt(fraction * mu_squared)",
        _BUDGET,
    ),
    Mutant(
        "scores are taken for vectors that never point apart: the radius is larger than what is paid for",
        "evaluation_steps",
        "acute=label != SCORES",
        "acute=True",
        "test_evaluating.py::test_one_charge_before_anything_is_read",
    ),
    Mutant(
        "scores are told from the mean of all people",
        "ScoreMeans.of_users",
        "self.knots) - self.centre",
        "self.knots) - np.nan_to_num(out).mean()",
        _ALONE,
    ),
    Mutant(
        "axes of scores are relative to the longest of all",
        "ScoreMeans.of_users",
        "np.asarray(turned)",
        "turned / np.nanmax(np.abs(turned))",
        _ALONE,
    ),
    Mutant(
        "means are split where those of all people are",
        "split_at",
        "np.minimum(means[:, column], knot)",
        "np.minimum(means[:, column], np.nanmean(means[:, column]))",
        _ALONE,
    ),
    Mutant(
        "half of the noise of an evaluation",
        "evaluation_steps",
        "1 / math.sqrt(fraction * mu_squared)",
        "0.5 / math.sqrt(fraction * mu_squared)",
        _BUDGET,
    ),
    Mutant(
        "an evaluation is charged to a ledger of its own",
        "evaluate_users",
        "ledger = Ledger(budget) if ledger is None else ledger",
        "ledger = Ledger(budget)",
        _CHARGED,
    ),
    Mutant(
        "people who are held out are trained on, too",
        "fitting.fitted",
        "0 if held_out is None else held_out.n_users",
        "0",
        _HELD,
    ),
    Mutant(
        "people are scored who were trained on",
        "HeldOut.steps",
        "start=n_users - self.n_users",
        "start=0",
        _HELD,
    ),
]
