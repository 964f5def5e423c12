"""Generated users whose best model is known: scenarios by name, their users, and fresh rows to score models on."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logsumexp, softmax

from userdp import losses
from userdp.data.users import UserData
from userdp.losses import Loss
from userdp_research.bench.references import each_value
from userdp_research.bench.scoring import calibration_bins, linear_slope, logistic_slope, softmax_slope

_TASTE = 0.1  # fraction of a feature's variance that all rows of a user have in common
_NOISE, _TAILS = 0.15, 3  # of targets in regression; degrees of freedom of Student's t for Huber's loss
_OFFSET, _DECADES = 10.0, (-2.0, 3.0)  # of odd units: mean / standard deviation, powers of ten
_FRESH_ROWS, _FRESH_SEED = 200_000, 1_000_000
_SLOPE_ROWS = 50_000  # for the slope of several classes
LOSSES: dict[str, Loss] = {
    "logistic": losses.logistic,
    "squared": losses.squared,
    "huber": losses.huber(0.2),
    "multinomial": losses.multinomial(3),
}


@dataclass(frozen=True)
class Scenario:
    """Users of a kind, and the numbers of them that are tried.

    `sizes` are the rows of users, in turn (half of the users each, if two), of which `cap` are kept and declared;
    `features` besides the constant 1; `signal` is the first feature's true weight, the second's is -1/2 of it, the
    others' are 0; `base_rate` of class 1 (logistic only); `correlation` of every two features; `odd_units` puts
    features into units over five orders of magnitude, with means of ten standard deviations; `radius` of the domain,
    None for the default.
    """

    name: str
    loss: str
    users: tuple[int, ...]
    sizes: tuple[int, ...] = (1,)
    cap: int = 50
    features: int = 10
    signal: float = 2.0
    base_rate: float = 0.5
    correlation: float = 0.0
    odd_units: bool = False
    radius: float | None = None

    @property
    def rows(self) -> int:
        """The most rows that are kept of a user."""
        return max(self.kept)

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(min(size, self.cap) for size in self.sizes)

    def settings(self) -> dict[str, Any]:
        """What tells it from others, for JSON; the numbers of users are those of cells."""
        known = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "users"}
        return known | {"sizes": list(self.sizes)}

    @staticmethod
    def from_settings(settings: dict[str, Any]) -> Scenario:
        """Inverse of `settings`, but for the numbers of users."""
        return Scenario(**settings | {"sizes": tuple(settings["sizes"]), "users": ()})


def _logistic(name: str, users: tuple[int, ...], rows: int, **more: Any) -> Scenario:
    return Scenario(name, "logistic", users, (rows,), **more)


_SOME, _MANY = (2_000, 20_000), (2_000, 20_000, 200_000)
_REGRESSION: dict[str, Any] = {"signal": 0.2}  # targets are then within [-1, 1], mostly, as estimators scale them

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        _logistic("few-weights", (3_000, 20_000, 200_000), 1, features=3),
        *(_logistic(f"rows-{rows}", _MANY, rows) for rows in (1, 2, 3, 10)),
        _logistic("rows-50", (2_000, 20_000, 50_000), 50),
        _logistic("features-20", (5_000, 50_000), 1, features=20),
        _logistic("features-40", (5_000, 20_000), 2, features=40),
        _logistic("features-100", (20_000, 100_000), 3, features=100),
        _logistic("rare-1", (5_000, 50_000, 200_000), 1, base_rate=0.02, signal=1.0),
        _logistic("rare-10", (5_000, 50_000), 10, base_rate=0.02, signal=1.0),
        _logistic("correlated", (5_000, 50_000), 3, features=20, correlation=0.9),
        _logistic("usual-units", (5_000, 50_000), 5),
        _logistic("odd-units", (5_000, 50_000), 5, odd_units=True, radius=1_000.0),
        Scenario("unequal", "logistic", (2_000, 20_000), (1, 300)),
        Scenario("unequal-uncut", "logistic", (2_000, 20_000), (1, 300), cap=300),
        Scenario("squared-1", "squared", _MANY, (1,), **_REGRESSION),
        Scenario("squared-10", "squared", _SOME, (10,), **_REGRESSION),
        Scenario("huber-1", "huber", _MANY, (1,), **_REGRESSION),
        Scenario("huber-10", "huber", _SOME, (10,), **_REGRESSION),
        Scenario("multinomial-1", "multinomial", _MANY, (1,)),
        Scenario("multinomial-10", "multinomial", _SOME, (10,)),
    )
}
QUICK = ("few-weights", "rows-3", "rare-1", "odd-units", "unequal", "squared-1", "huber-1", "multinomial-1")


def with_sizes(scenario: Scenario, sizes: Sequence[int] | None, cap: int | None) -> Scenario:
    """Other sizes and another cap, where users are unequal."""
    if len(scenario.sizes) == 1:
        return scenario
    return replace(scenario, sizes=tuple(sizes or scenario.sizes), cap=cap or scenario.cap)


def generate(loss: Loss, n_users: int, rows: int, d: int, seed: int) -> tuple[UserData, np.ndarray]:
    """Users with a taste of their own, rows of norm about 1 (at most 2), and the weights they were made by (norm 2).

    Of the logistic loss these weights are the best ones. Other losses have targets of the same kind.
    """
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(d).normal(size=d)
    truth *= 2 / np.linalg.norm(truth)
    taste = np.repeat(rng.normal(size=(n_users, d)), rows, axis=0)
    X = (math.sqrt(0.9) * rng.normal(size=taste.shape) + math.sqrt(0.1) * taste) / math.sqrt(d)
    X = (X / np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True) / 2)).astype(np.float32)
    scores = X @ truth
    noise = rng.random(len(X)) if loss.classifies else 0.5 * rng.standard_t(4, len(X))
    y = (noise < 1 / (1 + np.exp(-scores))).astype(float) if loss.classifies else np.clip(scores + noise, -5, 5)
    return UserData(X, y, np.arange(0, len(X) + 1, rows)), truth


def draw_users(scenario: Scenario, n_users: int, seed: int) -> UserData:
    """Users of a scenario, as float32 with the constant 1 last."""
    rng = np.random.default_rng(seed)
    sizes = np.resize(np.asarray(scenario.kept), n_users)
    rows, margins = _rows(scenario, sizes, rng)
    return UserData(rows, _targets(scenario, margins, rng), np.append(0, np.cumsum(sizes)))


def true_weights(scenario: Scenario) -> np.ndarray:
    """The minimiser of the expected loss: one row per output, in the units of the features."""
    standard = _standard_weights(scenario)
    scale, offset = _units(scenario)
    weights = standard.copy()
    weights[:, :-1] /= scale
    weights[:, -1] -= standard[:, :-1] @ np.full(scenario.features, offset)
    return weights


def _standard_weights(scenario: Scenario) -> np.ndarray:
    """For features of mean 0 and variance 1."""
    pattern = np.zeros(scenario.features + 1)
    pattern[:2] = scenario.signal, -scenario.signal / 2
    if scenario.loss == "multinomial":
        other = np.zeros_like(pattern)
        other[:2] = -scenario.signal / 2, scenario.signal
        return np.stack([pattern, other, np.zeros_like(pattern)])
    if scenario.loss == "logistic":
        pattern[-1] = _intercept(scenario)
    return pattern[None]


def _intercept(scenario: Scenario) -> float:
    """The constant that gives class 1 its base rate."""
    a, b = scenario.signal, -scenario.signal / 2
    spread = math.sqrt(a * a + b * b + 2 * a * b * scenario.correlation)
    nodes, masses = np.polynomial.hermite_e.hermegauss(60)

    def surplus(constant: float) -> float:
        return float(masses @ expit(constant + spread * nodes) / masses.sum()) - scenario.base_rate

    return float(brentq(surplus, -30, 30))


def _units(scenario: Scenario) -> tuple[np.ndarray, float]:
    """Standard deviations of features, small and large ones in turn, and means / standard deviations."""
    if not scenario.odd_units:
        return np.ones(scenario.features), 0.0
    rising = np.logspace(*_DECADES, scenario.features)
    mixed = np.empty_like(rising)
    mixed[::2], mixed[1::2] = rising[: (len(rising) + 1) // 2], rising[::-1][: len(rising) // 2]
    return mixed, _OFFSET


def _rows(scenario: Scenario, sizes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows in their units, and true predictions of them, one column per output."""
    d, shared = scenario.features, int(scenario.correlation > 0)
    z = rng.standard_normal((int(sizes.sum()), d + 1), np.float32)  # the last column is shared by features, or is 1
    if sizes.max() > 1:
        taste = rng.standard_normal((len(sizes), d + 1), np.float32)
        z *= math.sqrt(1 - _TASTE)
        z += np.repeat(math.sqrt(_TASTE) * taste, sizes, axis=0)
    if shared:
        z[:, :d] *= math.sqrt(1 - scenario.correlation)
        z[:, :d] += math.sqrt(scenario.correlation) * z[:, d:]
    z[:, d] = 1
    margins = z @ _standard_weights(scenario).T.astype(np.float32)
    scale, offset = _units(scenario)
    if scenario.odd_units:
        z[:, :d] = (z[:, :d] + offset) * scale
    return z, margins.astype(np.float64)


