"""What columns leave to be learned privately: ranges, fills and levels, released before there are features.

One plan holds these releases and the solver's: it is certified and charged as a whole, before data is touched. How many
features there will be is public, since a private category has room for `max_levels`; features of levels that were not
found are 0 in all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from userdp.data.cells import texts_of_words
from userdp.data.columns import PRIVATE, Category, Column, Columns, Number, packed
from userdp.data.users import UserData
from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, epsilon_at, gaussian_multiplier
from userdp.privacy.curator import Curator
from userdp.privacy.mechanisms.clip import Clip
from userdp.privacy.mechanisms.vocabulary import Vocabulary
from userdp.privacy.plan import Plan, Step
from userdp.solvers.choose import Option
from userdp.vectors.columns import Histograms, OwnLevels

_RANGES, _LEVELS = "ranges of columns", "levels of {}"
_WORDS = Category.LONGEST // 6
_FAILURE_FRACTION = 0.1  # of delta, for all vocabularies
_TAIL = 0.005  # of what people have, beyond either end of a learned range
_CLEAR = 4.0  # standard deviations of noise above which a bin holds people
_LEAST_SHARE = 0.2  # of the users: what must be clear for ranges or levels to be worth asking for
_TRIES, _LESS = 60, 0.97


class Preparation:
    """A table's cells, grouped by user, of which some columns are to be learned privately before they are features.

    It stands for the users' data until then: number of users and features, which are public. `prepared` gives the data,
    and `learned` then the columns.
    """

    has_targets = True

    def __init__(
        self, columns: Columns, cells: Mapping[str, Any], frame: UserData, fit_intercept: bool, fraction: float
    ) -> None:
        order = frame.rows[:, 0].astype(np.int64)  # the rows' numbers
        self._cells = {name: cells[name][order] for name in columns}
        self._columns, self._frame, self._fraction = columns, frame, fraction
        self.learned, self.has_intercept = columns, fit_intercept
        self.n_users, self.insecure_seed, self.source = frame.n_users, frame.insecure_seed, frame.source
        self.width = len(columns.names)
        self.n_features = self.width + fit_intercept
        self._numbers = [name for name, column in columns.items() if isinstance(column, Number) and column.private]
        self._levels = [name for name, column in columns.items() if isinstance(column, Category) and column.private]

    @cached_property
    def asked(self) -> UserData:
        """The cells that are asked for: numbers, then the levels' packed texts."""
        parts = [self._cells[name][:, None] for name in self._numbers]
        rows = np.hstack(parts + [packed(self._cells[name]) for name in self._levels])
        return replace(self._frame, rows=np.ascontiguousarray(rows), has_targets=False)

    def planned(self, budget: Budget, choose: Callable[[Budget], Option]) -> tuple[Option, Plan]:
        """The solver's option for what is left of the budget, and the plan of everything, which is certified."""
        steps, left = self._steps(budget)
        self._check_worth(steps, budget)
        for _ in range(_TRIES):
            option = choose(left)
            plan = Plan(self.n_users, (*steps, *option.plan.certified.steps))
            try:
                plan.certify(budget)
            except BudgetExceeded:  # solvers with tests or samples compose a little worse than Gaussian noise does
                left = Budget(_LESS * left.epsilon, left.delta)
                continue
            return option, plan
        raise BudgetExceeded(
            "Expected a budget with room for this solver besides what columns learn: declare the columns, or lower "
            "columns_fraction. Nothing was spent."
        )

    def _steps(self, budget: Budget) -> tuple[list[Step], Budget]:
        """The releases about columns, for their part of the budget; and what is left of it."""
        n, fraction, asked = self.n_users, self._fraction, len(self._numbers) + len(self._levels)
        if budget.delta == 0:
            if self._levels:
                raise BudgetExceeded(
                    f"Expected delta > 0 for levels that are learned privately (column {self._levels[0]!r}): declare "
                    "them, or leave delta out. Nothing was spent."
                )
            ranges = Clip(n, (1 + 1e-9) / (fraction * budget.epsilon), block=4096, laplace=True)
            steps, left = [Step(_RANGES, 0, n, ranges)], Budget(budget.epsilon * (1 - fraction) * (1 - 1e-9), 0.0)
        else:
            failure = _FAILURE_FRACTION * budget.delta if self._levels else 0.0
            mu_squared = (1 - 1e-8) / gaussian_multiplier(budget, 1, Cost(failure=failure)) ** 2

            def multiplier(columns: int) -> float:
                return math.sqrt(asked / (fraction * mu_squared * columns))

            steps = []
            if self._numbers:
                ranges = Clip(n, multiplier(len(self._numbers)), block=4096, acute=True)
                steps.append(Step(_RANGES, 0, n, ranges))
            for name in self._levels:
                column = self._columns[name]
                assert isinstance(column, Category)
                sizes = (column.levels_per_user, column.max_levels, _WORDS)
                try:
                    vocabulary = Vocabulary(n, multiplier(1), failure / len(self._levels), *sizes)
                except ValueError:
                    raise BudgetExceeded(
                        f"Expected a larger epsilon or delta to learn {_LEVELS.format(name)} privately: there is no "
                        "threshold that hides what one user alone has. Declare them in the columns. Nothing was spent."
                    ) from None
                steps.append(Step(_LEVELS.format(name), 0, n, vocabulary))
            left = Budget(epsilon_at(Cost(gaussian=(1 - fraction) * mu_squared), budget.delta), budget.delta)
        return steps, left

    def _clear(self, step: Step) -> float:
        """The fraction of the users who must have something for it to be told from noise."""
        mechanism = step.mechanism
        if isinstance(mechanism, Vocabulary):
            return float(mechanism.threshold / self.n_users)
        return _CLEAR * self._noise(mechanism)

    def _check_worth(self, steps: list[Step], budget: Budget) -> None:
        """Refuse what noise would hide, before anything is spent."""
        worst = max(steps, key=self._clear)
        if (clear := self._clear(worst)) <= _LEAST_SHARE:
            return
        larger = (budget.epsilon * 1.1**power for power in range(1, _TRIES))
        enough = next((e for e in larger if self._worth_at(Budget(e, budget.delta))), None)
        remedy = "a larger epsilon" if enough is None else f"an epsilon of about {enough:.2g}"
        raise BudgetExceeded(
            f"Expected more than n_users={self.n_users} to learn {worst.label} privately: what fewer than "
            f"{min(clear, 1.0):.0%} of the users have would be lost in noise. Declare them in the columns, or have "
            f"more users, {remedy} or a larger columns_fraction. Nothing was spent."
        )

    def _worth_at(self, budget: Budget) -> bool:
        return max(map(self._clear, self._steps(budget)[0])) <= _LEAST_SHARE

    def _noise(self, ranges: Any) -> float:
        """Standard deviation of the fraction of users' cells in a bin."""
        c = len(self._numbers)
        return float(ranges.noise_std(self._radius(ranges), c * Histograms.N_BINS) * math.sqrt(c))

    def _radius(self, ranges: Any) -> float:
        return math.sqrt(len(self._numbers)) if ranges.laplace else 1.0  # of a vector, in the 1-norm or the 2-norm

    def prepared(self, curator: Curator, plan: Plan) -> UserData:
        """The users' features, after what columns need was released."""
        steps = {step.label: step.mechanism for step in plan.steps}
        found: dict[str, Column] = dict(self._columns)
        if self._numbers:
            mechanism = steps[_RANGES]
            c = len(self._numbers)
            released = curator.release(_RANGES, Histograms(c), self._radius(mechanism)) * math.sqrt(c)
            for name, masses in zip(self._numbers, released.reshape(c, -1), strict=True):
                found[name] = ranged(found[name], masses, self._noise(mechanism))
        first = len(self._numbers)
        for name in self._levels:
            column = found[name]
            assert isinstance(column, Category)
            statistic = OwnLevels(first, _WORDS, column.levels_per_user)
            released = curator.release(_LEVELS.format(name), statistic, 1.0).reshape(-1, 1 + _WORDS)
            found[name] = replace(column, levels=tuple(dict.fromkeys(texts_of_words(released[:, 1:]))))
            first += _WORDS
        self.learned = Columns(found)
        return self._data()

    def _data(self) -> UserData:
        features: Any = self.learned.encode_cells(self._cells)
        unused = self.width - features.shape[1]
        if isinstance(features, np.ndarray):
            features = np.pad(features, ((0, 0), (0, unused)))
        else:
            features.resize(features.shape[0], self.width)
        frame = self._frame
        owners = np.repeat(np.arange(frame.n_users), np.diff(frame.offsets))
        data = UserData.from_arrays(features, frame.targets, owners, fit_intercept=self.has_intercept)
        return replace(data, user_ids=frame.user_ids, insecure_seed=frame.insecure_seed)


