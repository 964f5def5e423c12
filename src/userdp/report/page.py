"""The page: headline, banners and sections, from the guarantee to the citation, in one file.

Each section is a function of the checked record. Everything is escaped where it enters, by `text`; only `Html` is taken
as it is.
"""

from __future__ import annotations

import html
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from userdp.data.columns import Columns
from userdp.data.tables import check_place, whole_file
from userdp.privacy.statement import covered as covers
from userdp.report import plots, wording
from userdp.report.record import NAMELESS, checked, clean, feature_names, number, output_names, positive, power, real

Model = Mapping[str, Any]

_MOST_WHOLE = 20  # rows of a table that are all shown at once
_MOST_CELLS = 20_000  # of the table of coefficients
_MOST_PRINTED = (200, 7)  # rows and columns of it, on paper
_FORMULA = "P[<i>A</i>(<i>D</i>) ∈ <i>S</i>] ≤ <i>e</i><sup>ε</sup> · P[<i>A</i>(<i>D</i>′) ∈ <i>S</i>] + δ"
_NOTHING = "<p>There is nothing to draw: no coefficient is a number other than 0.</p>"
_NO_LEDGER = (
    "None was kept: this run had a ledger of its own. If there were other releases from the same data, what they spent "
    "comes on top."
)
_PAPER = """@inproceedings{lowy2024faster,
  title     = {Faster Algorithms for User-Level Private Stochastic Convex Optimization},
  author    = {Lowy, Andrew and Liu, Daogao and Asi, Hilal},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {37},
  year      = {2024}
}"""
_SEEDED = (
    "This run was seeded: whoever knows or guesses the seed can take its noise away. It is not private. Seeds are for "
    "tests; fit again without one."
)
_FOOTER = (
    "Made by userdp from the model's record, which holds releases and public numbers only: no data was read for this "
    "page. It loads nothing and runs no script."
)


def write_report(model: Any, path: str | os.PathLike[str], title: str | None = None) -> Path:
    """Write the report of a fitted model, or of its record (a dict), to one HTML file, and give its path.

    `title` is the page's heading, else the kind of model is.

    The file is there whole or not at all. It says nothing that is not in the record: releases and public numbers.
    """
    if hasattr(model, "privacy_"):  # of a search too, unless its choice is not private, as scikit-learn's is not
        model = getattr(model, "best_estimator_", model)
    page = report_html(model.to_dict() if hasattr(model, "to_dict") else model, title)
    with whole_file(check_place(path)) as new:
        new.write_text(page, encoding="utf-8", newline="\n")
    return Path(path)


def report_html(record: Mapping[str, Any], title: str | None = None) -> str:
    """The report of a model's record as one page that needs neither network nor scripts."""
    model = checked(record)
    name = clean(title or model["estimator"])
    sections = (guarantee, tiles, source, officer, meaning, noise, budget, error, phases, coefficients, columns, again)
    page = Template(files("userdp.report").joinpath("page.html").read_text(encoding="utf-8"))
    return page.substitute(
        title=text(f"{name}: privacy report" if model["privacy"]["private"] else f"NOT PRIVATE: {name}"),
        heading=text(name),
        lead=text(_lead(model)),
        banners="\n".join(_banners(model)),
        body="\n".join(section(model) for section in sections),
        footer=_FOOTER,
    )


def _lead(model: Model) -> str:
    unit = model["privacy"]["unit"]
    loss = clean(model["loss"])  # without its numbers: those of counts and weights are in the parameters
    kind = f"{'Poisson' if loss.startswith('poisson') else loss} loss, " if loss else ""
    private = model["privacy"]["private"]
    how = f"with {unit}-level differential privacy" if private else "with noise that can be reproduced"
    solver = f", by the solver “{clean(model['solver'])}”" if model["solver"] else ""
    day = f" Made {clean(model['created'])[:10]}." if model["created"] else ""
    features = f"{number(model['n_features'])} feature{'s' if model['n_features'] > 1 else ''}"
    return f"A model of {features} ({kind}{number(model['n_users'])} {unit}s), trained {how}{solver}.{day}"


