"""Sparse rows: the same results as dense ones, for any entries, at the cost of the entries."""

import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from cases import ALL_LOSSES, name
from support_estimators import CLASSIFIERS, REGRESSORS, ready
from support_estimators import made as people
from support_sparse import both, close, made

from userdp import Ball, Box, PublicScaler, Solver, UserData, losses, private_mean
from userdp.data.sparse import SparseRows
from userdp.models.fitting import minimize
from userdp.solvers.solver import SOLVERS
from userdp.statistics.gradients import (
    BallSmoothing,
    ClippedGradient,
    MeanCurvature,
    MeanGradient,
    RowWeights,
    UserGradients,
)
from userdp.statistics.moments import ColumnScales, MomentShape, RowScale, SecondMoment, SecondMomentShape, UserMean
from userdp.statistics.sgd import OnePassSGD

D, ROWS = 12, 300
RNG = np.random.default_rng(5)
BASIS = RNG.normal(size=(D + 1, D + 1))
DIAGONAL = RNG.uniform(0.5, 2.0, D + 1)
USERS = np.repeat(np.arange(60), 5)


def statistics():
    """Every statistic of the library, on D features and a constant."""
    w, several = RNG.normal(size=D + 1), RNG.normal(size=4 * (D + 1))
    weighted = MeanGradient(losses.logistic, w, DIAGONAL, row_weights=RowWeights(DIAGONAL, 1.5))
    turned = MeanGradient(losses.logistic, w, BASIS, row_weights=RowWeights(BASIS, 3.0))
    many = MeanGradient(losses.multinomial(4), several, DIAGONAL)
    clipped = {"clip": 0.3, "longest": 2.0, "mark": 0.1}
    yield from (MeanGradient(loss, several if loss.n_outputs > 1 else w) for loss in ALL_LOSSES)
    yield from (weighted, turned, many)
    yield MeanGradient(losses.hinge, w, smoothing=BallSmoothing(0.5, 3))
    yield from (ClippedGradient(one, **clipped) for one in (weighted, turned, many))
    yield ClippedGradient(weighted, **clipped, directions=RNG.normal(size=(D + 1, 2)))
    yield ClippedGradient(many, **clipped, directions=RNG.normal(size=(4 * (D + 1), 3)))
    yield from (MeanCurvature(one, 0.01, 0.25) for one in (weighted, turned))
    yield from (UserMean(), SecondMoment(), SecondMomentShape(9.0), ColumnScales())
    yield from (MomentShape(BASIS), MomentShape(DIAGONAL), RowScale(RowWeights(DIAGONAL, 1.0)))
    yield UserGradients(_mean_of_products, w)


def _mean_of_products(weights, rows, targets):
    return (rows * np.sign(targets)[:, None]).mean(axis=0) + weights


STATISTICS = [pytest.param(one, id=f"{type(one).__name__} {i}") for i, one in enumerate(statistics())]


def hostile(X, largest=1e300):
    """The rows with what must raise nothing: one user each."""
    X, largest = X.copy(), largest if X.dtype == np.float64 else 1e30
    for user, value in ((3, np.nan), (7, np.inf), (11, -np.inf), (13, largest), (17, 1 / largest)):
        first, last = X.indptr[5 * user], X.indptr[5 * user + 5]
        X.data[first:last][-1:] = value
    return X


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize(("dtype", "index"), [(np.float64, np.int32), (np.float32, np.int64)])
def test_every_statistic_is_that_of_dense_rows(statistic, dtype, index):
    if dtype == np.float32 and getattr(statistic, "smoothing", None):
        pytest.skip("draws are made of predictions' last digits")
    X = made(ROWS, D, seed=1, dtype=dtype, index=index, repeated=dtype == np.float64)
    y = np.random.default_rng(2).integers(0, 2, ROWS).astype(float)
    y[5 * 21] = np.nan
    for rows in (X, hostile(X)):
        with np.errstate(all="ignore"):
            sparse, dense = both(rows, y, USERS, fit_intercept=True)
            everyone = np.arange(sparse.n_users)
            expected, found = (statistic(data, everyone, everyone.size) for data in (dense, sparse))
            assert close(found, expected, 1e-5 if dtype == np.float32 else 1e-9)


