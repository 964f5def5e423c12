"""User-level DP-SGD tuned on the test users themselves: tuning that nobody private could do.

Clip, step, length and batch are the best of a grid for the very users that are scored, and even the curvature is known.
Only the final run's noise is paid for, not the search. It says how far perfect tuning of plain DP-SGD leads; solvers of
another kind, with a preconditioner say, may lead further.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from userdp.data.users import UserData
from userdp.losses import logistic
from userdp.privacy.accounting import Budget, gaussian_multiplier, subsampled_multiplier
from userdp.statistics.gradients import MeanGradient
from userdp_research.bench.scoring import HeldOut

_CURVATURE = 0.85  # measured on real users, which nobody would know
_LENGTHS = (5, 20, 80, 240)
_TUNED_ON = 100_000  # rows
_CLIPS = (0.03, 0.1, 0.3, 1.0)
_STEPS = (0.3 / _CURVATURE, 1 / _CURVATURE, 3 / _CURVATURE)


@dataclass(frozen=True)
class Tuning:
    """`fraction` of the users in a batch: 1 for all of them, else a Poisson sample."""

    length: int
    fraction: float
    clip: float
    step: float
    average: bool = False


def candidates(passes: float | None) -> list[Tuning]:
    """All tunings within so many passes over the users; None for as many as there are."""
    lengths = set(_LENGTHS)
    if passes is not None and 1 <= passes < max(_LENGTHS):
        lengths.add(int(passes))
    shapes = [(length, 1.0 if passes is None else min(1.0, passes / length)) for length in sorted(lengths)]
    return [Tuning(length, fraction, clip, step) for length, fraction in shapes for clip in _CLIPS for step in _STEPS]


def noise_multiplier(budget: Budget, tuning: Tuning) -> float:
    """Noise std / clip of the sum of clipped gradients.

    With all users a replacement moves the sum by 2 clips; a Poisson sample's multiplier is in units of adding a user, 1
    clip.
    """
    if tuning.fraction == 1:
        return 2 * gaussian_multiplier(budget, tuning.length)
    return subsampled_multiplier(budget, tuning.fraction, tuning.length)


def dp_sgd(data: UserData, tuning: Tuning, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Clipped gradients, noise, steps: the last iterate, and the average over the second half."""
    rng, everyone = np.random.default_rng(seed), np.arange(data.n_users)
    w = total = np.zeros(data.n_features)
    for t in range(tuning.length):
        users = everyone if tuning.fraction == 1 else everyone[rng.random(data.n_users) < tuning.fraction]
        moved = noise * tuning.clip * rng.normal(size=w.size)
        if len(users):
            vectors = MeanGradient(logistic, w)(data, users, len(users))
            norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
            moved += np.einsum("ij,i->j", vectors, tuning.clip / np.maximum(norms, tuning.clip))
        w = w - tuning.step * moved / (tuning.fraction * data.n_users)
        total = total + w * (2 * t >= tuning.length)
    return w, total / math.ceil(tuning.length / 2)


def tuned(data: UserData, test: HeldOut, budget: Budget, passes: float | None) -> tuple[Tuning, float]:
    """The tuning with the least log loss on the test users (100,000 of their rows), and its noise."""
    picked = np.random.default_rng(0).permutation(test.data.n_rows)[:_TUNED_ON]
    rows, signs = test.data.dense()[picked], 1 - 2 * test.data.targets[picked].astype(np.float32)
    counted = test.weights[picked] / test.weights[picked].sum()
    found = []
    for tuning in candidates(passes):
        noise = noise_multiplier(budget, tuning)
        for average, weights in enumerate(dp_sgd(data, tuning, noise, seed=0)):
            log_loss = counted @ np.logaddexp(0, signs * (rows @ weights.astype(np.float32)))
            found.append((float(log_loss), average, tuning, noise))
    _, average, tuning, noise = min(found, key=lambda one: one[0])
    return Tuning(**asdict(tuning) | {"average": bool(average)}), noise


def oracle(parts: list[UserData], test: HeldOut, budget: Budget, passes: float | None) -> dict[str, Any]:
    """Tuned on the first part, then run on each with other noise: scores, what was chosen, passes at most."""
    tuning, noise = tuned(parts[0], test, budget, passes)
    again = [dp_sgd(part, tuning, noise, seed + 1)[tuning.average] for seed, part in enumerate(parts)]
    return {
        "scores": [test.score(weights) for weights in again],
        "tuning": asdict(tuning),
        "passes": tuning.length * tuning.fraction,
    }
