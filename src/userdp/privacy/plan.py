"""Plans: which users are asked for which release, in which order. Public numbers only; priced without data."""

from __future__ import annotations

from dataclasses import dataclass

from userdp._validate import check_record
from userdp.privacy.accounting import Budget, Cost, certify
from userdp.privacy.mechanism import Mechanism


@dataclass(frozen=True)
class Step:
    """One mechanism on the users `start`..`stop`-1 of the curator's random order.

    With `n_groups` the users are split into that many groups, each of which gives one vector; otherwise each user
    gives one.
    """

    label: str
    start: int
    stop: int
    mechanism: Mechanism
    n_groups: int | None = None

    def __post_init__(self) -> None:
        check_record(self, counts=("start", "stop"), from_zero="start")
        if self.n_groups is not None:
            check_record(self, counts=("n_groups",))
        if not 0 <= self.start < self.stop:
            raise ValueError(f"Expected 0 <= start={self.start} < stop={self.stop} in step {self.label!r}.")
        if self.n_vectors > self.n_users:
            raise ValueError(f"Expected n_groups={self.n_groups} <= {self.n_users} users in step {self.label!r}.")
        if self.mechanism.samples_users and self.n_groups is not None:
            raise ValueError(f"Expected no groups in step {self.label!r}: its mechanism samples single users.")
        if self.mechanism.n_vectors != self.n_vectors:
            raise ValueError(
                f"Expected step {self.label!r} to give the {self.mechanism.n_vectors} vectors its mechanism was "
                f"priced for; it gives {self.n_vectors}."
            )

    @property
    def n_users(self) -> int:
        return self.stop - self.start

    @property
    def n_vectors(self) -> int:
        return self.n_users if self.n_groups is None else self.n_groups


@dataclass(frozen=True)
class Plan:
    """Steps in order. A user pays for the steps it is in; the plan costs what the worst-off user pays.

    Steps on disjoint users compose in parallel, steps on the same users add up (docs/proofs.md, section 12).
    """

    n_users: int
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        check_record(self, counts=("n_users",))
        if not isinstance(self.steps, tuple) or not all(isinstance(step, Step) for step in self.steps):
            raise TypeError("Expected steps to be a tuple of Step, such as (Step(...),).")
        if not self.steps:
            raise ValueError("Expected at least one step in a plan.")
        labels = [step.label for step in self.steps]
        if len(set(labels)) < len(labels):
            raise ValueError(f"Expected steps with different labels, got {labels}.")
        relations = {step.mechanism.neighbours for step in self.steps}
        if len(relations) > 1:
            raise ValueError(f"The mechanisms of a plan must be for the same neighbours, got {sorted(relations)}.")
        last = max(step.stop for step in self.steps)
        if last > self.n_users:
            raise ValueError(f"Expected all steps to stop by n_users={self.n_users}, one stops at {last}.")

    @property
    def neighbours(self) -> str:
        """The relation that all its mechanisms are for."""
        return self.steps[0].mechanism.neighbours

    @property
    def costs(self) -> tuple[Cost, ...]:
        """What users pay, one entry for each set of users that pays differently."""
        edges = sorted({0} | {step.start for step in self.steps} | {step.stop for step in self.steps})
        return tuple(dict.fromkeys(self.cost_of(edge) for edge in edges if edge < self.n_users))

    def cost_of(self, position: int) -> Cost:
        """What the user at this position of the curator's order pays."""
        total = Cost()
        for step in self.steps:
            if step.start <= position < step.stop:
                total = total + step.mechanism.cost
        return total

    def certify(self, budget: Budget) -> None:
        """Raise `BudgetExceeded` unless every user's cost is within `budget`, of the same relation. Touches no data."""
        if self.neighbours != budget.neighbours:
            raise ValueError(
                f"The plan is for neighbours of {self.neighbours!r}, the budget for {budget.neighbours!r}: epsilons of "
                "the two do not add up. Plan again with the budget's relation. Nothing was spent."
            )
        for cost in self.costs:
            certify(cost, budget)