def _banners(model: Model) -> Iterable[str]:
    """What nobody may overlook, the worst first."""
    private = model["privacy"]["private"]
    if not private:
        yield banner("red", "NOT PRIVATE. Do not publish.", f"{_SEEDED} {model['privacy']['warning']}")
    if model["halted"]:
        words = model["message"] or "A private test failed, and training stopped there."
        kept = " The privacy guarantee holds all the same." if private else ""
        yield banner("amber", "Training aborted: this model is not finished.", f"{words}{kept}")
    elif model["message"]:
        yield banner("amber", "This model is likely of little use.", model["message"])
    if positive(model["loss_at_zero"]) and real(model["estimate"]) >= real(model["loss_at_zero"]):
        yield banner(
            "amber",
            "This model is noise-dominated.",
            f"Its predicted error, {number(model['estimate'], 2)}, is no better than that of knowing nothing, "
            f"{number(model['loss_at_zero'], 2)}. More users, a larger epsilon or fewer features would help.",
        )
    for caution in wording.cautions(model):
        yield banner("amber", "Please note", caution)


def guarantee(model: Model) -> str:
    """The guarantee: a sentence for everybody, then the inequality. A seeded run has none."""
    privacy = model["privacy"]
    if not privacy["private"]:
        return (
            '<section class="guarantee none"><h2>There is no guarantee</h2><blockquote>This run is not private: '
            "its noise can be reproduced.</blockquote><p>With fresh noise it would have been "
            f"{privacy['unit']}-level differentially private, with ε = {privacy['epsilon']:g} and "
            f"δ = {power(privacy['delta'])}. Read everything below in that light.</p></section>"
        )
    over, numbers = wording.exact_guarantee(model)
    best = wording.percent_at_most(privacy["best"])
    whom = "each person whose data was used" if privacy["unit"] == "user" else "each row of the data"
    weak = " weak" if privacy["weak"] else ""
    return f"""<section class="guarantee{weak}"><h2>What is guaranteed to {whom}</h2>
<div class="grid uneven"><blockquote>{text(wording.plain_guarantee(privacy))}</blockquote>
<p class="callout"><b>{best}</b> {text(wording.attack_in_words(privacy))}</p></div>
<h3>Precisely</h3><p>{text(over)}</p><div class="formula" tabindex="0">{_FORMULA}</div>
<p class="note">{text(numbers)}</p></section>"""


def tiles(model: Model) -> str:
    """The public numbers at a glance."""
    privacy, rows, gradients = model["privacy"], model["rows_per_user"], model["n_gradients"]
    unit, seeded = privacy["unit"], "" if privacy["private"] else "planned; does not hold"
    shown = [
        (f"ε = {privacy['epsilon']:g}", seeded or "privacy loss, at most"),
        (f"δ = {power(privacy['delta'])}", seeded or "chance on top of it"),
        (number(model["n_users"]), f"{unit}s (a public number)"),
    ]
    if privacy["affected_users"] is not None:
        estimate, low, high = privacy["affected_users"].percents
        shown.append((estimate, f"of the {unit}s lost rows with missing cells (95%: {low} to {high})"))
    if rows is not None and unit == "user":
        shown.append((number(rows), "rows per user, as declared"))
    shown.append((number(model["n_features"]), "features"))
    if positive(gradients) and positive(rows):
        shown.append((number(real(gradients) / real(rows) / model["n_users"], 3), "passes over the data, at most"))
    cells = "".join(f'<div class="tile"><b>{text(big)}</b><span>{text(small)}</span></div>' for big, small in shown)
    return f'<div class="tiles">{cells}</div>'


def source(model: Model) -> str:
    """What the model is for and of which data it was made, as far as somebody said so."""
    rows = wording.told(model)
    return f"<section><h2>What it is for, and made of</h2>{facts(rows)}</section>" if rows else ""


def officer(model: Model) -> str:
    """What a data-protection officer asks, and what the record answers."""
    asked = "".join(
        f"<dt>{text(question)}</dt><dd>{text(answer)}</dd>" for question, answer in wording.questions(model)
    )
    return f'<section class="officer"><h2>Questions of a data-protection officer</h2><dl>{asked}</dl></section>'


