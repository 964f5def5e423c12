"""How a fit runs, and where keywords have gone that estimators had until 0.1."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from userdp.privacy.curator import Engine
from userdp.privacy.journal import Journal
from userdp.solvers.planner import Solver

_T = TypeVar("_T", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Execution:
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
_MOVED = {name: ("solver", "Solver", name) for name in _OF_SOLVER}
_MOVED |= {name: ("execution", "Execution", name) for name in ("engine", "checkpoint", "progress")}
_MOVED |= {"verbose": ("execution", "Execution", "progress")}


def refuse_moved(given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Say where a keyword has gone that was one of estimators and functions until 0.1."""
    for name in given:
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
