"""Which cells of two tables differ, by their values rather than by their texts.

Owns when two values are the same. Knows no widget.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from npzkit.display.cells import TablePage
from npzkit.viewer.shown import Shown
from npzkit.viewer.sources import ArraySource
from npzkit.viewer.views import items_of

Cells = frozenset[tuple[int, int]]


def differing_cells(
    pages: tuple[TablePage, TablePage],
    sources: tuple[ArraySource, ArraySource],
    shown: tuple[Shown, Shown],
) -> tuple[Cells, Cells]:
    """Return the rows and columns, in each page, of cells that the other has not, or not so."""
    values = [dict(_cells(*each)) for each in zip(pages, sources, shown, strict=True)]
    first, second = (
        frozenset(
            (page.rows.index(row), page.columns.index(column))
            for (row, column), value in own.items()
            if (row, column) not in other or not _is_same(value, other[row, column])
        )
        for page, own, other in zip(pages, values, reversed(values), strict=True)
    )
    return first, second


def _cells(page: TablePage, source: ArraySource, shown: Shown) -> Iterator[tuple[Any, Any]]:
    """Yield the places of a table's cells in the array, with their values."""
    items = items_of(shown, len(source.shape))
    for axis, positions in ((shown.down, page.rows), (shown.across, page.columns)):
        if axis is not None:
            items[axis] = slice(positions.start, positions.stop)
    if not page.cells:
        return
    values = np.asarray(source[tuple(items)])
    if shown.down is not None and shown.across is not None and shown.down > shown.across:
        values = values.T
    names = source.dtype.names if shown.across is None else None
    for row, line in zip(page.rows, values.reshape(len(page.rows), -1), strict=True):
        if names is None:
            cells = _as_python(line)
        else:
            cells = [_as_python(line[names[place]])[0] for place in page.columns]
        yield from (((row, column), cell) for column, cell in zip(page.columns, cells, strict=True))


def _as_python(line: np.ndarray[Any, Any]) -> list[Any]:
    """Return values to compare: of text that has no characters, the bytes."""
    try:
        found: list[Any] = line.tolist()
    except SystemError:
        found = [item.tobytes().rstrip(b"\0") for item in line.view(f"V{line.itemsize}")]
    return found


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same; NaN is the same as NaN."""
    # Fields of records may be arrays.
    one, other = (x.tolist() if isinstance(x, np.ndarray) else x for x in (one, other))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - for NaN
