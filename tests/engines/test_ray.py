"""The engine on Ray gives what one process gives: totals bit for bit, other results up to rounding."""

import contextlib
import itertools
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import userdp
from userdp import Ball, Budget, Clip, Curator, Execution, Ledger, Plan, Solver, Step, UserData, minimize
from userdp.cli import app
from userdp.data.schema import Schema
from userdp.engines import EngineLost, LocalEngine, engine_of
from userdp.privacy.clip import ClippedTotal
from userdp.solvers.solver import SOLVERS
from userdp.statistics.gradients import ClippedGradient, MeanGradient, UserGradients
from userdp.statistics.moments import UserMean
from userdp.statistics.sgd import OnePassSGD

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'userdp[ray]'")
from userdp.engines import ray as ray_engine  # noqa: E402 - needs Ray
from userdp.engines.ray import RayEngine  # noqa: E402
from userdp.engines.ray_partition import INLINE, ParquetUsers, numbers_of  # noqa: E402

ENGINE = RayEngine(n_partitions=2)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One local Ray for all tests here, which the first fit starts."""
    yield
    ray.shutdown()


def people(n_users=600, n_features=4, rows=5, seed=0):
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(n_users), rng.integers(1, 2 * rows, n_users))
    X = rng.uniform(-1, 1, (len(owners), n_features))
    y = (rng.random(len(owners)) < 1 / (1 + np.exp(-3 * X[:, 0] + 2 * X[:, 1]))).astype(float)
    return X, y, owners


def make_data(**options):
    X, y, owners = people()
    return UserData.from_arrays(X, y, owners, **options)


def sparse_data():
    from scipy.sparse import csr_array

    X, y, owners = people()
    return UserData.from_arrays(csr_array(np.where(abs(X) > 0.5, X, 0.0)), y, owners, fit_intercept=True)


def own_gradient():
    """A function that workers, which cannot import this file, get as it is."""
    return lambda weights, rows, targets: (rows @ weights - targets) @ rows / len(rows)


@pytest.mark.parametrize("make", [make_data, sparse_data, lambda: make_data(dtype=np.float32, fit_intercept=True)])
def test_totals_and_vectors_are_those_of_one_process(make):
    data = make()
    placed = ENGINE.place(data)
    assert (placed.n_partitions, placed.n_users, placed.n_features) == (2, data.n_users, data.n_features)
    weights = np.linspace(-1, 1, data.n_features)
    rng = np.random.default_rng(1)
    few, everyone = rng.permutation(data.n_users)[:31], rng.permutation(data.n_users)
    basis = rng.normal(size=(data.n_features, data.n_features))
    for statistic in (
        MeanGradient(userdp.losses.logistic, weights, basis),
        UserMean(),
        UserGradients(own_gradient(), weights),
    ):
        for users in (everyone, few, few[:1], everyone[:500], few[:0]):
            if len(users):
                expected = LocalEngine().vectors(statistic, data, users, len(users))
                assert np.array_equal(ENGINE.vectors(statistic, placed, users, len(users)), expected)
                contribution = ClippedTotal(0.5, 40, 100)
                total = LocalEngine().total(statistic, contribution, data, users)
                assert np.array_equal(ENGINE.total(statistic, contribution, placed, users), total)
    sgd = OnePassSGD(userdp.losses.logistic, weights, Ball(3.0), 0.1)
    penalised = replace(sgd, penalty=np.append(np.full(data.n_features - 1, 0.4), 0.0))
    for statistic, n_groups in itertools.product((sgd, penalised), (1, 7, 100, 600)):
        expected = LocalEngine().vectors(statistic, data, everyone, n_groups)
        assert np.array_equal(ENGINE.vectors(statistic, placed, everyone, n_groups), expected)


def test_ids_stay_with_the_driver(monkeypatch):
    """They would be in what starts an actor, which goes through the object store if it is long."""
    seen = []
    monkeypatch.setattr(RayEngine, "_started", lambda _, loaders, *more: seen.extend(loaders))
    X, y, owners = people()
    data = UserData.from_arrays(X, y, np.char.add("person", owners.astype(str)), keep_user_ids=True)
    ENGINE.place(data)
    RayEngine(n_partitions=2, ship_rows=True).place(data)
    assert len(seen) == 4
    for loader in seen:
        assert b"person" not in ray.cloudpickle.dumps(loader)
        assert loader.load()[0].user_ids is None


def test_each_user_is_asked_once():
    placed = ENGINE.place(make_data())
    with pytest.raises(ValueError, match="named twice"):
        ENGINE.total(UserMean(), ClippedTotal(0.5, 40, 100), placed, np.array([1, 2, 2]))


@pytest.fixture(scope="module")
def both():
    """The same users here and on Ray."""
    X, y, owners = people(2000, rows=6)
    data = UserData.from_arrays(X, y, owners, fit_intercept=True)
    return data, ENGINE.place(data)


CLASSIFIED = {"classes": [0, 1]}
NUMBERS = {"target_range": (-0.5, 0.75)}
ESTIMATORS = {
    "LogisticRegression": CLASSIFIED,
    "LinearSVC": CLASSIFIED,
    "LinearRegression": NUMBERS,
    "HuberRegressor": NUMBERS,
    "QuantileRegressor": NUMBERS,
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_learns_the_same(name, both):
    found = []
    for data in both:
        kind = getattr(userdp, name)
        model = kind(8.0, 1e-4, max_rows_per_user=11, insecure_seed=3, **ESTIMATORS[name])
        found.append(model.fit_users(data))
    one, other = found
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-9)
    assert one.privacy_ == other.privacy_


def test_an_engine_by_its_name():
    X, y, owners = people()
    models = [
        userdp.LogisticRegression(
            8.0, 1e-4, classes=[0, 1], max_rows_per_user=4, execution=Execution(engine=engine), insecure_seed=3
        ).fit(X, y.astype(int), groups=owners)
        for engine in (None, "ray")
    ]
    np.testing.assert_allclose(
        models[0].coef_, models[1].coef_, rtol=1e-9
    )  # code may be compiled here and loaded there


def test_means_and_scalers_are_the_same():
    X, _, owners = people(1500)
    means = [
        userdp.private_mean(X, owners, 4.0, 1e-4, execution=Execution(engine=e), insecure_seed=1)
        for e in (None, ENGINE)
    ]
    assert np.allclose(means[0].mean, means[1].mean, rtol=1e-9, atol=0)
    assert means[0].radius == means[1].radius
    scalers = [
        userdp.PrivateStandardScaler(4.0, 1e-4, low=-1, high=1, execution=Execution(engine=e), insecure_seed=1).fit(
            X, groups=owners
        )
        for e in (None, ENGINE)
    ]
    assert np.allclose(scalers[0].scale_, scalers[1].scale_, rtol=1e-9, atol=0)


OWN = {("accelerated", "calibrated"), ("phased-sgd", "calibrated"), ("whitened-clip", "calibrated")}
LIMITS = {"bassily-sun": 20, "levy": 20, "asi-liu": 40, "example-level": 0.2}


@pytest.mark.parametrize(
    ("solver", "mode"), [pytest.param(*key, marks=[] if key in OWN else pytest.mark.slow) for key in SOLVERS]
)
def test_every_solver_finds_the_same(solver, mode, both):
    budget, rows, few = (4.0, 1e-5), 12, None
    if mode == "paper":
        X, y, owners = people(14_000, rows=2)
        data = UserData.from_arrays(X, y, owners)
        both, budget, rows = (data, ENGINE.place(data)), (10.0, 1e-4), 3
    if solver in LIMITS:
        few = int(LIMITS[solver] * 2000 * 12)
    taken = Solver(solver, mode=mode, row_norm=2.5, max_gradients=few)
    options = {"rows_per_user": rows, "solver": taken}
    local, there = (minimize("logistic", data, Ball(10.0), *budget, insecure_seed=5, **options) for data in both)
    assert np.allclose(there.weights, local.weights, rtol=1e-9, atol=1e-12)
    assert (there.aborted, there.n_gradients) == (local.aborted, local.n_gradients)
    for one, other in zip(there.phases, local.phases, strict=True):  # sums of parts round by how users are parted
        assert one == pytest.approx(other, rel=1e-9)


def test_rows_of_groups_come_to_the_driver_and_not_through_the_object_store(tmp_path):
    """In pages; one user's rows are more than a page."""
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(900), np.append(rng.integers(1, 20, 899), 4000))
    table = {"user": owners, "y": rng.random(len(owners))} | {f"x{k}": rng.normal(size=len(owners)) for k in range(4)}
    pq.write_table(pa.table(table), tmp_path / "people.parquet")
    columns = {"user": "user", "features": "x*", "target": "y"}
    here = UserData.from_parquet(tmp_path / "people.parquet", **columns)
    there = ENGINE.from_parquet(tmp_path / "people.parquet", **columns)
    sgd, users = OnePassSGD(userdp.losses.squared, np.zeros(4), Ball(3.0), 0.1), rng.permutation(900)
    halved = there.mapped(lambda data: replace(data, rows=data.rows / 2))
    assert np.array_equal(ENGINE.vectors(sgd, there, users, 30), LocalEngine().vectors(sgd, here, users, 30))
    assert np.array_equal(
        ENGINE.vectors(sgd, halved, users[:99], 1),
        LocalEngine().vectors(sgd, replace(here, rows=here.rows / 2), users[:99], 1),
    )
    asked = there.actors[1].ask.options(num_returns="streaming")
    references = list(asked.remote(there.marks[1], there.question("rows")))
    pages = ray.get(references)
    assert len(pages) > 2
    assert max(len(page.content) for page in pages) == INLINE
    assert np.array_equal(pickle.loads(b"".join(page.content for page in pages)).rows, here.part(450, 900).rows)
    assert not any(map(is_stored, references))
    assert is_stored(ray.put(np.zeros(10**6)))


