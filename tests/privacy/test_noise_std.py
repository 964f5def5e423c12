"""The noise that mechanisms tell of is the noise that they add."""

import numpy as np
import pytest
from support import SilentNoise

from userdp.paper.outlier_removal import OutlierRemoval, SampledOutlierRemoval
from userdp.privacy.clip import Clip

MECHANISMS = [
    Clip(1000, 5.0),
    Clip(1000, 5.0, acute=True),
    Clip(1000, 3.0, sampling_probability=0.5),
    OutlierRemoval(1000, 5.0, 0.5, 1e-7),
    SampledOutlierRemoval(2000, 0.5, 6.0, 10.0, 1e-7),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: repr(mechanism)[:30])
def test_a_mean_gets_the_noise_that_its_record_tells(mechanism):
    noise = SilentNoise()
    session = mechanism.start(noise)
    users = session.choose(np.arange(mechanism.n_vectors))
    session.release(np.full((len(users), 3), 0.1), 0.7)
    (*_, (kind, sensitivity, multiplier)) = noise.asked
    assert kind == "gaussian"
    assert mechanism.noise_std(0.7, 3) == pytest.approx(sensitivity * multiplier, rel=1e-12)
