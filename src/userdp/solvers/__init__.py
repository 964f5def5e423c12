"""Solvers: which users are asked what, in which order, and what is made of the answers."""
