"""Records of models, as estimators give them: what the report's tests are made from."""

import copy
import math

LIFTER_FEATURES = {
    "age": 0.1834, "age_squared": -0.2417, "bodyweight_kg": 0.0921, "sex_male": -0.1182, "sex_mx": -0.0113,
    "equipment_raw": 0.3125, "equipment_wraps": 0.1248, "equipment_single_ply": -0.2034, "equipment_multi_ply": -0.1761,
    "lift_squat": 0.4612, "lift_bench": -0.0378, "lift_deadlift": 0.2263, "attempt_2": -0.5217, "attempt_3": -1.2408,
    "weight_over_best": -0.8834, "weight_over_bodyweight": -0.3342, "jump_from_last": -0.6127,
    "last_attempt_failed": 0.4021, "tested": 0.0532, "federation_ipf": 0.1409, "federation_uspa": 0.0217,
    "country_usa": -0.0461, "years_lifting": 0.2748,
    "meets_before": 0.1917, "meet_size": -0.0229, "month_sin": 0.0087, "month_cos": -0.0142, "division_open": 0.0361,
    "division_junior": -0.0588,
}  # fmt: skip

LOGISTIC = {
    "format": "userdp model 1",
    "estimator": "LogisticRegression",
    "created": "2026-11-16T07:00:00+00:00",
    "parameters": {
        "epsilon": 1.0,
        "delta": 1e-06,
        "solver": "auto",
        "mode": "tight",
        "max_rows_per_user": 30,
        "row_norm": 5.5,
        "domain_radius": 10.0,
        "fit_intercept": True,
        "l2": 0.0,
        "max_gradients": None,
    },
    "features": list(LIFTER_FEATURES),
    "n_features": 29,
    "classes": [0, 1],
    "coef": [list(LIFTER_FEATURES.values())],
    "intercept": [1.1432],
    "solver": "accelerated",
    "mode": "calibrated",
    "n_users": 48092,
    "rows_per_user": 30,
    "n_gradients": 41840040,
    "halted": False,
    "message": "",
    "bound": 0.1287,
    "estimate": 0.0021,
    "loss": "logistic",
    "loss_at_zero": math.log(2),
    "phases": [
        {
            "users": 48092,
            "steps": 28,
            "users_a_step": 48092.0,
            "regularizer": 0.0,
            "expected_radius": 4.56,
            "radius": 0.6112,
            "noise_std": 0.000796,
        }
    ],
    "privacy": {
        "epsilon": 1.0,
        "delta": 1e-06,
        "unit": "user",
        "neighbours": "one user's whole data is replaced by any other",
        "private": True,
        "insecure_seed": None,
        "warning": "",
        "ledger": {
            "path": "/home/analyst/secret-project/lifters.ledger",
            "epsilon": 3.0,
            "delta": 1e-05,
            "spent_epsilon": 0.94,
        },
        "mechanisms": [
            {
                "step": "second moment",
                "mechanism": "Clip",
                "releases": 1,
                "share": 0.2,
                "epsilon_alone": 0.41,
                "record": "Clip(n_vectors=48092, noise_multiplier=9.446669648376293, rounds=1, block=2250)",
                "first_user": 0,
                "last_user": 48091,
            },
            {
                "step": "radius",
                "mechanism": "RadiusSearch",
                "releases": 1,
                "share": 0.02,
                "epsilon_alone": 0.12,
                "record": "RadiusSearch(n_vectors=48092, radii=(0.02, 0.024, 0.0288), target=46649, noise_std=47.4)",
                "first_user": 0,
                "last_user": 48091,
            },
            {
                "step": "mean",
                "mechanism": "GaussianOutlierRemoval",
                "releases": 28,
                "share": 0.78,
                "epsilon_alone": 0.87,
                "record": "GaussianOutlierRemoval(n_vectors=48092, noise_multiplier=26.39, test_std=115.0, "
                "failure=5e-08, false_abort=0.001, rounds=28, outliers=1538)",
                "first_user": 0,
                "last_user": 48091,
            },
        ],
    },
    "versions": {"userdp": "0.1.0", "python": "3.11.7", "numpy": "2.3.4", "opendp": "0.14.1", "dp-accounting": "0.6.0"},
}


