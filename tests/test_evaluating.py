"""`userdp.evaluation.evaluate`: scores near scikit-learn's, intervals that hold them, one charge, and refusals."""

import functools
import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn import metrics as sk
from sklearn.compose import make_column_transformer
from sklearn.dummy import DummyClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression as PlainLogistic
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

import userdp
from userdp import Budget, BudgetExceeded, Ledger, LinearRegression, LinearSVC, LogisticRegression, PoissonRegressor
from userdp.evaluation import Evaluation, evaluate
from userdp.evaluation.coordinates import (
    BlockScores,
    ScoreLayout,
    corners_of_means,
    enclosing_ball,
    enclosing_ellipsoid,
)
from userdp.evaluation.histogram import N_BINS, Histogram
from userdp.evaluation.release import _root, above_noise, evaluation_steps
from userdp.evaluation.row_losses import (
    Predictions,
    Scale,
    as_table,
    compared,
    isolated,
    margins_of,
    read_rows,
    row_losses,
)
from userdp.evaluation.scores import Score, Scores
from userdp.models import evaluating
from userdp.privacy.accounting import fits
from userdp.privacy.plan import Plan
from userdp.privacy.statement import covered
from userdp.statistics.scores import split_at

N, ROWS = 3000, 3
USERS = np.repeat(np.arange(N), ROWS)
ALL = ("log_loss", "brier", "accuracy", "auc", "calibration")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N * ROWS, 2)) + np.repeat(RNG.normal(size=(N, 2)), ROWS, axis=0)
CHANCES = 1 / (1 + np.exp(-X[:, 0] + 0.5 * X[:, 1] + 0.5))
Y = (RNG.random(N * ROWS) < CHANCES).astype(int)
AMOUNT = X @ [1.0, -0.5] + RNG.normal(size=N * ROWS)


def with_weights(model, coef, intercept, classes=None):
    """A model as if it was fitted to these weights: by whom does not matter here."""
    model.coef_, model.intercept_ = np.atleast_2d(coef), np.atleast_1d(intercept)
    if classes is None:
        model.coef_, model.intercept_ = model.coef_[0], float(model.intercept_[0])
    else:
        model.classes_ = np.array(classes)
    model.n_features_in_ = np.shape(coef)[-1]
    return model


def predictions_of(model, X, y, scale):
    return compared(model, *read_rows(model, X, y), scale)


def logistic(coef=(0.8, -0.6), intercept=-0.3):
    return with_weights(LogisticRegression(classes=[0, 1]), coef, intercept, [0, 1])


def linear():
    return with_weights(LinearRegression(target_range=(-10, 10)), [1.0, -0.4], 0.1)


def exact(model, names=None, **options):
    """Nearly without noise."""
    return evaluate(model, X, options.pop("y", Y), USERS, epsilon=2000.0, delta=1e-6, metrics=names, **options)


def test_scores_of_two_classes_are_those_of_scikit_learn():
    found, model = exact(logistic(), ALL), logistic()
    margins, chances = model.decision_function(X), model.predict_proba(X)[:, 1]
    assert found["log_loss"].value == pytest.approx(sk.log_loss(Y, chances), abs=2e-3)
    assert found["brier"].value == pytest.approx(sk.brier_score_loss(Y, chances), abs=1e-3)
    assert found["accuracy"].value == pytest.approx(sk.accuracy_score(Y, margins > 0), abs=1e-3)
    assert found["auc"].value == pytest.approx(sk.roc_auc_score(Y, margins), abs=1e-3)
    again = PlainLogistic(C=np.inf).fit(margins[:, None], Y)
    assert found["calibration_slope"].value == pytest.approx(again.coef_[0, 0], abs=0.02)
    assert found["calibration_intercept"].value == pytest.approx(again.intercept_[0], abs=0.02)
    for point in found.curve:
        inside = (chances >= point.low) & (chances < point.high)
        assert point.observed == pytest.approx(Y[inside].mean(), abs=0.01)
        assert point.fraction == pytest.approx(inside.mean(), abs=0.01)
        assert point.observed_low <= point.observed <= point.observed_high
    assert 4 <= len(found.curve) <= 10
    assert sum(point.fraction for point in found.curve) == pytest.approx(1.0)


