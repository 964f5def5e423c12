r"""Write the map in research/docs/paper-notes.md: python research/docs/paper_map.py [the paper's .tex]

Rows are every line and parameter of Algorithms 1 to 3 and what the theorems fix, quoted from the LaTeX source. Code is
found by `Paper:` marks in docstrings ("Alg. 1, line 4 (n_i); Theorem 2.1 (p)", the word "calibrated" where it is not
the printed mode), tests by such marks or by their names (test_alg_1_line_4_radius). Given the source, every quotation
is looked up in its line.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "research" / "docs" / "paper-notes.md"


class Row(NamedTuple):
    """A line of an algorithm, or a theorem; one of its parameters; where it is in the source, quoted; what it is.

    `words` are what names of tests may say for the parameter.
    """

    place: str
    name: str
    source: int
    quoted: str
    words: str = ""


ROWS = [
    Row("Alg. 1, line 1", "p", 284, r"parameters $p, q > 0$"),
    Row("Alg. 1, line 1", "q", 284, r"parameters $p, q > 0$"),
    Row("Alg. 1, line 1", "eta", 284, r"stepsize $\eta$"),
    Row("Alg. 1, line 2", "l", 285, r"l = \lfloor \log_2(n) \rfloor", "phases"),
    Row("Alg. 1, line 2", "C", 285, r"C := 100 \log(20nme^{\eps}/\delta)/\eps", "groups"),
    Row("Alg. 1, line 3", "", 286, r"\For{$i=1,\cdots,l$}"),
    Row("Alg. 1, line 4", "n_i", 288, r"n_i= (1 - (1/2)^q) n /2^{iq}", "users"),
    Row("Alg. 1, line 4", "eta_i", 288, r"\eta_i=\eta/2^{pi}", "step_size"),
    Row("Alg. 1, line 4", "N_i", 288, r"N_i = n_i/C", "users_of_a_group"),
    Row("Alg. 1, line 4", "T_i", 288, r"T_i = N_i m", "steps"),
    Row("Alg. 1, line 4", "tau_i", 288, r"\tau_i = 1000 \eta_i L \sqrt{T_i} \log(ndm)", "radius"),
    Row("Alg. 1, line 5", "", 289, r"Draw disjoint users $D_{i}$ of size $n_i$"),
    Row("Alg. 1, line 6", "", 290, r"Divide $D_i$ into $C$ disjoint subsets"),
    Row("Alg. 1, line 7", "", 291, r"\For{$j=1,\cdots,C$}"),
    Row("Alg. 1, line 8", "", 293, r"average iterate of $T_i$ steps of one-pass projected SGD"),
    Row("Alg. 1, line 10", "s_i", 298, r"s_{i}(\tau_i):=\frac{1}{C}\sum_{j, j'\in [C]}", "score"),
    Row("Alg. 1, line 10", "noise", 300, r"s_{i}(\tau_i)+\Lap(20/\eps)"),
    Row("Alg. 1, line 11", "", 301, r"\ge \frac{4C}{5}"),
    Row("Alg. 1, line 12", "", 303, r"\calS_i = \emptyset"),
    Row("Alg. 1, line 13", "", 304, r"\For{$j=1,\cdots,C$}"),
    Row("Alg. 1, line 14", "h_ij", 306, r"h_{i,j} =\sum_{j' = 1}^{C}"),
    Row("Alg. 1, line 15", "p_ij", 313, r"\frac{h_{i,j} -C/2}{C/6}"),
    Row("Alg. 1, line 18", "", 319, r"\Else"),
    Row("Alg. 1, line 19", "", 321, r"Halt; Output 0"),
    Row("Alg. 1, line 21", "", 323, r"\sum_{\tilde{x}_{i,j} \in \mathcal{S}_i} \tilde{x}_{i,j}"),
    Row("Alg. 1, line 22", "sigma_i", 324, r"\sigma_i = \frac{100 \tau_i \log^2(n/\delta)}{\epsilon C}", "noise"),
    Row("Alg. 1, line 24", "", 326, r"{\bf Output:} $x_l$"),
    Row("Alg. 2, line 1", "", 370, r"Initialize $x_{i-1}^1 \gets x_{i-1}$"),
    Row("Alg. 2, line 2", "", 371, r"\For{$t=1,\cdots,T_i$}"),
    Row("Alg. 2, line 3", "", 373, r"Draw $K_i$ random users"),
    Row("Alg. 2, line 4", "", 374, r"\xi_i \sim \Lap\left(\frac{8}{\eps}\right)"),
    Row("Alg. 2, line 5", "q_t", 375, r"q_t(Z) := \frac{1}{m} \sum_{z \in Z} \nabla f(x_{i-1}^{t}, z)"),
    Row("Alg. 2, line 6", "s_i^t", 378, r"s_{i}^t(\tau):=\frac{1}{K_i}\sum_{Z, Z' \in D_i^t}"),
    Row("Alg. 2, line 6", "noise", 380, r"v_i^t \sim \Lap\left(\frac{16}{\eps}\right)"),
    Row("Alg. 2, line 7", "", 381, r"\If{$\hat{s}_{i}^t(\tau)\ge \hat{\Delta}_i$}"),
    Row("Alg. 2, line 8", "", 383, r"\mathcal{S}_i^t = \emptyset"),
    Row("Alg. 2, line 9", "", 384, r"\For{Each User $Z \in D_i^t$}"),
    Row("Alg. 2, line 10", "h_i^t", 386, r"h_{i}^t(Z) =\sum_{Z' \in D_i^t}"),
    Row("Alg. 2, line 11", "p_i^t", 391, r"\frac{h_{i}^t(Z) - K_i/2}{K_i/6}"),
    Row("Alg. 2, line 12", "g_i^t", 395, r"\sum_{Z \in \mathcal{S}_i^t} \nabla \widehat{F}(x_{i-1}^t, Z)"),
    Row("Alg. 2, line 13", "sigma_i", 396, r"\frac{1000 \tau \sqrt{T_i} \log(nde^{\eps}/\delta)}{\eps n_i}", "noise"),
    Row("Alg. 2, line 14", "", 397, r"Do $1$ iteration of Accelerated Minibatch SGD (AC-SA)"),
    Row("Alg. 2, line 15", "", 400, r"\Else"),
    Row("Alg. 2, line 16", "", 402, r"Halt; Return 0"),
    Row("Alg. 2, line 17", "", 405, r"\textbf{Output} $x_{i-1}^{T_i}$"),
    Row("Alg. 3, line 1", "p", 411, r"parameters $p, q, \lambda > 0$"),
    Row("Alg. 3, line 1", "q", 411, r"parameters $p, q, \lambda > 0$"),
    Row("Alg. 3, line 1", "lambda", 411, r"parameters $p, q, \lambda > 0$"),
    Row("Alg. 3, line 2", "l", 412, r"l = \lfloor \log_2(n) \rfloor", "phases"),
    Row("Alg. 3, line 2", "tau", 412, r"\tau = O(L \log(ndm)/\sqrt{m})", "radius"),
    Row("Alg. 3, line 2", "x_0", 412, r"choose any initial point $x_0 \in \XX$", "start"),
    Row("Alg. 3, line 3", "", 413, r"\For{$i=1,\cdots,l$}"),
    Row("Alg. 3, line 4", "n_i", 415, r"n_i= (1 - (1/2)^q) n /2^{iq}", "users"),
    Row("Alg. 3, line 4", "lambda_i", 415, r"\lambda_i=\lambda \cdot 2^{pi}", "regularizer"),
    Row("Alg. 3, line 4", "T_i", 415, r"T_i = \widetilde{\Theta}(1 + \sqrt{\beta/\lambda_i})", "steps"),
    Row("Alg. 3, line 4", "K_i", 415, r"K_i = 500 \log(n_i^2 m^2 e^{\eps}/\delta)", "batch"),
    Row("Alg. 3, line 5", "", 416, r"Draw disjoint users $D_{i}$"),
    Row("Alg. 3, line 6", "F_i", 417, r"\frac{\lambda_i}{2}\|x - x_{i-1}\|^2"),
    Row("Alg. 3, line 7", "", 418, r"$x_i \gets \texttt{User-Level DP Accelerated Minibatch SGD}"),
    Row("Alg. 3, line 9", "", 421, r"\textbf{Output} $x_l$"),
    Row("Theorem 2.1", "eps", 331, r"\eps \leq 10"),
    Row("Theorem 2.1", "n", 812, r"n^{1-q} \geq (100/(1 -  1/2^q)) \log(n/\delta)/\eps"),
    Row("Theorem 2.1", "smooth", 253, r"is $\beta$-smooth for all"),
    Row("Theorem 2.1", "beta", 817, r"\beta \leq (L/R) \sqrt{d m n \eps}"),
    Row("Theorem 2.1", "p", 812, r"p = J + 3/2", "choices"),
    Row("Theorem 2.1", "eta", 813, r"\eta = R/(L \sqrt{d m n \eps})", "choices"),
    Row("Theorem 2.1", "zeta", 839, r"\zeta := \delta/10e^{\eps}"),
    Row(
        "Theorem 2.1",
        "risk",
        815,
        r"\frac{1}{\sqrt{n m \eps}} + \frac{\sqrt{d \log(1/\delta)}}{\sqrt{n} \eps \sqrt{m}}",
    ),
    Row("Theorem 2.1", "gradients", 817, r"using $nm$ gradient evaluations"),
    Row("Lemma 2.3", "", 350, r"\lesssim \eta L\sqrt{T \log(dT/\zeta)}"),
    Row("Theorem 3.1", "eps", 430, r"\eps \leq 10"),
    Row("Theorem 3.1", "n", 430, r"n^{1-q} > \frac{100 \log(20nmde^{\eps}/\delta)}{\eps (1 - (1/2)^q)}", "users"),
    Row("Theorem 3.1", "zeta", 993, r"\zeta := \delta/(10T_ie^\eps)"),
    Row("Theorem 3.2", "eps", 1042, r"\eps \le 10"),
    Row("Theorem 3.2", "delta", 1042, r"\delta < 1/(mn)"),
    Row("Theorem 3.2", "smooth", 253, r"is $\beta$-smooth for all"),
    Row("Theorem 3.2", "lambda", 1042, r"\lambda = \frac{L}{R}\left(\frac{1}{\sqrt{nm}}"),
    Row("Theorem 3.2", "p", 1042, r"p \geq 3q + 2.5 + \log_n(\sqrt{m})"),
    Row("Theorem 3.2", "risk", 1044, r"LR \cdot \widetilde{O}\left(\frac{1}{\sqrt{mn}}"),
    Row("Theorem 3.2", "gradients", 1047, r"\left((mn)^{1/8} \wedge", "exponents"),
    Row("Lemma 3.5", "", 467, r"\lesssim \frac{L^2 \log(ndm)}{Km}"),
    Row("Remark 3.6", "", 476, r"meta-algorithm of \cite[Section 5.1]{fkt20}"),
    Row("Theorem 4.1", "eps", 1203, r"\eps \le 10"),
    Row("Theorem 4.1", "delta", 1203, r"\delta < 1/(mn)"),
    Row("Theorem 4.1", "n", 1203, r"n^{1-q} > \frac{100 \log(20nmde^{\eps}/\delta)}"),
    Row("Theorem 4.1", "X_r", 1204, r"is convex and $L$-Lipschitz over $\XX_r$", "lipschitz"),
    Row("Theorem 4.1", "r", 1204, r"r=\frac{\sqrt{d}}{\eps n\sqrt{m}}R", "radius"),
    Row("Theorem 4.1", "lambda", 1217, r"\lambda=\frac{1}{\sqrt{mn}}"),
    Row("Theorem 4.1", "beta", 1222, r"\beta\le\frac{L}{R}\eps n\sqrt{m}", "smoothness"),
    Row("Theorem 4.1", "T_i", 1223, r"T_i = (1 + \sqrt{\beta/\lambda_i}) \log(ndm)", "steps"),
    Row("Theorem 4.1", "K_i", 1223, r"K_i = \frac{n_i\eps}{\sqrt{T_i}} + \frac{\log(nmde^\eps/\delta)}{\eps}", "batch"),
    Row("Theorem 4.1", "risk", 1208, r"LR \cdot \widetilde{O}\left(\frac{1}{\sqrt{mn}}"),
    Row("Theorem 4.1", "gradients", 1211, r"mn\left(1 +n^{3/8}m^{1/4}\eps^{1/4}\right)", "exponents"),
    Row("Lemma C.4", "", 1055, r"\exp\left(-T\sqrt{\frac{\lambda}{\beta}}\right) + \frac{V^2}{\lambda T}"),
    Row("Lemma D.1", "", 1186, r"$f_r$ is $\frac{L\sqrt{d}}{r}$-smooth"),
]

_REFERENCE = re.compile(
    r"(Alg\. [123]|(?:Theorem|Lemma|Remark) [\dA-D]\.\d)(?:, lines? (\d+)(?:(-| and )(\d+))?)?(?: \(([^)]*)\))?"
)
_IN_NAMES = re.compile(
    r"alg_([123])_lines?_(\d+)(?:_(to|and)_(\d+))?|(theorem|lemma|remark)s?((?:_(?:and_)?[\da-d]_\d)+)"
)


class Mark(NamedTuple):
    """Something that says what of the paper it is."""

    file: Path
    name: str
    rows: frozenset[Row]
    calibrated: bool = False
    differs: bool = False
    instead: bool = False  # it says only what is done instead


def rows_of(text: str) -> set[Row]:
    """The rows that a reference is about: without parameters all of its lines, but of a theorem none."""
    found = set()
    for place, first, joined, last, names in _REFERENCE.findall(text):
        places = {place} if not first else {f"{place}, line {k}" for k in _lines(first, joined == "-", last)}
        wanted = {name.strip() for name in names.split(",")} if names else set()
        if not first and place.startswith("Alg."):
            continue
        there = {row for row in ROWS if row.place in places}
        narrowed = any(row.name for row in there) and (wanted or place.startswith("Theorem"))
        found |= {row for row in there if row.name in wanted} if narrowed else there
    return found


def _lines(first: str, through: bool, last: str) -> list[int]:
    if not last:
        return [int(first)]
    return list(range(int(first), int(last) + 1)) if through else [int(first), int(last)]


def rows_of_name(name: str) -> set[Row]:
    """The rows that a test's name is about: those that it names; if it names none, all of a line, none of a theorem."""
    found = set()
    for alg, first, joined, last, kind, numbers in _IN_NAMES.findall(name):
        if alg:
            places = {f"Alg. {alg}, line {k}" for k in _lines(first, joined == "to", last)}
        else:
            places = {f"{kind.title()} {a.upper()}.{b}" for a, b in re.findall(r"_([\da-d])_(\d)", numbers)}
        for place in places:
            there = {row for row in ROWS if row.place == place}
            said = {w for row in there for w in (row.name, row.words) if w and f"_{w}_".lower() in f"{name}_".lower()}
            narrowed = said or place.startswith("Theorem")
            found |= {row for row in there if said & {row.name, row.words}} if narrowed else there
    return found


