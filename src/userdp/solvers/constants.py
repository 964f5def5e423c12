"""Every number of the default solver that was chosen, each with where it comes from.

"Derived" says from what; "measured" names the page and the script; "chosen" means on generated users and folds 0-7 of
openpowerlifting and all of online_retail, some 60 settings of 2 to 4 runs (research/docs/which-solver.md, "Where the
constants come from"; `userdp-bench real` and `grid` repeat them), and "unmeasured" that no experiment on it is known.
None of them affects privacy. Code reads them as `constants.NAME`, so that an ablation sets them
(benchmarks/ablation.py). Numbers of quantiles, intervals and the planner stand at the top of their own modules.

s is sqrt(weights) / (mu users): the noise of a mean of all users' vectors, relative to their length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Pace(NamedTuple):
    """Momentum; a step's length in units of the inverse curvature; whether far off steps are others."""

    momentum: float
    length: float
    may_be_far: bool = False


# --- Budget and number of steps: the three schedules ------------------------------------------------------------------

# All three. Whitening's fraction of the budget is 0.8 min(max(WHITENING[0] (s / WHITENING[1])^WHITENING[2], 0.1), 0.35)
# and 0.16 above s = 0.05. Chosen (b77f961).
WHITENING = (0.3, 0.0115, 0.35)
# Full. Steps: at most so many, the fewer the more noise, a quarter of them burn-in. Chosen (b77f961); 16 + 8 steps
# instead of 40 + 16 cost up to 1.5 times the excess (measured: docs/speed.md, "A whole fit").
MOST_STEPS, BURN_IN = 40, 0.25
BURN_IN_FRACTION = 0.2  # of what is left. Measured: docs/ablation.md, no better if it depends on noise.
CURVATURE_FRACTION = 0.02  # of the budget, for the release of the curvature. Chosen (b77f961).
# Steps of recalibration, and their fraction of the budget; with fewer weights than FEWEST_WEIGHTS all directions are as
# cheap, and beyond s = TOO_NOISY there is nothing to recalibrate. Chosen (b77f961); both measured: docs/ablation.md.
RECALIBRATION, FEWEST_WEIGHTS, TOO_NOISY = (16, 0.15), 8, 0.025
# Least squares and Huber loss, where a gradient is so many times as long as its noise: targets lie far from the start,
# as in far too wide a range. Steps then shrink all errors by 0.55 along curvatures of up to six times the mean one
# (derived from the steps' linear recursion; what it brings: tests/test_targets.py).
FAR_OFF, FAR_OFF_PACE = 4.0, Pace(0.3, 0.5)
# Counts that locate a quantile, and their fraction. Measured: docs/measurements.md, "Quantiles"
# (benchmarks/quantile_coverage.py).
LOCATION = (12, 0.06)
PACE = Pace(0.6, 0.5, may_be_far=True)  # leads 1.25 inverse curvatures in all. Chosen (b77f961).

# Fast. Up to these s so many steps of everyone remove the noise of the approach: burn-in, and averaged ones. Measured:
# docs/speed.md, "How the default saves passes" (8 steps against fewer, five kinds of users).
FAST_STEPS = ((1e-4, (1, 4)), (3e-4, (2, 4)), (1e-3, (3, 5)))
FAST_FRACTIONS = (0.15, 0.85)  # how burn-in and averaged steps share what is left. Chosen (c43f86e).
# Steps of the approach before and after the first look at the curvature, and the fraction of each user's budget for the
# one of them that asks it. Chosen (c43f86e).
APPROACH_STEPS, APPROACH_FRACTION = (4, 10), 0.15
# Beyond this s sqrt(features) a part of the users gives coordinates too roughly. Measured: docs/speed.md.
MOST_WHITENED = 0.0051
# Of fewer users one of four measured fits with a rare class and rare levels went astray (f7aff98).
FEWEST_FAST = 16_000
FEW_ROWS = 200_000  # up to which nobody waits for all passes: a matter of time, not accuracy
# Steps of everyone for a rare class, and their fraction. Measured: docs/speed.md, "A rare class" (among six).
RARE_CLASS = (10, 0.06)
# These lead 1.3 inverse curvatures; errors shrink by 0.63 a step along curvatures of a sixth to three times the mean
# one (derived from the steps' linear recursion; c43f86e).
FAST_PACE = Pace(0.4, 0.8)
# Where the curvature is this part of a usual one or less a class is rare. Measured: docs/speed.md, "A rare class".
FLAT = 0.25

