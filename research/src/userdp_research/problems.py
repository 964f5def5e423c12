"""Problems of users whose rows are as different as rows of different users are."""

from __future__ import annotations

from typing import ClassVar

from userdp.solvers.problem import Problem


class IndependentRows(Problem):
    """Theorems assume it; userdp's planners take a user's rows to be somewhat alike."""

    row_similarity: ClassVar[float] = 0.0
