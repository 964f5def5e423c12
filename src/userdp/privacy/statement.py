"""What a run guaranteed, what each of its parts cost, and what its noise really allows an attacker.

Public numbers only, to be shown and kept with the model. An attack on one user errs in two ways: it suspects wrongly
(a false alarm, with chance a) or overlooks (a missed detection, chance b). delta(epsilon) of the plan, known for all
epsilon >= 0, allows

    b >= 1 - delta(epsilon) - e^epsilon a   and   a >= 1 - delta(epsilon) - e^epsilon b   for all of them

(Dong, Roth and Su 2022, proposition 2.12). One pair (epsilon, delta) is one of these lines; the curve that was paid for
is all of them. docs/proofs.md, section 24.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from userdp.privacy.accounting import (
    RELATIONS,
    REPLACE_ONE,
    ZERO_OUT,
    Budget,
    BudgetExceeded,
    Cost,
    Numbers,
    check_relation,
    delta_curve,
    epsilon_at,
    gaussian_multiplier,
    rounded_up,
)
from userdp.privacy.domination import is_gaussian, least_mu
from userdp.privacy.ledger import ODOMETER, Ledger, kind_of_class
from userdp.privacy.mechanism import described
from userdp.privacy.plan import Plan

COVERS = "this fit alone, with its hyperparameters taken as public"
COVERS_SEARCH = "the whole search: every candidate's fit, the scores on held-out users, the choice and the refit"
COVERS_EVALUATION = (
    "this evaluation alone, of the users it was made on; not what the model reveals of those it was fitted on"
)
IN_PARALLEL = (
    "Some parts are of different users, side by side: they do not add up. Each user pays for the parts they are in, "
    "and the whole costs what those who pay most pay."
)
NOT_COVERED = (
    "Other releases from the same users (fits in a search, a cross-validation or an ensemble, say) are not covered: "
    "they add up, and a ledger that all of them share keeps count.",
    "Choosing, calibrating, stacking or tuning models around this one by scores or labels of the data is not covered, "
    "whether or not there is a ledger: use userdp.model_selection.",
    "What a step before it learned from the data without privacy (a StandardScaler, say) is not covered: use "
    "userdp.make_pipeline, which refuses such steps.",
)
_NEIGHBOURS = {
    REPLACE_ONE: "one {}'s whole data is replaced by any other",
    ZERO_OUT: "one {}'s part of every total becomes zero, as if the data had not been used",
}
_OTHER = {
    REPLACE_ONE: "Adding or removing a {} is not covered by replacement with a public number of {}s.",
    ZERO_OUT: "Replacing one {}'s data by other data is not covered at this epsilon, which covers whether it was used; "
    "the number of {}s is public.",
}

_SEEDED = (
    "NOT PRIVATE: the run was seeded (insecure_seed), so its noise can be computed and taken off. For tests and "
    "research only: do not publish what came of it."
)

_PLAIN = ("epsilon", "delta", "unit", "n_users", "insecure_seed", "warning")  # called the same in JSON
_NEW = {"relation": REPLACE_ONE, "called": ""}  # the same, left out where they are as in files that have none

OTHER_DELTAS = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9)

_LINES = 33  # of the curve
_SLACK = 0.01  # of delta, that may be outside of the dominating Gaussian
_LARGEST_EXPONENT = 500.0


class AffectedUsers(NamedTuple):
    """The fraction of users who lost rows with missing or infinite cells, as released, and its 95% interval.

    Made of releases that are paid for: it may be shown.

    >>> print(AffectedUsers.of(0.218, 0.021))
    About 22% of the users (95% interval 20% to 24%) have missing or infinite cells, or targets that cannot be used; \
