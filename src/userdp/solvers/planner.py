"""Which solver for which numbers: every solver's plan side by side, from public numbers alone.

`solver="auto"` takes whitened-clip, which was the most accurate wherever it was measured
(research/docs/which-solver.md) and never aborts on clean data; with mode="paper" the solver of the paper with the least
bound. Of the paper's solvers that is a bound on the excess risk, of worst cases, often a hundred times what is
measured; of all others an estimate, no theorem.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any

from userdp._validate import check_counts
from userdp.domains import Ball
from userdp.losses import Loss
from userdp.losses import loss as loss_of_name
from userdp.privacy.accounting import REPLACE_ONE, Budget, BudgetExceeded, budget_for, least_enough
from userdp.solvers.problem import Problem
from userdp.solvers.solver import PROVEN, SOLVERS, SolverPlan, without_delta

AUTO = "whitened-clip"
_USUAL_RADIUS, _NO_LIMIT = 10.0, 1e9

# A refined estimate of so much of the loss of knowing nothing, or a bound (of earlier work an estimate made like one)
# of so many times it: models were then hardly better than a constant. Measured: userdp-bench grid and real (b77f961).
_NOISE_DOMINATED, _LOOSE = 0.1, 3.5

_MOST_TIMES = 64  # as much is looked for of what was too little
_WORTH_SAYING = 0.002  # rarer classes are not spoken of


@dataclass(frozen=True, repr=False)
class Solver:
    """How weights are found. All of it is public, and none of it can make the guarantee weaker.

    >>> Solver("accelerated", mode="paper", row_norm=2.5)
    Solver('accelerated', mode='paper', row_norm=2.5)

    Parameters
    ----------
    name : str
        "auto" takes "whitened-clip"; others by name, such as "phased-sgd" and "accelerated", the paper's
        (`userdp.plan` shows all).
    mode : str
        "calibrated", with noise and constants that the accountant finds to be enough; or "paper", with the constants
        as printed.
    row_norm : float or None
        For the paper's solvers, whose accuracy depends on it: about how long a row is, with the intercept's 1. None
        takes the root of the number of features, right if they are of size about 1.
    domain_radius : float or None
        How long the vector of all weights may be. None is no limit for the default solver; for the paper's solvers,
        whose accuracy depends on it, it takes 10, times half of the target range where there is one. `minimize`, which
        takes a domain, has none.
    max_gradients : int or None
        An upper limit on the work. Without it passes are saved where they cost no accuracy.
    """

    name: str = "auto"
    _: KW_ONLY
    mode: str = "calibrated"
    row_norm: float | None = None
    domain_radius: float | None = None
    max_gradients: int | None = None

    def __post_init__(self) -> None:
        for field in ("name", "mode"):
            if not isinstance(getattr(self, field), str):
                raise TypeError(f"Expected {field} of a Solver to be text, got {getattr(self, field)!r}.")
        if self.max_gradients is not None:
            (count,) = check_counts(max_gradients=self.max_gradients)
            object.__setattr__(self, "max_gradients", count)

    @classmethod
    def of(cls, solver: Any) -> Solver:
        """What a parameter `solver` says: a record, or a name for the usual options."""
        if isinstance(solver, cls):
            return solver
        if not isinstance(solver, str):
            raise TypeError(
                f'Expected solver to be "auto", the name of a solver, or userdp.Solver(...), got {solver!r}. Nothing '
                "was spent."
            )
        return cls(solver)

    @property
    def radius(self) -> float:
        """Of the weights that are learned where none is declared: whitened-clip needs none, others do."""
        free = self.mode == "calibrated" and self.name in ("auto", AUTO)
        return _NO_LIMIT if free else _USUAL_RADIUS

    @property
    def as_json(self) -> str | dict[str, Any]:
        """What model files hold: the name, or, where there is more to say, what is not as usual."""
        changed = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}
        return self.name if set(changed) <= {"name"} else changed

    def __repr__(self) -> str:
        changed = {"name": self.name} if isinstance(self.as_json, str) else {"name": self.name} | self.as_json
        words = [repr(changed.pop("name")), *(f"{name}={value!r}" for name, value in changed.items())]
        return f"Solver({', '.join(words)})"


@dataclass(frozen=True)
class Option:
    """What one solver would do.

    bound: on the expected excess risk, for rows, targets and weights within the declared bounds; of solvers whose
    `estimated` is true no bound but what is expected;
    refusal: the error if there is no plan; enough_users, enough_epsilon: about how many users, or how large an epsilon,
    would then do.
    """

    solver: str
    mode: str
    planned: SolverPlan | None = None
    bound: float = math.inf
    refusal: ValueError | None = None
    enough_epsilon: float | None = None

    @property
    def feasible(self) -> bool:
        return self.refusal is None

    @property
    def noise_std(self) -> float:
        """Of the last release, in units of the features, if users are as far apart as theory expects."""
        if self.planned is None:
            return math.inf
        last = self.planned.phases[-1]
        return last.noise_ratio * last.radius

    @property
    def n_gradients(self) -> int:
        """At most."""
        return 0 if self.planned is None else self.planned.n_gradients

    @property
    def n_releases(self) -> int:
        return 0 if self.planned is None else self.planned.n_releases

    @property
    def estimated(self) -> bool:
        """Whether `bound` is an estimate, no theorem."""
        return self.solver not in PROVEN or bool(self.outside)

    @property
    def outside(self) -> tuple[str, ...]:
        """Which hypotheses of its theorems a plan as published does not meet."""
        return () if self.planned is None else self.planned.outside

    @property
    def refined(self) -> bool:
        """Whether a run will renew the estimate by what it releases, so that it shows what to expect."""
        return SOLVERS[self.solver, self.mode].refines

    @property
    def clipped_fraction(self) -> float:
        """How rare a class must be for clipping to dominate its error, about; 0 where that is not known."""
        return 0.0 if self.planned is None else self.planned.clipped_fraction

    @property
    def plan(self) -> SolverPlan:
        """The plan of an option that is feasible."""
        assert self.planned is not None, f"{self.solver} has no plan: {self.refusal}"
        return self.planned

    @property
    def enough_users(self) -> int | None:
        return self.refusal.enough_users if isinstance(self.refusal, BudgetExceeded) else None


def consider(
    solver: str,
    mode: str,
    problem: Problem,
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    max_gradients: int | None = None,
) -> Option:
    """The solver's plan for these numbers, or the refusal."""
    if (solver, mode) not in SOLVERS:
        solvers = ", ".join(sorted({f'"{name}"' for name, _ in SOLVERS}))
        raise ValueError(
            f'Expected solver="auto" or one of {solvers}, and mode="calibrated" or "paper"; got solver={solver!r}, '
            f"mode={mode!r}."
        )
    n_users, rows_per_user = check_counts(n_users=n_users, rows_per_user=rows_per_user)
    chosen, option = SOLVERS[solver, mode], Option(solver, mode)
    if budget.delta == 0 and not chosen.pure:
        return replace(option, refusal=without_delta())
    if budget.neighbours != REPLACE_ONE and solver != AUTO:
        said = f'solver="{solver}" is proven for neighbours="replace-one" alone, got {budget.neighbours!r}: leave it'
        return replace(option, refusal=ValueError(f'{said} out, or take solver="auto". Nothing was spent.'))
    if problem.l2 and not chosen.penalizes:
        message = f'Expected l2={problem.l2} to be 0 for solver="{solver}": use solver="accelerated".'
        return replace(option, refusal=ValueError(f"{message} Nothing was spent."))
    try:
        plan = chosen.plan(problem, n_users, rows_per_user, budget, max_gradients)
    except ValueError as error:
        return replace(option, refusal=error.with_traceback(None))
    if max_gradients is not None and plan.n_gradients > max_gradients:
        message = f"Expected max_gradients={max_gradients} >= {plan.n_gradients}, which this solver takes for users of"
        return replace(option, refusal=ValueError(f"{message} {rows_per_user} rows. Nothing was spent."))
    # Never more than (Lipschitz constant) (diameter).
    bound = plan.bound if plan.bound_with_constants is None else plan.bound_with_constants
    return replace(option, planned=plan, bound=min(problem.lipschitz * problem.domain.diameter, float(bound)))


