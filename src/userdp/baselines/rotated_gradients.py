"""Users' gradients after a public rotation: how wide their coordinates are spread, from public numbers.

With tau the root mean square distance of a user's mean gradient from the average one, k coordinates after rotation and
n users, coordinates are expected within

    tau' = tau min(1, sqrt(2 ln(2n) / k))

of their mean: for signs drawn at random a vector of length tau has a coordinate beyond tau sqrt(2 ln(2n) / k) with a
chance of at most 1/n, and no coordinate is beyond the vector's length. Accuracy rests on this, privacy does not.
Paper: Levy et al. 2021, who have 10 tau sqrt(ln(k n / alpha) / k).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from userdp.baselines.rotation import rotated_size
from userdp.solvers.problem import Problem


@dataclass(frozen=True)
class Coordinates:
    """Rotated gradients in numbers: `size` coordinates, bins of width 2 `radius`, `n_bins` of them in the range.

    spread: tau; reach: how far clipped values may be from the middle of their interval, a bin widened by one on both
    sides or the whole range.
    """

    size: int
    spread: float
    radius: float
    n_bins: int

    @property
    def reach(self) -> float:
        return min(3, self.n_bins) * self.radius

    @property
    def range(self) -> float:
        return self.n_bins * self.radius


def coordinates(problem: Problem, n_users: int, rows_per_user: int) -> Coordinates:
    """Coordinates of users' mean gradients, which are at most as long as the Lipschitz constant."""
    spread = math.sqrt(problem.user_variance(rows_per_user))
    size = rotated_size(problem.dimension)
    radius = spread * min(1.0, math.sqrt(2 * math.log(2 * n_users) / size))
    return Coordinates(size, spread, radius, math.ceil(problem.lipschitz / radius))
