"""Users' gradients and the sum of what a mechanism makes of them, in one compiled loop.

`gradients` takes a few users at a time. Of each it computes the mean gradient over its rows, changes its basis, and
marks its size; then it hands these few vectors to a sink, which adds them up (`Clip`'s is in privacy/mechanisms), or
leaves them in `out`. No array of all users' vectors is made, and vectors that are added up are those that `out` would
have, bit for bit. Parameters are tuples, the same in number and type for all losses, so that one compiled kernel for
float32 rows and one for float64 serve all:

    Model    weights (n_outputs x n_features), slopes (`kernels.block_slopes`), smoothing, weighing, and whether slopes
             are computed of one user alone (losses from outside)
    Turning  scales (a number for each entry of a block; empty for none), matrix (block -> kept entries, in the rows'
             own type, of padded width; empty for none), how many entries of a product are kept
    Marking  clip, longest, mark, how many sizes there are (0 for no marks and no clipping), and a user's `affected`

Rows are read by `kernels.predict_block`, `kernels.add_block` and, for smoothing, `kernels.shift_block`: other layouts
of rows need these three.

Guarantee: a user's vector is a function of its rows, in their order, and of the parameters, bit for bit: whoever is
beside it, in any order, on any thread. Slopes of several users are computed side by side, each by the same operations:
the package's own losses, as solvers use them (smoothed only where they have kinks), call no library function across
rows. A loss from outside may call exp or tanh, of which a compiler may have two versions, for single numbers and for
several, that round differently; so its slopes are computed of one user alone. A user's rows are cut into blocks from
its own first row on; sums over rows or entries never cross users.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numba
import numpy as np
from numba import types

from userdp.data.users import UserData
from userdp.vectors import kernels, lanes, tiles
from userdp.vectors.kernels import Arrays, Smoothing, Weighing, compiled, read_only, within

Model = tuple[np.ndarray, Any, Smoothing, Weighing, bool]
Turning = tuple[np.ndarray, np.ndarray, int]
Marking = tuple[float, float, float, int, np.ndarray]
Sink = tuple[Any, np.ndarray, int]  # of `sink_of`, its parameters, and how many entries a total has beside a vector's

USERS = 16  # at a time; a multiple of a tile's rows
_AHEAD = 4096  # entries that are on their way from memory
NO_TURNING: Turning = np.zeros(0), np.zeros((0, 0)), 0
NO_MARKING: Marking = (math.inf, 1.0, 0.0, 0, read_only(np.zeros(0, dtype=bool)))
# Of a mark: what goes to the size of an affected user's gradient, and to the indicator; 0.8^2 + 0.6^2 = 1.
AFFECTED_SIZE, AFFECTED = 0.8, 0.6
_SINK = types.void(types.float64[:, ::1], types.float64[::1], types.int64[::1])
_NO_TOTAL = np.zeros(0, dtype=np.int64)


def turning_of(basis: np.ndarray | None, directions: np.ndarray | None, n_outputs: int) -> Turning:
    """A gradient's blocks, one per output, times the basis (a matrix or a diagonal); then all of it @ directions.

    Rows of the matrix are scaled to at most 1 in size, so that it may be kept in single precision, in any units.
    """
    matrix: np.ndarray
    if directions is not None:
        blocks = directions.reshape(n_outputs, -1, directions.shape[1])
        if basis is not None:
            blocks = basis[:, None] * blocks if basis.ndim == 1 else basis @ blocks
        matrix = blocks.reshape(directions.shape)
    elif basis is None:
        return NO_TURNING
    elif basis.ndim == 1:
        return basis, np.zeros((0, 0)), 0
    else:
        matrix = basis
    scales = np.abs(matrix).max(axis=1)
    scales[scales == 0] = 1.0
    wide = np.zeros((len(matrix), tiles.padded(matrix.shape[1])))
    wide[:, : matrix.shape[1]] = matrix / scales[:, None]
    return scales, wide, matrix.shape[1]


@functools.cache
def sink_of(add: Any) -> Any:
    """Machine code of a function (vectors, parameters, total) that adds what it makes of each vector to the total."""
    return numba.cfunc(_SINK, nopython=True, cache=True, error_model="numpy")(add)


def keep(vectors: np.ndarray, parameters: np.ndarray, total: np.ndarray) -> None:
    """Add nothing: the vectors stay."""


def vectors(
    data: UserData, users: np.ndarray, width: int, model: Model, turning: Turning, marking: Marking
) -> np.ndarray:
    """The vectors of these users, (n_users_listed, width)."""
    out, add, none = np.empty((users.size, width)), sink_of(keep), np.zeros(0)
    users, arguments = read_only(users), _arguments(data, model, turning, marking)

    def run(chunk: slice) -> None:
        gradients(users[chunk], *arguments, add, none, out[chunk], _NO_TOTAL)

    kernels.over_chunks(run, users.size, kernels.entries_of(data, users) * len(model[0]), USERS)
    return out


def total(
    data: UserData, users: np.ndarray, sink: Sink, width: int, model: Model, turning: Turning, marking: Marking
) -> np.ndarray:
    """What the sink makes of these users' vectors, added up: whole numbers, so the same in any order."""
    add, parameters, size = sink
    users, arguments = read_only(users), _arguments(data, model, turning, marking)
    totals: list[np.ndarray] = [np.zeros(width + size, dtype=np.int64)]

    def run(chunk: slice) -> None:
        one = np.zeros(width + size, dtype=np.int64)
        gradients(users[chunk], *arguments, add, parameters, np.empty((USERS, width)), one)
        totals.append(one)

    kernels.over_chunks(run, users.size, kernels.entries_of(data, users) * len(model[0]), USERS)
    summed: np.ndarray = np.sum(totals, axis=0)
    return summed


