"""Exact neighbour counts: how many vectors lie within a radius of each vector.

    h_j = #{i : |x_j - x_i| <= r}, the vector itself counted.

The counts feed a private test (see `userdp.privacy`), so a pair must get the same answer wherever and beside
whatever other users it is computed: a tiled GEMM alone can flip ties. Every pair is therefore decided as one
canonical predicate would decide it. Shortcuts answer only when a rounding-error bound proves that the predicate
agrees; `research/docs/neighbour-counts.md` has the proofs, and names the constants below.

Known limit: counts do not depend on the shortcuts, but run time does depend on the data (a timing channel).
"""

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["neighbour_counts"]

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

U64, U32 = 2.0**-53, 2.0**-24  # Unit roundoffs of float64 and float32.
BAND_FRACTION = 1 / 64  # A GEMM is used only where its error band is at most this fraction of the squared radius.
# The rest cannot alter a count, only its cost.
CROWD_FRACTION = 1 / 16  # A tile with more than this fraction of its pairs in the band is computed canonically.
ENTRIES = 2**15  # Numbers of an array that is used again at once: they fit a cache.
SEGMENT = 512  # Columns that are compared with a row at once.
TALLIED = 64  # Rows of a tile that are tallied at once; fewer than 128.


class Ruler(NamedTuple):
    """The radius in units of a power of two chosen from the radius alone, so that its square is safe.

    scale = 2^-clip(e, -1000, 1000) with r = f 2^e, 1/2 <= f < 1;  radius = r scale (exact);  limit = fl(radius^2).
    """

    scale: float
    radius: float
    limit: float


class _Blocks(NamedTuple):
    """Tile shape, and the work (pairs times coordinates) below which a plain loop is fastest: performance only."""

    rows: int = 512
    columns: int = 4096
    direct: int = 2**20


def neighbour_counts(vectors: Floats, radius: float) -> Counts:
    """Count, for each row of `vectors`, the rows within `radius` of it, itself included.

    h_j = #{i : |x_j - x_i| <= r}. Rows i and j are neighbours when, with the power of two s of `Ruler`,
    fl(sum_l ((x_jl - x_il) s)^2) <= fl((r s)^2), the sum taken left to right in float64 without fused
    operations. A row with a NaN or infinite coordinate is nobody's neighbour and counts itself alone.

    Guarantee: the counts equal those of the quadratic loop over this predicate, for every input, block size and
    number of threads. The predicate is symmetric and sees one pair only, so replacing one row changes the count
    of every other row by at most one.

    >>> neighbour_counts(np.array([[0.0], [1.0], [3.0], [np.nan]]), radius=1.0)
    array([2, 2, 1, 1])
    """
    if not isinstance(vectors, np.ndarray):
        raise TypeError(f"Expected vectors of type {type(vectors).__name__} to be an array: pass a numpy array.")
    if vectors.ndim != 2:
        raise ValueError(f"Expected vectors.ndim={vectors.ndim} == 2: pass an array with one row for each vector.")
    if vectors.dtype != np.float64:
        raise TypeError(f"Expected vectors.dtype={vectors.dtype} == float64: convert the array before counting.")
    if not (math.isfinite(radius) and radius > 0):
        raise ValueError(f"Expected radius={radius} > 0: pass a finite positive distance.")
    return _counts(np.ascontiguousarray(vectors), float(radius), _Blocks())


def _counts(vectors: Floats, radius: float, blocks: _Blocks) -> Counts:
    """Set aside non-finite rows, choose the scale, count the rest."""
    ruler = ruler_of(radius)
    counts = np.ones(len(vectors), dtype=np.int64)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        pivot = mean(vectors, np.ones(len(vectors)))
        if np.isfinite(pivot).all():  # One non-finite row would have spoilt it: saves a pass in the usual case.
            return _count_finite(vectors, pivot, ruler, blocks)
        finite = np.isfinite(vectors).all(axis=1)
        kept = vectors[finite]
        pivot = finite_mean(kept)
        counts[finite] = _count_finite(kept, pivot, ruler, blocks)
    return counts


