"""Compiled loops over users' rows: one vector per user, computed from that user's rows alone.

Rows lie in CSR blocks: user u owns rows offsets[u] .. offsets[u+1]. Rows are float32 or float64; sums are float64,
except for products within 64 or 256 rows of a second moment, and for rows that are turned into another basis. Every
user is computed by the same sequence of operations whichever thread, chunk or neighbours it has, so results do not
depend on the number of threads, and NaN or infinity in a row reaches that user's vector only. A user without rows gets
NaN.

A loss enters as a machine-code pointer that turns a block of predictions into slopes. One compiled kernel so serves
every loss and is cached on disk, and the indirect call is paid once per block, not once per row.

Kernels for `over_users` take (rows, targets, offsets), the users, parameters, and `out` with a row per user.
Indices are not checked here. Arrays are copied by loops: an assignment would compile, for seconds, words for the error
that shapes differ.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from numba import types
from numba.extending import overload

from userdp.compiling import INNER, Kernel, PlainKernel, kernel
from userdp.data.sparse import SparseRows
from userdp.data.users import UserData
from userdp.vectors import lanes, sparse, tiles

# No "nnan" or "ninf": assuming that NaN and infinity never happen would let the compiler drop guards.
_OPTIONS: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "error_model": "numpy"}
_F = TypeVar("_F", bound=Callable[..., Any])
compiled: Callable[[_F], _F] = numba.njit(cache=True, nogil=True, **_OPTIONS)
# What compiled code alone calls: `inner` from several places, `within` from one. The first is compiled by itself and
# put into its callers; the second is written into its caller before that is compiled, which is quicker for long ones.
inner: Callable[[_F], _F] = numba.njit(nogil=True, **INNER, **_OPTIONS)
within: Callable[[_F], _F] = numba.njit(nogil=True, inline="always", **_OPTIONS)

BLOCK_ROWS = 64  # predictions and slopes of a block stay in the first-level cache
_PART_ROWS = 256  # rows whose products are added up in single precision
_MOST_TURNED = 2.0**34  # rows * sqrt(features) up to which rounding turns a second moment by 2^-19 at most
_MOST_ROUNDED = 1024  # features up to which products may be added up in single precision, 64 rows at a time
_CHUNK_USERS = 1 << 14  # at most, so that threads end together
_THREADING_PAYS = 1 << 20  # matrix entries below which starting threads costs more than it saves

# predictions (n_rows x n_outputs, flat; overwritten by the slopes), targets, n_rows
_SLOPES_SIGNATURE = types.void(types.float64[::1], types.float64[::1], types.intp)


class Cells(NamedTuple):
    """Dense rows as kernels take them; `constant` is 1 if the last feature is 1 in all rows and not held, else 0."""

    held: np.ndarray
    shape: tuple[int, int]
    constant: int


Rows = Any  # `Cells` or `Entries`
Arrays = tuple[Rows, np.ndarray, np.ndarray]  # rows, targets, offsets
Smoothing = tuple[float, int, np.ndarray] | None  # radius, seed and quantiles of `shift_block`
Weighing = tuple[np.ndarray, float]  # a length per row and the longest that counts fully; empty for none


# --- running kernels --------------------------------------------------------------------------------------------------


def read_only(array: np.ndarray) -> np.ndarray:
    """A read-only view: numba compiles again for arrays that may be written, so one kind is enough."""
    view = array.view()
    view.flags.writeable = False
    return view


NO_WEIGHING: Weighing = (read_only(np.zeros(0, np.float32)), math.inf)


def arrays_of(data: UserData) -> Arrays:
    return rows_of(data.rows, data.has_intercept), read_only(data.targets), read_only(data.offsets)


def rows_of(rows: np.ndarray | SparseRows, constant: bool = False) -> Rows:
    """Rows as kernels take them; with a `constant` a feature that is 1 follows those that are held."""
    if isinstance(rows, SparseRows):
        return rows.entries(constant)
    return Cells(read_only(rows), (rows.shape[0], rows.shape[1] + constant), int(constant))


def over_users(
    kernel: Any, data: UserData, users: np.ndarray, width: int, *parameters: Any, work: int = 1, smallest: int = 1
) -> np.ndarray:
    """A kernel's vectors of the listed users, (n_users_listed, width) in float64, on several threads.

    `work` is how many operations a matrix entry takes, `smallest` the fewest users that a thread takes at a time.
    """
    arrays, users, out = arrays_of(data), read_only(users), np.empty((users.size, width))
    parameters = tuple(read_only(one) if isinstance(one, np.ndarray) else one for one in parameters)

    def run(chunk: slice) -> None:
        kernel(arrays, users[chunk], *parameters, out[chunk])

    over_chunks(run, users.size, entries_of(data, users) * work, smallest)
    return out


def entries_of(data: UserData, users: np.ndarray) -> int:
    """How many matrix entries these users have, about: taking users for equal."""
    return int(data.rows.size) * users.size // max(1, data.n_users)


_limit = threading.local()


def limit_threads(most: int | None) -> None:
    """Let the kernels that this thread calls take so many threads at most; None: as many as numba's settings say."""
    _limit.most = most


