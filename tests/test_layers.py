"""Imports point down only, and nothing above the curator touches raw rows or randomness."""

import ast
from pathlib import Path

import pytest

import userdp

SOURCE = Path(userdp.__file__).parent

# From the bottom up. A module may import from its own layer and from lower ones.
LAYERS = [
    ["losses", "domains", "kernels", "schema", "grouping", "sgd", "safe_steps", "smoothing", "rotation", "whole_files"],
    ["table_files"],
    ["data"],
    ["statistics", "row_weights", "moments", "row_statistics", "safe_passes", "wrapped"],
    ["engines"],
    ["privacy"],
    ["planning"],
    ["solvers"],
    ["planner"],
    ["reading"],
    ["fitting", "private_mean"],
    ["linear_model", "estimators", "scaling", "searches"],
    ["model_files"],
    ["report", "audit", "plan_plot", "demo", "bench"],
    ["cli", "__main__"],
]
# Within privacy: what a reader has to trust, from the bottom up.
PRIVACY_LAYERS = [
    ["accounting", "domination", "mixtures", "noise", "neighbours", "quiet"],
    ["concentration", "gates", "mechanism", "paper"],
    ["means", "radius"],
    ["plan"],
    ["ledger", "tradeoff"],
    ["curator", "statement"],
]
RANDOM_NAMES = {"random", "secrets", "urandom", "default_rng", "SystemRandom", "normal", "laplace"}
# grouping: the cap on rows acts within one user and costs no privacy whatever it picks.
# bench: for data that may be published; made-up users, splits and the tuned reference are drawn from seeds.
# audit: made-up users, and the coins that decide which version of them is planted; noise is the shipped one.
MAY_DRAW = {
    *("privacy/noise.py", "grouping.py", "bench/generated.py", "bench/tasks.py", "bench/oracle.py"),
    "audit/made_up.py",
}


def modules():
    return sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def imports(path):
    """Names of userdp's modules that a file imports, relative to the package."""
    for node in ast.walk(ast.parse((SOURCE / path).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "userdp":
            yield from (f"{node.module}.{alias.name}".removeprefix("userdp.") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("userdp.") for a in node.names if a.name.startswith("userdp."))


def layer(name, layers):
    for height, members in enumerate(layers):
        if name in members:
            return height
    raise AssertionError(f"{name} is in no layer: add it to tests/test_layers.py where it belongs")


@pytest.mark.parametrize("path", [p for p in modules() if p != "__init__.py"])
def test_imports_point_down(path):
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    for imported in imports(path):
        target = imported.split(".")
        assert layer(target[0], LAYERS) <= layer(parts[0], LAYERS), f"{path} imports {imported}"
        if parts[0] == target[0] == "privacy" and len(parts) > 1:
            assert layer(target[1], PRIVACY_LAYERS) <= layer(parts[1], PRIVACY_LAYERS), f"{path} imports {imported}"


def names_used(path):
    tree = ast.parse((SOURCE / path).read_text())
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name)
    }


@pytest.mark.parametrize("path", [p for p in modules() if p not in MAY_DRAW and p != "demo.py"])
def test_randomness_lives_in_one_place(path):
    assert not names_used(path) & (RANDOM_NAMES - {"laplace", "normal"})


@pytest.mark.parametrize("path", ["privacy/plan.py", *(p for p in modules() if p.startswith(("solvers/", "planning")))])
def test_solvers_and_planners_see_neither_rows_nor_noise(path):
    assert not names_used(path) & (RANDOM_NAMES | {"rows", "rows_of", "targets", "noise_source", "SecureNoise"})


def test_the_check_itself_sees_imports():
    assert "privacy.ledger.Ledger" in set(imports("privacy/curator.py"))
    assert layer("data", LAYERS) < layer("privacy", LAYERS)
