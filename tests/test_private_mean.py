"""A private mean by itself, and the scalers that rest on it."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import Pipeline
from sklearn.utils.estimator_checks import check_estimator

from userdp import (
    Aborted,
    Budget,
    BudgetExceeded,
    Ledger,
    LinearRegression,
    LogisticRegression,
    PrivateStandardScaler,
    PublicScaler,
    UserData,
    load_model,
    save_model,
)
from userdp.models.private_mean import mean_of_users, plan_mean, private_mean
from userdp.privacy.accounting import fits
from userdp.privacy.mechanisms.outlier_removal import radius_grid

USERS = np.repeat(np.arange(2000), 5)


def values(seed=0, d=2):
    rng = np.random.default_rng(seed)
    return rng.normal([3.0, -1.0][:d], 1.0, (len(USERS), d)) + rng.normal(0, 0.2, (2000, d))[USERS]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_no_bound_on_values_is_needed(scale):
    result = private_mean(values() * scale, USERS, 1.0, 1e-6, insecure_seed=1)
    assert result.mean / scale == pytest.approx([3, -1], abs=0.15)
    assert result.noise_std / scale < 0.05
    assert 1 < result.radius / scale < 6


def test_the_noise_is_what_it_is_said_to_be():
    rows = values()
    released = [private_mean(rows, USERS, 1.0, 1e-6, insecure_seed=seed) for seed in range(60)]
    errors = np.concatenate([r.mean - rows.mean(axis=0) for r in released]) / released[0].noise_std
    assert 0.8 < np.std(errors) < 1.3


def test_a_plan_fits_its_budget_in_full():
    for epsilon in (0.2, 1.0, 8.0):
        budget = Budget(epsilon, 1e-6)
        cost = plan_mean(5000, budget, radius_grid(1e-9, 1e9, 1.15), 0.01).cost
        assert fits(cost, budget)
        assert not fits(cost, Budget(0.99 * epsilon, 1e-6))


def test_people_count_the_same_and_outliers_do_not():
    rows = values(d=1)
    rows[USERS < 10] = 1e12
    rows[USERS == 11] = np.nan
    result = private_mean(rows[:, 0], USERS, 1.0, 1e-6, insecure_seed=1)
    assert result.mean == pytest.approx([3], abs=0.1)


def test_with_a_public_range_nobody_of_a_skewed_quantity_is_left_out():
    y = np.minimum(np.random.default_rng(0).negative_binomial(0.6, 0.17, 4000), 30).astype(float)
    usual, ranged = (
        private_mean(y, np.arange(4000), 2.0, 1e-6, insecure_seed=0, **more) for more in ({}, {"spread": (30, 30)})
    )
    assert usual.mean[0] < 0.95 * y.mean()
    assert ranged.radius == 30
    assert abs(ranged.mean[0] - y.mean()) < 4 * ranged.noise_std < 0.06 * y.mean()


def test_too_many_outliers_abort():
    rows = values()
    rows[USERS % 3 == 0] = np.nan
    ledger = Ledger(Budget(1.0, 1e-6))
    with pytest.raises(Aborted):
        private_mean(rows, USERS, 1.0, 1e-6, ledger=ledger)
    assert ledger.spent_epsilon() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"groups": None}, ValueError, "user id of each row"),
        ({"epsilon": 0.01}, BudgetExceeded, "users would do"),
        ({"delta": 0.0}, BudgetExceeded, "delta > 0"),
        ({"outliers": 0.5}, ValueError, "outliers=0.5"),
        ({"spread": (2.0, 1.0)}, ValueError, "smallest=2.0"),
        ({"X": [1.0] * len(USERS)}, TypeError, "width are declared, got list"),
        ({"X": [[1.0]] * len(USERS)}, TypeError, "width are declared, got list"),
        ({"X": np.full((len(USERS), 1), "a")}, TypeError, "Expected X to be numeric .* got text"),
        ({"groups": USERS[1:]}, ValueError, "as many user ids as rows"),
    ],
)
def test_errors_cost_nothing(change, error, message):
    ledger = Ledger(Budget(1.0, 1e-6))
    arguments = {"X": values(), "groups": USERS, "epsilon": 1.0, "delta": 1e-6, "ledger": ledger}
    with pytest.raises(error, match=message):
        private_mean(**(arguments | change))
    assert ledger.spent_epsilon() == 0


def test_means_and_scales():
    scaler = PrivateStandardScaler(2.0, 1e-6, low=[-10, -5], high=[10, 5], insecure_seed=1).fit(values(), groups=USERS)
    assert scaler.mean_ == pytest.approx([3, -1], abs=0.3)
    assert scaler.scale_ == pytest.approx([1, 1], abs=0.4)
    assert scaler.transform([[3.0, -1.0]]) == pytest.approx(np.zeros((1, 2)), abs=0.3)
    assert scaler.privacy_.epsilon == 2.0
    constant = PrivateStandardScaler(1.0, 1e-6, low=-1, high=1).fit(np.zeros((len(USERS), 1)), groups=USERS)
    assert np.isfinite(constant.transform([[0.5]])).all()


def test_scaler_and_model_share_a_ledger():
    ledger = Ledger(Budget(3.0, 1e-5))
    rows = values()
    scaled = PrivateStandardScaler(0.5, 1e-6, low=-10, high=10, ledger=ledger).fit_transform(rows, groups=USERS)
    LogisticRegression(2.0, 1e-6, ledger=ledger, max_rows_per_user=5).fit(scaled, rows[:, 0] > 3, groups=USERS)
    assert [charge.purpose for charge in ledger.charges()] == ["PrivateStandardScaler.fit", "LogisticRegression.fit"]
    assert 2.0 < ledger.spent_epsilon(1e-6) < 2.5


@pytest.mark.parametrize(
    "use",
    [
        lambda ledger: private_mean(values(), USERS, 1.0, 1e-6, ledger=ledger),
        lambda ledger: PrivateStandardScaler(1.0, 1e-6, low=-10, high=10, ledger=ledger).fit(values(), groups=USERS),
    ],
)
def test_what_is_stated_is_certified_whatever_is_planned(use, monkeypatch):
    """A plan that costs more than was asked for, and a ledger with room for it."""

    def dear(n_users, budget, *rest):
        return plan_mean(n_users, Budget(1.5 * budget.epsilon, budget.delta), *rest)

    monkeypatch.setitem(mean_of_users.__globals__, "plan_mean", dear)
    ledger = Ledger(Budget(100.0, 1e-3))
    with pytest.raises(BudgetExceeded, match=r"needs epsilon=.* at delta=1e-06, expected <= 1"):
        use(ledger)
    assert ledger.charges() == ()


def test_public_ranges():
    scaler = PublicScaler(low=[0, -1], high=[10, 1]).fit(np.zeros((2, 2)))
    assert scaler.transform([[5, 0], [20, -3], [np.nan, 1]]) == pytest.approx(
        np.array([[0, 0], [1, -1], [np.nan, 1]]), nan_ok=True
    )
    for wrong in (
        {},
        {"low": 1.0, "high": 1.0},
        {"low": [0, 0, 0], "high": 1},
        {"low": 0, "high": np.inf},
        {"low": "a", "high": 1},
    ):
        with pytest.raises(ValueError, match="low"):
            PublicScaler(**wrong).fit(np.zeros((2, 2)))


def test_a_scaler_of_rows_says_so():
    scaler = PrivateStandardScaler(4.0, 1e-6, low=-10, high=10, privacy_unit="row").fit(values())
    assert "one row's whole data" in str(scaler.privacy_)
    with pytest.raises(ValueError, match="privacy_unit='banana'"):
        PrivateStandardScaler(low=-1, high=1, privacy_unit="banana").fit(values(), groups=USERS)


def test_seeded_data_is_not_private():
    data = UserData.from_arrays(values(), None, USERS, insecure_seed=3)
    assert not mean_of_users(data, Budget(1.0, 1e-6)).privacy.private


def test_groups_are_missed():
    with pytest.raises(ValueError, match="enable_metadata_routing"):
        PrivateStandardScaler().fit(values())


@pytest.mark.parametrize(
    "scaler",
    [
        PublicScaler(-1, 1),
        PrivateStandardScaler(1000.0, 0.1, low=-100, high=100, privacy_unit="row", insecure_seed=0),
    ],
    ids=["public", "private"],
)
def test_scikit_learn_s_own_checks(scaler):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(scaler, on_fail=None)
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "failed"}
    assert {name: text for name, text in failed.items() if name not in BY_TYPE} == {}


# Checks that want an error which depends on a cell, or scikit-learn's own words for a type that is refused.
BY_TYPE = {
    "check_complex_data",
    "check_dtype_object",
    "check_estimator_sparse_array",
    "check_estimator_sparse_matrix",
    "check_estimators_empty_data_messages",
    "check_fit1d",
    "check_fit2d_1sample",
    "check_fit2d_predict1d",
    "check_transformer_data_not_an_array",
    "check_n_features_in_after_fitting",
    "check_dataframe_column_names_consistency",
}


def test_purpose_and_columns_are_named(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"person": np.repeat(np.arange(2000), 2), "age": rng.normal(40, 9, 4000), "pay": 1.0})
    ledger = Ledger(Budget(20.0, 1e-5))
    result = private_mean(frame["age"], frame["person"], 2.0, 1e-6, ledger=ledger, purpose="how old people are")
    assert (result.purpose, str(result.source)) == ("how old people are", "user column person, columns age")
    scaler = PrivateStandardScaler(2.0, 1e-6, low=0, high=100, ledger=ledger, purpose="sizes")
    scaler.fit(frame[["age", "pay"]], groups=frame["person"])
    private_mean(frame[["age"]].to_numpy(), frame["person"].to_numpy(), 2.0, 1e-6, ledger=ledger)
    assert [charge.purpose for charge in ledger.charges()] == [
        "how old people are; private_mean; user column person, columns age",
        "sizes; PrivateStandardScaler.fit; user column person, columns age, pay",
        "private_mean",
    ]
    model = LinearRegression(2.0, target_range=(0, 2), allow_weak=True, insecure_seed=0)
    model.fit(scaler.transform(frame[["age", "pay"]]), frame["pay"], groups=frame["person"])
    read = load_model(save_model(Pipeline([("scale", scaler), ("model", model)]), tmp_path / "pipeline.json"))
    assert (read[0].purpose, read[0].source_) == ("sizes", scaler.source_)
    with pytest.raises(TypeError, match=r"purpose to be text, got int\. Nothing was spent"):
        private_mean(frame["age"], frame["person"], 2.0, 1e-6, ledger=ledger, purpose=3)
    assert len(ledger.charges()) == 3
