"""Mutants here: what `tests/test_mutants.py` asks of userdp's own (conftest.py says whose are meant)."""

from mutants import MUTANTS, PACKAGE
from test_mutants import (  # noqa: F401 - they run here too
    group_of,
    test_every_mutant_has_its_own_name_and_tests_that_exist,
    test_every_mutant_has_its_place,
    test_every_mutant_is_code_whose_names_exist,
    test_mutant_is_killed,
)


def test_the_bugs_are_those_of_this_package():
    assert PACKAGE.name == "userdp_research"
    assert len(MUTANTS) > 90
