"""How archives and arrays look in a notebook: tables in HTML.

Owns the HTML. Colours are those of the page, light or dark. All text from a
file is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from npzkit.archive.opened_archive import OpenedArchive
from npzkit.archive.summary import info_or_blank
from npzkit.errors import shown_key
from npzkit.members.amounts import format_count, format_size
from npzkit.members.info import ArrayInfo, short_dtype
from npzkit.members.metadata import parse_metadata

__all__ = ["SHOWN_COUNT", "archive_html", "array_html", "members_html"]

SHOWN_COUNT = 100
"""Members of an archive that are shown: the header of each is read."""

_VALUE_LENGTH = 200
"""Characters shown of an attribute."""
_CELL = "padding:0.15em 0.8em;border:0;background:transparent;color:inherit;"
_LINE = "font-family:monospace;color:inherit;overflow-wrap:anywhere;"
_TABLE = "border-collapse:collapse;border:0;margin:0.3em 0;color:inherit;"


def archive_html(archive: OpenedArchive) -> str:
    """Return a table of an archive's members, with its metadata; short if it is closed."""
    title, count = f"NpzFile {archive.source.name!r}", len(archive.entries)
    if not archive.is_open:
        return members_html(f"{title}, closed", (), count, 0, {})
    infos = (info_or_blank(archive, key) for key in archive.keys[:SHOWN_COUNT])
    size = sum(entry.uncompressed_size for entry in archive.entries.values())
    return members_html(title, infos, count, size, parse_metadata(archive.directory.comment))


def members_html(
    title: str, infos: Iterable[ArrayInfo], count: int, size: int, metadata: Mapping[str, Any]
) -> str:
    """Return a table of members.

    Parameters
    ----------
    title : str
    infos : iterable of ArrayInfo
        The members that are shown.
    count, size : int
        Number of all members, and their uncompressed bytes.
    metadata : mapping
    """
    rows = [
        (
            shown_key(info.key),
            "-" if info.shape is None else str(info.shape),
            "-" if info.dtype is None else short_dtype(info.dtype),
            format_size(info.nbytes),
            info.method,
        )
        for info in infos
    ]
    table = _table(("key", "shape", "dtype", "size", "method"), rows, right=3)
    total = f"{format_count(count, 'member')}, {format_size(size)}"
    if count > len(rows):
        total += f"; the first {len(rows)} are shown"
    notes = "".join(_line(f"{key}: {value}") for key, value in _texts(metadata))
    return f"<div>{_line(title)}{table}{_line(total)}{notes}</div>"


def array_html(key: str, facts: Sequence[tuple[str, str]], attrs: Mapping[str, Any]) -> str:
    """Return a table of details of an array and its attributes.

    Parameters
    ----------
    key : str
    facts : sequence of (str, str)
        Name and value.
    attrs : mapping
    """
    rows = [*facts, *_texts(attrs)]
    return f"<div>{_line(f'LazyArray {shown_key(key)}')}{_table((), rows)}</div>"


def _texts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return attributes or metadata as short text."""
    texts = []
    for key, value in list(values.items())[:SHOWN_COUNT]:
        text = value if isinstance(value, str) and value.isprintable() else repr(value)
        if len(text) > _VALUE_LENGTH:
            text = text[: _VALUE_LENGTH - 3] + "..."
        texts.append((shown_key(key), text))
    return texts


def _line(text: str) -> str:
    return f'<div style="{_LINE}">{escape(text)}</div>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: int = -1) -> str:
    """Return a table of cells; `right` is the column that is aligned to the right."""
    lines = []
    if heads:
        lines.append(_row("th", heads, "border-bottom:1px solid currentColor;", right))
    lines.extend(_row("td", row, "", right) for row in rows)
    return f'<table style="{_TABLE}">{"".join(lines)}</table>'


def _row(tag: str, cells: Sequence[str], style: str, right: int) -> str:
    shown = (
        f'<{tag} style="{_CELL}{style}text-align:{"right" if index == right else "left"};'
        f'font-family:monospace;">{escape(cell)}</{tag}>'
        for index, cell in enumerate(cells)
    )
    return f'<tr style="background:transparent;">{"".join(shown)}</tr>'