def choose(
    problem: Problem,
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    solver: str = "auto",
    mode: str = "calibrated",
    max_gradients: int | None = None,
) -> Option:
    """The plan of this solver, or of the one that auto takes; raises if there is none."""
    names = [AUTO] if mode == "calibrated" else [name for name, kind in SOLVERS if kind == mode]
    names = (names if solver == "auto" else []) or [solver]
    options = [consider(name, mode, problem, n_users, rows_per_user, budget, max_gradients) for name in names]
    feasible = [option for option in options if option.feasible]
    if feasible:
        return min(feasible, key=lambda option: option.bound)
    nearest = min(options, key=lambda option: option.enough_users or math.inf)
    assert nearest.refusal is not None
    epsilon = _enough_epsilon(nearest, problem, n_users, rows_per_user, budget)
    if epsilon is None:
        raise nearest.refusal
    message = str(nearest.refusal).replace("a larger epsilon", f"an epsilon of about {epsilon:.3g}")
    raise BudgetExceeded(message, enough_users=nearest.enough_users) from None


def check_use(
    option: Option,
    problem: Problem,
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    max_gradients: int | None = None,
) -> None:
    """Refuse a plan whose own estimate says that the model will hardly be better than a constant.

    Only of solvers that estimate, and not bound, their error. The refusal says what would do.
    """
    if not option.refined or not noise_dominated(problem, option):
        return

    def useful(epsilon: float, users: int) -> bool:
        size = (users, rows_per_user, replace(budget, epsilon=epsilon))
        other = consider(option.solver, option.mode, problem, *size, max_gradients)
        return other.feasible and not noise_dominated(problem, other)

    ways, epsilon, users = [], float(budget.epsilon), float(n_users)
    if (enough := least_enough(lambda value: useful(value, n_users), epsilon, _MOST_TIMES * epsilon)) is not None:
        ways.append(f"an epsilon of about {enough:.2g}")
    if (enough := least_enough(lambda value: useful(epsilon, round(value)), users, _MOST_TIMES * users)) is not None:
        ways.append(f"about {two_digits(enough):,} users")
    remedy = " or ".join(ways) if ways else "far more users"
    raise BudgetExceeded(
        f"Fit refused: with n_users={n_users}, {problem.dimension} weights and epsilon={budget.epsilon:g} noise is "
        "expected to dominate: the model would hardly be better than a constant. Use "
        f"{remedy}, or fewer features, or pass allow_weak=True. Nothing was spent."
    )


