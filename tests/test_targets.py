"""Targets: predictions stay in their range, which may be learned privately, and one that is far too wide is told."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import userdp
from userdp import (
    Budget,
    BudgetExceeded,
    Columns,
    Execution,
    HuberRegressor,
    Ledger,
    LinearRegression,
    Number,
    PoissonRegressor,
    QuantileRegressor,
    Solver,
    UserData,
)
from userdp.model_selection import PrivateSearchCV
from userdp.models.files import load_model, model_of, save_model
from userdp.models.learned_columns import Preparation
from userdp.models.sklearn_compat import UtilityWarning
from userdp.statistics.columns import Histograms, range_of_targets

TRUE = np.array([3.0, -2.0])
REGRESSORS = (LinearRegression, HuberRegressor, QuantileRegressor)


def panel(n_users=3000, rows=2, centre=100.0, scale=1.0, seed=0):
    """Targets around `centre`, spread by about 4 `scale`."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(n_users), rows)
    X = rng.normal(size=(len(users), 2))
    return X, centre + scale * (X @ TRUE + rng.normal(size=len(users))), users


def money(n_users, rows=1, seed=0):
    """Lognormal amounts, sigma 1.5, of mean 460."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(n_users), rows)
    X = rng.normal(size=(len(users), 4))
    own, noise = 0.5 * rng.normal(size=n_users)[users], 1.32 * rng.normal(size=len(users))
    return X, np.exp(5.0 + 0.4 * X[:, 0] - 0.3 * X[:, 1] + own + noise), users


# ---------------------------------------------------------------- predictions stay in the range


@pytest.mark.parametrize("kind", REGRESSORS)
def test_predictions_stay_in_the_range_here_and_from_a_file(kind, tmp_path):
    X, y, users = panel()
    model = kind(8, target_range=(90, 110), max_rows_per_user=2, insecure_seed=0).fit(X, y, groups=users)
    far = np.array([[50.0, 0.0], [-50.0, 0.0], [0.0, 0.0]])
    found = model.predict(far)
    assert found[:2].tolist() == [110.0, 90.0]
    assert 95 < found[2] < 105
    assert model.target_range_ == model.prediction_range_ == (90.0, 110.0)
    again = load_model(save_model(model, tmp_path / "model.json"))
    assert again.predict(far).tolist() == found.tolist()
    assert model.to_sklearn().predict(far)[0] > 150  # which cannot


def test_rates_stay_below_the_largest_count_over_the_largest_exposure(tmp_path):
    rng = np.random.default_rng(0)
    users, X = np.repeat(np.arange(3000), 2), rng.uniform(-1, 1, (6000, 1))
    months = rng.integers(1, 13, 6000)
    y = rng.poisson(months * np.exp(X[:, 0] - 1))
    model = PoissonRegressor(8, max_count=24, max_exposure=12, max_rows_per_user=2, insecure_seed=0)
    model.fit(X, y, groups=users, exposure=months)
    assert model.prediction_range_ == (0.0, 2.0)
    far = np.array([[50.0], [1e6], [0.0]])
    assert model.predict(far)[:2].tolist() == [2.0, 2.0]
    assert model.predict(far, exposure=np.full(3, 3.0))[0] == 6.0
    assert 0.3 < model.predict(far)[2] < 0.45
    again = load_model(save_model(model, tmp_path / "model.json"))
    assert again.predict(far).tolist() == model.predict(far).tolist()


def test_files_of_before_have_the_declared_range():
    X, y, users = panel()
    model = LinearRegression(8, target_range=(90, 110), max_rows_per_user=2, insecure_seed=0).fit(X, y, groups=users)
    record = model.to_dict()
    del record["prediction_range"]
    assert model_of(record).predict(np.array([[50.0, 0.0]])).tolist() == [110.0]
    for ends in ([2.0, 1.0], ["a", "b"], [1.0], [True, False]):
        with pytest.raises(ValueError, match="damaged"):
            model_of(model.to_dict() | {"prediction_range": ends})


# ---------------------------------------------------------------- a range that is learned


@pytest.mark.parametrize("kind", REGRESSORS)
@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_a_range_is_learned_within_the_same_plan_and_charge(kind, delta, tmp_path):
    X, y, users = panel(8000)
    ledger = Ledger(Budget(8, delta))
    model = kind(8, delta, target_range="private", max_rows_per_user=2, ledger=ledger).fit(X, y, groups=users)
    low, high = model.target_range_
    assert 30 <= low < 90
    assert 110 < high <= 260  # bins are powers of 2, and one more to either side
    if kind is LinearRegression and delta > 0:  # Laplace noise without a seed may lead further
        assert model.coef_ == pytest.approx(TRUE, abs=0.3)
    assert len(ledger.charges()) == 1
    assert ledger.spent_epsilon() <= 8
    part = model.privacy_.parts[0]
    assert (part.step, part.releases) == ("range of targets", 1)
    assert part.fraction == pytest.approx(0.1, abs=0.01)
    assert "range of targets" in str(model.privacy_.to_dict())
    again = load_model(save_model(model, tmp_path / "model.json"))
    assert again.target_range_ == model.target_range_
    assert again.get_params()["target_range"] == "private"
    assert again.predict(np.array([[500.0, 0.0]])).tolist() == [high]


def test_what_is_learned_of_targets_depends_on_releases_alone():
    """Two data sets of which nothing is alike, one curator's answer: the same range, to the last digit."""
    learned = []
    for centre in (100.0, -1e300):
        X, y, users = panel(500, centre=centre, seed=int(centre > 0))
        data = UserData.from_arrays(X, y, users)
        preparation = Preparation(None, {}, data, False, 0.1, lambda ends, data=data: np.clip(data.targets, *ends))
        steps, _ = preparation._steps(Budget(4.0, 1e-6))
        released = np.random.default_rng(0).random(Histograms.N_BINS) / Histograms.N_BINS
        curator = SimpleNamespace(release=lambda *_, released=released: released.copy())
        made = preparation.prepared(curator, userdp.Plan(500, tuple(steps)))
        assert np.array_equal(made.rows, data.rows)
        learned.append(preparation.target_range)
    assert learned[0] == learned[1]