def changed(base=LOGISTIC, **changes):
    """A copy with other entries; those of "privacy" are merged."""
    record = copy.deepcopy(base)
    record["privacy"].update(changes.pop("privacy", {}))
    return record | changes


def wave(n_features, n_outputs):
    """Coefficients of all sizes and both signs."""
    return [[math.sin(7.3 * k + 2.9 * j) * math.exp(-k / 12) for k in range(n_features)] for j in range(n_outputs)]


GAUSSIAN = {  # epsilon 1, delta 1e-6, all of it Gaussian noise
    "right_guess": 0.54711,
    "points": [[0.0, 0.99999999], [0.02, 0.966], [0.2, 0.726], [0.4528, 0.4530], [0.726, 0.2], [0.99999999, 0.0]],
    "mu": 0.236704,
    "mu_failure": 0.0,
    "failure": 0.0,
    "epsilons": [[1e-05, 0.87247], [1e-06, 1.0], [1e-07, 1.11484], [1e-08, 1.22006], [1e-09, 1.31767]],
    "added_epsilon": 0.47523,
}

KNOWN_NOISE = changed(solver="whitened-clip", privacy={"tradeoff": GAUSSIAN})
TESTED = changed(
    solver="accelerated",
    privacy={
        "tradeoff": GAUSSIAN
        | {"failure": 5e-8, "mu_failure": 6e-8, "added_epsilon": None, "epsilons": [[1e-6, 1.0], [1e-8, None]]}
    },
)

MULTINOMIAL = changed(
    estimator="MultinomialLogisticRegression",
    features=[
        "pages_read",
        "minutes_on_site",
        "is_evening",
        "from_search",
        "from_newsletter",
        "device_phone",
        "device_tablet",
        "returning",
        "subscriber",
        "scroll_depth",
        "year",
        "weekend",
    ],
    n_features=12,
    classes=["politics", "sports", "culture", "science", "local"],
    coef=wave(12, 5),
    intercept=[0.31, -0.12, 0.02, -0.4, 0.19],
    loss="multinomial(5)",
    loss_at_zero=math.log(5),
    estimate=0.034,
    bound=2.4,
)

REGRESSION = changed(
    estimator="LinearRegression",
    features=None,
    n_features=5,
    classes=None,
    coef=[[2.31, -0.74, 0.052, 11.8, -3.3]],
    intercept=[14.2],
    loss="squared",
    loss_at_zero=1800.0,
    estimate=None,
    bound=410.0,
    solver="phased-sgd",
    n_gradients=1442760,
    phases=[
        {
            "users": 24046,
            "groups": 603,
            "step_size": 0.0608,
            "expected_radius": 5.54,
            "radius": 1.33,
            "noise_std": 0.041,
        },
        {
            "users": 16032,
            "groups": 603,
            "step_size": 0.0121,
            "expected_radius": 1.12,
            "radius": 0.35,
            "noise_std": 0.011,
        },
        {
            "users": 8014,
            "groups": 603,
            "step_size": 0.0024,
            "expected_radius": 0.22,
            "radius": 0.26,
            "noise_std": 0.0079,
        },
    ],
    privacy={
        "ledger": {"path": None, "epsilon": 1.0, "delta": 1e-06, "spent_epsilon": 1.0},
        "mechanisms": [
            {
                "step": f"phase {k + 1}",
                "mechanism": "SearchedOutlierRemoval",
                "releases": 1,
                "share": 1.0,
                "record": "SearchedOutlierRemoval(n_vectors=603, ...)",
                "epsilon_alone": 1.0,
                "first_user": first,
                "last_user": last,
            }
            for k, (first, last) in enumerate([(0, 24045), (24046, 40077), (40078, 48091)])
        ],
    },
)

