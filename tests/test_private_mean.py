"""A private mean by itself, and the scalers that rest on it."""

import re
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
    UtilityWarning,
    load_model,
    save_model,
)
from userdp.models.files import pipeline_of, pipeline_to_dict
from userdp.models.means import (
    MeanSteps,
    mean_of_users,
    plan_intervals,
    plan_mean,
    plan_plain,
    private_mean,
    usual_radius,
)
from userdp.paper.outlier_removal import radius_grid
from userdp.privacy.accounting import fits

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
        radii = radius_grid(1e-9, 1e9, 1.15)
        located = plan_plain(5000, 2, budget, radii, 0.01)
        for cost in (plan_mean(5000, budget, radii, 0.01).cost, located.plan.cost_of(0)):
            assert fits(cost, budget)
            assert not fits(cost, Budget(0.99 * epsilon, 1e-6))


def test_too_few_users_for_two_steps_are_averaged_at_once():
    radii = radius_grid(1e-9, 1e9, 1.15)
    assert plan_plain(150, 1, Budget(3.0, 1e-6), radii, 0.01) == plan_mean(150, Budget(3.0, 1e-6), radii, 0.01)
    found = private_mean(np.random.default_rng(0).normal(size=150), np.arange(150), 3.0, 1e-6, insecure_seed=0)
    assert abs(found.mean[0]) < 4 * found.noise_std < 2


def test_two_steps_have_less_noise_than_one():
    rng, radii = np.random.default_rng(0), radius_grid(1e-9, 1e9, 1.15)
    for n_users, epsilon in ((500, 3.0), (2000, 1.0), (20_000, 1.0)):
        found = private_mean(rng.normal(size=n_users), np.arange(n_users), epsilon, 1e-6, insecure_seed=0)
        at_once = plan_mean(n_users, Budget(epsilon, 1e-6), radii, 0.01)
        assert found.noise_std < 1.1 * at_once.noise_std(usual_radius(at_once, 1), 1)


def test_the_farthest_are_left_out_and_others_clipped():
    y, users = np.random.default_rng(0).normal(size=4000), np.arange(4000)
    for far, moves in ((1e12, 0.0), (7.0, 0.04)):
        y[:30] = far
        found = private_mean(y, users, 30.0, 1e-6, insecure_seed=0)
        assert abs(found.mean[0] - y[30:].mean() * 3970 / 4000 - moves) < 0.006


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
    assert usual.mean[0] < 0.995 * y.mean()
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
        ({"inference": 1.5}, ValueError, "inference=1.5"),
        ({"inference": True, "epsilon": 0.05}, BudgetExceeded, "standard errors of 2 means.*users would do"),
        ({"inference": True, "epsilon": 1e-6}, BudgetExceeded, "room for noise"),
        ({"inference": True, "delta": 0.0}, BudgetExceeded, "delta > 0"),
        ({"outliers": "few"}, ValueError, "outliers='few'"),
        ({"inference": 1e-300}, ValueError, "inference=1e-300 .* from 1e-06"),
        *(
            ({"spread": wrong}, ValueError, r"two public distances .* got .*Nothing was spent")
            for wrong in ((2.0, 1.0), (1e-300, 1e300), (0, 1), (1, np.inf), (1, np.nan), 5, None, (1, 2, 3), "ab")
        ),
        ({"X": [1.0] * len(USERS)}, TypeError, "width are declared, got list"),
        ({"X": [[1.0]] * len(USERS)}, TypeError, "width are declared, got list"),
        ({"X": np.full((len(USERS), 1), "a")}, TypeError, "X must be numeric .* got text"),
        ({"groups": USERS[1:]}, ValueError, "User ids and rows differ in length"),
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
        lambda ledger: private_mean(values(), USERS, 1.0, 1e-6, ledger=ledger, inference=True),
    ],
)
def test_what_is_stated_is_certified_whatever_is_planned(use, monkeypatch):
    """A plan that costs more than was asked for, and a ledger with room for it."""

    def dear(n_users, budget, *rest):
        return plan_mean(n_users, Budget(1.5 * budget.epsilon, budget.delta), *rest)

    def dear_steps(n_users, mu_squared, *rest):
        return steps_of(n_users, 2 * mu_squared, *rest)

    steps_of = MeanSteps.of
    monkeypatch.setitem(mean_of_users.__globals__, "plan_mean", dear)
    monkeypatch.setattr(MeanSteps, "of", dear_steps)
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


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
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
    with pytest.raises(TypeError, match=r"purpose must be text, got int\. Nothing was spent"):
        private_mean(frame["age"], frame["person"], 2.0, 1e-6, ledger=ledger, purpose=3)
    assert len(ledger.charges()) == 3


