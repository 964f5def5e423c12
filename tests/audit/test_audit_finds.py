"""The audit holds for what is shipped, reaches most of the claim, and fails where noise is missing."""

import pytest

from userdp.auditing import pairs, priced
from userdp.auditing.trainings import audit_canaries, audit_edges, audit_membership
from userdp.privacy import noise
from userdp.privacy.accounting import Budget
from userdp.privacy.mechanism import Mechanism
from userdp.privacy.noise import SecureNoise, SeededNoise

BUDGET = Budget(1.0, 1e-2)
PAIRS = {(pair.what, pair.attack): pair for pair in pairs.mechanism_pairs(BUDGET)}
# What is quick, at how many runs it reaches .7, and how many it takes to see that noise was halved.
QUICK = {
    ("Clip", "edges"): 20_000,
    ("Clip, Laplace noise", "edges"): 20_000,
    ("Clip, sampled", "edges"): 20_000,
    ("Clip, zero-out", "edges"): 20_000,
    ("Clip, Laplace noise, zero-out", "edges"): 20_000,
    ("AboveThresholdOnce", "flips"): 20_000,
    ("GaussianTest", "flips"): 40_000,
}
MAIN = [
    *(key for key in QUICK if key[0] != "GaussianTest"),
    ("OutlierRemoval", "edges"),
    ("OutlierRemoval, Gaussian tests", "edges"),
    ("OutlierRemoval, searched radii", "edges"),
]


class HalvedNoise(SeededNoise):
    """Draws half of what is asked for."""

    def gaussian(self, query, sensitivity, multiplier):
        return query + (super().gaussian(query, sensitivity, multiplier) - query) / 2

    def laplace(self, query, sensitivity, epsilon):
        return super().laplace(query, sensitivity / 2, epsilon)

    def integer_laplace(self, query, scale):
        return super().integer_laplace(query, scale / 2)


def found(key, source, runs, alpha=0.001):
    return PAIRS[key].attacked(source, runs, BUDGET.delta, alpha)


@pytest.mark.parametrize("key", QUICK, ids=" ".join)
def test_most_of_a_claim_is_found_and_no_more(key):
    finding = found(key, SeededNoise(5), QUICK[key])
    assert finding.holds
    assert finding.best >= 0.7


def test_the_noise_that_is_shipped_is_audited():
    finding = found(("Clip", "edges"), SecureNoise(), 3000, alpha=0.05)
    assert finding.holds
    assert finding.best >= 0.4


@pytest.mark.parametrize("key", MAIN, ids=" ".join)
def test_halved_noise_is_found_out(key):
    source = HalvedNoise(6)
    finding = found(key, source, 1000 if "Outlier" in key[0] else 3000, alpha=0.05)
    assert not finding.holds
    assert finding.best > finding.claim


@pytest.mark.parametrize("key", [key for key in PAIRS if key not in QUICK], ids=" ".join)
def test_no_bound_exceeds_its_claim(key):
    assert found(key, SeededNoise(7), 60).holds


def test_every_mechanism_is_attacked():
    attacked_names = {what.split(",")[0] for what, _ in PAIRS}
    mechanisms = {one.__name__ for one in Mechanism.__subclasses__() if one.__module__.startswith("userdp.")}
    missing = mechanisms - {"Allotment"} - attacked_names  # of fits, which have mechanisms of their own
    assert missing == set()
    assert {"RadiusSearch", "AboveThreshold", "PaperOutlierRemoval"} <= attacked_names


def test_mechanisms_cost_the_whole_budget():
    for pair in PAIRS.values():
        assert pair.cost.failure <= BUDGET.delta
    assert priced.clip(BUDGET).cost.gaussian == pytest.approx(priced.gaussian(BUDGET) ** -2)


def test_trainings_hold():
    key = ("whitened-clip", "calibrated")
    assert audit_edges(*key, BUDGET, 0.01, 20, insecure_seed=1).holds
    assert audit_membership(*key, BUDGET, 0.01, 20, insecure_seed=1).holds
    assert audit_canaries(*key, BUDGET, 0.01, 4, 2, insecure_seed=1).holds


def test_canaries_find_noise_that_is_missing(monkeypatch):
    """Two trainings do; with all its noise the same two find less than is claimed. The step has half of the budget."""
    assert audit_canaries("whitened-clip", "calibrated", BUDGET, 0.01, 128, 2, insecure_seed=3).holds
    drawn = noise.gaussian_std
    monkeypatch.setattr(noise, "gaussian_std", lambda *asked: drawn(*asked) / 20)
    finding = audit_canaries("whitened-clip", "calibrated", BUDGET, 0.01, 128, 2, insecure_seed=3)
    assert finding.bound > finding.claim
    assert finding.shaped > finding.claim


def test_an_edge_finds_noise_that_is_missing_in_a_training(monkeypatch):
    drawn = noise.gaussian_std
    monkeypatch.setattr(noise, "gaussian_std", lambda *asked: drawn(*asked) / 5)
    assert not audit_edges("whitened-clip", "calibrated", BUDGET, 0.01, 150, insecure_seed=1).holds
