"""Levels that many users have: noisy counts of users, of which those above a threshold are released by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from userdp._validate import check_record
from userdp.privacy.accounting import REPLACE_ONE, ZERO_OUT, Cost, check_relation
from userdp.privacy.clip import grid_bits
from userdp.privacy.mechanism import Integers, Mechanism, Session, Vectors
from userdp.privacy.noise import Noise, threshold_noise

_WORD = 2.0**48  # a word is a whole number below


@dataclass(frozen=True)
class Vocabulary(Mechanism):
    """The texts that many users have, with noisy counts; of a text that one user alone has nothing shows.

    A vector holds up to `levels_per_user` texts, each as `n_words` whole numbers of 6 bytes; what is no such text is
    left out, and a text counts once. A user with k of them adds 1/sqrt(k) to the count of each. Counts of those texts
    that any user has get Gaussian noise of standard deviation noise_multiplier * sqrt(2), and those that are then at
    least `threshold` are released, the `max_levels` largest: count and words, one after the other. The radius does not
    matter.

    failure: the chance, at most, that one user's own texts pass, which is a part of delta.
    neighbours: with "zero-out" a user's texts are taken away, which moves all counts by 1 together: noise has standard
    deviation noise_multiplier.

    Guarantee: 1 / noise_multiplier^2 (Gaussian) and `failure`, for any vectors and neighbours of this relation. Proof:
    docs/proofs.md, sections 29 and 33.
    Paper: Rogers 2023, "A Unifying Privacy Analysis Framework for Unknown Domain Algorithms in Differential Privacy".
    """

    kind: ClassVar[str] = "vocabulary"
    n_vectors: int
    noise_multiplier: float
    failure: float
    levels_per_user: int = 3
    max_levels: int = 20
    n_words: int = 8
    block: int = 65536
    neighbours: str = REPLACE_ONE

    rounds = 1

    def __post_init__(self) -> None:
        check_relation(self.neighbours)
        counts = ("n_vectors", "levels_per_user", "max_levels", "n_words", "block")
        check_record(self, ("noise_multiplier",), counts, chances=("failure",))
        _ = self.noise  # raises now, and not after a charge, if there is none

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=math.nextafter(1 / self.noise_multiplier**2, math.inf), failure=self.failure)

    @property
    def bits(self) -> int:
        """A user counts 2^bits steps: few enough for all of them to fit into 62 bits."""
        return grid_bits(self.n_vectors)

    def weight(self, n_levels: int) -> int:
        """What a user with so many levels adds to each of them, in steps: 2^bits / sqrt(n), rounded down."""
        return math.isqrt(4**self.bits // n_levels)

    @property
    def moved_steps(self) -> int:
        """How far, at most, a user moves all counts together (l2), in steps.

        Replaced, by sqrt(2) users, rounded up; zeroed out, by one, since each of k counts moves by at most 1/sqrt(k).
        """
        return 2**self.bits if self.neighbours == ZERO_OUT else math.isqrt(2 * 4**self.bits) + 1

    def sensitivity(self, radius: float, dimension: int) -> float:
        """The same in users; whatever the radius."""
        return self.moved_steps * 2.0**-self.bits

    @property
    def noise(self) -> tuple[float, int]:
        """Standard deviation and threshold of counts, in steps, as OpenDP's privacy map certifies them."""
        n_levels = self.levels_per_user * (1 if self.neighbours == ZERO_OUT else 2)  # whose counts move
        moved = (n_levels, self.moved_steps, self.weight(1))
        return threshold_noise(self.noise_multiplier, self.failure, *moved)

    @property
    def threshold(self) -> float:
        """How many users a level needs, noise counted in."""
        return self.noise[1] * 2.0**-self.bits

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(Session):
    def __init__(self, record: Vocabulary, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._left, self._counts = record.n_vectors, dict[bytes, int]()

    def add(self, vectors: Vectors, radius: float) -> None:
        """Count the texts of some users, each of whom comes once."""
        record = self._record
        if vectors.shape[1] != record.levels_per_user * record.n_words:
            raise ValueError("Expected vectors with as many words as was priced.")
        self._left -= len(vectors)
        words = np.ascontiguousarray(vectors.reshape(-1, record.n_words) + 0.0)  # -0 is 0
        valid = ((words >= 0) & (words < _WORD) & (words == np.floor(words))).all(axis=1) & (words[:, 0] > 0)
        owners = np.repeat(np.arange(len(vectors)), record.levels_per_user)[valid]
        if not len(owners):
            return
        whole = words[valid].view(np.dtype((np.void, 8 * record.n_words)))[:, 0]
        texts, codes = np.unique(whole, return_inverse=True)
        owner, code = np.divmod(np.unique(owners * len(texts) + codes), len(texts))  # each of a user's texts once
        weights: Integers = np.array([0, *map(record.weight, range(1, record.levels_per_user + 1))], dtype=np.int64)
        totals: Integers = np.zeros(len(texts), dtype=np.int64)
        np.add.at(totals, code, weights[np.bincount(owner)[owner]])
        for text, total in zip(texts, totals.tolist(), strict=True):
            key = text.tobytes()
            self._counts[key] = self._counts.get(key, 0) + total

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        record = self._record
        if self._left <= 0:
            raise RuntimeError("These levels were released and paid for.")
        self.add(vectors, radius)
        if self._left != 0:
            raise ValueError(f"Expected {record.n_vectors} vectors, as was priced.")
        keys = sorted(self._counts)
        counts = {str(number): self._counts[key] for number, key in enumerate(keys)}
        std, threshold = record.noise
        passed = self._noise.thresholded(counts, std, threshold)
        largest = sorted(passed, key=lambda number: (-passed[number], int(number)))[: record.max_levels]
        found = [[passed[number] * 2.0**-record.bits, *np.frombuffer(keys[int(number)])] for number in largest]
        return np.array(found, dtype=np.float64).reshape(-1)