def test_sampling_errors_are_those_of_people():
    """Of people, not of rows: half of the margins' variance is theirs."""
    found = exact(logistic(), ALL)
    losses = row_losses(logistic(), X, Y, "log_loss") * 4
    means = losses.reshape(N, ROWS).mean(axis=1)
    assert found["log_loss"].sampling_std == pytest.approx(means.std() / math.sqrt(N), rel=0.05)
    rng, resampled = np.random.default_rng(1), []
    margins = logistic().decision_function(X).reshape(N, ROWS)
    for _ in range(60):
        chosen = rng.integers(0, N, N)
        resampled.append(sk.roc_auc_score(Y.reshape(N, ROWS)[chosen].ravel(), margins[chosen].ravel()))
    assert found["auc"].sampling_std == pytest.approx(np.std(resampled), rel=0.3)


def test_a_root_that_noise_hides_is_not_0():
    found = _root(Score(0.0, 0.0, 1.44, 0.5, 0.2))
    assert math.isnan(found.value)
    assert (found.low, found.high) == pytest.approx((0.0, 1.2))
    assert _root(Score(4.0, 1.0, 9.0, 0.4, 0.8)) == Score(2.0, 1.0, 3.0, 0.1, 0.2)


def test_scores_of_numbers_and_counts():
    found = exact(linear(), ("mae", "mse", "rmse", "r2"), y=AMOUNT)
    predicted = linear().predict(X)
    assert found["mae"].value == pytest.approx(sk.mean_absolute_error(AMOUNT, predicted), abs=0.02)
    assert found["rmse"].value == pytest.approx(sk.root_mean_squared_error(AMOUNT, predicted), abs=0.05)
    assert found["mse"].value == pytest.approx(found["rmse"].value ** 2)
    assert found["r2"].value == pytest.approx(sk.r2_score(AMOUNT, predicted), abs=0.05)
    counts = np.random.default_rng(2).poisson(np.exp(np.clip(0.3 * X[:, 0], -2, 2)))
    model = with_weights(PoissonRegressor(max_count=10), [0.3, 0.0], 0.0)
    assert exact(model, ("mae",), y=counts)["mae"].value == pytest.approx(
        np.abs(np.clip(model.predict(X), 0, 10) - np.clip(counts, 0, 10)).mean(), abs=0.02
    )


def test_several_classes():
    model = with_weights(LogisticRegression(classes=[0, 1, 2]), [[1, 0], [0, 1], [-1, -1]], [0, 0, 0], [0, 1, 2])
    labels = (X @ [[1, 0, -1], [0, 1, -1]] + np.random.default_rng(3).gumbel(size=(len(X), 3))).argmax(axis=1)
    found = exact(model, ("log_loss", "brier", "accuracy"), y=labels)
    assert found["accuracy"].value == pytest.approx(sk.accuracy_score(labels, model.predict(X)), abs=2e-3)
    assert found["log_loss"].value == pytest.approx(
        row_losses(model, X, labels, "log_loss").mean() * found.limit, abs=5e-3
    )
    with pytest.raises(
        ValueError, match=r"several classes must be some of log_loss, brier, accuracy, got 'auc'; AUC and"
    ):
        exact(model, ("auc",), y=labels)


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_intervals_hold_what_is_there(epsilon):
    truth = exact(logistic(), ALL)
    held = dict.fromkeys(truth.scores, 0)
    runs = 30
    for seed in range(runs):
        found = evaluate(logistic(), X, Y, USERS, epsilon=epsilon, metrics=ALL, insecure_seed=seed)
        for name, score in found.scores.items():
            # The people are the same in all runs: only noise differs.
            held[name] += abs(score.value - truth[name].value) <= 1.96 * score.noise_std + 1e-3
    assert min(held.values()) >= 0.8 * runs, held
    assert max(held.values()) <= runs


def test_people_far_from_all_others_count_in_full():
    """Intervals of the log loss hold it with the features of 1% of the people missing, which is the worst loss."""
    rows = np.where(USERS[:, None] < 0.01 * N, np.nan, X)
    truth = 4.0 * row_losses(logistic(), rows, Y, "log_loss").mean()
    held, runs = 0, 20
    for seed in range(runs):
        score = evaluate(logistic(), rows, Y, USERS, epsilon=1.0, insecure_seed=seed)["log_loss"]
        held += abs(score.value - truth) <= 1.96 * score.noise_std
    assert held >= 0.9 * runs


