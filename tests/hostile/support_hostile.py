"""One malicious person in otherwise good data, and a curator that answers as it did on other data."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import warnings
from dataclasses import dataclass, field

import numpy as np

from userdp import Curator, UserData
from userdp.engines.local import LocalEngine
from userdp.paper.paper_outlier_removal import PaperOutlierRemoval
from userdp.privacy.mechanism import Aborted
from userdp.privacy.noise import SeededNoise

SUBNORMAL = 5e-324
MANY = 3000  # rows of somebody who sends too many
SECRETS = ("1e308", "1e+308", "inf", "nan", "5e-324", "hostile-4711", str(10**400)[:30])


def _rows(value, n_rows=3):
    return lambda width: (np.full((n_rows, width), value), np.ones(n_rows))


def _targets(value):
    return lambda width: (np.ones((3, width)), np.full(3, value))


def _mixed(width):
    odd = np.array([math.nan, math.inf, -math.inf, 1e308, -1e308, SUBNORMAL, -0.0, 1.0])
    return np.resize(odd, (len(odd), width)), odd


# What somebody may send instead of honest rows: rows and targets, by the number of features.
SENT = {
    "nan": _rows(math.nan),
    "infinite": _rows(math.inf),
    "both infinities": lambda width: (np.array([[math.inf] * width, [-math.inf] * width]), np.ones(2)),
    "huge": _rows(1e308),
    "huge and negative": _rows(-1.7e308),
    "long": _rows(1e6),
    "subnormal": _rows(SUBNORMAL),
    "nothing": lambda width: (np.empty((0, width)), np.empty(0)),
    "too many": _rows(2.0, MANY),
    "one of everything": _mixed,
    "target nan": _targets(math.nan),
    "target infinite": _targets(-math.inf),
    "target huge": _targets(1e308),
}


def replaced(data: UserData, user: int, rows: np.ndarray, targets: np.ndarray) -> UserData:
    """The same data, with these rows instead of one user's."""
    first, last = data.offsets[user], data.offsets[user + 1]
    offsets = data.offsets.copy()
    offsets[user + 1 :] += len(rows) - (last - first)
    with np.errstate(all="ignore"):
        rows = rows.astype(data.rows.dtype)
    return UserData(
        np.concatenate([data.rows[:first], rows, data.rows[last:]]),
        np.concatenate([data.targets[:first], targets, data.targets[last:]]),
        offsets,
    )


def observed(work):
    """All that is seen of a call but its result: output, log, warnings, and the error's type and words."""
    out, log = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    result = error = None
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            warnings.catch_warnings(record=True) as heard,
        ):
            warnings.simplefilter("always")
            try:
                result = work()
            except Exception as raised:
                error = (type(raised), str(raised))
    finally:
        logging.getLogger().removeHandler(handler)
    seen = (out.getvalue(), log.getvalue(), [str(w.message) for w in heard], error)
    assert not any(secret in str(seen).lower() for secret in SECRETS)
    return result, seen


@dataclass
class Tape:
    """All that happened in one run, in order: what noise was added to, what came of it, and users' vectors."""

    draws: list = field(default_factory=list)
    vectors: list = field(default_factory=list)
    releases: list = field(default_factory=list)
    complaints: list = field(default_factory=list)  # the curator would swallow a failed assertion

    def want(self, holds, otherwise):
        if not holds:
            self.complaints.append(otherwise)


def replacement_factor(mechanism):
    """How many of its `sensitivity` one user may move a release by: sampled steps are priced by what one user adds."""
    if hasattr(mechanism, "rows_per_user"):  # or what one row does
        return 2 * mechanism.rows_per_user
    return 2 if mechanism.samples_users else 1


def score_sensitivity(mechanism):
    """By how much one user moves the score of a test with Laplace noise: of pairs in the paper's, of users in ours."""
    return 2 * mechanism.n_vectors if isinstance(mechanism, PaperOutlierRemoval) else 1


