"""How archives and arrays look in a notebook: which facts, and which arrays have a picture.

Owns what is shown. `npzkit.display` owns the HTML, in which all text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from npzkit.errors import (
    ClosedArchiveError,
    NpzkitError,
    StaleArchiveError,
    format_count,
    format_size,
    shown_key,
)
from npzkit.members.info import ArrayInfo, summary_columns
from npzkit.tables import Markup, block, facts_html, line, short_texts, table

_PICTURE_COUNT = 20
"""Arrays that have a picture: parts of each are read."""
_PICTURE_SIZE = 96, 64
"""CSS pixels: width and height."""
_PICTURE_BUDGET = 1 << 20
"""Bytes that are read for a picture."""


def members_html(
    title: str,
    infos: Iterable[ArrayInfo],
    count: int,
    size: int,
    metadata: Mapping[str, Any],
    lazy: Callable[[str], Any] | None = None,
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
    lazy : callable, optional
        Returns the lazy array of a key, for pictures of the first arrays.
    """
    infos = list(infos)
    heads, *rows = map(list, zip(*summary_columns(infos), strict=True))
    if lazy is not None:
        # Beside the key, where a long table is seen first.
        heads.insert(1, "picture")
        for place, (row, info) in enumerate(zip(rows, infos, strict=True)):
            row.insert(1, _drawn(lazy, info) if place < _PICTURE_COUNT else "")
    total = f"{format_count(count, 'member')}, {format_size(size)}"
    if count > len(rows):
        total += f"; the first {len(rows)} are shown"
    notes = [line(f"{key}: {value}") for key, value in short_texts(metadata)]
    return block([line(title), table(heads, rows, right=heads.index("size")), line(total), *notes])


def array_html(
    key: str, facts: Sequence[tuple[str, str]], attrs: Mapping[str, Any], drawn: str = ""
) -> str:
    """Return a table of details of an array and its attributes.

    Parameters
    ----------
    key : str
    facts : sequence of (str, str)
        Name and value.
    attrs : mapping
    drawn : str, optional
        As of `picture`.
    """
    return facts_html(f"LazyArray {shown_key(key)}", [*facts, *short_texts(attrs)], Markup(drawn))


def _drawn(lazy: Callable[[str], Any], info: ArrayInfo) -> str:
    """Return the picture of an array, if it has one; see `picture`."""
    if info.dtype is None or info.dtype.hasobject:
        return ""
    try:
        return picture(lazy(info.key))
    except (StaleArchiveError, ClosedArchiveError):
        raise
    except NpzkitError:
        return "cannot be read"


def picture(array: Any) -> str:
    """Return a small picture of an array as HTML; empty for text and what else has none."""
    from npzkit.display.sampling import reachable
    from npzkit.display.thumbnails import thumbnail

    width, height = _PICTURE_SIZE
    return thumbnail(reachable(array), width=width, height=height, budget=_PICTURE_BUDGET) or ""
