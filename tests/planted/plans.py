"""Bugs in ledgers and plans."""

from planted.mutant import Mutant

MUTANTS = [
    Mutant(
        "only the first users' cost is certified",
        "privacy/plan.py",
        "edges if edge < self.n_users))",
        "edges[:1] if edge < self.n_users))",
        "privacy/test_plan.py::test_steps_on_disjoint_users_cost_each_user_its_own_step",
    ),
    Mutant(
        "earlier runs forgotten",
        "privacy/ledger.py",
        "for total in _totals([*before, new]) if before else ():",
        "for total in _totals([new]) if before else ():",
        "privacy/test_ledger.py::test_over_budget_is_refused_and_nothing_is_written",
    ),
    Mutant(
        "only the first combination of runs is certified",
        "privacy/ledger.py",
        "for total in _totals([*before, new]) if before else ():",
        "for total in _totals([*before, new])[:1] if before else ():",
        "privacy/test_ledger.py::test_users_who_paid_in_different_ways_are_all_remembered",
    ),
    Mutant(
        "a vanished ledger begins anew",
        "privacy/ledger.py",
        'mode: str = "rw")',
        'mode: str = "rwc")',
        "privacy/test_ledger.py::test_opening_makes_no_file_if_it_vanishes_meanwhile",
    ),
    Mutant(
        "an older copy of the ledger is taken for the newest",
        "privacy/ledger.py",
        "if self._newest and not db.execute(_SAME_RUN, self._newest).fetchone():",
        "if False:",
        "privacy/test_ledger.py::test_an_older_copy_that_is_put_back_is_noticed",
    ),
    Mutant(
        "an emptied ledger begins anew",
        "privacy/ledger.py",
        "        if path.exists():\n            return\n",
        "        if path.exists() and path.stat().st_size:\n            return\n        path.unlink(missing_ok=True)\n",
        "privacy/test_ledger.py::test_files_that_are_no_ledgers_are_refused_in_one_sentence",
    ),
    Mutant(
        "a new ledger is put over one made meanwhile",
        "privacy/ledger.py",
        "                os.link(new, path)\n",
        "                os.replace(new, path)\n",
        "privacy/test_ledger_processes.py::test_a_ledger_that_another_process_has_just_made_is_used_as_it_is",
    ),
    Mutant(
        "plan: Gaussian tests for free",
        "solvers/mean_plans.py",
        "mean, tested = multiplier / math.sqrt(1 - fraction), multiplier",
        "mean, tested = multiplier, multiplier",
        "test_planning.py::test_the_whole_budget_is_used_and_no_more",
    ),
    Mutant(
        "plan: what else is paid for is forgotten",
        "solvers/mean_plans.py",
        "spent, tolerated = test + (other or Cost()),",
        "spent, tolerated = test,",
        "test_planning.py::test_what_else_is_paid_for_comes_out_of_the_same_budget",
    ),
    Mutant(
        "plan: search for free",
        "solvers/mean_plans.py",
        "                    spent = spent + search.cost\n",
        "",
        "test_planning.py::test_the_whole_budget_is_used_and_no_more",
    ),
]
