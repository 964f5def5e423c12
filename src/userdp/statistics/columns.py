"""What users contribute to what is learned of columns: where their numbers lie, and which levels they have.

And what is made of released bins: ranges of columns and of targets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from userdp.data.columns import PRIVATE, Column, Number
from userdp.statistics.gradients import PerUser, never_apart
from userdp.statistics.rows import Rows

_HALF = 2.0 ** np.arange(-20, 41)
_TAIL = 0.005  # of what users have, beyond either end of a learned range
_FARTHER = 2.0  # by this factor a range of targets ends beyond the last bin that is clear: noise hides long tails


@never_apart
@dataclass(frozen=True)
class Histograms(PerUser):
    """Which bins each user's numbers are in: of each of the first `n_columns` columns the fraction of its cells a bin.

    All over sqrt(n_columns), so that vectors have length at most 1. Bins lie between the powers of 2 of `EDGES`, of
    either sign; missing cells count nowhere, and a user without others in a column has zeros there.

    Guarantee: vector j is a function of user users[j]'s rows; entries are >= 0, so that no two vectors point apart.
    """

    EDGES: ClassVar[np.ndarray] = np.concatenate([-_HALF[::-1], _HALF])
    N_BINS: ClassVar[int] = 2 * len(_HALF) + 1
    n_columns: int

    def of_users(self, rows: Rows) -> np.ndarray:
        n_users, owners = len(rows.users), rows.user_places
        out = np.empty((n_users, self.n_columns, self.N_BINS))
        for column in range(self.n_columns):
            cells = rows.held[:, column]
            known = ~np.isnan(cells)
            places = owners[known] * self.N_BINS + np.searchsorted(self.EDGES, cells[known], side="right")
            counts = np.bincount(places, minlength=n_users * self.N_BINS).reshape(n_users, self.N_BINS)
            out[:, column] = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        return np.asarray(out.reshape(n_users, -1) / math.sqrt(self.n_columns))


@dataclass(frozen=True)
class OwnLevels(PerUser):
    """The levels that a user has most often, at most `most`, as the packed texts that columns `first` .. hold them in.

    A level is `n_words` numbers. The most frequent comes first, of equally frequent ones the first by its bytes; NaN
    fills up. Rows with a NaN there have no level.

    Guarantee: vector j is a function of user users[j]'s rows. What a level is to others does not matter: levels are
    compared with each other only.
    """

    first: int
    n_words: int
    most: int

    def of_users(self, rows: Rows) -> np.ndarray:
        held = rows.held[:, self.first : self.first + self.n_words] + 0.0  # -0 is 0
        known = ~np.isnan(held).any(axis=1)
        owners, held = rows.user_places[known], np.ascontiguousarray(held[known])
        out = np.full((len(rows.users), self.most, self.n_words), np.nan)
        if len(held) == 0:
            return out.reshape(len(rows.users), -1)
        whole = held.view(np.dtype((np.void, held.dtype.itemsize * self.n_words)))[:, 0]
        distinct, codes = np.unique(whole, return_inverse=True)
        pairs, counts = np.unique(owners * len(distinct) + codes, return_counts=True)
        owner, code = np.divmod(pairs, len(distinct))
        order = np.lexsort((code, -counts, owner))
        owner, code = owner[order], code[order]
        rank = np.arange(len(owner)) - np.searchsorted(owner, owner)  # among the owner's
        kept = rank < self.most
        out[owner[kept], rank[kept]] = distinct.view(held.dtype).reshape(-1, self.n_words)[code[kept]]
        return out.reshape(len(rows.users), -1)


# Where bins begin and end, the outermost ones too.
_EDGES = np.concatenate([[2 * Histograms.EDGES[0]], Histograms.EDGES, [2 * Histograms.EDGES[-1]]])


def ranged(column: Column, masses: np.ndarray, least: float) -> Number:
    """A number's range, and the median that fills it, of noisy fractions of cells in each bin.

    Bins that noise could have filled count as empty. Rounded to three digits, which costs nothing.
    """
    assert isinstance(column, Number)
    held = _held(masses, least)
    below = np.concatenate([[0.0], np.cumsum(held)]) / held.sum()
    low, fill, high = (_rounded(float(end)) for end in np.interp([_TAIL, 0.5, 1 - _TAIL], below, _EDGES))
    if column.range == PRIVATE:
        low = max(low, column.least)
        high = high if low < high else low + max(1.0, abs(low))
        column = replace(column, low=low, high=high, range=None)
    return replace(column, fill=fill) if column.fill == PRIVATE else column


def range_of_targets(masses: np.ndarray, least: float) -> tuple[float, float]:
    """The range of targets, of noisy fractions of them in each bin: all bins that are clear of noise, and `_FARTHER`.

    Wider than that of a column, since targets beyond are cut off, and long tails decide means: a range that is some
    times too wide costs little. It ends at 0 where that is the last bin.
    """
    held = np.flatnonzero(_held(masses, least))
    low, high = _EDGES[held[0]], _EDGES[held[-1] + 1]
    low, high = low * _FARTHER if low < 0 else low / _FARTHER, high * _FARTHER if high > 0 else high / _FARTHER
    smallest = 2 * _FARTHER * 2.0**-20
    low, high = (0.0 if abs(end) < smallest else _rounded(float(end)) for end in (low, high))
    return (low, high) if low < high else (low, low + max(1.0, abs(low)))


def _held(masses: np.ndarray, least: float) -> np.ndarray:
    """Masses of the bins that noise could not have filled; of the likeliest one, if it could have filled all."""
    held = np.where(masses > least, masses, 0.0)
    if not held.any():
        held[np.argmax(masses)] = 1.0
    return held


def _rounded(value: float) -> float:
    return float(f"{value:.3g}") if abs(value) > 1e-6 else 0.0
