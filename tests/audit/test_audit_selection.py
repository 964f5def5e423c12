"""The best of a random number of runs, attacked: a user moves every run one way or the other."""

from test_audit_finds import BUDGET, PAIRS

from userdp.auditing.bounds import Finding
from userdp.privacy.noise import SeededNoise


def found(noise) -> Finding:
    return PAIRS["RandomStopping", "edges"].attacked(noise, 8000, BUDGET.delta, 0.001)


class FifthOfTheNoise(SeededNoise):
    """Draws a fifth of what is asked for."""

    def gaussian(self, query, sensitivity, multiplier):
        return query + (super().gaussian(query, sensitivity, multiplier) - query) / 5


def test_the_best_of_random_runs_tells_less_than_is_claimed():
    finding = found(SeededNoise(5))
    assert finding.holds
    assert finding.claim > 0.99


def test_far_too_little_noise_is_found():
    assert not found(FifthOfTheNoise(5)).holds