# --- standard errors --------------------------------------------------------------------------------------------------


def test_intervals_of_each_feature():
    table = pd.DataFrame(values(), columns=["age", "income"])
    found = private_mean(table, USERS, 1.0, 1e-6, inference=True, insecure_seed=1)
    ends = found.conf_int()
    np.testing.assert_allclose(ends.mean(axis=1), found.mean)
    assert np.all(np.abs(found.mean - [3, -1]) < 4 * found.std_err)
    assert np.all(found.std_err > found.noise_std)
    half = (ends[:, 1] - ends[:, 0]) / 2
    assert np.all((half > 1.9599 * found.std_err) & (half < 2.05 * found.std_err))  # Student's, of many degrees
    assert np.all(found.conf_int(0.99)[:, 0] < ends[:, 0])
    lines = str(found.summary()).splitlines()
    assert "private_mean, 2,000 users, epsilon 1, delta 1e-06" in lines[0]
    assert re.search(r"mean +std err +z +\[0.025 +0.975\] +noise +sampling", lines[2])
    assert [line.split()[0] for line in lines[4:6]] == ["age", "income"]
    with pytest.raises(ValueError, match="level"):
        found.conf_int(95)


def test_no_intervals_unless_asked_for():
    found = private_mean(values(), USERS, 1.0, 1e-6, insecure_seed=1)
    with pytest.raises(ValueError, match="inference=True"):
        found.conf_int()
    assert not hasattr(found, "std_err")


def test_errors_are_as_large_as_the_standard_errors_say():
    """Noise and sampling are each a good part of the variance here: without one of them this fails."""
    relative, shares = [], []
    for seed in range(24):
        rows = np.random.default_rng(seed).normal(0, 1, (2000, 4))
        found = private_mean(rows, np.arange(2000), 2.0, 1e-6, inference=True, insecure_seed=seed)
        relative.append(found.mean / found.std_err)
        shares.append(found.summary().noise_share.mean())
    assert 0.3 < np.mean(shares) < 0.8
    assert 0.85 < np.sqrt(np.mean(np.square(relative))) < 1.2


def test_the_spread_is_that_of_users_means():
    """With noise that hardly counts; rows of a user are alike, so that rows taken for people would not do."""
    rng = np.random.default_rng(0)
    rows = rng.normal([0.0, 0.0], [2.0, 3.0], (2000, 2))[USERS] + rng.normal(0, 0.5, (len(USERS), 2))
    found = private_mean(rows, USERS, 50.0, 1e-6, inference=0.9, insecure_seed=1)
    means = np.add.reduceat(rows, np.arange(0, len(USERS), 5)) / 5
    np.testing.assert_allclose(found.errors.sampling, means.var(axis=0) / 2000, rtol=0.15)


def test_one_plan_within_the_budget_and_one_charge():
    radii = radius_grid(1e-9, 1e9, 1.15)
    for n_users, epsilon, fraction in ((2000, 1.0, 0.1), (50_000, 0.5, 0.3), (3000, 8.0, 0.1)):
        budget = Budget(epsilon, 1e-6)
        located = plan_intervals(n_users, 3, budget, radii, 0.01, fraction)
        cost = located.plan.cost_of(0)
        assert fits(cost, budget)
        assert not fits(cost, Budget(0.99 * epsilon, 1e-6))
        costs = [step.mechanism.cost.gaussian for step in located.plan.steps]
        assert costs[3] / sum(costs[1:]) == pytest.approx(fraction)
        assert costs[1] / (costs[1] + costs[2]) == pytest.approx(0.2)
    ledger = Ledger(Budget(1.0, 1e-6))
    found = private_mean(values(), USERS, 1.0, 1e-6, ledger=ledger, inference=True, purpose="how old")
    assert [charge.purpose for charge in ledger.charges()] == ["how old; private_mean"]
    assert ledger.spent_epsilon() == pytest.approx(1.0, abs=0.01)
    labels = [step.split(":")[0].strip() for step in str(found.privacy).splitlines()[1:5]]
    assert labels == ["location", "sizes", "mean", "spread"]
    assert len(plan_intervals(2000, 3, Budget(1.0, 1e-6), (30.0,), 0.01, 0.1).plan.steps) == 3, "a width is public"


