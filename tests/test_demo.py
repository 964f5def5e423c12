"""The demo trains, and what it prints is true."""

import numpy as np
import pytest

from userdp import demo
from userdp.planning import plan_means
from userdp.privacy.accounting import Budget
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger


def test_it_prints_both_models_and_what_was_spent(capsys):
    demo.main(n_users=6000, n_features=5)
    printed = capsys.readouterr().out
    for name in ("knows nothing", "private, epsilon=1", "protects nobody"):
        line = next(line for line in printed.splitlines() if name in line)
        assert 0.5 < float(line.split("│")[2]) < 0.8
    assert "Spent epsilon=1.0000 at delta=1e-06 on:" in printed
    assert "mean: GaussianOutlierRemoval on users 0 to 5999" in printed


def test_the_private_model_learns_nearly_all_there_is_to_learn():
    data, held_out = demo.generate(8000, 5, seed=1), demo.generate(2000, 5, seed=2)
    budget = Budget(1.0, 1e-6)
    curator = Curator(data, plan_means(8000, budget, demo.STEPS), Ledger(budget), insecure_seed=1)
    private, _ = demo.scores(demo.train(curator, 5, 1.0), held_out)
    openly, _ = demo.scores(demo.train_openly(data, 1.0), held_out)
    assert openly < private < openly + 0.005 < np.log(2) - 0.01


def test_scores_of_a_model_without_an_opinion():
    data = demo.generate(50, 3, seed=0)
    assert demo.scores(np.zeros(3), data) == pytest.approx((np.log(2), 0.5))
