"""One malicious person against everything that takes data: the model stays finite, and nothing is told of them."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support_estimators import CLASSIFIERS, REGRESSORS
from support_hostile import SENT, SUBNORMAL, observed, replaced
from support_solvers import make_users

from userdp import Ball, PrivateStandardScaler, PublicScaler, Solver, UserData, losses, minimize
from userdp.models.means import private_mean

N_USERS, ROWS = 400, 3
SEEDED = {"epsilon": 8.0, "delta": 1e-4, "max_rows_per_user": ROWS, "insecure_seed": 1, "solver": "phased-sgd"}
VALUES = [math.nan, math.inf, -math.inf, 1e308, -1e308, SUBNORMAL]


def kind_of(value):
    return type(value).__name__


def people(kind):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (N_USERS * ROWS, 2))
    y = X[:, 0] > X[:, 1] if kind in CLASSIFIERS else 50 + 20 * X[:, 0]
    return X, y, np.repeat(np.arange(N_USERS), ROWS)


def made(kind):
    return kind(**SEEDED, **({"classes": [0, 1]} if kind in CLASSIFIERS else {"target_range": (0.0, 100.0)}))


@pytest.mark.parametrize("kind", [*CLASSIFIERS, *REGRESSORS], ids=lambda kind: kind.__name__)
def test_estimators(kind):
    """Rows, targets, or both; rounds are few, so the noise is the same and the weights can be compared."""
    X, y, users = people(kind)
    model, usual = observed(lambda: made(kind).fit(X, y.astype(float), groups=users))
    assert not model.aborted_
    for value in VALUES:
        for in_rows, in_targets in ((True, False), (False, True), (True, True)):
            rows, targets = X.copy(), y.astype(float)
            if in_rows:
                rows[users == 7] = value
            if in_targets:
                targets[users == 7] = value
            hostile, seen = observed(lambda rows=rows, targets=targets: made(kind).fit(rows, targets, groups=users))
            assert seen == usual
            weights = np.append(hostile.coef_, hostile.intercept_)
            assert np.isfinite(weights).all()
            assert (hostile.aborted_, hostile.n_gradients_) == (model.aborted_, model.n_gradients_)
            assert np.isfinite(hostile.predict(X)).all()


@pytest.mark.parametrize("kind", [CLASSIFIERS[0], REGRESSORS[0]], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("label", ["hostile-4711" * 10_000, 10**400, b"\xff", 1j, np.datetime64("NaT")], ids=kind_of)
def test_labels_of_any_kind(kind, label):
    X, y, users = people(kind)
    listed = y.tolist()
    _, usual = observed(lambda: made(kind).fit(X, listed, groups=users))
    listed = [label if user == 7 else value for user, value in zip(users, listed, strict=True)]
    model, seen = observed(lambda: made(kind).fit(X, listed, groups=users))
    assert seen == usual
    assert np.isfinite(model.coef_).all()


def test_a_million_rows_of_one_person():
    """They count as one person: beyond the cap they are dropped, and nobody hears of it."""
    kind = CLASSIFIERS[0]
    X, y, users = people(kind)
    rng = np.random.default_rng(1)
    many = 1_000_000
    rows = np.concatenate([X, rng.uniform(-1, 1, (many, 2)).round(2)])
    model, seen = observed(
        lambda: made(kind).fit(rows, np.append(y, np.ones(many)), groups=np.append(users, np.full(many, 7)))
    )
    usual, expected = observed(lambda: made(kind).fit(X, y.astype(float), groups=users))
    assert seen == expected
    assert model.n_gradients_ == usual.n_gradients_
    assert model.privacy_.to_dict() == usual.privacy_.to_dict()
    assert np.isfinite(model.coef_).all()
    assert np.linalg.norm(model.coef_ - usual.coef_) < 2


@pytest.mark.parametrize("sent", SENT)
@pytest.mark.parametrize("loss", ["logistic", "squared", "hinge"])
def test_minimize(loss, sent):
    data = make_users(N_USERS, rows=(1, ROWS), kind="classes" if losses.loss(loss).classifies else "numbers")

    def fit(data):
        bound = None if losses.loss(loss).classifies else 5.0
        options = {"rows_per_user": ROWS, "target_bound": bound}
        return minimize(
            loss,
            data,
            Ball(3.0),
            8.0,
            1e-4,
            solver=Solver("whitened-clip", max_gradients=20 * N_USERS * ROWS),
            insecure_seed=1,
            **options,
        )

    usual, expected = observed(lambda: fit(data))
    result, seen = observed(lambda: fit(replaced(data, 7, *SENT[sent](data.n_features))))
    assert seen == expected
    assert Ball(3.0).contains(result.weights)
    assert (result.message, result.n_gradients, result.aborted) == (usual.message, usual.n_gradients, usual.aborted)


@pytest.mark.parametrize("value", VALUES)
def test_private_means_and_scalers(value):
    X, _, users = people(CLASSIFIERS[0])
    hostile = X.copy()
    hostile[users == 7] = value

    def mean(rows):
        return private_mean(rows, users, 8.0, 1e-4, insecure_seed=1)

    def scaler(rows):
        return PrivateStandardScaler(8.0, 1e-4, low=-1, high=1, insecure_seed=1).fit(rows, groups=users)

    usual, expected = observed(lambda: mean(X))
    found, seen = observed(lambda: mean(hostile))
    assert seen == expected
    assert np.isfinite(found.mean).all()
    # One user in 400, and the same noise: the radius may be another, the mean nearly the same.
    assert np.linalg.norm(found.mean - usual.mean) < 10 * usual.noise_std
    _, expected = observed(lambda: scaler(X))
    fitted, seen = observed(lambda: scaler(hostile))
    assert seen == expected
    assert np.isfinite(fitted.mean_).all()
    assert (fitted.scale_ > 0).all()
    assert observed(lambda: fitted.transform(hostile))[1] == observed(lambda: fitted.transform(X))[1]
    public = PublicScaler(-1, 1).fit(X)
    scaled, seen = observed(lambda: public.transform(hostile))
    assert seen == observed(lambda: public.transform(X))[1]
    np.testing.assert_array_equal(scaled[users != 7], public.transform(X)[users != 7])


@pytest.mark.parametrize("strange", ["hostile-4711", None, 10**400, [1, 2], b"x", 1j, pd.NA], ids=kind_of)
@pytest.mark.parametrize("place", [0, 7])
def test_the_type_of_one_cell_decides_nothing_about_a_private_mean(strange, place):
    """The first cell too: whether rows are numbers or vectors must not be told by one person's cell."""
    X, _, users = people(CLASSIFIERS[0])
    for cells in (X[:, 0].astype(object), X.astype(object), pd.DataFrame(X.astype(object))):
        usual, expected = observed(lambda cells=cells: private_mean(cells, users, 8.0, 1e-4, insecure_seed=1))
        changed = np.array(cells)
        changed[place if changed.ndim == 1 else (place, 0)] = strange
        changed = pd.DataFrame(changed) if isinstance(cells, pd.DataFrame) else changed
        found, seen = observed(lambda changed=changed: private_mean(changed, users, 8.0, 1e-4, insecure_seed=1))
        assert seen == expected
        assert found.mean.shape == usual.mean.shape
        assert np.isfinite(found.mean).all()


IDS = [
    [1, "1", 1.5, ("a", 1), b"1", True, frozenset({2}), 10**400],
    ["a", "A", "a ", "á", "a\u0301", "", "\x00", "a" * 100_000],
    [-0.0, 1, 2**63, -(2**63), 1e308, SUBNORMAL, math.inf, -math.inf],
]


@pytest.mark.parametrize("ids", IDS, ids=["mixed types", "look alike", "odd numbers"])
def test_odd_ids_are_somebody_each(ids):
    """Equal ids are one person and others are not, whoever else has which id; rows stay with their owner."""
    repeated = [*ids, *reversed(ids)]
    rows = np.arange(float(len(repeated)))[:, None]
    data = UserData.from_arrays(rows, None, repeated)
    distinct = list(dict.fromkeys(repeated))
    assert data.n_users == len(distinct)
    for user, owner in enumerate(distinct):
        mine = [i for i, identifier in enumerate(repeated) if identifier == owner]
        assert data.rows_of(user)[0][:, 0].tolist() == mine
    if all(isinstance(identifier, str) for identifier in ids):
        table = pa.table({"who": repeated, "x": rows[:, 0]})
        assert np.array_equal(UserData.from_table(table, user="who", features="x").rows, data.rows)
