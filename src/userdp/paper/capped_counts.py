"""Neighbour counts up to a cap: all that a test and its weights need to know of a concentrated batch.

    min(h_j, enough),  h_j = #{i : |x_j - x_i| <= r}

Most vectors of a concentrated batch have more neighbours than are asked for, and that can be proven without looking at
pairs: by distances to a pivot, and by bounds on how many vectors can point away from x_j. The others are counted by
the canonical predicate of `neighbours.py`. Proofs: research/docs/neighbour-counts.md, section 4.

Known limit: results do not depend on the shortcuts, but run time does depend on the data (a timing channel).
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from userdp.paper import neighbours as exact
from userdp.paper.neighbours import Counts, Floats

Singles = NDArray[np.float32]

# Performance only.
_SMALL = 2**27  # pairs times coordinates: below, all pairs are looked at
MOST_COORDINATES = 128  # what errors of moments are bounded for; above, a matrix product is faster than the loop
_MOST_PAIRS = 0.25  # of all: above, looking at each pair once is faster
_SHELLS = 24  # of the vectors by distance from the pivot, up to 1.2 radii
_FEWEST_COLUMNS = 1024  # looked at together: shells are joined
_FEW_ROWS, _JOINED = 32, 8  # so few rows look at more columns together, by a matrix product
_TILE = 2**21  # pairs whose inner products are held at once, by each thread
ASKED = 1024  # rows whose spread in all shells is computed at once
_CHUNK = 512  # rows of a product for the second moment: its rounding grows with them
_MOMENT_ERROR = 2e-4  # of the trace: bound on the error of a shell's largest eigenvalue, and of a row's spread


class _Sorted(NamedTuple):
    """Finite vectors by distance from the pivot: their numbers, squared norms, bounds of norms, float32 copies."""

    vectors: Floats
    order: NDArray[np.intp]
    norms: Floats
    upper: Floats
    lower: Floats
    centred: Singles
    pivot: Floats
    ruler: exact.Ruler
    near: float
    far: float


class Moments(NamedTuple):
    """Of each shell's centred vectors: how many, their mean, squares about it (as a matrix), squares about 0."""

    sizes: Counts
    means: Floats
    spreads: Floats
    traces: Floats
    steepest: Floats


def capped_counts(
    vectors: Floats, radius: float, enough: int, pivot: Floats | None = None, whole: int | None = None
) -> Counts:
    """min(h_j, enough) for the neighbour counts h_j of `neighbour_counts`; the pivot is a guess of the centre.

    With `whole` <= enough: numbers c_j of which the h-index is that of min(h_j, enough), and min(c_j, whole) is
    min(h_j, whole). That is what a test and weights need, if the weight is 1 from `whole` on, and is found sooner.

    Guarantee: the same as from np.minimum(neighbour_counts(vectors, radius), enough), for every input and every pivot,
    so replacing one row changes every other min(c_j, whole), and the h-index, by at most one.
    """
    size, dimension = vectors.shape
    if size * size * dimension > _SMALL and dimension <= MOST_COORDINATES:
        with np.errstate(all="ignore"):
            counts = _capped(np.ascontiguousarray(vectors), radius, enough, enough if whole is None else whole, pivot)
        if counts is not None:
            return counts
    return np.minimum(exact.neighbour_counts(vectors, radius), enough)


def least_deficit(vectors: Floats, radius: float, most: int) -> int:
    """A number up to `most` by which the h-index of the neighbour counts certainly falls short of all K vectors.

    The largest g found such that g vectors have at least g others that are no neighbours; then Q <= K - g. Only the
    outermost vectors are asked, and no further than tells whether `most` can be reached.

    Guarantee: Q <= K - (what is returned), for every input. What is returned may be less than there is to find.
    """
    size, dimension = vectors.shape
    if size * size * dimension <= _SMALL or dimension > MOST_COORDINATES or not 0 < most <= size:
        return 0
    with np.errstate(all="ignore"), ThreadPoolExecutor() as pool:
        batch = _sorted(np.ascontiguousarray(vectors), radius, None)
        return 0 if batch is None else _deficit(_centred(batch), most, size, pool)


