"""What is left to be learned privately before a fit: ranges, fills and levels of columns, and the range of targets.

One plan holds these releases and the solver's: it is certified and charged as a whole, before data is touched. How many
features there will be is public, since a private category has room for `max_levels`; features of levels that were not
found are 0 in all rows. Targets are scaled to their range, so that nothing of the solver's plan depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from userdp.data.cells import texts_of_words
from userdp.data.columns import Category, Columns, Number, packed
from userdp.data.sparse import is_sparse, sparse_rows
from userdp.data.users import UserData
from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, epsilon_at, gaussian_multiplier
from userdp.privacy.clip import Clip
from userdp.privacy.curator import Curator
from userdp.privacy.plan import Plan, Step
from userdp.privacy.vocabulary import Vocabulary
from userdp.statistics.columns import Histograms, OwnLevels, range_of_targets, ranged

_LEVELS = "levels of {}"
_WORDS = Category.LONGEST // 6
_FAILURE_FRACTION = 0.1  # of delta, for all vocabularies
# Standard deviations above which a bin holds users, of Gaussian and of Laplace noise: of all 123 bins noise exceeds
# them with a chance of less than 0.001, and one that it does could be anywhere.
_CLEAR, _CLEAR_LAPLACE = 4.5, 8.0
_LEAST_SHARE = 0.2  # of the users: what must be clear for ranges or levels to be worth asking for
_TRIES = 60


class Preparation:
    """A first phase: some columns, or the range of targets, are learned privately before there is data to fit.

    `planned` gives its releases, `asked` what they are of, and `prepared` the data for the fit; `learned` and
    `target_range` are then there. With private columns the rows of `frame` are the numbers of the table's rows,
    otherwise they are the features; its targets are as they were passed if their range is to be learned, and `encoded`
    makes of that range what they become. `n_features` is how many there will be, the first `width` of them columns.
    """

    def __init__(
        self,
        columns: Columns | None,
        cells: Mapping[str, Any],
        frame: UserData,
        fit_intercept: bool,
        fraction: float,
        encoded: Callable[[tuple[float, float]], np.ndarray] | None = None,
    ) -> None:
        self._columns, self._frame, self._fraction, self._encoded = columns, frame, fraction, encoded
        self._cells: dict[str, Any] = {}
        self.width = frame.n_features - frame.has_intercept
        if columns is not None:
            order = frame.rows[:, 0].astype(np.int64)  # the rows' numbers
            self._cells = {name: cells[name][order] for name in columns}
            self.width = len(columns.names)
        self.target_range: tuple[float, float] | None = None
        self.learned, self.has_intercept, self.n_features = columns, fit_intercept, self.width + fit_intercept
        private = {name: column for name, column in (columns or {}).items() if column.private}
        self._numbers = [name for name, column in private.items() if isinstance(column, Number)]
        self._levels = {name: column for name, column in private.items() if isinstance(column, Category)}
        self._n_ranges = len(self._numbers) + (encoded is not None)

    @property
    def _ranges(self) -> str:
        """The label of the release about ranges."""
        if self._encoded is None:
            return "ranges of columns"
        return "ranges of columns and targets" if self._numbers else "range of targets"

    @property
    def asked(self) -> UserData:
        """The cells that are asked for: numbers, targets, then the levels' packed texts."""
        parts = [self._cells[name][:, None] for name in self._numbers]
        parts += [] if self._encoded is None else [self._frame.targets[:, None]]
        parts += [packed(self._cells[name]) for name in self._levels]
        rows = parts[0] if len(parts) == 1 else np.hstack(parts)
        return replace(self._frame, rows=np.ascontiguousarray(rows), has_targets=False, has_intercept=False)

    def planned(self, budget: Budget) -> tuple[list[Step], Budget]:
        """The releases, and what they leave of the budget; refuses what noise would hide, before anything is spent."""
        steps, left = self._steps(budget)
        worst = max(steps, key=self._clear)
        if (clear := self._clear(worst)) <= _LEAST_SHARE:
            return steps, left
        larger = (replace(budget, epsilon=budget.epsilon * 1.1**power) for power in range(1, _TRIES))
        enough = (one.epsilon for one in larger if max(map(self._clear, self._steps(one)[0])) <= _LEAST_SHARE)
        epsilon = next(enough, None)
        remedy = "a larger epsilon" if epsilon is None else f"an epsilon of about {epsilon:.2g}"
        declared = "them in the columns"
        if self._encoded is not None:
            declared = "target_range=(lowest, highest)" if self._columns is None else f"{declared} and target_range"
        raise BudgetExceeded(
            f"Expected more than n_users={self._frame.n_users} to learn {worst.label} privately: what fewer than "
            f"{min(clear, 1.0):.0%} of the users have would be lost in noise. Declare {declared}, or have "
            f"more users, {remedy} or a larger columns_fraction. Nothing was spent."
        )

    def _steps(self, budget: Budget) -> tuple[list[Step], Budget]:
        """The releases about columns and targets, for their part of the budget; and what is left of it."""
        n, fraction, asked = self._frame.n_users, self._fraction, self._n_ranges + len(self._levels)
        if budget.delta == 0:
            if self._levels:
                raise BudgetExceeded(
                    "Expected delta > 0 for levels that are learned privately (column "
                    f"{next(iter(self._levels))!r}): declare them, or leave delta out. Nothing was spent."
                )
            multiplier_of_all = (1 + 1e-9) / (fraction * budget.epsilon)
            ranges = Clip(n, multiplier_of_all, block=4096, laplace=True, neighbours=budget.neighbours)
            steps = [Step(self._ranges, 0, n, ranges)]
            left = replace(budget, epsilon=budget.epsilon * (1 - fraction) * (1 - 1e-9))
        else:
            failure = _FAILURE_FRACTION * budget.delta if self._levels else 0.0
            mu_squared = (1 - 1e-8) / gaussian_multiplier(budget, 1, Cost(failure=failure)) ** 2

            def multiplier(columns: int) -> float:
                return math.sqrt(asked / (fraction * mu_squared * columns))

            steps = []
            if self._n_ranges:
                noise = multiplier(self._n_ranges)
                ranges = Clip(n, noise, block=4096, acute=True, neighbours=budget.neighbours)
                steps.append(Step(self._ranges, 0, n, ranges))
            for name, column in self._levels.items():
                sizes = (column.levels_per_user, column.max_levels, _WORDS)
                try:
                    chance = failure / len(self._levels)
                    vocabulary = Vocabulary(n, multiplier(1), chance, *sizes, neighbours=budget.neighbours)
                except ValueError:
                    raise BudgetExceeded(
                        f"Expected a larger epsilon or delta to learn {_LEVELS.format(name)} privately: there is no "
                        "threshold that hides what one user alone has. Declare them in the columns. Nothing was spent."
                    ) from None
                steps.append(Step(_LEVELS.format(name), 0, n, vocabulary))
            left = replace(budget, epsilon=epsilon_at(Cost(gaussian=(1 - fraction) * mu_squared), budget.delta))
        return steps, left

    def _clear(self, step: Step) -> float:
        """The fraction of the users who must have something for it to be distinguished from noise."""
        mechanism = step.mechanism
        if isinstance(mechanism, Vocabulary):
            return float(mechanism.threshold / mechanism.n_vectors)
        return self._least(mechanism)

    def _least(self, ranges: Any) -> float:
        """The fraction of users' cells that a bin must hold to be clear of noise."""
        c = self._n_ranges
        noise = ranges.noise_std(self._radius(ranges), c * Histograms.N_BINS) * math.sqrt(c)
        return float((_CLEAR_LAPLACE if ranges.laplace else _CLEAR) * noise)

    def _radius(self, ranges: Any) -> float:
        return math.sqrt(self._n_ranges) if ranges.laplace else 1.0  # of a vector, in the 1-norm or the 2-norm

    def prepared(self, curator: Curator, plan: Plan) -> UserData:
        """The users' features and targets, after what they need was released."""
        steps = {step.label: step.mechanism for step in plan.steps}
        found, frame = dict(self._columns or {}), self._frame
        if self._n_ranges:
            mechanism, c = steps[self._ranges], self._n_ranges
            released = curator.release(self._ranges, Histograms(c), self._radius(mechanism)) * math.sqrt(c)
            masses = released.reshape(c, -1)
            for name, some in zip(self._numbers, masses, strict=False):
                found[name] = ranged(found[name], some, self._least(mechanism))
            if self._encoded is not None:
                self.target_range = range_of_targets(masses[-1], self._least(mechanism))
                frame = replace(frame, targets=self._encoded(self.target_range))
        first = self._n_ranges
        for name, column in self._levels.items():
            statistic = OwnLevels(first, _WORDS, column.levels_per_user)
            released = curator.release(_LEVELS.format(name), statistic, 1.0).reshape(-1, 1 + _WORDS)
            found[name] = replace(column, levels=tuple(dict.fromkeys(texts_of_words(released[:, 1:]))))
            first += _WORDS
        if self._columns is None:
            return frame
        self.learned = Columns(found)
        features: Any = self.learned.encode_cells(self._cells)
        unused = self.width - features.shape[1]
        if isinstance(features, np.ndarray):
            features = np.pad(features, ((0, 0), (0, unused)))
        else:
            features.resize(features.shape[0], self.width)
        rows = sparse_rows("features", features) if is_sparse(features) else np.ascontiguousarray(features)
        return replace(frame, rows=rows, has_intercept=self.has_intercept)
