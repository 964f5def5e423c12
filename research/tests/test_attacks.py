"""The audit of the mechanisms here: it holds for what is shipped, reaches most of the claim, notices missing noise."""

import pytest
from test_mechanism import mechanism_classes

from userdp.auditing import auditable
from userdp.auditing.trainings import audit_canaries, audit_edges, audit_membership
from userdp.privacy import noise
from userdp.privacy.accounting import Budget
from userdp.privacy.noise import SeededNoise
from userdp.report.wording import how
from userdp_research import mechanisms
from userdp_research.attacks import mechanism_pairs

BUDGET = Budget(1.0, 1e-2)
PAIRS = {(pair.what, pair.attack): pair for pair in mechanism_pairs(BUDGET)}
# What is quick, and at how many runs it reaches .7.
QUICK = {("Perturbation", "edges"): 20_000, ("LocalVotes", "edges"): 4000, ("LocalReports", "edges"): 20_000}
MAIN = [*QUICK, ("Winsorized", "edges"), ("SampledRows", "edges")]
KINDS = {
    "ClipWithFraction": "clip",  # as files call it, since it was part of `Clip`
    "LocalReports": "local-reports",
    "LocalVotes": "local-votes",
    "Perturbation": "output-perturbation",
    "SampledRows": "sampled-rows",
    "Winsorized": "winsorized",
}


class HalvedNoise(SeededNoise):
    """Draws half of what is asked for; of coins only those that noise a vote."""

    def gaussian(self, query, sensitivity, multiplier):
        return query + (super().gaussian(query, sensitivity, multiplier) - query) / 2


class Truer(HalvedNoise):
    def poisson_mask(self, probabilities):
        # Half of the chance not to tell the truth.
        return super().poisson_mask((1 + probabilities) / 2)


def found(key, source, runs, alpha=0.001):
    return PAIRS[key].attacked(source, runs, BUDGET.delta, alpha)


@pytest.mark.slow
@pytest.mark.parametrize("key", QUICK, ids=" ".join)
def test_most_of_a_claim_is_found_and_no_more(key):
    finding = found(key, SeededNoise(5), QUICK[key])
    assert finding.holds
    assert finding.best >= 0.7


@pytest.mark.slow
@pytest.mark.parametrize("key", MAIN, ids=" ".join)
def test_halved_noise_is_found_out(key):
    source = Truer(6) if key[0].startswith("Local") else HalvedNoise(6)
    finding = found(key, source, 3000, alpha=0.05)
    assert not finding.holds
    assert finding.best > finding.claim


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key in PAIRS if key not in QUICK], ids=" ".join)
def test_no_bound_exceeds_its_claim(key):
    assert found(key, SeededNoise(7), 60).holds


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["bassily-sun-local", "group-privacy"])
def test_trainings_hold(solver):
    assert audit_edges(solver, "calibrated", BUDGET, 0.01, 20, insecure_seed=1).holds
    assert audit_membership(solver, "calibrated", BUDGET, 0.01, 20, insecure_seed=1).holds
    assert audit_canaries(solver, "calibrated", BUDGET, 0.01, 4, 2, insecure_seed=1).holds


@pytest.mark.slow
def test_an_edge_finds_noise_that_is_missing_in_a_training(monkeypatch):
    drawn = noise.gaussian_std
    monkeypatch.setattr(noise, "gaussian_std", lambda *asked: drawn(*asked) / 5)
    assert not audit_edges("group-privacy", "calibrated", BUDGET, 0.01, 150, insecure_seed=1).holds


def test_every_mechanism_has_its_kind_is_told_in_words_and_is_attacked():
    assert {kind.__name__: kind.kind for kind in mechanism_classes([mechanisms])} == KINDS
    assert {what.split(",")[0] for what, _ in PAIRS} == set(KINDS) <= set(auditable()[1])
    for kind in KINDS.values():
        assert how({"mechanism": kind}) != "See the record below."
    assert all(pair.cost.failure <= BUDGET.delta for pair in PAIRS.values())
