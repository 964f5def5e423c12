"""Neighbours: one user replaced, or zeroed out. Sensitivities, costs, plans, ledgers and statements of both."""

import math
import sqlite3

import numpy as np
import pytest
import scipy.sparse as sp
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from userdp.paper.outlier_removal import OutlierRemoval
from userdp.privacy.accounting import (
    RELATIONS,
    REPLACE_ONE,
    ZERO_OUT,
    Budget,
    BudgetExceeded,
    Cost,
    Subsampled,
    delta_at,
    epsilon_at,
    fits,
    gaussian_multiplier,
    subsampled_multiplier,
)
from userdp.privacy.clip import Clip, clipped_total, mean_of
from userdp.privacy.domination import dominating
from userdp.privacy.ledger import Ledger
from userdp.privacy.noise import SeededNoise
from userdp.privacy.plan import Plan, Step
from userdp.privacy.selection import Allotment, plan_selection
from userdp.privacy.statement import Statement, statement, tradeoff
from userdp.privacy.vocabulary import Vocabulary

USERS = 6
KINDS = {"any": {}, "acute": {"acute": True}, "laplace": {"laplace": True}, "samples": {"sampling_probability": 0.5}}
NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=64),
    st.sampled_from([0.0, -0.0, 5e-324, 1e308, -1e308, 1e-300, 1.0, -1.0]),
)


def clip_of(kind, relation, **change):
    return Clip(USERS, 4.0, neighbours=relation, **KINDS[kind], **change)


