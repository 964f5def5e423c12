"""Generated users by name: every scenario's public settings in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from userdp import losses
from userdp.losses import Loss

LOSSES: dict[str, Loss] = {
    "logistic": losses.logistic,
    "squared": losses.squared,
    "huber": losses.huber(0.2),
    "multinomial": losses.multinomial(3),
}


@dataclass(frozen=True)
class Scenario:
    """Users of a kind, and the numbers of them that are tried.

    `sizes` are the rows of users, in turn (half of the users each, if two), of which `cap` are kept and declared;
    `features` besides the constant 1; `signal` is the first feature's true weight, the second's is -1/2 of it, the
    others' are 0; `base_rate` of class 1 (logistic only); `correlation` of every two features; `odd_units` puts
    features into units over five orders of magnitude, with means of ten standard deviations; `radius` of the domain,
    None for the default.
    """

    name: str
    loss: str
    users: tuple[int, ...]
    sizes: tuple[int, ...] = (1,)
    cap: int = 50
    features: int = 10
    signal: float = 2.0
    base_rate: float = 0.5
    correlation: float = 0.0
    odd_units: bool = False
    radius: float | None = None

    @property
    def rows(self) -> int:
        """The most rows that are kept of a user."""
        return max(self.kept)

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(min(size, self.cap) for size in self.sizes)

    def settings(self) -> dict[str, Any]:
        """What tells it from others, for JSON; the numbers of users are those of cells."""
        known = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "users"}
        return known | {"sizes": list(self.sizes)}

    @staticmethod
    def from_settings(settings: dict[str, Any]) -> Scenario:
        """Inverse of `settings`, but for the numbers of users."""
        return Scenario(**settings | {"sizes": tuple(settings["sizes"]), "users": ()})


def _logistic(name: str, users: tuple[int, ...], rows: int, **more: Any) -> Scenario:
    return Scenario(name, "logistic", users, (rows,), **more)


_SOME, _MANY = (2_000, 20_000), (2_000, 20_000, 200_000)
_REGRESSION: dict[str, Any] = {"signal": 0.2}  # targets are then within [-1, 1], mostly, as estimators scale them

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        _logistic("few-weights", (3_000, 20_000, 200_000), 1, features=3),
        *(_logistic(f"rows-{rows}", _MANY, rows) for rows in (1, 2, 3, 10)),
        _logistic("rows-50", (2_000, 20_000, 50_000), 50),
        _logistic("features-20", (5_000, 50_000), 1, features=20),
        _logistic("features-40", (5_000, 20_000), 2, features=40),
        _logistic("features-100", (20_000, 100_000), 3, features=100),
        _logistic("rare-1", (5_000, 50_000, 200_000), 1, base_rate=0.02, signal=1.0),
        _logistic("rare-10", (5_000, 50_000), 10, base_rate=0.02, signal=1.0),
        _logistic("correlated", (5_000, 50_000), 3, features=20, correlation=0.9),
        _logistic("usual-units", (5_000, 50_000), 5),
        _logistic("odd-units", (5_000, 50_000), 5, odd_units=True, radius=1_000.0),
        Scenario("unequal", "logistic", (2_000, 20_000), (1, 300)),
        Scenario("unequal-uncut", "logistic", (2_000, 20_000), (1, 300), cap=300),
        Scenario("squared-1", "squared", _MANY, (1,), **_REGRESSION),
        Scenario("squared-10", "squared", _SOME, (10,), **_REGRESSION),
        Scenario("huber-1", "huber", _MANY, (1,), **_REGRESSION),
        Scenario("huber-10", "huber", _SOME, (10,), **_REGRESSION),
        Scenario("multinomial-1", "multinomial", _MANY, (1,)),
        Scenario("multinomial-10", "multinomial", _SOME, (10,)),
    )
}
QUICK = ("few-weights", "rows-3", "rare-1", "odd-units", "unequal", "squared-1", "huber-1", "multinomial-1")


def with_sizes(scenario: Scenario, sizes: Sequence[int] | None, cap: int | None) -> Scenario:
    """Other sizes and another cap, where users are unequal."""
    if len(scenario.sizes) == 1:
        return scenario
    return replace(scenario, sizes=tuple(sizes or scenario.sizes), cap=cap or scenario.cap)
