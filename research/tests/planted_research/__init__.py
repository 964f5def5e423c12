"""Planted privacy bugs in earlier work, by part."""

from planted_research import clip_with_fraction, local, perturbation, sampled_rows, winsorized

MUTANTS = [
    *perturbation.MUTANTS,
    *winsorized.MUTANTS,
    *local.MUTANTS,
    *sampled_rows.MUTANTS,
    *clip_with_fraction.MUTANTS,
]