def is_stored(reference):
    """Whether it is in an object store."""
    return len(ray.experimental.get_object_locations([reference])[reference]["node_ids"]) > 0


def test_an_answer_whose_later_pages_were_lost_is_asked_for_again(monkeypatch):
    """As when its worker is killed in between; totals of many weights have several pages."""
    data = UserData.from_arrays(np.ones((6, 20_000)), np.zeros(6), np.arange(6) // 2)
    placed, asked, n_pages = ENGINE.place(data), (UserMean(), ClippedTotal(5.0, 40, 100)), []
    received = ray_engine._received

    def losing(stream):
        pages = received(stream)
        n_pages.append(len(pages))
        of_two = [*pages[:-1], pages[-1]._replace(incarnation="another")]
        return {1: [], 2: of_two}.get(len(n_pages), pages)

    monkeypatch.setattr(ray_engine, "_PAUSE", 0.0)
    monkeypatch.setattr(ray_engine, "_received", losing)
    found = ENGINE.total(*asked, placed, np.arange(3))
    assert np.array_equal(found, LocalEngine().total(*asked, data, np.arange(3)))
    assert len(n_pages) > 2
    assert min(n_pages) > 1


def test_a_cluster_that_does_not_answer_counts_as_lost(monkeypatch):
    placed = ENGINE.place(make_data())
    monkeypatch.setattr(ray_engine, "_PAUSE", 0.0)
    monkeypatch.setattr(ray_engine, "_received", lambda stream: [])
    with pytest.raises(EngineLost, match="cannot be reached any more"):
        ENGINE.total(UserMean(), ClippedTotal(0.5, 40, 100), placed, np.arange(600))


def test_lists_name_who_takes_part():
    placed = ENGINE.place(make_data())
    for users in (np.arange(600), np.array([299, 300]), np.arange(0, 600, 2), np.array([], dtype=int), np.array([599])):
        found = [numbers_of(own, 300) + 300 * part for part, own in placed.lists_of(users).items()]
        assert np.concatenate(found).tolist() == np.sort(users).tolist()
        assert not len(users) or all(map(len, found)), "only partitions that have some are asked"


def write_parquet(path, in_order, rows_per_group=64):
    X, y, owners = people()
    order = np.arange(len(owners)) if in_order else np.random.default_rng(2).permutation(len(owners))
    columns = {"user": owners[order], "y": y[order]} | {f"x{k}": X[order, k] for k in range(X.shape[1])}
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return {"user": "user", "features": "x*", "target": "y", "fit_intercept": True}


@pytest.mark.parametrize("in_order", [False, True])
def test_partitions_read_parquet_by_themselves(tmp_path, in_order):
    path = tmp_path / "people.parquet"
    columns = write_parquet(path, in_order)
    here = UserData.from_parquet(path, **columns)
    there = ENGINE.from_parquet(path, **columns)
    assert (there.n_users, there.n_features, there.has_intercept) == (here.n_users, here.n_features, True)
    model = userdp.LinearRegression(8.0, 1e-4, target_range=(-1.0, 1.0), max_rows_per_user=20, insecure_seed=4)
    one, other = (model.fit_users(users).coef_ for users in (here, there))
    np.testing.assert_allclose(one, other, rtol=1e-9)


def test_capped_rows_are_the_same_after_a_restart(tmp_path):
    path = tmp_path / "people.parquet"
    columns = write_parquet(path, False)
    placed = ENGINE.from_parquet(path, max_rows_per_user=2, **columns)
    asked = (UserMean(), ClippedTotal(5.0, 40, 100), placed, np.arange(placed.n_users))
    before = ENGINE.total(*asked)
    for actor in placed.actors:
        ray.kill(actor, no_restart=False)
    assert np.array_equal(ENGINE.total(*asked), before)
    again = ENGINE.from_parquet(path, max_rows_per_user=2, **columns)
    assert not np.array_equal(ENGINE.total(*asked[:2], again, asked[3]), before), "chosen afresh"


def start_anew(*actors):
    """Kill workers, and wait until others are in their places: Ray kills them when it comes to it."""
    for actor in actors:
        before = process = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
        ray.kill(actor, no_restart=False)
        while process == before:
            with contextlib.suppress(ray.exceptions.RayError):
                process = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))


