"""How weights are found, and how that runs: two records that keep what few users set off the estimators.

>>> Solver("accelerated", mode="paper")
Solver('accelerated', mode='paper')
>>> Execution(progress=True)
Execution(progress=True)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Self, TypeVar

from userdp._validate import check_counts
from userdp.privacy.curator import Engine
from userdp.privacy.journal import Journal
from userdp.solvers.planner import default_radius

_T = TypeVar("_T", bound=Callable[..., Any])


class _Record:
    """A record that shows what is not as usual."""

    def __repr__(self) -> str:
        changed = self.changed()
        name = changed.pop("name", None)  # of a solver, which comes first
        shown = [repr(name)] * (name is not None) + [f"{field}={value!r}" for field, value in changed.items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def changed(self) -> dict[str, Any]:
        """Fields that are not as usual."""
        usual = {field.name: field.default for field in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in vars(self).items() if value is not usual[name] and value != usual[name]}


@dataclass(frozen=True, repr=False)
class Solver(_Record):
    """How weights are found. All of it is public, and none of it can make the guarantee weaker.

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
        """Of the weights that are learned, where none is declared."""
        return default_radius(self.name, self.mode)

    @property
    def as_json(self) -> str | dict[str, Any]:
        """What model files hold: the name, or, where there is more to say, what is not as usual."""
        changed = self.changed()
        return self.name if set(changed) <= {"name"} else changed


@dataclass(frozen=True, kw_only=True, repr=False)
class Execution(_Record):
    """How it runs, which can never change the guarantee.

    Parameters
    ----------
    engine : Engine or str or None
        Who computes: None is this process, "ray" a Ray on this machine, `RayEngine(address=...)` a cluster.
    checkpoint : Journal or str or None
        Path of a journal, by which the same call, after the process was killed, resumes after the last recorded
        release: nothing is charged or released twice. The data must be the same, users in the same order. As secret as
        the data; delete it once the fit has ended: it is then refused for another.
    progress : bool or None
        True shows a progress bar, None shows it on a terminal only.
    """

    engine: Engine | str | None = None
    checkpoint: Journal | str | None = None
    progress: bool | None = None

    @classmethod
    def of(cls, execution: Execution | None) -> Execution:
        """What a parameter `execution` says."""
        if not isinstance(execution, cls | None):
            raise TypeError(
                f"Expected execution to be None or userdp.Execution(...), got {execution!r}. Nothing was spent."
            )
        return cls() if execution is None else execution

    def without(self, who: str, *names: str) -> Self:
        """The same; refuses what is not for these, and would be without effect."""
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(f"Expected no {name} in execution of {who}, which takes none. Nothing was spent.")
        return self


_OF_SOLVER = ("mode", "row_norm", "domain_radius", "max_gradients")
_MOVED = {name: ("solver", "Solver", name) for name in _OF_SOLVER} | {
    name: ("execution", "Execution", now)
    for name, now in {
        "engine": "engine",
        "checkpoint": "checkpoint",
        "verbose": "progress",
        "progress": "progress",
    }.items()
}


def refuse_moved(given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Say where a keyword has gone that was one of estimators and functions until 0.1."""
    for name in (*given,):
        if name in _MOVED and name not in known:
            parameter, record, now = _MOVED[name]
            value = mode_now(given[name]) if name == "mode" else given[name]
            raise TypeError(
                f"Expected no {name}={given[name]!r}: it is now {parameter}=userdp.{record}({now}={value!r}). Nothing "
                "was spent."
            )


def refusing_moved(function: _T) -> _T:
    """The function, which says of keywords that it had once where they have gone."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        refuse_moved(given, known)
        return function(*args, **given)

    return checked  # type: ignore[return-value]


def mode_now(mode: Any) -> Any:
    """A mode of files or calls of 0.1 as it is called now."""
    return "calibrated" if mode == "tight" else mode


def parameters_now(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a model file as files hold them now: those of 0.1 have options of a solver one by one."""
    found = {name: value for name, value in parameters.items() if name not in _OF_SOLVER}
    given = found.get("solver", {})
    options = dict(given) if isinstance(given, Mapping) else {"name": given}
    options |= {name: parameters[name] for name in _OF_SOLVER if name in parameters}
    if "mode" in options:
        options["mode"] = mode_now(options["mode"])
    return found | {"solver": Solver(**options).as_json} if options else found
