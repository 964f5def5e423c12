"""Algorithms 1 to 4 of the paper, as printed and with calibrated noise; loaded when asked for by name."""

import userdp

__getattr__ = userdp._names_of(__name__)