@pytest.mark.parametrize("loss", [losses.logistic, losses.multinomial(4), losses.hinge], ids=name)
@pytest.mark.parametrize("kind", ["small ball", "large ball", "center", "box"])
@pytest.mark.parametrize("basis", [None, BASIS], ids=["plain", "basis"])
def test_one_pass_is_that_of_dense_rows(loss, kind, basis):
    size = loss.n_outputs * (D + 1)
    center = np.random.default_rng(3).normal(size=size)
    domain = {
        "small ball": Ball(0.2),
        "large ball": Ball(50.0),
        "center": Ball(0.7, center),
        "box": Box(np.full(size, -0.05), np.full(size, 0.1)),
    }[kind]
    X, y = made(ROWS, D, seed=4), np.random.default_rng(2).integers(0, 2, ROWS).astype(float)
    for rows in (X, hostile(X, largest=1e100)):
        sparse, dense = both(rows, y, USERS, fit_intercept=True)
        for step, average_from, decay in ((0.05, 0.0, False), (2.0, 0.5, True), (0.5, 1.0, False)):
            start = domain.project(np.zeros(size))
            statistic = OnePassSGD(loss, start, domain, step, average_from, decay, basis)
            with np.errstate(all="ignore"):
                found, expected = (statistic(data, np.arange(60), 15) for data in (sparse, dense))
            assert close(found, expected)


@pytest.mark.parametrize("loss", [losses.logistic, losses.multinomial(4), losses.hinge], ids=name)
@pytest.mark.parametrize("kind", ["small ball", "large ball", "center", "box"])
@pytest.mark.parametrize("free", [True, False], ids=["intercept", "all"])
def test_penalised_passes_are_those_of_dense_rows(loss, kind, free):
    size = loss.n_outputs * (D + 1)
    center = np.random.default_rng(3).normal(size=size)
    domain = {
        "small ball": Ball(0.2),
        "large ball": Ball(50.0),
        "center": Ball(0.7, center),
        "box": Box(np.full(size, -0.05), np.full(size, 0.1)),
    }[kind]
    X, y = made(ROWS, D, seed=4), np.random.default_rng(2).integers(0, 2, ROWS).astype(float)
    penalty = np.full((loss.n_outputs, D + 1), 0.25)
    penalty[:, -1] *= not free
    for rows in (X, hostile(X, largest=1e100)):
        sparse, dense = both(rows, y, USERS, fit_intercept=True)
        for step, average_from, decay in ((0.05, 0.0, False), (2.0, 0.5, True), (0.5, 1.0, False)):
            start = domain.project(np.full(size, 0.1))
            statistic = OnePassSGD(loss, start, domain, step, average_from, decay, None, penalty.ravel())
            with np.errstate(all="ignore"):
                found, expected = (statistic(data, np.arange(60), 15) for data in (sparse, dense))
            assert close(found, expected)