# Pure (delta = 0), where epsilons add up. Chosen (affbde3); what comes of it is measured in docs/known-limits.md
# (userdp-bench grid --delta 0). Fractions for whitening; burn-in: steps, and their part of what is left; averaged
# steps; recalibration.
PURE_WHITENING, PURE_BURN_IN, PURE_STEPS, PURE_RECALIBRATION = 0.25, (6, 0.35), 4, (8, 0.2)
# 1-norm / (length sqrt(entries)) that most vectors do not exceed: sqrt(2/pi) = 0.8 for normal entries, and some room.
PURE_SPREAD = 0.85

# --- Whitening --------------------------------------------------------------------------------------------------------

# How the stages share their budget: later ones refine, so they get more; without delta each costs noise in proportion.
# Chosen (b77f961); three or five alike were up to 3 times worse in single cells (docs/ablation.md).
STAGES, PURE_STAGES = (0.1, 0.15, 0.2, 0.25, 0.3), (1 / 3,) * 3
SCALE_FRACTION = 0.1  # of the same budget, for the columns' scales and for the rows'. Chosen (8c448f4).
MOST_SCALED = 1000  # features: noise of the scales of more takes long to draw (time, not accuracy)
# Standard deviations by which a column's scale must stand out, if this fraction of the users has it. Chosen (8c448f4).
CLEAR_SCALE, FREQUENT = 5.0, 0.5
# Log of how much less likely rows are taken to be that are longer, or shorter, by a factor of 2: noise alone then makes
# no scale (e41c067).
UNLIKELY = 0.5
# Sizes of rows are released up to a factor of 2, and noise hides some of their directions: within these a constant that
# is seen says more (016a56a).
NEAR_SCALE = (0.25, 2.0)
# Noise that a stage may leave along an axis, in units of the moment. Measured: of c = 0.15, 0.25 and 0.4 = 2 * 0.2 the
# last brought all 30 cells with rare columns out, at no cost in 18 cells of dense users (1756a4a);
# benchmarks/coefficients.py --ablate.
AXIS_NOISE = 0.2
RIDGE = 1e-3  # of the moment's size, added in all directions. Unmeasured.

# --- Clips ------------------------------------------------------------------------------------------------------------

# Rows count less beyond max(0.8 (LONGEST / s)^0.4, 0.8) sqrt(features + ROOM). The room is for rows with a rare column,
# the more so the fewer features: without it they count less (measured: benchmarks/coefficients.py --ablate, 1756a4a).
LONGEST, ROOM = 0.003, 2.0
# A clip in units of the gradients' root mean square: max(CLIP[0] (0.01/s)^0.4, CLIP[1]) (1 + CLIP[2] / weights); it
# grows until it never acts. Chosen (b77f961). Recalibration, nearly free of noise: WIDE_CLIP max(1, (0.01/s)^0.4).
CLIP, WIDE_CLIP = (0.5, 0.3, 6.0), 2.5
# A size's mark / clip: sizes raise the gradients' noise by sqrt(1 + 0.3^2) - 1 = 4% (derived).
MARK = 0.3
# Users / s that a fast schedule clips: what clipping costs then falls as noise does. Chosen (c43f86e).
CLIPPED_TAIL = 6.0
# Least clip / longest, times how lopsided the classes are: of averaged steps, and of recalibration. Chosen (12b70cb).
LOPSIDED, LOPSIDED_RECALIBRATION = 0.15, 0.3
# s / sqrt(rows per user) from which on calibration slopes were below 0.9, with and without delta. Measured:
# research/docs/which-solver.md (userdp-bench grid and real).
CLIPPED, PURE_CLIPPED = 0.0065, 0.004

