"""What one user contributes: gradients, one-pass SGD, moments, and the kernels that compute them."""

from typing import TYPE_CHECKING

import userdp
from userdp.compiling import later

if not TYPE_CHECKING:  # all that computes: nothing that plans needs it
    entries, fused, kernels, lanes, matrices, sgd = (
        later(f"{__name__}.{name}") for name in ("entries", "fused", "kernels", "lanes", "matrices", "sgd")
    )

__getattr__ = userdp._names_of(__name__)
