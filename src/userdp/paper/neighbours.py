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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["neighbour_counts"]

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

U = 2.0**-53  # Unit roundoff.
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
    counts = np.ones(len(vectors), dtype=np.int64)
    finite = np.isfinite(vectors).all(axis=1)
    kept = vectors if finite.all() else vectors[finite]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        counts[finite] = _count_finite(kept, ruler_of(radius), blocks)
    return counts


def ruler_of(radius: float) -> Ruler:
    """The radius in its scale."""
    exponent = min(max(math.frexp(radius)[1], -1000), 1000)
    scale = math.ldexp(1.0, -exponent)
    return Ruler(scale, radius * scale, (radius * scale) * (radius * scale))


def mean_of(rows: Floats) -> Floats:
    """Mean of finite rows, as a pivot. Dividing first keeps sums of huge rows from overflowing.

    It can still overflow; any finite pivot is correct, so zero will do.
    """
    weights = np.full(len(rows), 1 / max(1, len(rows)))
    return np.nan_to_num(weights @ rows, nan=0.0, posinf=0.0, neginf=0.0)


def _count_finite(vectors: Floats, ruler: Ruler, blocks: _Blocks) -> Counts:
    """Counts of finite rows: at once if all lie within r/2 of the pivot, else sorted by distance and tiled."""
    size, dimension = vectors.shape
    # Relative error of a distance to the pivot, and what else its use in a certificate rounds.
    slack = 2 * (dimension + 16) * U
    near, far = ruler.radius * (1 - slack), ruler.radius * (1 + slack)
    pivot = mean_of(vectors)
    norms = squared_norms(vectors, pivot, ruler.scale)
    farthest = math.sqrt(norms.max(initial=0.0)) * (1 + slack)
    if farthest + farthest <= near:
        return np.full(size, size, dtype=np.int64)
    if size * size * dimension <= blocks.direct:
        return count_directly(vectors, np.arange(size), np.arange(size), ruler)[0]
    for _ in range(2):  # Outliers drag the mean: a centre of the bulk certifies more pairs.
        pivot = mean_of(vectors[np.argpartition(norms, (size - 1) // 2)[: (size + 1) // 2]])
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
    """Decides tiles of pairs of rows sorted by their norms: by a matrix product, else by the canonical predicate."""

    def __init__(self, vectors: Floats, order: NDArray[np.intp], norms: Floats, pivot: Floats, ruler: Ruler) -> None:
        self.vectors, self.order, self.norms, self.ruler = vectors, order, norms, ruler
        self.centred = vectors[order]
        self.centred -= pivot
        self.centred *= ruler.scale

    def decide(self, start: int, stop: int, first: int, last: int) -> tuple[Counts, Counts]:
        """Hits of each row start..stop among the columns first..last, and of each column among the rows."""
        limit, rows, columns = self.ruler.limit, self.order[start:stop], self.order[first:last]
        # The tile's largest column norm bounds them all; norms are sorted.
        width = band(self.norms[start:stop], self.norms[last - 1], self.vectors.shape[1], limit)
        hits = None
        if width[-1] <= BAND_FRACTION * limit:
            products = self.centred[start:stop] @ self.centred[first:last].T
            bias = self.norms[start:stop] / 2 - limit / 4
            column_bias = self.norms[first:last] / 2 - limit / 4
            hits = tally(products, bias + width, bias - width, column_bias, self.vectors, rows, columns, self.ruler)
        return count_directly(self.vectors, rows, columns, self.ruler) if hits is None else hits


def band(norms: Floats, largest: float, dimension: int, limit: float) -> Floats:
    """Half-width of the band within which a product may not decide a pair, for each row of a tile.

    w_j = 2.1 (d + 8) u ((n_j + n_max) / 2 + limit) + d tiny, u the unit roundoff.

    Guarantee: where |g - (n_j + n_k - limit) / 2| > w_j, its sign is the canonical predicate's answer.
    """
    width: Floats = 2.1 * (dimension + 8) * U * ((norms + largest) / 2 + limit) + dimension * 2.0**-970
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


def _parts(size: int, width: int) -> Iterator[slice]:
    """Slices of so many rows that stay in a cache."""
    step = max(1, ENTRIES // max(1, width))
    return (slice(first, min(first + step, size)) for first in range(0, size, step))


@np.errstate(all="ignore")
def tally(
    products: Floats,
    surely: Floats,
    maybe: Floats,
    bias: Floats,
    vectors: Floats,
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
    ruler: Ruler,
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
        if total > CROWD_FRACTION * products.size:
            return None
        unsure.append((first + found // len(columns), found % len(columns)))
    left, right = (np.concatenate(each) for each in zip(*unsure, strict=True))
    for part in _parts(total, vectors.shape[1]):
        hit = squared_distances(vectors[rows[left[part]]], vectors[columns[right[part]]], ruler.scale) <= ruler.limit
        row_hits += np.bincount(left[part][hit], minlength=len(rows))
        column_hits += np.bincount(right[part][hit], minlength=len(columns))
    return row_hits, column_hits


def count_directly(
    vectors: Floats, rows: NDArray[np.intp], columns: NDArray[np.intp], ruler: Ruler
) -> tuple[Counts, Counts]:
    """Neighbours of each row and column of a tile by the canonical predicate alone, on all cores."""

    @np.errstate(all="ignore")  # a setting of each thread's own
    def count(some: NDArray[np.intp]) -> tuple[Counts, Counts]:
        row_hits, column_hits = np.zeros(len(some), dtype=np.int64), np.zeros(len(columns), dtype=np.int64)
        for first in range(0, len(columns), SEGMENT):
            across = np.asfortranarray(vectors[columns[first : first + SEGMENT]])
            for part in _parts(len(some), len(across)):
                hit = squared_distances(vectors[some[part], None], across, ruler.scale) <= ruler.limit
                row_hits[part] += hit.sum(axis=1)
                column_hits[first : first + SEGMENT] += hit.sum(axis=0)
        return row_hits, column_hits

    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(count, np.array_split(rows, os.cpu_count() or 1)))
    return np.concatenate([hits for hits, _ in parts]), np.sum([hits for _, hits in parts], axis=0)