class TapedNoise(SeededNoise):
    """Seeded noise that writes down, or, given a tape, checks that nobody moves a number by more than is paid for.

    It then answers what it answered before, so that everything that follows is decided by the same releases.
    """

    def __init__(self, seed, plan, tape, replay):
        super().__init__(seed)
        self._tape, self._at, self._replay = tape, 0, replay
        self._replacements = max(replacement_factor(step.mechanism) for step in plan.steps)
        self._counted = max(score_sensitivity(step.mechanism) for step in plan.steps)

    def _answer(self, query, sensitivity, scale, noisy):
        query = np.array(query, dtype=np.float64)
        self._tape.want(np.all(np.isfinite(query)), "noise hides nothing in what is not finite")
        if not self._replay:
            self._tape.draws.append((query, sensitivity, scale, noisy))
            return noisy
        before, expected, same_scale, answer = self._tape.draws[self._at]
        self._at += 1
        self._tape.want((sensitivity, scale) == (expected, same_scale), "the noise depends on one user's data")
        moved = float(np.linalg.norm(query - before)) / sensitivity
        self._tape.want(moved <= self._replacements * (1 + 1e-9), f"moved by {moved:.3g} sensitivities")
        return answer

    def gaussian(self, query, sensitivity, multiplier):
        return self._answer(query, sensitivity, multiplier, super().gaussian(query, sensitivity, multiplier))

    def integer_laplace(self, query, scale):
        return self._answer(query, self._counted, scale, super().integer_laplace(query, scale))


class TapedEngine(LocalEngine):
    """Writes down each user's vector, or checks that only one differs."""

    def __init__(self, tape, replay):
        object.__setattr__(self, "state", [tape, 0, replay])

    def vectors(self, statistic, data, users, n_groups):
        tape, at, replay = self.state
        found = super().vectors(statistic, data, users, n_groups)
        if not replay:
            tape.vectors.append((users.copy(), found))
            return found
        order, before = tape.vectors[at]
        self.state[1] += 1
        tape.want(np.array_equal(order, users), "who takes part depends on one user's data")
        other = found.view(np.int64) != before.view(np.int64)
        tape.want(np.count_nonzero(other.any(axis=1)) <= 1, "other users' vectors changed")
        return found

    def total(self, statistic, contribution, data, users):
        """As the engine has it; that of the vectors, which are written down, is the same but for rounding.

        And but for one user, who may be too large for one of both ways of adding up.
        """
        total = LocalEngine().total(statistic, contribution, data, users)
        of_vectors = contribution(self.vectors(statistic, data, users, len(users)))
        radius = 2.0 ** contribution.clips_to[1] if contribution.clips_to else 0.0
        near = np.abs(total - of_vectors)[:-1] <= (2 + 1e-6 * len(users)) * radius
        self.state[0].want(bool(np.all(near)), "other totals")
        return total


class TapedCurator(Curator):
    """A curator that writes everything down, or repeats its answers on other data."""

    def __init__(self, data, plan, ledger, tape, replay):
        super().__init__(data, plan, ledger, engine=TapedEngine(tape, replay), insecure_seed=1)
        self._noise = TapedNoise(2, plan, tape, replay)
        self._tape, self._at, self._replay = tape, 0, replay

    def release(self, label, statistic, radius):
        try:
            answer = super().release(label, statistic, radius)
            assert np.all(np.isfinite(answer))
        except Aborted as aborted:
            answer = aborted
        finally:
            complaints, self._tape.complaints = self._tape.complaints, []
            assert not complaints, complaints[0]
        if self._replay:
            said, answer = self._tape.releases[self._at]
            assert said == (label, radius), "the solver went another way after the same answers"
            self._at += 1
        else:
            self._tape.releases.append(((label, radius), answer))
        if isinstance(answer, Aborted):
            raise answer
        return np.array(answer)


def without_releases(said: str) -> str:
    """What a fit prints as JSON, without its day, and without what is computed from noisy releases."""
    said = re.sub(r'"created": "[^"]*"', "", said)
    said = re.sub(r'("(?:bound|radius|noise_std|curvature)": )[0-9.e-]+', r"\1some", said)
    said = re.sub(r'("(?:affected_users|notes)": )(?:null|\[[^\]]*\])', r"\1some", said)
    said = re.sub(r'("message": )"[^"]*"', r"\1some", said)
    return re.sub(r'("unresolved": )\{[^}]*\}', r"\1some", said)
