"""Pieces of HTML. Everything is escaped where it enters, by `text`; only `Html` is taken as it is."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from userdp.report.record import clean

_MOST_WHOLE = 20  # rows of a table that are all shown at once


class Html(str):
    """Markup that is on the page as it is; all other text is escaped."""


def text(value: object) -> str:
    return value if isinstance(value, Html) else html.escape(clean(value))


def pre(lines: str) -> str:
    return "\n".join(html.escape(clean(line)) for line in lines.split("\n"))


def figure(svg: str, caption: str, wide: bool = False) -> str:
    if not svg:
        return ""
    return f"<figure{' class=wide tabindex=0' if wide else ''}>{svg}<figcaption>{text(caption)}</figcaption></figure>"


def bullets(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{text(item)}</li>" for item in items) + "</ul>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>' for name, value in pairs)
    return f'<div class="scroll" tabindex="0"><table class="facts"><tbody>{rows}</tbody></table></div>' if rows else ""


def table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[int] = (), words: int | None = None
) -> str:
    """A table, which scrolls if it is long: the first column names the row, those in `numbers` are aligned right."""
    kinds = dict.fromkeys(numbers, ' class="number"')
    if words is not None:
        kinds[words] = ' class="words"'
    head = "".join(f'<th scope="col"{kinds.get(k, "")}>{text(name)}</th>' for k, name in enumerate(heads))
    rows = list(rows)
    kind = "wordy" if any(len(str(row[0])) > 14 for row in rows) else "terse"
    body = "".join(
        f'<tr><th scope="row">{text(row[0])}</th>'
        + "".join(f"<td{kinds.get(k, '')}>{text(cell)}</td>" for k, cell in enumerate(row[1:], start=1))
        + "</tr>"
        for row in rows
    )
    whole = f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll{" whole" * (len(rows) <= _MOST_WHOLE)}" tabindex="0">{whole}</div>'


def banner(kind: str, title: str, words: str) -> str:
    return f'<div class="banner {kind}" role="alert"><strong>{text(title)}</strong><p>{text(words)}</p></div>'