def test_means_told_in_two_parts_lie_in_the_ellipsoid_and_have_less_noise_up_to_the_knot():
    layout = ScoreLayout("numbers", ("mae", "rmse", "r2"), Scale(16.0, -8.0, 8.0))
    function = BlockScores.of(layout, [None])
    rows, knots = function(layout.possible_rows()), layout.knots(function.scales)
    centre, axes = enclosing_ellipsoid(corners_of_means(rows, knots), layout.weights)
    rng = np.random.default_rng(0)
    means = np.einsum("ij,ijk->ik", rng.dirichlet([0.3] * 3, 20_000), rows[rng.integers(0, len(rows), (20_000, 3))])
    turned = (split_at(means, knots) - centre) @ np.linalg.inv(axes).T
    assert 0.95 < np.linalg.norm(turned, axis=1).max() < 1.001
    _, unsplit = enclosing_ellipsoid(rows, np.array([2.0, 1.0, 1.0, 1.0]))
    error, square = (layout.names(0).index(name) for name in ("error", "square"))
    for place, name, least in ((error, "error", 3), (square, "square", 10)):
        assert least * np.linalg.norm(axes[place]) < np.linalg.norm(unsplit[place])
        assert np.linalg.norm(axes[place] + axes[layout.split[name]]) < 1.1 * np.linalg.norm(unsplit[place])


def test_what_noise_may_be_all_of_is_not_counted():
    assert above_noise(-1.0, 1.0) == above_noise(1.2, 1.0) == 0
    assert above_noise(2.5, 1.0) == pytest.approx(1.875)
    assert above_noise(1e6, 1.0) == pytest.approx(1e6)
    assert above_noise(0.5, 0.0) == 0.5


@pytest.mark.parametrize("far", [0.0, 0.01])
def test_numbers_are_told_better_than_their_range_allows_and_intervals_hold_with_some_far_out(far):
    """The error of ten rows each is told as of a range an eighth as wide; intervals are of the whole one."""
    rng, n, rows = np.random.default_rng(4), 2000, 10
    users, model = np.repeat(np.arange(n), rows), with_weights(LinearRegression(target_range=(-8, 8)), [1.0], 0.0)
    x = rng.normal(size=(n * rows, 1))
    y = np.where(users < far * n, 8.0, x[:, 0] + rng.normal(size=n * rows))
    truth = np.abs(y - x[:, 0]).mean()
    runs = [
        evaluate(model, x, y, users, epsilon=1.0, metrics=("mae", "rmse"), insecure_seed=seed) for seed in range(15)
    ]
    errors = np.array([found["mae"].value - truth for found in runs])
    assert sum(found["mae"].low <= truth <= found["mae"].high for found in runs) >= 13
    assert (
        sum(found["rmse"].low <= math.sqrt(np.mean((y - x[:, 0]) ** 2)) <= found["rmse"].high for found in runs) >= 13
    )
    if not far:
        assert math.sqrt(np.mean(errors**2)) < 0.6 * runs[0]["mae"].noise_std


def test_groups_and_rows():
    half = np.where(USERS % 2, "odd", "even")
    found = exact(logistic(), ("log_loss", "auc"), by=pd.Series(half), levels=["odd", "even"])
    chances = logistic().predict_proba(X)[:, 1]
    for level in ("odd", "even"):
        inside = half == level
        assert found.by[level]["log_loss"].value == pytest.approx(sk.log_loss(Y[inside], chances[inside]), abs=5e-3)
        assert found.by[level]["auc"].value == pytest.approx(sk.roc_auc_score(Y[inside], chances[inside]), abs=5e-3)
    some = (USERS % 2 == 0) | (np.arange(len(USERS)) % ROWS == 0)  # people with three rows, and with one
    weighed = [
        evaluate(
            logistic(), X[some], Y[some], USERS[some], epsilon=2000.0, delta=1e-6, metrics=("log_loss",), **options
        )["log_loss"].value
        for options in ({}, {"weigh": "rows", "max_rows_per_user": ROWS})
    ]
    losses, owners = row_losses(logistic(), X[some], Y[some], "log_loss") * 4, USERS[some]
    of_people = (np.bincount(owners, losses) / np.bincount(owners)).mean()
    assert weighed == pytest.approx([of_people, losses.mean()], abs=2e-3)
    assert abs(of_people - losses.mean()) > 1e-4


def test_rows_without_sense_count_as_the_worst_and_raise_nothing():
    rows, labels = X.copy(), Y.astype(float)
    rows[:300, 0], labels[300:600] = np.nan, 7
    found = evaluate(logistic(), rows, labels, USERS, epsilon=2000.0, delta=1e-6, metrics=("accuracy", "auc"))
    sound = np.arange(len(Y)) >= 600
    right = ((logistic().decision_function(X) > 0) == Y)[sound]
    assert found["accuracy"].value == pytest.approx(right.sum() / len(Y), abs=2e-3)
    auc = sk.roc_auc_score(Y[sound], logistic().decision_function(X)[sound])
    assert found["auc"].value == pytest.approx(auc, abs=3e-3)
    for strange in (np.inf, -np.inf, 1e308):
        rows[0] = strange
        evaluate(logistic(), rows, labels, USERS, epsilon=1.0, metrics=ALL)