def test_what_is_asked_of_targets_is_each_users_histogram_and_nothing_else():
    """Vectors are at most 1 long for any targets, and a user's is of that user's targets alone."""
    users = np.repeat(np.arange(5), 3)
    y = np.array([1.0, 2.0, 1e308, math.nan, math.nan, math.nan, math.inf, -math.inf, 0.0, 5e-324, -1e-320, 3, 7, 7, 7])
    data = UserData.from_arrays(np.zeros((15, 2)), y, users)
    asked = Preparation(None, {}, data, True, 0.1, lambda ends: data.targets).asked
    assert (asked.rows.shape[1], asked.n_features, asked.has_targets) == (1, 1, False)
    assert np.array_equal(asked.offsets, data.offsets)
    vectors = Histograms(1)(asked, np.arange(5), 5)
    assert np.isfinite(vectors).all()
    assert (vectors >= 0).all()
    assert np.linalg.norm(vectors, axis=1).max() <= 1 + 1e-15
    assert vectors[1].sum() == 0
    other = UserData.from_arrays(np.zeros((15, 2)), np.where(users == 2, -3e5, y), users)
    changed = Preparation(None, {}, other, True, 0.1, lambda ends: other.targets).asked
    same = np.all(Histograms(1)(changed, np.arange(5), 5) == vectors, axis=1)
    assert same.tolist() == [True, True, False, True, True]


def test_a_range_is_of_all_bins_that_are_clear_and_one_more():
    def masses(**at):
        made = np.zeros(Histograms.N_BINS)
        for value, mass in at.values():
            made[np.searchsorted(Histograms.EDGES, value, side="right")] = mass
        return made

    assert range_of_targets(masses(a=(20.0, 0.5), b=(50.0, 0.5), c=(1e6, 0.003)), 0.004) == (8.0, 128.0)
    assert range_of_targets(masses(a=(-20.0, 0.5), b=(3.0, 0.5)), 0.004) == (-64.0, 8.0)
    assert range_of_targets(masses(a=(0.0, 0.5), b=(3.0, 0.5)), 0.004) == (0.0, 8.0)
    assert range_of_targets(masses(a=(0.0, 1.0)), 0.004) == (0.0, 1.0)
    assert range_of_targets(masses(a=(-3.0, 1.0)), 0.004) == (-8.0, -1.0)
    assert range_of_targets(masses(a=(math.inf, 1.0)), 0.004)[1] > 4e12
    low, high = range_of_targets(np.full(Histograms.N_BINS, 1e-9), 1.0)
    assert low < high


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
def test_users_without_sensible_targets_raise_nothing():
    X, y, users = panel()
    y[:200], y[200:300], y[300:400] = math.nan, math.inf, 1e308
    model = LinearRegression(8, target_range="private", max_rows_per_user=2, insecure_seed=0).fit(X, y, groups=users)
    assert not model.aborted_
    assert np.isfinite(model.coef_).all()


