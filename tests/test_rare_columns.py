"""Coefficients of columns that few users have: right where noise allows, named as unresolved elsewhere."""

import json
import warnings

import numpy as np
import pytest

from userdp import LinearRegression, LogisticRegression, PoissonRegressor, load_model, save_model
from userdp.models.intervals import far_from_resolved, notes_on, unresolved_columns
from userdp.models.sklearn_compat import UtilityWarning

N_USERS, ROWS = 30_000, 3


def drawn(share, others, n_users=N_USERS, seed=0):
    """Rows with a flag that this share of the users have as their last column, and who owns them."""
    rng, owners = np.random.default_rng(seed), np.repeat(np.arange(n_users), ROWS)
    flag = (rng.random(n_users) < share)[owners]
    return np.column_stack([rng.normal(size=(len(owners), others)), flag]), owners, rng


MODELS = {
    "linear": lambda **more: LinearRegression(target_range=(-5, 5), max_rows_per_user=ROWS, **more),
    "logistic": lambda **more: LogisticRegression(classes=[0, 1], max_rows_per_user=ROWS, **more),
    "poisson": lambda **more: PoissonRegressor(max_count=20, max_rows_per_user=ROWS, **more),
}


def outcome(kind, X, rng):
    eta = 0.5 * X[:, 0] + X[:, -1]
    if kind == "linear":
        return np.clip(eta + rng.normal(size=len(X)), -5, 5)
    if kind == "logistic":
        return (rng.random(len(X)) < 1 / (1 + np.exp(-eta))).astype(int)
    return np.minimum(rng.poisson(np.exp(eta)), 20)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("share", "others", "epsilon"), [(0.12, 1, 8.0), (0.12, 1, 1.0), (0.05, 4, 2.0), (0.01, 8, 8.0)]
)
def test_a_rare_flag_has_its_coefficient(kind, share, others, epsilon):
    X, owners, rng = drawn(share, others)
    model = MODELS[kind](epsilon=epsilon, insecure_seed=1).fit(X, outcome(kind, X, rng), groups=owners)
    coef = np.ravel(model.coef_)
    assert coef[-1] == pytest.approx(1.0, abs=0.2)  # 0.15 of the non-private one, which is off by up to 0.05
    assert coef[0] == pytest.approx(0.5, abs=0.05)
    assert not model.unresolved_


@pytest.mark.parametrize("seed", [1, 4])  # errors of the last level were 0.26 and 1.03 with the mean curvature alone
def test_a_fast_fit_of_numbers_has_rare_levels_as_the_curvatures_along_them_tell(seed):
    rng, n_users = np.random.default_rng(seed), 200_000
    owners, shares = np.repeat(np.arange(n_users), ROWS), [0.4, 0.25, 0.15, 0.1, 0.06, 0.025, 0.01, 0.005]
    Z = rng.normal(size=(len(owners), 2))
    levels = rng.choice(8, size=n_users, p=shares)[owners, None] == np.arange(1, 8)
    X, effects = np.column_stack([Z, levels]), np.array([0.35, 0.35, 1, -1, 1, -1, 1, -1, 1])
    y = X @ effects + np.repeat(0.3 * rng.normal(size=n_users), ROWS) + rng.normal(size=len(X))
    model = MODELS["linear"](epsilon=1.0, insecure_seed=seed).fit(X, np.clip(y, -5, 5), groups=owners)
    assert model.n_gradients_ < 20 * len(X), "of the fast schedule"
    np.testing.assert_allclose(model.coef_, effects, atol=0.15)


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")
def test_what_all_classes_share_is_no_part_of_the_coefficients():
    X, owners, rng = drawn(0.05, 1, n_users=3000)
    model = LogisticRegression(epsilon=4.0, classes=[0, 1, 2], max_rows_per_user=ROWS, insecure_seed=1)
    model.fit(X, rng.integers(3, size=len(X)), groups=owners)
    assert np.all(np.abs(model.coef_).max(axis=0) > 1e-6)
    np.testing.assert_allclose(model.coef_.sum(axis=0), 0.0, atol=1e-9)


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # of totals, too
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("share", [0.0, 0.002])
def test_what_noise_hides_is_named_and_not_made_up(kind, share, tmp_path):
    X, owners, rng = drawn(share, 2, n_users=3000)
    model = MODELS[kind](epsilon=1.0, insecure_seed=1)
    with pytest.warns(UtilityWarning, match="noise hides the coefficients of x2"):
        model.fit(X, outcome(kind, X, rng), groups=owners)
    assert abs(np.ravel(model.coef_)[-1]) < 1.5
    assert "x2" in model.unresolved_
    assert "x2" in model.notes_[0]
    save_model(model, tmp_path / "model.json")
    loaded = load_model(tmp_path / "model.json")
    assert (loaded.unresolved_, loaded.notes_) == (model.unresolved_, model.notes_)
    record = json.loads((tmp_path / "model.json").read_text())
    del record["unresolved"], record["notes"]  # as files of 0.1 are
    (tmp_path / "old.json").write_text(json.dumps(record))
    assert load_model(tmp_path / "old.json").unresolved_ == {}


def test_the_number_of_users_that_would_do_grows_with_the_noise():
    found = unresolved_columns(["a", "b", "c"], np.array([0.01, 0.12, 5.0, 9.0]), 1000)  # the last is the intercept
    assert found == {"b": 2000, "c": None}
    assert far_from_resolved(found, 1000) == {"c": None}
    assert unresolved_columns(["a"], None, 1000) == {}


def test_notes_say_what_would_do():
    model = MODELS["linear"](epsilon=8.0, insecure_seed=1)
    X, owners, rng = drawn(0.3, 1, n_users=2000)
    model.fit(X, outcome("linear", X, rng), groups=owners)
    words = notes_on({"a": 40_000, "b": None}, 0.05, model.privacy_)
    assert "a, b" in words[0]
    assert "about 40,000 users, or an epsilon from about 1.6e+02 on" in words[0]
    assert "but not for all of them" in words[0]
    assert "off by about 10%" in words[1]
    assert notes_on({}, 0.001, model.privacy_) == ()


def test_totals_of_a_rare_count_are_warned_of():
    X, owners, rng = drawn(0.3, 1, n_users=2000)
    y = rng.poisson(0.02, len(X))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always", UtilityWarning)
        PoissonRegressor(1.0, max_count=20, max_rows_per_user=ROWS, insecure_seed=1).fit(X, y, groups=owners)
    assert any("mean prediction may be off" in str(one.message) for one in shown)
