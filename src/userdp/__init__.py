"""Convex learning with user-level differential privacy: all rows of a user are protected together.

Names are loaded when they are first used, so that `import userdp` costs nothing. `__all__` is for most users; the
other names are for experts, who find them here too, and in `userdp.privacy`, `userdp.solvers` and `userdp.statistics`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same as _PUBLIC, for type checkers
    from userdp.auditing import AuditReport as AuditReport
    from userdp.auditing import Finding as Finding
    from userdp.auditing import audit
    from userdp.data.columns import Boolean, Category, Columns, Date, Number, Text
    from userdp.data.users import UserData
    from userdp.domains import Ball, Box
    from userdp.models.estimators import (
        HuberRegressor,
        LinearRegression,
        LinearSVC,
        LogisticRegression,
        PoissonRegressor,
        QuantileRegressor,
    )
    from userdp.models.evaluating import Evaluation as Evaluation
    from userdp.models.evaluating import evaluate as evaluate
    from userdp.models.files import load_model, save_model
    from userdp.models.files import to_sklearn as to_sklearn
    from userdp.models.fitting import minimize
    from userdp.models.means import MeanResult as MeanResult
    from userdp.models.means import private_mean
    from userdp.models.pipelines import make_pipeline as make_pipeline
    from userdp.models.scaling import PrivateStandardScaler, PublicScaler
    from userdp.models.sklearn_compat import Execution, PrivacyWarning, UtilityWarning
    from userdp.paper.mean_plans import plan_means as plan_means
    from userdp.paper.outlier_removal import OutlierRemoval as OutlierRemoval
    from userdp.paper.outlier_removal import RadiusSearch as RadiusSearch
    from userdp.paper.outlier_removal import SampledOutlierRemoval as SampledOutlierRemoval
    from userdp.paper.outlier_removal import radius_grid as radius_grid
    from userdp.privacy.accounting import Budget, BudgetExceeded
    from userdp.privacy.accounting import Cost as Cost
    from userdp.privacy.accounting import gaussian_multiplier as gaussian_multiplier
    from userdp.privacy.accounting import subsampled_multiplier as subsampled_multiplier
    from userdp.privacy.clip import Clip as Clip
    from userdp.privacy.curator import Curator as Curator
    from userdp.privacy.ledger import Ledger
    from userdp.privacy.mechanism import Aborted
    from userdp.privacy.plan import Plan as Plan
    from userdp.privacy.plan import Step as Step
    from userdp.solvers.planner import Solver, plan
    from userdp.solvers.problem import Problem as Problem
    from userdp.solvers.solver import Result
    from userdp.solvers.solver import register as register
    from userdp.statistics.gradients import MeanGradient as MeanGradient
    from userdp.statistics.gradients import UserGradients as UserGradients
    from userdp.statistics.moments import SecondMoment as SecondMoment
    from userdp.statistics.moments import UserMean as UserMean
    from userdp.statistics.sgd import OnePassSGD as OnePassSGD

__version__ = "0.1.0"

_PUBLIC = {
    "auditing": ("AuditReport", "Finding", "audit"),
    "data.columns": ("Boolean", "Category", "Columns", "Date", "Number", "Text"),
    "data.users": ("UserData",),
    "domains": ("Ball", "Box"),
    "models.estimators": (
        *("HuberRegressor", "LinearRegression", "LinearSVC", "LogisticRegression", "PoissonRegressor"),
        "QuantileRegressor",
    ),
    "models.evaluating": ("Evaluation", "evaluate"),
    "models.files": ("load_model", "save_model", "to_sklearn"),
    "models.fitting": ("minimize",),
    "models.pipelines": ("make_pipeline",),
    "models.means": ("MeanResult", "private_mean"),
    "models.scaling": ("PrivateStandardScaler", "PublicScaler"),
    "models.sklearn_compat": ("Execution", "PrivacyWarning", "UtilityWarning"),
    "privacy.accounting": ("Budget", "BudgetExceeded", "Cost", "gaussian_multiplier", "subsampled_multiplier"),
    "privacy.curator": ("Curator",),
    "privacy.ledger": ("Ledger",),
    "privacy.mechanism": ("Aborted",),
    "privacy.clip": ("Clip",),
    "paper.outlier_removal": ("OutlierRemoval", "RadiusSearch", "SampledOutlierRemoval", "radius_grid"),
    "privacy.plan": ("Plan", "Step"),
    "solvers.solver": ("Result", "register"),
    "solvers.planner": ("Solver", "plan"),
    "paper.mean_plans": ("plan_means",),
    "solvers.problem": ("Problem",),
    "statistics.gradients": ("MeanGradient", "UserGradients"),
    "statistics.moments": ("SecondMoment", "UserMean"),
    "statistics.sgd": ("OnePassSGD",),
}
_PACKAGES = (
    "auditing",
    "data",
    "domains",
    "evaluation",
    "losses",
    "model_selection",
    "models",
    "paper",
    "privacy",
    "report",
    "solvers",
    "statistics",
)
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = [
    "Aborted",
    "Ball",
    "Boolean",
    "Box",
    "Budget",
    "BudgetExceeded",
    "Category",
    "Columns",
    "Date",
    "Execution",
    "HuberRegressor",
    "Ledger",
    "LinearRegression",
    "LinearSVC",
    "LogisticRegression",
    "Number",
    "PoissonRegressor",
    "PrivacyWarning",
    "PrivateStandardScaler",
    "PublicScaler",
    "QuantileRegressor",
    "Result",
    "Solver",
    "Text",
    "UserData",
    "UtilityWarning",
    "audit",
    "load_model",
    "minimize",
    "plan",
    "private_mean",
    "save_model",
]


def __getattr__(name: str) -> Any:
    """A public name, or a package of userdp, on first use."""
    if name in _MODULES:
        value = getattr(import_module(f"userdp.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return import_module(f"userdp.{name}")
    raise AttributeError(f"module 'userdp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_MODULES))


def _names_of(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package: public names of its modules, on first use."""

    def find(name: str) -> Any:
        if f"userdp.{_MODULES.get(name, '')}".startswith(f"{package}."):
            return __getattr__(name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