# --- Sizes of gradients -----------------------------------------------------------------------------------------------

# Before anything is known: gradients are mostly an eighth of the longest, each size beyond is half as frequent; and how
# far off that is. Chosen; all sizes alike cost a quarter with much noise (docs/ablation.md).
USUAL_SIZE, USUAL_SIZES_ERROR = 3, 0.15
FORGET = 0.85  # of what earlier steps released about sizes, a step: points move. Chosen (b77f961).
# Where only the ZOOM smallest sizes are seen, clearly by so many standard deviations, they are taken to be ZOOM sizes
# larger from there on: targets far smaller than their range. Chosen (1756a4a; docs/known-limits.md).
ZOOM, CLEARLY = 4, 3.0

# --- Steps and curvature ----------------------------------------------------------------------------------------------

MOST_NOISE = 0.05  # that a step's noise may move predictions / a typical prediction. Chosen (b77f961).
TYPICAL_CURVATURE = 0.64  # mean curvature / largest, before it is measured. Chosen (b77f961).
# The least curvature / largest, and how much it usually differs: what is measured counts by its noise, or steps would
# diverge where there is much. Measured: docs/ablation.md.
LEAST_CURVATURE, CURVATURE_SPREAD = 0.02, 0.25
# --- Shrinkage and recalibration --------------------------------------------------------------------------------------

# Prior variance = scale * (variance of rows)^power: all powers as likely, scales evenly spaced in their logarithm. A
# grid, not a choice; the prior of the scale is Strawderman's (1971). With the power 0.5 alone the excess of 5,000
# lifters with 30 rows was 1.3 times as large at epsilon 1 (10 runs; benchmarks/neighbours.py has the cell).
POWERS, SCALES = (0.0, 0.5, 1.0), tuple(np.geomspace(1e-3, 1e6, 73))
CLEAR = 2.0  # standard deviations from which on an intercept's size is seen, and a walk is none of noise
# Curvature along an axis / mean curvature, where there is any; and of the axes that are flat, about. Measured:
# benchmarks/collinear.py and coefficients.py --ablate (docs/measurements.md; 1857558).
RELATIVE, FLAT_AXES = (0.05, 3.0), 0.05
FAR_STEPS = 4  # first steps, which may be taken where a loss is linear: they say nothing of curvatures (1756a4a)
# By how much clipping may change the scale of predictions or the intercept / typical predictions. Chosen (f5f8bc0).
CLIPPING = 0.3

# --- What is said of a run --------------------------------------------------------------------------------------------

# The estimate of the excess risk: mean slope / typical one, how alike a user's rows are, and by how much noise costs
# more than in coordinates that fit exactly. Measured: four cells (c995e75), checked on 168
# (research/docs/which-solver.md: within a factor of 3 in 160).
USUAL_SLOPE, SIMILARITY, WORSE = 0.65, 0.06, 3.0
# The part of the budget for averaged steps, about, and with public_X; the exact one has jumps where noise calls for
# another layout, and what is spent there is gained elsewhere: with it the estimate could rise with epsilon (a5c9f7a).
USUAL_FRACTION, USUAL_FRACTION_OF_PUBLIC = 0.5, 0.65
HIDDEN_CONSTANT = 8.0  # times as long as the constant 1 says: rows then hide it. On a few generated users (b03b739).
# Deviations within which 95% of noise is: normal, and Laplace's, ln(20) / sqrt(2), of which means have less. Derived.
QUANTILE, LAPLACE_QUANTILE = 1.96, 2.12
