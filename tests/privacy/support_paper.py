"""Records of the paper's mechanism, the coins it may change, and noise that tosses given coins."""

import math

from support import SilentNoise

from userdp.paper.paper_outlier_removal import PaperOutlierRemoval

ALWAYS = 10**9  # noise that passes the test


def paper(**change):
    arguments = {"n_vectors": 100, "test_scale": 3.0, "noise_ratio": 2.0, "selection_failure": 1e-3}
    return PaperOutlierRemoval(**(arguments | change))


def in_rounds(**change):
    return paper(**({"rounds": 3} | change))


def coins_that_change(n_vectors, failure):
    """Least k with P(Bin(K-1, 6/(K-3)) > k) <= failure, by adding up."""
    fraction = 6 / (n_vectors - 3)
    masses = [
        math.comb(n_vectors - 1, k) * fraction**k * (1 - fraction) ** (n_vectors - 1 - k) for k in range(n_vectors)
    ]
    return next(k for k in range(n_vectors) if math.fsum(masses[k + 1 :]) <= failure)


class Choosing(SilentNoise):
    """Keeps what it was asked, and tosses the coins from uniform numbers that are given (kept if u < p)."""

    def __init__(self, uniforms=None, shift=ALWAYS):
        super().__init__(shifts=[shift])
        self.uniforms, self.probabilities, self.query, self.kept = uniforms, None, None, None

    def integer_laplace(self, query, scale):
        assert isinstance(query, int)
        self.query = query
        return super().integer_laplace(query, scale)

    def poisson_mask(self, probabilities):
        self.probabilities = probabilities
        self.kept = probabilities > 0 if self.uniforms is None else self.uniforms < probabilities
        return self.kept