def test_a_margin_is_the_same_bit_by_bit_wherever_its_row_stands():
    rng = np.random.default_rng(0)
    rows, model = rng.normal(size=(200, 13)), logistic(rng.normal(size=13))
    alone = np.array([margins_of(model, row[None])[0, 0] for row in rows])
    for order in (np.arange(200), rng.permutation(200), np.arange(3, 200)):
        np.testing.assert_array_equal(margins_of(model, rows[order])[:, 0], alone[order])
    wide = np.asfortranarray(rows)
    np.testing.assert_array_equal(margins_of(model, wide)[:, 0], alone)


def multiplied(rows):
    """A product of matrices rounds by the number of rows; it fails on missing values here."""
    if not np.isfinite(np.asarray(rows)).all():
        raise ValueError("a step that quotes a cell")
    return np.asarray(rows) @ np.random.default_rng(2).normal(size=(37, 37)).astype(np.asarray(rows).dtype)


CONTAINERS = {
    "rows first": np.ascontiguousarray,
    "columns first": np.asfortranarray,
    "columns first, float32": lambda rows: np.asfortranarray(rows.astype(np.float32)),
    "pandas": pd.DataFrame,
    "pandas of columns": lambda rows: pd.DataFrame({f"c{k}": rows[:, k].copy() for k in range(rows.shape[1])}),
    "Arrow": lambda rows: pa.table({f"c{k}": rows[:, k] for k in range(rows.shape[1])}),
}


