"""Workers, a node and the driver are killed: every fit ends with what it would have found, charged once.

FAULTS=100 kills that many workers (`make faults`).
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import userdp
from userdp import Ball, Budget, Execution, Ledger, Solver, UserData, minimize

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'userdp[ray]'")
import psutil  # noqa: E402 - Ray brings it
from ray.cluster_utils import Cluster  # noqa: E402

from userdp.engines.ray import RayEngine  # noqa: E402

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("FAULTS", "6"))


def people(n_users=4000, rows=20):
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(n_users), rng.integers(1, 2 * rows, n_users))
    X = rng.uniform(-1, 1, (len(owners), 6))
    return X, (rng.random(len(owners)) < 1 / (1 + np.exp(-3 * X[:, 0]))).astype(float), owners


@pytest.fixture(autouse=True)
def apart():
    """Each test has a Ray of its own."""
    yield
    ray.shutdown()


def same(found, expected):
    """Models to 1e-9: a process that compiles kernels and one that loads them may differ in the last digits."""
    return np.allclose(found, expected, rtol=1e-9, atol=1e-9)


def holds_a_partition(process):
    """Whether it does; a process that ends while it is looked at, or has ended, does not."""
    try:
        return "Partition" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def workers():
    """Processes of this machine that hold partitions, and belong to this one's Ray."""
    return [process for process in psutil.Process().children(recursive=True) if holds_a_partition(process)]


class Killer(threading.Thread):
    """Kills a worker at random moments, until it is told to stop."""

    def __init__(self, most, pause):
        super().__init__(daemon=True)
        self._rng, self._most, self._pause = np.random.default_rng(os.getpid()), most, pause
        self.killed, self.done = 0, threading.Event()

    def run(self):
        while self.killed < self._most and not self.done.wait(self._pause * self._rng.random()):
            found = workers()
            if found:
                with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself
                    found[self._rng.integers(len(found))].kill()
                    self.killed += 1


class Counting(RayEngine):
    """Notes who was asked for each release."""

    def total(self, statistic, contribution, data, users):
        ASKED.append(np.sort(users))
        return super().total(statistic, contribution, data, users)


ASKED = []


def columns_of(X, y, owners):
    return {"user": owners, "y": y} | {f"x{k}": X[:, k] for k in range(X.shape[1])}


@pytest.mark.parametrize("solver", ["whitened-clip", "phased-sgd", "accelerated"])
def test_killed_workers_change_nothing(solver, tmp_path):
    """Workers of phased-sgd read files, so that rows of groups travel between them."""
    pq.write_table(pa.table(columns_of(*people())), tmp_path / "people.parquet")
    read = {"user": "user", "features": "x*", "target": "y"}
    data = UserData.from_parquet(tmp_path / "people.parquet", **read)
    few = 40 * data.n_users * 20 if solver == "whitened-clip" else None
    fit = {"rows_per_user": 20, "solver": Solver(solver, row_norm=2.5, max_gradients=few), "insecure_seed": 7}
    expected = minimize("logistic", data, Ball(10.0), 4.0, 1e-5, **fit)
    engine = Counting(n_partitions=2)

    def users():
        if solver == "phased-sgd":
            return engine.from_parquet(tmp_path / "people.parquet", **read)
        return engine.place(data)

    ASKED.clear()
    calm = minimize("logistic", users(), Ball(10.0), 4.0, 1e-5, **fit)  # starts Ray
    assert same(calm.weights, expected.weights)
    asked_of, killed, fits = list(ASKED), 0, 0
    while killed < KILLS:
        ledger = Ledger(Budget(4.0, 1e-5), tmp_path / f"ledger{fits}.db")
        killer = Killer(KILLS - killed, 2.0)
        killer.start()
        ASKED.clear()
        found = minimize("logistic", users(), Ball(10.0), 4.0, 1e-5, ledger=ledger, **fit)
        killer.done.set()
        killer.join()
        killed, fits = killed + killer.killed, fits + 1
        assert same(found.weights, expected.weights), "the same users, the same noise"
        assert len(ledger.charges()) == 1
        assert len(ASKED) == len(asked_of)
        assert all(np.array_equal(one, other) for one, other in zip(ASKED, asked_of, strict=True))


def test_a_node_is_lost(tmp_path):
    """Two nodes with partitions on both; rows are read from files, and one node is killed."""
    X, y, owners = people(2000)
    path = tmp_path / "people.parquet"
    pq.write_table(pa.table(columns_of(X, y, owners)), path, row_group_size=2000)
    read = {"user": "user", "features": "x*", "target": "y", "fit_intercept": True}
    model = userdp.LogisticRegression(4.0, 1e-5, classes=[0, 1], max_rows_per_user=40, insecure_seed=3)
    expected = model.fit_users(UserData.from_parquet(path, **read)).coef_
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        other = cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
        engine = RayEngine(cluster.address, n_partitions=4)
        with pytest.raises(ValueError, match="ship_rows"):
            engine.place(UserData.from_arrays(X, y, owners))
        shipped = RayEngine(cluster.address, n_partitions=4, ship_rows=True)
        model.set_params(execution=Execution(engine=shipped))
        assert same(model.fit_users(UserData.from_parquet(path, **read)).coef_, expected)
        users = engine.from_parquet(path, **read)
        nodes = ray.get(
            [actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for actor in users.actors]
        )
        assert len(set(nodes)) == 2, "partitions on both"
        threading.Timer(1.0, cluster.remove_node, (other,), {"allow_graceful": False}).start()
        model.set_params(execution=None)
        for _ in range(3):
            assert same(model.fit_users(users).coef_, expected)
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_the_driver_is_killed_and_goes_on(tmp_path):
    pq.write_table(pa.table(columns_of(*people(3000))), tmp_path / "people.parquet")
    words = [*("fit", tmp_path / "people.parquet", "--user-column", "user", "--target", "y", "--features", "x*")]
    words += ["--classes", "0,1", "--epsilon", 4, "--delta", 1e-5, "--insecure-seed", 5, "--engine", "ray"]
    Ledger(Budget(100.0, 0.01), tmp_path / "ledger.db")
    words += ["--workers", 2, "--ledger", tmp_path / "ledger.db", "--json"]
    command = [sys.executable, "-m", "userdp"]

    def fit(name, *more):
        return [*command, *map(str, [*words, "--output", tmp_path / f"{name}.json", *more])]

    subprocess.run(fit("whole"), check=True, capture_output=True)
    journal, output = tmp_path / "run.journal", tmp_path / "resumed.json"
    killed = 0
    process = subprocess.Popen(fit("resumed", "--checkpoint", journal), stdout=subprocess.DEVNULL)
    while process.poll() is None:
        time.sleep(0.05)
        # Once the model is written the journal ends, while Ray is still shutting down: there is nothing to resume.
        going_on = journal.exists() and not output.exists()
        if killed < 3 and going_on and journal.stat().st_size > 20_000 * (killed + 1):
            process.kill()
            process.wait()
            killed += 1
            process = subprocess.Popen([*command, "resume", str(journal)], stdout=subprocess.DEVNULL)
    assert process.returncode == 0
    assert killed > 0
    whole, resumed = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "resumed"))
    assert resumed["coef"] == whole["coef"]
    assert len(Ledger.open(tmp_path / "ledger.db").charges()) == 2