@pytest.mark.parametrize("in_order", [False, True])
def test_a_worker_that_finds_other_files_answers_nothing(tmp_path, in_order):
    """With users in another order, someone would be counted by two partitions, or by none."""
    path = tmp_path / "people.parquet"
    columns = write_parquet(path, in_order)
    placed = ENGINE.from_parquet(path, **columns)
    total = (UserMean(), ClippedTotal(5.0, 40, 100), placed, np.arange(placed.n_users))
    before, told = ENGINE.total(*total), path.stat()
    table = pq.read_table(path)
    owners = table["user"].to_numpy()
    one, other = list(dict.fromkeys(owners.tolist()))[:2]  # both of the first partition
    swapped = np.where(owners == one, other, np.where(owners == other, one, owners))
    for ids in (swapped, owners[::-1]):
        pq.write_table(table.set_column(0, "user", pa.array(ids)), path, row_group_size=64)
        os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
        assert np.array_equal(ENGINE.total(*total), before), "it is held"
        start_anew(placed.actors[0])
        with pytest.raises(EngineLost, match="have changed since the fit began"):
            ENGINE.total(*total)
        write_parquet(path, in_order)
        os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
        start_anew(*placed.actors)
        assert np.array_equal(ENGINE.total(*total), before), "as it was"
    path.unlink()
    start_anew(placed.actors[1])
    sgd = OnePassSGD(userdp.losses.logistic, np.zeros(5), Ball(3.0), 0.1)
    with pytest.raises(EngineLost, match="have changed since the fit began, or are gone"):
        ENGINE.vectors(sgd, placed, np.arange(placed.n_users), 7)


