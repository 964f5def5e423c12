"""How the site is built: `make docs`."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from types import FunctionType
from typing import Any

from sphinx_gallery.sorting import ExplicitOrder

import userdp

project, author = "userdp", "the authors of userdp"
version = release = userdp.__version__
html_title = "userdp"

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.mermaid",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
default_role = "py:obj"
smartquotes = False  # D' is a neighbour of D
maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

# Markdown: links name headings as repositories' hosts do; ```mermaid is a picture there and here.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
myst_fence_as_directive = ["mermaid"]
myst_links_external_new_tab = True
# Drawn when the site is built, by mermaid's own code: no reader's browser asks another host for anything.
mermaid_cmd = shlex.join([sys.executable, "-m", "mermaidx", "--quiet", "--background", "white"])
mermaid_output_format = "svg"

html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_context = {"default_mode": "auto"}
html_sidebars = {"start": [], "changelog": []}
html_theme_options = {
    "logo": {"text": "userdp"},
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_last_updated_fmt = ""
copyright = f"{author}, Apache-2.0"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

# Reference: from the docstrings, one page a name.
autosummary_generate = True
autodoc_typehints = "none"
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
numpydoc_xref_param_type = False


def members(kind: type) -> list[tuple[str, str]]:
    """Public methods and properties of a class that are userdp's own, whichever of its bases they are from."""
    found: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("userdp"):
            found |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    kinds = {property: "property", classmethod: "method", staticmethod: "method", FunctionType: "method"}
    documented = {name: value for name, value in found.items() if type(value) in kinds and inspect.getdoc(value)}
    return [(kinds[type(value)], name) for name, value in documented.items()]


_PUBLIC = {name: getattr(userdp, name) for name in userdp._MODULES}
_PUBLIC |= {name: getattr(userdp.model_selection, name) for name in ("PrivateSearchCV", "SelectFeatures")}
autosummary_context = {"own": {name: members(thing) for name, thing in _PUBLIC.items() if inspect.isclass(thing)}}

# Docstrings are plain text with code in backticks: no |x|, w_ or 2 * 3 in them is reStructuredText's.
_CODE = re.compile(r"(``[^`]+``|`[^`]+`)")
_EXAMPLES = re.compile(r"(^[ ]*>>>.*?(?:\n[ ]*\n|\Z))", flags=re.MULTILINE | re.DOTALL)


def plain_text(app: object, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Escape a docstring's marks, link the pages that it names; before numpydoc, which takes the sections apart."""
    parts = _EXAMPLES.split("\n".join(lines))
    for number in range(0, len(parts), 2):
        texts = _CODE.split(parts[number])
        texts[::2] = map(_marked, texts[::2])
        parts[number] = "".join(texts)
    # Numpydoc escapes names of parameters itself.
    lines[:] = [re.sub(r"^\w[^:]* : ", lambda m: m[0].replace("\\", ""), line) for line in "".join(parts).split("\n")]


def _marked(text: str) -> str:
    text = re.sub(r"[|*]|(?<=\w)_(?!\w)", r"\\\g<0>", text)
    text = re.sub(r"(?<![\w/])(?:docs/([\w-]+)\.md|(examples/\w+)\.py)", lambda m: f":doc:`/{m[1] or m[2]}`", text)
    return re.sub(r"(?<!\S)(Guarantee|Paper|Differs|Proofs?):", r"**\1:**", text)


# Gallery: every example is run, in this order.
EXAMPLES = (
    "flights.py",
    "doctor_visits.py",
    "intervals.py",
    "evaluation.py",
    "selection.py",
    "awkward_shop.py",
    "private_mean.py",
    "tabular_parquet.py",
    "custom_loss_jax.py",
)

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "examples",
    "backreferences_dir": "examples/references",
    "filename_pattern": r"\.py$",
    "within_subsection_order": ExplicitOrder(EXAMPLES),
    "minigallery_sort_order": ExplicitOrder(
        [Path(__file__).parents[1].resolve() / "examples" / name for name in EXAMPLES]
    ),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "image_scrapers": ("matplotlib",),
    "write_computation_times": False,
}
warnings.filterwarnings("ignore", message=".*non-interactive.*")  # plt.show()
warnings.filterwarnings(
    "always", category=userdp.UtilityWarning
)  # in every example anew, without paths of this machine
warnings.formatwarning = lambda message, category, *others, **more: f"{category.__name__}: {message}\n"

# Pages of the repository's top folder are pages of the site, too.
_TOP = {"CHANGELOG": "changelog", "CONTRIBUTING": "contributing", "SECURITY": "security"}


def links_to_top_pages(app: object, name: str, source: list[str]) -> None:
    """A link to ../SECURITY.md leads to the page that includes it, and one to an example to its page in the gallery.

    Pages of research/ are no pages of the site: a link to one brings the file.
    """
    for file, page in _TOP.items():
        source[0] = source[0].replace(f"](../{file}.md", f"]({page}.md")
    source[0] = re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](examples/\1.rst)", source[0])
    source[0] = source[0].replace("](../examples)", "](examples/index.rst)")
    source[0] = re.sub(r"\]\((\.\./research/[\w/-]+\.md)[^)]*\)", r"](path:\1)", source[0])


_HELP = re.compile(r"<!-- help: ([\w, -]+) -->")


def options_of_commands(app: object, name: str, source: list[str]) -> None:
    """At the mark `<!-- help: fit, plan -->` a page shows what `userdp fit --help` and `userdp plan --help` say."""
    source[0] = _HELP.sub(lambda match: "\n".join(map(_help, match[1].split(", "))), source[0])


def _help(command: str) -> str:
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    asked = [sys.executable, "-m", "userdp", *command.split(), "--help"]
    shown = subprocess.run(asked, capture_output=True, text=True, check=True, env=environment).stdout
    lines = "\n".join(line.rstrip() for line in shown.splitlines())
    return f"### userdp {command}\n```text\n{lines}\n```\n"


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", plain_text, priority=100)
    app.connect("source-read", links_to_top_pages)
    app.connect("source-read", options_of_commands)
