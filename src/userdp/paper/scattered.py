"""Outlier removal of vectors that are elsewhere, in parts: small sums travel, and few vectors.

What a test and a filtered mean need of a concentrated batch is found by reductions, each a picklable function of one
part's vectors whose answers add up:

    centre    d + 1 whole numbers, to have a pivot; not asked for where an earlier mean is known
    distances how many vectors there are in each of 512 shells around the pivot
    settled   how many have neighbours enough, the total of those that are sure to have weight 1, and
              which ones are ambiguous

Where distances alone do not suffice, second moments of some shells come between: d (d + 1) / 2 numbers a shell, for the
bounds of `capped_counts`. Ambiguous vectors are gathered, and counted by every part. A batch that is not
concentrated, or has many ambiguous vectors, is gathered as a whole.

Guarantee: h-index and weights are those of the gathered vectors, exactly, and the mean is theirs up to rounding, for
any parts and any pivot. Proof: docs/neighbour-counts.md, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from userdp.engines.local import ComputedAnew, Scattered
from userdp.paper import capped_counts as bounds
from userdp.paper import concentration as c
from userdp.paper import neighbours as exact
from userdp.privacy.clip import ClippedTotal, grid_bits, mean_of
from userdp.privacy.mechanism import Integers, Vectors

# Performance only.
_BINS = 512  # shells up to a radius from the pivot; the last one is what is beyond
_SHELLS = 24  # with second moments, at most
_FEWEST_SHELLS = 4
_MOMENT_BYTES = 80_000, 410_000  # of all second moments of a part, at most: of few vectors, and of many
_WORTH_MOMENTS = 4  # times fewer bytes than all vectors have, there and back again
_INSIDE = 0.05  # of the vectors: the first shell with second moments
_MOST_AMBIGUOUS = 10_000  # of one part
_PAGE = 400_000  # bytes of ambiguous vectors that are counted in one question
_COLUMNS = 4096  # vectors that ambiguous ones are compared with at a time
_LARGEST = 2.0**20  # radii: what a vector is clipped to for the first centre


class Concentrated(NamedTuple):
    """What is known of a batch: `h_index` up to a cap, the sum of vectors of weight 1 about the pivot, the others."""

    h_index: int
    pivot: Vectors
    total: Vectors
    n_whole: int
    others: Vectors
    counts: c.Counts

    def mean(self, ramp: c.Ramp) -> Vectors:
        """The filtered mean: docs/proofs.md, section 5, for its rounding."""
        weights = ramp.weights(self.counts)
        kept = weights > 0
        total = self.total + weights[kept] @ (self.others[kept] - self.pivot)
        return np.asarray(self.pivot + total / (self.n_whole + weights[kept].sum()))


def concentrated(
    vectors: Scattered, radius: float, enough: int, whole: int, pivot: Vectors | None
) -> Concentrated | None:
    """The batch by reductions; None if it must be gathered.

    So it must if vectors were computed anew meanwhile: sums over different ones would be of no batch. Nothing is drawn
    here, and of what was learned before nothing is used.
    """
    try:
        for guess in (pivot, None) if pivot is not None else (None,):
            found = _about(vectors, radius, enough, whole, _centre(vectors, radius) if guess is None else guess)
            if found is not None:
                return found
    except ComputedAnew:
        pass
    return None


def _centre(vectors: Scattered, radius: float) -> Vectors:
    """The mean of the vectors, those beyond 2^20 radii shortened: a guess, which any other could replace."""
    bits, largest = grid_bits(len(vectors)), _LARGEST * radius
    total = np.sum(vectors.mapped(ClippedTotal(largest, bits, 1024)), axis=0)
    return mean_of(total, largest, bits, len(vectors))


def _about(vectors: Scattered, radius: float, enough: int, whole: int, pivot: Vectors) -> Concentrated | None:
    if not np.isfinite(pivot).all():
        return None
    bins = np.sum(vectors.mapped(Distances(radius, pivot)), axis=0)
    size = int(bins.sum())
    if size < enough:
        return None
    bits = grid_bits(len(vectors))
    marks, sizes, moments = _marks(radius), bins, None
    if _certain(bins, radius, len(pivot), enough) < enough:
        shells = _shells(bins, len(pivot), len(vectors) * 8 * len(pivot) // len(vectors.starts))
        if shells is None:
            return None
        marks, sizes = np.append(marks[shells - 1], np.inf), np.diff([0, *np.cumsum(bins)[shells - 1], size])
        moments = np.sum(vectors.mapped(Moments(radius, pivot, marks)), axis=0)
    answers = vectors.mapped(Settled(radius, pivot, marks, sizes, moments, np.array([enough, whole, bits])))
    ambiguous = _places(vectors, answers, len(pivot))
    if sum(int(answer[0]) for answer in answers) < enough or ambiguous is None:
        return None
    total = np.sum([answer[2 : 2 + len(pivot)] for answer in answers], axis=0) * (radius * 2.0**-bits)
    others = vectors.some(ambiguous) if len(ambiguous) > 0 else np.empty((0, len(pivot)))
    counts = np.zeros(len(others), dtype=np.int64)
    page = max(1, _PAGE // (8 * len(pivot)))
    for first in range(0, len(others), page):
        asked = Hits(radius, pivot, others[first : first + page])
        counts[first : first + page] = np.sum(vectors.mapped(asked), axis=0)
    return Concentrated(enough, pivot, total, sum(int(answer[1]) for answer in answers), others, counts)


def _places(vectors: Scattered, answers: list[Integers], dimension: int) -> Integers | None:
    """Which vectors are ambiguous; None if gathering all is less."""
    places: list[Integers] = []
    for start, answer in zip(vectors.starts, answers, strict=True):
        if answer[2 + dimension] > 0 and len(answer) == 3 + dimension:
            return None
        places.append(start + answer[3 + dimension :])
    found = np.concatenate(places)
    return found if len(found) * (2 + len(answers)) <= len(vectors) else None


def _marks(radius: float) -> Vectors:
    """Where shells end, in scaled units: up to the radius, and then all the rest."""
    return np.append(exact.ruler_of(radius).radius * np.arange(1, _BINS) / (_BINS - 1), np.inf)


def _certain(bins: Integers, radius: float, dimension: int, enough: int) -> int:
    """Of how many vectors the distances alone show that they have enough neighbours, at least."""
    near, marks = exact.ruler_of(radius).radius * (1 - exact.slack_of(dimension)), _marks(radius)
    sure = np.append(0, np.cumsum(bins))[np.searchsorted(marks, near - marks, side="right")]
    return int(bins[sure >= enough].sum())


def _shells(bins: Integers, dimension: int, n_bytes: int) -> Integers | None:
    """How many bins lie within each shell that gets second moments; None if these would be too large.

    n_bytes: of a part's vectors, which would else be gathered.
    """
    few, many = _MOMENT_BYTES
    room = min(max(few, n_bytes // _WORTH_MOMENTS), many)
    most = min(_SHELLS, room // (4 * (dimension + 1) * (dimension + 2)))
    if most < _FEWEST_SHELLS or dimension > bounds.MOST_COORDINATES:
        return None
    first = int(np.searchsorted(np.cumsum(bins), _INSIDE * bins.sum())) + 1
    return np.unique(np.linspace(min(first, _BINS - 1), _BINS - 1, most).astype(np.int64))


class _Measured(NamedTuple):
    """A part's vectors, which of them are finite, and upper bounds of their distances from the pivot."""

    rows: Vectors
    finite: Integers
    upper: Vectors