def _targets(scenario: Scenario, margins: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Classes, or true predictions with errors."""
    if scenario.loss == "multinomial":
        found = np.argmax(margins + rng.gumbel(size=margins.shape), axis=1)
    elif scenario.loss == "logistic":
        found = rng.random(len(margins)) < expit(margins[:, 0])
    else:
        found = margins[:, 0] + _errors(scenario, len(margins), rng)
    return np.asarray(found, np.float64)


def _errors(scenario: Scenario, n_rows: int, rng: np.random.Generator) -> np.ndarray:
    """Of regression, symmetric about 0."""
    drawn = rng.standard_t(_TAILS, n_rows) if scenario.loss == "huber" else rng.standard_normal(n_rows)
    return np.asarray(_NOISE * drawn)


@dataclass(frozen=True, eq=False)
class FreshRows:
    """Rows of users in no training set whose true predictions are known: models are scored without targets' chance.

    Expected losses given the rows are exact for classes (a Kullback-Leibler divergence) and for squared errors; for
    Huber's loss each error counts with both signs.
    """

    scenario: Scenario
    rows: np.ndarray = field(repr=False)
    margins: np.ndarray = field(repr=False)
    errors: np.ndarray = field(repr=False)

    def score(self, model: np.ndarray) -> dict[str, Any]:
        """Excess over the truth, slope and bins of calibration, mean prediction of the last class / its base rate."""
        truth = true_weights(self.scenario)
        gap = self.rows @ (model.reshape(truth.shape) - truth).T.astype(np.float32)
        margins = self.margins + gap
        if not LOSSES[self.scenario.loss].classifies:
            predicted, expected = margins[:, 0], self.margins[:, 0]
            slope, ratio = linear_slope(predicted, expected), None
        else:
            chances, guessed = softmax(_logits(self.margins), axis=1), softmax(_logits(margins), axis=1)
            predicted, expected = guessed[:, -1], chances[:, -1]
            ratio = float(predicted.mean() / expected.mean())
            slope = (
                logistic_slope(margins[:, 0], expected)
                if margins.shape[1] == 1
                else softmax_slope(margins[:_SLOPE_ROWS], chances[:_SLOPE_ROWS])
            )
        bins = calibration_bins(predicted, expected)
        return {"excess": self.excess(margins), "slope": slope, "mean_ratio": ratio, "bins": bins}

    def excess(self, margins: np.ndarray) -> float:
        """Mean over the rows of the expected loss of predictions above that of the true ones."""
        loss = LOSSES[self.scenario.loss]
        if loss.classifies:
            true, other = _logits(self.margins), _logits(margins)
            chances = softmax(true, axis=1)
            return float(
                np.mean(logsumexp(other, axis=1) - logsumexp(true, axis=1) - ((other - true) * chances).sum(1))
            )
        gap = margins[:, 0] - self.margins[:, 0]
        both = each_value(loss, gap, self.errors) + each_value(loss, gap, -self.errors)
        return float(np.mean(both / 2 - each_value(loss, np.zeros_like(gap), self.errors)))

    def nothing_learned(self) -> float:
        """Excess of the best constant prediction."""
        if LOSSES[self.scenario.loss].classifies:
            fractions = softmax(_logits(self.margins), axis=1).mean(axis=0)
            constant = np.log(fractions) if self.margins.shape[1] > 1 else np.log(fractions[1:] / fractions[0])
        else:
            constant = self.margins.mean(axis=0)
        return self.excess(np.broadcast_to(constant, self.margins.shape))


def _logits(margins: np.ndarray) -> np.ndarray:
    """One column per class."""
    return margins if margins.shape[1] > 1 else np.column_stack([np.zeros(len(margins)), margins])


@functools.lru_cache(maxsize=2)
def fresh_rows(scenario: Scenario) -> FreshRows:
    """The same for every cell of a scenario: one row per user."""
    rng = np.random.default_rng(_FRESH_SEED)
    rows, margins = _rows(scenario, np.ones(_FRESH_ROWS, np.int64), rng)
    return FreshRows(scenario, rows, margins, _errors(scenario, len(rows), rng))
