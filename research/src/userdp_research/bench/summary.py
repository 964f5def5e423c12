"""From records to the rows of the tables that are shown at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from userdp_research.bench.cells import Record
from userdp_research.bench.solving import NON_PRIVATE, ORACLE, fits_gradients
from userdp_research.bench.table import NON_SMOOTH

Rows = list[list[str]]
_NEAR, _EASY, _PRECISE = 4.0, 0.02, 0.002  # of excess / yard, of s, of excess: where verdicts are told


def figure(value: Any, name: str = "excess") -> str:
    """Mean and spread, or what is known instead."""
    if "error" in value:
        return f"failed: {value['error']}"
    if "refusal" in value:
        return str(value["refusal"]) if value.get("enough_users") else "refused"
    spread = value[name]["spread"]
    aborted = f", {value['halted']} aborted" if value.get("halted") else ""
    return f"{value[name]['mean']:.3g}" + (f" ± {spread:.2g}" if spread is not None else "") + aborted


def exponent_rows(records: Sequence[Record]) -> tuple[list[str], Rows]:
    """One row per solver: measured exponents with the theorem's in brackets."""
    found = {_key(r, "solver", "loss", "against"): r["result"] for r in records if r["settings"]["part"] == "slopes"}
    columns = list(dict.fromkeys((loss, against) for _, loss, against in found))
    rows = []
    for solver in dict.fromkeys(solver for solver, _, _ in found):
        results = [found.get((solver, *column), {}) for column in columns]
        rows.append([solver, *map(_exponent, results)])
    heads = [f"{'non-smooth' if loss == NON_SMOOTH else loss}, {against}" for loss, against in columns]
    return ["solver", *heads], rows


def _exponent(result: Record) -> str:
    if not result:
        return ""
    if "error" in result:
        return "failed"
    if result["exponent"] is None:
        return str(result["refusal"]) if result["enough_users"] else "refused"
    known = result["theorem"]
    return f"{result['exponent']:.2f}" + ("" if known is None else f" ({Fraction(known).limit_denominator(8)})")


def risk_rows(records: Sequence[Record]) -> tuple[list[str], Rows]:
    """One row per solver and size: excess risk by loss, gradients, seconds, assumptions of its theorem."""
    chosen = [r for r in records if r["settings"]["part"] == "risk"]
    losses = list(dict.fromkeys(r["settings"]["loss"] for r in chosen))
    groups: dict[tuple[Any, ...], dict[str, Record]] = {}
    for r in chosen:
        key = _key(r, "users", "rows", "features", "epsilon", "solver")
        groups.setdefault(key, {})[r["settings"]["loss"]] = r["result"]
    rows = []
    for (n, m, d, epsilon, solver), results in groups.items():
        ran = [result for result in results.values() if "n_gradients" in result]
        work = _range([r["n_gradients"] for r in ran], "{:,}")
        seconds = _range([min(r["seconds"]) for r in ran], "{:.2g}")
        said = {loss: result.get("assumptions", "") for loss, result in results.items()}
        words = "; ".join(dict.fromkeys(f"{loss}: {text}" for loss, text in said.items() if text != "hold"))
        same = set(said.values())
        words = same.pop() if len(same) == 1 else words
        yard = "".join(f"{r['yard']:.2g}" for r in [results.get("logistic", {})] if "yard" in r)
        size = [f"{n:,}", f"{m:,}", f"{d:,}", f"{epsilon:g}"]
        figures = [figure(results[loss]) if loss in results else "" for loss in losses]
        rows.append([solver, *size, *figures, yard, work, seconds, words])
    head = ["solver", "users", "rows", "weights", "eps", *losses, "yard, logistic", "gradients", "seconds"]
    return [*head, "assumptions"], rows


def refusals(records: Sequence[Record]) -> list[str]:
    """Who refused for another reason than too few users, and why, each reason once."""
    found = [(r["settings"]["solver"], r["result"]) for r in records if r["result"].get("refusal")]
    words = [f"{solver}: {result['refusal']}" for solver, result in found if not result["enough_users"]]
    return list(dict.fromkeys(words))


def real_rows(records: Sequence[Record]) -> tuple[list[str], Rows]:
    """One row per cell: excess beside the yardstick, order and calibration."""
    head = ["data", "rows", "users", "eps", "passes", "solver", "excess", "yard", "ratio"]
    head += ["AUC", "slope", "mean", "above cut"]
    rows = []
    for r in [r for r in records if r["settings"]["command"] == "real"]:
        settings, result = r["settings"], r["result"]
        limit = "any" if settings["passes"] is None else f"{settings['passes']:,}"
        solver = settings["solver"]
        if solver not in (NON_PRIVATE, ORACLE) and not fits_gradients(solver):
            limit = f"{result['passes']:.2g}" if "passes" in result else "own"
        n = "all" if settings["users"] is None else f"{settings['users']:,}"
        size = [f"{settings['data']['cap']}", n, _epsilon(settings), limit, solver]
        forms = {"auc": ".4f", "slope": ".3f", "mean_ratio": ".2f", "cut_excess": ".3g"}
        told = [_mean_of(result, name, form) for name, form in forms.items()]
        rows.append([settings["data"]["name"], *size, *_against_yard(result), *told])
    return head, rows


