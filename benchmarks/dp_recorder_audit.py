"""Another audit by somebody else: dp-recorder (Re:cord-play), run against whole fits, means, scores and searches.

    python -m pip install --no-deps git+https://github.com/ObliviousAI/dp-recorder@85d189ebd7ff81a52984708322ee2c2d8c479db4
    python -m pip install tqdm graphviz seaborn pandas
    python benchmarks/dp_recorder_audit.py

dp-recorder is not on PyPI, and asks for an older dp-accounting than userdp: hence --no-deps. Noise is recorded on one
data set and answered again on neighbours in which one user sends NaN, 1e308 or a thousand rows. dp-recorder compares
the draws' public numbers, what is seen of the result, and how far each query moved with the sensitivity that it was
noised for, and composes the Gaussian releases of a fit by itself. Three planted bugs have to be found out.

Paper: Cebere, Erb, Desfontaines, Bellet and Fitzsimons 2026, "Privacy in Theory, Bugs in Practice: Grey-Box Auditing of
Differential Privacy Libraries" (arXiv 2602.17454).
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_recorder.auditing import Auditor, audit_spec, ensure_equality

from userdp import LinearRegression, LogisticRegression, PrivateStandardScaler, private_mean
from userdp.evaluation import evaluate
from userdp.model_selection import PrivateSearchCV
from userdp.privacy.clip import Clip
from userdp.privacy.noise import SecureNoise

N_USERS, VICTIM, ROWS = 400, 137, 3
EPSILON, DELTA = 4.0, 1e-6
ROUNDING = 1e-5  # dp-accounting composes on a grid, and rounds up
FIT = {"epsilon": EPSILON, "delta": DELTA, "max_rows_per_user": ROWS, "allow_weak": True}

Data = tuple[np.ndarray, np.ndarray, np.ndarray]
Work = Callable[[Data], Any]
DRAWN = {name: getattr(SecureNoise, name) for name in ("gaussian", "laplace", "integer_laplace")}
CHOSEN = {name: getattr(SecureNoise, name) for name in ("permutation", "poisson_mask", "integers")}


def moved(order: int) -> Callable[[Any, Any], float]:
    return lambda query, other: float(np.linalg.norm(np.ravel(query) - np.ravel(other), order))


def gaussian_cost(sensitivity: float, multiplier: float) -> Any:
    return from_gaussian_mechanism(multiplier)


@contextlib.contextmanager
def instrumented() -> Iterator[None]:
    """Noise that dp-recorder sees."""

    def spec(kind: str, order: int, cost: Any = None) -> Any:
        return audit_spec(kind, "query", "sensitivity", moved(order), cost)

    @spec("gaussian", 2, gaussian_cost)
    def gaussian(query: Any, sensitivity: float, multiplier: float) -> Any:
        return DRAWN["gaussian"](SecureNoise(), query, sensitivity, multiplier)

    @spec("laplace", 1)
    def laplace(query: Any, sensitivity: float, epsilon: float) -> Any:
        return DRAWN["laplace"](SecureNoise(), query, sensitivity, epsilon)

    @spec("integer laplace", 1)
    def integer_laplace(query: int, scale: float, sensitivity: float = 1.0) -> Any:
        return DRAWN["integer_laplace"](SecureNoise(), query, scale)

    @spec("choice", 1, lambda **_: None)
    def chosen(name: str, numbers: Any, query: float = 0.0, sensitivity: float = 0.0) -> Any:
        return CHOSEN[name](SecureNoise(), *numbers)

    def method(draw: Any) -> Any:
        return lambda self, *numbers: np.copy(draw(*numbers))[()]

    drawn = {"gaussian": gaussian, "laplace": laplace, "integer_laplace": integer_laplace}
    choices = {name: lambda self, *numbers, name=name: np.copy(chosen(name, numbers)) for name in CHOSEN}
    with patch.multiple(SecureNoise, **{name: method(draw) for name, draw in drawn.items()}, **choices):
        yield


def users(hostile: str = "") -> Data:
    """Features, targets and ids; one user sends something else."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(N_USERS), ROWS)
    X = rng.uniform(-1, 1, (len(ids), 2))
    y = (rng.random(len(ids)) < 1 / (1 + np.exp(-2 * X[:, 0] + X[:, 1]))).astype(float)
    if not hostile:
        return X, y, ids
    value, n_rows = {"NaN": (math.nan, 1), "1e308": (1e308, 3), "1,000 rows": (100.0, 1000)}[hostile]
    first, last = np.searchsorted(ids, [VICTIM, VICTIM + 1])
    new = np.full((n_rows, 2), value), np.full(n_rows, value), np.full(n_rows, VICTIM)
    whole = [np.concatenate([old[:first], own, old[last:]]) for old, own in zip((X, y, ids), new, strict=True)]
    return whole[0], whole[1], whole[2]