def _deficit(batch: _Sorted, most: int, size: int, pool: ThreadPoolExecutor) -> int:
    """`least_deficit` of `size` vectors, of which those that are not finite are distant from all others."""
    count = len(batch.order)
    rows = np.arange(max(0, count - 2 * most), count)
    distant, last = np.full(len(rows), size - count, dtype=np.int64), count
    while True:
        first = max(0, last - _FEWEST_COLUMNS)
        asked = np.flatnonzero(distant < most)
        distant[asked] += (last - first) - _hits(batch, rows[asked], first, last, pool)
        # Vectors that are not finite have all others distant.
        falling = np.append(np.full(size - count, size - 1), np.sort(distant)[::-1])
        found = min(most, int(np.count_nonzero(falling >= np.arange(1, len(falling) + 1))))
        reachable = np.count_nonzero(distant * (count / (count - first)) >= most) + size - count >= most
        if found == most or not reachable or first == 0:  # inner vectors are distant from fewer
            return found
        last = first


def _capped(vectors: Floats, radius: float, enough: int, whole: int, pivot: Floats | None) -> Counts | None:
    """Counts; None if most pairs would have to be looked at, or distances overflow."""
    batch = _sorted(vectors, radius, pivot)
    if batch is None:
        return None
    counts = np.full(len(vectors), min(1, enough), dtype=np.int64)
    size, near = len(batch.order), batch.near
    tested, weighed = min(enough, size), min(whole, enough, size)
    sure = np.searchsorted(
        batch.upper, near - batch.upper, side="right"
    )  # how many, the innermost, are certainly close
    start = int(sure[-1])  # those before are close to all
    inner = int(np.count_nonzero(sure >= tested))
    counts[batch.order[:inner]] = tested
    if inner == size:
        return counts
    batch, sure = _centred(batch, start), sure[start:] - start
    edges = _edges(batch.upper, batch.ruler.radius)
    rows = np.arange(inner - start, size - start)
    ends, moments = np.array(edges), _shell_moments(batch, edges)
    tops = batch.upper[ends[1:] - 1]
    distant = most_distant(batch.upper[rows] ** 2, sure[rows], ends, tops**2, moments.steepest, near)
    total = distant.sum(axis=1)

    def unsettled() -> NDArray[np.intp]:
        """Rows that may lack neighbours for the test or, once enough of the others pass it, for a whole weight."""
        lacking = np.flatnonzero(total > size - tested)
        return lacking if size - len(lacking) < enough else lacking[total[lacking] > size - weighed]

    asked = unsettled()
    for some in np.array_split(asked, -(-len(asked) // ASKED) or 1):
        closer = fewer_distant(batch.centred[rows[some]], batch.upper[rows[some]], tops, moments, near)
        distant[some] = np.minimum(distant[some], closer)
    total = distant.sum(axis=1)
    asked = unsettled()
    if float(np.sum(size - start - sure[rows[asked]])) > _MOST_PAIRS * float(size) ** 2:
        return None
    stop = len(edges) - 1
    with ThreadPoolExecutor() as pool:
        while stop > 0 and len(asked) > 0:  # from the outside: few vectors, of which the bound is loosest
            shell, columns = stop - 1, _FEWEST_COLUMNS * (1 if len(asked) > _FEW_ROWS else _JOINED)
            while shell > 0 and edges[stop] - edges[shell] < columns:
                shell -= 1
            first, last = edges[shell], edges[stop]
            some = asked[sure[rows[asked]] < last]
            hits = _hits(batch, rows[some], first, last, pool)
            total[some] += (last - first) - hits - distant[some, shell:stop].sum(axis=1)
            asked, stop = unsettled(), shell
    counts[batch.order[rows]] = np.where(total > size - tested, weighed, tested)
    counts[batch.order[rows[asked]]] = size - total[asked]
    return counts


def _sorted(vectors: Floats, radius: float, pivot: Floats | None) -> _Sorted | None:
    """The finite vectors by distance from the pivot, not centred yet; None if there are none, or distances overflow."""
    ruler, slack = exact.ruler_of(radius), exact.slack_of(vectors.shape[1])
    measured = _norms(vectors, pivot, ruler)
    if measured is None:
        return None
    norms, pivot = measured
    order = np.argsort(norms)  # NaN last, and infinity before it
    finite = int(np.searchsorted(norms[order], math.inf))
    if finite == 0 or np.isfinite(vectors[order[finite:]]).all(axis=1).any():
        return None  # The distance of a finite vector has overflowed.
    order = order[:finite]
    norms = norms[order]
    distances, near, far = np.sqrt(norms), ruler.radius * (1 - slack), ruler.radius * (1 + slack)
    bounds = distances * (1 + slack), distances * (1 - slack)
    return _Sorted(vectors, order, norms, *bounds, np.zeros((0, 0), np.float32), pivot, ruler, near, far)


def _centred(batch: _Sorted, start: int = 0) -> _Sorted:
    """The vectors from a number on, with their float32 copies."""
    order = batch.order[start:]
    centred = np.empty((len(order), batch.vectors.shape[1]), dtype=np.float32)
    exact.centre(batch.vectors, order, batch.pivot, batch.ruler.scale, centred)
    sliced = {name: getattr(batch, name)[start:] for name in ("norms", "upper", "lower")}
    return batch._replace(order=order, centred=centred, **sliced)


def _norms(vectors: Floats, pivot: Floats | None, ruler: exact.Ruler) -> tuple[Floats, Floats] | None:
    """Squared scaled distances from a pivot, and the pivot: the given one, or the centre of the inner half."""
    if pivot is not None and pivot.shape == vectors.shape[1:] and np.isfinite(pivot).all():
        return exact.squared_norms(vectors, pivot, ruler.scale), pivot
    pivot = exact.mean(vectors, np.ones(len(vectors)))
    if not np.isfinite(pivot).all():
        pivot = exact.finite_mean(vectors[np.isfinite(vectors).all(axis=1)])
    norms = exact.squared_norms(vectors, pivot, ruler.scale)
    finite = np.flatnonzero(np.isfinite(norms))
    if len(finite) == 0:
        return None
    half = finite[np.argpartition(norms[finite], (len(finite) - 1) // 2)[: (len(finite) + 1) // 2]]
    pivot = exact.finite_mean(vectors[half])
    return exact.squared_norms(vectors, pivot, ruler.scale), pivot


def _edges(upper: Floats, radius: float) -> list[int]:
    """Where shells of the sorted vectors begin and end."""
    outside = [3 * radius, math.inf]
    marks = [*np.linspace(upper[0], max(upper[0], min(upper[-1], 1.2 * radius)), _SHELLS + 1), *outside]
    return sorted({0, len(upper), *map(int, np.searchsorted(upper, marks, side="right"))})


def _shell_moments(batch: _Sorted, edges: list[int]) -> Moments:
    """Moments of the shells."""
    dimension, n_shells = batch.centred.shape[1], len(edges) - 1
    totals, squares = np.zeros((n_shells, dimension)), np.zeros((n_shells, dimension, dimension))
    for shell, (first, last) in enumerate(pairwise(edges)):
        sums(batch.centred[first:last], totals[shell], squares[shell])
    return moments_of(np.diff(edges), totals, squares)


def moments_of(sizes: Counts, totals: Floats, squares: Floats) -> Moments:
    """Moments from the sums of y_k and y_k y_k^T; `steepest` is at least the largest eigenvalue of that of t_k t_k^T.

    Both sums are used up.
    """
    traces, steepest = np.full(len(sizes), math.inf), np.full(len(sizes), math.inf)
    for shell, (size, moment) in enumerate(zip(sizes, squares, strict=True)):
        trace = float(np.trace(moment))
        if trace < 1e30:
            traces[shell] = trace
            steepest[shell] = 1.001 * float(np.linalg.eigvalsh(moment)[-1]) + _MOMENT_ERROR * trace + 1e-30
        totals[shell] /= max(1, size)
        moment -= size * np.outer(totals[shell], totals[shell])
    return Moments(sizes, totals, squares, traces, steepest)


def fewer_distant(own: Singles, upper: Floats, tops: Floats, moments: Moments, near: float) -> Counts:
    """For each row and shell, a closer bound on how many of the shell are not neighbours, from its own direction.

    The inner products z_k = <t_j, t_k> of N vectors have mean m and sum of squares q about it. By Cantelli's inequality
    at most N q / (q + N (tau + m)^2) of them are below -tau, if tau + m > 0.
    """
    n_shells, dimension = moments.means.shape
    lengths = upper[:, None]
    tau = ((near * near - lengths**2) - tops**2) / 2
    across = moments.spreads.transpose(1, 0, 2).reshape(dimension, -1).astype(np.float32)
    spread = np.einsum("jsl,jl->js", (own @ across).reshape(len(own), n_shells, dimension), own).astype(np.float64)
    squares = 1.002 * np.maximum(spread, 0) + _MOMENT_ERROR * moments.traces * lengths**2 + 1e-30
    beyond = tau + own @ moments.means.astype(np.float32).T - 1e-5 * lengths * tops
    bound = moments.sizes * (squares / (squares + moments.sizes * beyond**2)) * (1 + 1e-9)
    usable = (tau > 0) & (beyond > 0) & (bound < moments.sizes)
    return np.where(usable, bound, moments.sizes).astype(np.int64)


@np.errstate(all="ignore")
def most_distant(
    squares: Floats, sure: NDArray[np.intp], edges: NDArray[np.intp], tops: Floats, steepest: Floats, near: float
) -> Counts:
    """For each row and shell, a bound on how many of the shell are not neighbours.

    A vector t_k of the shell that is not close has <t_j, t_k> < -tau with 2 tau = r^2 - |t_j|^2 - max |t_k|^2; by
    Markov's inequality there are at most sum_k <t_j, t_k>^2 / tau^2 <= lambda |t_j|^2 / tau^2 of them, lambda the
    largest eigenvalue of sum_k t_k t_k^T.
    """
    distant = np.empty((len(squares), len(steepest)), dtype=np.int64)
    for shell, (first, last) in enumerate(pairwise(edges)):
        unsure = np.maximum(last - np.maximum(first, sure), 0)
        tau = ((near * near - squares) - tops[shell]) / 2
        bound = steepest[shell] * squares / (tau * tau)
        distant[:, shell] = np.where((tau > 0) & (bound < unsure), bound, unsure)
    return distant


def _hits(batch: _Sorted, rows: NDArray[np.intp], first: int, last: int, pool: ThreadPoolExecutor) -> Counts:
    """How many of the sorted vectors first..last-1 are neighbours of each row, as the canonical predicate decides."""
    hits = np.zeros(len(rows), dtype=np.int64)
    apart = (batch.lower[rows] > batch.far + batch.upper[last - 1]) | (
        batch.lower[first] > batch.far + batch.upper[rows]
    )
    asked = np.flatnonzero(~apart)
    scale, limit = batch.ruler.scale, batch.ruler.limit
    columns = batch.order[first:last]
    width = exact.band(batch.norms[rows], batch.norms[last - 1], batch.centred.shape[1], limit, single=True)
    narrow = width[asked] <= exact.BAND_FRACTION * limit
    middle, bias = (batch.norms[some] / 2 - limit / 4 for some in (rows, slice(first, last)))
    surely, maybe = (middle + width).astype(np.float32), (middle - width).astype(np.float32)

    def by_matrix(part: NDArray[np.intp]) -> None:
        with np.errstate(all="ignore"):  # a setting of each thread's own
            products = batch.centred[rows[part]] @ batch.centred[first:last].T
            bounds = surely[part], maybe[part], bias.astype(np.float32), products.size
            found = exact.tally(products, *bounds, batch.vectors, batch.order[rows[part]], columns, scale, limit)
        assert found is not None  # no tile holds more pairs than there are
        hits[part] = found[0]

    def directly(part: NDArray[np.intp]) -> None:
        hits[part] = exact.count_directly(batch.vectors, batch.order[rows[part]], columns, scale, limit)[0]

    most = max(1, _TILE // max(1, len(columns)))
    for count, some in ((by_matrix, asked[narrow]), (directly, asked[~narrow])):
        if len(some) > 0:
            n_parts = max(-(-len(some) // most), min(len(some), os.cpu_count() or 1))
            list(pool.map(count, np.array_split(some, n_parts)))
    return hits


def sums(rows: Singles, total: Floats, moment: Floats) -> None:
    """Add sum_k y_k and sum_k y_k y_k^T, this in products of few rows, whose rounding is small."""
    total += rows.sum(axis=0, dtype=np.float64)
    chunk = max(1, min(_CHUNK, 2**18 // (rows.shape[1] * rows.shape[1])))
    for first in range(0, len(rows), chunk):
        part = rows[first : first + chunk]
        moment += part.T @ part