def test_long_trajectories_are_written_out_and_stay_the_same():
    X = made(20_000, D, seed=6)
    y = np.random.default_rng(2).integers(0, 2, X.shape[0]).astype(float)
    sparse, dense = both(X, y, np.arange(X.shape[0]) // 100)
    statistic = OnePassSGD(losses.logistic, np.zeros(D), Ball(0.01), 5.0)  # hardly a step is not projected
    assert close(statistic(sparse, np.arange(200), 2), statistic(dense, np.arange(200), 2))
    for domain in (Ball(0.01), Ball(50.0)):
        statistic = OnePassSGD(losses.logistic, np.zeros(D), domain, 0.5, penalty=np.append(np.full(D - 1, 0.3), 0.0))
        assert close(statistic(sparse, np.arange(200), 2), statistic(dense, np.arange(200), 2))


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_users_vector_is_its_own_to_the_last_bit(statistic, dtype):
    X = hostile(made(ROWS, D, seed=1, dtype=dtype))
    y = np.random.default_rng(2).integers(0, 2, ROWS).astype(float)
    data = UserData.from_arrays(X, y, USERS, fit_intercept=True)

    def vectors(users):
        return statistic(data, np.asarray(users), len(users))

    together = vectors(np.arange(60))
    for user in (0, 3, 4, 12, 59):
        np.testing.assert_array_equal(vectors([user])[0], together[user])
    np.testing.assert_array_equal(vectors(np.arange(60)[::-1])[::-1], together)


def test_vectors_stay_sparse_where_users_have_few_columns():
    X = made(ROWS, D, seed=1)
    data, dense = both(X, np.zeros(ROWS), USERS, fit_intercept=True)
    weights = RowWeights(DIAGONAL, 1.0)
    for statistic in (
        MeanGradient(losses.logistic, DIAGONAL),
        ClippedGradient(MeanGradient(losses.logistic, DIAGONAL, DIAGONAL, row_weights=weights), 0.3, 2.0, 0.1),
        MomentShape(DIAGONAL),
        ColumnScales(),
    ):
        found = statistic.vectors(data, np.arange(60))
        assert sp.issparse(found)
        assert close(found.toarray(), statistic(dense, np.arange(60), 60))


def test_users_without_rows_or_entries():
    rows = SparseRows(np.array([0, 0, 1, 1]), np.array([2], np.int32), np.array([4.0]), 3)
    data = UserData(rows, np.zeros(3), np.array([0, 0, 1, 3, 3]))
    everyone = np.arange(4)
    means = UserMean()(data, everyone, 4)
    assert np.array_equal(means, [[np.nan] * 3, [0, 0, 0], [0, 0, 2], [np.nan] * 3], equal_nan=True)
    shapes = MomentShape(np.ones(3))(data, everyone, 4)
    assert np.array_equal(shapes, [[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]])
    gradient = MeanGradient(losses.squared, np.ones(3))
    assert np.isnan(gradient(data, everyone, 4)).any(axis=1).tolist() == [True, False, False, True]


@pytest.mark.parametrize("statistic", STATISTICS)
def test_nobody_and_users_without_any_rows_raise_nothing(statistic):
    """They may be alone in a chunk, beside others in another."""
    none = UserData(np.zeros((0, D)), np.zeros(0), np.zeros(3, int), has_intercept=True)
    found = statistic(none, np.arange(2), 2)
    assert statistic(none, np.arange(0), 0).shape == (0, found.shape[1])
    if isinstance(statistic, ClippedGradient | MomentShape):
        total = statistic.total(none, np.arange(2), 2.0, 40)
        assert total is None or total[-1] == 2


def test_missing_numbers_of_one_user_stay_out_of_moments():
    X = made(40, 3, entries=3, seed=3, repeated=False)
    data = UserData.from_arrays(X, np.zeros(40), np.repeat(np.arange(10), 4))
    values = np.array(data.rows.values)
    values[data.rows.indptr[8]] = np.nan
    data = replace(data, rows=replace(data.rows, values=values))
    shapes = MomentShape(np.ones(3))(data, np.arange(10), 10)
    assert not shapes[2].any()
    assert np.all(np.isfinite(shapes))


# --- every estimator and every solver ---------------------------------------------------------------------------------

EVERY = [pytest.param(*key, id=" ".join(key)) for key in SOLVERS]
SLOW = {"bassily-sun", "asi-liu", "example-level"}  # so many steps that gradients must be limited
FACTOR = {"bassily-sun": 20.0, "asi-liu": 40.0, "example-level": 0.2}


def minimized(data, solver, mode, rows_per_user):
    epsilon, delta = (4.0, 1e-5) if mode == "calibrated" else (10.0, 1e-4)
    few = {"max_gradients": int(FACTOR[solver] * data.n_users * rows_per_user)} if solver in SLOW else {}
    arguments = {"rows_per_user": rows_per_user, "solver": Solver(solver, mode=mode, row_norm=2.5, **few)}
    return minimize("logistic", data, Ball(5.0), epsilon, delta, insecure_seed=3, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "mode"), EVERY)
