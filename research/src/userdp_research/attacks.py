"""What the audit plays on the mechanisms of this package, each priced to cost the whole budget."""

from __future__ import annotations

import math

from userdp.auditing.pairs import Pair, mean_pairs, sampled_pairs
from userdp.auditing.priced import gaussian, split
from userdp.privacy.accounting import Budget, subsampled_multiplier
from userdp_research.mechanisms.clip_with_fraction import ClipWithFraction
from userdp_research.mechanisms.local import LocalReports, LocalVotes
from userdp_research.mechanisms.mixtures import row_multiplier
from userdp_research.mechanisms.perturbation import Perturbation
from userdp_research.mechanisms.sampled_rows import SampledRows
from userdp_research.mechanisms.winsorized import Winsorized


def mechanism_pairs(budget: Budget) -> list[Pair]:
    """Every attack on every mechanism of this package."""
    return [
        *sampled_pairs("ClipWithFraction", clip_with_fraction(budget)),
        *mean_pairs("Winsorized", winsorized(budget)),
        *mean_pairs("Winsorized, sampled", winsorized(budget, sampling_probability=0.5)),
        *mean_pairs("SampledRows", sampled_rows(budget, rows=1)),
        *mean_pairs("SampledRows, 3 rows", sampled_rows(budget, rows=3)),
        *mean_pairs("Perturbation", Perturbation(gaussian(budget)))[:1],
        *mean_pairs("LocalVotes", LocalVotes(1, budget.epsilon, 2)),
        *mean_pairs("LocalReports", LocalReports(1, gaussian(budget))),
    ]


def clip_with_fraction(budget: Budget) -> ClipWithFraction:
    """Samples of two users; the fraction has 3 parts of 10."""
    joint = subsampled_multiplier(budget, 0.5, 1) / 2 * (1 + 1e-6)  # a replacement is twice an addition
    of_mean, of_fraction = (joint / math.sqrt(part) for part in (0.7, 0.3))
    return ClipWithFraction(2, of_mean, sampling_probability=0.5, fraction_multiplier=of_fraction)


def winsorized(budget: Budget, sampling_probability: float = 1.0) -> Winsorized:
    """Enough vectors for the interval to be found, so that nearly all of the budget is seen in the mean."""
    sampled = sampling_probability < 1
    multiplier = subsampled_multiplier(budget, sampling_probability, 1) * (1 + 1e-6) if sampled else gaussian(budget)
    mean, count = split(multiplier)
    return Winsorized(400, 3, count, mean, 1, sampling_probability)


def sampled_rows(budget: Budget, rows: int) -> SampledRows:
    """Half of so many rows a user."""
    return SampledRows(1, rows, 0.5, row_multiplier(budget, rows, 0.5, 1), budget.epsilon * (1 - 1e-8))
