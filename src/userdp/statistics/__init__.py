"""What one user contributes: gradients, moments, one-pass SGD; numpy and scipy only."""

import userdp

__getattr__ = userdp._names_of(__name__)