def two_digits(count: float) -> int:
    """Rounded up to two digits."""
    power: int = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return math.ceil(count / power) * power


@dataclass(frozen=True)
class Comparison:
    """All solvers for the same public numbers; `choice` is what solver="auto" takes (None if none will do)."""

    problem: Problem
    n_users: int
    rows_per_user: int
    budget: Budget
    options: tuple[Option, ...]

    @property
    def choice(self) -> Option | None:
        taken = (option for option in self.options if (option.solver, option.mode) == (AUTO, "calibrated"))
        return next((option for option in taken if option.feasible), None)

    @property
    def why(self) -> str:
        """What to expect of the choice, with a warning where noise is likely to dominate, and whom clipping biases."""
        weak, choice = weak_delta(self.budget, self.n_users), self.choice
        said = [f"{weak} A fit is refused."] if weak else []
        if choice is None:
            said.append("No solver fits: have more users, a larger epsilon, or lower the number of features.")
            return " ".join(said)
        said.append(f"auto takes {AUTO}: its excess risk is expected to be about {choice.bound:.2g}.")
        said.append(advice_on(self.problem, choice))
        if (rare := choice.clipped_fraction) >= _WORTH_SAYING:
            biased = f"a class is predicted that is rarer than about {100 * rare:.2g}%"
            said.append(f"Clipping is expected to bias how often {biased}.")
        return " ".join(filter(None, said))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything but the plans themselves."""
        names = (
            *("solver", "mode", "bound", "noise_std", "n_gradients", "n_releases", "refusal", "enough_epsilon"),
            *("estimated", "outside", "feasible", "enough_users"),
        )
        options = []
        for option in self.options:
            row: dict[str, Any] = {name: getattr(option, name) for name in names}
            row["refusal"] = None if option.feasible else str(option.refusal)
            options.append({name: None if value == math.inf else value for name, value in row.items()})
        return {
            "n_users": self.n_users,
            "rows_per_user": self.rows_per_user,
            "n_weights": self.problem.dimension,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "neighbours": self.budget.neighbours,
            "loss": self.problem.loss.name,
            "options": options,
            "choice": None if self.choice is None else self.choice.solver,
            "clipped_fraction": None if self.choice is None else self.choice.clipped_fraction,
            "why": self.why,
        }

    def __str__(self) -> str:
        width = max(12, *(len(option.solver) + 1 for option in self.options))
        lines = [f"{'solver':<{width}}{'mode':<12}{'excess':>9}{'noise':>10}{'gradients':>15}{'releases':>10}"]
        for option in self.options:
            name = f"{option.solver:<{width}}{option.mode:<12}"
            if option.feasible:
                numbers = f"{excess(option):>9}{option.noise_std:>10.2g}{option.n_gradients:>15,}"
                lines.append(f"{name}{numbers}{option.n_releases:>10,}")
            else:
                lines.append(f"{name}  {needs(option)}")
        return "\n".join([*lines, EXCESS_NOTE, *map(beyond, filter(lambda o: o.outside, self.options)), self.why])


EXCESS_NOTE = "Excess risk: ~ is an estimate, <= a bound."


def excess(option: Option) -> str:
    """An option's excess risk, marked as an estimate or a bound."""
    return f"{'~' if option.estimated else '<='}{option.bound:.2g}"


