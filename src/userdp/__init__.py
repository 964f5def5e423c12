"""Convex learning with user-level differential privacy: the whole person is protected, not one row."""

from userdp.audit import AuditReport, Finding, audit
from userdp.data import UserData
from userdp.domains import Ball, Box
from userdp.estimators import HuberRegressor, LinearRegression, LinearSVC, LogisticRegression, QuantileRegressor
from userdp.fitting import minimize
from userdp.linear_model import UtilityWarning
from userdp.model_files import load_model, save_model
from userdp.moments import SecondMoment, UserMean
from userdp.planner import plan
from userdp.planning import plan_means
from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, gaussian_multiplier, subsampled_multiplier
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.means.clip import Clip
from userdp.privacy.means.gaussian_outlier_removal import GaussianOutlierRemoval
from userdp.privacy.means.outlier_removal import OutlierRemoval
from userdp.privacy.means.sampled_clip import SampledClip
from userdp.privacy.means.sampled_outlier_removal import SampledOutlierRemoval
from userdp.privacy.means.searched_outlier_removal import SearchedOutlierRemoval
from userdp.privacy.mechanism import Halted
from userdp.privacy.plan import Plan, Step
from userdp.privacy.radius import RadiusSearch, radius_grid
from userdp.private_mean import MeanResult, private_mean
from userdp.scaling import PrivateStandardScaler, PublicScaler
from userdp.searches import PrivacyWarning
from userdp.solvers.problem import Problem, Result
from userdp.statistics import MeanGradient, OnePassSGD, UserGradients

__version__ = "0.1.0"

__all__ = [
    "AuditReport",
    "Ball",
    "Box",
    "Budget",
    "BudgetExceeded",
    "Clip",
    "Cost",
    "Curator",
    "Finding",
    "GaussianOutlierRemoval",
    "Halted",
    "HuberRegressor",
    "Ledger",
    "LinearRegression",
    "LinearSVC",
    "LogisticRegression",
    "MeanGradient",
    "MeanResult",
    "OnePassSGD",
    "OutlierRemoval",
    "Plan",
    "PrivacyWarning",
    "PrivateStandardScaler",
    "Problem",
    "PublicScaler",
    "QuantileRegressor",
    "RadiusSearch",
    "Result",
    "SampledClip",
    "SampledOutlierRemoval",
    "SearchedOutlierRemoval",
    "SecondMoment",
    "Step",
    "UserData",
    "UserGradients",
    "UserMean",
    "UtilityWarning",
    "audit",
    "gaussian_multiplier",
    "load_model",
    "minimize",
    "plan",
    "plan_means",
    "private_mean",
    "radius_grid",
    "save_model",
    "subsampled_multiplier",
]