@pytest.mark.parametrize("failing", [[0], [200], [7, 8, 150]])
@pytest.mark.parametrize("step", [Normalizer(), FunctionTransformer(multiplied)], ids=["lengths", "product"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_rows_that_a_step_fails_on_change_no_bit_of_the_others(container, step, failing):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(201, 37))
    model = make_pipeline(step.fit(rows), logistic(rng.normal(size=37)))
    hostile = rows.copy()
    hostile[failing] = np.nan
    before, after = (
        isolated(lambda some: margins_of(model, some)[:, 0], CONTAINERS[container](version), (201,))
        for version in (rows, hostile)
    )
    assert np.isfinite(before).all()
    assert np.isnan(after[failing]).all()
    assert np.delete(after, failing).tobytes() == np.delete(before, failing).tobytes()


def test_nobody_s_missing_cell_changes_the_type_of_the_others():
    whole = {"c": pa.array([1, 2, 3], pa.int8()), "d": pa.array([True, False, True])}
    missing = {"c": pa.array([1, 2, None], pa.int8()), "d": pa.array([True, False, None])}
    one, other = (as_table(pa.table(columns)) for columns in (whole, missing))
    pd.testing.assert_frame_equal(one[:2], other[:2])
    assert list(one.dtypes) == [np.float64, np.float64]


def test_scores_of_a_row_are_the_same_bit_by_bit_wherever_it_stands():
    rng = np.random.default_rng(1)
    layout = ScoreLayout("binary", ALL, Scale(4.0), ("a", "b"))
    found = predictions_of(logistic(), X[:300], Y[:300], layout.scale)
    rows = layout.rows(found, rng.integers(0, 3, 300) * 1.0)
    noisy = Histogram(np.array([0.6, 0.4]), rng.dirichlet(np.ones(2 * N_BINS)).reshape(2, -1), 1e-3, 1e-3)
    function = BlockScores.of(layout, [noisy] * 3)
    alone = np.vstack([function(row[None]) for row in rows])
    for order in (np.arange(300), rng.permutation(300), np.arange(7, 300, 2)):
        np.testing.assert_array_equal(function(rows[order]), alone[order])
        some = Predictions("binary", found.targets[order], found.values[order], found.sound[order])
        np.testing.assert_array_equal(layout.rows(some, rows[order, 1]), rows[order])


def test_what_noise_hides_is_not_told():
    rare = np.zeros(len(Y), dtype=int)
    rare[:2] = 1
    found = evaluate(logistic(), X, rare, USERS, epsilon=1.0, metrics=("auc", "calibration", "log_loss"))
    assert math.isnan(found["auc"].value)
    assert (found["auc"].low, found["auc"].high) == (0.0, 1.0)
    assert found.curve == ()
    assert 0 < found["log_loss"].value < 4
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert record["scores"]["auc"]["value"] is None
    assert record["private"] is True
    read = Scores.from_dict(record)
    assert str(read) == str(found)


def test_the_releases_cost_the_budget_and_no_more():
    for names, kind in ((ALL, "binary"), (("mae", "r2"), "numbers")):
        for epsilon in (0.5, 8.0):
            budget = Budget(epsilon, 1e-6)
            plan = Plan(N, evaluation_steps(ScoreLayout(kind, names, Scale(4.0)), N, budget))
            (cost,) = plan.costs
            assert fits(cost, budget)
            assert not fits(cost, Budget(0.99 * epsilon, 1e-6))


def test_an_ellipsoid_is_flat_where_coordinates_go_together():
    rng = np.random.default_rng(0)
    line = np.clip(rng.normal(size=(300, 1)), -1, 1) + 0.1 * rng.uniform(-1, 1, (300, 2))
    _, axes = enclosing_ellipsoid(line, np.ones(2))
    _, ball = enclosing_ball(line)
    assert np.linalg.norm(axes[0]) < 0.9 * ball[0, 0]
    _, heavier = enclosing_ellipsoid(line, np.array([4.0, 1.0]))
    assert np.linalg.norm(heavier[0]) < np.linalg.norm(axes[0])
    centre, flat = enclosing_ellipsoid(np.zeros((3, 2)), np.ones(2))
    assert not centre.any()
    assert np.isfinite(np.linalg.inv(flat)).all()


def test_nothing_is_predicted_before_the_charge(monkeypatch):
    """Predictions take longer where a step fails on somebody's cell: the time of the charge must not tell that."""
    ledger, seen = Ledger(Budget(2.5, 2e-6)), []
    whole = evaluating.compared
    monkeypatch.setattr(evaluating, "compared", lambda *a: seen.append(len(ledger.charges())) or whole(*a))
    evaluate(logistic(), X, Y, USERS, epsilon=2.0, delta=1e-6, ledger=ledger)
    assert seen == [1]


def test_one_charge_before_anything_is_read():
    ledger = Ledger(Budget(2.5, 2e-6))
    found = evaluate(
        logistic(), X, pd.Series(Y, name="bought"), USERS, epsilon=2.0, delta=1e-6, ledger=ledger, purpose="how good"
    )
    assert isinstance(found, Evaluation)
    assert [charge.purpose for charge in ledger.charges()] == ["how good; evaluate; target bought"]
    assert found.privacy.epsilon == 2.0
    assert found.privacy.covers.startswith("this evaluation alone")
    assert found.to_dict()["privacy"]["covers"] == covered(found.to_dict()["privacy"]) == found.privacy.covers
    assert ledger.spent_epsilon(1e-6) == pytest.approx(2.0, rel=1e-3)
    with pytest.raises(BudgetExceeded, match="Nothing was spent"):
        evaluate(logistic(), X, Y, USERS, epsilon=2.0, delta=1e-6, ledger=ledger)
    assert len(ledger.charges()) == 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"groups": None}, ValueError, "Expected groups"),
        ({"groups": None, "privacy_unit": "people"}, ValueError, "privacy_unit='people'"),
        ({"metrics": ("r2",)}, ValueError, "two classes must be some of log_loss.*got 'r2'"),
        ({"metrics": ()}, ValueError, "got none"),
        ({"epsilon": 0.0}, ValueError, "epsilon"),
        ({"epsilon": 0.001}, BudgetExceeded, "users would do"),
        ({"delta": 0.0}, BudgetExceeded, "delta > 0"),
        ({"by": USERS}, ValueError, "together with levels"),
        ({"levels": [1, 2]}, ValueError, "together with levels"),
        ({"by": USERS, "levels": list(range(21))}, ValueError, "1 to 20 different levels"),
        ({"by": USERS[1:], "levels": [0, 1]}, ValueError, "Expected by with one value per row"),
        ({"weigh": "users"}, ValueError, "weigh='users'"),
        ({"weigh": "rows"}, ValueError, "max_rows_per_user with weigh"),
        ({"confidence": 1.5}, ValueError, "confidence=1.5"),
        ({"loss_limit": -1.0}, ValueError, r"loss_limit must be .* got -1\.0"),
        ({"y": Y[1:]}, ValueError, "one target per row"),
        ({"groups": USERS[1:]}, ValueError, "User ids and rows differ in length"),
        ({"purpose": 3}, TypeError, "purpose must be text"),
    ],
)
def test_errors_cost_nothing(change, error, message):
    ledger = Ledger(Budget(1.0, 1e-6))
    arguments = {"X": X, "y": Y, "groups": USERS, "epsilon": 1.0, "delta": 1e-6, "ledger": ledger}
    with pytest.raises(error, match=message):
        evaluate(logistic(), **(arguments | change))
    assert ledger.charges() == ()