def finished(gradients: np.ndarray, users: np.ndarray, width: int, turning: Turning, marking: Marking) -> np.ndarray:
    """What becomes of mean gradients that were computed elsewhere: turned and marked, by the same operations."""
    scales, matrix, _ = turning
    out, sums = np.empty((len(gradients), width)), np.zeros((USERS, gradients.shape[1]))
    along, turned = np.zeros((USERS, len(scales))), np.empty((USERS, matrix.shape[1]))
    turning = (read_only(scales), read_only(matrix), turning[2])
    for first in range(0, len(gradients), USERS):
        some = out[first : first + USERS]
        sums[: len(some)] = gradients[first : first + USERS]
        _finish(sums, users, first, turning, marking, along, turned, some)
    return out


@compiled
def _finish(
    sums: np.ndarray,
    users: np.ndarray,
    first: int,
    turning: Turning,
    marking: Marking,
    along: np.ndarray,
    turned: np.ndarray,
    out: np.ndarray,
) -> None:
    """`_turn` and, if there are sizes, `_mark`."""
    _turn(sums, turning, along, turned, out)
    if marking[3] > 0:
        _mark(marking, users, first, out)


def _arguments(
    data: UserData, model: Model, turning: Turning, marking: Marking
) -> tuple[Arrays, Any, tuple[Any, ...], Turning, Marking]:
    """Parameters as kernels take them: arrays read-only, the matrix in the rows' own type.

    Slopes by themselves: numba takes .2 ms to find the type of a tuple that has machine code in it.
    """
    scales, matrix, kept = turning
    matrix = matrix.astype(data.rows.dtype)
    weights, slopes, *others = model
    return (
        kernels.arrays_of(data),
        slopes,
        (read_only(weights), *others),
        (read_only(scales), read_only(matrix), kept),
        marking,
    )


