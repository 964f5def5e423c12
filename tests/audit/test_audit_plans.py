"""Whole plans, attacked in all their releases: most of a claim is found, no more, and too little noise is found out."""

import pytest
from test_audit_finds import BUDGET, HalvedNoise

from userdp.auditing import pairs
from userdp.auditing.plans import plan_pairs
from userdp.auditing.trainings import VARIANTS, audit_edges
from userdp.privacy import noise
from userdp.privacy.noise import SecureNoise, SeededNoise

PLANS = {pair.what: pair for pair in plan_pairs(BUDGET) if pair.attack == "edges"}
PARTS = {pair.what: pair for pair in pairs.mechanism_pairs(BUDGET) if pair.attack == "edges"}
QUICK = ["evaluate", "intervals of coefficients", "PrivateStandardScaler", "PrivateSearchCV, scores"]
PIECES = ["Clip, squares of means", "Clip, counts of a quantile"]
SLOW = ["fit with intervals", "fit of a quantile", "PrivateSearchCV"]


@pytest.mark.parametrize("what", [*QUICK, *PIECES])
def test_most_of_a_claim_is_found_and_no_more(what):
    finding = (PLANS | PARTS)[what].attacked(SeededNoise(5), 2000, BUDGET.delta, 0.05)
    assert finding.holds
    assert finding.claim > 0.99
    assert finding.best >= 0.6


@pytest.mark.parametrize("what", [*QUICK, *PIECES, "private_mean, with intervals"])
def test_halved_noise_is_found_out(what):
    assert not (PLANS | PARTS)[what].attacked(HalvedNoise(6), 800, BUDGET.delta, 0.05).holds


@pytest.mark.parametrize("what", SLOW)
def test_missing_noise_is_found_out_in_many_releases(monkeypatch, what):
    assert PLANS[what].attacked(SeededNoise(6), 40, BUDGET.delta, 0.05).holds
    drawn = noise.gaussian_std
    monkeypatch.setattr(noise, "gaussian_std", lambda *asked: drawn(*asked) / 5)
    assert not PLANS[what].attacked(SeededNoise(6), 40, BUDGET.delta, 0.05).holds


def test_plans_cost_the_whole_budget():
    for what in (*QUICK, *SLOW, "private_mean, with intervals"):
        assert PLANS[what].attacked(SeededNoise(1), 4, BUDGET.delta, 0.05).claim == pytest.approx(1.0, abs=1e-3)


def test_a_search_runs_with_the_noise_that_is_shipped():
    assert PLANS["PrivateSearchCV"].play(SecureNoise(), 0) != PLANS["PrivateSearchCV"].play(SecureNoise(), 0)


@pytest.mark.parametrize("name", VARIANTS)
def test_trainings_with_intervals_and_of_quantiles(monkeypatch, name):
    assert audit_edges(name, "tight", BUDGET, 0.01, 4, insecure_seed=1).holds
    drawn = noise.gaussian_std
    monkeypatch.setattr(noise, "gaussian_std", lambda *asked: drawn(*asked) / 10)
    assert not audit_edges(name, "tight", BUDGET, 0.01, 12, insecure_seed=1).holds
