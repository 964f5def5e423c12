"""The docs stay true and short: code runs, links and names exist, pages keep to their plan and to plain words."""

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import userdp

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "research").glob("*.md")),
    *sorted((ROOT / "research" / "docs").glob("*.md")),
]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # which comes or not by the noise
@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p) and ROOT / "research" not in p.parents], ids=lambda p: p.name
)
def test_code_blocks_run(page):
    names = {}
    for block in blocks(page):
        if "import jax" in block:
            pytest.importorskip("jax")
        exec(compile(block, page.name, "exec"), names)


# The plan of the site: a page more needs its place here, and its reader.
TUTORIAL = {"index", "start"}
HOW_TO = {
    "choosing",
    "columns",
    "estimators",
    "evaluating",
    "intervals",
    "selecting",
    "ledger",
    "publish",
    "scale",
    "custom-losses",
    "known-limits",
}
REFERENCE = {"api", "cli", "inputs"}
EXPLANATION = {
    "explanation",
    "guarantee",
    "neighbours",
    "how-the-default-works",
    "which-solver",
    "unequal-users",
    "paper",
}
REVIEWERS = {"reading-map", "proofs", "audit", "nist-sp-800-226", "security", "architecture", "contributing"}
MEASUREMENTS = {"measurements", "speed", "ablation"}
PLAN = {*TUTORIAL, "guide", *HOW_TO, *REFERENCE, *EXPLANATION, *REVIEWERS, *MEASUREMENTS, "changelog"}


def test_the_pages_are_those_of_the_plan():
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} == PLAN


LIMITS = dict.fromkeys(HOW_TO, 600) | dict.fromkeys(TUTORIAL | {"guide"}, 600) | dict.fromkeys(EXPLANATION, 1000)
LIMITS |= {"README": 450, "inputs": 1300, "nist-sp-800-226": 1200, "audit": 2500}


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_pages_keep_to_their_number_of_words(name):
    """Code does not count, tables do."""
    page = ROOT / "README.md" if name == "README" else ROOT / "docs" / f"{name}.md"
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(text.split()) <= LIMITS[name]


@pytest.mark.parametrize("name", sorted(HOW_TO | {"start"}))
def test_guides_begin_with_what_the_reader_gets_and_an_example(name):
    text = (ROOT / "docs" / f"{name}.md").read_text()
    beginning = text.split("```python")[0]
    assert "```python" in text
    assert re.search(r"\b[Yy]ou\b", beginning)
    assert len(re.sub(r"^```.*?^```", "", beginning, flags=re.MULTILINE | re.DOTALL).split()) < 160


# Words that the field does not use, or that one word of ours stands for, and what to write.
GLOSSARY = {
    r"planted bugs?|verdicts?": "mutants, killed",
    r"told|tells? of": "reported, released, says",
    r"people|persons?|whoever|somebody": "users, anyone",
    r"(un)?hurr(y|ied|ies)": "fast schedule, full schedule",
    r"knots?": "threshold",
    r"yards?|yardsticks?": "lower-bound reference",
    r"clip lengths?": "clip norm",
    r"goes on behind": "resumes after the last recorded release",
    r"made anew": "rebuilt",
    r"far out": "outlying",
    r"nothing but how often": "predicting the base rate, base rate only",
    r"met a bug|tell its authors": "internal error, please report it",
    r"refused in words|in a sentence": "rejected with an explanatory error",
    r"(?<![\w.:\])/-])\.\d+(?!\d*[\w/-])": "a 0 before the point",
}


def against_the_glossary(text):
    """Words of the glossary's left column, with what to write; code between backticks is no prose."""
    text = re.sub(r"^```.*?^```|`[^`\n]+`|<!--.*?-->|\]\([^)]*\)", " ", text, flags=re.MULTILINE | re.DOTALL)
    found = {}
    for words, instead in GLOSSARY.items():
        pattern = words if "\\d" in words else rf"\b(?:{words})\b"
        found |= {match[0]: instead for match in re.finditer(pattern, text, flags=re.IGNORECASE)}
    return found


def test_the_glossary_is_checked():
    assert set(against_the_glossary("It tells of people; a mean of .05, `.5`, [a](x.5) and version 0.5.1")) == {
        "tells of",
        "people",
        ".05",
    }