@compiled
def gradients(
    users: np.ndarray,
    data: Arrays,
    slopes: Any,
    others: tuple[Any, ...],
    turning: Turning,
    marking: Marking,
    sink: Any,
    parameters: np.ndarray,
    out: np.ndarray,
    total: np.ndarray,
) -> None:
    """A vector for each user in `out`, or, if there is a `total`, what the sink adds to it; see the module.

    `others` is the model but for its slopes.
    """
    model = others[0], slopes, others[1], others[2], others[3]
    weights, scales = others[0], turning[0]
    rows_type = kernels.kind(data[0])
    sums = np.zeros((USERS, weights.size))
    n_predictions = kernels.BLOCK_ROWS * len(weights)
    block = np.empty(n_predictions), np.empty(n_predictions), np.empty((USERS, 4), np.int64)
    along, turned = np.zeros((USERS, len(scales)), rows_type), np.empty((USERS, turning[1].shape[1]), rows_type)
    for first in range(0, len(users), USERS):
        place, last = first if total.size == 0 else 0, min(first + USERS, len(users))
        made = out[place : place + last - first]
        _mean_gradients(users, first, last, data, model, block, sums)
        _turn(sums, turning, along, turned, made)
        if marking[3] > 0:
            _mark(marking, users, first, made)
        if total.size > 0:
            sink(made, parameters, total)


@within
def _mean_gradients(
    users: np.ndarray, begin: int, end: int, data: Arrays, model: Model, block: Any, sums: np.ndarray
) -> None:
    """sums[j] = (1/m) sum over the m rows of user users[begin + j] of weight * slope * row; NaN without rows.

    Blocks of at most 64 rows of a user wait until there are 64 in all: a loss turns them into slopes together.
    """
    rows, targets, offsets = data
    weights, slopes, smoothing, weighing, alone = model
    predictions, block_targets, waiting = block
    lengths, longest = weighing
    filled = n_waiting = len(users) * 0  # no literal, for which what takes it would be compiled once more
    ahead = _users_ahead(rows, offsets)
    for j in range(end - begin + 1):
        over = j == end - begin  # one turn more, for what waits: what is called at two places is compiled twice
        if not over:
            _read_ahead(rows, targets, offsets, lengths, users, begin + j + ahead)
        user = users[begin + j - over]
        first, last = offsets[user], offsets[user + 1]
        if over:
            first, last = last, last + 1
        else:
            for k in range(sums.shape[1]):
                sums[j, k] = math.nan if first == last else 0.0
        for start in range(first, last, kernels.BLOCK_ROWS):
            n_rows = min(kernels.BLOCK_ROWS, last - start)
            if over or filled + n_rows > kernels.BLOCK_ROWS or (alone and filled > 0):
                _slopes_of_waiting(slopes, predictions, block_targets, filled, len(weights))
                _add_waiting(rows, lengths, longest, predictions, len(weights), waiting, n_waiting, sums)
                filled = n_waiting = 0
            if over:
                break
            kernels.predict_block(rows, start, n_rows, weights, predictions, filled)
            kernels.shift_block(rows, start, n_rows, start - first, smoothing, targets, predictions, filled)
            for i in range(n_rows):
                block_targets[filled + i] = targets[start + i]
            waiting[n_waiting, 0], waiting[n_waiting, 1] = j, start
            waiting[n_waiting, 2], waiting[n_waiting, 3] = n_rows, last - first
            filled, n_waiting = filled + n_rows, n_waiting + 1


