"""The draws of randomised smoothing: one per row, of what the row is and of where it stands within its user."""

from __future__ import annotations

import numpy as np


def shifts(
    predictions: np.ndarray,
    squared_lengths: np.ndarray,
    targets: np.ndarray,
    numbers_within_user: np.ndarray,
    radius: float,
    seed: int,
    quantiles: np.ndarray,
) -> np.ndarray:
    """The predictions, each moved by radius |x| rho: how far a random point of a ball is along the row x.

    rho comes from `quantiles`, at equal steps from 0 to 1, at a pseudo-random place (splitmix64) made of the seed, the
    row's number within its user (from 0 on), its squared length, target and prediction: of nothing that another user
    could change. All arrays have an entry for each row; what is returned is in double precision.
    """
    with np.errstate(all="ignore"):
        mixed = _words(predictions)
        for word in (np.uint64(seed), numbers_within_user.astype(np.uint64), _words(squared_lengths), _words(targets)):
            mixed = (mixed ^ word) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
        last = len(quantiles) - 1
        places = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53 * last
        below = np.minimum(places.astype(np.int64), last - 1)
        rho = quantiles[below] + (places - below) * (quantiles[below + 1] - quantiles[below])
        return np.asarray(predictions + radius * np.sqrt(squared_lengths.astype(np.float64)) * rho)


def _words(numbers: np.ndarray) -> np.ndarray:
    """Numbers' bits in single precision: in what order they were added up does not matter. -0 is 0."""
    single = numbers.astype(np.float32) + np.float32(0)
    return single.astype(np.float64).view(np.uint64)
