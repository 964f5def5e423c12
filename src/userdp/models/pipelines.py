"""Pipelines whose steps learn nothing of people but privately.

What a step before a private model learns from the data (means, categories, components) is outside of the guarantee.
Known are the transformers that work row by row with public parameters alone, and those of this package.

>>> from sklearn.preprocessing import PolynomialFeatures, StandardScaler
>>> from userdp import LinearRegression, PublicScaler
>>> make_pipeline(PublicScaler(0, 10), PolynomialFeatures(2), LinearRegression(target_range=(0, 1))).steps[1][0]
'polynomialfeatures'
>>> learns(StandardScaler())
'StandardScaler'
"""

from __future__ import annotations

from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.pipeline import make_pipeline as any_pipeline

# Transformers of scikit-learn that learn nothing, by their names: those that nobody uses are not loaded.
STATELESS = {
    *("FunctionTransformer", "Normalizer", "Binarizer", "PolynomialFeatures", "HashingVectorizer", "FeatureHasher"),
}
_INSTEAD = {
    "StandardScaler": "PublicScaler(low, high) or PrivateStandardScaler",
    "MinMaxScaler": "PublicScaler(low, high)",
    "SimpleImputer": 'SimpleImputer(strategy="constant", fill_value=0)',
    "OneHotEncoder": "OneHotEncoder(categories=[[...], ...]) with public categories, none of them merged by counts",
    "OrdinalEncoder": "OrdinalEncoder(categories=[[...], ...]) with public categories, none of them merged by counts",
    "TfidfVectorizer": "HashingVectorizer",
    "CountVectorizer": "HashingVectorizer",
}
_ANY_STEP = "a step that works row by row with public parameters"


def learns(step: Any) -> str:
    """What kind of step it is that learns from the data without privacy, "" if it does not."""
    if step is None or isinstance(step, str) or type(step).__module__.startswith("userdp."):
        return ""
    if isinstance(step, Pipeline):
        return next(filter(None, (learns(one) for _, one in step.steps)), "")
    name = type(step).__name__
    if not type(step).__module__.startswith("sklearn."):
        return name if hasattr(step, "transform") else ""
    if name in STATELESS or _is_public(step) or not hasattr(step, "transform"):
        return ""
    return name


def _is_public(step: Any) -> bool:
    """Whether parameters say all that a step of scikit-learn would else learn."""
    name = type(step).__name__
    if name == "SimpleImputer":
        return bool(step.strategy == "constant" and step.fill_value is not None and not step.add_indicator)
    if name in ("OneHotEncoder", "OrdinalEncoder"):
        counted = step.min_frequency is not None or step.max_categories is not None  # which merges rare categories
        return not isinstance(step.categories, str) and not counted
    return False


def check_steps(steps: list[Any]) -> None:
    """Refuse steps that learn from the data without privacy."""
    for step in steps:
        found = learns(step)
        if found:
            raise ValueError(
                f"Expected steps that learn nothing from the data, or privately; {found} learns: use "
                f"{_INSTEAD.get(found, _ANY_STEP)}. Nothing was spent."
            )


def make_pipeline(*steps: Any, memory: Any = None, verbose: bool = False) -> Pipeline:
    """scikit-learn's `make_pipeline`, which refuses steps that learn from the data without privacy.

    `fit` of the pipeline takes groups if metadata routing is on: `sklearn.set_config(enable_metadata_routing=True)`.
    """
    check_steps(list(steps[:-1]))
    return any_pipeline(*steps, memory=memory, verbose=verbose)
