"""What a page shows, as a value: the link that holds it, and how it fits an array.

Owns the names in a link, which views an array has, and that every choice fits its shape
and dtype: axes, positions, windows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np

from npzkit.display.numbers import COLOUR_COUNTS
from npzkit.display.piecewise import is_numeric

Window = tuple[int, int]
"""The first position, and the one after the last."""

VIEWS = {
    "image": "Image", "picture": "Picture", "line": "Line", "table": "Table",
    "histogram": "Histogram",
}  # fmt: skip
"""The views, with their names on the page."""
SCALES = {
    "1-99": "1 % to 99 %", "5-95": "5 % to 95 %", "all": "min to max", "around-0": "around 0",
}  # fmt: skip
"""What the colours of an image may range over."""
PARTS = ("magnitude", "phase", "real", "imag")
"""What is drawn of complex numbers."""
TABLE_ROWS, TABLE_COLUMNS = 100, 20
"""Rows and columns on a page of a table."""
_PICTURE_LENGTH = 16
"""Smaller arrays of floats are points in space rather than pictures."""
_TABLE_WIDTH = 16
"""Columns of a table that is not taken for an image; it has more rows."""
_EQUAL_RATIO = 8
"""Planes that are longer than this are stretched, so that both axes can be seen."""
_LENGTH = 100_000
"""The most characters of a link: a key has up to 65,535 bytes."""


@dataclass(frozen=True)
class Shown:
    """What a page shows.

    Attributes
    ----------
    archive : int
        The number of the archive, as they were given.
    key : str or None
        None before an array is chosen.
    field : str or None
        A field of a structured array.
    view : str or None
        One of `VIEWS`; None for what suits the array.
    at : tuple of int
        A position for each axis. Those of drawn axes are kept for other views.
    down, across : int or None
        The axes that are drawn.
    rows, columns : (int, int) or None
        The window along these axes; None for all of them.
    part : str
        Of complex numbers: magnitude, phase, real or imag.
    palette : str
        The colours of an image.
    scale : str
        Which values the colours range over, as `SCALES`.
    aspect : str or None
        ``equal`` for square values, ``fill``; None for what suits the shape.
    amount : str
        What a histogram is of: a ``sample`` of a large array, or ``all`` values.
    heights : str
        The scale of a histogram's counts: ``log`` or ``linear``.
    other_archive : int
    other_key : str or None
        The array that is compared; None without a comparison.
    """

    archive: int = 0
    key: str | None = None
    field: str | None = None
    view: str | None = None
    at: tuple[int, ...] = ()
    down: int | None = None
    across: int | None = None
    rows: Window | None = None
    columns: Window | None = None
    part: str = "magnitude"
    palette: str = "viridis"
    scale: str = "1-99"
    aspect: str | None = None
    amount: str = "sample"
    heights: str = "log"
    other_archive: int = 0
    other_key: str | None = None


_DEFAULT = Shown()


def format_link(shown: Shown) -> str:
    """Return what is shown as the query of a URL, without what is usual.

    Examples
    --------
    >>> format_link(Shown(key="a/b", at=(3, 0), rows=(5, 9)))
    'key=a%2Fb&at=3%2C0&rows=5%3A9'
    """
    pairs = []
    for field in fields(Shown):
        value = getattr(shown, field.name)
        if value != getattr(_DEFAULT, field.name):
            pairs.append((field.name, _text(field.name, value)))
    return urlencode(pairs, errors="surrogatepass")


def _text(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return (":" if name in {"rows", "columns"} else ",").join(map(str, value))
    return str(value)


def parse_link(link: str) -> Shown:
    """Return what a link holds: a query, or a complete URL that has one.

    Raises
    ------
    ValueError
        The link is damaged.

    Examples
    --------
    >>> parse_link("http://127.0.0.1:5000/secret/?key=a%2Fb&at=3,0&rows=5:9").at
    (3, 0)
    """
    if len(link) > _LENGTH:
        raise ValueError("the link is too long")
    query = urlsplit(link).query if "://" in link else link.removeprefix("?")
    return shown_of(dict(parse_qsl(query, keep_blank_values=True, errors="surrogatepass")))


def shown_of(given: Mapping[str, str]) -> Shown:
    """Return what the values of a link mean; names that are not known are ignored."""
    found = {}
    for name, text in given.items():
        if name in _PARSERS:
            try:
                found[name] = _PARSERS[name](text)
            except ValueError as error:
                raise ValueError(f"the link is damaged: {name} is {text[:50]!r}") from error
    return Shown(**found)


def _integer(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError("not a position")
    return int(text)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(_integer, text.split(","))) if text else ()


def _window(text: str) -> Window:
    start, stop = map(_integer, text.split(":"))
    return start, stop


def _word(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9-]{1,20}", text):
        raise ValueError("not a word")
    return text


_PARSERS: dict[str, Callable[[str], Any]] = {
    "archive": _integer, "key": str, "field": str, "view": _word, "at": _integers,
    "down": _integer, "across": _integer, "rows": _window, "columns": _window, "part": _word,
    "palette": _word, "scale": _word, "aspect": _word,
    "amount": _word, "heights": _word, "other_archive": _integer,
    "other_key": str,
}  # fmt: skip


# -- how it fits an array -------------------------------------------------------


def views_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[str]:
    """Return the views of an array, the usual one first.

    Examples
    --------
    >>> views_of((4, 5), np.dtype("f4")), views_of((4,), np.dtype("U3"))
    (['image', 'line', 'table', 'histogram'], ['table'])
    >>> views_of((32, 32, 3), np.dtype("u1"))[:2]
    ['picture', 'image']
    """
    if not shape or 0 in shape or not is_numeric(dtype):
        return ["table"]
    found = ["line", "table", "histogram"]
    if len(shape) > 1:
        # A plane of one row or column is a line, and many rows of few numbers are a table.
        found.insert(1 if 1 in shape[-2:] else 0, "image")
        if len(shape) == 2 and 1 < shape[1] <= _TABLE_WIDTH < shape[0]:
            found.sort(key=lambda view: view != "table")
    if len(shape) > 2 and shape[-1] in COLOUR_COUNTS and dtype.kind in "biufV":
        found.insert(0 if _looks_like_picture(shape, dtype) else 1, "picture")
    return found


def _looks_like_picture(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    is_float = dtype.kind in "fV" and len(shape) == 3 and min(shape[:2]) >= _PICTURE_LENGTH
    return dtype == np.uint8 or is_float


def drawn_axes(shown: Shown) -> list[int]:
    """Return the axes that a settled view draws: down first, then across."""
    if shown.view == "line":
        found = [shown.across]
    elif shown.view == "histogram":
        found = []
    else:
        found = [shown.down, shown.across]
    return [axis for axis in found if axis is not None]


def settled(shown: Shown, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Shown:
    """Return what is shown with every choice made, and changed where it does not fit.

    Examples
    --------
    >>> found = settled(Shown(key="x", at=(9,)), (4, 5, 6), np.dtype("f4"))
    >>> found.view, found.at, found.down, found.across
    ('image', (3, 0, 0), 1, 2)
    """
    views = views_of(shape, dtype)
    view = shown.view if shown.view in views else views[0]
    at = tuple(
        min(position, max(length - 1, 0))
        for position, length in zip((*shown.at, *[0] * len(shape)), shape, strict=False)
    )
    down, across = _axes(shown, shape, view)
    part = shown.part if shown.part in PARTS else PARTS[0]
    scale = shown.scale if shown.scale in SCALES else next(iter(SCALES))
    lengths = row_count(shape, down), column_count(shape, dtype, across)
    rows, columns = _fit(shown.rows, lengths[0]), _fit(shown.columns, lengths[1])
    aspect = shown.aspect
    if aspect not in {"equal", "fill"} and down is not None and across is not None:
        aspect = "equal" if max(lengths) <= _EQUAL_RATIO * min(lengths) else "fill"
    amount = shown.amount if view == "histogram" else _DEFAULT.amount
    return replace(
        shown, view=view, at=at, down=down, across=across, rows=rows, columns=columns,
        part=part, scale=scale, aspect=aspect, amount=amount,
    )  # fmt: skip


def row_count(shape: tuple[int, ...], down: int | None) -> int:
    """Return how many rows a view has in all."""
    return 1 if down is None else shape[down]


def column_count(shape: tuple[int, ...], dtype: np.dtype[Any], across: int | None) -> int:
    """Return how many columns a view has in all: fields, if no axis lies across."""
    return len(dtype.names or " ") if across is None else shape[across]


def _axes(shown: Shown, shape: Sequence[int], view: str) -> tuple[int | None, int | None]:
    """Return the axes down and across that a view can draw."""
    count = len(shape) - (view == "picture")
    free = list(range(count))
    if view == "table" and count == 1:
        return 0, None
    if not count or (view == "table" and 0 in shape):
        return (0 if count else None), None
    across = shown.across if shown.across in free else None
    if across is None:
        across = _longest(shape, count) if view == "line" and shown.down is None else count - 1
    if count == 1:
        return None, across
    down = shown.down if shown.down in free and shown.down != across else None
    if down is None:
        down = max(axis for axis in free if axis != across)
    return down, across


def _longest(shape: Sequence[int], count: int) -> int:
    """Return the last axis, unless it has only one position."""
    return next((axis for axis in reversed(range(count)) if shape[axis] > 1), count - 1)


def _fit(window: Window | None, length: int) -> Window | None:
    """Return a window that is not empty, cut to an axis; None for the complete axis."""
    if window is None or not length:
        return None
    start = min(window[0], length - 1)
    stop = min(max(window[1], start + 1), length)
    return None if stop - start == length else (start, stop)


def window_of(window: Window | None, length: int) -> Window:
    """Return the window of an axis, all of it if None was chosen."""
    return (0, length) if window is None else window


def items_of(shown: Shown, ndim: int) -> list[Any]:
    """Return an item per axis: a position, or a slice for the axes that are drawn."""
    drawn = drawn_axes(shown)
    if shown.view == "picture":
        drawn.append(ndim - 1)
    return [
        slice(None) if axis in drawn else position
        for axis, position in zip(range(ndim), shown.at, strict=True)
    ]