# Texts that users read.
PLAIN = [page for page in PAGES if ROOT / "research" not in page.parents]


@pytest.mark.parametrize("page", [*PLAIN, *sorted((ROOT / "examples").glob("*.py"))], ids=lambda p: p.name)
def test_plain_words(page):
    assert against_the_glossary(page.read_text()) == {}


SOURCE = ROOT / "src" / "userdp"


def public_names():
    """The public names, and the public classes and functions of the packages that users import."""
    found = {f"userdp.{name}": getattr(userdp, name) for name in {*userdp.__all__, *userdp._MODULES}}
    files = [path for name in userdp._PACKAGES for path in [*SOURCE.glob(f"{name}.py"), *SOURCE.glob(f"{name}/*.py")]]
    for path in files:
        module = importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
        for name, value in vars(module).items():
            made_there = getattr(value, "__module__", None) == module.__name__
            if made_there and not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value)):
                found[f"{module.__name__}.{name}"] = value
    return found


QUOTED = r"""(["'])\w+\1"""  # the value of an option, which is no prose


def docstrings(named):
    """Its docstring and, of a class, those of its public methods and properties."""
    members = vars(named) if inspect.isclass(named) else {}
    shown = [value for name, value in members.items() if not name.startswith("_") and hasattr(value, "__doc__")]
    text = "\n".join(inspect.getdoc(value) or "" for value in [named, *shown])
    return " ".join(re.sub(QUOTED, " ", text).split())


def test_docstrings_of_public_names_have_plain_words():
    """Doctests count: they are read, too."""
    names = public_names()
    assert {"userdp.LogisticRegression", "userdp.model_selection.PrivateSearchCV"} < set(names)
    assert len(names) > 300
    found = {name: against_the_glossary(docstrings(value)) for name, value in names.items()}
    assert {name: words for name, words in found.items() if words} == {}


def messages(path):
    """The texts of a module: errors, warnings, notes, help and reports; a word by itself is a name or a value."""
    tree = list(ast.walk(ast.parse(path.read_text())))
    formats = [node.format_spec for node in tree if isinstance(node, ast.FormattedValue) and node.format_spec]
    no_texts = {id(node) for spec in formats for node in ast.walk(spec)}
    for node in tree:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in no_texts:
            yield node.lineno, "" if node.value.isidentifier() else re.sub(QUOTED, " ", node.value)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_texts_of_the_source_have_plain_words(path):
    found = {line: against_the_glossary(" ".join(text.split())) for line, text in messages(path)}
    assert {line: words for line, words in found.items() if words} == {}


def commands():
    from userdp import cli

    loaded = {name: cli._loaded(name) for name in cli._COMMANDS}
    inner = [f"{name} {each}" for name, command in loaded.items() for each in getattr(command, "commands", ())]
    return ["", *loaded, *inner]


@pytest.mark.parametrize("command", commands(), ids=lambda name: name or "userdp")
def test_help_of_commands_has_plain_words(command):
    from userdp import cli

    wide = {"COLUMNS": "2000", "NO_COLOR": "1", "TERM": "dumb"}  # texts in one line each
    result = CliRunner(env=wide).invoke(cli.app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output
    assert against_the_glossary(result.output) == {}


def headings(page):
    """How links name the page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target, heading in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not heading or heading in headings(file), heading


def prose(page):
    """The lines that are neither code nor tables."""
    fenced = False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    ") and not re.fullmatch(r"\|.*\|", line):
            yield line


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_lines_of_prose_are_short(page):
    assert [line for line in prose(page) if len(line) > 120] == []


SOURCES = [
    path
    for folder in ("src", "tests", "docs", "benchmarks", "examples", "research")
    for path in (ROOT / folder).rglob("*.py")
]


def of_now(page):
    """The page's text; of the changelog without the names that 0.1.0 had (the first column of its table)."""
    text = page.read_text()
    return re.sub(r"^\|[^|]*\|", "|", text, flags=re.MULTILINE) if page.name == "CHANGELOG.md" else text


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page):
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in SOURCES]
    for name in re.findall(r"[\w./-]*\w\.py\b", of_now(page)):
        assert any(file.endswith("/" + name.lstrip("./")) for file in files), name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_modules_and_public_names_that_are_named_exist(page):
    for name in re.findall(r"\buserdp((?:\.\w+)+)", re.sub(r"[\w./-]*/[\w./-]*", " ", of_now(page))):
        found = userdp
        for part in name.split(".")[1:]:
            if not hasattr(found, part):
                importlib.import_module(f"{found.__name__}.{part}")
            found = getattr(found, part)


