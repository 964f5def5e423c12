"""The page: headline and banners, then the sections, in one file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from userdp.data.tables import check_place, whole_file
from userdp.report import sections, wording
from userdp.report.markup import banner, text
from userdp.report.record import checked, clean, number

_SEEDED = (
    "This run was seeded: whoever knows or guesses the seed can take its noise away. It protects nobody. Seeds are for "
    "tests; fit again without one."
)
_FOOTER = (
    "Made by userdp from the model's record, which holds releases and public numbers only: no data was read for this "
    "page. It loads nothing and runs no script."
)


def write_report(model: Any, path: str | os.PathLike[str]) -> Path:
    """Write the report of a fitted model, or of its record (a dict), to one HTML file, and give its path.

    The file is there whole or not at all. It says nothing that is not in the record: releases and public numbers.
    """
    page = report_html(model.to_dict() if hasattr(model, "to_dict") else model)
    with whole_file(check_place(path)) as new:
        new.write_text(page, encoding="utf-8", newline="\n")
    return Path(path)


def report_html(record: Mapping[str, Any]) -> str:
    """The report of a model's record as one page that needs neither network nor scripts."""
    model = checked(record)
    name = clean(model["estimator"])
    page = Template(files("userdp.report").joinpath("page.html").read_text(encoding="utf-8"))
    return page.substitute(
        title=text(f"{name}: privacy report" if model["privacy"]["private"] else f"NOT PRIVATE: {name}"),
        heading=text(name),
        lead=text(_lead(model)),
        banners="\n".join(_banners(model)),
        body="\n".join(section(model) for section in sections.ALL),
        footer=_FOOTER,
    )


def _lead(model: Mapping[str, Any]) -> str:
    unit = model["privacy"]["unit"]
    kind = f"{clean(model['loss'])} loss, " if model["loss"] else ""
    how = (
        f"with {unit}-level differential privacy"
        if model["privacy"]["private"]
        else "with noise that can be reproduced"
    )
    solver = f", by the solver “{clean(model['solver'])}”" if model["solver"] else ""
    day = f" Made {clean(model['created'])[:10]}." if model["created"] else ""
    features = f"{number(model['n_features'])} feature{'s' if model['n_features'] > 1 else ''}"
    return f"A model of {features} ({kind}{number(model['n_users'])} {unit}s), trained {how}{solver}.{day}"


def _banners(model: Mapping[str, Any]) -> Iterable[str]:
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
    if wording.drowned(model):
        yield banner(
            "amber",
            "Noise drowns this model.",
            f"Its predicted error, {number(model['estimate'], 2)}, is no better than that of knowing nothing, "
            f"{number(model['loss_at_zero'], 2)}. More users, a larger epsilon or fewer features would help.",
        )
    for caution in wording.cautions(model):
        yield banner("amber", "Please note", caution)
