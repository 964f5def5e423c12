"""Problems: public numbers, checked."""

import math

import numpy as np
import pytest
from cases import ALL_LOSSES, name

from userdp import Ball, Box, losses
from userdp.solvers.problem import Problem


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=name)
def test_slopes_along_a_run_are_bounded_by_typical_slope_at_the_start(loss):
    problem = Problem(loss, Ball(5.0), 3, 2.0, None if loss.classifies else 4.0)
    nothing = 0.0 if loss.n_outputs == 1 else np.zeros(loss.n_outputs)
    extremes = range(max(2, loss.n_outputs)) if loss.classifies else (-4.0, -1.0, 0.3, 4.0)
    slopes = [float(np.linalg.norm(loss.slope(nothing, float(target)))) for target in extremes]
    assert max(slopes) <= problem.typical_slope * (1 + 1e-12)
    assert problem.typical_slope * 2.0 <= problem.lipschitz * (1 + 1e-12)


def test_defaults():
    assert Problem(losses.logistic, Ball(5.0), 3, 2.0).typical_prediction == 3.0
    assert Problem(losses.multinomial(4), Ball(5.0), 3, 2.0).typical_prediction == 6.0
    assert Problem(losses.squared, Ball(5.0), 3, 2.0, 7.0).typical_prediction == 7.0
    assert Problem(losses.squared, Ball(5.0), 3, 2.0, 7.0, 2.0).typical_prediction == 2.0
    assert Problem(losses.logistic, Ball(5.0), 3, 2.0).typical_slope == pytest.approx(math.sqrt(0.5 * math.log(2)))


def test_numbers_of_few_bits_are_widened_and_the_start_is_kept():
    numbers = {"row_norm": np.float16(0.1), "target_bound": np.float32(0.3), "prediction_scale": np.float16(0.7)}
    problem = Problem(losses.squared, Ball(2.0), np.uint8(200), **numbers, l2=np.float32(0.1))
    assert (type(problem.n_features), problem.dimension) == (int, 200)
    assert Problem(losses.multinomial(4), Ball(2.0), np.uint8(200), 1.0).dimension == 800
    for key, value in numbers.items():
        assert type(getattr(problem, key)) is float
        assert getattr(problem, key) == float(value)
    assert (type(problem.l2), type(problem.lipschitz)) == (float, float)
    with pytest.raises(ValueError, match="read-only"):
        problem.start[0] = 1.0


def test_reach_is_measured_from_the_start():
    away = Problem(losses.logistic, Ball(1.0, np.array([3.0, 0.0, 0.0])), 3, 2.0)
    np.testing.assert_allclose(away.start, [2.0, 0.0, 0.0])
    assert away.reach == pytest.approx(2.0)
    box = Problem(losses.logistic, Box(np.full(3, -1.0), np.full(3, 2.0)), 3, 2.0)
    assert box.reach == pytest.approx(2 * math.sqrt(3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("logistic", Ball(1.0), 3, 2.0), "Expected a Loss, got str"),
        ((losses.logistic, Ball(1.0), 3, 0.0), "row_norm=0.0"),
        ((losses.logistic, Ball(1.0), 3, "2"), "row_norm='2'"),
        ((losses.logistic, Ball(1.0), 3.0, 2.0), "n_features must be a whole number"),
        ((losses.squared, Ball(1.0), 3, 2.0), "target_bound for the squared"),
        ((losses.squared, Ball(1.0), 3, 2.0, -1.0), "target_bound=-1.0"),
        ((losses.logistic, Ball(1.0), 3, 2.0, None, math.inf), "prediction_scale=inf"),
        ((losses.logistic, Box(np.zeros(2), np.ones(2)), 3, 2.0), "domain of 3 dimensions"),
    ],
)
def test_errors_are_clear(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Problem(*arguments)
