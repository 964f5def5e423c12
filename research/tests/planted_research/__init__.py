"""Planted privacy bugs in earlier work, by part."""

from planted_research import local, perturbation, sampled_rows, winsorized

MUTANTS = [*perturbation.MUTANTS, *winsorized.MUTANTS, *local.MUTANTS, *sampled_rows.MUTANTS]