def grid_rows(records: Sequence[Record]) -> tuple[list[str], Rows]:
    """One row per cell: excess beside the yardstick, calibration, and what the plan had estimated."""
    head = ["scenario", "users", "rows", "weights", "eps", "solver", "excess", "yard", "ratio", "slope", "estimate"]
    rows = []
    for r in [r for r in records if r["settings"]["command"] == "grid"]:
        settings, result = r["settings"], r["result"]
        size = [f"{settings['users']:,}", f"{result.get('rows', '')}", f"{result.get('n_weights', '')}"]
        taken = result.get("taken", settings["solver"])
        solver = settings["solver"] if taken == settings["solver"] else f"{settings['solver']}: {taken}"
        estimate, measured = result.get("estimate"), _mean(result)
        told = ["" if estimate is None else f"{estimate:.3g}" + ("!" if result.get("warned") else "")]
        told.append(f"{estimate / measured:.2g}" if estimate is not None and measured and measured > 0 else "")
        size += [_epsilon(settings), solver]
        rows.append([settings["scenario"]["name"], *size, *_against_yard(result), _mean_of(result, "slope"), *told])
    return [*head, "/ excess"], rows


def verdicts(records: Sequence[Record]) -> list[str]:
    """How many cells are near the yardstick, calibrated, and were estimated rightly beforehand."""
    ran = [r["result"] for r in records if "yard" in r["result"] and r["result"].get("taken")]
    aborted = [result for result in ran if result.get("halted")]
    near = [(_mean(result) or 0.0) / result["yard"] for result in ran if result["s"] <= _EASY]
    precise = [result for result in ran if (_mean(result) or 1.0) < _PRECISE]
    slopes = [_mean(result, "slope") or 0.0 for result in precise]
    silent = [_mean(result, "slope") or 0.0 for result in ran if not result["warned"]]
    both = [(result["estimate"], _mean(result) or 0.0) for result in ran if result["estimate"]]
    told = [estimate / measured for estimate, measured in both if measured > 0]
    return [
        f"excess <= {_NEAR:g} yards where s <= {_EASY:g}: {_fraction(near, lambda x: x <= _NEAR)}",
        f"slope in [.95, 1.05] where excess < {_PRECISE:g}: {_fraction(slopes, lambda x: abs(x - 1) <= 0.05)}",
        f"slope in [.9, 1.1] where the plan does not warn: {_fraction(silent, lambda x: abs(x - 1) <= 0.1)}",
        f"estimate within a factor 3 of the excess: {_fraction(told, lambda x: 1 / 3 <= x <= 3)}",
        f"cells with runs that aborted: {len(aborted)}",
    ]


def _fraction(values: Sequence[float], holds: Callable[[float], bool]) -> str:
    return f"{sum(map(holds, values))} of {len(values)} cells"


def _epsilon(settings: Record) -> str:
    return "none" if settings["epsilon"] is None else f"{settings['epsilon']:g}"


def _mean(result: Record, name: str = "excess") -> float | None:
    return float(result[name]["mean"]) if result.get(name) else None


def _mean_of(result: Record, name: str, form: str = ".3f") -> str:
    mean = _mean(result, name)
    return "" if mean is None else format(mean, form)


def _against_yard(result: Record) -> list[str]:
    """Excess, yardstick, and how many times it that is."""
    yard, measured = result.get("yard"), _mean(result)
    if yard is None:
        return [figure(result), "", ""]
    return [figure(result), f"{yard:.2g}", "" if measured is None else f"{measured / yard:.1f}"]


def peer_rows(records: Sequence[Record]) -> tuple[list[str], Rows]:
    """One row per peer and epsilon, ours among them."""
    rows = []
    for r in records:
        settings, result = r["settings"], r["result"]
        name = settings.get("peer") or f"userdp, {settings['solver']}"
        seconds = f"{min(result['seconds']):.2g}" if "seconds" in result else ""
        version = str(result.get("peer_version") or (r["version"] if "solver" in settings else ""))
        told = [figure(result, "row_excess"), _mean_of(result, "auc", ".4f"), seconds]
        rows.append([name, version, _epsilon(settings), *told])
    return ["peer", "version", "eps", "excess log loss", "AUC", "seconds"], rows


def _key(record: Record, *names: str) -> tuple[Any, ...]:
    return tuple(record["settings"][name] for name in names)


def _range(values: Sequence[float], form: str) -> str:
    if not values:
        return ""
    ends = dict.fromkeys((form.format(min(values)), form.format(max(values))))
    return " to ".join(ends)
