"""Write the picture and the table of docs/architecture.md from the imports: python docs/architecture.py"""

from __future__ import annotations

import ast
import graphlib
import re
from pathlib import Path

PAGE = Path(__file__).parent / "architecture.md"
SOURCE = Path(__file__).parent.parent / "src" / "userdp"
# The order in which data flows, and beside it what only looks on.
STREET = ("data", "statistics", "engines", "privacy", "solvers", "models", "report", "cli")
BESIDE = ("losses", "domains", "evaluation", "model_selection", "paper", "auditing")


def files(part: str) -> list[Path]:
    """The modules of a package, or the one module."""
    return sorted((SOURCE / part).rglob("*.py")) or [SOURCE / f"{part}.py"]


def imported(part: str) -> set[str]:
    """The other parts that its modules import, loaded by name or not."""
    found = set()
    for path in files(part):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("userdp"):
                names = [node.module] if "." in node.module else [f"userdp.{alias.name}" for alias in node.names]
                found |= {name.split(".")[1] for name in names}
    return (found & {*STREET, *BESIDE}) - {part}


def purpose(part: str) -> str:
    """The first line of its docstring."""
    path = SOURCE / part / "__init__.py"
    text = ast.get_docstring(ast.parse((path if path.exists() else SOURCE / f"{part}.py").read_text())) or ""
    return text.split("\n")[0]


def picture() -> str:
    """Who builds on whom, as a diagram; what follows from other arrows is left out, and bold is the way of the data."""
    uses = {part: imported(part) for part in (*STREET, *BESIDE)}
    below: dict[str, set[str]] = {}
    for part in graphlib.TopologicalSorter(uses).static_order():
        below[part] = uses[part].union(*(below[other] for other in uses[part]))
    lines = ["```mermaid", "flowchart TB", "  table([table]) ==> data"]
    for part in (*STREET, *BESIDE):
        between = uses[part] & {*STREET} if part in STREET else uses[part]
        direct = {other for other in uses[part] if not any(other in below[third] for third in between)}
        lines += [f"  {other} {'==>' if {part, other} <= {*STREET} else '-->'} {part}" for other in sorted(direct)]
    return "\n".join([*lines, "  solvers -. load by name .-> paper", "```"])


def table() -> str:
    """One row per part."""
    rows = ["| part | what it is | imports |", "|---|---|---|"]
    for part in (*STREET, *BESIDE):
        others = ", ".join(sorted(imported(part))) or "nothing"
        rows.append(f"| `{part}` | {purpose(part)} | {others} |")
    return "\n".join(rows)


def page() -> str:
    """The page with what is between its marks made anew."""
    text = PAGE.read_text()
    for mark, made in (("picture", picture()), ("table", table())):
        begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
        text = re.sub(f"{begin}.*?{end}", lambda _, a=begin, b=end, m=made: f"{a}\n{m}\n{b}", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
