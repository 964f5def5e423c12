"""What one user contributes: gradients, one-pass SGD, moments, and the kernels that compute them."""

import userdp

__getattr__ = userdp._names_of(__name__)