def meaning(model: Model) -> str:
    """What the guarantee covers and what not, beside a picture of what any attack can reach."""
    privacy = model["privacy"]
    user = privacy["unit"] == "user"
    if not privacy["private"]:
        return ""
    covered = [
        f"{covers(privacy)[0].upper()}{covers(privacy)[1:]}.",
        "All rows of a person together, however many." if user else "Each row by itself, not all rows of a person.",
        "Against anybody who sees the release, whatever else they know, whatever computers they have, now and later.",
        "Whatever the data is: nothing is assumed about its distribution or its bounds, nor that people are honest.",
    ]
    caption = (
        f"Every attack is a point in this picture: how often it suspects {'a person' if user else 'a row'} rightly "
        "(up) and how often wrongly (across). Blind guessing is on the dashed line. With this release, none is above "
        "the solid one."
    )
    if privacy["tradeoff"] is not None:
        caption += " The orange line is what (ε, δ) alone would allow: the worst of all releases with these numbers."
    return f"""<section><h2>What that means</h2><div class="grid">
{figure(plots.attack_picture(privacy), caption)}
<div><h3>Covered</h3>{bullets(covered)}
<h3>Not covered</h3>{bullets(wording.not_covered(privacy))}
<p class="note">It rests on {wording.RESTS_ON}.</p></div></div></section>"""


def noise(model: Model) -> str:
    """What the noise gives beyond (epsilon, delta)."""
    privacy = model["privacy"]
    rows = wording.noise_facts(privacy)
    if not rows or not privacy["private"]:
        return ""
    pairs = [
        (power(delta), "none: tests may err more often" if epsilon is None else wording.up(epsilon))
        for delta, epsilon in privacy["tradeoff"].epsilons
    ]
    return f"""<section><h2>What the noise really gives</h2>
<p class="lead">(ε, δ) is one point of a curve. The whole curve is known: it follows from the noise that was planned.
</p>
<div class="grid uneven">{facts(rows)}
<div><h3>The same release at other δ</h3>{table(("δ", "ε"), pairs, numbers=(1,))}</div></div></section>"""


def budget(model: Model) -> str:
    """What each step took of the budget, and what is left of the data set's."""
    privacy, rows, parts = model["privacy"], [], set()
    steps, unit = privacy["mechanisms"], privacy["unit"]
    records = [
        ("neighbours", privacy["neighbours"]),
        ("solver", f"{clean(model['solver'])}, mode {clean(model['mode'])}"),
    ]
    for step in steps:
        name, share, record = clean(step.get("step", "")), real(step.get("share")), step.get("record", "")
        first, last = part = step.get("first_user"), step.get("last_user")
        who = "not given" if None in part else f"{number(first)} to {number(last)}"
        rows.append(
            (
                name or NAMELESS,
                Html(f'{text(wording.purpose(step))} <span class="note">{text(wording.how(step))}</span>'),
                f"{share:.0%}" if math.isfinite(share) else "not given",
                number(step.get("epsilon_alone"), 3),
                number(step.get("releases")),
                "all" if part == (0, model["n_users"] - 1) else who,
            )
        )
        parts.add(part)
        if isinstance(record, Mapping):  # files of 0.1.0 hold text
            record = ", ".join(f"{key} {value}" for key, value in record.items())
        records.append((name, str(record)))
    caption = "The fraction of the budget that each step takes."
    if len(parts) > 1:
        caption += f" Steps on different {unit}s do not add up: each pays only for the steps that it is in."
    heads = ("step", "what it is for", "fraction", "ε if alone", "releases", f"{unit}s")
    shown = table(heads, rows, numbers=(2, 3, 4, 5), words=1, stacked=True) if steps else "<p>No step is on record.</p>"
    alone = sum(real(step.get("epsilon_alone")) for step in steps)
    less = f"Together the steps cost ε = {privacy['epsilon']:g}, which is less than the sum of what each costs alone."
    return f"""<section><h2>What the budget went into</h2>
<p class="lead">Everything was planned from public numbers and charged before anything was computed from the data. Each
step has noise of its own.</p>
<div class="grid">{figure(plots.budget_picture(steps), caption)}{_ledger(privacy)}</div>
{shown}
<p class="note">{less if alone > privacy["epsilon"] and privacy["private"] else ""}</p>
<details><summary>The mechanisms as charged, for reviewers</summary>{facts(records)}</details>
</section>"""


