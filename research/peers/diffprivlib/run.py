"""diffprivlib's LogisticRegression: objective perturbation, pure DP for one row, made user-level by group privacy.

Every user's rows are padded with zero rows to max_rows_per_user. A zero row has no gradient, and the number of rows
is then public, so that a replacement of one user is a replacement of max_rows_per_user rows: epsilon /
max_rows_per_user each. Rows are divided by row_norm and data_norm is 1: the library bounds a row's curvature by
data_norm / 4, which is right (data_norm**2 / 4) only up to 1. The proof is for the exact minimum, so the tolerance is
small.
"""

import sys
from pathlib import Path

import numpy as np
from diffprivlib.models import LogisticRegression

sys.path.insert(0, str(Path(__file__).parent.parent))
from job import read_job

job = read_job()
rows, targets, _ = job.blocks()
rows, targets = rows.reshape(-1, rows.shape[2]) / np.float32(job.row_norm), targets.ravel()


def train():
    model = LogisticRegression(
        epsilon=job.epsilon / job.max_rows_per_user,
        data_norm=1.0,
        fit_intercept=False,
        tol=1e-8,
        max_iter=1000,
        random_state=job.seed,
    )
    model.fit(rows, targets)
    note = f"pure DP, C=1 (default), L-BFGS of {model.n_iter_[0]} iterations; passes and delta are not used"
    return model.coef_ / job.row_norm, note


job.run(
    peer="diffprivlib",
    package="diffprivlib",
    guarantee=f"user-level ({job.epsilon:g}, 0), replacement: row-level pure DP at epsilon / {job.max_rows_per_user}, "
    "group privacy",
    train=train,
)
