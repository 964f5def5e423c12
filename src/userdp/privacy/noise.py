"""Randomness that protects users: noise drawn by OpenDP, permutations and samples from the operating system.

Floating-point noise added naively leaks through its low bits (Mironov 2012). OpenDP rounds the query to a grid and
adds exactly sampled discrete noise on that grid. The rounding enlarges the sensitivity by grid * sqrt(d); OpenDP's own
privacy map charges it, and `gaussian` enlarges the noise until that map certifies the multiplier asked for. A grid of
2^-40 standard deviations makes the rest (discrete against continuous Gaussian) cost less than the accountant's
reserve: docs/proofs.md, section 7. A coarser grid, or noise for whole numbers in steps of the grid, would hardly be
faster (measured): OpenDP's time goes into random bytes and exact arithmetic, whatever the scale and type.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from opendp.domains import atom_domain, map_domain, vector_domain
from opendp.measurements import make_gaussian, make_gaussian_threshold, make_laplace
from opendp.metrics import absolute_distance, l02inf_distance, l1_distance, l2_distance
from opendp.mod import Domain, Measurement, Metric, enable_features  # the prelude would load pandas and scikit-learn

from userdp._validate import check_positive, check_seed

enable_features("contrib")

Vector = NDArray[np.float64]

# The grid is 2^-40 times the largest power of two that is <= the noise scale.
GRID_BITS = 40
_LEAST_DRAWN = 200  # coordinates for which a thread of their own pays

# Standard deviations above which no threshold is looked for: the map counts in floats, in steps of 2^-53 a key.
_FARTHEST = 12


class SecureNoise:
    """The only private source: OpenDP's samplers and the operating system's random bytes.

    Guarantee: `gaussian` satisfies rho-zCDP with rho <= 1/(2 multiplier^2) and, up to the accountant's reserve,
    (1/multiplier)-GDP, for queries of this l2-sensitivity; `laplace` and `integer_laplace` are pure epsilon-DP.
    """

    seed = None  # a seed would make the draws NOT PRIVATE
    state: Any = None  # where a seeded source stands, in numbers and words

    def gaussian(self, query: Vector, sensitivity: float, multiplier: float) -> Vector:
        """query + N(0, (multiplier * sensitivity)^2 I), rounded towards privacy."""
        return _added("gaussian", query, gaussian_std(sensitivity, multiplier, query.size))

    def laplace(self, query: Vector, sensitivity: float, epsilon: float) -> Vector:
        """query + Laplace(sensitivity / epsilon) in each coordinate, rounded towards privacy; l1-sensitivity."""
        return _added("laplace", query, laplace_scale(sensitivity, epsilon, query.size))

    def integer_laplace(self, query: int, scale: float) -> int:
        """query + discrete Laplace: P(k) proportional to exp(-|k|/scale)."""
        return int(_integer_measurement(scale)(int(query)))

    def thresholded(self, counts: Mapping[str, int], std: float, threshold: int) -> dict[str, int]:
        """Counts with discrete Gaussian noise, of those keys only for which they are then at least the threshold."""
        return dict(_threshold_measurement(std, threshold)(dict(counts)))

    def permutation(self, n: int) -> NDArray[np.int64]:
        """A uniformly random order of 0..n-1."""
        keys = _random_words(n)
        order = np.argsort(keys, kind="stable").astype(np.int64)
        # Equal keys would favour the original order. With 64-bit keys this is once in 10^7 for a million users.
        return order if np.all(np.diff(keys[order]) != 0) else self.permutation(n)

    def poisson_mask(self, probabilities: Vector) -> NDArray[np.bool_]:
        """A Poisson mask: independent booleans, true with these probabilities (rounded down to multiples of 2^-53)."""
        uniform = (_random_words(len(probabilities)) >> np.uint64(11)).astype(np.float64)
        return np.asarray(uniform < np.floor(probabilities * 2.0**53))

    def integers(self, n: int, high: int) -> NDArray[np.int64]:
        """n independent whole numbers from 0 to high - 1, each equally likely."""
        return np.array([secrets.randbelow(high) for _ in range(n)], dtype=np.int64)


class SeededNoise:
    """NOT PRIVATE: the same draws, reproducible. Anyone who knows the seed can remove the noise."""

    def __init__(self, insecure_seed: int) -> None:
        self.seed = insecure_seed
        self._generator = np.random.default_rng(insecure_seed)

    @property
    def state(self) -> Any:
        return self._generator.bit_generator.state

    @state.setter
    def state(self, stands: Any) -> None:
        self._generator.bit_generator.state = stands

    def gaussian(self, query: Vector, sensitivity: float, multiplier: float) -> Vector:
        std = gaussian_std(sensitivity, multiplier, query.size)
        return np.asarray(query + self._generator.normal(0.0, std, query.shape))

    def laplace(self, query: Vector, sensitivity: float, epsilon: float) -> Vector:
        return np.asarray(query + self._generator.laplace(0.0, sensitivity / epsilon, query.shape))

    def integer_laplace(self, query: int, scale: float) -> int:
        # The difference of two geometric variables is discrete Laplace.
        success = -math.expm1(-1 / scale)
        return int(query + self._generator.geometric(success) - self._generator.geometric(success))

    def thresholded(self, counts: Mapping[str, int], std: float, threshold: int) -> dict[str, int]:
        noisy = {key: count + round(self._generator.normal(0.0, std)) for key, count in counts.items()}
        return {key: count for key, count in noisy.items() if count >= threshold}

    def permutation(self, n: int) -> NDArray[np.int64]:
        return self._generator.permutation(n).astype(np.int64)

    def poisson_mask(self, probabilities: Vector) -> NDArray[np.bool_]:
        return np.asarray(self._generator.random(len(probabilities)) < probabilities)

    def integers(self, n: int, high: int) -> NDArray[np.int64]:
        return self._generator.integers(high, size=n, dtype=np.int64)


Noise: TypeAlias = SecureNoise | SeededNoise  # what mechanisms may draw from


def noise_source(insecure_seed: int | None = None) -> Noise:
    """The private source, or a reproducible one that is NOT PRIVATE if `insecure_seed` is given."""
    seed = check_seed(insecure_seed)
    return SecureNoise() if seed is None else SeededNoise(seed)


def gaussian_std(sensitivity: float, multiplier: float, dimension: int) -> float:
    """Least found standard deviation >= multiplier * sensitivity that also pays for OpenDP's grid.

    >>> 5.0 < gaussian_std(1.0, 5.0, 1000) < 5.0 * (1 + 1e-8)
    True
    """
    sensitivity, multiplier = check_positive(sensitivity=sensitivity, multiplier=multiplier)
    return _certified_scale("gaussian", sensitivity * multiplier, sensitivity, 1 / (2 * multiplier**2), dimension)


def laplace_scale(sensitivity: float, epsilon: float, dimension: int) -> float:
    """Least found Laplace scale >= sensitivity / epsilon that also pays for OpenDP's grid.

    >>> 2.0 < laplace_scale(1.0, 0.5, 10) < 2.0 * (1 + 1e-8)
    True
    """
    sensitivity, epsilon = check_positive(sensitivity=sensitivity, epsilon=epsilon)
    return _certified_scale("laplace", sensitivity / epsilon, sensitivity, epsilon, dimension)


@lru_cache(maxsize=1024)
def _certified_scale(kind: str, scale: float, sensitivity: float, allowed: float, dimension: int) -> float:
    """`scale`, enlarged until OpenDP's privacy map (rho for Gaussian, epsilon for Laplace) is at most `allowed`.

    What rounding to the grid adds to the sensitivity is enough, but for the map's own rounding: the map decides.
    """
    added = 2.0**-GRID_BITS * (math.sqrt(dimension) if kind == "gaussian" else dimension)
    extra = 1.01 * added * scale / sensitivity + 2.0**-48
    enlarged = scale * (1 + extra)  # `scale` itself hardly ever pays for the grid, and to ask costs as much as noise
    while not _measurement(kind, enlarged, dimension).map(sensitivity) <= allowed:
        extra *= 2
        enlarged = scale * (1 + extra)
    return enlarged


@lru_cache(maxsize=64)
def threshold_noise(multiplier: float, failure: float, keys: int, moved: int, largest: int) -> tuple[float, int]:
    """Standard deviation and threshold for counts of which one user changes `keys`, together by `moved` (l2).

    None changes by more than `largest`. OpenDP's privacy map decides: at most 1/(2 multiplier^2) of zCDP, and at most
    `failure` for keys that one user alone has; raises ValueError if it certifies no threshold of 64 bits.

    >>> std, threshold = threshold_noise(10.0, 1e-8, 2, 1000, 1000)
    >>> 1e4 <= std < 1.0001e4, 5.6 * std < threshold < 6 * std
    (True, True)
    """
    check_positive(multiplier=multiplier, failure=failure)
    std, extra = multiplier * moved, 2.0**-48
    while not _threshold_measurement(std, largest).map((keys, moved, largest))[0] <= 1 / (2 * multiplier**2):
        std, extra = multiplier * moved * (1 + extra), 2 * extra
    threshold = largest
    for step in (1.0, 0.01, 1e-4):
        # The least multiple of this step, from the last one below, that the map certifies.
        threshold = max(largest, threshold - round(100 * step * std) * (step < 1))
        while not _threshold_measurement(std, threshold).map((keys, moved, largest))[1] <= failure:
            threshold += math.ceil(step * std)
            if threshold > min(largest + _FARTHEST * std, 2**63 - 1):
                raise ValueError(
                    f"Expected noise of multiplier={multiplier:g} and failure={failure:g} for which a threshold can be "
                    "certified: take less noise, or a larger failure, above 1e-15 for each of a user's keys."
                )
    return std, threshold


@lru_cache(maxsize=64)
def _threshold_measurement(std: float, threshold: int) -> Measurement:
    domain = map_domain(atom_domain(T="String"), atom_domain(T="i64"))
    return make_gaussian_threshold(domain, l02inf_distance(absolute_distance(T="i64")), scale=std, threshold=threshold)


@lru_cache(maxsize=64)
def _integer_measurement(scale: float) -> Measurement:
    return make_laplace(atom_domain(T="i64"), absolute_distance(T="i64"), scale=scale)


def _added(kind: str, query: Vector, scale: float) -> Vector:
    """The query with noise of this scale in each coordinate, on all processors that there are.

    OpenDP rounds a coordinate and draws its noise by itself, on a grid that the scale decides, so parts of a vector are
    noised as the whole would be. The scale is that of the whole vector: `_certified_scale` asked the map of all
    coordinates at once.
    """
    n_parts = max(1, min(os.cpu_count() or 1, query.size // _LEAST_DRAWN))
    parts = [part.tolist() for part in np.array_split(query, n_parts)]
    measurements = [_measurement(kind, scale, len(part)) for part in parts]
    if n_parts == 1:
        return np.asarray(measurements[0](parts[0]), dtype=np.float64)
    with ThreadPoolExecutor(n_parts) as pool:  # OpenDP draws without Python's lock
        drawn = pool.map(lambda measurement, part: measurement(part), measurements, parts)
        return np.concatenate([np.asarray(part, dtype=np.float64) for part in drawn])


@lru_cache(maxsize=64)
def _measurement(kind: str, scale: float, dimension: int) -> Measurement:
    make, domain, metric = _space(kind, dimension)
    return make(domain, metric, scale=scale, k=math.frexp(scale)[1] - 1 - GRID_BITS)


@lru_cache(maxsize=64)
def _space(kind: str, dimension: int) -> tuple[Any, Domain, Metric]:
    domain = vector_domain(atom_domain(T=float, nan=False), size=dimension)
    if kind == "gaussian":
        return make_gaussian, domain, l2_distance(T=float)
    return make_laplace, domain, l1_distance(T=float)


def _random_words(n: int) -> NDArray[np.uint64]:
    return np.frombuffer(os.urandom(8 * n), dtype=np.uint64)