def test_every_solver_gives_what_it_gives_of_dense_rows(solver, mode):
    n_users, rows_per_user = (2000, 5) if mode == "calibrated" else (14_000, 2)
    X = made(n_users * rows_per_user, 6, entries=3, seed=2)
    y = X.toarray() @ np.linspace(-2, 2, 6) + np.random.default_rng(0).normal(size=X.shape[0]) > 0
    pair = both(X, y, np.repeat(np.arange(n_users), rows_per_user), fit_intercept=True)
    sparse, dense = (minimized(data, solver, mode, rows_per_user) for data in pair)
    assert sparse.aborted == dense.aborted
    assert close(sparse.weights, dense.weights)


@pytest.mark.parametrize("solver", ["auto", "phased-sgd"])
def test_many_features(solver):
    """More than are whitened whole: vectors stay sparse."""
    n_users, d = 1500, 450
    X = made(2 * n_users, d, entries=9, seed=2)
    y = np.asarray(X.sum(axis=1)).ravel() > 0
    pair = both(X, y, np.repeat(np.arange(n_users), 2), fit_intercept=True)
    arguments = {"rows_per_user": 2, "solver": solver, "insecure_seed": 3}
    sparse, dense = (minimize("logistic", data, Ball(5.0), 8.0, 1e-5, **arguments) for data in pair)
    assert close(sparse.weights, dense.weights, 1e-6)  # which are added up in another order


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
@pytest.mark.parametrize("kind", CLASSIFIERS + REGRESSORS)
@pytest.mark.parametrize("options", [{}, {"fit_intercept": False}, {"unprotected_checks": True}], ids=str)
def test_every_estimator_fits_and_predicts(kind, options):
    model = ready(kind, **options)
    X, y, users = people(model)
    X = np.where(np.abs(X) < 0.4, 0.0, X)
    order = np.random.default_rng(0).permutation(len(y))  # users in no order, so that rows are gathered
    X, y, users = X[order], y[order], users[order]
    dense = ready(kind, **options).fit(X, y, groups=users)
    for matrix in (sp.csr_matrix(X), sp.csc_array(X), sp.coo_array(X)):
        sparse = ready(kind, **options).fit(matrix, y, groups=users)
        assert close(sparse.coef_, dense.coef_)
        assert close(sparse.intercept_, dense.intercept_)
        methods = [m for m in ("predict", "decision_function", "predict_proba") if hasattr(sparse, m)]
        for method in methods:
            assert np.allclose(getattr(sparse, method)(matrix), getattr(dense, method)(X), atol=1e-9)
        assert sparse.score(matrix, y) == pytest.approx(dense.score(X, y))


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
@pytest.mark.filterwarnings("ignore:Noise is likely to dominate")
def test_public_rows_may_be_sparse_too():
    X = made(3000, 6, entries=3, seed=2)
    y, users = X.toarray() @ np.linspace(-2, 2, 6) > 0, np.repeat(np.arange(1000), 3)
    for n_columns in (6, 420):
        wide = sp.hstack([X, made(3000, n_columns - 6)]).tocsr() if n_columns > 6 else X
        fits = [
            ready(CLASSIFIERS[0], public_X=public).fit(rows, y, groups=users)
            for rows, public in ((wide, wide[:500]), (wide.toarray(), wide[:500].toarray()))
        ]
        assert close(fits[0].coef_, fits[1].coef_, 1e-6)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_users_next_to_each_other_are_used_without_a_copy():
    X = made(ROWS, D)
    X.sum_duplicates()  # and sorted, as they are held
    for intercept in (False, True):
        data = UserData.from_arrays(X, None, USERS, fit_intercept=intercept)
        rows = data.rows
        assert np.shares_memory(rows.values, X.data)
        assert np.shares_memory(rows.indices, X.indices)
        assert (rows.shape, data.n_features) == ((ROWS, D), D + intercept)
        with pytest.raises(ValueError, match="read-only"):
            rows.values[0] = 1.0