those rows were left out.
    """

    estimate: float
    low: float
    high: float

    @classmethod
    def of(cls, estimate: float, margin: float) -> AffectedUsers:
        """With an interval that reaches so far to either side, within [0, 1]."""
        return cls(*(min(max(float(end), 0.0), 1.0) for end in (estimate, estimate - margin, estimate + margin)))

    @classmethod
    def from_list(cls, record: Any) -> AffectedUsers | None:
        """Of a file, in which it is a list; None of files that have none. Raises on what are no such fractions."""
        if record is None:
            return None
        estimate, low, high = (float(number) for number in record)
        if not 0 <= low <= estimate <= high <= 1:
            raise ValueError("a fraction of users, and its interval, expected")
        return cls(estimate, low, high)

    @property
    def percents(self) -> tuple[str, str, str]:
        """All three, in percent."""
        estimate, low, high = (f"{100 * one:.{0 if one >= 0.1 else 1}f}%" for one in self)
        return estimate, low, high

    @property
    def clear(self) -> bool:
        """Whether they are more than 1%, by twice the margin of the interval: about 4 standard deviations of noise."""
        return self.low - (self.estimate - self.low) > 0.01

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, unit: str = "user") -> str:
        """A sentence."""
        estimate, low, high = self.percents
        about = f"About {estimate} of the {unit}s (95% interval {low} to {high})"
        if self.low == 0:
            about = f"At most about {high} of the {unit}s (95% interval)"
        return f"{about} have missing or infinite cells, or targets that cannot be used; those rows were left out."


@dataclass(frozen=True)
class Part:
    """One step of the plan: its mechanism and what it costs.

    `mechanism` is its kind, `record` its numbers (text in files of 0.1.0), `epsilon_alone` its cost by itself at the
    statement's delta, `fraction` its part of what the users who pay most pay, in mu^2 (without delta in epsilon).
    """

    step: str
    mechanism: str
    record: dict[str, Any] | str
    first_user: int
    last_user: int
    releases: int
    epsilon_alone: float
    fraction: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in which `fraction` is called share, as in the files of 0.1.0."""
        values = asdict(self)
        return values | {"share": values.pop("fraction")}

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Part:
        """The part that `to_dict`, or 0.1.0, made this of."""
        values = dict(record) | {"mechanism": kind_of_class(record["mechanism"])}
        return Part(fraction=values.pop("share"), **values)


@dataclass(frozen=True)
class Tradeoff:
    """The errors that every attack on a plan's releases makes, computed from its costs. No data is needed.

    right_guess: how often the best attack is right between two equally likely versions of one user's data;
    points: (false alarm, missed detection), corners of a polygon that no attack is below;
    mu: of the least Gaussian mechanism (mu-GDP) that reveals at least as much, but for events of chance `mu_failure`, a
    part of delta; None if there is none;
    failure: chance of the events in which nothing is guaranteed (tests or thresholds that let pass by mistake);
    epsilons: (delta, epsilon) pairs that hold as well; None where delta is below `failure`;
    added_epsilon: of a plan for "replace-one" what accounting for "zero-out" neighbours, or for adding or removing a
    user, would print for the same noise at the same delta: a different, weaker guarantee, only to compare with;
    replaced_epsilon: of a plan for "zero-out" what the same noise guarantees for "replace-one" at the same delta. None
    where mechanisms have no such number.
    """

    right_guess: float
    points: tuple[tuple[float, float], ...]
    mu: float | None
    mu_failure: float
    failure: float
    epsilons: tuple[tuple[float, float | None], ...]
    added_epsilon: float | None
    replaced_epsilon: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        pairs = {"points": [list(point) for point in self.points], "epsilons": [list(pair) for pair in self.epsilons]}
        record = vars(self) | pairs
        if self.replaced_epsilon is None:
            del record["replaced_epsilon"]
        return record

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Tradeoff:
        """The record that `to_dict` made this of; raises on what are no numbers."""

        def number(value: Any) -> float | None:
            return None if value is None else float(value)

        numbers = {name: float(record[name]) for name in ("right_guess", "mu_failure", "failure")}
        return Tradeoff(
            points=tuple((float(alarm), float(miss)) for alarm, miss in record["points"]),
            mu=number(record["mu"]),
            epsilons=tuple((float(delta), number(epsilon)) for delta, epsilon in record["epsilons"]),
            added_epsilon=number(record["added_epsilon"]),
            replaced_epsilon=number(record.get("replaced_epsilon")),
            **numbers,
        )


