"""Bugs of runs that go on after they were killed."""

from planted.mutant import Mutant

GOES_ON = "privacy/test_journal.py::test_a_run_that_goes_on_is_the_run_that_was_not_killed"
ONCE = "privacy/test_journal.py::test_private_releases_are_given_again_as_they_were_and_charged_once"
REFUSED = "privacy/test_journal.py::test_other_runs_are_refused_and_release_nothing"
DAMAGED = "privacy/test_journal.py::test_damaged_journals_are_refused"

MUTANTS = [
    Mutant(
        "what was released is released again with fresh noise",
        "Curator._journaled",
        "return before.outcome()",
        "return self._outcome(step, session, statistic, radius)",
        ONCE,
    ),
    Mutant(
        "a release leaves that is not on disk",
        "OpenJournal.append",
        "raise OSError(",
        "return\nraise OSError(",
        "privacy/test_journal.py::test_a_release_is_on_disk_before_it_is_seen_and_else_does_not_leave",
    ),
    Mutant(
        "releases are not synced to the disk",
        "OpenJournal.__init__",
        'execute("PRAGMA synchronous = EXTRA")',
        'execute("PRAGMA synchronous = OFF")',
        "privacy/test_journal.py::test_a_release_is_on_disk_before_it_is_seen_and_else_does_not_leave",
    ),
    Mutant(
        "an abort is forgotten",
        "Curator._journaled",
        "isinstance(outcome, _UNWRITTEN)",
        "isinstance(outcome, (*_UNWRITTEN, Aborted))",
        "privacy/test_journal.py::test_an_abort_and_a_failure_stay",
    ),
    Mutant(
        "users are drawn again",
        "OpenJournal.order",
        "if not self._records:",
        "if self._records:\n    return draw(), self._records[0].state\nif True:",
        "privacy/test_journal.py::test_users_keep_their_places",
    ),
    Mutant(
        "a noisy threshold is drawn again",
        "Curator._go_on",
        "session.drawn_once.noisy_threshold = threshold",
        "pass",
        "privacy/test_journal.py::test_a_noisy_threshold_is_drawn_once",
    ),
    Mutant(
        "a run with a journal is never charged",
        "Curator._charge",
        "ledger.charge(self._plan, purpose, seed, token, unit)",
        "if token is None:\n    ledger.charge(self._plan, purpose, seed)",
        ONCE,
    ),
    Mutant(
        "a run that was killed before its charge is taken for charged",
        "Ledger._was_charged",
        "return row is not None",
        "return True",
        "privacy/test_journal.py::test_a_run_that_was_killed_before_its_charge_is_charged",
    ),
    Mutant(
        "any plan's charge counts as this one's",
        "Ledger._was_charged",
        "row is not None and row[0] != _written(plan.costs)",
        "False",
        "privacy/test_journal.py::test_a_charge_of_another_plan_is_no_charge_of_this_one",
    ),
    Mutant(
        "the ledger that was charged may be another",
        "journal.run_facts",
        '"ledger": ledger,',
        "",
        REFUSED,
    ),
    Mutant(
        "users may have changed places",
        "OpenJournal.order",
        "if first.statistic != shape:",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "a journal goes on with another plan",
        "journal.run_facts",
        '"plan": [plan.n_users, steps],',
        "",
        REFUSED,
    ),
    Mutant(
        "a request is answered with the release of another",
        "OpenJournal.next",
        "if not same or not math.isclose(found.radius, radius, rel_tol=_RADIUS_TOLERANCE):",
        "if not same:",
        REFUSED,
    ),
    Mutant(
        "a copy goes on",
        "OpenJournal._check",
        "if inode != self.path.stat().st_ino:",
        "if False:",
        "privacy/test_journal.py::test_a_copy_is_refused",
    ),
    Mutant(
        "two processes go on at once",
        "OpenJournal.__init__",
        "fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        "privacy/test_journal.py::test_one_process_at_a_time",
    ),
    Mutant(
        "the lock is SQLite's alone",
        "OpenJournal.__init__",
        "fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "privacy/test_journal.py::test_other_uses_of_the_file_in_the_process_do_not_end_the_lock",
    ),
    Mutant(
        "a run goes on after what could not be written",
        "Curator._journaled",
        "position, self._position = self._position, len(self._plan.steps)",
        "position = self._position",
        "privacy/test_journal.py::test_what_became_of_a_request_that_was_not_written_is_not_told_later",
    ),
    Mutant(
        "users of equally many rows may have changed places",
        "UserData.fingerprint",
        "repr(self.user_ids).encode()",
        'b""',
        "privacy/test_journal.py::test_users_who_changed_places_are_noticed_by_their_ids",
    ),
    Mutant(
        "damage is not noticed",
        "OpenJournal._check",
        "(found, digest) != (number, written)",
        "False",
        DAMAGED,
    ),
    Mutant(
        "anybody reads the journal",
        "Journal._create",
        "mode=0o600",
        "mode=0o644",
        "privacy/test_journal.py::test_only_its_owner_reads_it",
    ),
    Mutant(
        "a journal that has ended gives its model for other data",
        "OpenJournal._check",
        """if self._db.execute("SELECT * FROM sqlite_master WHERE name = 'ended'").fetchone():""",
        "if False:",
        "privacy/test_journal.py::test_a_journal_of_a_run_that_has_ended_is_not_taken_for_other_data",
    ),
    Mutant(
        "a fit does not end its journal",
        "fitting.minimize",
        "Journal(checkpoint).end()",
        "pass",
        "privacy/test_journal.py::test_a_journal_of_a_run_that_has_ended_is_not_taken_for_other_data",
    ),
    Mutant(
        "the private rows are taken for public ones",
        "LinearModel._fit_rows",
        "if shares_memory(self.public_X, X):",
        "if False:",
        "test_estimators.py::test_private_rows_are_no_public_ones",
    ),
    Mutant(
        "the caller's errstate decides whether a fit fails",
        "LinearModel._fit_rows",
        '@np.errstate(all="ignore")',
        "",
        "test_estimators.py::test_the_caller_s_errstate_decides_nothing",
    ),
]