def number_of_threads() -> int:
    """How many a kernel may take: NUMBA_NUM_THREADS, by default the cores, or what this thread was limited to.

    `numba.get_num_threads` starts threads of numba's own, and takes a lock that forked processes have in common: one of
    them killed in that moment stops all the others for good.
    """
    most, allowed = getattr(_limit, "most", None), int(numba.config.NUMBA_NUM_THREADS)
    return allowed if most is None else min(most, allowed)


def over_chunks(run: Callable[[slice], None], n_users: int, work: int, smallest: int = 1) -> None:
    """Call `run` on slices that cover all users, of at least `smallest` each, on `number_of_threads`.

    Plain threads, not numba's parallel loops: kernels hold no lock, compile in a fraction of the time, and may be
    called from several threads or after a fork. The threads live for one call, so nothing is left to go stale.
    """
    n_threads = number_of_threads()
    if n_threads == 1 or work < _THREADING_PAYS:
        run(slice(0, n_users))
        return
    size = min(_CHUNK_USERS, max(smallest, n_users // (8 * n_threads)))
    chunks = [slice(start, start + size) for start in range(0, n_users, size)]
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(run, chunks))


# --- gradients --------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=128)
def block_slopes(slope: Any, n_outputs: int = 1, may_raise: bool = True) -> Any:
    """Machine code that replaces a block of predictions by slopes, from a compiled `slope(prediction, target)`.

    With `may_raise`, an exception in one row makes that row's slope NaN, because an exception that depends on a
    user's data must not leave, and indices are checked, because reading beyond an array would read other users' data;
    both are separate because they keep loops from vectorising.
    """
    if may_raise:
        if numba.config.BOUNDSCHECK == 0 or numba.config.FULL_TRACEBACKS:
            raise RuntimeError(
                "Expected NUMBA_BOUNDSCHECK=0 and NUMBA_FULL_TRACEBACKS not to be set: with them a custom loss could "
                "read or print other users' data."
            )
        slope = numba.njit(slope.py_func, error_model="numpy", boundscheck=True)

    def plain(predictions: np.ndarray, targets: np.ndarray, n_rows: int) -> None:
        for i in range(n_rows):
            predictions[i] = slope(predictions[i], targets[i])

    def guarded(predictions: np.ndarray, targets: np.ndarray, n_rows: int) -> None:
        for i in range(n_rows):
            try:
                predictions[i] = slope(predictions[i], targets[i])
            except Exception:
                predictions[i] = math.nan

    def several_plain(predictions: np.ndarray, targets: np.ndarray, n_rows: int) -> None:
        for i in range(n_rows):
            row = predictions[i * n_outputs : (i + 1) * n_outputs]
            made = slope(row, targets[i])
            for c in range(n_outputs):
                row[c] = made[c]

    def several_guarded(predictions: np.ndarray, targets: np.ndarray, n_rows: int) -> None:
        for i in range(n_rows):
            row = predictions[i * n_outputs : (i + 1) * n_outputs]
            try:
                row[:] = slope(row.copy(), targets[i])
            except Exception:
                row[:] = math.nan

    chosen = ((plain, guarded), (several_plain, several_guarded))[n_outputs > 1][may_raise]
    kept = isinstance(slope, Kernel) and slope.named  # others have no name that another process could find
    return numba.cfunc(_SLOPES_SIGNATURE, nopython=True, cache=kept, error_model="numpy")(chosen)


@kernel(PlainKernel, error_model="numpy")
def slope_of_one(prediction: float, target: float) -> float:
    """Slope 1 everywhere: the mean gradient of the loss with this slope is the mean of the rows."""
    return 1.0


@sparse.either(_OPTIONS, sparse.kind)
def kind(rows: Any) -> Any:
    """The type of the entries."""
    return rows.held.dtype


@sparse.either(_OPTIONS, sparse.copy_row)
def copy_row(rows: Any, i: int, out: np.ndarray) -> None:
    """out = rows[i]."""
    for k in range(rows.held.shape[1]):
        out[k] = rows.held[i, k]
    if rows.constant:
        out[rows.held.shape[1]] = 1


@sparse.either(_OPTIONS, sparse.scale_row)
def scale_row(rows: Any, i: int, scales: np.ndarray, out: np.ndarray) -> None:
    """out = rows[i] * scales, rounded once."""
    for k in range(rows.held.shape[1]):
        out[k] = rows.held[i, k] * scales[k]
    if rows.constant:
        out[rows.held.shape[1]] = scales[rows.held.shape[1]]


@sparse.either(_OPTIONS, sparse.row_square)
def _row_square(rows: Any, i: int, scales: np.ndarray, spread: np.ndarray) -> float:
    """|rows[i] * scales|^2; `spread` is a line of zeros, and is left so."""
    square = 0.0
    for k in range(rows.held.shape[1]):
        x = rows.held[i, k] * scales[k]
        square += x * x
    if rows.constant:
        square += scales[rows.held.shape[1]] * scales[rows.held.shape[1]]
    return square


@sparse.either(_OPTIONS, sparse.add_squares)
def add_squares(rows: Any, i: int, scales: np.ndarray, spread: np.ndarray, out: np.ndarray) -> None:
    """out += (rows[i] * scales)^2; `spread` is a line of zeros, and is left so."""
    for k in range(rows.held.shape[1]):
        x = rows.held[i, k] * scales[k]
        out[k] += x * x
    if rows.constant:
        out[rows.held.shape[1]] += scales[rows.held.shape[1]] * scales[rows.held.shape[1]]


@sparse.either(_OPTIONS, sparse.predict_block)
def predict_block(rows: Any, start: int, n_rows: int, weights: np.ndarray, predictions: np.ndarray, at: int) -> None:
    """predictions[at + i, c] = <weights[c], rows[start + i]>.

    Row after row: what is read in order is there in time, and what is read from several places in turn is not.
    """
    n_outputs = len(weights)
    for i in range(n_rows):
        for c in range(n_outputs):
            predictions[(at + i) * n_outputs + c] = lanes.dot(rows.held, start + i, weights, c)


@sparse.either(_OPTIONS, sparse.add_block)
def add_block(
    rows: Any, start: int, n_rows: int, slopes: np.ndarray, at: int, n_outputs: int, sums: np.ndarray, j: int
) -> None:
    """sums[j, c] += sum over i of slopes[at + i, c] * rows[start + i]."""
    for c in range(n_outputs):
        to = j * sums.shape[1] + c * rows.shape[1]
        lanes.add_rows(rows.held, start, n_rows, slopes, at * n_outputs + c, n_outputs, sums, to, rows.shape[1])


@sparse.either(_OPTIONS, sparse.read_ahead)
def read_ahead(rows: Any, start: int, n_rows: int) -> None:
    """Have rows brought near that are asked for soon."""
    lanes.read_ahead(rows.held, start, n_rows)


@inner
def _word(number: float) -> np.uint64:
    """A number's bits in single precision: in what order it was added up does not matter."""
    bits = np.uint64(np.float64(np.float32(number)).view(np.int64))
    return bits if bits << np.uint64(1) else np.uint64(0)  # -0 is 0


def shift_block(
    rows: Rows,
    start: int,
    n_rows: int,
    first: int,
    smoothing: Any,
    targets: np.ndarray,
    predictions: np.ndarray,
    at: int,
) -> None:
    """predictions[at + i] += radius |x| rho, where radius * rho is how far a random point of a ball is along the row x.

    rho comes from `quantiles` at a pseudo-random place (splitmix64) made of the seed, the row's number within its user
    (from `first` on), length, target and prediction: of nothing that another user could change. Without smoothing
    nothing is done, and nothing compiled for it.
    """
    radius, seed, quantiles = smoothing
    last, ones, spread = quantiles.shape[0] - 1, np.ones(rows.shape[1]), np.zeros(rows.shape[1])
    for i in range(n_rows):
        square = _row_square(rows, start + i, ones, spread)
        mixed, length, target = _word(predictions[at + i]), _word(square), _word(targets[start + i])
        for word in (np.uint64(seed), np.uint64(first + i), length, target):
            mixed = (mixed ^ word) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
        place = np.float64(mixed >> np.uint64(11)) * 2.0**-53 * last
        below = min(int(place), last - 1)
        rho = quantiles[below] + (place - below) * (quantiles[below + 1] - quantiles[below])
        predictions[at + i] += radius * math.sqrt(square) * rho


@overload(shift_block, jit_options=_OPTIONS | INNER, strict=False)  # type: ignore[untyped-decorator]
def _shift_block(rows: Any, start: Any, n_rows: Any, first: Any, smoothing: Any, *_: Any) -> Any:
    return _leave_block if isinstance(smoothing, types.NoneType) else shift_block


def _leave_block(
    rows: Rows, start: int, n_rows: int, first: int, smoothing: Any, targets: np.ndarray, block: np.ndarray, at: int
) -> None:
    pass


@compiled
def shift_rows(rows: Rows, smoothing: Smoothing, targets: np.ndarray, predictions: np.ndarray) -> None:
    """`shift_block` of one user's rows."""
    shift_block(rows, 0, len(targets), 0, smoothing, targets, predictions, 0)


@within
def weigh_block(
    lengths: np.ndarray,
    longest: float,
    start: int,
    n_rows: int,
    slopes: np.ndarray,
    at: int,
    n_outputs: int,
    scale: float,
) -> None:
    """slopes[at + i, c] *= scale * min(1, longest / lengths[start + i]): longer rows count as if they were so long."""
    for i in range(n_rows):
        weight = scale
        if lengths.size > 0 and lengths[start + i] > longest:
            weight *= longest / lengths[start + i]
        for c in range((at + i) * n_outputs, (at + i + 1) * n_outputs):
            slopes[c] *= weight


@compiled
def mean_curvatures(
    data: Arrays,
    users: np.ndarray,
    weights: np.ndarray,
    slopes: Any,
    weighing: Weighing,
    step: float,
    out: np.ndarray,
) -> None:
    """Mean over each user's rows of weight * min(2, length^2 / longest^2) * curvature, one number per user.

    The curvature is (slope a `step` further along the slope - slope) / step; weights as in `fused.gradients`.
    """
    rows, targets, offsets = data
    lengths, longest = weighing
    n_outputs = weights.shape[0]
    here, there = np.empty(BLOCK_ROWS * n_outputs), np.empty(BLOCK_ROWS * n_outputs)
    block_targets = np.empty(BLOCK_ROWS)
    for j in range(users.shape[0]):
        first, last = offsets[users[j]], offsets[users[j] + 1]
        total = math.nan if first == last else 0.0
        for start in range(first, last, BLOCK_ROWS):
            n_rows = min(BLOCK_ROWS, last - start)
            predict_block(rows, start, n_rows, weights, here, 0)
            for i in range(n_rows * n_outputs):
                there[i] = here[i]
            for i in range(n_rows):
                block_targets[i] = targets[start + i]
            slopes(here, block_targets, n_rows)
            for i in range(n_rows):
                size = norm(here[i * n_outputs : (i + 1) * n_outputs])
                for c in range(n_outputs):  # along the slope, or along the first output where there is none
                    along = here[i * n_outputs + c] / size if size > 0.0 else (1.0 if c == 0 else 0.0)
                    there[i * n_outputs + c] += step * along
            slopes(there, block_targets, n_rows)
            for i in range(n_rows):
                size, change = norm(here[i * n_outputs : (i + 1) * n_outputs]), 0.0
                for c in range(i * n_outputs, (i + 1) * n_outputs):
                    change += here[c] * (there[c] - here[c])
                curvature = (change / size if size > 0.0 else there[i * n_outputs]) / step
                length = lengths[start + i]
                weight = longest / length if length > longest else 1.0
                total += weight * min(length * length / (longest * longest), 2.0) * curvature
        out[j, 0] = total / (last - first)


# --- bases and lengths ------------------------------------------------------------------------------------------------


@inner
def square_norm(vector: np.ndarray) -> float:
    total = 0.0
    for k in range(len(vector)):
        total += np.float64(vector[k]) * np.float64(vector[k])  # squares of float32 would be rounded
    return total


@inner
def dot(w: np.ndarray, x: np.ndarray) -> float:
    total = 0.0
    for k in range(len(x)):
        total += w[k] * x[k]
    return total


@inner
def norm(vector: np.ndarray) -> float:
    return math.sqrt(square_norm(vector))


@compiled
def turn_square(row: np.ndarray, basis: np.ndarray, out: np.ndarray) -> None:
    """out = row @ basis in its own type, four of the basis's rows at a time so that `out` loads and stores once."""
    n_features = len(row)
    out[:] = 0
    j = 0
    while j + 4 <= n_features:
        b0, b1, b2, b3 = basis[j], basis[j + 1], basis[j + 2], basis[j + 3]
        a0, a1, a2, a3 = row[j], row[j + 1], row[j + 2], row[j + 3]
        for k in range(n_features):
            out[k] += a0 * b0[k] + a1 * b1[k] + a2 * b2[k] + a3 * b3[k]
        j += 4
    while j < n_features:
        for k in range(n_features):
            out[k] += row[j] * basis[j, k]
        j += 1


Turned = tuple[np.ndarray, np.ndarray, np.ndarray]  # of `turned_by`: scales, matrix, starts


def turned_by(basis: np.ndarray, dtype: np.dtype[Any]) -> Turned:
    """A basis (features x directions) as `turn_block` takes it, for rows of this type; read-only.

    Its lines are scaled to at most 1 in size, so that it may be kept in single precision, in any units; columns are
    padded, and said where each block of them starts.
    """
    scales = np.abs(basis).max(axis=1, initial=0.0)
    scales[scales == 0] = 1.0
    width = tiles.padded(basis.shape[1])
    matrix = np.zeros((len(basis), width), dtype)
    matrix[:, : basis.shape[1]] = basis / scales[:, None]
    blocks = np.any(matrix.reshape(len(basis), width // tiles.COLUMNS, tiles.COLUMNS) != 0, axis=2)
    return read_only(scales), read_only(matrix), read_only(np.argmax(blocks, axis=0))


@inner
def turn_block(rows: Rows, start: int, n_rows: int, turned: Turned, block: np.ndarray, out: np.ndarray) -> None:
    """out[i] = rows[start + i] @ basis in the rows' own type, by the same operations for each; `block` is room."""
    scales, matrix, starts = turned
    for i in range(n_rows):
        scale_row(rows, start + i, scales, block[i])
    tiles.multiply_from(starts, block, n_rows, matrix, out)


@sparse.either(_OPTIONS, sparse.turned_lengths)
def _turned_lengths(rows: Any, first: int, basis: np.ndarray, turned: Turned, out: np.ndarray) -> None:
    """out[i] = |rows[first + i] @ basis|."""
    matrix = turned[1]
    block = np.zeros((BLOCK_ROWS, rows.shape[1]), matrix.dtype)
    along = np.empty((BLOCK_ROWS, matrix.shape[1]), matrix.dtype)
    for start in range(0, len(out), BLOCK_ROWS):
        n_rows = min(BLOCK_ROWS, len(out) - start)
        turn_block(rows, first + start, n_rows, turned, block, along)
        for i in range(n_rows):
            out[start + i] = norm(along[i])


@compiled
def _row_lengths(rows: Rows, first: int, basis: np.ndarray, turned: Turned, diagonal: bool, out: np.ndarray) -> None:
    """A diagonal is a basis of one row, which is said, not inferred: a single feature has a basis of one row, too."""
    spread = np.zeros(rows.shape[1])
    if diagonal:
        for i in range(len(out)):
            out[i] = math.sqrt(_row_square(rows, first + i, basis[0], spread))
    else:
        _turned_lengths(rows, first, basis, turned, out)


def row_lengths(
    rows: np.ndarray | SparseRows, basis: np.ndarray, out: np.ndarray | None = None, constant: bool = False
) -> np.ndarray:
    """|x @ basis| of each row in float32, in `out` if there is room; a basis that is a vector is a diagonal matrix.

    By the same operations for each row, whatever rows stand around it. A basis is turned into a triangular one, which
    gives the same lengths for half of the work.
    """
    held = rows_of(rows, constant)
    if len(basis) != held.shape[1]:  # the kernel would read beyond a row, and so another user's
        raise ValueError(f"Expected a basis of {held.shape[1]} features, got {len(basis)}.")
    diagonal = basis.ndim == 1
    matrix = np.zeros((len(basis), 0)) if diagonal else np.ascontiguousarray(triangular(basis))
    basis = read_only(np.ascontiguousarray(np.atleast_2d(basis)) if diagonal else matrix)
    turned = turned_by(matrix, rows.dtype)
    lengths = np.empty(len(rows), np.float32) if out is None else out

    def run(chunk: slice) -> None:
        _row_lengths(held, chunk.start, basis, turned, diagonal, lengths[chunk])

    over_chunks(run, len(rows), rows.size * len(basis))
    return lengths


def triangular(basis: np.ndarray) -> np.ndarray:
    """The lower triangular L = basis @ Q, Q a rotation: x @ L is as long as x @ basis, and L L' = basis basis'."""
    lower: np.ndarray = np.linalg.qr(basis.T).R.T
    return lower


@within
def size_of(length: float, longest: float, n_sizes: int) -> int:
    """k for a length above longest / 2^(k + 1), the last of them for any smaller one."""
    size, least = 0, longest / 2
    while size < n_sizes - 1 and length <= least:
        size, least = size + 1, least / 2
    return size


# --- moments ----------------------------------------------------------------------------------------------------------


@compiled
def mean_squares(data: Arrays, users: np.ndarray, out: np.ndarray) -> None:
    """Mean square of each feature over each user's rows."""
    rows, _, offsets = data
    ones, spread = np.ones(rows.shape[1]), np.zeros(rows.shape[1])
    for j in range(users.shape[0]):
        first, last = offsets[users[j]], offsets[users[j] + 1]
        out[j] = math.nan if first == last else 0.0
        for i in range(first, last):
            add_squares(rows, i, ones, spread, out[j])
        for k in range(rows.shape[1]):
            out[j, k] /= last - first


@within
def usable_length(length: float) -> bool:
    """Whether dividing by it makes a vector of length 1."""
    return length > 2.0**-400 and length < 2.0**400


@compiled
def moment_shapes(
    data: Arrays,
    users: np.ndarray,
    basis: np.ndarray,
    turned: Turned,
    threshold: float,
    sink: Any,
    parameters: np.ndarray,
    out: np.ndarray,
    total: np.ndarray,
) -> None:
    """The upper triangle of the mean of (B'x)(B'x)' over its length, or over `threshold` if that is more.

    Zeros where the length is extreme.

    B'x is computed in the rows' own type, and so are sums of products over 64 rows, unless that could be too rough (a
    length out of range, very many features); all else in float64. With a `basis`, a vector, B is diagonal, and so is
    what is kept of the moment; otherwise it is `turned`. Zeros also without rows, and for so many rows that rounding
    could turn shapes by more than `Clip` has room for (docs/proofs.md, section 22). A vector for each user in `out`,
    or, if there is a `total`, what the sink adds to it.
    """
    rows, _, offsets = data
    n_features, diagonal = rows.shape[1], basis.size > 0
    most_rows, spread = _MOST_TURNED / math.sqrt(n_features), np.zeros(n_features)
    room = _moment_room(n_features, turned)
    for j in range(users.shape[0]):
        first, last = offsets[users[j]], offsets[users[j] + 1]
        _read_ahead_of(rows, offsets, users[j + 1 : j + 2])
        place = j if total.size == 0 else 0
        shape = out[place]
        shape[:] = 0.0
        if diagonal:
            for i in range(first, last):
                add_squares(rows, i, basis, spread, shape)
            length = norm(shape)
        elif last - first <= most_rows:
            length = _set_moment(rows, first, last, turned, room, False, shape)
            if not _may_be_rounded(length, turned[1].itemsize, n_features):
                length = _set_moment(rows, first, last, turned, room, True, shape)
        else:
            length = 0.0
        # Sums of m rows, not means: both are divided by m.
        inverse = 1.0 / max(length, threshold * (last - first)) if usable_length(length) else 0.0
        for k in range(len(shape)):
            shape[k] = shape[k] * inverse if inverse > 0.0 else 0.0
        if total.size > 0:
            sink(out[:1], parameters, total)


@compiled
def _read_ahead_of(rows: Rows, offsets: np.ndarray, users: np.ndarray) -> None:
    """Ask for the first rows of these users."""
    for user in users:
        read_ahead(rows, offsets[user], min(BLOCK_ROWS, offsets[user + 1] - offsets[user]))


@compiled
def _may_be_rounded(length: float, bytes_of_number: int, n_features: int) -> bool:
    """Whether products of this type told a moment of this length well enough: see docs/proofs.md, section 22."""
    return bytes_of_number == 8 or (n_features <= _MOST_ROUNDED and length > 2.0**-60 and length < 2.0**60)


@compiled
def _moment_room(n_features: int, turned: Turned) -> Any:
    """For `_set_moment`: rows, turned rows and their products, and the last two in float64."""
    width, own = turned[1].shape[1], turned[1].dtype
    block, along = np.zeros((BLOCK_ROWS, n_features), own), np.empty((BLOCK_ROWS, width), own)
    return block, along, np.empty((width, width), own), np.empty((BLOCK_ROWS, width)), np.empty((width, width))


@compiled
def _set_moment(
    rows: Rows, first: int, last: int, turned: Turned, room: Any, exactly: bool, shape: np.ndarray
) -> float:
    """shape = sum (B'x)(B'x)' over these rows, as `_add_triangle` has it; gives its length.

    Products are added up in the type of B'x over 64 rows at most, or, if `exactly`, in float64.
    """
    block, along, products, exact, exact_products = room
    shape[:] = 0.0
    for start in range(first, last, BLOCK_ROWS):
        n_rows = min(BLOCK_ROWS, last - start)
        turn_block(rows, start, n_rows, turned, block, along)
        if exactly:
            for i in range(n_rows):
                for k in range(along.shape[1]):
                    exact[i, k] = along[i, k]
            tiles.squares(exact, n_rows, exact_products)
            _add_triangle(exact_products, rows.shape[1], 1.0, shape)
        else:
            tiles.squares(along, n_rows, products)
            _add_triangle(products, rows.shape[1], 1.0, shape)
    return norm(shape)


@compiled
def second_moments(data: Arrays, users: np.ndarray, largest: float, out: np.ndarray) -> None:
    """Upper triangle of mean(x x^T) over each user's rows, off-diagonal entries times sqrt(2).

    With `largest` > 0 each is divided by its length, and min(1, length / largest) follows as one more entry.
    A whole square of products, four rows at a time: loops of full length are faster than half as many short ones.
    Products are added up in the rows' own type, but no more than 256 rows before they join the float64 sum.
    """
    rows, _, offsets = data
    n_features = rows.shape[1]
    square = np.empty((n_features + 1, n_features), kind(rows))
    four = np.zeros((4, n_features + 1), kind(rows))  # a feature more, so that they come in pairs
    for j in range(users.shape[0]):
        first, last = offsets[users[j]], offsets[users[j] + 1]
        out[j] = math.nan if first == last else 0.0
        for begin in range(first, last, _PART_ROWS):
            square[:] = 0
            for start in range(begin, min(begin + _PART_ROWS, last), 4):
                for i in range(4):
                    four[i] = 0
                    if start + i < last:
                        copy_row(rows, start + i, four[i, :n_features])
                x0, x1, x2, x3 = four[0], four[1], four[2], four[3]
                for a in range(0, n_features, 2):
                    these, those = square[a], square[a + 1]
                    a0, a1, a2, a3 = x0[a], x1[a], x2[a], x3[a]
                    b0, b1, b2, b3 = x0[a + 1], x1[a + 1], x2[a + 1], x3[a + 1]
                    for k in range(n_features):
                        these[k] += a0 * x0[k] + a1 * x1[k] + a2 * x2[k] + a3 * x3[k]
                        those[k] += b0 * x0[k] + b1 * x1[k] + b2 * x2[k] + b3 * x3[k]
            _add_triangle(square, n_features, 1.0 / (last - first), out[j])
        if largest > 0.0:
            length = norm(out[j, :-1])
            for k in range(out.shape[1] - 1):
                out[j, k] = out[j, k] / length if length > 0.0 else out[j, k]
            out[j, -1] = length / largest if length < largest else (1.0 if length >= largest else math.nan)


@inner
def _add_triangle(square: np.ndarray, n_features: int, scale: float, out: np.ndarray) -> None:
    """Add the upper triangle, row by row and scaled, off-diagonal entries times sqrt(2)."""
    position = 0
    for a in range(n_features):
        sums = square[a, a:n_features]
        entries = out[position : position + n_features - a]
        entries[0] += scale * sums[0]
        for k in range(1, n_features - a):
            entries[k] += math.sqrt(2.0) * scale * sums[k]
        position += n_features - a
