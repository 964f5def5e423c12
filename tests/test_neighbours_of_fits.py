"""Fits, means, scores and searches for "zero-out" neighbours: no user's part of a total is longer than its sensitivity,
and noise is half of what replacement needs."""

import numpy as np
import pytest

import userdp
from userdp import evaluation
from userdp.engines import LocalEngine
from userdp.privacy.accounting import Budget, gaussian_multiplier
from userdp.privacy.clip import Clip
from userdp.privacy.ledger import Ledger
from userdp.privacy.plan import Plan, Step

N_USERS, ROWS, SHOWN = 400, 3, (0, 1, 2)  # users whose part of every total is looked at
rng = np.random.default_rng(0)
owners = np.repeat(np.arange(N_USERS), ROWS)
X = rng.normal(size=(len(owners), 3))
X[owners == 0] *= 1e6  # a user far from all others
X[owners == 1, 1] = np.nan  # and one without any row that counts
error = rng.normal(size=len(owners))
MODELS = {
    "logistic": (userdp.LogisticRegression, X[:, 0] > 0, {"classes": [False, True]}),
    "classes": (userdp.LogisticRegression, np.digitize(error, [-0.5, 0.5]), {"classes": [0, 1, 2]}),
    "linear": (userdp.LinearRegression, np.clip(X[:, 0] + error, -5, 5), {"target_range": (-5, 5)}),
    "range": (userdp.LinearRegression, np.clip(X[:, 0] + error, -5, 5), {"target_range": "private"}),
    "intervals": (userdp.LinearRegression, np.clip(error, -5, 5), {"target_range": (-5, 5), "inference": True}),
    "counts": (userdp.PoissonRegressor, rng.poisson(1.0, len(owners)), {"max_count": 5}),
    "quantile": (userdp.QuantileRegressor, np.clip(error, -5, 5), {"target_range": (-5, 5)}),
}
pytestmark = pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")


class Watching(LocalEngine):
    """Computes as this process does, and keeps how long some users' parts of each total are, in radii."""

    def __init__(self):
        super().__init__()
        self.parts = []

    def total(self, statistic, contribution, data, users):
        for user in SHOWN:
            own = super().total(statistic, contribution, data, np.array([user]))[:-1] / 2.0**contribution.bits
            self.parts.append(np.abs(own).sum() if contribution.laplace else np.linalg.norm(own))
        return super().total(statistic, contribution, data, users)


def fitted(kind, engine=None, **more):
    make, y, options = MODELS[kind]
    how = userdp.Execution(engine=engine)
    model = make(epsilon=20.0, max_rows_per_user=ROWS, insecure_seed=0, execution=how, **(options | more))
    return model.fit(X, y, groups=owners)


@pytest.mark.parametrize(
    ("kind", "more"),
    [*((kind, {}) for kind in MODELS), *((kind, {"delta": 0.0}) for kind in MODELS if kind != "intervals")],
)
def test_no_user_s_part_of_a_total_is_longer_than_a_radius(kind, more):
    engine = Watching()
    model = fitted(kind, engine, neighbours="zero-out", **more)
    assert len(engine.parts) >= len(SHOWN) * 15
    assert max(engine.parts) <= 1 + 2.0**-18
    assert max(engine.parts) > 0.5, "what is looked at is what is released"
    assert model.privacy_.relation == "zero-out"
    assert all(part.record["neighbours"] == "zero-out" for part in model.privacy_.parts)


@pytest.mark.parametrize("kind", ["logistic", "linear", "counts"])
def test_for_the_same_epsilon_every_release_has_half_of_the_noise(kind):
    replaced, zeroed = (fitted(kind, neighbours=relation) for relation in ("replace-one", "zero-out"))
    assert replaced.privacy_.relation == "replace-one"
    for name, ratio in {"steps": 2.0, "whitening 1": 2**0.5}.items():
        clips = [
            Clip(**{key: value for key, value in part.record.items() if key != "kind"})
            for model in (replaced, zeroed)
            for part in model.privacy_.parts
            if part.step == name
        ]
        shares = [part.fraction for model in (replaced, zeroed) for part in model.privacy_.parts if part.step == name]
        noises = [
            clip.noise_std(1.0, 4) / clip.rounds**0.5 * share**0.5 for clip, share in zip(clips, shares, strict=True)
        ]
        assert noises[0] / noises[1] == pytest.approx(ratio, rel=0.05), name