def marks(folder: Path, names: bool = False) -> Iterator[Mark]:
    """The marks of all docstrings in a folder, and of the names of tests."""
    for path in sorted(folder.rglob("*.py")):
        for name, node in _documented(ast.parse(path.read_text())):
            text = ast.get_docstring(node) or ""
            differs = rows_of(_labelled(text, "Differs"))
            if names and name.startswith("test_") and (of_name := rows_of_name(name)):
                yield Mark(path, name, frozenset(of_name))
            for clause in re.split(r"; ", _labelled(text, "Paper")):
                if _REFERENCE.match(clause) and (rows := rows_of(clause)):
                    yield Mark(path, name, frozenset(rows), "calibrated" in clause, "Differs:" in text)
            if differs and not names:
                yield Mark(path, name, frozenset(differs), instead=True)


def _marks() -> tuple[list[Mark], list[Mark]]:
    """Those of the code, and of all tests: some compare with rivals, and stand with these."""
    folders = (ROOT / "tests", ROOT / "research" / "tests")
    return list(marks(ROOT / "src" / "userdp")), [mark for folder in folders for mark in marks(folder, names=True)]


def _documented(tree: ast.Module) -> Iterator[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef]]:
    yield "", tree
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{n.name}", n) for n in node.body if isinstance(n, ast.FunctionDef))


