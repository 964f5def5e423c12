"""Local randomisers: each user tells one coordinate of its vector, made private before anyone adds it up.

A user's coordinate is given by its place: place j tells coordinate j mod d. First some users vote for the bin their
coordinate is in; other users then tell their coordinate, clipped to an interval around that bin.

Paper: Bassily and Sun 2023, Alg. 5. Their rotation is `userdp_research.rotation`.
Differs: both kinds of users are steps of a plan, on disjoint users, so each pays for what it tells and no more; noise
is calibrated exactly (the printed one is half of what the source's own lemma asks for).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from userdp._validate import check_record
from userdp.privacy.accounting import Cost
from userdp.privacy.mechanism import Mechanism, Session, Users, Vectors
from userdp.privacy.noise import Noise
from userdp_research.mechanisms.winsorized import bins_of


@dataclass(frozen=True)
class LocalVotes(Mechanism):
    """For each coordinate the middle of the bin that gets most votes of its users.

    With r the radius at release time, [-n_bins r, n_bins r] is cut into `n_bins` bins of width 2r; a number outside is
    in the last bin there, one that is not finite counts as 0. A user names its own bin with the probability `truth`
    and otherwise any bin, each as likely (randomised response).

    Guarantee: every user's vote by itself, and so all of them, are pure epsilon-DP, for any vectors. Proof:
    docs/proofs.md, section 19.
    """

    kind: ClassVar[str] = "local-votes"
    n_vectors: int
    epsilon: float
    n_bins: int

    rounds = 1

    def __post_init__(self) -> None:
        check_record(self, ("epsilon",), ("n_vectors", "n_bins"))

    @property
    def cost(self) -> Cost:
        return Cost(pure=(self.epsilon,))

    def sensitivity(self, radius: float, dimension: int) -> float:
        """One vote; it gets no noise, but is drawn."""
        return 1.0

    @property
    def truth(self) -> float:
        """(e^epsilon - 1) / (e^epsilon - 1 + n_bins), rounded down."""
        kept = -math.expm1(-self.epsilon)
        return kept / (kept + self.n_bins * math.exp(-self.epsilon)) * (1 - 2.0**-49)

    def start(self, noise: Noise) -> _Votes:
        return _Votes(self, noise)


class _Votes(Session):
    def __init__(self, record: LocalVotes, noise: Noise) -> None:
        self._record, self._noise, self._open = record, noise, True

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        self._open = _once(self._open)
        record = self._record
        values, coordinates = own_values(vectors, record.n_vectors)
        own, n_bins = bins_of(values, radius, record.n_bins), record.n_bins
        honest = self._noise.poisson_mask(np.full(len(own), record.truth))
        said = np.where(honest, own, self._noise.integers(len(own), n_bins))
        votes = np.bincount(coordinates * n_bins + said, minlength=vectors.shape[1] * n_bins)
        winner = np.argmax(votes.reshape(-1, n_bins), axis=1)
        return np.asarray((2 * winner + 1 - n_bins) * radius, dtype=np.float64)


@dataclass(frozen=True)
class LocalReports(Mechanism):
    """For each coordinate the mean of what its users tell: their own number, clipped to +-radius, + N(0, s^2) by each.

    s = noise_multiplier * 2 radius. A number that is not finite counts as 0. Where numbers are expected around another
    middle than 0, the statistic subtracts it.

    Guarantee: every user's report by itself, and so all of them, are 1 / noise_multiplier^2 (Gaussian), for any
    vectors. Proof: docs/proofs.md, section 19.
    """

    kind: ClassVar[str] = "local-reports"
    n_vectors: int
    noise_multiplier: float

    rounds = 1

    def __post_init__(self) -> None:
        check_record(self, ("noise_multiplier",), ("n_vectors",))

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=math.nextafter(1 / self.noise_multiplier**2, math.inf))

    def sensitivity(self, radius: float, dimension: int) -> float:
        """Of one user's own number."""
        return 2 * radius

    def start(self, noise: Noise) -> _Reports:
        return _Reports(self, noise)


class _Reports(Session):
    def __init__(self, record: LocalReports, noise: Noise) -> None:
        self._record, self._noise, self._open = record, noise, True

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        self._open = _once(self._open)
        values, coordinates = own_values(vectors, self._record.n_vectors)
        clipped = np.clip(values, -radius, radius)
        # One call for all users. A user is one coordinate of this vector, so noise is drawn for each by itself.
        told = self._noise.gaussian(clipped, self._record.sensitivity(radius, 1), self._record.noise_multiplier)
        totals = np.bincount(coordinates, weights=told, minlength=vectors.shape[1])
        return np.asarray(totals / np.bincount(coordinates, minlength=vectors.shape[1]))


def own_values(vectors: Vectors, n_priced: int) -> tuple[Vectors, Users]:
    """Each user's number and which coordinate it is: row j's coordinate is j mod d."""
    n_vectors, dimension = vectors.shape
    if n_vectors != n_priced or n_vectors < dimension:
        raise ValueError(f"Expected {n_priced} vectors, as was priced, and at least one for each of {dimension}.")
    coordinates = np.arange(n_vectors) % dimension
    values = vectors[np.arange(n_vectors), coordinates]
    return np.where(np.isfinite(values), values, 0.0), coordinates


def _once(still_open: bool) -> bool:
    """False, for the session that releases now; raises if it has released before."""
    if not still_open:
        raise RuntimeError("These users have told what was paid for.")
    return False