def weak_delta(budget: Budget, n_users: int) -> str:
    """What is wrong with a delta that is not below 1 / number of users, as a message; empty if it is."""
    if budget.delta * n_users < 1:
        return ""
    outright = "it would even allow publishing a user's data outright"
    return f"Expected delta={budget.delta:g} well below 1 over the {n_users} users: {outright}."


def check_delta(budget: Budget, n_users: int, seed: int | None = None, remedy: str = "Leave it out.") -> None:
    """Refuse a delta that is not below 1 / number of users, unless a seed says that nobody's budget is spent."""
    if seed is None and (why := weak_delta(budget, n_users)):
        raise ValueError(f"{why} {remedy} Nothing was spent.")


NOISE_ADVICE = (
    "Noise is likely to dominate, so that the model is shrunk, and may be hardly better than a constant: have more "
    "users, a larger epsilon, or fewer features."
)


def noise_dominated(problem: Problem, option: Option, after: float = 0.0) -> bool:
    """Whether a useful model is unlikely: what is expected near, or a bound far above, the loss of knowing nothing.

    `after` is the estimate that a run's releases led to, where there was one.
    """
    expected = max(option.bound, after) if option.refined else option.bound
    return expected > (_NOISE_DOMINATED if option.refined else _LOOSE) * problem.loss_at_zero


def advice_on(problem: Problem, option: Option, after: float = 0.0) -> str:
    """What is expected to dominate the error, noise or clipping, and what to do about it; empty if neither."""
    if noise_dominated(problem, option, after):
        return NOISE_ADVICE
    return "" if option.planned is None else option.planned.caution