@dataclass(frozen=True)
class Statement:
    """The guarantee of one run.

    `unit` is who is protected: "user" with all their rows, or "row"; `called` is another word for one of them, such
    as "household". `relation` is which neighbours the guarantee is for, "replace-one" or "zero-out". `warning` is
    empty if nothing weakens the guarantee. `ledger_path`, `ledger_epsilon` and `ledger_delta` are the file's name
    and budget of the ledger that it was charged to, `spent_epsilon` a running total, this run included: what is
    guaranteed for all runs of a ledger is its budget. `tradeoff` is what the noise really gives; None in files made
    before it was computed. `covers` is what the guarantee is about, `NOT_COVERED` what it is not about;
    `affected_users` was released of rows left out.
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
    covers: str = COVERS
    affected_users: AffectedUsers | None = None
    relation: str = REPLACE_ONE
    called: str = ""

    @property
    def private(self) -> bool:
        """False for a seeded run, which is non-private."""
        return self.insecure_seed is None

    @property
    def word(self) -> str:
        """What one of those who are protected is called."""
        return self.called or self.unit

    @property
    def neighbours(self) -> str:
        """Which data sets cannot be distinguished, in words."""
        return _NEIGHBOURS[self.relation].format(self.word)

    @property
    def guessed(self) -> str:
        """What an attacker guesses at even odds, in words."""
        if self.relation == ZERO_OUT:
            return f"whether one {self.word}'s data was used"
        return f"between two versions of one {self.word}'s data"

    @property
    def not_covered(self) -> list[str]:
        """What the guarantee is not about, in sentences."""
        return not_covered(self.relation, self.word)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        new = {name: getattr(self, name) for name, usual in _NEW.items() if getattr(self, name) != usual}
        return {name: getattr(self, name) for name in (*_PLAIN, "neighbours", "covers", "private")} | {
            **new,
            "not_covered": self.not_covered,
            "right_guess_of_epsilon_and_delta_alone": right_guess(self.epsilon, self.delta),
            "tradeoff": None if self.tradeoff is None else self.tradeoff.to_dict(),
            "affected_users": None if self.affected_users is None else list(self.affected_users),
            "ledger": {
                "path": self.ledger_path,
                "epsilon": self.ledger_epsilon,
                "delta": self.ledger_delta,
                "spent_epsilon": _finite(self.spent_epsilon),
                "spent_epsilon_is": ODOMETER,
            },
            "mechanisms": [part.to_dict() for part in self.parts],
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
            covers=covered(record),
            affected_users=AffectedUsers.from_list(record.get("affected_users")),
            **{name: record[name] for name in _PLAIN},
            relation=check_relation(record.get("relation", REPLACE_ONE)),
            called=str(record.get("called", "")),
        )

    def __str__(self) -> str:
        lines = [
            f"{self.relation}: ({rounded_up(self.epsilon)}, {rounded_up(self.delta)})-differential privacy where "
            f"{self.neighbours}; {self.word}s: {self.n_users:,}",
            *(
                f"  {part.step}: {part.mechanism}, {part.releases} release{'s' * (part.releases > 1)}, "
                f"{part.fraction:.0%} of the budget (epsilon {part.epsilon_alone:.3g} alone)"
                + (f", {n_users:,} of the {self.word}s" if n_users != self.n_users else "")
                for part in self.parts
                for n_users in [part.last_user - part.first_user + 1]
            ),
            *([] if self.affected_users is None else [f"  {self.affected_users.in_words(self.word)}"]),
            *([f"  {IN_PARALLEL}"] if apart((part.first_user, part.last_user) for part in self.parts) else []),
            f"  ledger: epsilon {self.spent_epsilon:.4g} of {rounded_up(self.ledger_epsilon)} spent, counted at its "
            f"delta {rounded_up(self.ledger_delta)}: a running total, the guarantee for all runs is the whole budget",
            f"  covered: {self.covers}",
            *(f"  {sentence}" for sentence in self.not_covered),
            *([] if self.tradeoff is None or not self.private else self._given(self.tradeoff)),
        ]
        return "\n".join([f"*** {self.warning} ***", *lines] if self.warning else lines)

    def _given(self, found: Tradeoff) -> list[str]:
        """What the noise gives, line by line."""
        alone = in_percent(right_guess(self.epsilon, self.delta))
        lines = [
            f"  right guesses {self.guessed}: at most {in_percent(found.right_guess)} "
            f"with this noise (epsilon and delta alone would allow {alone})"
        ]
        if found.mu:
            but = f", but for events of chance {rounded_up(found.mu_failure, 2)}" if found.mu_failure else ""
            lines.append(f"  as private as a Gaussian mechanism with mu = {rounded_up(found.mu, 4)} (mu-GDP){but}")
        if found.failure:
            lines.append(
                f"  nothing is guaranteed of events of chance {rounded_up(found.failure, 2)} (tests or thresholds that "
                "err), counted in delta"
            )
        if found.added_epsilon is not None:
            lines.append(
                f"  accounting for adding or removing a {self.word}, as other libraries print it, or for "
                f'neighbours="zero-out", would call the same noise epsilon {found.added_epsilon:.3g}: a different '
                "guarantee, only to compare with"
            )
        if found.replaced_epsilon is not None:
            lines.append(
                f"  where one {self.word}'s data is replaced by other data (replace-one) the same noise guarantees "
                f"epsilon {rounded_up(found.replaced_epsilon, 3)} at the same delta"
            )
        return lines


def not_covered(relation: str, word: str) -> list[str]:
    """What a guarantee for these neighbours is not about, where one of those who are protected is called so."""
    return [*NOT_COVERED, _OTHER[relation].format(word, word)]


def apart(ends: Iterable[tuple[int, int]]) -> bool:
    """Whether some of these parts, each from its first to its last user, have nobody in common."""
    found = list(ends)
    return min(last for _, last in found) < max(first for first, _ in found)


def covered(record: Mapping[str, Any]) -> str:
    """What a statement's record says that it covers; one fit, unless it is of a search or an evaluation."""
    said = str(record.get("covers")).replace("people", "users").replace("tells of", "reveals of")  # in older files
    return said if said in (COVERS_SEARCH, COVERS_EVALUATION) else COVERS


