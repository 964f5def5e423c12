"""What every mechanism for means holds, whatever it does about outliers: noise, plans, sessions, what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest, laplace, norm
from support import SilentNoise, gaussian_removal, searched_removal

from userdp.paper import concentration as c
from userdp.paper.outlier_removal import OutlierRemoval, SampledOutlierRemoval
from userdp.paper.paper_outlier_removal import PaperOutlierRemoval, SampledPaperOutlierRemoval
from userdp.privacy.accounting import (
    Budget,
    BudgetExceeded,
    Cost,
    calibrate,
    gaussian_multiplier,
    subsampled_multiplier,
)
from userdp.privacy.clip import Clip
from userdp.privacy.mechanism import Aborted
from userdp.privacy.noise import SecureNoise, SeededNoise
from userdp.privacy.plan import Plan, Step

# Slacks are wide, so that no test of the real noise aborts in a thousand years.
MEANS = {
    "clip": Clip(40, 5.0),
    "clip of acute vectors": Clip(40, 5.0, acute=True),
    "clip without delta": Clip(40, 5.0, laplace=True),
    "clip of samples": Clip(40, 3.0, sampling_probability=0.3),
    "laplace-tested": OutlierRemoval(200, 5.0, 0.5, 1e-4, 1e-8),
    "gaussian-tested": gaussian_removal(100, 5.0, 3.0, 1e-3, 1e-9),
    "searched": searched_removal(100, (1.0, 2.0, 4.0), 5.0, 2.0, 1e-3, outliers=10),
    "sampled and tested": SampledOutlierRemoval(2000, 0.2, 4.0, 5.0, 1e-6, 1e-9),
    "the paper's": PaperOutlierRemoval(100, 1.0, 2.0, 1e-3),
    "the paper's of samples": SampledPaperOutlierRemoval(2000, 0.2, 1.0, 2.0, 1e-6),
}
CLIPS = [name for name in MEANS if name.startswith("clip")]
PAPERS = [name for name in MEANS if name.startswith("the paper's")]
means = pytest.mark.parametrize("name", MEANS)


def released(record, noise, radius, row):
    """One round with this row for everybody who takes part: the mean, and the radius that it has noise for."""
    session = record.start(noise)
    chosen = session.choose(np.arange(record.n_vectors))
    mean = session.release(np.tile(row, (len(chosen), 1)), radius)
    return (mean[:-1], mean[-1]) if len(mean) > len(row) else (mean, radius)


# --- noise ------------------------------------------------------------------------------------------------------------


def scale(name, radius):
    """By closed form: what multiplies a standard normal, or the scale of Laplace noise."""
    record = MEANS[name]
    if name in CLIPS:
        apart = math.sqrt(2) if record.acute else 2.0
        return record.noise_multiplier * apart * radius / record.expected
    if name in PAPERS:
        return 2.0 * radius
    if name == "sampled and tested":
        return 4.0 * record.sensitivity(radius, 3000)
    return record.noise_multiplier * c.sensitivity(record.n_vectors, record.slack, radius)


@pytest.mark.parametrize("make", [SecureNoise, lambda: SeededNoise(1)], ids=["secure", "seeded"])
@means
def test_released_noise_has_the_shape_and_the_scale_that_are_paid_for(name, make):
    noise, found = released(MEANS[name], make(), 2.0, np.zeros(3000))
    shape = (laplace if name == "clip without delta" else norm)(0, scale(name, found))
    assert kstest(noise, shape.cdf).pvalue > 1e-6
    assert abs(noise.std() / shape.std() - 1) < (0.12 if name == "clip without delta" else 0.07)


@pytest.mark.parametrize("name", [name for name in MEANS if name not in PAPERS])
def test_a_mean_gets_the_noise_that_its_record_tells(name):
    record, noise = MEANS[name], SilentNoise()
    _, found = released(record, noise, 0.7, np.full(3, 0.1))
    kind, sensitivity, given = noise.asked[-1]
    assert sensitivity == record.sensitivity(found, 3)
    if name == "clip without delta":
        assert (kind, given) == ("laplace", 1 / record.noise_multiplier)
        std = math.sqrt(2) * sensitivity / given
    else:
        assert kind == "gaussian"
        std = sensitivity * given
    assert record.noise_std(found, 3) == pytest.approx(std, rel=1e-12)


# --- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in MEANS if "sample" not in name])
def test_everyone_takes_part_and_another_number_of_vectors_than_priced_is_refused(name):
    record, users = MEANS[name], np.arange(5)
    assert record.start(SilentNoise()).choose(users) is users
    for size in (0, 1, record.n_vectors - 1, record.n_vectors + 1, 2 * record.n_vectors):
        noise = SilentNoise()
        with pytest.raises(ValueError, match=f"Expected {record.n_vectors} vectors, as was priced"):
            record.start(noise).release(np.zeros((size, 1)), 1.0)
        assert noise.asked == []


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize(
    "name", ["clip", "clip of acute vectors", "clip without delta", "gaussian-tested", "the paper's"]
)
def test_there_are_as_many_rounds_as_are_paid_for(name, rounds):
    record, noise = replace(MEANS[name], rounds=rounds), SilentNoise()
    session = record.start(noise)
    for _ in range(rounds):
        session.release(np.zeros((record.n_vectors, 1)), 1.0)
    asked = list(noise.asked)
    with pytest.raises(RuntimeError, match="released and paid for"):
        session.release(np.zeros((record.n_vectors, 1)), 1.0)
    assert noise.asked == asked
    kinds = [kind for kind, *_ in asked if kind in ("gaussian", "laplace")]
    assert len(kinds) == rounds * (2 if name == "gaussian-tested" else 1)


@pytest.mark.parametrize("name", ["laplace-tested", "gaussian-tested", "sampled and tested"])
def test_vectors_one_and_a_half_radii_apart_are_not_neighbours(name):
    record = MEANS[name]
    size = round(record.n_vectors * getattr(record, "sampling_probability", 1.0))
    vectors = np.repeat([[0.0], [1.5]], size // 2, axis=0)
    with pytest.raises(Aborted):
        record.start(SilentNoise()).release(vectors, 1.0)
    assert record.start(SilentNoise()).release(vectors, 1.6) == 0.75


# --- plans and records ------------------------------------------------------------------------------------------------

BUDGET = Budget(1.0, 1e-5)
SAMPLED = Clip(40, subsampled_multiplier(BUDGET, 0.3, 8) / 2 * (1 + 1e-9), 8, sampling_probability=0.3)
TESTS = Cost(gaussian=4 / 30.0**2 * (1 + 1e-9), failure=1e-6)
TIGHT = gaussian_removal(2000, gaussian_multiplier(BUDGET, 4, TESTS), 30.0, 1e-6, rounds=4)
PROBES = Cost(gaussian=2 / 20.0**2, failure=1e-6)
SEARCHED = searched_removal(1000, (1.0, 2.0, 3.0), gaussian_multiplier(BUDGET, 1, PROBES), 20.0, 1e-6)
PAPER = PaperOutlierRemoval(1000, 10.0, 1.0, 1e-6)
PAPER = replace(PAPER, noise_ratio=calibrate(lambda ratio: replace(PAPER, noise_ratio=ratio).cost, BUDGET))


@pytest.mark.parametrize(
    ("record", "dearer"),
    [
        (Clip(40, gaussian_multiplier(BUDGET, 3), 3), [{"rounds": 4}]),
        (SAMPLED, [{"rounds": 9}, {"sampling_probability": 0.31}, {"sampling_probability": 1.0}]),
        (TIGHT, [{"test_std": 25.0}, {"rounds": 5}, {"failure": 1e-5}]),
        (SEARCHED, [{"test_std": 18.0}, {"radii": (1.0, 2.0, 3.0, 4.0)}, {"failure": 1e-5}]),
        (PAPER, [{"rounds": 2}, {"test_scale": 9.0}, {"test_scale": 13.0}, {"selection_failure": 1e-5}]),
    ],
    ids=["clip", "clip of samples", "gaussian-tested", "searched", "the paper's"],
)
def test_a_plan_is_certified_up_to_its_budget_and_not_beyond(record, dearer):
    def certify(*records):
        steps = (Step(f"{k}", 0, record.n_vectors, each) for k, each in enumerate(records))
        Plan(record.n_vectors, tuple(steps)).certify(BUDGET)

    certify(record)
    with pytest.raises(BudgetExceeded):
        certify(record, record)
    if record.cost == Cost(gaussian=record.cost.gaussian):
        certify(replace(record, rounds=1), replace(record, rounds=record.rounds - 1))
    noise = "noise_ratio" if record is PAPER else "noise_multiplier"
    for change in (*dearer, {noise: 0.98 * getattr(record, noise)}):
        with pytest.raises(BudgetExceeded):
            certify(replace(record, **change))


@pytest.mark.parametrize(("multiplier", "rounds"), [(5.0, 1), (8.0, 16), (0.3, 7)])
@pytest.mark.parametrize("acute", [True, False])
def test_clipped_rounds_cost_their_gaussians_alone(multiplier, rounds, acute):
    cost = Clip(40, multiplier, rounds, acute=acute).cost
    assert cost == Cost(gaussian=cost.gaussian)
    assert rounds / multiplier**2 <= cost.gaussian <= rounds / multiplier**2 * (1 + 1e-12)


IMPOSSIBLE = {
    "n_vectors": [0, 40.0],
    "noise_multiplier": [0.0, math.nan, math.inf, [5.0], np.array(5.0)],
    "added_user_multiplier": [0.0, math.nan],
    "sampling_probability": [0.0, 1.5, math.nan],
    "rounds": [0, 0.5, 2.5],
    "block": [0],
    "test_epsilon": [math.inf, 9e-4],
    "test_std": [-1.0, math.inf],
    "test_scale": [0.0, np.array(1.0)],
    "noise_ratio": [math.nan],
    "selection_failure": [0.0, 1.0, 2.0],
    "deficit_std": [-1.0],
    "failure": [0.0, 1.0],
    "false_abort": [math.nan, 1.0],
    "outliers": [-1, 0.5],
    "radii": [(), (2.0, 1.0), (1.0, math.nan), (math.nan,), (1.0, math.inf)],
}


@pytest.mark.parametrize(
    ("name", "field"), [(n, f) for n in MEANS for f in IMPOSSIBLE if getattr(MEANS[n], f, None) is not None]
)
def test_impossible_records_are_refused(name, field):
    for value in IMPOSSIBLE[field]:
        with pytest.raises((ValueError, TypeError), match=f"{field}|increasing|positive"):
            replace(MEANS[name], **{field: value})


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("clip", {"noise_multiplier": [5.0]}, "noise_multiplier must be a number, got list"),
        ("clip", {"rounds": 0.5}, "rounds must be a whole number"),
        ("clip without delta", {"acute": True}, "Expected"),
        ("clip without delta", {"sampling_probability": 0.5}, "Expected"),
        ("clip of samples", {"acute": True}, "acute vectors of everyone"),
        ("laplace-tested", {"n_vectors": 20}, r"n_vectors=20 >= \d+"),
        ("laplace-tested", {"test_epsilon": None}, "either a test_epsilon or a test_std"),
        ("laplace-tested", {"test_std": 3.0}, "either a test_epsilon or a test_std"),
        ("laplace-tested", {"radii": (1.0, 2.0)}, "a test_std, and one round"),
        ("searched", {"rounds": 2}, "a test_std, and one round"),
        ("gaussian-tested", {"n_vectors": 20}, r"n_vectors=20 >= \d+ for test_std=3, failure=0.001, false_abort="),
        ("gaussian-tested", {"outliers": 45}, "use more users or groups, or a smaller test_std"),
        ("sampled and tested", {"n_vectors": 100}, "sample more users"),
        ("sampled and tested", {"sampling_probability": 1.0}, "OutlierRemoval"),
        ("the paper's", {"n_vectors": 9}, "n_vectors=9 >= 10 for the paper's ramp"),
        ("the paper's", {"n_vectors": 12}, "n_vectors=12 to keep some vectors"),
        ("the paper's", {"selection_failure": 1e-140}, "to keep some vectors"),
        ("the paper's of samples", {"sampling_probability": 1.0}, "PaperOutlierRemoval takes everyone"),
        ("the paper's of samples", {"n_vectors": 40}, "n_vectors=.* for the paper's ramp"),
        ("the paper's of samples", {"n_vectors": 200}, "batches of more than"),
    ],
)
def test_refusals_say_what_to_do(name, change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        replace(MEANS[name], **change)