def needs(option: Option) -> str:
    """What an infeasible option would need, in a few words."""
    ways = [f"{option.enough_users:,} users"] if option.enough_users else []
    ways += [f"epsilon {option.enough_epsilon:.3g}"] if option.enough_epsilon else []
    return "needs about " + " or ".join(ways) if ways else str(option.refusal).removesuffix(" Nothing was spent.")


def beyond(option: Option) -> str:
    """Which hypotheses of its theorems an option's plan does not meet, as a message."""
    return f"{option.solver}, {option.mode}: {'; '.join(option.outside)}. It is as private, but the risk is no theorem."


def plan(
    n_users: int,
    rows_per_user: int,
    n_features: int,
    epsilon: float,
    delta: float | None = None,
    *,
    loss: Loss | str = "logistic",
    max_gradients: int | None = None,
    fit_intercept: bool = True,
    row_norm: float | None = None,
    domain_radius: float = 10.0,
    target_bound: float | None = None,
    l2: float = 0.0,
    neighbours: str = REPLACE_ONE,
    baselines: bool = False,
) -> Comparison:
    """Every solver's plan for so many users, rows and features, from public numbers; no data is needed or touched.

    delta=None takes (number of users)^-1.5, at most 1e-6; delta=0 is pure epsilon-DP, which only whitened-clip has a
    plan for. `loss` is a name or a Loss; regression losses take targets as scaled to [-1, 1] unless `target_bound` is
    given.
    `row_norm` is by default sqrt(number of weights an output), right for features of size about 1. With `baselines` the
    solvers of earlier work are planned too.

    >>> print(plan(48_092, 30, 29, epsilon=1.0, delta=1e-6).choice.solver)
    whitened-clip
    """
    n_users, rows_per_user, n_features = check_counts(
        n_users=n_users, rows_per_user=rows_per_user, n_features=n_features
    )
    if max_gradients is not None:
        (max_gradients,) = check_counts(max_gradients=max_gradients)
    budget = budget_for(epsilon, delta, n_users, neighbours)
    problem = public_problem(loss, n_features + fit_intercept, row_norm, domain_radius, target_bound, l2, fit_intercept)
    shown = [key for key, known in SOLVERS.items() if baselines or not known.baseline]
    options = [consider(name, mode, problem, n_users, rows_per_user, budget, max_gradients) for name, mode in shown]
    size = (problem, n_users, rows_per_user, budget)
    return Comparison(*size, tuple(replace(o, enough_epsilon=_enough_epsilon(o, *size)) for o in options))


def public_problem(
    loss: Loss | str,
    n_weights: int,
    row_norm: float | None = None,
    domain_radius: float = 10.0,
    target_bound: float | None = None,
    l2: float = 0.0,
    intercept: bool = True,
) -> Problem:
    """The problem with the defaults that estimators have; `n_weights` is of one output, the intercept counted in."""
    loss = loss_of_name(loss) if isinstance(loss, str) else loss
    if target_bound is None and not loss.classifies:
        target_bound = 1.0
    row_norm = math.sqrt(n_weights) if row_norm is None else row_norm
    return Problem(loss, Ball(domain_radius), n_weights, row_norm, target_bound, l2=l2, intercept=intercept)


def _enough_epsilon(option: Option, problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> float | None:
    """An epsilon up to 5% above the least that this solver can do with; None if there is none up to 64 times."""
    if option.enough_users is None:  # it is feasible, or not for want of users
        return None
    solver, too_little = SOLVERS[option.solver, option.mode], float(budget.epsilon)

    def enough(epsilon: float) -> bool:
        return solver.feasible(problem, n_users, rows_per_user, replace(budget, epsilon=epsilon))

    return least_enough(enough, too_little, _MOST_TIMES * too_little)