def statement(
    plan: Plan, budget: Budget, ledger: Ledger, insecure_seed: int | None = None, unit: str = "user", warning: str = ""
) -> Statement:
    """What a plan that was charged to `ledger` guarantees within `budget`; reads no data.

    `unit`: "row" where users are single rows, else what one user is called.
    """

    def square(epsilon: float) -> float:
        """mu^2 of the Gaussian mechanism that costs as much; epsilon itself without delta, where they add up."""
        if budget.delta == 0:
            return epsilon
        try:
            return 1 / gaussian_multiplier(Budget(max(epsilon, 1e-9), budget.delta)) ** 2
        except BudgetExceeded:  # so little that no noise the accountant knows costs as little
            return 0.0

    alone = {step.label: epsilon_at(step.mechanism.cost, budget.delta) for step in plan.steps}
    squares = {label: square(epsilon) for label, epsilon in alone.items()}
    totals = {
        edge: sum(squares[step.label] for step in plan.steps if step.start <= edge < step.stop)
        for edge in {step.start for step in plan.steps}
    }  # what users pay from there on; it changes upwards only where a step begins
    return Statement(
        epsilon=budget.epsilon,
        delta=budget.delta,
        unit="row" if unit == "row" else "user",
        called="" if unit in ("user", "row") else unit,
        relation=plan.neighbours,
        n_users=plan.n_users,
        parts=tuple(
            Part(
                step=step.label,
                mechanism=described(step.mechanism)["kind"],
                record=described(step.mechanism),
                first_user=step.start,
                last_user=step.stop - 1,
                releases=step.mechanism.rounds,
                epsilon_alone=alone[step.label],
                fraction=squares[step.label] / max(totals[edge] for edge in totals if step.start <= edge < step.stop),
            )
            for step in plan.steps
        ),
        insecure_seed=insecure_seed,
        warning=" ".join(([] if insecure_seed is None else [_SEEDED]) + ([warning] if warning else [])),
        ledger_path=None if ledger.path is None else ledger.path.name,  # folders are nobody's business
        ledger_epsilon=ledger.budget.epsilon,
        ledger_delta=ledger.budget.delta,
        spent_epsilon=ledger.spent_epsilon(),
        tradeoff=tradeoff(plan, budget.delta),
    )


