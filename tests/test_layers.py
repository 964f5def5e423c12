"""Imports point down only, and nothing above the curator touches raw rows or randomness."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import userdp

SOURCE = Path(userdp.__file__).parent

# From the bottom up. A module may import from its own layer and from lower ones.
LAYERS = [
    ["_validate"],
    ["losses", "domains"],
    ["data"],
    ["statistics"],
    ["engines"],
    ["privacy"],
    ["solvers"],
    ["paper"],
    ["evaluation"],
    ["models"],
    ["model_selection"],
    ["report", "auditing"],
    ["cli", "__main__"],
]
# Within a package: what a reader has to trust, from the bottom up.
WITHIN = {
    "privacy": [
        ["accounting", "domination", "noise", "sqlite_file"],
        ["mechanism"],
        ["clip", "vocabulary"],
        ["plan"],
        ["journal", "ledger"],
        ["curator", "statement"],
        ["selection"],
    ],
    "paper": [
        ["neighbours"],
        ["concentration"],
        ["outlier_removal", "paper_outlier_removal"],
        ["mean_plans"],
        ["descent", "paper_theorems", "preconditioning"],
        ["accelerated", "phased_sgd"],
        ["accelerated_paper", "phased_sgd_paper"],
    ],
}
RANDOM_NAMES = {"random", "secrets", "urandom", "default_rng", "SystemRandom", "normal", "laplace"}
# groups: the cap on rows acts within one user and costs no privacy whatever it picks.
# audit: generated users, and the coins that decide which version of them is planted; noise is the shipped one.
MAY_DRAW = {"privacy/noise.py", "data/groups.py", "auditing/trainings.py"}


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
        if parts[0] == target[0] in WITHIN and len(parts) > 1:
            heights = (layer(target[1], WITHIN[parts[0]]), layer(parts[1], WITHIN[parts[0]]))
            assert heights[0] <= heights[1], f"{path} imports {imported}"


def test_nothing_that_is_installed_imports_what_is_not():
    """Rivals and the bench stand in research/, and come by `userdp.register` only."""
    assert [
        path
        for path in modules()
        if "import userdp_research" in (text := (SOURCE / path).read_text()) or "from userdp_research" in text
    ] == []


def test_the_default_loads_nothing_of_the_paper():
    """In a process of its own, from the import to the weights."""
    script = (
        "import sys, numpy as np, userdp\n"
        "X = np.random.default_rng(0).normal(size=(400, 2))\n"
        "model = userdp.LogisticRegression(epsilon=8, delta=1e-5, classes=[0, 1])\n"
        "model.fit(X, (X[:, 0] > 0).astype(int), groups=np.arange(400) // 2)\n"
        "print(*[name for name in sys.modules if name.startswith(('userdp.paper', 'userdp_research'))])"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_default_fit_passes_few_files():
    """By a call profile, of a fit whose modules are loaded: files of which it runs functions. The aim is 20."""
    script = (
        "import sys, numpy as np, userdp\n"
        "X = np.random.default_rng(0).normal(size=(400, 2))\n"
        "seen = set()\n"
        "for look in (None, lambda frame, event, _: seen.add(frame.f_code.co_filename)):\n"
        "    model = userdp.LogisticRegression(epsilon=8, delta=1e-5, classes=[0, 1])\n"
        "    sys.setprofile(look)\n"
        "    model.fit(X, X[:, 0] > 0, groups=np.arange(400) // 2)\n"
        "    sys.setprofile(None)\n"
        "print(*seen, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    files = {path for path in done.stdout.splitlines() if Path(path).is_relative_to(SOURCE)}
    assert any(path.endswith("whitened_clip.py") for path in files)
    assert len(files) <= 40


def test_importing_the_package_loads_nothing_else():
    script = "import sys, userdp; print(*[name for name in sys.modules if name in ('numpy', 'numba', 'sklearn')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_planning_loads_no_compiler_and_no_learning_library():
    """From the command to the table, and for a loss that has to be smoothed."""
    script = (
        "import sys\n"
        "from userdp.cli import app\n"
        "from userdp import losses, plan\n"
        "plan(5000, 10, 5, 1.0, 1e-6, loss=losses.hinge)\n"
        "asked = 'plan --users 5000 --rows-per-user 10 --features 5 --epsilon 1 --json'\n"
        "app(asked.split(), standalone_mode=False)\n"
        "print(*{'numba', 'sklearn', 'pandas', 'polars', 'dp_accounting', 'scipy.stats'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert '"whitened-clip"' in done.stdout
    assert done.stdout.splitlines()[-1].split() == []


def test_public_names_are_the_same_for_people_and_for_type_checkers():
    (block,) = (node for node in ast.parse((SOURCE / "__init__.py").read_text()).body if isinstance(node, ast.If))
    typed = {alias.name: node.module for node in block.body for alias in node.names}
    assert typed == {name: f"userdp.{module}" for name, module in userdp._MODULES.items()}
    assert userdp.__all__ == sorted(userdp.__all__)
    assert set(userdp.__all__) <= set(typed)
    assert len(userdp.__all__) <= 32
    assert all(getattr(userdp, name) is not None for name in typed)
    with pytest.raises(AttributeError, match="no attribute 'nobody'"):
        userdp.nobody  # noqa: B018 - reading it must raise


def test_expert_names_are_in_their_packages_too():
    assert userdp.privacy.Clip is userdp.Clip
    assert userdp.solvers.Problem is userdp.Problem
    assert userdp.statistics.UserMean is userdp.UserMean
    assert userdp.data.UserData is userdp.UserData
    with pytest.raises(AttributeError, match=r"module 'userdp\.privacy' has no attribute 'UserMean'"):
        userdp.privacy.UserMean  # noqa: B018 - reading it must raise


def names_used(path):
    tree = ast.parse((SOURCE / path).read_text())
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name)
    }


@pytest.mark.parametrize("path", [p for p in modules() if p not in MAY_DRAW and p != "cli/demonstration.py"])
def test_randomness_lives_in_one_place(path):
    assert not names_used(path) & (RANDOM_NAMES - {"laplace", "normal"})


SCHEDULES = [path for path in modules() if path.startswith(("solvers/", "paper/"))]
MECHANISMS = [f"paper/{name}.py" for group in WITHIN["paper"][:3] for name in group]


@pytest.mark.parametrize("path", ["privacy/plan.py", *(path for path in SCHEDULES if path not in MECHANISMS)])
def test_solvers_and_planners_see_neither_rows_nor_noise(path):
    assert not names_used(path) & (RANDOM_NAMES | {"rows", "rows_of", "targets", "noise_source", "SecureNoise"})


def test_the_check_itself_sees_imports():
    assert "privacy.ledger.Ledger" in set(imports("privacy/curator.py"))
    assert layer("data", LAYERS) < layer("privacy", LAYERS)


# Lines of installed source that each room may have. What is added beyond is paid for by a deletion; lower them freely.
ROOMS = {
    "auditing": 1_290,
    "cli": 2_050,
    "data": 3_165,
    "engines": 885,
    "losses": 685,
    "evaluation": 1_306,
    "models": 3_620,
    "paper": 3_090,
    "privacy": 3_965,
    "report": 1_325,
    "solvers": 3_290,
    "statistics": 2_450,
    "": 930,  # the package's own modules
}


def test_no_room_has_more_lines_than_its_budget():
    lines = dict.fromkeys(ROOMS, 0)
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0] if path.parent != SOURCE else ""
        lines[room] += len(path.read_text().splitlines())
    assert {room: number for room, number in lines.items() if number > ROOMS[room]} == {}
