"""What every run.py does alike: read the job, cap and cut rows, set the same defaults, score, print one line.

It needs only NumPy and scikit-learn, and runs inside each peer's own environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from math import ceil, exp
from time import perf_counter, process_time

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score


@dataclass(frozen=True)
class Job:
    """Training rows (capped, cut to row_norm, sorted by user), test rows and settings.

    clip, learning_rate and steps_per_pass are the same for every peer that takes noisy gradient steps. They were
    fixed before any run: clip 1 as in the tutorials of Opacus, learning rate 0.5, a twentieth of the users a step.
    A settings file may name others.
    """

    X: np.ndarray
    y: np.ndarray
    users: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    epsilon: float
    delta: float
    max_rows_per_user: int
    row_norm: float
    seed: int
    passes: int
    clip: float = 1.0
    learning_rate: float = 0.5
    steps_per_pass: int = 20
    reading: str = "users"
    in_turns: bool = False

    @property
    def n_users(self) -> int:
        return int(self.users[-1]) + 1

    @property
    def users_per_step(self) -> int:
        return ceil(self.n_users / self.steps_per_pass)

    @property
    def steps(self) -> int:
        return self.passes * self.steps_per_pass

    @property
    def add_or_remove(self) -> tuple[float, float]:
        """The (epsilon, delta) for adding or removing a user that makes replacing one user (epsilon, delta).

        A replacement is a removal and then an addition: twice the epsilon, and delta times 1 + exp(half the epsilon).
        """
        return self.epsilon / 2, self.delta / (1 + exp(self.epsilon / 2))

    @cached_property
    def row_numbers(self) -> np.ndarray:
        """The place of each row among its user's rows."""
        return np.arange(len(self.users)) - np.searchsorted(self.users, self.users)

    def blocks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One block of max_rows_per_user rows per user, padded with zeros: rows, targets, and weights 1 / own rows."""
        rows = np.zeros((self.n_users, self.max_rows_per_user, self.X.shape[1]), np.float32)
        targets = np.zeros(rows.shape[:2], np.float32)
        weights = np.zeros(rows.shape[:2], np.float32)
        place = self.users, self.row_numbers
        rows[place], targets[place] = self.X, self.y
        weights[place] = 1 / np.bincount(self.users)[self.users]
        return rows, targets, weights

    def run(
        self,
        peer: str,
        package: str,
        guarantee: str,
        train: Callable[[], tuple[np.ndarray, str]],
        noise_seconds: float = 0.0,
    ) -> None:
        """Train, which gives weights and a note, time it, and print the one line.

        With `in_turns`, one training that does not count comes first, and then one for each line of standard input.
        """
        told = {"peer": peer, "version": version(package), "guarantee": guarantee, "noise_seconds": noise_seconds}
        if not self.in_turns:
            self._report(told, train)
            return
        train()
        print("ready", flush=True)
        for _ in sys.stdin:
            self._report(told, train)

    def _report(self, told: dict[str, object], train: Callable[[], tuple[np.ndarray, str]]) -> None:
        wall, cpu = perf_counter(), process_time()
        weights, note = train()
        wall, cpu = perf_counter() - wall, process_time() - cpu
        margins = self.X_test.astype(np.float64) @ np.asarray(weights, np.float64).ravel()
        chances = 0.5 * (1 + np.tanh(margins / 2))
        line = told | {
            "log_loss": float(log_loss(self.y_test, chances)),
            "auc": float(roc_auc_score(self.y_test, margins)),
            "seconds": wall,
            "cpu_seconds": cpu,
            "note": note,
        }
        print(json.dumps(line), flush=True)


def read_job() -> Job:
    """The job named on the command line: DATA.npz SETTINGS.json."""
    if len(sys.argv) != 3:
        sys.exit(f"Expected two arguments, got {len(sys.argv) - 1}: run `python run.py DATA.npz SETTINGS.json`.")
    with open(sys.argv[2]) as file:
        settings = json.load(file)
    with np.load(sys.argv[1]) as data:
        X, y, groups = data["X"].astype(np.float32), data["y"].astype(np.float32), data["groups"]
        test = {"X_test": data["X_test"], "y_test": data["y_test"].astype(int)}
    kept = _capped(groups, settings["max_rows_per_user"], settings["seed"])
    users = np.unique(groups[kept], return_inverse=True)[1]
    norms = np.linalg.norm(X[kept], axis=1, keepdims=True)
    X = X[kept] * np.minimum(1, settings["row_norm"] / np.maximum(norms, 1e-12)).astype(np.float32)
    return Job(X=X, y=y[kept], users=users, **test, **settings)


def _capped(groups: np.ndarray, cap: int, seed: int) -> np.ndarray:
    """Which rows to keep: at most cap of each user's, chosen at random, sorted by user."""
    shuffled = np.random.default_rng(seed).permutation(len(groups))
    order = shuffled[np.argsort(groups[shuffled], kind="stable")]
    ordered = groups[order]
    return order[np.arange(len(order)) - np.searchsorted(ordered, ordered) < cap]
