"""The map of research/docs/paper-notes.md: up to date, without gaps; a line that lost its code or test would show."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "research" / "docs"))
import paper_map

GAP = paper_map.Row("Alg. 1, line 99", "x", 1, "nowhere")


def test_the_map_is_up_to_date():
    assert paper_map.PAGE.read_text() == paper_map.page(), "run python research/docs/paper_map.py"


def test_every_line_and_parameter_has_code_or_a_reason_and_a_test():
    assert paper_map.gaps() == []


def test_the_lines_are_all_there():
    """All numbers from the first to the last; what is left out are `end` lines."""
    ends = {"Alg. 1": {9, 16, 17, 20, 23}, "Alg. 2": set(), "Alg. 3": {8}}
    for algorithm, left_out in ends.items():
        places = {row.place for row in paper_map.ROWS if row.place.startswith(algorithm)}
        numbers = {int(place.split("line ")[1]) for place in places}
        assert numbers | left_out == set(range(1, max(numbers) + 1))
        assert not numbers & left_out


def test_a_line_without_code_or_test_is_a_gap(monkeypatch):
    monkeypatch.setattr(paper_map, "ROWS", [*paper_map.ROWS, GAP])
    assert paper_map.gaps() == [GAP]
    assert "| line 99 (x) | 1 | `nowhere` | **gap**  | **no test** |" in paper_map.tables()


def found(rows):
    return {(row.place, row.name) for row in rows}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("Alg. 1, line 4 (n_i, T_i)", {("Alg. 1, line 4", "n_i"), ("Alg. 1, line 4", "T_i")}),
        ("Alg. 2, lines 8-10", {("Alg. 2, line 8", ""), ("Alg. 2, line 9", ""), ("Alg. 2, line 10", "h_i^t")}),
        ("Alg. 2, lines 15 and 16", {("Alg. 2, line 15", ""), ("Alg. 2, line 16", "")}),
        ("Theorem 3.2 (risk)", {("Theorem 3.2", "risk")}),
        ("Lemma C.4 (Ghadimi and Lan 2013)", {("Lemma C.4", "")}),
        ("Alg. 1, line 4 (no_such_parameter)", set()),
        ("Alg. 1", set()),
        ("Theorem 3.2", set()),
    ],
)
def test_marks_are_read(text, rows):
    assert found(paper_map.rows_of(text)) == rows


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("test_alg_1_line_4_radius", {("Alg. 1, line 4", "tau_i")}),
        ("test_alg_2_lines_8_to_9_so", {("Alg. 2, line 8", ""), ("Alg. 2, line 9", "")}),
        ("test_theorems_3_2_and_4_1_risk", {("Theorem 3.2", "risk"), ("Theorem 4.1", "risk")}),
        ("test_theorem_3_2_something", set()),
        ("test_alg_3_line_2_whatever", {("Alg. 3, line 2", name) for name in ("l", "tau", "x_0")}),
        ("test_lemma_c_4_error", {("Lemma C.4", "")}),
        ("test_something_else", set()),
    ],
)
def test_names_of_tests_are_read(name, rows):
    assert found(paper_map.rows_of_name(name)) == rows


def test_quotations_are_looked_up(tmp_path):
    source = tmp_path / "paper.tex"
    source.write_text("\n" * 2000)
    assert paper_map.misquoted(source) == paper_map.ROWS