def ruler_of(radius: float) -> Ruler:
    """The radius in its scale."""
    exponent = min(max(math.frexp(radius)[1], -1000), 1000)
    scale = math.ldexp(1.0, -exponent)
    return Ruler(scale, radius * scale, (radius * scale) * (radius * scale))


def slack_of(dimension: int) -> float:
    """Relative error of a distance to the pivot, and what else its use in a certificate rounds."""
    return 2 * (dimension + 16) * U64


def mean(vectors: Floats, weights: Floats) -> Floats:
    """Weighted mean of the rows; dividing first keeps sums of huge rows from overflowing."""
    centre_of_rows: Floats = (weights / max(weights.sum(), 1.0)) @ vectors
    return centre_of_rows


def finite_mean(vectors: Floats, weights: Floats | None = None) -> Floats:
    """Weighted mean of finite rows. It can still overflow; any finite pivot is correct, so zero will do."""
    weights = np.ones(len(vectors)) if weights is None else weights
    return np.nan_to_num(mean(vectors, weights), nan=0.0, posinf=0.0, neginf=0.0)


def _count_finite(vectors: Floats, pivot: Floats, ruler: Ruler, blocks: _Blocks) -> Counts:
    """Counts of finite rows: at once if all lie within r/2 of the pivot, else sorted by distance and tiled."""
    size, dimension = vectors.shape
    slack = slack_of(dimension)
    near, far = ruler.radius * (1 - slack), ruler.radius * (1 + slack)
    norms = squared_norms(vectors, pivot, ruler.scale)
    farthest = math.sqrt(norms.max(initial=0.0)) * (1 + slack)
    if farthest + farthest <= near:
        return np.full(size, size, dtype=np.int64)
    if size * size * dimension <= blocks.direct:
        return Tiles(vectors, np.arange(size), norms, pivot, ruler).decide_directly(0, size, 0, size)[0]
    for _ in range(2):  # Outliers drag the mean: a centre of the bulk certifies more pairs.
        closest = np.zeros(size)
        closest[np.argpartition(norms, (size - 1) // 2)[: (size + 1) // 2]] = 1.0
        pivot = finite_mean(vectors, closest)
        norms = squared_norms(vectors, pivot, ruler.scale)
    order = np.argsort(norms, kind="stable")
    distances = np.sqrt(norms[order])
    upper = distances * (1 + slack)
    # An infinite norm says only that a square (2^1024) or a difference (2^1024, unscaled) overflowed.
    lower = np.minimum(distances * (1 - slack), min(2.0**500, 2.0**1023 * ruler.scale))

    # For each block of rows the later columns are first close, then unsure, then far: d_j + d_k <= r certifies close
    # and d_k - d_j > r certifies far, both monotone along the sorted columns. Each unordered pair is looked at once.
    tiles = Tiles(vectors, order, norms[order], pivot, ruler)
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, size, blocks.rows):
        stop = min(start + blocks.rows, size)
        reach = upper[stop - 1]
        close_to = int(np.searchsorted(upper, near - reach, side="right"))
        far_from = int(np.searchsorted(lower, far + reach, side="right"))
        if close_to >= stop:
            counts[start:stop] += close_to - start
            counts[stop:close_to] += stop - start
        else:
            counts[start:stop] += tiles.decide(start, stop, start, stop)[0]
        for first in range(max(close_to, stop), far_from, blocks.columns):
            last = min(first + blocks.columns, far_from)
            row_hits, column_hits = tiles.decide(start, stop, first, last)
            counts[start:stop] += row_hits
            counts[first:last] += column_hits
    in_order = np.empty(size, dtype=np.int64)
    in_order[order] = counts
    return in_order


class Tiles:
    """Decides tiles of pairs of sorted rows: float32 GEMM, else float64 GEMM, else the canonical predicate."""

    def __init__(self, vectors: Floats, order: NDArray[np.intp], norms: Floats, pivot: Floats, ruler: Ruler) -> None:
        self.vectors, self.order, self.norms, self.pivot, self.ruler = vectors, order, norms, pivot, ruler
        self.single: NDArray[np.float32] | None = None
        self.buffer = np.empty(0)

    def decide(self, start: int, stop: int, first: int, last: int) -> tuple[Counts, Counts]:
        """Hits of each row start..stop among the columns first..last, and of each column among the rows."""
        scale, limit = self.ruler.scale, self.ruler.limit
        rows, columns = self.order[start:stop], self.order[first:last]
        for single in (True, False):
            # The tile's largest column norm bounds them all; norms are sorted.
            width = band(self.norms[start:stop], self.norms[last - 1], self.vectors.shape[1], limit, single)
            if not width[-1] <= BAND_FRACTION * limit:
                continue
            dtype: Any = np.float32 if single else np.float64
            products = self._products(start, stop, first, last, single)
            bias = self.norms[start:stop] / 2 - limit / 4
            column_bias = (self.norms[first:last] / 2 - limit / 4).astype(dtype)
            surely, maybe = (bias + width).astype(dtype), (bias - width).astype(dtype)
            bounds = (surely, maybe, column_bias, int(CROWD_FRACTION * products.size))
            hits = tally(products, *bounds, self.vectors, rows, columns, scale, limit)
            if hits is not None:
                return hits
        return self.decide_directly(start, stop, first, last)

    def decide_directly(self, start: int, stop: int, first: int, last: int) -> tuple[Counts, Counts]:
        """The same hits from the canonical predicate alone, on all cores: sums of whole numbers in any order."""
        columns = self.order[first:last]

        def count(rows: NDArray[np.intp]) -> tuple[Counts, Counts]:
            return count_directly(self.vectors, rows, columns, self.ruler.scale, self.ruler.limit)

        with ThreadPoolExecutor() as pool:
            parts = list(pool.map(count, np.array_split(self.order[start:stop], os.cpu_count() or 1)))
        return np.concatenate([rows for rows, _ in parts]), np.sum([columns for _, columns in parts], axis=0)

    def _products(self, start: int, stop: int, first: int, last: int, single: bool) -> NDArray[Any]:
        """Inner products of centred rows, in a buffer that tiles fraction: fresh pages cost as much as a small GEMM."""
        shape = (stop - start, last - first)
        if self.buffer.size < shape[0] * shape[1]:
            self.buffer = np.empty(shape[0] * shape[1])
        flat = self.buffer.view(np.float32) if single else self.buffer
        products: NDArray[Any] = flat[: shape[0] * shape[1]].reshape(shape)
        left, right = self._centred(start, stop, single), self._centred(first, last, single)
        return np.matmul(left, right.T, out=products)

    def _centred(self, start: int, stop: int, single: bool) -> NDArray[Any]:
        """Rows (x - pivot) scale; float32 copies are kept, float64 ones are rare and made when needed."""
        if not single:
            double = np.empty((stop - start, len(self.pivot)))
            centre(self.vectors, self.order[start:stop], self.pivot, self.ruler.scale, double)
            return double
        if self.single is None:
            self.single = np.empty((len(self.order), len(self.pivot)), dtype=np.float32)
            centre(self.vectors, self.order, self.pivot, self.ruler.scale, self.single)
        return self.single[start:stop]


def band(norms: Floats, largest: float, dimension: int, limit: float, single: bool) -> Floats:
    """Half-width of the band within which a GEMM may not decide a pair, for each row of a tile.

    w_j = 1.05 (d + 8) (v + u) ((n_j + n_max) / 2 + limit) + tiny, v the GEMM's unit roundoff, u float64's.

    Guarantee: where |g - (n_j + n_k - limit) / 2| > w_j, its sign is the canonical predicate's answer.
    """
    unit, tiny = (U32, 2.0**-74) if single else (U64, 2.0**-970)
    kappa = 1.05 * (dimension + 8) * (unit + U64)
    width: Floats = kappa * ((norms + largest) / 2 + limit) + dimension * tiny
    return width


@np.errstate(all="ignore")
def squared_distances(left: Floats, right: Floats, scale: float) -> Floats:
    """The canonical squared distance of each row of `left` to that of `right`: float64 terms summed left to right.

    Scaling the difference, not the coordinates, keeps duplicates of huge vectors at distance 0. No operation of numpy
    on whole arrays is fused with another, so an entry is what the quadratic loop would find.
    """
    shape = np.broadcast_shapes(left.shape[:-1], right.shape[:-1])
    total, term = np.zeros(shape), np.empty(shape)
    for coordinate in range(left.shape[-1]):
        np.subtract(left[..., coordinate], right[..., coordinate], out=term)
        term *= scale
        term *= term
        total += term
    return total


@np.errstate(all="ignore")
def squared_norms(vectors: Floats, pivot: Floats, scale: float) -> Floats:
    """Squared distances of all rows to the pivot, in scaled units, up to rounding: any order of summation will do."""
    norms = np.empty(len(vectors))
    for part in _parts(len(vectors), len(pivot)):
        away = (vectors[part] - pivot) * scale
        np.einsum("ij,ij->i", away, away, out=norms[part])
    return norms


@np.errstate(all="ignore")
def centre(vectors: Floats, order: NDArray[np.intp], pivot: Floats, scale: float, centred: NDArray[Any]) -> None:
    """Write (x - pivot) scale for the rows in order, rounded to the type of `centred`."""
    for part in _parts(len(order), len(pivot)):
        centred[part] = (vectors[order[part]] - pivot) * scale


def _parts(size: int, width: int) -> Iterator[slice]:
    """Slices of so many rows that stay in a cache."""
    step = max(1, ENTRIES // max(1, width))
    return (slice(first, min(first + step, size)) for first in range(0, size, step))


@np.errstate(all="ignore")
def tally(
    products: NDArray[Any],
    surely: NDArray[Any],
    maybe: NDArray[Any],
    bias: NDArray[Any],
    crowd: int,
    vectors: Floats,
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
    scale: float,
    limit: float,
) -> tuple[Counts, Counts] | None:
    """Neighbours of each row and column of a tile by its inner products, used up; None if the band holds a crowd.

    close if g - bias_k >= surely_j;  far if g - bias_k < maybe_j;  else the canonical predicate.
    """
    row_hits, column_hits = np.zeros(len(rows), dtype=np.int64), np.zeros(len(columns), dtype=np.int64)
    unsure: list[tuple[NDArray[np.intp], NDArray[np.intp]]] = []
    total = 0
    for first in range(0, len(rows), TALLIED):
        part = slice(first, min(first + TALLIED, len(rows)))
        values = products[part]
        values -= bias
        close = values >= surely[part, None]
        between = values >= maybe[part, None]
        between ^= close  # what is surely close is maybe close
        row_hits[part] = [np.count_nonzero(row) for row in close]
        column_hits += close.view(np.int8).sum(axis=0, dtype=np.int8)
        found = np.flatnonzero(between)
        total += len(found)
        if total > crowd:
            return None
        unsure.append((first + found // len(columns), found % len(columns)))
    pairs = [np.concatenate(each) for each in zip(*unsure, strict=True)] if unsure else [columns[:0]] * 2
    for part in _parts(total, vectors.shape[1]):
        some = [each[part] for each in pairs]
        hit = squared_distances(vectors[rows[some[0]]], vectors[columns[some[1]]], scale) <= limit
        row_hits += np.bincount(some[0][hit], minlength=len(rows))
        column_hits += np.bincount(some[1][hit], minlength=len(columns))
    return row_hits, column_hits


@np.errstate(all="ignore")
def count_directly(
    vectors: Floats, rows: NDArray[np.intp], columns: NDArray[np.intp], scale: float, limit: float
) -> tuple[Counts, Counts]:
    """Neighbours of each row and column of a tile by the canonical predicate alone."""
    row_hits, column_hits = np.zeros(len(rows), dtype=np.int64), np.zeros(len(columns), dtype=np.int64)
    for first in range(0, len(columns), SEGMENT):
        across = np.asfortranarray(vectors[columns[first : first + SEGMENT]])
        for part in _parts(len(rows), len(across)):
            hit = squared_distances(vectors[rows[part], None], across, scale) <= limit
            row_hits[part] += hit.sum(axis=1)
            column_hits[first : first + SEGMENT] += hit.sum(axis=0)
    return row_hits, column_hits