def _labelled(text: str, label: str) -> str:
    """What a docstring says after this label, up to the next one or the end of the paragraph."""
    found = re.search(rf"^{label}: (.*?)(?=\n\n|\n[A-Z]\w+: |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def tables() -> str:
    """One table an algorithm, and one of the theorems."""
    code, tests = _marks()
    lines = []
    for title in ("Alg. 1", "Alg. 2", "Alg. 3", "Theorems"):
        lines += ["", f"### {title}", "| place | source | printed | code | tests |", "|---|---|---|---|---|"]
        for row in ROWS:
            if row.place.startswith(title) or (title == "Theorems" and not row.place.startswith("Alg.")):
                lines.append("| " + " | ".join(_cells(row, code, tests)) + " |")
    return "\n".join(lines).strip()


def _cells(row: Row, code: list[Mark], tests: list[Mark]) -> list[str]:
    where = f"{row.place.removeprefix(row.place.split(', ')[0] + ', ')}{f' ({row.name})' if row.name else ''}"
    printed = row.quoted.replace("|", r"\|")
    found = [m for m in code if row in m.rows]
    kinds = {"": [], "instead: ": [], "calibrated: ": []}
    for m in found:
        kind = "calibrated: " if m.calibrated else "instead: " if m.instead else ""
        kinds[kind].append(f"{_link(m)}{' (differs)' if m.differs and not m.calibrated else ''}")
    said = "; ".join(kind + ", ".join(dict.fromkeys(links)) for kind, links in kinds.items() if links)
    said = said if any(not m.calibrated for m in found) else f"**gap** {said}"
    checked = [m for m in tests if row in m.rows]
    narrow = min((len(m.rows) for m in checked), default=0)
    own = dict.fromkeys(_link(m) for m in checked if len(m.rows) <= max(narrow, 4))
    return [where, str(row.source), f"`{printed}`", said, ", ".join(own) or "**no test**"]


def _link(mark: Mark) -> str:
    shown = mark.name or mark.file.stem
    return f"[{shown}](../../{mark.file.relative_to(ROOT).as_posix()})"


def gaps() -> list[Row]:
    """Rows without code of the printed mode, and without a `Differs:` that names them; and rows without a test."""
    code, tests = _marks()
    marked = frozenset[Row]().union(*(m.rows for m in code if not m.calibrated))
    checked = frozenset[Row]().union(*(m.rows for m in tests))
    return [row for row in ROWS if row not in marked or row not in checked]


def page() -> str:
    """The page with what is between its marks made anew."""
    begin, end = "<!-- map -->", "<!-- end of map -->"
    made = f"{begin}\n{tables()}\n{end}"
    return re.sub(f"{begin}.*?{end}", lambda _: made, PAGE.read_text(), flags=re.DOTALL)


def misquoted(source: Path) -> list[Row]:
    """Rows whose quotation is not in its line of the source."""
    lines = source.read_text().splitlines()
    return [row for row in ROWS if row.quoted not in lines[row.source - 1]]


if __name__ == "__main__":
    PAGE.write_text(page())
    for row in misquoted(Path(sys.argv[1])) if len(sys.argv) > 1 else []:
        print("misquoted:", *row)
    for row in gaps():
        print("gap:", *row)
