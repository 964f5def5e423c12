"""Whole plans, attacked in all their releases: most of a claim is found, no more, and too little noise is found out."""

import numpy as np
import pytest
from support_audit import audited_gaussian_epsilon
from test_audit_finds import BUDGET, HalvedNoise

from userdp.auditing import pairs
from userdp.auditing.plans import plan_pairs
from userdp.auditing.trainings import VARIANTS, edge_features, training
from userdp.privacy import noise
from userdp.privacy.accounting import epsilon_at
from userdp.privacy.noise import SecureNoise, SeededNoise

PLANS = {pair.what: pair for pair in plan_pairs(BUDGET) if pair.attack == "edges"}
PARTS = {pair.what: pair for pair in pairs.mechanism_pairs(BUDGET) if pair.attack == "edges"}
QUICK = ["evaluate", "intervals of coefficients", "PrivateSearchCV, scores"]
PIECES = ["Clip, squares of means", "Clip, counts of a quantile"]
SLOW = ["fit with intervals", "fit of a quantile", "private_mean, with intervals", "PrivateSearchCV"]


@pytest.mark.parametrize("what", [*QUICK, *PIECES])
def test_most_of_a_claim_is_found_and_no_more(what):
    finding = (PLANS | PARTS)[what].attacked(SeededNoise(5), 2000, BUDGET.delta, 0.05)
    assert finding.holds
    assert finding.claim > 0.99
    assert finding.best >= 0.6


@pytest.mark.parametrize("what", [*QUICK, *PIECES])
def test_halved_noise_is_found_out(what):
    assert not (PLANS | PARTS)[what].attacked(HalvedNoise(6), 800, BUDGET.delta, 0.05).holds


def shown(play, runs):
    """Epsilon at least, if what is seen is Gaussian: few runs will do where most of the noise is missing."""
    ones, others = (np.array([play(version, k) for k in range(runs)])[:, 0] for version in (0, 1))
    return audited_gaussian_epsilon(ones, others, BUDGET.delta)


@pytest.fixture
def hardly_any_noise(monkeypatch):
    drawn = noise.gaussian_std
    monkeypatch.setattr(noise, "gaussian_std", lambda *asked: drawn(*asked) / 20)


@pytest.mark.parametrize("what", SLOW)
def test_missing_noise_is_found_out_in_many_releases(request, what):
    source = SeededNoise(6)
    assert shown(lambda version, _: PLANS[what].play(source, version), 6) < 1
    request.getfixturevalue("hardly_any_noise")
    assert shown(lambda version, _: PLANS[what].play(source, version), 6) > 2


def test_plans_cost_the_whole_budget():
    for what in (*QUICK, *SLOW):
        assert epsilon_at(PLANS[what].cost, BUDGET.delta) == pytest.approx(1.0, abs=1e-3)


def test_a_search_runs_with_the_noise_that_is_shipped():
    assert PLANS["PrivateSearchCV"].play(SecureNoise(), 0) != PLANS["PrivateSearchCV"].play(SecureNoise(), 0)


@pytest.mark.parametrize("name", VARIANTS)
def test_trainings_with_intervals_and_of_quantiles(hardly_any_noise, name):
    """Through solver and curator: too little noise is found out."""
    run = training(name, "calibrated", BUDGET, 2)
    data = run.generated_users()
    assert shown(lambda version, k: edge_features(run, data, 1 - 2 * version, 2 * k + version), 4) > 2