def test_models_of_others_and_without_probabilities():
    svm = with_weights(LinearSVC(classes=[0, 1]), [0.8, -0.6], -0.3, [0, 1])
    assert list(exact(svm).scores) == ["accuracy", "auc"]
    with pytest.raises(ValueError, match="without probabilities must be some of accuracy, auc, got 'log_loss'"):
        exact(svm, ("log_loss",))
    plain = PlainLogistic().fit(X, Y)
    assert exact(plain)["auc"].value == pytest.approx(sk.roc_auc_score(Y, plain.decision_function(X)), abs=1e-3)
    piped = make_pipeline(FunctionTransformer(), logistic())
    assert exact(piped, ("log_loss",))["log_loss"].value == pytest.approx(
        exact(logistic(), ("log_loss",))["log_loss"].value, abs=1e-3
    )
    sparse = evaluate(logistic(), scipy.sparse.csr_array(X), Y, USERS, epsilon=1.0, metrics=ALL, insecure_seed=0)
    dense = evaluate(logistic(), X, Y, USERS, epsilon=1.0, metrics=ALL, insecure_seed=0)
    assert sparse["log_loss"].value == pytest.approx(dense["log_loss"].value, abs=1e-6)
    nothing = exact(DummyClassifier().fit(X, Y), ("auc", "log_loss"))
    assert nothing["log_loss"].value == pytest.approx(math.log(2), abs=0.05)


@pytest.mark.filterwarnings("error")
def test_no_cell_of_one_person_raises_or_warns_or_changes_another_s_prediction():
    """A cell too large for a tree, one that is missing, an unknown category: their rows count as the worst, alone."""
    cities = np.array(["Lyon", "Paris"])[(X[:, 0] > 0).astype(int)]
    table = pd.DataFrame({"city": cities, "x": X[:, 1]})
    encoded = make_column_transformer(
        (OneHotEncoder(categories=[["Lyon", "Paris"]]), ["city"]), remainder="passthrough"
    )
    known = make_pipeline(encoded, PlainLogistic()).fit(table, Y)
    tree = DecisionTreeClassifier(max_depth=4).fit(X, Y)
    strange, large = table.copy(), X.copy()
    strange.loc[[5, 77], "city"] = "Nowhere"
    large[[5, 77], 0] = 1e50
    for model, plain, changed in ((known, table, strange), (tree, X, large)):
        before = predictions_of(model, plain, Y, Scale(4.0))
        after = predictions_of(model, changed, Y, Scale(4.0))
        assert before.sound.all()
        np.testing.assert_array_equal(np.flatnonzero(~after.sound), [5, 77])
        np.testing.assert_allclose(after.values[after.sound], before.values[after.sound], rtol=1e-12)
        assert evaluate(model, changed, Y, USERS, epsilon=1.0, metrics=("accuracy",))["accuracy"].value > 0.4
    nothing = predictions_of(known, table.assign(city="Nowhere")[:40], Y[:40], Scale(4.0))
    assert not nothing.sound.any()


def test_pipelines_are_scored_as_they_predict():
    table = pd.DataFrame(X, columns=["a", "b"]).assign(name="unused")
    chosen = make_pipeline(make_column_transformer(("passthrough", ["a", "b"])).fit(table), logistic())
    filled = make_pipeline(SimpleImputer(strategy="constant", fill_value=0.0).fit(X), logistic())
    missing = np.where(np.arange(len(X))[:, None] % 3 == [0, 1], np.nan, X)
    for model, rows, plain in ((chosen, table, X), (filled, missing, np.nan_to_num(missing))):
        found = predictions_of(model, rows, Y, Scale(4.0))
        assert found.sound.all()
        np.testing.assert_array_equal(found.values, predictions_of(logistic(), plain, Y, Scale(4.0)).values)
    infinite = make_pipeline(FunctionTransformer(), logistic())
    assert not predictions_of(infinite, np.full((2, 2), np.inf), Y[:2], Scale(4.0)).sound.any()


def test_columns_other_than_the_fit_s_are_refused_by_what_is_declared():
    with pytest.raises(ValueError, match=r"the 2 features of the fit, got 3"):
        evaluate(logistic(), np.hstack([X, X[:, :1]]), Y, USERS, epsilon=1.0)
    model = PlainLogistic().fit(pd.DataFrame(X, columns=["a", "b"]), Y)
    with pytest.raises(ValueError, match=r"columns of the fit: b is missing"):
        evaluate(model, pd.DataFrame(X, columns=["a", "c"]), Y, USERS, epsilon=1.0)


