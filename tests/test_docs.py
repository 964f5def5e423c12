"""Every Python block in the README and the docs runs, top to bottom, page by page."""

import re
import sys
from pathlib import Path

import pytest

import userdp

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_code_blocks_run(page):
    names = {}
    for block in blocks(page):
        if "import jax" in block:
            pytest.importorskip("jax")
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_api_page_is_up_to_date():
    sys.path.insert(0, str(ROOT / "docs"))
    import api

    assert api.PAGE.read_text() == api.page(), "run python docs/api.py"
    documented = {name for names in api.SECTIONS.values() for name in names}
    assert documented == set(userdp.__all__)


def test_the_floor_plan_is_up_to_date():
    sys.path.insert(0, str(ROOT / "docs"))
    import architecture

    assert architecture.PAGE.read_text() == architecture.page(), "run python docs/architecture.py"
    parts = {
        path.stem for path in architecture.SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert parts - {"__init__", "__main__"} == {*architecture.STREET, *architecture.BESIDE}


def test_one_version_number():
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert cited is not None
    assert cited[1] == userdp.__version__
