"""What public facts say is a mistake is refused before anything is charged, with the remedy."""

import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from userdp import Budget, BudgetExceeded, Ledger, LogisticRegression
from userdp.data.schema import positions


def people(n_users=300, n_features=2):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (2 * n_users, n_features))
    return X, (X[:, 0] > 0).astype(int), np.repeat(np.arange(n_users), 2)


def model(ledger, **parameters):
    return LogisticRegression(**{"epsilon": 1.0, "classes": [0, 1], "ledger": ledger} | parameters)


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")
def test_noise_that_would_dominate_is_refused_with_an_epsilon_that_would_do():
    X, y, users = people()
    ledger = Ledger(Budget(1000, 1e-3))
    with pytest.raises(BudgetExceeded, match=r"noise is expected to dominate.*Nothing was spent") as refused:
        model(ledger, epsilon=0.05).fit(X, y, groups=users)
    assert ledger.charges() == ()
    enough = float(re.search(r"epsilon of about ([\d.]+)", str(refused.value))[1])
    model(ledger, epsilon=1.06 * enough).fit(X, y, groups=users)
    with pytest.raises(BudgetExceeded, match="dominate"):
        model(ledger, epsilon=0.8 * enough).fit(X, y, groups=users)
    assert len(ledger.charges()) == 1


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")
def test_who_insists_gets_a_weak_model_and_seeded_runs_spend_nobody_s_budget():
    X, y, users = people()
    assert model(None, epsilon=0.05, allow_weak=True).fit(X, y, groups=users).aborted_ is False
    assert model(None, epsilon=0.05, insecure_seed=0).fit(X, y, groups=users).aborted_ is False


def test_a_delta_that_allows_publishing_a_person_is_refused():
    X, y, users = people()
    ledger = Ledger(Budget(1000, 0.5))
    with pytest.raises(ValueError, match=r"delta=0\.01 well below 1 over the 300 users.*Nothing was spent"):
        model(ledger, epsilon=8.0, delta=0.01).fit(X, y, groups=users)
    assert ledger.charges() == ()


def test_too_small_an_epsilon_says_which_would_do():
    X, y, users = people()
    with pytest.raises(BudgetExceeded, match=r"users would do, or an epsilon of about \d"):
        model(None, solver="phased-sgd", epsilon=0.3).fit(X, y, groups=users)


TEXT = np.where(people()[1] == 1, "1", "0")
SMALL = people()[1].astype(np.uint8)


@pytest.mark.parametrize(
    ("classes", "y", "found"),
    [
        ([0, 1], TEXT, "text"),
        ([0, 1], pa.array(TEXT), "text"),
        ([0, 1], pl.Series(TEXT, dtype=pl.Categorical), "text"),
        ([0, 1], pl.Series(TEXT, dtype=pl.Enum(["0", "1"])), "text"),
        ([1, 2], SMALL.astype(bool), "bool"),
        ([1, 2], pd.Series(SMALL, dtype="boolean"), "boolean"),
        ([-1, 1], SMALL, "uint8"),
        ([0, 1000], pa.array(SMALL), "uint8"),
        ([0.5, 1.5], pl.Series(SMALL), "UInt8"),
    ],
)
def test_labels_whose_type_cannot_hold_the_classes_are_refused(classes, y, found):
    X, _, users = people()
    ledger = Ledger(Budget(1000, 1e-3))
    with pytest.raises(TypeError, match=rf"labels such as {classes[0]}, .*got {found}: convert"):
        model(ledger, epsilon=8.0, classes=classes).fit(X, y, groups=users)
    assert ledger.charges() == ()


def test_types_that_hold_two_of_the_classes_are_taken_and_widths_of_text_tell_nothing():
    """A text is as wide as the longest cell, and an object is what it is: both are somebody's."""
    assert positions("y", SMALL, [-1, 0, 1])[:600].min() == 1
    assert np.isnan(positions("y", TEXT, ["no", "yes"])).all()
    assert np.isnan(positions("y", TEXT.astype(object), [0, 1])).all()
    assert np.isnan(positions("y", pd.Series(TEXT, dtype="category"), [0, 1])).all(), "one number makes them objects"
    for column in (
        pd.Series(SMALL, dtype="category"),
        pd.Categorical(SMALL.astype(object)),
        pd.CategoricalIndex(SMALL),
    ):
        np.testing.assert_array_equal(positions("y", column, [0, 1]), SMALL)


@pytest.mark.parametrize("groups", [range(600), pd.RangeIndex(600)])
def test_row_numbers_are_no_users(groups):
    X, y, _ = people()
    with pytest.raises(ValueError, match=r'the numbers of rows.*privacy_unit="row"'):
        model(None, epsilon=8.0).fit(X, y, groups=groups)


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
def test_as_many_users_as_rows_are_not_told_from_other_ids():
    """The number of rows is private: one more row of one person must not decide between an error and a model."""
    X, y, _ = people()
    assert model(None, epsilon=8.0).fit(X, y, groups=np.arange(600)).aborted_ is False