def test_described_columns_are_those_of_the_table_not_the_features():
    columns = userdp.Columns(a=userdp.Number(-9, 9), group=userdp.Category(["x", "y"]))
    model = with_weights(LogisticRegression(classes=[0, 1], columns=columns), [0.8, 0.1, 0.2], -0.3, [0, 1])
    model.columns_, model.feature_names_in_ = columns, np.array(columns.names, dtype=object)
    table = pd.DataFrame({"group": np.where(X[:, 1] > 0, "x", "y"), "a": X[:, 0]})
    for asked in (model, make_pipeline(model)):
        found = evaluate(
            asked, table, Y, USERS, epsilon=8.0, metrics=["accuracy"], by=table["group"], levels=["x", "y"]
        )
        assert found["accuracy"].value > 0.4
        with pytest.raises(ValueError, match=r"columns of the fit: a is missing"):
            evaluate(asked, table[["group"]], Y, USERS, epsilon=1.0)
    with pytest.raises(ValueError, match=r'the column itself, X\["city"\]'):
        evaluate(model, table, Y, USERS, epsilon=8.0, by="group", levels=["x", "y"])


def test_a_delta_that_allows_publishing_a_person_is_refused():
    ledger = Ledger(Budget(10.0, 0.5))
    with pytest.raises(ValueError, match=r"delta=0\.001 well below 1 over the 3000 users.*Nothing was spent"):
        evaluate(logistic(), X, Y, USERS, epsilon=1.0, delta=0.001, ledger=ledger)
    for means in (userdp.private_mean, lambda X, users, **more: scaler(**more).fit(X, groups=users)):
        with pytest.raises(ValueError, match=r"delta=0\.001 well below 1"):
            means(X, USERS, epsilon=1.0, delta=0.001, ledger=ledger)
    assert ledger.charges() == ()


scaler = functools.partial(userdp.PrivateStandardScaler, low=-5, high=5)


def test_predictions_of_numbers_that_are_none_count_as_the_worst():
    class Nothing:
        def predict(self, rows):
            return np.where(np.arange(len(rows)) % 2, np.nan, np.inf)

    found = predictions_of(Nothing(), X[:4], AMOUNT[:4], Scale(20.0, -10.0, 10.0))
    np.testing.assert_array_equal(found.sound, [True, False, True, False])
    assert found.values[0] == 1.0


@pytest.mark.parametrize("times", [0.02, 0.1, 40.0])
def test_what_bins_cannot_tell_is_not_told(times):
    """Margins in one or two bins, or beyond the ends; the same weights but for a factor have the same AUC."""
    found = exact(logistic((0.8 * times, -0.6 * times), -0.3 * times), ("auc", "calibration"))
    assert math.isnan(found["auc"].value)
    assert (found["auc"].low, found["auc"].high) == (0.0, 1.0)
    assert math.isnan(found["calibration_slope"].value)
    assert found.curve == ()
    assert "auc and calibration of everybody: not released" in str(found)
    assert Scores.from_dict(json.loads(json.dumps(found.to_dict()))).notes == found.notes


@pytest.mark.parametrize("times", [0.15, 0.2, 0.3, 0.4, 1.0, 2.0, 5.0])
def test_what_is_told_of_ranks_holds_the_truth(times):
    found = exact(logistic((0.8 * times, -0.6 * times), -0.3 * times), ("auc",))["auc"]
    truth = sk.roc_auc_score(Y, logistic().decision_function(X))
    assert found.low <= truth <= found.high
    if 0.4 <= times <= 2:
        assert found.value == pytest.approx(truth, abs=1e-3)
        assert found.high - found.low < 2 * 1.96 * math.hypot(found.noise_std, found.sampling_std) + 2e-3


def test_an_estimate_beyond_the_range_keeps_an_interval():
    perfect = logistic((8.0, 0.0), 0.0)
    values = [
        evaluate(perfect, X, (X[:, 0] > 0).astype(int), USERS, epsilon=0.5, metrics=("accuracy",), insecure_seed=seed)
        for seed in range(8)
    ]
    beyond = [found["accuracy"] for found in values if found["accuracy"].value == 1.0]
    assert beyond
    assert all(score.low < 1.0 - score.noise_std for score in beyond)


def test_rows_as_the_unit_and_seeds_are_said():
    rows = evaluate(logistic(), X, Y, epsilon=1.0, privacy_unit="row")
    assert "one row's whole data" in str(rows.privacy)
    seeded = evaluate(logistic(), X, Y, USERS, epsilon=1.0, insecure_seed=1)
    assert not seeded.privacy.private
    again = evaluate(logistic(), X, Y, USERS, epsilon=1.0, insecure_seed=1)
    assert seeded.to_dict()["scores"] == again.to_dict()["scores"]


