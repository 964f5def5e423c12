"""Mechanisms that only baselines use: audited and tested like the others."""
