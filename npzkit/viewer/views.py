"""Which views an array has, and what is shown of it if nothing else was chosen.

Owns that every choice fits the array's shape and dtype: axes, positions, windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from npzkit.display.numbers import COLOUR_COUNTS
from npzkit.display.piecewise import is_numeric
from npzkit.viewer.shown import Shown, Window

VIEWS = {
    "image": "Image", "picture": "Picture", "line": "Line", "table": "Table",
    "histogram": "Histogram",
}  # fmt: skip
"""The views, with their names on the page."""
SCALES = {
    "1-99": "1 % to 99 %", "5-95": "5 % to 95 %", "all": "all values", "around-0": "around 0",
}  # fmt: skip
"""What the colours of an image may range over."""
PARTS = ("magnitude", "phase", "real", "imag")
"""What is drawn of complex numbers."""
TABLE_ROWS, TABLE_COLUMNS = 100, 20
"""Rows and columns on a page of a table."""
_PICTURE_LENGTH = 16
"""Smaller arrays of floats are points in space rather than pictures."""
_EQUAL_RATIO = 8
"""Planes that are longer than this are stretched, so that both axes can be seen."""


def views_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[str]:
    """Return the views of an array, the usual one first.

    Examples
    --------
    >>> views_of((4, 5), np.dtype("f4")), views_of((4,), np.dtype("U3"))
    (['image', 'line', 'table', 'histogram'], ['table'])
    >>> views_of((32, 32, 3), np.dtype("u1"))[:2]
    ['picture', 'image']
    """
    if not is_numeric(dtype) or not shape or 0 in shape:
        return ["table"]
    found = ["line", "table", "histogram"]
    if len(shape) > 1:
        # A plane of one row or column is a line.
        found.insert(1 if 1 in shape[-2:] else 0, "image")
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
    return replace(
        shown, view=view, at=at, down=down, across=across, rows=rows, columns=columns,
        part=part, scale=scale, aspect=aspect,
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
    if shown.view == "histogram":
        drawn = list(range(ndim))
    if shown.view == "picture":
        drawn.append(ndim - 1)
    return [
        slice(None) if axis in drawn else position
        for axis, position in zip(range(ndim), shown.at, strict=True)
    ]