def test_a_ball_holds_its_points():
    points = np.random.default_rng(0).normal(size=(200, 4))
    for centre, axes in (enclosing_ball(points), enclosing_ellipsoid(points, np.ones(4))):
        assert np.linalg.norm((points - centre) @ np.linalg.inv(axes).T, axis=1).max() <= 1 + 1e-9
    corners = np.array(np.meshgrid([0, 1], [0, 1])).reshape(2, -1).T.astype(float)
    assert enclosing_ball(corners)[1][0, 0] == pytest.approx(math.sqrt(0.5), rel=0.02)


def test_the_function_is_found_where_it_is_said_to_be():
    assert userdp.evaluation.evaluate is evaluate
    assert "evaluate" in dir(userdp.evaluation)
    with pytest.raises(AttributeError, match="no attribute 'nobody'"):
        userdp.evaluation.nobody  # noqa: B018 - reading it must raise


# --- evaluate=... ----------------------------------------------------------------------------------------------------


@functools.cache
def held_out():
    """A model whose scores were measured on a third of the people, as its fit was asked, and its ledger."""
    ledger = Ledger(Budget(4.0, 1e-6))
    model = LogisticRegression(4.0, 1e-6, classes=[0, 1], max_rows_per_user=ROWS, ledger=ledger, evaluate=1 / 3)
    return model.fit(X, Y, groups=USERS), ledger


def test_held_out_people_pay_for_the_evaluation_alone():
    model, ledger = held_out()
    assert len(ledger.charges()) == 1
    assert ledger.spent_epsilon(1e-6) == pytest.approx(4.0, rel=0.01)
    assert model.privacy_.epsilon == 4.0
    places = {part.step: (part.first_user, part.last_user) for part in model.privacy_.parts}
    scored = {name: ends for name, ends in places.items() if "scores" in name}
    assert set(scored.values()) == {(N - 1000, N - 1)}
    assert all(last < N - 1000 for name, (_, last) in places.items() if name not in scored)
    assert model.scores_.n_users == 1000


def test_measured_scores_are_near_the_truth_and_kept(tmp_path):
    model, _ = held_out()
    auc = sk.roc_auc_score(Y, model.decision_function(X))
    assert model.scores_.scores["auc"].value == pytest.approx(auc, abs=0.06)
    read = userdp.load_model(userdp.save_model(model, tmp_path / "model.json"))
    assert read.scores_ == model.scores_
    page = userdp.report.report_html(model.to_dict())
    assert "1,000 users who were held out of training" in page
    assert "These are predictions from public numbers" not in page
    assert "calibration slope" in page


def test_numbers_are_scored_in_their_units():
    model = LinearRegression(8.0, 1e-6, target_range=(-8, 8), max_rows_per_user=ROWS, evaluate=0.4)
    model.fit(X, AMOUNT, groups=USERS)
    truth = sk.mean_absolute_error(AMOUNT, model.predict(X))
    assert model.scores_.scores["mae"].value == pytest.approx(truth, abs=0.3)


def test_nothing_is_held_out_unless_asked_for():
    model = LogisticRegression(4.0, classes=[0, 1], max_rows_per_user=ROWS).fit(X, Y, groups=USERS)
    assert model.scores_ is None
    assert model.to_dict()["scores"] is None
    assert [part for part in model.privacy_.parts if "scores" in part.step] == []


@pytest.mark.parametrize(
    ("options", "of_fit", "message"),
    [
        ({"evaluate": 1.5}, {}, r"0 < evaluate=1\.5 < 1"),
        ({"evaluate": "0.1"}, {}, "0 < evaluate='0.1' < 1"),
        ({"evaluate": 1e-5}, {}, "at least 2 users on either side"),
        ({"evaluate": 0.01}, {}, "users would do"),
        ({"evaluate": 0.5, "max_weight": 2.0}, {"sample_weight": np.ones(len(Y))}, "no sample_weight with evaluate"),
        ({"evaluate": 0.5, "class_weight": {1: 2.0}}, {}, "no class_weight with evaluate"),
    ],
)
def test_wrong_fractions_cost_nothing(options, of_fit, message):
    ledger = Ledger(Budget(1.0, 1e-6))
    model = LogisticRegression(1.0, 1e-6, classes=[0, 1], max_rows_per_user=ROWS, ledger=ledger, **options)
    with pytest.raises(ValueError, match=message):
        model.fit(X, Y, groups=USERS, **of_fit)
    assert ledger.charges() == ()