def test_the_number_of_users_that_would_do_does():
    radii = radius_grid(1e-9, 1e9, 1.15)
    needed = []
    for epsilon in (0.5, 1.0, 8.0):
        budget = Budget(epsilon, 1e-6)
        with pytest.raises(BudgetExceeded, match="users would do") as refused:
            plan_intervals(40, 3, budget, radii, 0.01, 0.1)
        needed.append(refused.value.enough_users)
        plan_intervals(needed[-1], 3, budget, radii, 0.01, 0.1)
        with pytest.raises(BudgetExceeded):
            plan_intervals(int(0.9 * needed[-1]), 3, budget, radii, 0.01, 0.1)
    assert needed == sorted(needed, reverse=True), "more epsilon never takes more users"


def test_with_intervals_nobody_is_left_out():
    """Those who are far count, to a length, and what that may cost is added; missing values count as the mean."""
    y, users = np.random.default_rng(0).exponential(size=20_000), np.arange(20_000)
    plain, told = (private_mean(y, users, 4.0, 1e-6, insecure_seed=0, inference=asked) for asked in (False, True))
    assert plain.mean[0] < 0.998 * y.mean()
    assert abs(told.mean[0] - y.mean()) < 0.005
    y[:100] = np.nan
    found = private_mean(y, users, 4.0, 1e-6, insecure_seed=0, inference=True)
    assert abs(found.mean[0] - 1) < 2 * found.std_err[0] < 3 * told.std_err[0]
    counts = np.minimum(np.random.default_rng(0).negative_binomial(0.6, 0.17, 4000), 30).astype(float)
    found = private_mean(counts, np.arange(4000), 2.0, 1e-6, insecure_seed=0, inference=True, spread=(30, 30))
    assert abs(found.mean[0] - counts.mean()) < 3 * found.noise_std
    assert found.errors.sampling == pytest.approx(counts.var() / 4000, rel=0.2)


def test_a_clip_is_wider_where_people_are_seen_beyond():
    """The usual one would cut off .06 of a lognormal's mean, and .14 of that with 1% far out."""
    rng, users = np.random.default_rng(0), np.arange(10_000)
    far = rng.normal(size=10_000) + 20 * (rng.random(10_000) < 0.01)
    for y, usual in ((rng.lognormal(size=10_000), 8), (far, 6)):
        found = private_mean(y, users, 1.0, 1e-6, insecure_seed=0, inference=True)
        assert 1.5 * usual < found.clipped.reach < 6 * usual
        assert abs(found.mean[0] - y.mean()) < 2 * found.noise_std < 0.08
        assert np.mean(np.abs(y - found.mean[0]) > found.clipped.reach) < found.clipped.at_most < 0.01
        note = str(found.summary()).splitlines()[-1]
        assert re.fullmatch(r"Users farther than [\d.]+ from the others' mean, at most 0\.0\d+ of them, count .*", note)
    usual = private_mean(rng.normal(size=10_000), users, 1.0, 1e-6, insecure_seed=0, inference=True)
    assert 4.5 < usual.clipped.reach < 6.5


def test_there_are_no_intervals_if_people_are_beyond_any_clip():
    y, users, ledger = np.random.default_rng(0).normal(size=4000), np.arange(4000), Ledger(Budget(4.0, 1e-6))
    y[:60] = 1e12
    with pytest.warns(UtilityWarning, match=r"no standard errors: about 0\.01\d? of the users .* spread=\(30, 30\)"):
        found = private_mean(y, users, 4.0, 1e-6, insecure_seed=0, inference=True, ledger=ledger)
    assert abs(found.mean[0]) < 0.2
    assert not hasattr(found, "std_err")
    with pytest.raises(ValueError, match="no standard errors: about"):
        found.conf_int()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UtilityWarning)  # must not take away what was paid for
        again = private_mean(y, users, 4.0, 1e-6, insecure_seed=0, inference=True)
    assert again.mean == found.mean


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
def test_files_of_scalers_that_had_intervals_are_read():
    rows = values()
    scaler = PrivateStandardScaler(2.0, 1e-6, low=-10, high=10, insecure_seed=1).fit(rows, groups=USERS)
    model = LinearRegression(2.0, target_range=(0, 2), allow_weak=True, insecure_seed=0)
    model.fit(scaler.transform(rows), np.ones(len(USERS)), groups=USERS)
    record = pipeline_to_dict(Pipeline([("scale", scaler), ("model", model)]))
    record["steps"][0]["parameters"]["inference"] = True
    record["steps"][0]["errors"] = {"noise": [1.0, 1.0], "sampling": [1.0, 1.0], "sampling_noise": [1.0, 1.0]}
    np.testing.assert_array_equal(pipeline_of(record)[0].mean_, scaler.mean_)