@within
def _slopes_of_waiting(
    slopes: Any, predictions: np.ndarray, block_targets: np.ndarray, filled: int, n_outputs: int
) -> None:
    """Slopes of all rows that wait: up to a multiple of 16 rows, so that vector instructions compute them all."""
    full = -(-filled // 16) * 16
    for i in range(filled * n_outputs, full * n_outputs):
        predictions[i] = 0.0
    for i in range(filled, full):
        block_targets[i] = 0.0
    slopes(predictions, block_targets, full)


@within
def _add_waiting(
    rows: Any,
    lengths: np.ndarray,
    longest: float,
    slopes: np.ndarray,
    n_outputs: int,
    waiting: np.ndarray,
    n_waiting: int,
    sums: np.ndarray,
) -> None:
    """Each waiting user's gradients to its sum."""
    at = n_waiting * 0
    for i in range(n_waiting):
        j, start, n_rows, n_all = waiting[i, 0], waiting[i, 1], waiting[i, 2], waiting[i, 3]
        kernels.weigh_block(lengths, longest, start, n_rows, slopes, at, n_outputs, 1.0 / n_all)
        kernels.add_block(rows, start, n_rows, slopes, at, n_outputs, sums, j)
        at += n_rows


@within
def _users_ahead(rows: Any, offsets: np.ndarray) -> int:
    """How many users before it is computed a user is asked for: about as many as have `_AHEAD` entries."""
    ahead: int = min(USERS, max(1, _AHEAD * (len(offsets) - 1) // max(1, offsets[len(offsets) - 1] * rows.shape[1])))
    return ahead


@within
def _read_ahead(
    rows: Any,
    targets: np.ndarray,
    offsets: np.ndarray,
    lengths: np.ndarray,
    users: np.ndarray,
    j: int,
) -> None:
    """Ask for what is read first of users[j], if there is one."""
    if j < len(users):
        start = offsets[users[j]]
        n_rows = min(kernels.BLOCK_ROWS, offsets[users[j] + 1] - start)
        kernels.read_ahead(rows, start, n_rows)
        lanes.read_ahead(targets, start, n_rows)
        if lengths.size > 0:
            lanes.read_ahead(lengths, start, n_rows)


@within
def _turn(sums: np.ndarray, turning: Turning, along: np.ndarray, turned: np.ndarray, out: np.ndarray) -> None:
    """The first entries of out[j] = each block of sums[j], times the scales, @ matrix: in the rows' own type.

    A block is divided by its length before, and multiplied by it after: it may have any size in any type.
    """
    scales, matrix, kept = turning
    n_users, sizes = len(out), np.empty(USERS)
    n_scales = len(scales) if len(scales) > 0 else sums.shape[1]
    for c in range(sums.shape[1] // n_scales):
        for j in range(n_users):
            block, square = sums[j, c * n_scales : (c + 1) * n_scales], 0.0
            for k in range(len(scales)):
                block[k] *= scales[k]
            if matrix.size == 0:
                made = out[j, c * n_scales : (c + 1) * n_scales]
                for k in range(n_scales):
                    made[k] = block[k]
                continue
            for k in range(n_scales):
                square += block[k] * block[k]
            length = math.sqrt(square)
            sizes[j] = length if length > 1e-100 and length < math.inf else 1.0
            line, inverse = along[j], 1.0 / sizes[j]
            for k in range(n_scales):
                line[k] = block[k] * inverse
        if matrix.size == 0:
            continue
        tiles.multiply(along, n_users, matrix, turned)
        for j in range(n_users):
            made, line = out[j, c * kept : (c + 1) * kept], turned[j]
            for k in range(kept):
                made[k] = line[k] * sizes[j]


@within
def _mark(marking: Marking, users: np.ndarray, first: int, vectors: np.ndarray) -> None:
    """Clip each vector, of users[first + j], to `clip`, and follow it with `mark` at its size, zeros at the others.

    Size k of 0 .. n_sizes - 1 is a norm above longest / 2^(k + 1), the last one any smaller norm; one more entry is the
    indicator of users who are affected, or whose vector is not finite and becomes 0: 0.6 marks, beside which a size
    has 0.8, so that both together are as long as a mark.
    """
    clip, longest, mark, n_sizes, affected = marking
    n_kept = vectors.shape[1] - n_sizes - 1
    for j in range(len(vectors)):
        square = 0.0
        for e in range(n_kept):
            square += vectors[j, e] * vectors[j, e]
        for e in range(n_kept, vectors.shape[1]):
            vectors[j, e] = 0.0
        length = math.sqrt(square)
        if not math.isfinite(length):
            for e in range(n_kept):
                vectors[j, e] = 0.0
            vectors[j, n_kept + n_sizes] = AFFECTED * mark
            continue
        size = kernels.size_of(length, longest, n_sizes)
        vectors[j, n_kept + size] = mark
        if affected[users[first + j]]:
            vectors[j, n_kept + size] = AFFECTED_SIZE * mark
            vectors[j, n_kept + n_sizes] = AFFECTED * mark
        if length > clip:
            for e in range(n_kept):
                vectors[j, e] *= clip / length