@pytest.mark.parametrize("cap", [None, 2])
def test_other_users_cost_one_gather(cap):
    X, users = made(ROWS, D, seed=3), np.random.default_rng(0).integers(0, 60, ROWS)
    options = {"max_rows_per_user": cap, "fit_intercept": True, "insecure_seed": 1}
    sparse, dense = both(X, np.arange(float(ROWS)), users, **options)
    assert np.array_equal(sparse.targets, dense.targets)
    for user in range(dense.n_users):
        assert np.allclose(sparse.rows_of(user)[0], dense.rows_of(user)[0])


def test_all_forms_and_types_are_read_alike():
    X = made(ROWS, D, repeated=False)
    expected = X.toarray()
    forms = [getattr(X, f"to{form}")() for form in ("csr", "csc", "coo", "bsr", "lil", "dok")]
    for rows in (*forms, sp.csr_matrix(X), X.astype(np.float32), X.astype(np.longdouble)):
        data = UserData.from_arrays(rows, None, USERS)
        assert isinstance(data.rows, SparseRows)
        assert data.rows.dtype == (np.float32 if rows.dtype == np.float32 else np.float64)
        assert np.allclose(data.rows.dense(slice(0, ROWS)), expected, rtol=1e-6)
    whole = sp.csr_array(np.arange(12).reshape(4, 3) % 2 == 0)
    assert UserData.from_arrays(whole, None, [0, 0, 1, 1]).rows.dense(slice(0, 4)).tolist() == whole.toarray().tolist()


def test_missing_values_are_filled_where_that_is_asked_for():
    X = made(ROWS, D, repeated=False)
    X.sort_indices()
    X.data[::7] = np.nan
    data = UserData.from_arrays(X, None, USERS, fill_missing=2.5)
    assert np.array_equal(data.rows.values, np.where(np.isnan(X.data), 2.5, X.data))
    assert np.isnan(X.data[0]), "the caller's stay"


def test_data_is_pickled_and_shows_no_more_than_dense():
    data = UserData.from_arrays(made(ROWS, D), None, USERS, fit_intercept=True)
    again = pickle.loads(pickle.dumps(data))
    assert np.array_equal(again.rows.dense(slice(0, ROWS)), data.rows.dense(slice(0, ROWS)))
    assert repr(data) == "UserData(n_users=60, n_features=13, dtype=float64)"
    assert repr(data.rows) == "SparseRows(n_features=12, dtype=float64)"


def malformed():
    def change(part, place, value):
        X = made(ROWS, D)
        getattr(X, part)[place] = value
        return X

    yield "a column beyond", change("indices", 5, D)
    yield "a negative column", change("indices", 5, -1)
    yield "pointers that fall", change("indptr", 7, 10**6)
    yield "a first pointer", change("indptr", 0, 1)
    yield "a negative pointer", change("indptr", 0, -1)
    yield "a last pointer", change("indptr", -1, 10**8)
    short = made(ROWS, D)
    short.data = short.data[:-1]
    yield "fewer values", short
    short = made(ROWS, D)
    short.indptr = short.indptr[:-1]
    yield "fewer pointers", short
    for form in ("csc", "coo"):
        other = getattr(made(ROWS, D), f"to{form}")()
        (other.indices if form == "csc" else other.coords[1])[3] = 10**6
        yield f"{form} beyond", other


