"""Algorithms 1 to 4 of the paper, as printed and with calibrated noise; loaded when asked for by name."""