def _ledger(privacy: Model) -> str:
    ledger = privacy["ledger"]
    if ledger is None:
        return ""
    total, spent, name = real(ledger.get("epsilon")), real(ledger.get("spent_epsilon")), privacy["ledger_name"]
    kept = f"Kept in the file “{name}”." if name else "Kept in memory for this run: it knows of no other runs."
    words = (
        f"Counted in ε at δ = {power(real(ledger.get('delta')))}. {kept} What is spent is a running total. Guaranteed, "
        "however the releases were chosen, is the whole budget, not a total at a moment chosen by looking at results."
    )
    head = "<h3>The data set's lifetime budget</h3>"
    if not name and total <= privacy["epsilon"] and math.isfinite(spent):
        return f"<div>{head}<p>{_NO_LEDGER}</p></div>"
    if math.isfinite(spent) and positive(total):
        left = f"Left: about {number(max(0.0, total - spent), 3)}; how much exactly depends on how releases compose. "
        return f"<div>{head}{figure(plots.ledger_picture(spent, total), left + words)}</div>"
    sum_of_all = "infinite, since a run was seeded" if spent == math.inf else number(ledger.get("spent_epsilon"))
    return f"<div>{head}<p>{text(f'Spent: {sum_of_all}. Allowed: {number(total)}. {words}')}</p></div>"


def measured(model: Model) -> str:
    """Scores of people who were kept from training, with intervals and the calibration curve."""
    found = model["scores"]
    heads = ("score", "value", f"{number(100 * found.confidence)}% interval", "noise (std)", "sampling (std)")
    rows = [(name.replace("_", " "), *cells) for name, *cells in found.lines()]
    curve = [
        (
            f"{number(point.low, 2)} to {number(point.high, 2)}",
            number(point.predicted, 3),
            number(point.observed, 3),
            f"{number(point.observed_low, 3)} to {number(point.observed_high, 3)}",
        )
        for point in found.curve
    ]
    notes = "".join(f"<p>{text(why)}</p>" for why in found.notes)
    shown = ("predicted chance", "predicted on average", "observed", heads[2])
    calibration = f"<h3>Calibration</h3>{table(shown, curve, numbers=(1, 2, 3))}" if curve else ""
    return f"""<section><h2>How good it is, measured</h2>
<p class="lead">Measured privately on {text(number(found.n_users))} people who were kept from training. They pay for
these scores, the others for the training: nobody pays for both. Intervals hold the noise, and which people were
drawn.</p>
{table(heads, rows, numbers=(1, 2, 3, 4))}{notes}{calibration}</section>"""


def error(model: Model) -> str:
    """The predicted error beside the bound and beside knowing nothing; or, if there are any, the measured scores."""
    if model["scores"] is not None:
        return measured(model)
    estimate, bound, nothing = model["estimate"], model["bound"], model["loss_at_zero"]
    words = [
        f"Predicted, {number(estimate, 2)}: by how much this model's mean loss should exceed that of the best model."
        + (" That was for a run that ends well; this one aborted." if model["halted"] else ""),
        wording.error_in_words(model),
        f"Knows nothing, {number(nothing, 2)}: the loss of always predicting 0. A model that is off by so much has "
        "learned nothing.",
    ]
    levels = (
        ("predicted", estimate),
        ("estimate" if model["bound_is_estimate"] else "bound", bound),
        ("knows nothing", nothing),
    )
    picture = figure(plots.error_picture(levels), "Loss above that of the best model, on a log scale: left is better.")
    return f"""<section><h2>What privacy costs in accuracy</h2>
<p class="lead">These are predictions from public numbers and from what was released. Nothing else was measured on the
data for this page: measuring would cost budget, too.</p>
<div class="grid">{picture or "<p>There is no number that could be drawn.</p>"}
{bullets(words[estimate is None :])}</div></section>"""


def phases(model: Model) -> str:
    """What each phase released besides weights."""
    done, title = model["phases"], "<h2>What training released on its way</h2>"
    if not done:
        return f"<section>{title}<p>Nothing: no phase got that far.</p></section>"
    keys = list(dict.fromkeys(key for phase in done for key in phase))
    rows = [[k + 1, *(number(phase.get(key)) for key in keys)] for k, phase in enumerate(done)]
    some = f" Shown: the first {plots.MOST_ROWS} of {len(done)} phases." if len(done) > plots.MOST_ROWS else ""
    words = [
        wording.radius_in_words(model),
        "Noise: the standard deviation of what was added to each number of a release, in proportion to the radius.",
    ]
    picture = figure(plots.phases_picture(done), f"Radius and noise on a log scale.{some}")
    shown = table(("phase", *map(wording.column, keys)), rows, numbers=range(1, len(keys) + 1))
    return f'<section>{title}<div class="grid">{picture}{bullets(words)}</div>{shown}</section>'


