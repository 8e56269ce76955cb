"""Which cells of two tables differ, by their values rather than by their texts.

Owns when two values are the same. Knows no widget.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npzkit.display.cells import TablePage

Cells = frozenset[tuple[int, int]]


def differing_cells(first: TablePage, second: TablePage) -> tuple[Cells, Cells]:
    """Return the rows and columns, in each page, of cells that the other has not, or not so."""
    values = [_by_place(first), _by_place(second)]
    found = (
        frozenset(
            (page.rows.index(row), page.columns.index(column))
            for (row, column), value in own.items()
            if (row, column) not in other or not _is_same(value, other[row, column])
        )
        for page, own, other in zip((first, second), values, reversed(values), strict=True)
    )
    return next(found), next(found)


def _by_place(page: TablePage) -> dict[tuple[int, int], Any]:
    """Return the values of a table's cells by their places in the array."""
    return {
        (row, column): _as_python(item)
        for row, items in zip(page.rows, page.values, strict=False)
        for column, item in zip(page.columns, items, strict=False)
    }


def _as_python(item: np.ndarray[Any, Any]) -> Any:
    """Return a value to compare: of text that has no characters, the bytes."""
    try:
        return item.tolist()
    except SystemError:
        return item.tobytes().rstrip(b"\0")


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same; NaN is the same as NaN."""
    # Fields of records may be arrays.
    one, other = (x.tolist() if isinstance(x, np.ndarray) else x for x in (one, other))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - for NaN
