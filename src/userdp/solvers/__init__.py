"""Solvers: which users are asked what, in which order, and what is made of the answers."""

import userdp

__getattr__ = userdp._names_of(__name__)