def coefficients(model: Model) -> str:
    """The released weights: the largest as a picture, all of them as a table."""
    names, outputs, classes = feature_names(model), output_names(model), model["classes"]
    weights = [[real(value) for value in row] for row in model["coef"]]
    sizes = [max((abs(row[k]) for row in weights if math.isfinite(row[k])), default=0.0) for k in range(len(names))]
    order = sorted(range(len(names)), key=lambda k: (-sizes[k], k))
    top = order[: plots.MOST_BARS]
    largest = [[row[k] for k in top] for row in weights]
    if not any(sizes):
        picture = sense = ""
    elif len(outputs) == 1:
        errors = middles = None
        if model["std_err"] is not None:
            errors = [1.96 * model["std_err"][k] for k in top]
            middles = [weights[0][k] + model["shrunk"][k] for k in top]
        picture = plots.bars_picture([names[k] for k in top], largest[0], errors, middles)
        sense = f" Blue speaks for “{outputs[0]}”, orange against it." if classes is not None else ""
        if errors is not None and middles is not None:
            sense += " Lines are 95% intervals: privacy's noise, and who is in the data; where noise hides an estimate,"
            sense += " the bar is drawn towards 0, and the line is not."
            if plots.bars_range(middles, errors)[2]:
                sense += (
                    f" Of some that are over {plots.LONG} times as long as usual the picture shows a part: hardly "
                    "anything is known of these coefficients, such as those of columns that nobody has."
                )
    else:
        picture = plots.heat_picture([names[k] for k in top], outputs, largest)
        sense = " Blue is above 0, orange below; the stronger, the larger."
    which = f"the {len(top)} features where they are largest" if len(top) < len(names) else "all features"
    caption = f"Coefficients of {which}, as released, with their noise.{sense}"
    wide = len(outputs) > plots.MOST_NARROW
    drawn = figure(picture, caption, wide) or _NOTHING
    use = "Not private: keep these numbers to yourself."
    if model["privacy"]["private"]:
        use = "Whatever is computed from these numbers is as private as they are, and costs no more budget."
    words = f'<p class="note">{use}</p>'
    if classes is not None and len(classes) != len(outputs):
        words = facts([("classes", ", ".join(clean(label) for label in classes))]) + words
    numbers = _numbers(model, names, outputs, order)
    if len(outputs) > 3:
        inner = f'<div class="{"" if wide else "grid"}">{drawn}<div>{words}</div></div>{numbers}'
    else:
        inner = f'<div class="grid">{drawn}<div>{words}{numbers}</div></div>'
    return f"<section><h2>The released model</h2>{inner}</section>"


