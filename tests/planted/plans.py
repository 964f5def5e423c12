"""Bugs in ledgers and plans."""

from planted.mutant import Mutant

MUTANTS = [
    Mutant(
        "only the first users' cost is certified",
        "Plan.costs",
        "if",
        "[:1] if",
        "privacy/test_plan.py::test_steps_on_disjoint_users_cost_each_user_its_own_step",
    ),
    Mutant(
        "earlier runs forgotten",
        "Ledger._accepted",
        "*before,",
        "",
        "privacy/test_ledger.py::test_over_budget_is_refused_and_nothing_is_written",
    ),
    Mutant(
        "only the first combination of runs is certified",
        "Ledger._accepted",
        "if before",
        "[:1] if before",
        "privacy/test_ledger.py::test_users_who_paid_in_different_ways_are_all_remembered",
    ),
    Mutant(
        "a vanished ledger begins anew",
        "ledger._connect",
        '"rw"',
        '"rwc"',
        "privacy/test_ledger.py::test_opening_makes_no_file_if_it_vanishes_meanwhile",
    ),
    Mutant(
        "an older copy of the ledger is taken for the newest",
        "Ledger._transaction",
        "self._newest and not db.execute(_SAME_RUN, self._newest).fetchone()",
        "False",
        "privacy/test_ledger.py::test_an_older_copy_that_is_put_back_is_noticed",
    ),
    Mutant(
        "an emptied ledger begins anew",
        "ledger._create",
        "if path.exists():\n    return",
        "if path.exists() and path.stat().st_size:\n    return\npath.unlink(missing_ok=True)",
        "privacy/test_ledger.py::test_files_that_are_no_ledgers_are_refused_in_one_sentence",
    ),
    Mutant(
        "a new ledger is put over one made meanwhile",
        "ledger._create",
        "link",
        "replace",
        "privacy/test_ledger_processes.py::test_a_ledger_that_another_process_has_just_made_is_used_as_it_is",
    ),
    Mutant(
        "plan: Gaussian tests for free",
        "mean_plans._mean",
        "/ math.sqrt(1 - fraction)",
        "",
        "test_planning.py::test_the_whole_budget_is_used_and_no_more",
    ),
    Mutant(
        "plan: the search is for free",
        "_best_steps",
        "spent + search.cost",
        "spent",
        "test_planning.py::test_the_whole_budget_is_used_and_no_more",
    ),
    Mutant(
        "plan: what else is paid for is forgotten",
        "_best_steps",
        "+ (other or Cost())",
        "",
        "test_planning.py::test_what_else_is_paid_for_comes_out_of_the_same_budget",
    ),
    Mutant(
        "plan: search for free",
        "_best_steps",
        "spent = spent + search.cost",
        "",
        "test_planning.py::test_the_whole_budget_is_used_and_no_more",
    ),
]
