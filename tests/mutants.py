"""Planted privacy bugs: each must make the tests that are named beside it fail.

`python tests/mutants.py` plants them one after the other in a copy of the package and prints which were caught;
`test_mutants.py` does the same within the test suite.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "userdp"

_PATIENCE_SECONDS = 300


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = [
    Mutant(
        "Gaussian noise halved",
        "privacy/noise.py",
        '(_measurement("gaussian", std, query.size)(query.tolist()), dtype=np.float64)',
        '(_measurement("gaussian", std / 2, query.size)(query.tolist()), dtype=np.float64)',
        "test_noise.py test_outlier_removal.py",
    ),
    Mutant(
        "integer Laplace noise halved",
        "privacy/noise.py",
        "return int(_integer_measurement(scale)(int(query)))",
        "return int(_integer_measurement(scale / 2)(int(query)))",
        "test_noise.py",
    ),
    Mutant(
        "grid of the noise not paid for",
        "privacy/noise.py",
        "while not _measurement(kind, enlarged, dimension).map(sensitivity) <= allowed:",
        "while False:",
        "test_noise.py",
    ),
    Mutant(
        "released mean gets half its noise multiplier",
        "privacy/means/outlier_removal.py",
        "return self._noise.gaussian(mean, sensitivity, self._record.noise_multiplier)",
        "return self._noise.gaussian(mean, sensitivity, self._record.noise_multiplier / 2)",
        "test_outlier_removal.py",
    ),
    Mutant(
        "ledger not charged",
        "privacy/curator.py",
        "        ledger.charge(plan, purpose, seed)\n",
        "",
        "test_curator.py",
    ),
    Mutant(
        "ledger charged after the data was taken",
        "privacy/curator.py",
        "        ledger.charge(plan, purpose, seed)\n",
        "        data.rows\n        ledger.charge(plan, purpose, seed)\n",
        "test_curator.py",
    ),
    Mutant(
        "score where the h-index is meant",
        "privacy/means/outlier_removal.py",
        "c.h_index(counts)",
        "round(c.score(counts))",
        "test_outlier_removal.py",
    ),
    Mutant(
        "self not counted",
        "privacy/concentration.py",
        "    falling = np.sort(counts)[::-1]\n",
        "    falling = np.sort(counts - 1)[::-1]\n",
        "test_concentration.py",
    ),
    Mutant(
        "test skipped",
        "privacy/means/outlier_removal.py",
        "        if not self._gate.passes(c.h_index(counts)):\n            raise Halted\n",
        "",
        "test_outlier_removal.py",
    ),
    Mutant(
        "ramp starts at K/2",
        "privacy/concentration.py",
        "return Ramp((n_vectors + 1) / 2, n_vectors - slack - 1)",
        "return Ramp(n_vectors / 2, n_vectors - slack - 1)",
        "test_concentration.py",
    ),
    Mutant(
        "the paper's ramp starts at K/2",
        "privacy/concentration.py",
        "return Ramp((n_vectors + 1) / 2, 2 * n_vectors / 3)",
        "return Ramp(n_vectors / 2, 2 * n_vectors / 3)",
        "test_concentration.py",
    ),
    Mutant(
        "sensitivity without the slack's share",
        "privacy/concentration.py",
        "return 2 * radius / (n_vectors - slack) * (1 + slack / (ramp.high - ramp.low))",
        "return 2 * radius / n_vectors",
        "test_concentration.py",
    ),
    Mutant(
        "threshold noise forgotten",
        "privacy/gates.py",
        "self._threshold = noise.integer_laplace(threshold, 2 / epsilon)",
        "self._threshold = threshold",
        "test_gates.py",
    ),
    Mutant(
        "a halted stream answers again",
        "privacy/gates.py",
        '            raise RuntimeError("This test has halted and gives no more answers.")\n',
        "            pass\n",
        "test_gates.py",
    ),
    Mutant(
        "sampled steps accounted as add-or-remove",
        "privacy/accounting.py",
        "neighboring_relation=NeighboringRelation.REPLACE_ONE,",
        "neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,",
        "test_accounting.py",
    ),
    Mutant(
        "failure probability not added to delta",
        "privacy/accounting.py",
        "return min(1.0, _sum_up(delta, cost.failure))",
        "return min(1.0, delta)",
        "test_accounting.py",
    ),
    Mutant(
        "deficit released for free",
        "privacy/means/sampled_outlier_removal.py",
        "precision = 1 / self.deficit_std**2 + 1 / self.noise_multiplier**2",
        "precision = 1 / self.noise_multiplier**2",
        "test_sampled_outlier_removal.py",
    ),
    Mutant(
        "the same sample in every round",
        "privacy/means/sampled_outlier_removal.py",
        "        return users[coins]\n",
        "        return users[: coins.sum()]\n",
        "test_sampled_outlier_removal.py",
    ),
    Mutant(
        "only the first users' cost is certified",
        "privacy/plan.py",
        "edges if edge < self.n_users))",
        "edges[:1] if edge < self.n_users))",
        "test_plan.py",
    ),
    Mutant(
        "earlier runs forgotten",
        "privacy/ledger.py",
        "for total in _totals([*_costs(db), plan.costs]):",
        "for total in _totals([plan.costs]):",
        "test_ledger.py",
    ),
    Mutant(
        "seed not recorded",
        "privacy/curator.py",
        "ledger.charge(plan, purpose, seed)",
        "ledger.charge(plan, purpose)",
        "test_curator.py",
    ),
    Mutant(
        "neighbours counted at twice the radius",
        "privacy/means/outlier_removal.py",
        "counts = c.neighbour_counts(rows, radius)",
        "counts = c.neighbour_counts(rows, 2 * radius)",
        "test_outlier_removal.py",
    ),
    Mutant(
        "neighbours of a sample counted at twice the radius",
        "privacy/means/sampled_outlier_removal.py",
        "counts = c.neighbour_counts(rows, radius)",
        "counts = c.neighbour_counts(rows, 2 * radius)",
        "test_sampled_outlier_removal.py",
    ),
    Mutant(
        "outliers keep their weights",
        "privacy/means/outlier_removal.py",
        "self._ramp = c.tight_ramp(record.n_vectors, record.slack)",
        "self._ramp = c.Ramp(1.0, record.n_vectors - record.slack - 1)",
        "test_outlier_removal.py",
    ),
    Mutant(
        "outliers of a sample keep their weights",
        "privacy/means/sampled_outlier_removal.py",
        "c.minibatch_ramp(batch, record.slack, record.share)",
        "c.Ramp(1.0, batch - record.slack - 1)",
        "test_sampled_outlier_removal.py",
    ),
    Mutant(
        "no lock around a release",
        "privacy/curator.py",
        "        with self._lock:\n            if self._busy:\n",
        "        for _ in (0,):\n            if False:\n",
        "test_curator.py",
    ),
    Mutant(
        "only the first combination of runs is certified",
        "privacy/ledger.py",
        "for total in _totals([*_costs(db), plan.costs]):",
        "for total in _totals([*_costs(db), plan.costs])[:1]:",
        "test_ledger.py",
    ),
    Mutant(
        "a vanished ledger begins anew",
        "privacy/ledger.py",
        'mode: str = "rw")',
        'mode: str = "rwc")',
        "test_ledger.py",
    ),
    Mutant(
        "Gaussian parts beside sampled ones forgotten",
        "privacy/accounting.py",
        "    if cost.gaussian:\n        total",
        "    if cost.gaussian and not cost.subsampled:\n        total",
        "test_accounting.py",
    ),
    Mutant(
        "pure parts beside sampled ones forgotten",
        "privacy/accounting.py",
        "    for epsilon in cost.pure:\n",
        "    for epsilon in () if cost.subsampled else cost.pure:\n",
        "test_accounting.py",
    ),
    Mutant(
        "coins rounded up",
        "privacy/noise.py",
        "uniform < np.floor(probabilities * 2.0**53)",
        "uniform <= np.floor(probabilities * 2.0**53)",
        "test_noise.py",
    ),
    Mutant(
        "no epsilon held back",
        "privacy/accounting.py",
        "epsilon = budget.epsilon - max(EPSILON_RESERVE * budget.epsilon, LEAST_EPSILON_RESERVE)",
        "epsilon = budget.epsilon",
        "test_accounting.py",
    ),
    Mutant(
        "the ramp forgets the tolerated outliers",
        "privacy/means/outlier_removal.py",
        "self._ramp = c.tight_ramp(record.n_vectors, record.slack)",
        "self._ramp = c.tight_ramp(record.n_vectors, record.slack - record.outliers)",
        "test_outlier_removal.py",
    ),
    Mutant(
        "the noise of a sample forgets the tolerated outliers",
        "privacy/means/sampled_outlier_removal.py",
        "c.added_user_sensitivity(self.smallest_batch, self.slack, radius, self.share)",
        "c.added_user_sensitivity(self.smallest_batch, self.slack - self.outliers, radius, self.share)",
        "test_sampled_outlier_removal.py",
    ),
    Mutant(
        "the ramp of a sample forgets the tolerated outliers",
        "privacy/means/sampled_outlier_removal.py",
        "c.minibatch_ramp(batch, record.slack, record.share)",
        "c.minibatch_ramp(batch, record.slack - record.outliers, record.share)",
        "test_sampled_outlier_removal.py",
    ),
    Mutant(
        "a step is served by the session before it",
        "privacy/curator.py",
        "            session = step.mechanism.start(self._noise)\n"
        "            self._position, self._rounds_left, self._session = position, step.mechanism.rounds, session\n",
        "            self._position, self._rounds_left = position, step.mechanism.rounds\n"
        "            self._session = step.mechanism.start(self._noise)\n",
        "test_curator.py",
    ),
    Mutant(
        "an older copy of the ledger is taken for the newest",
        "privacy/ledger.py",
        "if self._newest and not db.execute(_SAME_RUN, self._newest).fetchone():",
        "if False:",
        "test_ledger.py",
    ),
    Mutant(
        "an emptied ledger begins anew",
        "privacy/ledger.py",
        "        if path.exists():\n            return\n",
        "        if path.exists() and path.stat().st_size:\n            return\n        path.unlink(missing_ok=True)\n",
        "test_ledger.py",
    ),
    Mutant(
        "a new ledger is put over one made meanwhile",
        "privacy/ledger.py",
        "                os.link(new, path)\n",
        "                os.replace(new, path)\n",
        "test_ledger.py",
    ),
    Mutant(
        "clipped means get the noise of one radius",
        "privacy/means/clip.py",
        "return 2 * radius / self.n_vectors * (1",
        "return radius / self.n_vectors * (1",
        "test_clip.py",
    ),
    Mutant(
        "vectors are not shortened",
        "privacy/means/clip.py",
        "factors = radius / np.maximum(np.sqrt(squares[easy]), radius)",
        "factors = np.ones(np.count_nonzero(easy))",
        "test_clip.py",
    ),
    Mutant(
        "wild vectors are not shortened",
        "privacy/means/clip.py",
        "total += scaled * min(largest, radius / length)",
        "total += scaled * largest",
        "test_clip.py",
    ),
    Mutant(
        "wild vectors are shortened in each coordinate only",
        "privacy/means/clip.py",
        "total += scaled * min(largest, radius / length)",
        "total += scaled * min(largest, radius)",
        "test_clip.py",
    ),
    Mutant(
        "vectors that are not finite are kept",
        "privacy/means/clip.py",
        "        if 0 < largest < math.inf:\n",
        "        if largest != 0:\n",
        "test_clip.py",
    ),
    Mutant(
        "clipped rounds charged as one",
        "privacy/means/clip.py",
        "math.nextafter(self.rounds / self.noise_multiplier**2, math.inf)",
        "math.nextafter(1 / self.noise_multiplier**2, math.inf)",
        "test_clip.py",
    ),
    Mutant(
        "clipped means get half their noise multiplier",
        "privacy/means/clip.py",
        "sensitivity, record.noise_multiplier)",
        "sensitivity, record.noise_multiplier / 2)",
        "test_clip.py",
    ),
    Mutant(
        "more clipped vectors than priced",
        "privacy/means/clip.py",
        "        if seen != record.n_vectors:\n",
        "        if seen < record.n_vectors:\n",
        "test_clip.py",
    ),
    Mutant(
        "blocks of one round with different radii",
        "privacy/means/clip.py",
        "if self._seen and radius != self._radius:",
        "if False:",
        "test_clip.py",
    ),
    Mutant(
        "a clipped round goes on from a failed one",
        "privacy/means/clip.py",
        "        self._begin()\n        return users\n",
        "        return users\n",
        "test_clip.py test_curator.py",
    ),
    Mutant(
        "rounding of clipped sums not paid for",
        "privacy/means/clip.py",
        " + 2.0**-50 * self.n_vectors**2)",
        ")",
        "test_clip.py",
    ),
    Mutant(
        "searched: test skipped",
        "privacy/means/searched_outlier_removal.py",
        "if value >= record.n_vectors - record.slack + record.margin:",
        "if True:",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: test without margin",
        "privacy/means/searched_outlier_removal.py",
        "if value >= record.n_vectors - record.slack + record.margin:",
        "if value >= record.n_vectors - record.slack:",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: test without noise",
        "privacy/means/searched_outlier_removal.py",
        "value = self._noise.gaussian(np.array([float(c.h_index(counts))]), 1.0, record.test_std)[0]",
        "value = float(c.h_index(counts))",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: score where the h-index is meant",
        "privacy/means/searched_outlier_removal.py",
        "np.array([float(c.h_index(counts))])",
        "np.array([c.score(counts)])",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: failure not divided by the probes",
        "privacy/means/searched_outlier_removal.py",
        "norm.isf(self.failure / self.probes)",
        "norm.isf(self.failure)",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: the cost forgets the probes",
        "privacy/means/searched_outlier_removal.py",
        "self.probes / self.test_std**2 + 1 / self.noise_multiplier**2",
        "1 / self.test_std**2 + 1 / self.noise_multiplier**2",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: the cost forgets the mean",
        "privacy/means/searched_outlier_removal.py",
        "self.probes / self.test_std**2 + 1 / self.noise_multiplier**2",
        "self.probes / self.test_std**2",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: failure not charged",
        "privacy/means/searched_outlier_removal.py",
        "Cost(gaussian=gaussian * (1 + 2.0**-50), failure=self.failure)",
        "Cost(gaussian=gaussian * (1 + 2.0**-50))",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: one probe too few is paid for",
        "privacy/means/searched_outlier_removal.py",
        "math.ceil(math.log2(len(self.radii) + 1))",
        "math.ceil(math.log2(len(self.radii)))",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: slack without margin",
        "privacy/means/searched_outlier_removal.py",
        "return self.margin + math.ceil(",
        "return math.ceil(",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: noise of the smallest radius",
        "privacy/means/searched_outlier_removal.py",
        "sensitivity = record.sensitivity(found, rows.shape[1])",
        "sensitivity = record.sensitivity(radius * record.radii[0], rows.shape[1])",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: the noise forgets the slack",
        "privacy/means/searched_outlier_removal.py",
        "exact = c.sensitivity(self.n_vectors, self.slack, radius)",
        "exact = c.sensitivity(self.n_vectors, 0, radius)",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: half the noise multiplier",
        "privacy/means/searched_outlier_removal.py",
        "sensitivity, record.noise_multiplier), found)",
        "sensitivity, record.noise_multiplier / 2), found)",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: the ramp forgets the slack",
        "privacy/means/searched_outlier_removal.py",
        "c.tight_ramp(record.n_vectors, record.slack))",
        "c.tight_ramp(record.n_vectors, 0))",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: a radius that failed is released",
        "privacy/means/searched_outlier_removal.py",
        "                low = middle + 1\n",
        "                low, passed = middle + 1, (tried, rows, counts)\n",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: made again",
        "privacy/means/searched_outlier_removal.py",
        "        self._open = False\n",
        "",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "searched: more vectors than priced",
        "privacy/means/searched_outlier_removal.py",
        "if len(vectors) != record.n_vectors:",
        "if len(vectors) < record.n_vectors:",
        "test_searched_outlier_removal.py",
    ),
    Mutant(
        "paper: score at the full radius",
        "privacy/means/paper_outlier_removal.py",
        "c.score_radius(2 * radius, rows.shape[1])",
        "2 * radius",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: the score's radius not reduced by its rounding",
        "privacy/means/paper_outlier_removal.py",
        "c.score_radius(2 * radius, rows.shape[1])",
        "radius",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: test skipped",
        "privacy/means/paper_outlier_removal.py",
        "        if noisy < self._threshold:\n            raise Halted\n",
        "",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: a score of two thirds passes",
        "privacy/means/paper_outlier_removal.py",
        "-(-4 * record.n_vectors**2 // 5)",
        "-(-2 * record.n_vectors**2 // 3)",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: noise of the test not scaled to the pairs",
        "privacy/means/paper_outlier_removal.py",
        "n_vectors * record.test_scale)\n        if",
        "record.test_scale)\n        if",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: test noise not charged",
        "privacy/means/paper_outlier_removal.py",
        "return Cost(gaussian, (pure,), failure=",
        "return Cost(gaussian, (), failure=",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: test charged for one row of pairs",
        "privacy/means/paper_outlier_removal.py",
        "pure = answers * 2 * (self.n_vectors - 1)",
        "pure = answers * (self.n_vectors - 1)",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: selection failure not charged",
        "privacy/means/paper_outlier_removal.py",
        "(self.test_failure + self.rounds * self.selection_failure)",
        "self.test_failure",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: test failure not charged",
        "privacy/means/paper_outlier_removal.py",
        "(self.test_failure + self.rounds * self.selection_failure)",
        "self.rounds * self.selection_failure",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: test failure of twice the gap",
        "privacy/means/paper_outlier_removal.py",
        "2 * self.n_vectors**2 / 15",
        "4 * self.n_vectors**2 / 15",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: noise for the score's radius",
        "privacy/means/paper_outlier_removal.py",
        "c.random_selection_sensitivity(self.n_vectors, 2 * radius, self.selection_failure)",
        "c.random_selection_sensitivity(self.n_vectors, radius, self.selection_failure)",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: half the noise",
        "privacy/means/paper_outlier_removal.py",
        "sensitivity, record.noise_ratio * radius / sensitivity)",
        "sensitivity, record.noise_ratio * radius / sensitivity / 2)",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: coins not tossed",
        "privacy/means/paper_outlier_removal.py",
        "c.filtered_mean(rows, counts, ramp, selected)",
        "c.filtered_mean(rows, counts, ramp)",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: all vectors kept",
        "privacy/means/paper_outlier_removal.py",
        "selected = self._noise.coins(ramp.weights(counts))",
        "selected = counts > 0",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: selection from the counts of the score",
        "privacy/means/paper_outlier_removal.py",
        "counts = c.neighbour_counts(rows, 2 * radius)",
        "counts = near",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: released again",
        "privacy/means/paper_outlier_removal.py",
        "left, self._rounds_left = self._rounds_left - 1, 0",
        "left, self._rounds_left = self._rounds_left, 0",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: threshold's noise not drawn",
        "privacy/means/paper_outlier_removal.py",
        "if record.rounds > 1:",
        "if False:",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: half the threshold's noise",
        "privacy/means/paper_outlier_removal.py",
        "record.n_vectors * record.test_scale / 2",
        "record.n_vectors * record.test_scale / 4",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: threshold's noise drawn anew each round, as printed",
        "privacy/means/paper_outlier_removal.py",
        "        noisy = ",
        "        self._threshold = _Session(record, self._noise)._threshold\n        noisy = ",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: tests of more rounds charged as one",
        "privacy/means/paper_outlier_removal.py",
        "answers = 1 if self.rounds == 1 else 4",
        "answers = 1",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: Gaussian charged for one round",
        "privacy/means/paper_outlier_removal.py",
        "gaussian = self.rounds * (self.sensitivity",
        "gaussian = (self.sensitivity",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: selection failure charged for one round",
        "privacy/means/paper_outlier_removal.py",
        "self.rounds * self.selection_failure",
        "self.selection_failure",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: failure of more rounds without the threshold's noise",
        "privacy/means/paper_outlier_removal.py",
        "        if self.rounds == 1:\n",
        "        if True:\n",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: goes on after a failed test",
        "privacy/means/paper_outlier_removal.py",
        "left, self._rounds_left = self._rounds_left - 1, 0",
        "left = self._rounds_left = self._rounds_left - 1",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: more rounds than priced",
        "privacy/means/paper_outlier_removal.py",
        "self._rounds_left = record.rounds\n",
        "self._rounds_left = record.rounds + (record.rounds > 1)\n",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: more coordinates than priced",
        "privacy/means/paper_outlier_removal.py",
        "if vectors.shape[1] > 2**20:",
        "if False:",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "paper: more vectors than priced",
        "privacy/means/paper_outlier_removal.py",
        "if len(vectors) != n_vectors:",
        "if len(vectors) < n_vectors:",
        "test_paper_outlier_removal.py",
    ),
    Mutant(
        "warnings of one release let through by another",
        "privacy/curator.py",
        'with _QUIET, np.errstate(all="ignore"), warnings.catch_warnings():',
        'with np.errstate(all="ignore"), warnings.catch_warnings():',
        "test_curator.py",
    ),
    Mutant(
        "rounding of Fourier transforms not paid for",
        "privacy/accounting.py",
        "return 64 * sum(part.steps for part in cost.subsampled) * 2.0**-53 + 1e-13",
        "return 0.0",
        "test_accounting.py",
    ),
    Mutant(
        "a custom loss may read beyond arrays",
        "kernels.py",
        'error_model="numpy", boundscheck=True)',
        'error_model="numpy", boundscheck=False)',
        "../test_statistics.py",
    ),
    Mutant(
        "numerical errors as the caller has set them",
        "privacy/curator.py",
        'with _QUIET, np.errstate(all="ignore"), warnings.catch_warnings():',
        "with warnings.catch_warnings():",
        "test_curator.py",
    ),
    Mutant(
        "warnings as the caller has set them",
        "privacy/curator.py",
        '                warnings.simplefilter("ignore")\n',
        "",
        "test_curator.py",
    ),
    Mutant(
        "a forked statistic releases twice",
        "privacy/curator.py",
        "        self._check_process()\n        return session.release(vectors, radius)\n",
        "        return session.release(vectors, radius)\n",
        "test_curator.py",
    ),
    Mutant(
        "a curator forked while it is charged",
        "privacy/curator.py",
        "        ledger.charge(plan, purpose, seed)\n        self._check_process()\n",
        "        ledger.charge(plan, purpose, seed)\n",
        "test_curator.py",
    ),
    Mutant(
        "a release in a forked process",
        "privacy/curator.py",
        "        self._check_process()\n        radius = check_radius(radius)\n",
        "        radius = check_radius(radius)\n",
        "test_curator.py",
    ),
    Mutant(
        "a halt with the frames of its data",
        "privacy/curator.py",
        "return Halted(error.reason)",
        "return error",
        "test_curator.py",
    ),
    Mutant(
        "an interrupt with the frames of its data",
        "privacy/curator.py",
        "        except KeyboardInterrupt:\n            return KeyboardInterrupt()\n",
        "        except KeyboardInterrupt as error:\n            return error\n",
        "test_curator.py",
    ),
    Mutant(
        "an interrupt that is passed through",
        "privacy/curator.py",
        "            return KeyboardInterrupt()\n",
        "            raise\n",
        "test_curator.py",
    ),
    Mutant(
        "a failure with the frames of its data",
        "privacy/curator.py",
        "        except BaseException:\n            return RuntimeError(",
        "        except BaseException:\n            raise RuntimeError(",
        "test_curator.py",
    ),
    Mutant(
        "a step that halted goes on",
        "privacy/curator.py",
        "            self._rounds_left = 0\n",
        "",
        "test_curator.py",
    ),
    Mutant(
        "a round that is released is not counted",
        "privacy/curator.py",
        "                self._rounds_left -= 1\n",
        "",
        "test_curator.py",
    ),
    Mutant(
        "a round that failed is given back",
        "privacy/curator.py",
        "        except BaseException:\n            return RuntimeError(",
        "        except BaseException:\n            self._rounds_left += 1\n            return RuntimeError(",
        "test_curator.py",
    ),
    Mutant(
        "blocks of users overlap",
        "privacy/curator.py",
        "users[first : first + block], block), radius)",
        "users[:block], block), radius)",
        "test_curator.py",
    ),
    Mutant(
        "groups are split into blocks",
        "privacy/curator.py",
        "if step.n_groups is not None or block >= n_groups:",
        "if block >= n_groups:",
        "test_curator.py",
    ),
    Mutant(
        "radii that are none",
        "privacy/curator.py",
        "        radius = check_radius(radius)\n",
        "",
        "test_curator.py",
    ),
    Mutant(
        "arrays stay in records",
        "privacy/mechanism.py",
        "        object.__setattr__(record, name, number)\n",
        "",
        "test_mechanism.py",
    ),
    Mutant(
        "narrow integers stay in records",
        "privacy/mechanism.py",
        "        object.__setattr__(record, name, int(getattr(record, name)))\n",
        "",
        "test_mechanism.py",
    ),
    Mutant(
        "records take what is no number",
        "privacy/mechanism.py",
        "if not isinstance(value, (int, float, np.floating, np.integer)):",
        "if False:",
        "test_mechanism.py",
    ),
    Mutant(
        "records take what is not positive",
        "privacy/mechanism.py",
        "if not (math.isfinite(number) and number > 0):\n            "
        'raise ValueError(f"Expected {name}={number} to be finite and > 0.")\n'
        "        if not _SMALLEST <= number <= _LARGEST:",
        "if False:",
        "test_mechanism.py",
    ),
    Mutant(
        "lists of radii stay lists",
        "privacy/concentration.py",
        "    return numbers\n\n\ndef sensitivity",
        "    return factors\n\n\ndef sensitivity",
        "test_mechanism.py",
    ),
    Mutant(
        "radii that do not increase",
        "privacy/concentration.py",
        "not numbers[0] > 0 or not np.all(np.diff(numbers) > 0)",
        "not numbers[0] > 0",
        "test_concentration.py",
    ),
    Mutant(
        "clip: blocks of any width",
        "privacy/means/clip.py",
        "        if self._seen and vectors.shape[1] != self._total.size:\n",
        "        if False:\n",
        "test_clip.py",
    ),
    Mutant(
        "a statistic speaks through a halt",
        "privacy/curator.py",
        '            raise ValueError("Expected vectors, not a halt.") from None\n',
        "            raise\n",
        "test_curator.py",
    ),
]


def is_caught(mutant: Mutant) -> bool:
    """Whether a named test fails with the mutant planted. An error of collection is not a catch."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "userdp"
        shutil.copytree(PACKAGE, copy)
        file = copy / mutant.file
        text = file.read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.name}: its text stands {text.count(mutant.old)} times in {mutant.file}")
        file.write_text(text.replace(mutant.old, mutant.new))
        paths = [str(TESTS / "privacy" / name) for name in mutant.tests.split()]
        search = os.pathsep.join([folder, str(TESTS), str(TESTS / "privacy")])
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths]
        environment = os.environ | {"PYTHONPATH": search}
        run = subprocess.run(
            command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=_PATIENCE_SECONDS
        )
        return run.returncode == 1 and "failed" in run.stdout


def main() -> int:
    missed = 0
    for mutant in MUTANTS:
        caught = is_caught(mutant)
        missed += not caught
        print(f"{'caught' if caught else 'MISSED'}  {mutant.name:45} by {mutant.tests}", flush=True)
    print(f"{len(MUTANTS) - missed} of {len(MUTANTS)} planted bugs caught")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