def tradeoff(plan: Plan, delta: float) -> Tradeoff:
    """What a plan that was made for this delta allows, for the users who pay most.

    >>> from userdp.privacy.clip import Clip
    >>> from userdp.privacy.plan import Step
    >>> found = tradeoff(Plan(10, (Step("mean", 0, 10, Clip(10, 4.225)),)), 1e-6)
    >>> round(found.right_guess, 3), round(found.mu, 4), round(found.added_epsilon, 3)
    (0.547, 0.2367, 0.475)
    """
    others = {other: _epsilon_under(plan, delta, other) for other in RELATIONS if other != plan.neighbours}
    return _tradeoff(plan.costs, delta, others.get(ZERO_OUT), others.get(REPLACE_ONE))


@lru_cache(maxsize=64)
def _tradeoff(
    costs: tuple[Cost, ...], delta: float, added_epsilon: float | None, replaced_epsilon: float | None
) -> Tradeoff:
    slack = _SLACK * delta
    mu = max(least_mu(cost, slack) for cost in costs)
    # Where the curves have come down to what is left out: failures, and a hundredth of delta, or else delta.
    rooms = [(cost, (cost.failure + slack, delta, 1.0)) for cost in costs]
    last = [next(e for room in each if math.isfinite(e := epsilon_at(cost, room))) for cost, each in rooms]
    end = min(_LARGEST_EXPONENT, max(last))
    epsilons = np.unique(np.linspace(0.0, end, _LINES))
    deltas = np.max([delta_curve(cost, epsilons) for cost in costs], axis=0)
    others = {other: max(epsilon_at(cost, other) for cost in costs) for other in OTHER_DELTAS}
    failure = max(cost.failure for cost in costs)
    return Tradeoff(
        right_guess=float(1 + deltas[0]) / 2,
        points=_polygon(epsilons, deltas),
        mu=_finite(mu),
        mu_failure=failure if all(is_gaussian(cost) for cost in costs) else failure + slack,
        failure=failure,
        epsilons=tuple((other, _finite(epsilon)) for other, epsilon in others.items()),
        added_epsilon=added_epsilon,
        replaced_epsilon=replaced_epsilon,
    )


def _polygon(epsilons: Numbers, deltas: Numbers) -> tuple[tuple[float, float], ...]:
    """Corners of what the lines b = 1 - delta - e^epsilon a, and their mirror images, leave."""
    slopes = np.exp(epsilons)
    alarms = np.clip(-np.diff(deltas) / np.diff(slopes), 0.0, 1.0)
    misses = np.clip(1 - deltas[:-1] - slopes[:-1] * alarms, 0.0, 1.0)
    half = [(0.0, float(1 - deltas[-1])), *zip(alarms[::-1].tolist(), misses[::-1].tolist(), strict=True)]
    return (*half, *((b, a) for a, b in reversed(half)))


def _epsilon_under(plan: Plan, delta: float, relation: str) -> float | None:
    """Epsilon at delta of the same noise for neighbours of this relation, for the users who would then pay most."""
    each = {}
    for step in plan.steps:
        cost = step.mechanism.cost_under(relation)
        if cost is None:
            return None
        each[step] = cost
    costs = {
        sum((cost for step, cost in each.items() if step.start <= position < step.stop), Cost())
        for position in {step.start for step in plan.steps}
    }
    return _finite(max(epsilon_at(cost, delta) for cost in costs))


def right_guess(epsilon: float, delta: float) -> float:
    """How often the best attack guesses right if (epsilon, delta) is all that is known: (e^eps + delta) / (e^eps + 1).

    Half of 1 + total variation, which (epsilon, delta) limits to (e^eps - 1 + 2 delta) / (e^eps + 1).

    >>> round(right_guess(1.0, 1e-6), 3)
    0.731
    """
    shrunk = math.exp(-epsilon)
    return (1 + delta * shrunk) / (1 + shrunk)


def in_percent(chance: float) -> str:
    """A chance in percent, rounded up to a tenth.

    >>> in_percent(0.5471)
    '54.8%'
    """
    return f"{math.ceil(1000 * chance - 1e-9) / 10:.1f}%"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
