"""Bugs in the filtered mean, in what records hold, and in users' vectors."""

from planted.mutant import Mutant

MUTANTS = [
    Mutant(
        "self not counted",
        "concentration.h_index",
        "(counts)",
        "(counts - 1)",
        "privacy/test_concentration.py::test_h_index_follows_its_definition",
    ),
    Mutant(
        "ramp starts at K/2",
        "tight_ramp",
        "(n_vectors + 1)",
        "n_vectors",
        "privacy/test_sensitivities.py::test_odd_numbers_need_the_corrected_start_of_the_ramp",
    ),
    Mutant(
        "the paper's ramp starts at K/2",
        "paper_ramp",
        "(n_vectors + 1)",
        "n_vectors",
        "privacy/test_concentration.py::test_the_papers_ramp_starts_where_the_proof_needs_it",
    ),
    Mutant(
        "sensitivity without the slack's fraction",
        "concentration.sensitivity",
        "(n_vectors - slack) * (1 + slack / (ramp.high - ramp.low))",
        "n_vectors",
        "privacy/test_sensitivities.py::test_tight_sensitivity_holds_under_hill_climbing",
    ),
    Mutant(
        "numpy may add up a single row's classes in another order",
        "standard._sum",
        "functools.reduce(np.add, lines)",
        "lines.sum(axis=0)",
        "test_losses.py::test_a_row_s_result_is_of_that_row_alone_to_the_last_bit",
    ),
    Mutant(
        "weights are of whoever comes first",
        "Rows.weighted",
        "self.data.weights[self.place]",
        "self.data.weights[: len(self)]",
        "test_statistics.py::test_weights_say_how_often_rows_count",
    ),
    Mutant(
        "what a custom loss does is not tried row by row",
        "base._check_function",
        "equal_nan=True",
        "equal_nan=True, atol=9.0",
        "test_losses.py::test_functions_that_do_not_take_arrays_are_refused_with_a_remedy",
    ),
    Mutant(
        "arrays stay in records",
        "check_record",
        "object.__setattr__(record, name, number)",
        "",
        "privacy/test_mechanism.py::test_reals_become_plain_floats_of_the_same_value",
    ),
    Mutant(
        "narrow integers stay in records",
        "check_record",
        "object.__setattr__(record, name, count)",
        "",
        "privacy/test_mechanism.py::test_narrow_integers_do_not_wrap_around_in_costs",
    ),
    Mutant(
        "records take what is no number",
        "check_record",
        "not isinstance(value, (int, float, np.floating, np.integer))",
        "False",
        "privacy/test_mechanism.py::test_what_could_change_or_is_no_number_is_refused_as_a_real",
    ),
    Mutant(
        "records take what is not positive",
        "check_record",
        "if not (math.isfinite(number) and number > 0):\n"
        '            raise ValueError(f"Expected {name}={number} to be finite and > 0.")\n'
        "        if not _SMALLEST <= number <= _LARGEST:",
        "if False:",
        "privacy/test_mechanism.py::test_reals_are_finite_and_positive",
    ),
    Mutant(
        "lists of radii stay lists",
        "check_factors",
        "return numbers",
        "return factors",
        "privacy/test_mechanism.py::test_what_was_priced_does_not_change_with_what_was_given",
    ),
    Mutant(
        "radii that do not increase",
        "check_factors",
        "or not np.all(np.diff(numbers) > 0)",
        "",
        "privacy/test_concentration.py::test_factors_that_are_not_positive_and_increasing_are_refused",
    ),
    Mutant(
        "a known slope is enough, whatever is said of it",
        "_find",
        "_KNOWN.get(loss)",
        "next(((loss, *made[1:]) for one, made in _KNOWN.items() if one.slope is loss.slope), None)",
        "test_losses.py::test_altered_losses_are_not_known",
    ),
    Mutant(
        "a loss may say of itself how steep it is",
        "_find",
        "return _KNOWN.get(loss)",
        "found = [m for one, m in _KNOWN.items() if (one.value, one.slope) == (loss.value, loss.slope)]\n"
        "return (loss, *found[0][1:]) if found else None",
        "test_losses.py::test_altered_losses_are_not_known",
    ),
    Mutant(
        "a radius in the precision it came in",
        "Ball.__post_init__",
        "float(self.radius)",
        "self.radius",
        "test_domains.py::test_a_radius_of_few_bits_is_widened",
    ),
    Mutant(
        "a statistic's weights can be changed after its check",
        "weights_vector",
        "vector.flags.writeable = False",
        "",
        "test_statistics.py::test_a_statistic_keeps_its_own_weights",
    ),
]
