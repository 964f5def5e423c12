"""Bugs in what people use: estimators, scalers, the private mean, statements."""

from planted.mutant import Mutant

MUTANTS = [
    Mutant(
        "private mean: search for free",
        "models/private_mean.py",
        "1 / math.sqrt((1 - fraction) * precision),",
        "1 / math.sqrt(precision),",
        "test_private_mean.py::test_a_plan_fits_its_budget_in_full",
    ),
    Mutant(
        "estimator: rows without owners are everybody's own",
        "models/reading.py",
        '    if groups is None and privacy_unit == "user":\n',
        '    if groups is None and privacy_unit == "nobody":\n',
        "test_estimators.py::test_groups_dropped_on_the_way_are_missed",
    ),
    Mutant(
        "estimator: labels read off the data",
        "models/estimators.py",
        "        elif self.unprotected_checks:\n            self.classes_ = np.empty(0)\n",
        "        elif True:\n            self.classes_ = np.empty(0)\n",
        "test_estimators_secrecy.py::test_categories_made_of_the_data_are_not_published",
    ),
    Mutant(
        "estimator: a list of truths is taken for a type",
        "data/schema.py",
        """    return str(_type_of(column)).lower() in""",
        """    return str(np.asarray(column).dtype).lower() in""",
        "test_estimators_secrecy.py::test_a_list_of_truths_is_no_declared_type",
    ),
    Mutant(
        "estimator: errors of conversion are passed on",
        "data/schema.py",
        "    except Exception:  # beyond all floats, say\n",
        "    except KeyError:\n",
        "test_estimators_secrecy.py::test_the_type_of_one_person_s_target_decides_nothing",
    ),
    Mutant(
        "a fit states a budget that nobody certified",
        "models/fitting.py",
        "            budget=budget,  # of the statement: the curator certifies it\n",
        "",
        "test_fitting.py::test_what_is_stated_is_certified_whatever_a_solver_plans",
    ),
    Mutant(
        "a mean states a budget that nobody certified",
        "models/private_mean.py",
        "data, plan, ledger, budget=budget, purpose",
        "data, plan, ledger, purpose",
        "test_private_mean.py::test_what_is_stated_is_certified_whatever_is_planned",
    ),
    Mutant(
        "the curator certifies the ledger's budget instead of the stated one",
        "privacy/curator.py",
        "plan.certify(self.budget)",
        "plan.certify(ledger.budget)",
        "privacy/test_curator.py::test_what_a_run_guarantees_is_certified_whatever_the_ledger_holds",
    ),
    Mutant(
        "estimator: the seed is not confessed",
        "models/fitting.py",
        "guarantee = statement(option.plan.certified, curator.budget, ledger, seed)",
        "guarantee = statement(option.plan.certified, curator.budget, ledger)",
        "test_estimators.py::test_a_seeded_model_says_that_it_is_not_private",
    ),
    Mutant(
        "estimator: a ledger of its own for every fit",
        "models/fitting.py",
        "    ledger = Ledger(budget) if ledger is None else ledger\n",
        "    ledger = Ledger(budget)\n",
        "test_estimators.py::test_a_search_charges_one_ledger_for_everything",
    ),
    Mutant(
        "ledger: copies have a budget of their own",
        "privacy/ledger.py",
        "        return self\n\n    def __copy__",
        "        return Ledger(self.budget)\n\n    def __copy__",
        "privacy/test_ledger.py::test_copies_are_the_ledger_itself",
    ),
    Mutant(
        "scaler: rows for users",
        "models/scaling.py",
        "replace(released.privacy, unit=self.privacy_unit)",
        "released.privacy",
        "test_private_mean.py::test_a_scaler_of_rows_says_so",
    ),
    Mutant(
        "model file: another ledger slips in",
        "models/files.py",
        """    if set(record["parameters"]) & set(NOT_KEPT):\n""",
        """    if False:\n""",
        "test_model_files.py::test_damaged_records_are_refused",
    ),
]
