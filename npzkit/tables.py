"""Tables in HTML: of facts, of arrays, of findings.

Owns their looks, in a notebook's cell and elsewhere: colours are those of the page,
light or dark. All text is escaped, and has no character that could control a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from npzkit.errors import printable, shown_key

SHOWN_COUNT = 100
"""Rows that are shown of what may be any number."""

_VALUE_LENGTH = 200
"""Characters shown of an attribute."""
_CELL = "padding:0.15em 0.8em;border:0;background:transparent;color:inherit;"
_LINE = "font-family:monospace;color:inherit;overflow-wrap:anywhere;"
_TABLE = "border-collapse:collapse;border:0;margin:0.3em 0;color:inherit;"


class Markup(str):
    """HTML that npzkit made, and that is not escaped again."""

    __slots__ = ()


def block(parts: Iterable[Markup]) -> str:
    """Return lines and tables as one block."""
    return f"<div>{''.join(parts)}</div>"


def line(text: str) -> Markup:
    """Return a line of text."""
    return Markup(f'<div style="{_LINE}">{escape(printable(text))}</div>')


def lines_html(text: str) -> str:
    """Return each line of a text as one of a block, a hundred at most."""
    lines = text.split("\n")
    if len(lines) > SHOWN_COUNT:
        hidden = len(lines) - SHOWN_COUNT
        lines[SHOWN_COUNT - 2 : -1] = [f"... {hidden + 1:,} more lines"]
    return block(map(line, lines))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: int = -1) -> Markup:
    """Return a table of cells.

    Parameters
    ----------
    heads : sequence of str
        None if it is empty.
    rows : iterable of sequence of str
        Text, or `Markup`.
    right : int
        The column that is aligned to the right.

    Examples
    --------
    >>> "&lt;b&gt;" in table((), [["<b>"]])
    True
    """
    lines = []
    if heads:
        lines.append(_row("th", heads, "border-bottom:1px solid currentColor;", right))
    lines.extend(_row("td", row, "", right) for row in rows)
    return Markup(f'<table style="{_TABLE}">{"".join(lines)}</table>')


def _row(tag: str, cells: Sequence[str], style: str, right: int) -> str:
    shown = (
        f'<{tag} style="{_CELL}{style}text-align:{"right" if index == right else "left"};'
        f'font-family:monospace;">{cell if isinstance(cell, Markup) else escape(printable(cell))}'
        f"</{tag}>"
        for index, cell in enumerate(cells)
    )
    return f'<tr style="background:transparent;">{"".join(shown)}</tr>'


def facts_html(title: str, facts: Iterable[tuple[str, str]]) -> str:
    """Return a title and a table of names and values, without those that are empty."""
    return block([line(title), table((), [fact for fact in facts if fact[1]])])


def short_texts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values of attributes or metadata, a hundred at most, as short text."""
    texts = []
    for key, value in list(values.items())[:SHOWN_COUNT]:
        text = value if isinstance(value, str) and value.isprintable() else repr(value)
        if len(text) > _VALUE_LENGTH:
            text = text[: _VALUE_LENGTH - 3] + "..."
        texts.append((shown_key(key), text))
    return texts
