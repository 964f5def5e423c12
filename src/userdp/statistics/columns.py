"""What users contribute to what is learned of columns: where their numbers lie, and which levels they have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from userdp.statistics.gradients import PerUser, never_apart
from userdp.statistics.rows import Rows

_HALF = 2.0 ** np.arange(-20, 41)


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
