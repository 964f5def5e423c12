"""What a run guaranteed and what each of its parts cost: public numbers only, to be shown and kept with the model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from userdp.privacy.accounting import Budget, BudgetExceeded, epsilon_at, gaussian_multiplier, rounded_up
from userdp.privacy.ledger import ODOMETER, Ledger
from userdp.privacy.plan import Plan, Step
from userdp.privacy.tradeoff import Tradeoff, in_percent, right_guess, tradeoff

COVERS = "this fit alone, with its hyperparameters taken as public"
NOT_COVERED = (
    "Other releases from the same people (fits in a search or a cross-validation, say) are not covered: they add up, "
    "and a ledger that all of them share keeps count.",
    "Choosing hyperparameters by looking at the data is not covered, unless that look was itself private.",
    "Adding or removing a person is not covered by replacement with a public number of users.",
)

_SEEDED = (
    "NOT PRIVATE: the run was seeded (insecure_seed), so its noise can be computed and taken off. For tests and "
    "research only: do not publish what came of it."
)


@dataclass(frozen=True)
class Part:
    """One step of the plan: its mechanism and what it costs.

    `epsilon_alone` is what it would cost by itself at the statement's delta. `fraction` is its part of what those who
    pay most of the users in it pay, counted in mu^2 of the Gaussian mechanism that would cost as much.
    """

    step: str
    mechanism: str
    record: str
    first_user: int
    last_user: int
    releases: int
    epsilon_alone: float
    fraction: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in which `fraction` is called share, as in the files of 0.1.0."""
        record = asdict(self)
        return record | {"share": record.pop("fraction")}

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Part:
        """The part that `to_dict` made this of."""
        fields = dict(record)
        return Part(fraction=fields.pop("share"), **fields)


@dataclass(frozen=True)
class Statement:
    """The guarantee of one run.

    `unit` is who is protected: "user" with all their rows, or "row". `warning` is empty if nothing weakens the
    guarantee. `ledger_path` is the name of the file of the ledger that it was charged to, `ledger_epsilon` and
    `ledger_delta` that ledger's budget, `spent_epsilon` what had been charged to it, this run included: a running
    total. What is guaranteed for all runs of a ledger, however they were chosen, is its budget. `tradeoff` is
    what the noise really gives; None in files of models made before it was computed.
    """

    epsilon: float
    delta: float
    unit: str
    n_users: int
    parts: tuple[Part, ...]
    insecure_seed: int | None
    warning: str
    ledger_path: str | None
    ledger_epsilon: float
    ledger_delta: float
    spent_epsilon: float
    tradeoff: Tradeoff | None = None

    @property
    def private(self) -> bool:
        """False for a seeded run, which protects nobody."""
        return self.insecure_seed is None

    @property
    def neighbours(self) -> str:
        return f"one {self.unit}'s whole data is replaced by any other"

    @property
    def covers(self) -> str:
        """What the guarantee is about; `NOT_COVERED` is what it is not about."""
        return COVERS

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "neighbours": self.neighbours,
            "covers": self.covers,
            "not_covered": list(NOT_COVERED),
            "right_guess_of_epsilon_and_delta_alone": right_guess(self.epsilon, self.delta),
            "tradeoff": None if self.tradeoff is None else self.tradeoff.to_dict(),
            "private": self.private,
            "insecure_seed": self.insecure_seed,
            "warning": self.warning,
            "ledger": {
                "path": self.ledger_path,
                "epsilon": self.ledger_epsilon,
                "delta": self.ledger_delta,
                "spent_epsilon": self.spent_epsilon if math.isfinite(self.spent_epsilon) else None,
                "spent_epsilon_is": ODOMETER,
            },
            "mechanisms": [part.to_dict() for part in self.parts],
            "n_users": self.n_users,
        }

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Statement:
        """The statement that `to_dict` made this of."""
        ledger, spent = record["ledger"], record["ledger"]["spent_epsilon"]
        found = record.get("tradeoff")
        return Statement(
            parts=tuple(Part.from_dict(part) for part in record["mechanisms"]),
            ledger_path=ledger["path"],
            ledger_epsilon=ledger["epsilon"],
            ledger_delta=ledger["delta"],
            spent_epsilon=math.inf if spent is None else spent,
            tradeoff=None if found is None else Tradeoff.from_dict(found),
            **{name: record[name] for name in ("epsilon", "delta", "unit", "n_users", "insecure_seed", "warning")},
        )

    def __str__(self) -> str:
        lines = [
            f"({rounded_up(self.epsilon)}, {rounded_up(self.delta)})-differential privacy where {self.neighbours}; "
            f"{self.unit}s: {self.n_users:,}",
            *(
                f"  {part.step}: {part.mechanism}, {part.releases} release{'s' * (part.releases > 1)}, "
                f"{part.fraction:.0%} of the budget (epsilon {part.epsilon_alone:.3g} alone)"
                for part in self.parts
            ),
            f"  ledger: epsilon {self.spent_epsilon:.4g} of {rounded_up(self.ledger_epsilon)} spent, counted at its "
            f"delta {rounded_up(self.ledger_delta)}: a running total, the guarantee for all runs is the whole budget",
            f"  covered: {self.covers}",
            *(f"  {sentence}" for sentence in NOT_COVERED),
            *([] if self.tradeoff is None or not self.private else self._given(self.tradeoff)),
        ]
        return "\n".join([f"*** {self.warning} ***", *lines] if self.warning else lines)

    def _given(self, found: Tradeoff) -> list[str]:
        """What the noise gives, line by line."""
        alone = in_percent(right_guess(self.epsilon, self.delta))
        lines = [
            f"  right guesses between two versions of one {self.unit}'s data: at most {in_percent(found.right_guess)} "
            f"with this noise (epsilon and delta alone would allow {alone})"
        ]
        if found.mu:
            but = f", but for events of chance {rounded_up(found.mu_failure, 2)}" if found.mu_failure else ""
            lines.append(f"  as private as a Gaussian mechanism with mu = {rounded_up(found.mu, 4)} (mu-GDP){but}")
        if found.failure:
            lines.append(
                f"  nothing is guaranteed of events of chance {rounded_up(found.failure, 2)} (tests that err), counted "
                "in delta"
            )
        if found.added_epsilon is not None:
            lines.append(
                f"  accounting for adding or removing a {self.unit}, as other libraries print it, would call the same "
                f"noise epsilon {found.added_epsilon:.3g}: a different guarantee, only to compare with"
            )
        return lines


