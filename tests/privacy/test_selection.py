"""Selection: charged once, on disjoint people, within the budget, and nothing of the runs that were not chosen."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import norm

from userdp.privacy import curator as curators
from userdp.privacy import selection
from userdp.privacy.accounting import (
    Budget,
    BudgetExceeded,
    Cost,
    epsilon_at,
    gaussian_delta,
    gaussian_multiplier,
    selected_epsilon,
)
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanisms.allotment import Allotment, RandomStopping
from userdp.privacy.mechanisms.clip import Clip
from userdp.privacy.noise import noise_source
from userdp.privacy.plan import Plan, Step
from userdp.privacy.selection import PartLedger, best_of_random_runs, plan_selection, select
from userdp.vectors.moments import UserMean

BUDGET = Budget(1.0, 1e-6)


def plan(strategy, n_users=400, n_candidates=3, refit_fraction=0.5, budget=BUDGET, held_out=0.25):
    plans = plan_selection(n_users, n_candidates, budget, refit_fraction=refit_fraction, held_out=held_out)
    return next(made for made in plans if made.strategy == strategy)


def closed_form(mu_squared, stop, delta, other=0.0):
    """Theorem 2 of Papernot and Steinke, eta = 1, and the conversion of Canonne, Kamath and Steinke, by themselves."""
    orders = 1 + np.geomspace(0.01, 1e5, 4001)
    constant = np.min(2 * (1 - 1 / orders) * orders * mu_squared / 2 - 2 * np.log(stop) / orders)
    selected = orders * mu_squared / 2 + constant - np.log(stop) / (orders - 1)
    selected = np.minimum.accumulate(selected[::-1])[::-1]  # a divergence of lower order is no larger
    rdp = selected + orders * other / 2
    return float(np.min(rdp + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)))


@pytest.mark.parametrize("mu", [0.02, 0.1, 0.7])
@pytest.mark.parametrize("stop", [0.5, 0.05, 0.002])
@pytest.mark.parametrize("other", [0.0, 0.05])
def test_the_best_of_random_runs_costs_what_the_paper_proves(mu, stop, other):
    expected = closed_form(mu**2, stop, 1e-6, other)
    assert expected * (1 - 1e-9) <= selected_epsilon(mu**2, stop, 1e-6, other) <= 1.01 * expected


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("stop", [0.5, 0.02])
def test_what_the_best_of_gaussian_runs_really_tells_is_within_the_claim(mu, stop):
    """The greatest of K numbers, K geometric, has the distribution p F / (1 - (1 - p) F): its delta is an integral."""
    y = np.linspace(-12, 14, 400_001)

    def density(mean):
        return stop * norm.pdf(y - mean) / (1 - (1 - stop) * norm.cdf(y - mean)) ** 2

    epsilon = selected_epsilon(mu**2, stop, 1e-4)
    for one, other in ((0.0, mu), (mu, 0.0)):
        apart = trapezoid(np.maximum(0.0, density(one) - math.exp(epsilon) * density(other)), y)
        assert apart <= 1e-4
    assert epsilon > epsilon_at(Cost(gaussian=mu**2), 1e-4)  # than one run


def test_releases_besides_the_runs_are_paid_for():
    alone, with_refit = (selected_epsilon(0.01, 0.05, 1e-6, other) for other in (0.0, 0.04))
    assert with_refit > 1.2 * alone
    stopping = RandomStopping(10, 0.01, 0.05, 1e-6, 0.04)
    assert stopping.cost.pure == pytest.approx((with_refit,), rel=1e-12)
    assert (stopping.cost.gaussian, stopping.cost.failure) == (0.0, 1e-6)


def test_a_chance_is_priced_as_it_is_drawn():
    third = RandomStopping(10, 0.01, 1 / 3, 1e-6).stop_probability
    assert third <= 1 / 3
    assert (third * 2**53).is_integer()


class Scripted:
    """Draws what it is told, and counts what is asked for."""

    seed = None

    def __init__(self, stops, candidates):
        self.stops, self.candidates, self.chances = list(stops), list(candidates), []

    def poisson_mask(self, probabilities):
        self.chances.append(float(probabilities[0]))
        return np.array([self.stops.pop(0)])

    def integers(self, n, high):
        assert n == 1
        return np.array([self.candidates.pop(0) % high])


@pytest.mark.parametrize("losses", [[0.0] * 4, [0.9, 0.5, 0.7, 0.1], [math.inf] * 4])
def test_chance_alone_decides_how_many_runs_there_are_and_of_whom(losses):
    asked = []

    def run(candidate, number):
        asked.append((candidate, number))
        return losses[number], f"model {number}"

    noise = Scripted([False, False, False, True], [2, 0, 1, 2])
    loss, candidate, model = best_of_random_runs(noise, 3, 0.25, run)
    assert asked == [(2, 0), (0, 1), (1, 2), (2, 3)]
    assert noise.chances == [0.25] * 4
    best = int(np.argmin(losses))  # the first of equal ones
    assert (loss, candidate, model) == (losses[best], asked[best][0], f"model {best}")


def test_the_number_of_runs_is_geometric_and_candidates_are_uniform():
    noise, counts, drawn = noise_source(0), [], []
    for _ in range(3000):
        runs = []
        best_of_random_runs(noise, 4, 0.25, lambda candidate, number, runs=runs: (runs.append(candidate) or 0.0, None))
        counts.append(len(runs))
        drawn += runs
    assert np.mean(counts) == pytest.approx(4.0, abs=0.3)
    assert np.mean(np.array(counts) == 1) == pytest.approx(0.25, abs=0.04)
    assert np.bincount(drawn) / len(drawn) == pytest.approx([0.25] * 4, abs=0.03)


@pytest.mark.parametrize("refit_fraction", [0.0, 0.5])
@pytest.mark.parametrize("budget", [BUDGET, Budget(8.0, 1e-9)])
def test_plans_fit_their_budget_and_use_it(refit_fraction, budget):
    for strategy in selection.STRATEGIES:
        made = plan(strategy, refit_fraction=refit_fraction, budget=budget)
        made.certified.certify(budget)
        for cost in made.certified.costs:
            assert epsilon_at(cost, budget.delta) == pytest.approx(budget.epsilon, rel=1e-4)


def test_training_and_held_out_people_pay_in_parallel():
    made = plan("split", refit_fraction=0.5)
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


def test_random_stopping_is_taken_where_candidates_are_many_and_users_too():
    def first(*sizes):
        return plan_selection(*sizes, BUDGET)[0].strategy

    assert [made.telling for made in plan_selection(5000, 50, BUDGET)] == [True, False]
    assert first(5000, 5) == "split"
    assert first(5000, 50) == "split"
    assert first(1_000_000, 5) == "split"
    assert first(1_000_000, 50) == "random stopping"


def test_the_noise_that_all_scores_share_is_that_of_their_mean():
    split, stopping = plan_selection(5000, 5, BUDGET)
    (mean,) = (step.mechanism for step in split.score_plan.steps if step.label == "mean score")
    assert split.level_noise == pytest.approx(mean.noise_std(0.5, 1), rel=1e-12)
    assert stopping.level_noise == 0.0


def test_a_plan_in_words_says_what_noise_is_expected():
    split, stopping = plan_selection(5000, 5, BUDGET)
    assert str(split).startswith(
        "split: 5 candidates; noise of a candidate 3.2 times that of one fit, of the refit 1.4"
    )
    assert "25 runs on average" in str(stopping)


def test_where_a_refit_leaves_random_stopping_no_room_there_is_the_split():
    (only,) = plan_selection(1000, 3, BUDGET, refit_fraction=0.999)
    assert only.strategy == "split"


@pytest.mark.parametrize("n_users", [3, 9])
def test_too_few_people_to_hold_out_are_refused(n_users):
    with pytest.raises(BudgetExceeded, match=rf"more than n_users={n_users}.*Nothing was spent"):
        plan_selection(n_users, 3, BUDGET, held_out=0.1)


def test_without_delta_a_search_is_refused():
    with pytest.raises(BudgetExceeded, match="delta > 0 for a search"):
        plan_selection(1000, 3, Budget(1.0, 0.0))


@pytest.mark.parametrize("strategy", selection.STRATEGIES)
def test_scores_that_noise_would_hide_are_refused_with_the_number_that_would_do(strategy):
    few = plan(strategy, n_users=100)
    with pytest.raises(BudgetExceeded, match=r"About ([0-9,]+) users would do") as refused:
        selection.check_telling(few)
    enough = int(str(refused.value).split("About ")[1].split(" ")[0].replace(",", ""))
    selection.check_telling(plan(strategy, n_users=enough + 4))


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
    draft = plan("split").part_ledger(0.01, draft=True)
    with pytest.raises(selection.Drafted):
        draft.charge(one_step(Clip(10, 10.001)))
    with pytest.raises(BudgetExceeded, match="within its part"):
        draft.charge(one_step(Clip(10, 9.9)))
    assert draft.charges() == ()


@pytest.mark.parametrize("record", [Allotment(5, 0.1), RandomStopping(5, 0.1, 0.5, 1e-6)])
def test_an_allotment_releases_no_vectors(record):
    with pytest.raises(RuntimeError, match="releases no vectors"):
        record.start(noise_source(0))


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
    watched = Watched(plan("split", n_users=2000, budget=Budget(8.0, 1e-6)))
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


def test_random_stopping_is_one_charge_and_releases_the_best_alone():
    watched = Watched(plan("random stopping", n_users=4000, budget=Budget(16.0, 1e-6)))
    found = watched.run(seed=9)
    (charge,) = watched.ledger.charges()
    (step,) = charge.steps
    assert (step.mechanism, step.start, step.stop) == ("random-stopping", 0, 4000)
    *runs, (best, everyone, refit) = watched.fits
    assert len(runs) > 3
    assert {tuple(sorted(users)) for _, users, _ in runs} == {tuple(sorted(runs[0][1]))}
    assert all(scored == set(range(4000)) - runs[0][1] for scored in watched.scored)
    assert max(mu_squared for *_, mu_squared in runs) <= step.record["mu_squared"]
    assert refit <= step.record["refit_mu_squared"]
    assert (found.best, best, everyone) == (1, 1, set(range(4000)))
    assert found.models == ()
    assert len(found.losses) == 1


@pytest.mark.parametrize("strategy", selection.STRATEGIES)
def test_without_a_refit_nobody_is_asked_again(strategy):
    watched = Watched(plan(strategy, refit_fraction=0.0, n_users=4000, budget=Budget(8.0, 1e-6)))
    found = watched.run(seed=5)
    assert found.refitted is None
    assert len(watched.fits) == len(watched.scored) if strategy == "random stopping" else 3


@pytest.mark.parametrize("strategy", selection.STRATEGIES)
def test_a_failure_tells_nothing_but_itself(strategy):
    watched = Watched(plan(strategy), fails=True)
    with pytest.raises(RuntimeError, match="one failed on the data") as failed:
        watched.run(seed=5)
    assert failed.value.__context__ is None
    assert len(watched.ledger.charges()) == 1


def test_a_search_that_does_not_fit_asks_nobody():
    made = plan("split")
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
    made, others = plan("split", n_users=40), np.random.default_rng(0).random((9, 3))
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
    made = plan("split", n_users=40)
    asked = []
    for mine in ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.5], [0.0, 1.0, 0.5]):
        noticed = Noticed()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(curators, "noise_source", lambda seed, noticed=noticed: noticed)
            selection.joint_losses(made, np.vstack([np.full((9, 3), 0.5), mine]))
        asked.append(noticed.asked)
    for place, (a, b) in ((2, (0, 1)), (1, (2, 3))):
        (first, sensitivity, _), (second, *_) = asked[a][place], asked[b][place]
        assert np.linalg.norm(first - second) == pytest.approx(sensitivity, rel=1e-6)


def test_a_run_s_score_is_a_mean_of_bounded_losses_with_the_run_s_noise():
    made = plan("random stopping", n_users=40)
    noticed = Noticed()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(curators, "noise_source", lambda seed: noticed)
        selection.single_loss(made, np.array([math.nan, math.inf, -5.0, *[0.5] * 7]))
    ((query, sensitivity, multiplier),) = noticed.asked
    assert query == pytest.approx([(0.5 + 0.5 - 0.5) / 10])
    assert sensitivity == pytest.approx(1 / 10)
    assert multiplier**-2 == pytest.approx(made.fit_mu_squared, rel=1e-4)
    assert multiplier**-2 <= made.fit_mu_squared


def test_differences_are_told_more_sharply_than_scores():
    """Candidates that differ by a hundredth, for people for whom all of them are bad, or not bad at all."""
    rng = np.random.default_rng(0)
    made = plan("split", n_users=20_000, n_candidates=4)
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
    made = plan("split", n_users=40)
    curator = Curator(
        selection._one_row_each(np.zeros((10, 3))), made.score_plan, made.part_ledger(made.score_mu_squared)
    )
    curator.release("mean score", UserMean(), 0.5)
    with pytest.raises(RuntimeError, match="closed"):
        curator.release("mean score", UserMean(), 0.5)
