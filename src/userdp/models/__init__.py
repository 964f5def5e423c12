"""The public face: estimators, scalers, the private mean, model files."""

import userdp

__getattr__ = userdp._names_of(__name__)
