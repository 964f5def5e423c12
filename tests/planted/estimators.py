"""Bugs in what people use: estimators, scalers, the private mean, statements."""

from planted.mutant import Mutant

MUTANTS = [
    Mutant(
        "private mean: search for free",
        "means._best",
        "(1 - fraction) *",
        "",
        "test_private_mean.py::test_a_plan_fits_its_budget_in_full",
    ),
    Mutant(
        "estimator: rows without owners are everybody's own",
        "sklearn_compat.owners",
        '== "user"',
        '== "nobody"',
        "test_estimators.py::test_groups_dropped_on_the_way_are_missed",
    ),
    Mutant(
        "estimator: labels read off the data",
        "Classes.declared",
        "if not model.unprotected_checks:",
        "if False:",
        "test_estimators_secrecy.py::test_categories_made_of_the_data_are_not_published",
    ),
    Mutant(
        "estimator: a list of truths is taken for a type",
        "is_boolean",
        "_type_of(column)",
        "np.asarray(column).dtype",
        "test_estimators_secrecy.py::test_a_list_of_truths_is_no_declared_type",
    ),
    Mutant(
        "estimator: errors of conversion are passed on",
        "schema._number",
        "Exception",
        "KeyError",
        "test_estimators_secrecy.py::test_the_type_of_one_person_s_target_decides_nothing",
    ),
    Mutant(
        "a fit states a budget that nobody certified",
        "fitting.fitted",
        "budget=budget,",
        "",
        "test_fitting.py::test_what_is_stated_is_certified_whatever_a_solver_plans",
    ),
    Mutant(
        "a mean states a budget that nobody certified",
        "mean_of_users",
        "budget=budget,",
        "",
        "test_private_mean.py::test_what_is_stated_is_certified_whatever_is_planned",
    ),
    Mutant(
        "the curator certifies the ledger's budget instead of the stated one",
        "Curator.__init__",
        "(self.budget)",
        "(ledger.budget)",
        "privacy/test_curator.py::test_what_a_run_guarantees_is_certified_whatever_the_ledger_holds",
    ),
    Mutant(
        "estimator: the seed is not confessed",
        "Curator.__init__",
        "self.budget, ledger, seed, unit",
        "self.budget, ledger, None, unit",
        "test_estimators.py::test_a_seeded_model_says_that_it_is_not_private",
    ),
    Mutant(
        "estimator: a ledger of its own for every fit",
        "fitting.fitted",
        "if ledger is None else ledger",
        "",
        "test_estimators.py::test_a_search_charges_one_ledger_for_everything",
    ),
    Mutant(
        "ledger: copies have a budget of their own",
        "Ledger.__deepcopy__",
        "return self",
        "return Ledger(self.budget)",
        "privacy/test_ledger.py::test_copies_are_the_ledger_itself",
    ),
    Mutant(
        "scaler: rows for users",
        "PrivateStandardScaler.fit",
        ', "unit": self.privacy_unit',
        "",
        "test_private_mean.py::test_a_scaler_of_rows_says_so",
    ),
    Mutant(
        "model file: another ledger slips in",
        "_check_types",
        'set(record["parameters"]) & set(NOT_KEPT)',
        "False",
        "test_model_files.py::test_damaged_records_are_refused",
    ),
]
