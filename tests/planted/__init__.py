"""Planted privacy bugs, by part of the library."""

from planted import (
    clip,
    curator,
    estimators,
    files,
    gaussian_outlier_removal,
    local,
    noise,
    outlier_removal,
    paper_outlier_removal,
    perturbation,
    plans,
    sampled_clip,
    sampled_rows,
    searched_outlier_removal,
    vectors,
    winsorized,
)

MUTANTS = [
    *noise.MUTANTS,
    *vectors.MUTANTS,
    *outlier_removal.MUTANTS,
    *gaussian_outlier_removal.MUTANTS,
    *searched_outlier_removal.MUTANTS,
    *paper_outlier_removal.MUTANTS,
    *clip.MUTANTS,
    *perturbation.MUTANTS,
    *winsorized.MUTANTS,
    *local.MUTANTS,
    *sampled_clip.MUTANTS,
    *sampled_rows.MUTANTS,
    *curator.MUTANTS,
    *plans.MUTANTS,
    *estimators.MUTANTS,
    *files.MUTANTS,
]
