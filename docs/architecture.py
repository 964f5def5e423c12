"""Write the picture and the table of docs/architecture.md from the imports: python docs/architecture.py"""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

PAGE = Path(__file__).parent / "architecture.md"
SOURCE = Path(__file__).parent.parent / "src" / "userdp"
# The order in which data flows, and beside it what only looks on.
STREET = ("data", "vectors", "privacy", "solvers", "models", "report", "cli")
BESIDE = ("losses", "domains", "engines", "baselines", "auditing", "bench")


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
    """The street and who imports whom, as a diagram; what all of the street uses is left to the table."""
    lines = ["```mermaid", "flowchart LR", "  table([table]) --> data"]
    lines += [f"  {one} --> {other}" for one, other in itertools.pairwise(STREET)]
    lines += ["  engines -.-> privacy", "  baselines -.by name.-> solvers", "  auditing -.attacks.-> privacy", "```"]
    return "\n".join(lines)


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