def statement(
    plan: Plan, budget: Budget, ledger: Ledger, insecure_seed: int | None = None, unit: str = "user", warning: str = ""
) -> Statement:
    """What a plan that was charged to `ledger` guarantees within `budget`; reads no data."""
    squares = {step.label: _square(step, budget) for step in plan.steps}
    totals = {
        edge: sum(squares[step.label] for step in plan.steps if step.start <= edge < step.stop)
        for edge in {step.start for step in plan.steps}
    }  # what users pay from there on; it changes upwards only where a step begins
    parts = []
    for step in plan.steps:
        record = repr(step.mechanism)
        parts.append(
            Part(
                step.label,
                record.split("(")[0],
                record,
                step.start,
                step.stop - 1,
                step.mechanism.rounds,
                _alone(step, budget),
                squares[step.label] / max(total for edge, total in totals.items() if step.start <= edge < step.stop),
            )
        )
    warnings = [_SEEDED] if insecure_seed is not None else []
    warnings += [warning] if warning else []
    path = None if ledger.path is None else ledger.path.name  # folders are nobody's business
    spent = ledger.spent_epsilon()
    held = ledger.budget
    return Statement(
        budget.epsilon,
        budget.delta,
        unit,
        plan.n_users,
        tuple(parts),
        insecure_seed,
        " ".join(warnings),
        path,
        held.epsilon,
        held.delta,
        spent,
        tradeoff(plan, budget.delta),
    )


def _alone(step: Step, budget: Budget) -> float:
    return epsilon_at(step.mechanism.cost, budget.delta)


def _square(step: Step, budget: Budget) -> float:
    """mu^2 of the Gaussian mechanism that costs as much as the step."""
    epsilon = _alone(step, budget)
    try:
        return 1 / gaussian_multiplier(Budget(max(epsilon, 1e-9), budget.delta)) ** 2
    except BudgetExceeded:  # so little that no noise the accountant knows costs as little
        return 0.0