ABORTED = changed(
    halted=True,
    message="A private test failed: too many users' gradients are far from the others. The result is the start. "
    "What you can do, with a new budget: fill missing values and check that targets are coded as the loss expects (a "
    "user with one NaN is an outlier), or raise row_norm if rows are longer than declared. The budget of this run is "
    "spent.",
    phases=[],
    coef=[[0.0] * 29],
    intercept=[0.0],
)

SEEDED = changed(
    privacy={
        "private": False,
        "insecure_seed": 7,
        "warning": "insecure_seed was given: nothing is private.",
        "ledger": {"path": None, "epsilon": 1.0, "delta": 1e-06, "spent_epsilon": math.inf},
    }
)

NOISE_DOMINATED = changed(estimate=0.9, n_users=900, n_gradients=783000, bound=17.0)

SCRIPT = "<script>alert('x')</script>"
HOSTILE = changed(
    estimator=SCRIPT,
    features=[
        SCRIPT,
        "a" * 300,
        "年齢と体重の比率をとても長く書いた特徴量の名前です",
        "$\\alpha$ &amp; \"quoted\" 'q'",
        "a\nb\tc",
        "\u202egnp.exe",
        "🏋️‍♀️ lifts",
        "",
        "\ud800",
        'url(#x) id="y" font-family: Evil',
        "نص عربي طويل",
        "NaN",
    ],
    n_features=12,
    coef=[[1.0, -2.0, math.nan, math.inf, -math.inf, 1e-320, 1e308, -1e308, 0.0, 5e-9, 0.25, None]],
    classes=[SCRIPT, f"</style>{SCRIPT}"],
    message=SCRIPT,
    halted=True,
    solver=SCRIPT,
    mode=SCRIPT,
    loss=SCRIPT,
    created=SCRIPT,
    parameters={SCRIPT: SCRIPT, "warm_start": [0.1] * 500},
    versions={SCRIPT: SCRIPT},
    bound=math.nan,
    estimate=math.inf,
    loss_at_zero=-1.0,
    phases=[{SCRIPT: SCRIPT, "radius": math.nan, "noise_std": -1.0}, {"radius": 1e-320, "expected_radius": 1e250}],
    privacy={
        "epsilon": 700.0,
        "delta": 0.5,
        "neighbours": SCRIPT,
        "warning": SCRIPT,
        "ledger": {"path": f"C:\\Users\\me\\{SCRIPT}.ledger", "epsilon": 0.0, "delta": SCRIPT, "spent_epsilon": None},
        "mechanisms": [{"step": SCRIPT, "mechanism": SCRIPT, "record": SCRIPT, "share": math.nan}, {}],
    },
)

HUGE = changed(
    features=[f"feature_number_{k}_of_two_thousand" for k in range(2000)],
    n_features=2000,
    classes=[f"class {k}" for k in range(40)],
    coef=wave(2000, 40),
    intercept=[0.01 * k for k in range(40)],
    phases=[{"users": 48092 // 2**k, "radius": 1 / 2**k, "expected_radius": 3.0, "noise_std": 0.01} for k in range(60)],
    privacy={"mechanisms": [{"step": f"phase {k}", "share": 1 / 60, "mechanism": "Clip"} for k in range(60)]},
)

ROWS = changed(privacy={"unit": "row", "neighbours": "one row is replaced by any other", "epsilon": 4.0})

RECORDS = {
    "logistic": LOGISTIC,
    "known noise": KNOWN_NOISE,
    "tested": TESTED,
    "multinomial": MULTINOMIAL,
    "regression": REGRESSION,
    "halted": ABORTED,
    "seeded": SEEDED,
    "noise-dominated": NOISE_DOMINATED,
    "rows": ROWS,
    "hostile": HOSTILE,
    "huge": HUGE,
}
