"""The page: what the facts and the released weights say, in one file, made by a template (`page.html`).

Whatever the template shows is cleaned and escaped there; only pictures are taken as they are.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from userdp.data.columns import Columns
from userdp.data.tables import check_place, whole_file
from userdp.report import plots, wording
from userdp.report.facts import facts_of
from userdp.report.record import NAMELESS, checked, clean, feature_names, number, output_names, positive, power, real
from userdp.solvers.planner import Solver

Model = Mapping[str, Any]

_MOST_CELLS = 20_000  # of the table of coefficients


def write_report(model: Any, path: str | os.PathLike[str], title: str | None = None) -> Path:
    """Write the report of a fitted model to one HTML file, whole or not at all.

    It says nothing that is not in the model's record: releases and public numbers.

    Parameters
    ----------
    model : estimator or dict
        A fitted model of userdp, or its record (`to_dict`).
    path : str or PathLike
        Where to write; an existing file is replaced.
    title : str, optional
        The page's heading; by default the kind of model.

    Returns
    -------
    Path
        The file.
    """
    if hasattr(model, "privacy_"):  # of a search too, unless its choice is not private, as scikit-learn's is not
        model = getattr(model, "best_estimator_", model)
    page = report_html(model.to_dict() if hasattr(model, "to_dict") else model, title)
    with whole_file(check_place(path)) as new:
        new.write_text(page, encoding="utf-8", newline="\n")
    return Path(path)


def report_html(record: Mapping[str, Any], title: str | None = None) -> str:
    """The report as one HTML page that needs neither network nor scripts.

    Parameters
    ----------
    record : mapping
        A model's record, as its `to_dict` gives it.
    title : str, optional
        The page's heading; by default the kind of model.

    Returns
    -------
    str
    """
    model = checked(record)
    privacy, name, steps = model["privacy"], title or model["estimator"], model["privacy"]["mechanisms"]
    facts = facts_of(model)
    keys = list(dict.fromkeys(key for phase in model["phases"] for key in phase))
    total = sum(real(step.get("epsilon_alone")) for step in steps)
    return (
        templates()
        .get_template("page.html")
        .render(
            model=model,
            privacy=privacy,
            facts=facts,
            user=privacy["unit"] == "user",
            title=f"{name}: privacy report" if privacy["private"] else f"NOT PRIVATE: {name}",
            name=name,
            lead=_lead(model),
            banners=list(_banners(model)),
            tiles=list(_tiles(model)),
            epsilon=f"{privacy['epsilon']:g}",
            delta=power(privacy["delta"]),
            exactly=wording.exact_guarantee(model),
            declared=wording.declared_names(model),
            steps=[_step_row(step, model["n_users"]) for step in facts["composition"]["steps"]],
            apart=len({(step.get("first_user"), step.get("last_user")) for step in steps}) > 1,
            composed=privacy["private"] and total > privacy["epsilon"],
            charged=list(_charged(model)),
            lifetime="" if privacy["ledger"] is None else _lifetime(privacy),
            phase_heads=["phase", *map(wording.column, keys)],
            phases=[[k, *(number(phase.get(key)) for key in keys)] for k, phase in enumerate(model["phases"], 1)],
            weights=_weights(model),
            described=_described_columns(model),
            code=_code(model).split("\n"),
            version=model["versions"].get("userdp", "unknown"),
            year=year[0] if (year := re.match(r"\d{4}", str(model["created"]))) else None,
            **_scores(model),
        )
    )


@cache
def templates() -> Environment:
    """The page's templates; text that enters them is cleaned, then escaped."""

    def cleaned(value: Any) -> Any:
        return value if hasattr(value, "__html__") else clean(value)  # what macros made is escaped

    made = Environment(
        loader=PackageLoader("userdp", "report"),
        autoescape=True,
        finalize=cleaned,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(wording=wording, plots=plots, number=number, power=power)
    return made


def _lead(model: Model) -> str:
    unit, loss = model["privacy"]["word"], model["loss"]  # without its numbers: the parameters have them
    kind = f"{'Poisson' if loss.startswith('poisson') else loss} loss, " if loss else ""
    private = model["privacy"]["private"]
    how = f"with {unit}-level differential privacy" if private else "with noise that can be reproduced"
    solver = f", by the solver “{model['solver']}”" if model["solver"] else ""
    day = f" Made {model['created'][:10]}." if model["created"] else ""
    features = f"{number(model['n_features'])} feature{'s' if model['n_features'] > 1 else ''}"
    return f"A model of {features} ({kind}{number(model['n_users'])} {unit}s), trained {how}{solver}.{day}"


def _banners(model: Model) -> Iterator[tuple[str, str, str]]:
    """What nobody may overlook, the worst first: a kind, a title and words."""
    private = model["privacy"]["private"]
    if not private:
        words = (
            "This run was seeded: anybody who knows or guesses the seed can remove its noise. It is not private. Seeds "
            "are for tests; fit again without one."
        )
        yield "red", "NOT PRIVATE. Do not publish.", f"{words} {model['privacy']['warning']}"
    if model["halted"]:
        words = model["message"] or "A private test failed, and training stopped there."
        kept = " The privacy guarantee holds all the same." if private else ""
        yield "amber", "Training aborted: this model is not finished.", f"{words}{kept}"
    elif model["message"]:
        yield "amber", "This model is likely of little use.", model["message"]
    if positive(model["loss_at_zero"]) and real(model["estimate"]) >= real(model["loss_at_zero"]):
        words = (
            f"Its predicted error, {number(model['estimate'], 2)}, is no better than that of always predicting 0, "
            f"{number(model['loss_at_zero'], 2)}. More users, a larger epsilon or fewer features would help."
        )
        yield "amber", "This model is noise-dominated.", words
    for caution in wording.cautions(model):
        yield "amber", "Please note", caution


def _tiles(model: Model) -> Iterator[tuple[str, str]]:
    """The public numbers at a glance."""
    privacy, rows, gradients = model["privacy"], model["rows_per_user"], model["n_gradients"]
    unit, seeded = privacy["unit"], "" if privacy["private"] else "planned; does not hold"
    yield f"ε = {privacy['epsilon']:g}", seeded or "privacy loss, at most"
    yield f"δ = {power(privacy['delta'])}", seeded or "failure probability"
    yield number(model["n_users"]), f"{privacy['word']}s (a public number)"
    if privacy["affected_users"] is not None:
        estimate, low, high = privacy["affected_users"].percents
        yield estimate, f"of the {privacy['word']}s lost rows with missing cells (95%: {low} to {high})"
    if rows is not None and unit == "user":
        yield number(rows), "rows per user, as declared"
    yield number(model["n_features"]), "features"
    if positive(gradients) and positive(rows):
        yield number(real(gradients) / real(rows) / model["n_users"], 3), "passes over the data, at most"


def _step_row(step: Mapping[str, Any], n_users: int) -> tuple[Any, ...]:
    """A row of the budget's table."""
    first, last, share = step.get("first_user"), step.get("last_user"), real(step.get("share"))
    who = "not given" if None in (first, last) else f"{number(first)} to {number(last)}"
    return (
        step.get("step", "") or NAMELESS,
        (step["purpose"], step["how"]),
        f"{share:.0%}" if math.isfinite(share) else "not given",
        number(step.get("epsilon_alone"), 3),
        number(step.get("releases")),
        "all" if (first, last) == (0, n_users - 1) else who,
    )


def _charged(model: Model) -> Iterator[tuple[str, str]]:
    """The mechanisms' numbers, for reviewers."""
    yield "neighbours", f"{model['privacy']['relation']}: {model['privacy']['neighbours']}"
    yield "solver", f"{model['solver']}, mode {model['mode']}"
    for step in model["privacy"]["mechanisms"]:
        record = step.get("record", "")
        if isinstance(record, Mapping):  # files of 0.1.0 hold text
            record = ", ".join(f"{key} {value}" for key, value in record.items())
        yield step.get("step", ""), record


def _lifetime(privacy: Model) -> str:
    """How much of the data set's budget is spent."""
    ledger, name = privacy["ledger"], privacy["ledger_name"]
    total, spent = real(ledger.get("epsilon")), real(ledger.get("spent_epsilon"))
    if not name and total <= privacy["epsilon"] and math.isfinite(spent):
        return (
            "None was kept: this run had a ledger of its own. If there were other releases from the same data, what "
            "they spent comes on top."
        )
    found = "infinite, since a run was seeded" if spent == math.inf else number(ledger.get("spent_epsilon"), 3)
    kept = f"Kept in the file “{name}”." if name else "Kept in memory for this run, without any other runs."
    return (
        f"Spent: {found}. Lifetime budget: {number(total)}. Counted in ε at δ = {power(real(ledger.get('delta')))}. "
        f"{kept} What is spent is a running total. Guaranteed, however the releases were chosen, is the whole budget, "
        "not a total at a moment chosen by looking at results."
    )


def _scores(model: Model) -> dict[str, Any]:
    """Rows of the tables of scores and of calibration, if scores were measured."""
    if (found := model["scores"]) is None:
        return {}
    curve = [
        (
            f"{number(point.low, 2)} to {number(point.high, 2)}",
            number(point.predicted, 3),
            number(point.observed, 3),
            f"{number(point.observed_low, 3)} to {number(point.observed_high, 3)}",
        )
        for point in found.curve
    ]
    return {"score_lines": [(name.replace("_", " "), *cells) for name, *cells in found.lines()], "curve": curve}


def _weights(model: Model) -> dict[str, Any]:
    """The released weights: the largest as a picture, with its caption, and the table of all, the largest first."""
    names, outputs, errors = feature_names(model), output_names(model), model["std_err"]
    weights = [[real(value) for value in row] for row in model["coef"]]
    sizes = [max((abs(row[k]) for row in weights if math.isfinite(row[k])), default=0.0) for k in range(len(names))]
    order = sorted(range(len(names)), key=lambda k: (-sizes[k], k))
    top = order[: plots.MOST_BARS]
    labels, largest = [names[k] for k in top], [[row[k] for k in top] for row in weights]
    picture, sense = "", " Blue is above 0, orange below; the stronger, the larger."
    if any(sizes) and len(outputs) > 1:
        picture = plots.heat_picture(labels, outputs, largest)
    elif any(sizes):
        sense = "" if model["classes"] is None else f" Blue speaks for “{outputs[0]}”, orange against it."
        reach = middles = None
        if errors is not None:
            reach = [1.96 * errors[k] for k in top]
            middles = [weights[0][k] + model["shrunk"][k] for k in top]
            sense += " Lines are 95% intervals, of privacy's noise and sampling; where noise hides an estimate,"
            sense += " the bar is shrunk towards 0, and the line is not."
            if plots.bars_range(middles, reach)[2]:
                sense += (
                    f" Some that are over {plots.LONG} times as long as usual are cut off: hardly anything is known "
                    "about these coefficients, such as those of features that are always 0."
                )
        picture = plots.bars_picture(labels, largest[0], reach, middles)
    which = f"the {len(top)} features where they are largest" if len(top) < len(names) else "all features"
    listed = order[: max(1, _MOST_CELLS // len(outputs))]
    rows = [[names[k], *(number(row[k], 5) for row in model["coef"])] for k in listed]
    if errors is not None:
        rows = [[*row, number(errors[k], 3)] for row, k in zip(rows, listed, strict=True)]
    if model["intercept"]:
        constant = ["(intercept)", *(number(value, 5) for value in model["intercept"])]
        if errors is not None:
            constant.append(number(errors[-1], 3) if len(errors) > len(names) else "")
        rows.insert(0, constant)
    return {
        "outputs": outputs,
        "picture": picture,
        "caption": f"Coefficients of {which}, as released, with their noise.{sense}",
        "wide": len(outputs) > plots.MOST_NARROW,
        "rows": rows,
        "n_left_out": len(order) - len(listed),
    }


def _described_columns(model: Model) -> list[tuple[str, str]]:
    """What the columns of the table mean, with what was learned of them."""
    if not isinstance(model.get("columns"), Mapping):
        return []
    declared, rows = model["parameters"].get("columns"), []
    for name, record in model["columns"].items():
        was = declared.get(name) if isinstance(declared, Mapping) else None
        learned = isinstance(was, Mapping) and "private" in map(str, was.values())
        rows.append((name, wording.column_in_words(record, learned) if isinstance(record, Mapping) else ""))
    return rows


def _code(model: Model) -> str:
    """The call that fits such a model."""
    name, described, lines = clean(model["estimator"]), model["parameters"].get("columns"), ""
    for key, value in model["parameters"].items():
        shown = clean(repr(Solver(**value) if key == "solver" and isinstance(value, dict) else value))
        if len(shown) > 200:
            shown = f"...  # a {type(value).__name__} too long to show here"
        if key == "class_weight" and value:  # pairs, in files
            shown = f"dict({shown})"
        lines += f"    {clean(key)}={'columns' if key == 'columns' and described is not None else shown},\n"
    owners = ", groups=user_ids" if model["privacy"]["unit"] == "user" else ""
    names = [name, *(["Solver"] if isinstance(model["parameters"].get("solver"), dict) else [])]
    head, rows = f"from userdp import {', '.join(names)}\n", "X"
    if described is not None:
        rows, columns = "table", "...  # a description that cannot be read"
        try:
            made = Columns.of(described)
        except ValueError:
            made = None
        if made is not None:
            kinds = sorted({type(column).__name__ for column in made.values()})
            head = f"from userdp import {', '.join([*kinds, 'Columns', *names])}\n"
            columns = "Columns({\n" + "".join(f"    {key!r}: {value!r},\n" for key, value in made.items()) + "})"
        head += f"\ncolumns = {columns}"
    return f"{head}\nmodel = {name}(\n{lines})\nmodel.fit({rows}, y{owners})"