def _measured(vectors: Vectors, radius: float, pivot: Vectors) -> _Measured:
    rows = c.comparable(vectors, radius)
    norms = exact.squared_norms(rows, pivot, exact.ruler_of(radius).scale)
    upper = np.sqrt(norms) * (1 + exact.slack_of(len(pivot)))
    finite = np.flatnonzero(~np.isnan(upper))  # vectors that are like no other are NaN here
    return _Measured(rows, finite, upper[finite])


@dataclass(frozen=True)
class Distances:
    """How many vectors are in each shell around the pivot."""

    radius: float
    pivot: Vectors

    def __call__(self, vectors: Vectors) -> Integers:
        measured, marks = _measured(vectors, self.radius, self.pivot), _marks(self.radius)
        return np.bincount(np.searchsorted(marks, measured.upper), minlength=len(marks))


@dataclass(frozen=True)
class Moments:
    """Of each shell but the last the sum of its centred vectors, and of their squares as a matrix."""

    radius: float
    pivot: Vectors
    marks: Vectors

    def __call__(self, vectors: Vectors) -> Vectors:
        measured, dimension = _measured(vectors, self.radius, self.pivot), len(self.pivot)
        shells, above = np.searchsorted(self.marks, measured.upper), np.triu_indices(dimension)
        answer = np.zeros((len(self.marks) - 1, dimension + len(above[0])))
        for shell, line in enumerate(answer):
            centred = _centred(measured, np.flatnonzero(shells == shell), self.radius, self.pivot)
            moment = np.zeros((dimension, dimension))
            bounds.sums(centred, line[:dimension], moment)
            line[dimension:] = moment[above]
        return answer