def moved(mechanism, vectors, radius):
    """How far the mean moves if the first vector adds nothing to the total, in the mechanism's norm."""
    total = clipped_total(vectors, radius, mechanism.bits, laplace=mechanism.laplace)
    without = clipped_total(vectors[1:], radius, mechanism.bits, laplace=mechanism.laplace)
    means = [mean_of(each, radius, mechanism.bits, mechanism.expected) for each in (total, without)]
    return float(np.linalg.norm(means[0] - means[1], ord=1 if mechanism.laplace else 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sparse", [False, True])
@given(vectors=hnp.arrays(np.float64, (USERS, 3), elements=NUMBERS), radius=st.sampled_from([1e-3, 1.0, 7.5]))
def test_a_user_who_is_zeroed_out_moves_a_clipped_mean_by_at_most_the_sensitivity(kind, sparse, vectors, radius):
    mechanism = clip_of(kind, ZERO_OUT)
    with np.errstate(all="ignore"):
        assert moved(mechanism, sp.csr_array(vectors) if sparse else vectors, radius) <= mechanism.sensitivity(
            radius, 3
        )


@pytest.mark.parametrize("kind", KINDS)
def test_that_sensitivity_is_attained_and_is_a_radius(kind):
    mechanism, vectors = clip_of(kind, ZERO_OUT), np.zeros((USERS, 3))
    vectors[0, 1] = -2.0
    assert moved(mechanism, vectors, 2.0) == pytest.approx(mechanism.sensitivity(2.0, 3), rel=1e-4)
    assert mechanism.sensitivity(2.0, 3) == pytest.approx(2.0 / mechanism.expected, rel=1e-4)


@pytest.mark.parametrize(("kind", "ratio"), [("any", 2), ("acute", math.sqrt(2)), ("laplace", 2), ("samples", 2)])
def test_for_the_same_cost_noise_is_less_by_how_much_less_a_user_moves(kind, ratio):
    replaced, zeroed = (clip_of(kind, relation, rounds=3) for relation in RELATIONS)
    assert replaced.noise_std(1.0, 5) / zeroed.noise_std(1.0, 5) == pytest.approx(ratio, rel=1e-3)
    if kind != "samples":
        assert replaced.cost == zeroed.cost


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_is_the_noise_that_is_said(kind):
    mechanism, seen = clip_of(kind, ZERO_OUT, rounds=400), []
    session = mechanism.start(SeededNoise(0))
    for _ in range(400):
        n_asked = len(session.choose(np.arange(USERS)))
        seen.append(session.release(np.zeros((n_asked, 2)), 3.0))
    assert np.std(seen) == pytest.approx(mechanism.noise_std(3.0, 2), rel=0.12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_other_relation_s_cost_is_that_of_the_same_noise(kind, relation):
    mechanism, (other,) = clip_of(kind, relation, rounds=4), set(RELATIONS) - {relation}
    ratio = {"any": 2, "acute": math.sqrt(2), "laplace": 2, "samples": 2}[kind]
    same = Clip(
        USERS,
        4.0 * (ratio if relation == REPLACE_ONE else 1 / ratio),
        rounds=4,
        neighbours=other,
        **KINDS[kind],
    )
    assert same.noise_std(1.0, 2) == pytest.approx(mechanism.noise_std(1.0, 2), rel=1e-3)
    rounded = 1e-3 if kind == "acute" else 1e-9  # where a replacement may move acute vectors by a little more
    assert epsilon_at(mechanism.cost_under(other), 1e-3) == pytest.approx(epsilon_at(same.cost, 1e-3), rel=rounded)
    assert mechanism.cost_under(relation) == mechanism.cost


@pytest.mark.parametrize("kind", ["any", "acute"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_other_relation_s_cost_is_no_less_than_its_sensitivity_says(kind, relation):
    """Rounding may turn vectors apart, which counts where one is replaced by another."""
    mechanism, (other,) = clip_of(kind, relation, rounds=4), set(RELATIONS) - {relation}
    for dimension in (1, 1000):
        moved = clip_of(kind, other).sensitivity(1.0, dimension) / mechanism.noise_std(1.0, dimension)
        assert mechanism.cost_under(other).gaussian >= 4 * moved**2


def test_gaussian_noise_of_a_zeroed_out_user_costs_the_closed_form():
    """delta = Phi(1/2z - eps z) - e^eps Phi(-1/2z - eps z), with z the noise over what one user adds."""
    from scipy.stats import norm

    z, epsilon = 2.0, 0.7
    noise = Clip(100, z, neighbours=ZERO_OUT).noise_std(1.0, 1) * 100  # of a sum of vectors up to 1 long
    ratio = noise / 1.0
    wanted = norm.cdf(0.5 / ratio - epsilon * ratio) - math.exp(epsilon) * norm.cdf(-0.5 / ratio - epsilon * ratio)
    assert delta_at(Clip(100, z, neighbours=ZERO_OUT).cost, epsilon) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("relation", RELATIONS)
def test_samples_cost_what_dp_accounting_says_of_this_relation(relation):
    cost = Cost(subsampled=(Subsampled(0.1, 1.5, 20, relation),))
    known = {
        REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
        ZERO_OUT: NeighboringRelation.ADD_OR_REMOVE_ONE,
    }[relation]
    theirs = pld.from_gaussian_mechanism(1.5, sampling_prob=0.1, neighboring_relation=known).self_compose(20)
    assert epsilon_at(cost, 1e-6) == pytest.approx(theirs.get_epsilon_for_delta(1e-6), rel=0.02)
    assert Cost.from_json(cost.to_json()) == cost
    assert dominating(cost, 1e-8).mu_squared < 20 * (2 / 1.5) ** 2
    (part,) = clip_of("samples", relation, rounds=20).cost.subsampled
    assert part == Subsampled(0.5, {REPLACE_ONE: 8.0, ZERO_OUT: 4.0}[relation], 20, relation)


def test_a_sample_of_everybody_is_dominated_by_its_gaussian():
    """Of half the mu where a user is zeroed out."""
    for relation, mu in ((REPLACE_ONE, 2.0), (ZERO_OUT, 1.0)):
        cost = Cost(subsampled=(Subsampled(1.0, 4.0, 1, relation),))
        assert math.sqrt(dominating(cost, 1e-9).mu_squared) == pytest.approx(mu / 4.0, rel=1e-3)
        assert delta_at(cost, 0.3) == pytest.approx(delta_at(Cost(gaussian=(mu / 4) ** 2), 0.3), rel=0.02)


def test_multipliers_are_calibrated_in_the_budget_s_relation():
    replaced, zeroed = (Budget(1.0, 1e-6, relation) for relation in RELATIONS)
    assert gaussian_multiplier(replaced) == gaussian_multiplier(zeroed)  # both in units of the sensitivity
    less, more = (subsampled_multiplier(budget, 0.01, 100) for budget in (zeroed, replaced))
    assert less < more
    assert fits(Cost(subsampled=(Subsampled(0.01, less, 100, ZERO_OUT),)), zeroed)


@pytest.mark.parametrize("n_texts", [1, 2, 3])
def test_a_user_who_is_zeroed_out_moves_counts_of_levels_by_one_together(n_texts):
    replaced, zeroed = (Vocabulary(500, 5.0, 1e-8, neighbours=relation) for relation in RELATIONS)
    unit = 2.0**zeroed.bits
    moves = math.sqrt(n_texts) * zeroed.weight(n_texts) / unit
    assert moves <= zeroed.sensitivity(1.0, 1) == 1.0
    assert moves == pytest.approx(1.0, rel=1e-6)
    assert replaced.sensitivity(1.0, 1) == pytest.approx(math.sqrt(2))
    assert zeroed.noise[0] == pytest.approx(5.0 * unit, rel=1e-6)
    assert zeroed.threshold < replaced.threshold
    assert zeroed.cost == replaced.cost


def test_mechanisms_of_both_relations_do_not_mix():
    clips = [Step(relation, 0, 100, Clip(100, 40.0, neighbours=relation)) for relation in RELATIONS]
    with pytest.raises(ValueError, match="must be for the same neighbours"):
        Plan(100, tuple(clips))
    for step, (other,) in ((clip, set(RELATIONS) - {clip.label}) for clip in clips):
        plan = Plan(100, (step,))
        assert plan.neighbours == step.label
        plan.certify(Budget(1.0, 1e-6, step.label))
        with pytest.raises(ValueError, match=f"for neighbours of '{step.label}', the budget for '{other}'"):
            plan.certify(Budget(1.0, 1e-6, other))


def test_a_filtered_mean_is_priced_alike_since_a_zeroed_out_user_is_a_missing_vector():
    replaced, zeroed = (
        OutlierRemoval(1000, 20.0, None, 1e-8, test_std=20.0, neighbours=relation) for relation in RELATIONS
    )
    assert replaced.sensitivity(1.0, 2) == zeroed.sensitivity(1.0, 2)
    assert replaced.cost == zeroed.cost == zeroed.cost_under(REPLACE_ONE)
    assert replaced.cost_under(ZERO_OUT) is None


@pytest.mark.parametrize("wrong", ["add-or-remove", "", None, 1])
def test_relations_that_there_are_not_are_refused(wrong):
    for make in (
        lambda: Budget(1.0, 1e-6, wrong),
        lambda: Clip(10, 1.0, neighbours=wrong),
        lambda: Vocabulary(10, 1.0, 1e-8, neighbours=wrong),
        lambda: Allotment(10, 1.0, neighbours=wrong),
        lambda: Subsampled(0.5, 1.0, 1, wrong),
    ):
        with pytest.raises(ValueError, match='neighbours must be "replace-one" or "zero-out"'):
            make()


# --- ledgers ----------------------------------------------------------------------------------------------------------


def plan_of(relation, z=40.0):
    return Plan(100, (Step("mean", 0, 100, Clip(100, z, neighbours=relation)),))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("in_file", [False, True])
def test_a_ledger_is_of_one_relation_and_refuses_the_other(tmp_path, relation, in_file):
    (other,) = set(RELATIONS) - {relation}
    book = Ledger(Budget(1.0, 1e-6, relation), tmp_path / "ledger.db" if in_file else None)
    with pytest.raises(
        ValueError, match=rf"Pass neighbours='{relation}', or use another ledger .* Nothing was charged"
    ):
        book.charge(plan_of(other))
    assert book.charges() == ()
    book.charge(plan_of(relation))
    if in_file:
        again = Ledger.open(book.path)
        assert again.budget == Budget(1.0, 1e-6, relation)
        assert again.charges()[0].steps[0].record.get("neighbours", REPLACE_ONE) == relation
        with pytest.raises(ValueError, match="to hold Budget"):
            Ledger(Budget(1.0, 1e-6, other), book.path)


def test_a_file_from_before_there_were_two_relations_is_of_replacement(tmp_path):
    path = tmp_path / "ledger.db"
    Ledger(Budget(1.0, 1e-6), path).charge(plan_of(REPLACE_ONE))
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE budget DROP COLUMN neighbours")
        db.execute("ALTER TABLE budget DROP COLUMN called")
        db.execute("PRAGMA user_version = 3")
    db.close()
    book = Ledger.open(path)
    assert (book.budget.neighbours, book.unit, book.called, len(book.charges())) == (REPLACE_ONE, "user", "user", 1)
    with pytest.raises(ValueError, match="for neighbours of 'replace-one'"):
        book.charge(plan_of(ZERO_OUT))


def test_the_first_charge_says_what_a_user_is_called(tmp_path):
    book = Ledger(Budget(1.0, 1e-6), tmp_path / "ledger.db")
    assert book.called is None
    book.charge(plan_of(REPLACE_ONE), unit="household")
    book.charge(plan_of(REPLACE_ONE), unit="user")
    assert (book.called, book.unit) == ("household", "user")
    with pytest.raises(ValueError, match="privacy unit 'user'"):
        book.charge(plan_of(REPLACE_ONE), unit="row")


# --- releases of other tools ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_release_of_another_tool_counts_as_much_as_it_says(relation):
    book = Ledger(Budget(2.0, 1e-6, relation))
    book.charge_external("mean age", mu=0.2)
    assert book.spent_epsilon() == pytest.approx(epsilon_at(Cost(gaussian=0.04), 1e-6), rel=1e-6)
    book.charge_external("histogram", epsilon=0.1, delta=1e-8)
    book.charge_external("regression", rho=0.0005, delta=1e-8)
    epsilon = 0.0005 + 2 * math.sqrt(0.0005 * math.log(1e8))
    costs = [Cost(gaussian=0.04), Cost(pure=(0.1,), failure=1e-8), Cost(pure=(epsilon,), failure=1e-8)]
    for charge, cost in zip(book.charges(), costs, strict=True):
        (charged,) = charge.costs
        assert charged.failure == cost.failure
        assert charged.gaussian == pytest.approx(cost.gaussian, rel=1e-12)
        assert charged.pure == pytest.approx(cost.pure, rel=1e-12)
        assert charged.gaussian >= cost.gaussian
        assert charge.private
        assert charge.steps[0].mechanism == "external"
    left = book.largest_epsilon()
    with pytest.raises(BudgetExceeded, match="Nothing was spent"):
        book.charge_external("too much", mu=2.0)
    assert (len(book.charges()), book.largest_epsilon()) == (3, left)
    assert 0 < left < 2.0


def test_rho_is_converted_upwards_and_more_than_a_gaussian_of_it_costs():
    rho, delta = 0.05, 1e-6
    book = Ledger(Budget(5.0, 1e-5))
    book.charge_external("a Gaussian release", rho=rho, delta=delta)
    exact = epsilon_at(Cost(gaussian=2 * rho), delta)
    assert book.charges()[0].costs[0].pure[0] > exact


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"epsilon": 1.0, "mu": 1.0},
        {"epsilon": -1.0},
        {"epsilon": math.inf},
        {"epsilon": math.nan},
        {"mu": 0.1, "delta": 1e-8},
        {"rho": 0.1},
        {"epsilon": 0.1, "delta": 1.0},
        {"epsilon": 0.1, "delta": -1e-9},
        {"epsilon": 0.1, "delta": math.nan},
    ],
)
def test_what_no_guarantee_says_is_refused_and_not_charged(said):
    book = Ledger(Budget(2.0, 1e-6))
    with pytest.raises(ValueError, match=r"Nothing was charged|finite and > 0"):
        book.charge_external("something", **said)
    assert book.charges() == ()


def test_a_release_of_another_tool_is_of_the_ledger_s_unit():
    book = Ledger(Budget(2.0, 1e-6))
    book.charge_external("visits", epsilon=0.1, unit="household")
    assert book.called == "household"
    with pytest.raises(ValueError, match="privacy unit 'user'"):
        book.charge_external("rows", epsilon=0.1, unit="row")


# --- statements -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_statement_names_the_relation_first_and_the_other_s_epsilon_beside_it(relation):
    budget = Budget(1.0, 1e-6, relation)
    plan = plan_of(relation, gaussian_multiplier(budget))
    book = Ledger(budget)
    book.charge(plan, unit="household")
    said = statement(plan, budget, book, unit="household")
    assert str(said).startswith(f"{relation}: (1, 1e-06)-differential privacy where one household's ")
    assert "households: 100" in str(said)
    found = tradeoff(plan, 1e-6)
    if relation == ZERO_OUT:
        other, marked = found.replaced_epsilon, "(replace-one) the same noise guarantees epsilon 2.1"
        assert found.added_epsilon is None
    else:
        other, marked = found.added_epsilon, 'neighbours="zero-out", would call the same noise epsilon 0.47'
        assert found.replaced_epsilon is None
    factor = 2 if relation == ZERO_OUT else 0.5
    same = epsilon_at(Cost(gaussian=(factor / gaussian_multiplier(budget)) ** 2), 1e-6)
    assert other == pytest.approx(same, rel=1e-6)
    assert marked in str(said)
    assert Statement.from_dict(said.to_dict()) == said


def test_old_statements_are_of_replacement():
    budget = Budget(1.0, 1e-6)
    book, plan = Ledger(budget), plan_of(REPLACE_ONE)
    book.charge(plan)
    record = statement(plan, budget, book).to_dict()
    assert {"relation", "called"}.isdisjoint(record), "as in files from before there were two"
    assert Statement.from_dict(record).relation == REPLACE_ONE


def test_all_parts_of_a_search_are_of_its_relation():
    plan = plan_selection(5000, 3, Budget(1.0, 1e-6, ZERO_OUT))
    assert plan.certified.neighbours == plan.score_plan.neighbours == ZERO_OUT
    plan.certified.certify(plan.budget)
    part = plan.part_ledger(plan.fit_mu_squared)
    assert part.budget.neighbours == ZERO_OUT
    with pytest.raises(ValueError, match="for neighbours of 'zero-out'"):
        part.charge(Plan(100, (Step("fit", 0, 100, Clip(100, 1e3)),)))
