"""Pictures: all of them are there, the same results give the same bytes, every line has its name."""

import itertools
from xml.etree import ElementTree

import pytest

from userdp_research.bench.plots import plot_records, spread_out
from userdp_research.bench.references import worst_case_rate


def records():
    found = []
    for users in (100, None):
        size = {"command": "real", "data": {"name": "people", "cap": 6}, "users": users}
        found.append(cell(size | {"solver": "not-private", "epsilon": None, "passes": None}, users, -0.001, None))
        for place, solver in enumerate(("auto", "whitened-clip", "phased-sgd", "oracle")):
            for epsilon in (0.5, 1.0, 8.0):
                for passes in (1, None):
                    settings = size | {"solver": solver, "epsilon": epsilon, "passes": passes}
                    found.append(cell(settings, users, (1 + place) / 100 / epsilon, passes or 40))
        refused = {"solver": "accelerated", "epsilon": 1.0, "passes": None}
        found.append({"settings": size | refused, "result": {"refusal": "needs about 9 users", "enough_users": 9}})
    for solver, gradients in (("phased-sgd", [1e3, 1e4, 1e5]), ("whitened-clip", [])):
        settings = {"command": "table", "part": "slopes", "loss": "smooth", "against": "n", "solver": solver}
        result = {"sizes": [1e3, 1e4, 1e5][: len(gradients)], "gradients": gradients}
        found.append({"settings": settings, "result": result | {"exponent": 1.0 if gradients else None}})
    return found


def cell(settings, users, excess, passes):
    return {
        "settings": settings,
        "result": {
            "n_users": users or 1000,
            "excess": {"mean": excess, "spread": 0.1},
            "passes": passes,
            "n_weights": 4,
        },
    }


def test_pictures_are_there_and_repeatable(tmp_path):
    first, second = (plot_records(records(), tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == ["people-epsilon.svg", "people-passes.svg", "slopes.svg"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert b"<dc:date>" not in one.read_bytes()


def test_lines_are_named_directly(tmp_path):
    texts = {}
    for path in plot_records(records(), tmp_path):
        root = ElementTree.parse(path).getroot()
        texts[path.name] = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"auto", "whitened-clip", "oracle", "not-private", "100 users", "1,000 users"} <= texts["people-epsilon.svg"]
    assert "accelerated" not in texts["people-epsilon.svg"]
    assert "phased-sgd, n^1.00" in texts["slopes.svg"]
    assert "passes over the users, at epsilon 1" in texts["people-passes.svg"]


def scored(name, rows, users, epsilon, solver="auto", excess=0.01):
    scenario = {"name": name, "loss": "logistic", "sizes": [rows], "cap": 50, "features": 3}
    settings = {"command": "grid", "scenario": scenario, "users": users, "solver": solver, "epsilon": epsilon}
    bins = [[step / 10, step / 10 + excess] for step in range(10)]
    found = {"yard": 0.001, "rows": rows, "n_weights": 4, "bins": bins, "estimate": 0.02 if epsilon else None}
    return {"settings": settings, "result": cell(settings, users, excess, None)["result"] | found}


def grid_records():
    kinds = [(f"rows-{rows}", rows) for rows in (1, 3, 10)] + [("rare", 1)]
    sizes = [(name, rows, users) for name, rows in kinds for users in (2000, 20000)]
    private = [scored(*size, epsilon) for size in sizes for epsilon in (0.1, 2.0)]
    return private + [scored(*size, None, "not-private", -1e-9) for size in sizes]


def texts_of(path):
    root = ElementTree.parse(path).getroot()
    return [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_pictures_of_generated_users(tmp_path):
    first, second = (plot_records(grid_records(), tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == ["grid-rows.svg", "grid-calibration.svg", "estimates.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    rows, calibration, estimates = map(texts_of, first)
    assert {"auto", "not-private", "yard", "logistic, 4 weights, 2,000 users", "10"} <= set(rows)
    assert {"rare, 1 rows per user", "rows-3, 3 rows per user", "auto, 20,000 users"} <= set(calibration)
    assert "generated users" in estimates


def test_pictures_can_be_chosen(tmp_path):
    drawn = plot_records(grid_records(), tmp_path, only=("rare",), epsilon=0.1)
    assert [path.name for path in drawn] == ["grid-calibration.svg", "estimates.svg"]
    assert "rows-3, 3 rows per user" not in texts_of(drawn[0])
    assert "mean prediction of a bin, at the epsilon nearest 0.1" in texts_of(drawn[0])


def test_pictures_of_rows_a_user(tmp_path):
    both = records()
    for r in records():
        if r["settings"]["command"] == "real":
            r["settings"]["data"] = {"name": "people", "cap": 1}
            both.append(r)
    for r in both:
        r["result"]["yard"] = 0.001
    names = [path.name for path in plot_records(both, tmp_path)]
    expected = [f"people-{rows}-rows-{kind}.svg" for rows in (1, 6) for kind in ("epsilon", "passes")]
    assert names == [*expected, "people-rows.svg", "slopes.svg"]
    assert {"yard", "whitened-clip", "not-private", "1", "6"} <= set(texts_of(tmp_path / "people-rows.svg"))


def test_the_lower_bound_is_a_line_of_its_own(tmp_path):
    words = "lower bound without constants"
    found = {path.name: texts_of(path) for path in plot_records(records(), tmp_path)}
    assert found["people-epsilon.svg"].count(words) == 2, "one in each panel"
    assert words not in found["people-passes.svg"]
    assert words in texts_of(plot_records(grid_records(), tmp_path)[0])


def test_rate_of_the_lower_bound():
    """Levy et al. 2021: 1/sqrt(nm) + sqrt(d)/(eps n sqrt(m)); quadrupling rows halves it, and it is never above L R."""
    assert worst_case_rate(400, 25, 16, 0.5) == pytest.approx(1 / 100 + 4 / (0.5 * 400 * 5))
    assert worst_case_rate(400, 100, 16, 0.5) == pytest.approx(worst_case_rate(400, 25, 16, 0.5) / 2)
    assert worst_case_rate(10**6, 1, 10**6, 0.01) == pytest.approx(1e-3 + 0.1)
    assert worst_case_rate(10, 1, 10**6, 1.0) == 1.0


def test_nothing_to_draw_draws_nothing(tmp_path):
    assert plot_records([], tmp_path / "new") == []


@pytest.mark.parametrize("heights", [[0.1], [0.1, 0.1, 0.1], [0.0, 0.05, 0.5, 0.52, 0.9]])
def test_names_do_not_overlap(heights):
    places = spread_out(heights, 0.06)
    assert len(places) == len(heights)
    assert all(b - a >= 0.06 - 1e-12 for a, b in itertools.pairwise(places))