def test_partitions_that_find_different_files_are_refused(tmp_path):
    """As when a file changes while some have loaded it, and others have not."""
    schema, loaders = Schema("user", ("x0", "x1"), "y"), []
    for part in range(2):
        (tmp_path / str(part)).mkdir()
        path = tmp_path / str(part) / "people.parquet"
        write_parquet(path, False)
        os.utime(path, (1e9, 1e9 + part))
        loaders.append(ParquetUsers(str(path), schema, {}, part, 2))
    with pytest.raises(ValueError, match=r"files of different names.*Nothing was spent"):
        ENGINE._started(loaders, None)


def test_one_user_may_fill_the_row_groups_of_partitions(tmp_path):
    """No error tells of it."""
    path = tmp_path / "people.parquet"
    owners = np.repeat(np.arange(8), [3, 200, 2, 5, 5, 5, 90, 4])
    y = np.linspace(-1, 1, len(owners))
    pq.write_table(pa.table({"user": owners, "x": y**2, "y": y}), path, row_group_size=10)
    columns = {"user": "user", "features": "x", "target": "y", "fit_intercept": True}
    here, engine = UserData.from_parquet(path, **columns), RayEngine(n_partitions=4)
    there = engine.from_parquet(path, **columns)
    assert np.diff(there.bounds).tolist() == [2, 2, 2, 2]
    statistic, contribution = MeanGradient(userdp.losses.squared, np.ones(2)), ClippedTotal(0.5, 40, 100)
    sgd = OnePassSGD(userdp.losses.squared, np.ones(2), Ball(3.0), 0.1)
    for users in (np.arange(8), np.array([7, 1]), np.array([], dtype=int)):
        expected = LocalEngine().total(statistic, contribution, here, users)
        assert np.array_equal(engine.total(statistic, contribution, there, users), expected)
    for asked, n_groups in ((statistic, 8), (sgd, 3), (sgd, 8)):
        expected = LocalEngine().vectors(asked, here, np.arange(8), n_groups)
        assert np.array_equal(engine.vectors(asked, there, np.arange(8), n_groups), expected)