def _numbers(model: Model, names: list[str], outputs: list[str], order: list[int]) -> str:
    """The table of all coefficients, the largest first; on paper only if it is small."""
    listed = order[: max(1, _MOST_CELLS // len(outputs))]
    rows = [[names[k], *(number(row[k], 5) for row in model["coef"])] for k in listed]
    if model["intercept"]:
        rows.insert(0, ["(intercept)", *(number(value, 5) for value in model["intercept"])])
    heads = ("feature", *(outputs if len(outputs) > 1 else ["coefficient"]))
    if (errors := model["std_err"]) is not None:
        constant = [number(errors[-1], 3) if len(errors) > len(names) else ""] if model["intercept"] else []
        told = [*constant, *(number(errors[k], 3) for k in listed)]
        heads, rows = (*heads, "std err"), [[*row, error] for row, error in zip(rows, told, strict=True)]
    shown = table(heads, rows, numbers=range(1, len(heads)))
    if len(listed) < len(order):
        shown += f'<p class="note">The {number(len(listed))} largest are shown; all are in the model file.</p>'
    if len(rows) > _MOST_PRINTED[0] or len(heads) > _MOST_PRINTED[1]:
        return f'<div class="screen">{shown}</div><p class="print note">The numbers are in the model file.</p>'
    return shown


def columns(model: Model) -> str:
    """What the columns of the table mean, with what was learned of them, and which were left out."""
    if not isinstance(model.get("columns"), Mapping):
        return ""
    declared, rows = model["parameters"].get("columns"), []
    for name, record in model["columns"].items():
        was = declared.get(name) if isinstance(declared, Mapping) else None
        learned = isinstance(was, Mapping) and "private" in map(str, was.values())
        rows.append((name, wording.column_in_words(record, learned) if isinstance(record, Mapping) else ""))
    return f"""<section><h2>What the columns mean</h2>
<p class="lead">Declared publicly, or learned by the steps above; the model applies it to new rows. Columns of the table
that are not here were left out.</p>{facts(rows)}</section>"""


def again(model: Model) -> str:
    """How to run it again, on which versions, and how to cite it."""
    name, versions = clean(model["estimator"]), model["versions"]
    described, lines = model["parameters"].get("columns"), ""
    for key, value in model["parameters"].items():
        shown = clean(repr(value))
        if len(shown) > 200:
            shown = f"...  # a {type(value).__name__} too long to show here"
        if key == "class_weight" and value:  # pairs, in files
            shown = f"dict({shown})"
        lines += f"    {clean(key)}={'columns' if key == 'columns' and described is not None else shown},\n"
    owners = ", groups=people" if model["privacy"]["unit"] == "user" else ""
    head = f"from userdp import {name}\n" if described is None else _described(name, described)
    code = f"{head}\nmodel = {name}(\n{lines})\nmodel.fit({'X' if described is None else 'table'}, y{owners})"
    year = re.match(r"\d{4}", str(model["created"]))
    software = "@software{userdp,\n  title   = {userdp: Convex learning with user-level differential privacy},\n"
    software += f"  version = {{{clean(versions.get('userdp', 'unknown'))}}}"
    software += f",\n  year    = {{{year[0]}}}" if year else ""
    return f"""<section><h2>Reproduce and cite</h2><div class="grid"><div><h3>The same call</h3>
<pre tabindex="0">{pre(code)}</pre>
<p>Noise is fresh in every run: the same call gives a somewhat different model, and costs its budget anew.</p></div>
<div><h3>Versions</h3>{facts([(clean(key), clean(value)) for key, value in versions.items()])}</div></div>
<h3>How to cite</h3><pre class="wrapped">{pre(_PAPER)}

{pre(software)}
}}</pre></section>"""


def _described(name: str, described: object) -> str:
    """The lines that make the columns' description."""
    try:
        columns = Columns.of(described)
    except ValueError:
        return f"from userdp import {name}\n\ncolumns = ...  # a description that cannot be read"
    kinds = sorted({type(column).__name__ for column in columns.values()})
    made = "".join(f"    {key!r}: {column!r},\n" for key, column in columns.items())
    return f"from userdp import {', '.join([*kinds, 'Columns', name])}\n\ncolumns = Columns({{\n{made}}})"


class Html(str):
    """Markup that is on the page as it is; all other text is escaped."""


def text(value: object) -> str:
    return value if isinstance(value, Html) else html.escape(clean(value))


def pre(lines: str) -> str:
    return "\n".join(html.escape(clean(line)) for line in lines.split("\n"))


def figure(svg: str, caption: str, wide: bool = False) -> str:
    if not svg:
        return ""
    return f"<figure{' class=wide tabindex=0' if wide else ''}>{svg}<figcaption>{text(caption)}</figcaption></figure>"


def bullets(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{text(item)}</li>" for item in items) + "</ul>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>' for name, value in pairs)
    whole = " whole" * (rows.count("<tr>") <= _MOST_WHOLE)
    table = f'<table class="facts"><tbody>{rows}</tbody></table>'
    return f'<div class="scroll{whole}" tabindex="0">{table}</div>' if rows else ""


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    numbers: Iterable[int] = (),
    words: int | None = None,
    stacked: bool = False,
) -> str:
    """A table, which scrolls if it is long: the first column names the row, those in `numbers` are aligned right.

    A stacked one shows each row as a list of names and cells where there is no room.
    """
    kinds = dict.fromkeys(numbers, ' class="number"')
    if words is not None:
        kinds[words] = ' class="words"'
    head = "".join(f'<th scope="col"{kinds.get(k, "")}>{text(name)}</th>' for k, name in enumerate(heads))
    opened = [kinds.get(k, "") + f' data-head="{text(name)}"' * stacked for k, name in enumerate(heads)]
    rows, body = list(rows), ""
    kind = "wordy" if any(len(str(row[0])) > 14 for row in rows) else "terse"
    for name, *cells in rows:
        written = "".join(f"<td{start}>{text(cell)}</td>" for start, cell in zip(opened[1:], cells, strict=True))
        body += f'<tr><th scope="row">{text(name)}</th>{written}</tr>'
    whole = f'<table class="{kind}{" stacked" * stacked}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll{" whole" * (len(rows) <= _MOST_WHOLE)}" tabindex="0">{whole}</div>'


def banner(kind: str, title: str, words: str) -> str:
    return f'<div class="banner {kind}" role="alert"><strong>{text(title)}</strong><p>{text(words)}</p></div>'