def ranged(column: Column, masses: np.ndarray, noise_std: float) -> Number:
    """A number's range, and the median that fills it, of noisy fractions of cells in each bin.

    Bins that noise could have filled count as empty. Rounded to three digits, which costs nothing.
    """
    assert isinstance(column, Number)
    held = np.where(masses > _CLEAR * noise_std, masses, 0.0)
    if not held.any():
        held[np.argmax(masses)] = 1.0
    edges = np.concatenate([[2 * Histograms.EDGES[0]], Histograms.EDGES, [2 * Histograms.EDGES[-1]]])
    below = np.concatenate([[0.0], np.cumsum(held)]) / held.sum()
    low, fill, high = (_rounded(_quantile(at, below, edges)) for at in (_TAIL, 0.5, 1 - _TAIL))
    if column.range == PRIVATE:
        low = max(low, column.least)
        high = high if low < high else low + max(1.0, abs(low))
        column = replace(column, low=low, high=high, range=None)
    return replace(column, fill=fill) if column.fill == PRIVATE else column


def _quantile(at: float, below: np.ndarray, edges: np.ndarray) -> float:
    """Where so much lies below, each bin's mass being spread evenly over it."""
    place = min(int(np.searchsorted(below, at, side="right")) - 1, len(edges) - 2)
    mass = below[place + 1] - below[place]
    part = (at - below[place]) / mass if mass > 0 else 0.0
    return float(edges[place] + part * (edges[place + 1] - edges[place]))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}") if abs(value) > 1e-6 else 0.0