def test_one_user_with_most_rows_hardly_moves_the_range():
    X, y, users = panel()
    X, y, users = np.vstack([X, np.zeros((9000, 2))]), np.append(y, np.full(9000, 1e9)), np.append(users, [0] * 9000)
    model = LinearRegression(8, target_range="private", insecure_seed=0).fit(X, y, groups=users)
    assert model.target_range_[1] < 300


def test_a_learned_range_goes_with_weights_columns_sparse_rows_and_grouped_data():
    X, y, users = panel(8000)
    settings = {"epsilon": 8, "target_range": "private", "max_rows_per_user": 2, "insecure_seed": 0}
    odd = np.arange(len(y)) % 4 == 0
    weighted = LinearRegression(max_weight=1, **settings).fit(
        X, np.where(odd, 150.0, y), groups=users, sample_weight=np.where(odd, 0.0, 1.0)
    )
    assert weighted.coef_ == pytest.approx(TRUE, abs=0.4)
    of_sparse = LinearRegression(**settings).fit(sparse.csr_matrix(X), y, groups=users)
    assert of_sparse.coef_ == pytest.approx(TRUE, abs=0.4)
    shuffled = np.random.default_rng(1).permutation(len(y))  # rows of a user are not next to each other
    grouped = LinearRegression(**settings).fit(X[shuffled], y[shuffled], groups=users[shuffled])
    assert grouped.coef_ == pytest.approx(TRUE, abs=0.4)
    data = UserData.from_arrays(X, y, users, fit_intercept=True, insecure_seed=0)
    assert LinearRegression(**settings).fit_users(data).coef_ == pytest.approx(TRUE, abs=0.4)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    columns = Columns(a=Number(range="private"), b=Number(-3, 3))
    described = LinearRegression(columns=columns, **settings).fit(frame, y, groups=users)
    assert described.privacy_.parts[0].step == "ranges of columns and targets"
    assert 110 < described.target_range_[1] <= 260
    assert described.score(frame, y) > 0.85


def test_a_run_that_learns_a_range_goes_on_after_it_was_killed(tmp_path, monkeypatch):
    X, y, users = panel(2000)

    def model(journal=None):
        more = {"max_rows_per_user": 2, "insecure_seed": 3, "execution": Execution(checkpoint=journal)}
        return LinearRegression(8, target_range="private", **more)

    plain = model().fit(X, y, groups=users)
    release, done = userdp.Curator.release, []

    def killed(*args):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(args[1])
        return release(*args)

    monkeypatch.setattr(userdp.Curator, "release", killed)
    journal = str(tmp_path / "run.journal")
    with pytest.raises(KeyboardInterrupt):
        model(journal).fit(X, y, groups=users)
    monkeypatch.setattr(userdp.Curator, "release", release)
    resumed = model(journal).fit(X, y, groups=users)
    assert resumed.target_range_ == plain.target_range_
    assert (resumed.coef_ == plain.coef_).all()


@pytest.mark.parametrize(
    ("kind", "parameters", "says"),
    [
        (LinearRegression, {"solver": Solver(domain_radius=3.0)}, "no domain_radius"),
        (HuberRegressor, {"threshold": 3.0}, "no threshold"),
        (QuantileRegressor, {"l2": 0.1}, "no l2"),
        (LinearRegression, {"evaluate": 0.2}, "target_range that is declared with evaluate"),
        (LinearRegression, {"target_range": "secret"}, "or 'private'"),
    ],
)
def test_what_does_not_go_with_a_learned_range_is_refused_before_the_charge(kind, parameters, says):
    X, y, users = panel(400)
    ledger = Ledger(Budget(8, 1e-6))
    model = kind(8, 1e-6, ledger=ledger, **{"target_range": "private"} | parameters)
    with pytest.raises(ValueError, match=says):
        model.fit(X, y, groups=users)
    assert ledger.charges() == ()
    assert not hasattr(model, "target_range_")