def shown(model: Any) -> Any:
    return {name: value for name, value in model.to_dict().items() if name != "created"}, str(model.privacy_)


def fitted(**parameters: Any) -> Work:
    def work(data: Data) -> Any:
        return shown(LogisticRegression(**FIT | {"classes": [0, 1]} | parameters).fit(*data[:2], groups=data[2]))

    return work


def number(data: Data) -> Any:
    return shown(LinearRegression(**FIT, target_range=(0, 1)).fit(*data[:2], groups=data[2]))


def mean(data: Data) -> Any:
    return private_mean(data[0], data[2], EPSILON, DELTA, spread=(0.01, 100.0)).mean.tolist()


def scaler(data: Data) -> Any:
    found = PrivateStandardScaler(EPSILON, DELTA, low=-1, high=1).fit(data[0], groups=data[2])
    return found.mean_.tolist(), found.scale_.tolist()


def scores(data: Data) -> Any:
    X, y, ids = users()
    model = LogisticRegression(8.0, classes=[0, 1], insecure_seed=0).fit(X, y, groups=ids)
    return evaluate(model, data[0], data[1], data[2], epsilon=EPSILON, delta=DELTA).to_dict()


def search(data: Data) -> Any:
    model = LogisticRegression(classes=[0, 1], max_rows_per_user=ROWS, allow_weak=True)
    found = PrivateSearchCV(model, {"l2": [0.0, 1.0]}, EPSILON, DELTA).fit(*data[:2], groups=data[2])
    return found.cv_results_["mean_test_score"].tolist(), shown(found.best_estimator_)


def told_of_missing(data: Data) -> Any:
    return [fitted()(data), bool(np.isnan(data[0]).any())]


def centred(data: Data) -> Any:
    with np.errstate(all="ignore"):
        rows = data[0] - np.nanmean(data[0], axis=0)
    return fitted()((rows, data[1], data[2]))


CASES: dict[str, Work] = {
    "LogisticRegression": fitted(),
    "LogisticRegression, phased-sgd": fitted(solver="phased-sgd"),
    "LogisticRegression, delta=0": fitted(delta=0.0),
    "LogisticRegression, evaluate=0.3": fitted(evaluate=0.3),
    "LinearRegression": number,
    "private_mean": mean,
    "PrivateStandardScaler": scaler,
    "metrics.evaluate": scores,
    "PrivateSearchCV, split": search,
}
COMPOSED = ("LogisticRegression", "LinearRegression")  # all of whose releases are Gaussian, and of everybody


def replayed(work: Work, hostile: str) -> Auditor:
    """What dp-recorder knows after a run on users and one on a neighbour; raises what it finds."""
    auditor = Auditor()
    for data, replays in ((users(), False), (users(hostile), True)):
        if replays:
            auditor.set_replay()
        with auditor, instrumented(), warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            result = work(data)
            ensure_equality(result=json.dumps([result, [str(one.message) for one in heard]], default=str))
    auditor.validate_records()
    return auditor


def found(work: Work) -> tuple[str, Auditor | None]:
    """What it says first, "" if nothing; and the last auditor."""
    auditor = None
    for hostile in ("NaN", "1e308", "1,000 rows"):
        try:
            auditor = replayed(work, hostile)
        except Exception as complaint:
            return f"{hostile}: {str(complaint).splitlines()[0][:90]}", None
    return "", auditor


def main() -> int:
    as_it_should = True
    for name, work in CASES.items():
        complaint, auditor = found(work)
        as_it_should &= not complaint
        draws = 0 if auditor is None else sum(entry.kind != "EQ" for entry in auditor.log)
        line = f"{name:<38} {complaint or f'{draws} draws, nothing found'}"
        if auditor is not None and name in COMPOSED:
            auditor.compute_overall_pld()
            epsilon = auditor.get_overall_current_guarantee(DELTA)
            as_it_should &= epsilon <= EPSILON + ROUNDING
            line += f"; composed to epsilon {epsilon:.4f} of {EPSILON:g}"
        print(line, flush=True)
    sensitivity = Clip.sensitivity
    halved = patch.object(Clip, "sensitivity", lambda self, *numbers: sensitivity(self, *numbers) / 2)
    planted = {"a sensitivity halved": (fitted(), halved), "missing values told": (told_of_missing, None)}
    planted["features centred by everybody's mean"] = (centred, None)
    for name, (work, bug) in planted.items():
        with bug or contextlib.nullcontext():
            complaint, _ = found(work)
        as_it_should &= bool(complaint)
        print(f"planted: {name:<38} {complaint or 'NOT FOUND'}", flush=True)
    return 0 if as_it_should else 1


if __name__ == "__main__":
    sys.exit(main())