@pytest.mark.parametrize("X", [pytest.param(X, id=name) for name, X in malformed()])
def test_a_malformed_structure_is_refused_in_the_same_words(X):
    y = np.zeros(ROWS, dtype=bool)
    for read in (
        lambda: UserData.from_arrays(X, y, USERS),
        lambda: ready(CLASSIFIERS[0]).fit(X, y, groups=USERS),
    ):
        with pytest.raises(ValueError, match="X is no well-formed sparse matrix") as caught:
            read()
        assert not any(digits in str(caught.value) for digits in ("5", "100", str(ROWS)))
        assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_what_is_no_matrix_of_numbers_is_refused():
    y = np.zeros(4, dtype=bool)
    cases = [
        (sp.csr_array((4, 0)), ValueError, "no feature"),
        (sp.csr_array(np.ones((4, 2), dtype=complex)), TypeError, "numeric"),
        (sp.coo_array(np.ones(4)), ValueError, "1 dimensions"),
        (pd.DataFrame.sparse.from_spmatrix(sp.csr_matrix(np.eye(4))), TypeError, r"sparse\.to_coo"),
    ]
    for X, kind, words in cases:
        with pytest.raises(kind, match=words):
            UserData.from_arrays(X, y, [0, 0, 1, 1])
    with pytest.raises(TypeError, match="dense"):
        PublicScaler(low=0, high=1).fit(sp.csr_array(np.eye(4)))


def test_arrays_that_kernels_could_not_read_are_refused():
    good = {"indptr": np.array([0, 1]), "indices": np.array([0], np.int32), "values": np.ones(1), "n_columns": 1}
    SparseRows(**good)
    with pytest.raises(TypeError, match="indices"):
        SparseRows(**good | {"indices": np.array([0.0])})
    with pytest.raises(TypeError, match="values"):
        SparseRows(**good | {"values": [1.0]})
    with pytest.raises(ValueError, match="well-formed"):
        SparseRows(**good | {"n_columns": 0})


def test_a_private_mean_of_sparse_rows():
    X, users = made(4000, 3, seed=1), np.repeat(np.arange(2000), 2)
    options = {"epsilon": 4.0, "delta": 1e-6, "insecure_seed": 1}
    assert close(private_mean(X, users, **options).mean, private_mean(X.toarray(), users, **options).mean)


# --- cost -------------------------------------------------------------------------------------------------------------

_FIT = """
import resource, sys
import numpy as np, scipy.sparse as sp
import userdp

def made(n_rows, d, entries):
    rng, step = np.random.default_rng(0), d // entries
    indices = np.empty((n_rows, entries), np.int32)
    for start in range(0, n_rows, 1000):
        part = indices[start:start + 1000]
        part[:] = rng.integers(0, step, part.shape) + step * np.arange(entries)
    values = np.ones(n_rows * entries, np.float32)
    X = sp.csr_matrix((values, indices.ravel(), np.arange(0, indices.size + 1, entries, dtype=np.int32)), (n_rows, d))
    return X, indices[:, 0] < step // 2, np.arange(n_rows) // 10

def fit(X, y, users):
    options = {"max_rows_per_user": 10, "solver": userdp.Solver(max_gradients=10**6), "allow_weak": True}
    userdp.LogisticRegression(epsilon=1.0, **options).fit(X, y, groups=users)

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

d = int(sys.argv[1])
fit(*made(2000, d, 30))  # compiled
X, y, users = made(200_000, d, 30)
fit(X, y, users)  # compiled for this size, too
open("/proc/self/clear_refs", "w").write("5")  # the peak from here on
before = resident()
fit(X, y, users)
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print((peak - before) / (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes))
"""


@pytest.mark.slow
def test_a_fit_takes_little_memory_beside_the_data():
    """200,000 rows of 30 non-zeros: 47 MB, 16 GB if they were dense. Buffers do not grow with rows."""
    command = [sys.executable, "-W", "ignore", "-c", _FIT, "10000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.6, done.stdout
