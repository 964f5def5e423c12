"""Write docs/api.md from the docstrings: python docs/api.py"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import userdp

PAGE = Path(__file__).parent / "api.md"
INTRODUCTION = (
    "Generated from the docstrings by `python docs/api.py`. Losses are in `userdp.losses`.\n"
    "Names that `userdp.__all__` does not list are for experts."
)
SECTIONS = {
    "Estimators": [
        "LogisticRegression",
        "LinearSVC",
        "LinearRegression",
        "HuberRegressor",
        "QuantileRegressor",
        "PoissonRegressor",
        "PublicScaler",
        "PrivateStandardScaler",
        "UtilityWarning",
        "PrivacyWarning",
        "save_model",
        "load_model",
        "make_pipeline",
        "to_sklearn",
    ],
    "Columns": ["Columns", "Number", "Boolean", "Category", "Date", "Text"],
    "Functions": ["minimize", "private_mean", "plan", "plan_means"],
    "Data and problems": ["UserData", "Ball", "Box", "Simplex", "Affine", "Problem", "Result", "MeanResult"],
    "Budget": ["Budget", "Ledger", "BudgetExceeded", "Cost", "gaussian_multiplier", "subsampled_multiplier"],
    "Audit": ["audit", "AuditReport", "Finding"],
    "Releases": [
        *("Curator", "Plan", "Step", "Aborted", "OutlierRemoval"),
        *("SampledOutlierRemoval", "Clip", "RadiusSearch", "radius_grid"),
        *("UserMean", "MeanGradient", "OnePassSGD", "SecondMoment", "UserGradients"),
    ],
}


def page() -> str:
    """The page's text."""
    parts = ["# API", INTRODUCTION]
    shown: set[str] = set()
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        for name in names:
            thing = getattr(userdp, name)
            parts.append(f"### {name}")
            if not (inspect.isclass(thing) and issubclass(thing, Exception)):
                parts.append(f"```text\n{_signature(name, thing)}\n```")
            parts.append(f"```text\n{_new(inspect.getdoc(thing) or '', shown)}\n```")
    return "\n\n".join(parts) + "\n"


def _new(text: str, shown: set[str]) -> str:
    """A docstring without parameters that are on the page already, word for word."""
    sections = re.split(r"\n\n(?=\w[\w ]*\n---)", text)
    for number, section in enumerate(sections[1:], 1):
        title, line, *entries = re.split(r"\n(?! )", section)
        if title != "Examples":
            new = [entry for entry in entries if entry not in shown]
            shown.update(new)
            others = ["Others are explained above."] if len(new) < len(entries) else []
            sections[number] = "\n".join([title, line, *new, *others])
    return "\n\n".join(sections)


def _signature(name: str, thing: Callable[..., object]) -> str:
    """One argument per line if they are many."""
    signature = inspect.signature(thing)
    short = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=short, return_annotation=inspect.Signature.empty))
    if len(name + text) <= 110:
        return name + text
    return f"{name}(\n" + "".join(f"    {part},\n" for part in text[1:-1].split(", ")) + ")"


if __name__ == "__main__":
    PAGE.write_text(page())