def test_the_same_noise_is_epsilon_1_for_one_relation_and_about_half_for_the_other():
    """What plans of equal noise give, so that nothing else changes: the same releases of the same seed."""
    noise = gaussian_multiplier(Budget(1.0, 1e-6))
    one = Plan(100, (Step("mean", 0, 100, Clip(100, noise)),))
    other = Plan(100, (Step("mean", 0, 100, Clip(100, 2 * noise, neighbours="zero-out")),))
    clips = [plan.steps[0].mechanism for plan in (one, other)]
    assert clips[0].noise_std(1.0, 3) == pytest.approx(clips[1].noise_std(1.0, 3), rel=1e-12)


def test_all_doors_take_the_relation_and_the_word():
    y = X[:, 2] > 0
    common = {"neighbours": "zero-out", "unit": "household"}
    model = userdp.LogisticRegression(8.0, classes=[False, True], max_rows_per_user=ROWS, evaluate=0.4, **common)
    model.fit(X, y, groups=owners)
    mean = userdp.private_mean(np.nan_to_num(X[:, 2]), owners, 2.0, **common)
    scaler = userdp.PrivateStandardScaler(2.0, low=-5, high=5, **common).fit(np.nan_to_num(X), groups=owners)
    scores = evaluation.evaluate(model, X, y, owners, epsilon=8.0, **common)
    data = userdp.UserData.from_arrays(np.nan_to_num(X), y, owners)
    result = userdp.minimize("logistic", data, userdp.Ball(10.0), 8.0, rows_per_user=ROWS, neighbours="zero-out")
    for said in (model.privacy_, mean.privacy, scaler.privacy_, scores.privacy, result.privacy):
        assert said.relation == "zero-out"
        assert str(said).startswith("zero-out: ")
        assert "(replace-one) the same noise guarantees epsilon" in str(said)
    for said in (model.privacy_, mean.privacy, scaler.privacy_, scores.privacy):
        assert "one household's part of every total becomes zero" in str(said)
    assert model.privacy_.to_dict()["called"] == "household"
    assert userdp.plan(5000, 5, 5, 1.0, neighbours="zero-out").budget.neighbours == "zero-out"
    search = userdp.model_selection.PrivateSearchCV(
        userdp.LogisticRegression(classes=[False, True], max_rows_per_user=ROWS, allow_weak=True, **common),
        {"l2": [0.0, 0.1]},
        epsilon=8.0,
    ).fit(X, y, groups=owners)
    assert search.privacy_.relation == "zero-out"
    assert search.best_estimator_.privacy_.word == "household"


def test_a_model_keeps_its_relation_in_its_file_and_its_ledger(tmp_path):
    book = Ledger(Budget(30.0, 1e-5, "zero-out"), tmp_path / "ledger.db")
    with pytest.raises(ValueError, match="for neighbours of 'zero-out', this run for 'replace-one'"):
        fitted("logistic", ledger=book)
    model = fitted("logistic", ledger=book, neighbours="zero-out", unit="patient")
    assert (len(book.charges()), book.called) == (1, "patient")
    again = userdp.load_model(userdp.save_model(model, tmp_path / "model.json"))
    assert again.privacy_ == model.privacy_
    assert again.neighbours == "zero-out"
    page = userdp.report.report_html(model.to_dict())
    assert "patient" in page
    assert "zero-out" in page


def test_solvers_that_are_proven_for_replacement_alone_say_so():
    with pytest.raises(ValueError, match='solver="accelerated" is proven for neighbours="replace-one" alone'):
        fitted("logistic", neighbours="zero-out", solver="accelerated")


@pytest.mark.parametrize(("wrong", "message"), [("7", "unit must be"), ("a<b>", "unit must be"), ("", "unit must be")])
def test_words_for_a_user_that_are_none_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        fitted("logistic", unit=wrong)


def test_rows_have_no_other_word():
    with pytest.raises(ValueError, match='leave it out with privacy_unit="row"'):
        userdp.LogisticRegression(unit="visit", privacy_unit="row").fit(X, X[:, 0] > 0)