def _centred(measured: _Measured, some: Integers, radius: float, pivot: Vectors) -> bounds.Singles:
    centred = np.empty((len(some), len(pivot)), dtype=np.float32)
    exact.centre(measured.rows, measured.finite[some], pivot, exact.ruler_of(radius).scale, centred)
    return centred


@dataclass(frozen=True)
class Settled:
    """How many vectors are sure to have `enough` neighbours, and `whole`; the latter's total; the numbers of the rest.

    asked: enough, whole, and bits of the total's grid; sizes: of the shells, of all parts; moments: their sums, if any.
    """

    radius: float
    pivot: Vectors
    marks: Vectors
    sizes: Integers
    moments: Vectors | None
    asked: Integers

    def __call__(self, vectors: Vectors) -> Integers:
        enough, whole, bits = self.asked
        measured = _measured(vectors, self.radius, self.pivot)
        distant = self._distant(measured, int(self.sizes.sum() - enough))
        size = self.sizes.sum()
        # Settled by distances or moments, a vector is within a radius of the pivot: docs/neighbour-counts.md.
        kept = (distant <= size - min(whole, enough)) & (measured.upper <= exact.ruler_of(self.radius).radius)
        away = (measured.rows[measured.finite[kept]] - self.pivot) * (1 / self.radius)
        total = (away * 2.0**bits).astype(np.int64).sum(axis=0)
        left = measured.finite[~kept]
        told = left if len(left) <= _MOST_AMBIGUOUS else left[:0]
        n_tested, n_kept = np.count_nonzero(distant <= size - enough), np.count_nonzero(kept)
        return np.concatenate([[n_tested, n_kept], total, [len(left)], told]).astype(np.int64)

    def _distant(self, measured: _Measured, most: int) -> Integers:
        """Bounds on how many vectors of all parts are not neighbours of each finite one of these."""
        ruler, slack = exact.ruler_of(self.radius), exact.slack_of(len(self.pivot))
        near, ends = ruler.radius * (1 - slack), np.append(0, np.cumsum(self.sizes))
        sure = ends[np.searchsorted(self.marks, near - measured.upper, side="right")]
        if self.moments is None:
            return np.asarray(ends[-1] - sure)
        moments = self._moments(self.moments)
        squares, tops = measured.upper**2, self.marks
        distant = bounds.most_distant(squares, sure, ends, tops**2, moments.steepest, near)
        asked = np.flatnonzero(distant.sum(axis=1) > most)
        for some in np.array_split(asked, -(-len(asked) // bounds.ASKED) or 1):
            own = _centred(measured, some, self.radius, self.pivot)
            closer = bounds.fewer_distant(own, measured.upper[some], tops, moments, near)
            distant[some] = np.minimum(distant[some], closer)
        return np.asarray(distant.sum(axis=1))

    def _moments(self, sums: Vectors) -> bounds.Moments:
        """As `capped_counts` has them; of the last shell nothing is known."""
        dimension, n_shells = len(self.pivot), len(self.marks)
        above = np.triu_indices(dimension)
        squares = np.zeros((n_shells, dimension, dimension))
        squares[:-1, above[0], above[1]] = sums[:, dimension:]
        squares[:-1, above[1], above[0]] = sums[:, dimension:]
        totals = np.vstack([sums[:, :dimension], np.zeros(dimension)])
        found = bounds.moments_of(self.sizes, totals, squares)
        found.traces[-1] = found.steepest[-1] = np.inf
        return found


@dataclass(frozen=True)
class Hits:
    """How many vectors are neighbours of each of the rows, as the canonical predicate decides."""

    radius: float
    pivot: Vectors
    rows: Vectors

    def __call__(self, vectors: Vectors) -> Integers:
        measured, asked = _measured(vectors, self.radius, self.pivot), _measured(self.rows, self.radius, self.pivot)
        ruler, slack = exact.ruler_of(self.radius), exact.slack_of(len(self.pivot))
        close = measured.upper <= ruler.radius * (1 - slack) - asked.upper.max(initial=0.0)
        others, n_asked = measured.rows[measured.finite[~close]], len(self.rows)
        norms = [exact.squared_norms(rows, self.pivot, ruler.scale) for rows in (self.rows, others)]
        by_norm = [np.argsort(each) for each in norms]  # as tiles have them: the asked ones first, then the others
        order = np.concatenate([by_norm[0], n_asked + by_norm[1]])
        together = np.concatenate([self.rows, others])
        tiles = exact.Tiles(together, order, np.concatenate(norms)[order], self.pivot, ruler)
        hits = np.full(n_asked, np.count_nonzero(close))
        for first in range(n_asked, len(together), _COLUMNS):
            hits[by_norm[0]] += tiles.decide(0, n_asked, first, min(first + _COLUMNS, len(together)))[0]
        return hits
