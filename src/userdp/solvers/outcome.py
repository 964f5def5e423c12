"""What a run tells: a phase's summary, and what to do after an abort. From releases and public numbers only."""

from __future__ import annotations

from typing import Protocol


class Phase(Protocol):
    """What phases of all solvers have."""

    @property
    def n_users(self) -> int:
        """Users of the phase."""

    @property
    def radius(self) -> float:
        """What theory expects two vectors to be apart."""

    @property
    def noise_ratio(self) -> float:
        """Noise std / radius used."""


def summary(phase: Phase, radius: float, **own: float) -> dict[str, float]:
    """A phase in numbers: the radius it used, and the solver's own ones."""
    noise_std = phase.noise_ratio * radius
    return {"users": phase.n_users} | own | {"expected_radius": phase.radius, "radius": radius, "noise_std": noise_std}


def unusable_advice() -> str:
    """What an abort means where the only test is how many users have a gradient at all."""
    return (
        "A private count found that more than a quarter of the users have no finite gradient. The result is the start, "
        "and the budget of this run is spent. Check, most likely first: (1) are missing values filled, and infinite "
        "ones? With one of them a user is lost; (2) are the classes exactly the labels, or targets numbers?"
    )


HIDDEN_ADVICE = (
    "Noise hides small columns, and the intercept, among far larger ones: the model may miss what they tell. Scale "
    "columns by public ranges (PublicScaler), give public_X, or have more users or a larger epsilon."
)

CLIPPED_ADVICE = (
    "Clipping is likely to dominate the error: with so few rows per user, and so much noise, predictions may be too "
    "extreme (calibration slopes below 0.9). Have more users, a larger epsilon, or fewer features."
)


def abort_advice(far: str, lost: str, stands: str) -> str:
    """What a failed test means: who is `far` from the others, who is `lost` by one NaN, and what result `stands`.

    Vectors are farther apart than expected where gradients are longer than declared, or steps too bold: hence the
    advice. A row_norm that is too large makes noise, never an abort.
    """
    return (
        f"A private test failed: too many {far} far from the others. The result is {stands}, and the budget of this "
        "run is spent. Check, most likely first: (1) are features of size about 1? Scale them by public ranges "
        "(PublicScaler), or raise row_norm; (2) are missing values filled? With one NaN "
        f"{lost} is lost; (3) are the classes exactly the labels, or targets within their range? (4) is an id among "
        "the features?"
    )
