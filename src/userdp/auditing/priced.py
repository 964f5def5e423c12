"""Each mechanism with numbers that cost a whole budget, and most of it for what is attacked.

Composite mechanisms share their budget between a test and a mean. The test gets a small fraction here, and vectors are
many compared with the test's slack: an attack on the mean then finds nearly all of the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from userdp.paper.outlier_removal import OutlierRemoval, RadiusSearch, SampledOutlierRemoval
from userdp.paper.paper_outlier_removal import PaperOutlierRemoval, SampledPaperOutlierRemoval
from userdp.privacy.accounting import (
    REPLACE_ONE,
    AddedUserMultiplier,
    Budget,
    Cost,
    calibrate,
    gaussian_multiplier,
    subsampled_multiplier,
)
from userdp.privacy.clip import Clip
from userdp.privacy.vocabulary import Vocabulary

_Tested = TypeVar("_Tested", OutlierRemoval, SampledOutlierRemoval)
_Published = TypeVar("_Published", PaperOutlierRemoval, SampledPaperOutlierRemoval)
_TEST_FRACTION = 0.04  # of the Gaussian budget
_PURE_FRACTION = 0.1  # of epsilon
_FAILURE_FRACTION = 0.05  # of delta
_SLACKS = 40  # vectors / slack
_FALSE_ABORT = 0.02
_MANY = 10**7


def gaussian(budget: Budget, rounds: int = 1, other: Cost | None = None) -> float:
    """The noise multiplier of so many Gaussian releases."""
    return gaussian_multiplier(budget, rounds, other) * (1 + 1e-9)


def clip(budget: Budget, rounds: int = 1, acute: bool = False) -> Clip:
    return Clip(2, gaussian(budget, rounds), rounds, acute=acute)


def laplace_clip(budget: Budget, rounds: int = 1) -> Clip:
    return Clip(2, rounds / budget.epsilon * (1 + 1e-9), rounds, laplace=True)


def sampled_clip(budget: Budget) -> Clip:
    moved = 2 * budget.relative_noise  # a replacement is twice an addition
    multiplier = subsampled_multiplier(budget, 0.5, 1) / moved * (1 + 1e-6)
    return Clip(2, multiplier, sampling_probability=0.5, neighbours=budget.neighbours)


def _sized(make: Callable[[int], _Tested]) -> _Tested:
    """The record with as many vectors as its slack asks for; the slack does not depend on their number."""
    return make(max(50, _SLACKS * int(make(_MANY).slack)))


def split(multiplier: float) -> tuple[float, float]:
    """The multipliers of a mean and of a test that cost together what one release of this multiplier does."""
    return multiplier / math.sqrt(1 - _TEST_FRACTION), multiplier / math.sqrt(_TEST_FRACTION)


def outlier_removal(budget: Budget, rounds: int = 1) -> OutlierRemoval:
    test = (1 if rounds == 1 else 3) * _PURE_FRACTION * budget.epsilon  # AboveThreshold asks for far more vectors
    failure = _FAILURE_FRACTION * budget.delta
    multiplier = gaussian(budget, rounds, Cost(pure=(test,), failure=failure))
    return _sized(lambda size: OutlierRemoval(size, multiplier, test, failure, _FALSE_ABORT, rounds))


def gaussian_outlier_removal(budget: Budget, rounds: int = 1, radii: tuple[float, ...] | None = None) -> OutlierRemoval:
    """With tests by Gaussian noise; the radius is searched for among these, by two tests."""
    failure = _FAILURE_FRACTION * budget.delta
    mean, test = split(gaussian(budget, rounds, Cost(failure=failure)))
    test *= 1 if radii is None else math.sqrt(2)
    return _sized(
        lambda size: OutlierRemoval(size, mean, None, failure, _FALSE_ABORT, rounds, test_std=test, radii=radii)
    )


def sampled_outlier_removal(budget: Budget) -> SampledOutlierRemoval:
    failure, chance = _FAILURE_FRACTION * budget.delta, 0.5
    joint, test = split(subsampled_multiplier(budget, chance, 1, Cost(failure=failure)) * (1 + 1e-6))
    mean = AddedUserMultiplier(joint)
    return _sized(
        lambda size: SampledOutlierRemoval(round(size / 2 / chance), chance, mean, test, failure, _FALSE_ABORT)
    )


def paper_outlier_removal(budget: Budget, rounds: int = 1) -> PaperOutlierRemoval:
    """The printed mechanism, with the noise that its own analysis needs for the budget."""
    scale = (1 if rounds == 1 else 4) * 2 / (_PURE_FRACTION * budget.epsilon)
    selection = _FAILURE_FRACTION * budget.delta / rounds
    return _as_published(lambda size, std: PaperOutlierRemoval(size, scale, std, selection, rounds), 100, budget)


def sampled_paper_outlier_removal(budget: Budget) -> SampledPaperOutlierRemoval:
    """The same on samples of half of the users."""
    scale, selection = 8 / (_PURE_FRACTION * budget.epsilon), _FAILURE_FRACTION * budget.delta / 3
    return _as_published(lambda size, std: SampledPaperOutlierRemoval(size, 0.5, scale, std, selection), 400, budget)


def _as_published(make: Callable[[int, float], _Published], size: int, budget: Budget) -> _Published:
    """With at least this size and so large that its test hardly fails, and noise that costs the budget."""
    while make(size, 1.0).test_failure > _FAILURE_FRACTION * budget.delta:
        size *= 2
    unit = make(size, 1.0).sensitivity(1.0, 2**20)
    return make(size, unit * calibrate(lambda multiplier: make(size, multiplier * unit).cost, budget) * (1 + 1e-6))


def radius_search(budget: Budget, n_radii: int, target: int = 40) -> RadiusSearch:
    std = gaussian(budget) * math.sqrt(math.ceil(math.log2(n_radii)))
    return RadiusSearch(2 * target, tuple(2.0**k for k in range(n_radii)), target, std)


def vocabulary(budget: Budget, neighbours: str = REPLACE_ONE) -> Vocabulary:
    """Enough users for two levels to pass nearly always, so that nearly all of the budget is seen in their counts."""
    failure = _FAILURE_FRACTION * budget.delta
    multiplier = gaussian(budget, 1, Cost(failure=failure))
    kind: dict[str, Any] = {"levels_per_user": 1, "max_levels": 2, "n_words": 1, "neighbours": neighbours}
    size = 2 * math.ceil(Vocabulary(_MANY, multiplier, failure, **kind).threshold + 9 * multiplier)
    return Vocabulary(size, multiplier, failure, **kind)