def test_code_that_the_proofs_name_exists():
    words = set(re.findall(r"\w+", " ".join(path.read_text() + path.stem for path in SOURCES)))
    text = (ROOT / "docs" / "proofs.md").read_text()
    named = re.findall(r"`[\w.]*?(\w+)(?:\([^`]*\))?`", text.replace(".py`", "`"))
    assert {name for name in named if name not in words} == set()


def test_the_reading_map_counts_lines_about_right_and_adds_them_up(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import reading_map

    text = reading_map.PAGE.read_text()
    told, table = reading_map.counted(text), reading_map.counted(reading_map.rows(text))
    assert len(told) > len(table) == 9
    for file, number in told.items():
        lines = reading_map.lines_of(file)
        assert abs(lines - number) <= max(20, lines / 10), f"{file}: {lines}; run python docs/reading_map.py"
    assert reading_map.total(text) == sum(table.values()), "run python docs/reading_map.py"


def listed(page, directive):
    """What the page's toctrees, or autosummaries, name."""
    blocks = re.findall(
        rf"^[`.]+ ?{{?{directive}(?:}}|::)\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line.split("<")[-1].rstrip(">") for line in lines if line and not line.startswith(":")]


def test_every_public_name_is_in_the_reference_once():
    assert sorted(listed(ROOT / "docs" / "api.md", "autosummary")) == sorted(
        [*userdp._MODULES, "PrivateSearchCV", "SelectFeatures", "write_report"]
    )


def test_every_command_is_in_the_reference():
    from userdp import cli

    text = (ROOT / "docs" / "cli.md").read_text()
    assert set(re.findall(r"^\| `userdp (\w+)` \|", text, flags=re.MULTILINE)) == set(cli._COMMANDS)
    (shown,) = re.findall(r"<!-- help: (.*?) -->", text)
    assert {command.split()[0] for command in shown.split(", ")} == set(cli._COMMANDS)


def test_every_page_is_in_one_toctree():
    """Sphinx says so too, but later."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    linked = [name for page in pages for name in listed(page, "toctree")]
    assert sorted([*linked, "index"]) == sorted([*(page.stem for page in pages), "examples/index"])


def test_every_example_is_in_the_gallery():
    examples = {path.name for path in (ROOT / "examples").glob("*.py")}
    order = re.search(
        r"^EXAMPLES = \((.*?)^\)", (ROOT / "docs" / "conf.py").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    assert order is not None
    assert set(re.findall(r'"(.*?)"', order[1])) == examples


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run_as_notebooks(example, monkeypatch, tmp_path):
    """As the cells that the gallery offers for download, with the arguments that a notebook's kernel has."""
    pytest.importorskip("jax" if "jax" in example.stem else "sphinx_gallery")
    from sphinx_gallery.gen_gallery import DEFAULT_GALLERY_CONF
    from sphinx_gallery.notebook import jupyter_notebook
    from sphinx_gallery.py_source_parser import split_code_and_text_blocks

    _, parts = split_code_and_text_blocks(example)
    notebook = jupyter_notebook(parts, dict(DEFAULT_GALLERY_CONF), str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py", "-f", "kernel.json"])
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names = {"__name__": "__main__"}
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells
    for cell in cells:
        exec(compile(cell, example.name, "exec"), names)


def test_the_floor_plan_is_up_to_date():
    sys.path.insert(0, str(ROOT / "docs"))
    import architecture

    assert architecture.PAGE.read_text() == architecture.page(), "run python docs/architecture.py"
    parts = {
        path.stem for path in architecture.SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert parts - {"__init__", "__main__", "_validate"} == {*architecture.STREET, *architecture.BESIDE}


def test_one_version_number():
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert cited is not None
    assert cited[1] == userdp.__version__