def test_a_range_is_not_learned_in_searches_elsewhere_or_of_too_few_users():
    X, y, users = panel(400)
    model = LinearRegression(8, target_range="private", max_rows_per_user=2)
    with pytest.raises(ValueError, match="declared, not 'private', in a search"):
        PrivateSearchCV(model, {"l2": [0.0, 0.1]}, epsilon=8.0).fit(X, y, groups=users)
    few = LinearRegression(0.3, target_range="private", max_rows_per_user=2)
    with pytest.raises(BudgetExceeded, match=r"range of targets privately.*Declare target_range.*Nothing was spent"):
        few.fit(X, y, groups=users)


# ---------------------------------------------------------------- a range that is far too wide


@pytest.mark.parametrize("kind", [LinearRegression, HuberRegressor])
def test_a_range_far_wider_than_the_targets_is_told(kind):
    X, y, users = panel(8000)
    model = kind(4, target_range=(0, 1e6), max_rows_per_user=2, insecure_seed=0)
    with pytest.warns(UtilityWarning, match=r"Nearly all targets seem to lie within about .*% of target_range=\(0, 1e"):
        model.fit(X, y, groups=users)
    assert "target_range='private'" in model.result_.message
    for ends in ((80, 120), (0, 250), "private"):
        fitting = kind(4, target_range=ends, max_rows_per_user=2, insecure_seed=0).fit(X, y, groups=users)
        assert fitting.result_.message == ""


def test_rows_of_a_user_are_not_taken_for_small_residuals():
    X, y, users = panel(4000, rows=30, scale=20)
    model = LinearRegression(4, target_range=(-900, 1100), max_rows_per_user=30, insecure_seed=0).fit(
        X, y, groups=users
    )
    assert "Nearly all targets" not in model.result_.message
    assert 0.1 < model.result_.target_fraction < 1  # three times 75 of 1000


# ---------------------------------------------------------------- never worse than a constant, but for noise


@pytest.mark.parametrize("ends", [(0, 40_000), (0, 1_000_000)])
@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")
def test_skewed_targets_are_predicted_no_worse_than_by_a_constant(ends):
    X, y, users = money(10_000)
    others, theirs, _ = money(20_000, seed=1)
    theirs = np.minimum(theirs, 40_000)
    for epsilon, least in ((1.0, 0.0), (100.0, 0.03)):
        scores = []
        for seed in range(2):
            model = LinearRegression(epsilon, target_range=ends, max_rows_per_user=1, insecure_seed=seed)
            scores.append(model.fit(X, y, groups=users).score(others, theirs))
        assert min(scores) > least  # the best model has 0.04


def test_in_a_range_of_a_billion_amounts_of_some_hundreds_are_predicted_nearly_as_well():
    X, y, users = money(10_000)
    for seed in range(3):
        model = LinearRegression(8.0, target_range=(0, 1e9), max_rows_per_user=1, insecure_seed=seed)
        with pytest.warns(UtilityWarning, match="Nearly all targets"):
            model.fit(X, y, groups=users)
        assert model.score(X, np.minimum(y, 40_000)) > 0.03, "the best model has 0.04"
        assert (model.predict(X) >= 0).all()
    learned = LinearRegression(8.0, target_range="private", max_rows_per_user=1, insecure_seed=0)
    assert learned.fit(X, y, groups=users).score(X, np.minimum(y, 40_000)) > 0.03


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # of rows that were left out
@pytest.mark.parametrize("grouped", [False, True])
def test_a_missing_target_costs_its_row_and_not_its_user_if_the_range_is_learned(grouped):
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(9000, 1)), np.repeat(np.arange(3000), 3)
    y = np.where(users % 2, 0.0, 4.0) + rng.normal(size=9000)
    y[(users % 2 == 0) & (np.arange(9000) % 3 == 0)] = np.nan
    model = LinearRegression(8.0, target_range="private", max_rows_per_user=3, insecure_seed=1)
    if grouped:
        model.fit_users(UserData(np.column_stack([X, np.ones(9000)]), y, np.arange(0, 9001, 3), has_intercept=True))
    else:
        model.fit(X, y, groups=users)
    assert model.intercept_ == pytest.approx(2.0, abs=0.2)
