"""The demo trains, and what it prints is true."""

import numpy as np
import pytest

from userdp import demo


def test_the_private_model_beats_knowing_nothing(capsys):
    demo.main(n_users=6000, n_features=5)
    printed = capsys.readouterr().out
    private, openly = (
        float(next(line for line in printed.splitlines() if name in line).split("│")[2])
        for name in ("private, epsilon", "protects nobody")
    )
    assert openly < private < 0.68
    assert "Spent epsilon=1.0000 at delta=1e-06" in printed or "Spent epsilon=0.99" in printed


def test_scores_of_a_model_without_an_opinion():
    data = demo.generate(50, 3, seed=0)
    assert demo.scores(np.zeros(3), data) == pytest.approx((np.log(2), 0.5))
