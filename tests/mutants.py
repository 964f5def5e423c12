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
        "a used-up round is given again",
        "privacy/curator.py",
        "        self._rounds_left -= 1\n        users",
        "        users",
        "test_curator.py",
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
        "a failed round is given back",
        "privacy/curator.py",
        "        except BaseException:\n            vectors = None\n",
        "        except BaseException:\n            self._rounds_left += 1\n",
        "test_curator.py",
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
        "'rwc' if create else 'rw'",
        "'rwc'",
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
