"""Selection: charged once, on disjoint people, within the budget."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.privacy import curator as curators
from userdp.privacy import selection
from userdp.privacy.accounting import (
    Budget,
    BudgetExceeded,
    Cost,
    epsilon_at,
    gaussian_delta,
    gaussian_multiplier,
)
from userdp.privacy.clip import Clip
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.noise import noise_source
from userdp.privacy.plan import Plan, Step
from userdp.privacy.selection import Allotment, PartLedger, plan_selection, select
from userdp.statistics.moments import UserMean

BUDGET = Budget(1.0, 1e-6)


def plan(n_users=400, n_candidates=3, refit_fraction=0.5, budget=BUDGET, held_out=0.25):
    return plan_selection(n_users, n_candidates, budget, refit_fraction=refit_fraction, held_out=held_out)


@pytest.mark.parametrize("refit_fraction", [0.0, 0.5])
@pytest.mark.parametrize("budget", [BUDGET, Budget(8.0, 1e-9)])
def test_plans_fit_their_budget_and_use_it(refit_fraction, budget):
    made = plan(refit_fraction=refit_fraction, budget=budget)
    made.certified.certify(budget)
    for cost in made.certified.costs:
        assert epsilon_at(cost, budget.delta) == pytest.approx(budget.epsilon, rel=1e-4)


def test_training_and_held_out_people_pay_in_parallel():
    made = plan(refit_fraction=0.5)
    steps = {step.label: step for step in made.certified.steps}
    assert (steps["candidates"].start, steps["candidates"].stop) == (0, 300)
    assert steps["candidates"].mechanism == Allotment(300, made.fit_mu_squared, 3)
    for label in ("sizes of differences", "differences of scores", "mean score"):
        assert (steps[label].start, steps[label].stop) == (300, 400)
        assert steps[label].mechanism.rounds == 1
    assert (steps["refit"].start, steps["refit"].stop) == (0, 400)
    mine = 3 * made.fit_mu_squared + made.refit_mu_squared
    assert made.certified.cost_of(0).gaussian == pytest.approx(mine, rel=1e-12)
    assert made.certified.cost_of(399).gaussian == pytest.approx(mine, rel=1e-4)


def test_the_noise_that_all_scores_share_is_that_of_their_mean():
    split = plan_selection(5000, 5, BUDGET)
    (mean,) = (step.mechanism for step in split.score_plan.steps if step.label == "mean score")
    assert split.level_noise == pytest.approx(mean.noise_std(0.5, 1), rel=1e-12)


def test_a_plan_in_words_says_what_noise_is_expected():
    made = plan_selection(5000, 5, BUDGET)
    assert str(made).startswith("5 candidates; noise of a candidate 3.2 times that of one fit, of the refit 1.4")


@pytest.mark.parametrize("n_users", [3, 9])
def test_too_few_people_to_hold_out_are_refused(n_users):
    with pytest.raises(BudgetExceeded, match=rf"more than n_users={n_users}.*Nothing was spent"):
        plan_selection(n_users, 3, BUDGET, held_out=0.1)


def test_without_delta_a_search_is_refused():
    with pytest.raises(BudgetExceeded, match="delta > 0 for a search"):
        plan_selection(1000, 3, Budget(1.0, 0.0))


def test_scores_that_noise_would_hide_are_refused_with_the_number_that_would_do():
    few = plan(n_users=100)
    with pytest.raises(BudgetExceeded, match=r"Use about [0-9,]+ users, or") as refused:
        selection.check_telling(few)
    enough = int(str(refused.value).split("Use about ")[1].split(" ")[0].replace(",", ""))
    selection.check_telling(plan(n_users=enough + 4))


@pytest.mark.parametrize("delta", [0.3, 1e-2, 1e-12])
@pytest.mark.parametrize("mu_squared", [1e-6, 1e-3, 0.1, 10.0])
def test_a_fit_that_is_calibrated_to_a_part_s_budget_is_taken(mu_squared, delta):
    ledger = PartLedger(mu_squared, delta)
    multiplier = gaussian_multiplier(ledger.budget)
    ledger.charge(one_step(Clip(10, multiplier)))
    assert multiplier**-2 >= mu_squared * (1 - 1e-4)


def one_step(mechanism):
    return Plan(mechanism.n_vectors, (Step("one", 0, mechanism.n_vectors, mechanism),))


def test_a_part_s_ledger_takes_one_run_of_its_size_and_no_more():
    ledger = PartLedger(0.01, 1e-6)
    assert epsilon_at(Cost(gaussian=0.01), 1e-6) == pytest.approx(ledger.budget.epsilon, rel=1e-4)
    with pytest.raises(BudgetExceeded, match="within its part"):
        PartLedger(0.01, 1e-6)._accepted((Cost(gaussian=0.0100001),), [])
    ledger.charge(one_step(Clip(10, 10.001)))
    with pytest.raises(BudgetExceeded, match="one run for each part"):
        ledger.charge(one_step(Clip(10, 1000.0)))
    assert len(ledger.charges()) == 1


@pytest.mark.parametrize(
    "cost", [Cost(pure=(1e-9,)), Cost(gaussian=1e-6, failure=1e-12), Cost(gaussian=1e-6, pure=(1e-9,))]
)
def test_a_part_s_ledger_takes_gaussian_releases_only(cost):
    with pytest.raises(BudgetExceeded, match="Gaussian noise alone"):
        PartLedger(0.01, 1e-6)._accepted((Cost(gaussian=1e-6), cost), [])


def test_a_draft_is_charged_nowhere_and_refused_as_the_fit_would_be():
    draft = plan().part_ledger(0.01, draft=True)
    with pytest.raises(selection.Drafted):
        draft.charge(one_step(Clip(10, 10.001)))
    with pytest.raises(BudgetExceeded, match="within its part"):
        draft.charge(one_step(Clip(10, 9.9)))
    assert draft.charges() == ()


def test_an_allotment_releases_no_vectors():
    with pytest.raises(RuntimeError, match="releases no vectors"):
        Allotment(5, 0.1).start(noise_source(0))


class Watched:
    """A search whose fits charge all that they may, and note who was asked and what was charged before."""

    def __init__(self, made, fails=False):
        self.plan, self.ledger, self.fits, self.scored, self.fails = made, Ledger(made.budget), [], [], fails

    def fit(self, candidate, users, part, seed):
        assert len(self.ledger.charges()) == 1  # before any data is touched
        mu_squared = part._mu_squared * (1 - 1e-5)
        part.charge(one_step(Clip(len(users), mu_squared**-0.5)))
        self.fits.append((candidate, set(users.tolist()), mu_squared))
        if self.fails and len(self.fits) == 2:
            raise ValueError("somebody's value is 17")
        return candidate

    def losses(self, models, users):
        assert len(self.ledger.charges()) == 1
        self.scored.append(set(users.tolist()))
        return np.tile([[0.6, 0.2, 0.9][model] for model in models], (len(users), 1))

    def run(self, seed=0):
        return select(self.plan, self.ledger, self.fit, self.losses, purpose="a search", insecure_seed=seed)


def test_a_split_is_one_charge_and_every_part_is_within_it():
    watched = Watched(plan(n_users=2000, budget=Budget(8.0, 1e-6)))
    found = watched.run()
    assert (found.best, found.refitted, found.models) == (1, 1, (0, 1, 2))
    assert found.losses == pytest.approx([0.6, 0.2, 0.9], abs=0.1)
    (charge,) = watched.ledger.charges()
    assert charge.purpose == "a search"
    assert charge.steps[0].label == "candidates"
    training = watched.fits[0][1]
    assert [users for _, users, _ in watched.fits] == [training] * 3 + [set(range(2000))]
    assert len(training) == 1500
    assert watched.scored == [set(range(2000)) - training]  # those who trained none of them
    spent = sum(mu_squared for _, _, mu_squared in watched.fits)
    assert spent <= watched.plan.certified.cost_of(0).gaussian


def test_without_a_refit_nobody_is_asked_again():
    watched = Watched(plan(refit_fraction=0.0, n_users=4000, budget=Budget(8.0, 1e-6)))
    found = watched.run(seed=5)
    assert found.refitted is None
    assert len(watched.fits) == 3


def test_a_failure_tells_nothing_but_itself():
    watched = Watched(plan(), fails=True)
    with pytest.raises(RuntimeError, match="one failed on the data") as failed:
        watched.run(seed=5)
    assert failed.value.__context__ is None
    assert len(watched.ledger.charges()) == 1


def test_a_search_that_does_not_fit_asks_nobody():
    made = plan()
    watched = Watched(replace(made, refit_mu_squared=2 * made.refit_mu_squared))
    watched.ledger = Ledger(Budget(100.0, 1e-3))  # which has room for it, but what is stated has not
    with pytest.raises(BudgetExceeded, match="expected <= 1"):
        watched.run()
    assert watched.ledger.charges() == ()
    watched.ledger = Ledger(BUDGET)
    watched.ledger.charge(one_step(Clip(400, 1e-3**-0.5)))
    watched.plan = made
    with pytest.raises(BudgetExceeded, match="With what was spent before"):
        watched.run()
    assert watched.fits == watched.scored == []


class Noticed:
    """Notes what noise is asked for, and adds none; what is released first is nothing, so that radii are the same."""

    seed, state = None, None

    def __init__(self):
        self.asked = []

    def permutation(self, n):
        return np.arange(n)

    def gaussian(self, query, sensitivity, multiplier):
        self.asked.append((query, sensitivity, multiplier))
        return np.zeros_like(query)


HOSTILE = st.lists(st.sampled_from([0.0, 1.0, 0.5, math.nan, math.inf, -math.inf, 1e300, -3.0]), min_size=3, max_size=3)


@given(one=HOSTILE, other=HOSTILE)
@settings(max_examples=60)
def test_one_person_moves_no_score_by_more_than_is_paid_for(one, other):
    made, others = plan(n_users=40), np.random.default_rng(0).random((9, 3))
    told = []
    for mine in (one, other):
        noticed = Noticed()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(curators, "noise_source", lambda seed, noticed=noticed: noticed)
            selection.joint_losses(made, np.vstack([others, mine]))
        told.append(noticed.asked)
    for (first, sensitivity, multiplier), (second, *same) in zip(*told, strict=True):
        assert same == [sensitivity, multiplier]
        assert np.linalg.norm(first - second) <= sensitivity
    assert sum(multiplier**-2 for *_, multiplier in told[0]) <= made.score_mu_squared
    assert sum(multiplier**-2 for *_, multiplier in told[0]) >= made.score_mu_squared * (1 - 1e-4)


def test_the_sensitivities_of_scores_are_attained():
    made = plan(n_users=40)
    asked = []
    for mine in ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.5], [0.0, 1.0, 0.5]):
        noticed = Noticed()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(curators, "noise_source", lambda seed, noticed=noticed: noticed)
            selection.joint_losses(made, np.vstack([np.full((9, 3), 0.5), mine]))
        asked.append(noticed.asked)
    for place, (a, b) in ((2, (0, 1)), (1, (2, 3))):
        (first, sensitivity, _), (second, *_) = asked[a][place], asked[b][place]
        assert np.linalg.norm(first - second) == pytest.approx(sensitivity, rel=1e-5)


def test_differences_are_told_more_sharply_than_scores():
    """Candidates that differ by a hundredth, for people for whom all of them are bad, or not bad at all."""
    rng = np.random.default_rng(0)
    made = plan(n_users=20_000, n_candidates=4)
    people = rng.choice([0.1, 0.9], (5000, 1)) + np.array([0.0, 0.01, 0.02, 0.03]) + rng.normal(0, 0.005, (5000, 4))
    losses, noise_std = selection.joint_losses(made, people, insecure_seed=1)
    assert noise_std < 0.001
    assert losses - losses.mean() == pytest.approx([-0.015, -0.005, 0.005, 0.015], abs=5 * noise_std)
    assert losses.mean() == pytest.approx(people.mean(), abs=0.05)


def test_the_best_fit_of_a_gaussian_part_is_its_budget():
    """A part's epsilon is told at the whole delta: the Gaussian that it allows is the part's, whatever delta is."""
    for delta in (1e-3, 1e-9):
        ledger = PartLedger(0.04, delta)
        assert gaussian_delta(0.2, ledger.budget.epsilon) == pytest.approx(delta, rel=1e-3)


def test_the_curator_of_scores_takes_no_second_round():
    made = plan(n_users=40)
    curator = Curator(
        selection._one_row_each(np.zeros((10, 3))), made.score_plan, made.part_ledger(made.score_mu_squared)
    )
    curator.release("mean score", UserMean(), 0.5)
    with pytest.raises(RuntimeError, match="closed"):
        curator.release("mean score", UserMean(), 0.5)