def test_partitions_map_the_arrays_of_a_store(tmp_path, monkeypatch):
    data, arrays = make_data(), {}
    for name in ("rows", "targets", "offsets", "affected"):
        np.save(tmp_path / f"{name}.npy", getattr(data, name))
        arrays[name] = np.asarray(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    stored = UserData(**arrays)
    object.__setattr__(stored, "store", SimpleNamespace(path=tmp_path, arrays=arrays))
    monkeypatch.setattr("userdp.engines.ray.SharedMemory", None)
    placed = ENGINE.place(stored)
    asked = (UserMean(), ClippedTotal(5.0, 40, 100))
    expected = LocalEngine().total(*asked, data, np.arange(600))
    assert np.array_equal(ENGINE.total(*asked, placed, np.arange(600)), expected)


@pytest.mark.parametrize("way", ["memory", "store", "parquet"])
def test_rows_with_missing_cells_are_left_out_wherever_they_are_read(tmp_path, way):
    X, y, owners = people()
    X[::7, 1], y[::11] = np.nan, np.nan
    X[owners == owners[0]] = np.inf
    table = {"who": owners, "y": y} | {f"x{k}": X[:, k] for k in range(4)}
    pq.write_table(pa.table(table), tmp_path / "t.parquet", row_group_size=400)
    columns = {"user": "who", "target": "y", "features": "x*"}
    here = UserData.from_parquet(tmp_path / "t.parquet", **columns)
    assert 0 < here.affected.sum() < here.n_users
    if way == "memory":
        placed = ENGINE.place(here)
    elif way == "store":
        stored = UserData.from_parquet(
            tmp_path / "t.parquet", **columns, memory_limit="100MB", store=tmp_path / "store"
        )
        placed = ENGINE.place(stored)
    else:
        placed = ENGINE.from_parquet(tmp_path / "t.parquet", **columns)
    statistic = ClippedGradient(MeanGradient(userdp.losses.logistic, np.linspace(-1, 1, 4)), 0.5, 2.0, 0.2)
    users = np.arange(here.n_users)
    expected = LocalEngine().vectors(statistic, here, users, len(users))
    assert np.count_nonzero(expected[:, -1]) == here.affected.sum()
    assert np.array_equal(ENGINE.vectors(statistic, placed, users, len(users)), expected)


def test_a_partition_that_cannot_load_is_told_before_anything_is_charged(tmp_path):
    pq.write_table(pa.table({"user": [1, 2], "x": [0.0, 0.0]}), tmp_path / "people.parquet")
    with pytest.raises(ValueError, match=r"partition 0: There are fewer than 2 users.*Nothing was spent"):
        ENGINE.from_parquet(tmp_path / "people.parquet", user="user", features="x")


class Telling:
    """A statistic that says and raises what it sees."""

    needs_targets = takes_groups = False

    def __call__(self, data, users, n_groups):
        rows = data.rows_of(int(users[0]))[0]
        if rows.shape[0] and abs(rows).max() > 1000:
            print(rows, flush=True)
            print(rows, file=sys.stderr, flush=True)
            raise ValueError(str(rows))
        return np.zeros((n_groups, 1))

    def check(self, n_features, dtype=None):
        pass


def test_what_fails_on_data_tells_nothing_of_it(capfd):
    """Neither in what is raised here, nor in the files that Ray writes."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    X, y, owners = people()
    X[:] = 271828.1828
    data = UserData.from_arrays(X, y, owners)
    plan = Plan(600, (Step("mean", 0, 600, Clip(600, 5.0)),))
    curator = Curator(data, plan, Ledger(Budget(2.0, 1e-5)), engine=ENGINE)
    try:
        with pytest.raises(RuntimeError, match="failed on the data") as raised:
            curator.release("mean", Telling(), 1.0)
    finally:
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert "271828" not in str(raised.value)
    assert raised.value.__context__ is None
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    logs = [file for file in session.rglob("*") if file.is_file()]
    assert len(logs) > 3
    assert not [file for file in logs if b"271828" in file.read_bytes()]
    assert "271828" not in "".join(capfd.readouterr())


def test_a_run_that_was_stopped_goes_on_with_its_journal(tmp_path):
    class Stopping(RayEngine):
        def total(self, *asked):
            asked_for.append(1)
            if len(asked_for) == 5:
                raise KeyboardInterrupt
            return super().total(*asked)

    data, asked_for, ledger = make_data(), [], Ledger(Budget(8.0, 1e-4), tmp_path / "ledger.db")
    options = {"rows_per_user": 5, "insecure_seed": 2}
    whole = minimize("logistic", data, Ball(10.0), 8.0, 1e-4, **options)
    options |= {"ledger": ledger}
    stopping, going = (
        Execution(engine=engine, checkpoint=str(tmp_path / "journal")) for engine in (Stopping(n_partitions=2), ENGINE)
    )
    with pytest.raises(KeyboardInterrupt):
        minimize("logistic", data, Ball(10.0), 8.0, 1e-4, execution=stopping, **options)
    resumed = minimize("logistic", data, Ball(10.0), 8.0, 1e-4, execution=going, **options)
    np.testing.assert_allclose(resumed.weights, whole.weights, rtol=1e-9)
    assert len(ledger.charges()) == 1


def test_the_command_line(tmp_path):
    write_parquet(tmp_path / "people.parquet", False)
    words = ["fit", tmp_path / "people.parquet", "--user-column", "user", "--target", "y", "--features", "x*"]
    words += ["--classes", "0,1", "--epsilon", 8, "--delta", 1e-4, "--insecure-seed", 1]
    models = []
    for name, engine in (("here", []), ("there", ["--engine", "ray", "--workers", 2])):
        asked = [*words, *engine, "--output", tmp_path / f"{name}.json", "--max-rows-per-user", 20]
        done = CliRunner().invoke(app, [str(word) for word in asked])
        assert done.exit_code == 0, done.output
        models.append(userdp.load_model(tmp_path / f"{name}.json"))
    np.testing.assert_allclose(
        models[0].coef_, models[1].coef_, rtol=1e-9
    )  # code may be compiled here and loaded there
    refused = CliRunner().invoke(app, [*map(str, words), "--output", "m.json", "--workers", "3"])
    assert "--engine ray" in refused.output


def test_engines_by_name():
    assert isinstance(engine_of(None, "local"), LocalEngine)
    assert engine_of(None, "ray") == RayEngine()
    with pytest.raises(ValueError, match=r'"local", "ray"'):
        engine_of(None, "spark")
    with pytest.raises(TypeError, match="Data must be UserData, got RayUsers"):
        minimize(
            "logistic",
            ENGINE.place(make_data()),
            Ball(1.0),
            8.0,
            1e-4,
            rows_per_user=5,
            execution=Execution(engine="local"),
        )
    with pytest.raises(ValueError, match="whole number"):
        RayEngine(n_partitions=0)


def test_a_cluster_that_cannot_be_reached_is_told_in_a_sentence():
    for address, said in (("ray://somewhere:10001", "host:6379"), ("127.0.0.1:1", "connected to another Ray")):
        with pytest.raises(ValueError, match=said):
            RayEngine(address).place(make_data())


def in_process(script):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    return done.stdout + done.stderr.strip().rsplit("\n", 1)[-1]


FIT = """
import numpy as np, sys, userdp
rng = np.random.default_rng(0)
ledger = userdp.Ledger(userdp.Budget(8.0, 1e-4))
where = userdp.Execution(engine={engine})
model = userdp.LogisticRegression(8.0, 1e-4, classes=[0, 1], ledger=ledger, execution=where)
try:
    model.fit(rng.normal(size=(90, 2)), np.arange(90) % 2, groups=np.arange(90) // 3)
finally:
    print(len(ledger.charges()), "charges")
"""


def test_without_ray_a_sentence_says_so_and_nothing_is_charged():
    said = in_process("import sys; sys.modules['ray'] = None\n" + FIT.format(engine="'ray'"))
    assert said.startswith("0 charges\nImportError: Ray is not installed")


def test_a_cluster_that_is_not_there_is_told_and_nothing_is_charged():
    said = in_process("from userdp.engines import RayEngine\n" + FIT.format(engine="RayEngine('127.0.0.1:1')"))
    assert said.startswith("0 charges\nRuntimeError: The Ray cluster at address='127.0.0.1:1' cannot be reached")
