"""Pictures: all of them are there, the same results give the same bytes, every line has its name."""

import itertools
from xml.etree import ElementTree

import pytest

from userdp.bench.frames import spread_out
from userdp.bench.plots import plot_records


def records():
    found = []
    for users in (100, None):
        size = {"command": "real", "data": {"name": "people", "cap": 6}, "users": users}
        found.append(cell(size | {"solver": "not-private", "epsilon": None, "passes": None}, users, -0.001, None))
        for place, solver in enumerate(("auto", "dp-sgd", "phased-sgd", "oracle")):
            for epsilon in (0.5, 1.0, 8.0):
                for passes in (1, None):
                    settings = size | {"solver": solver, "epsilon": epsilon, "passes": passes}
                    found.append(cell(settings, users, (1 + place) / 100 / epsilon, passes or 40))
        refused = {"solver": "accelerated", "epsilon": 1.0, "passes": None}
        found.append({"settings": size | refused, "result": {"refusal": "needs about 9 users", "enough_users": 9}})
    for solver, gradients in (("phased-sgd", [1e3, 1e4, 1e5]), ("dp-sgd", [])):
        settings = {"command": "table", "part": "slopes", "loss": "smooth", "against": "n", "solver": solver}
        result = {"sizes": [1e3, 1e4, 1e5][: len(gradients)], "gradients": gradients}
        found.append({"settings": settings, "result": result | {"exponent": 1.0 if gradients else None}})
    return found


def cell(settings, users, excess, passes):
    return {
        "settings": settings,
        "result": {"n_users": users or 1000, "excess": {"mean": excess, "spread": 0.1}, "passes": passes},
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
    assert {"auto", "dp-sgd", "oracle", "not-private", "100 users", "1,000 users"} <= texts["people-epsilon.svg"]
    assert "accelerated" not in texts["people-epsilon.svg"]
    assert "phased-sgd, n^1.00" in texts["slopes.svg"]
    assert "passes over the users, at epsilon 1" in texts["people-passes.svg"]


def test_nothing_to_draw_draws_nothing(tmp_path):
    assert plot_records([], tmp_path / "new") == []


@pytest.mark.parametrize("heights", [[0.1], [0.1, 0.1, 0.1], [0.0, 0.05, 0.5, 0.52, 0.9]])
def test_names_do_not_overlap(heights):
    places = spread_out(heights, 0.06)
    assert len(places) == len(heights)
    assert all(b - a >= 0.06 - 1e-12 for a, b in itertools.pairwise(places))
