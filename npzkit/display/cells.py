"""Values as the text of table cells, a page at a time.

Owns how long a cell is, which axes or fields are rows and columns, which cells of two pages
differ, and what is never shown: Python objects, because unpickling them runs code. Cells hold
plain text; whoever makes HTML of them escapes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from npzkit.display.sampling import BUDGET, PIECE_SIZE, Box, Proceed, box_of, go_on, read_each
from npzkit.errors import UnsupportedError, printable

_CELL_LENGTH = 80
"""Characters of a cell."""
_CELL_COUNT = 10_000
"""Cells of a page, at most."""
_NESTED_COUNT = 6
"""Items of a nested array or record that a cell shows."""


class TablePage(NamedTuple):
    """A page of values.

    Attributes
    ----------
    rows : range
        The positions of the rows along their axis.
    columns : range
        The positions of the columns, or of the fields, among all of them.
    heads : list of str
        The heading of each column: its position, or the name of its field as `cell_text`
        writes it. It is empty if there is neither.
    cells : list of list of str
        Text of the values, row by row.
    row_count, column_count : int
        Rows and columns on all pages.
    values : sequence of sequence of numpy.ndarray
        An array of one item for each cell.
    """

    rows: range
    columns: range
    heads: list[str]
    cells: list[list[str]]
    row_count: int
    column_count: int
    values: Sequence[Sequence[np.ndarray[Any, Any]]] = ()


def table_page(
    source: Any,
    items: Sequence[Any] | None = None,
    *,
    down: int | None = None,
    across: int | None = None,
    rows: tuple[int, int] = (0, 100),
    columns: tuple[int, int] = (0, 20),
    budget: int = BUDGET,
    proceed: Proceed = go_on,
) -> TablePage:
    """Return a page of an array's values as text.

    A plane has one axis down and one across. A line has one axis down; its columns
    are the fields if it holds records. Without axes, it is a single value.

    Parameters
    ----------
    source : numpy.ndarray or lazy array
    items : sequence, optional
        One item per axis: integers, except for `down` and `across`, whose items are
        ignored. By default those of an array with `down` and `across` only.
    down, across : int, optional
        The axes of rows and columns.
    rows, columns : (int, int)
        The window along these axes, or of the fields. It is cut to what there is, and
        to 10,000 cells.
    budget : int
        Bytes that are read, roughly: with large items, a page has fewer rows, but one
        at least.
    proceed : callable
        Called between reads; it raises an exception to cancel.

    Raises
    ------
    UnsupportedError
        The array holds Python objects.
    ValueError
        `down` is missing or equals `across`, or `items` has no integer for another axis.

    Examples
    --------
    >>> page = table_page(np.arange(6).reshape(2, 3), down=0, across=1, columns=(1, 3))
    >>> page.heads, page.cells, page.column_count
    (['1', '2'], [['1', '2'], ['4', '5']], 3)
    >>> table_page(np.array([(1, "a")], [("n", "i4"), ("s", "U1")]), down=0).cells
    [['1', 'a']]
    """
    dtype = source.dtype
    if dtype.hasobject and dtype.kind != "T":
        raise UnsupportedError(
            "an array of Python objects is not shown, because unpickling runs code of the file"
        )
    given = _items(len(source.shape), items, down, across)
    names = dtype.names if across is None else None
    heads: Sequence[Any] = [""] if across is None else range(source.shape[across])
    heads = heads if names is None else names
    row_count = 1 if down is None else source.shape[down]
    shown = _window(columns, len(heads), _CELL_COUNT)
    lines = _window(rows, row_count, _CELL_COUNT // max(len(shown), 1))
    if across is not None:
        given[across] = slice(shown.start, shown.stop)
    if down is not None:
        given[down] = slice(lines.start, lines.stop)
    box = box_of(source, given)
    # With items of megabytes each, one row must be enough.
    lines = lines[: max(len(lines) * budget // max(box.cost(), 1), 1)]
    wanted = [heads[place] for place in shown]
    values = list(_values(box, down, lines, wanted if names else None, proceed))
    cells = [list(map(_text_of, row)) for row in values]
    texts = list(map(cell_text, wanted))
    return TablePage(lines, shown, texts, cells, row_count, len(heads), values)


def _items(
    ndim: int, items: Sequence[Any] | None, down: int | None, across: int | None
) -> list[Any]:
    """Return one item per axis, after checking that every axis has a use."""
    given = [slice(None)] * ndim if items is None else list(items)
    free = {axis for axis, item in enumerate(given) if isinstance(item, slice)}
    if len(given) != ndim or not free <= {down, across}:
        raise ValueError("a table needs an integer for each axis that is not down or across")
    if across is not None and (down is None or down == across):
        raise ValueError("a table whose columns are an axis needs another axis for its rows")
    return given


def _window(wanted: tuple[int, int], length: int, most: int) -> range:
    start = min(max(wanted[0], 0), length)
    return range(start, max(min(wanted[1], length, start + most), start))


def _values(
    box: Box, down: int | None, rows: range, names: Sequence[str] | None, proceed: Proceed
) -> Iterator[list[np.ndarray[Any, Any]]]:
    """Yield an array of one item for each cell of the rows, which are read a few MiB at a time."""
    step = max(len(rows) * PIECE_SIZE // max(box.cost(), 1), 1)
    for values in read_each(box.source, _row_indices(box, down, rows, step), proceed):
        by_rows = values[np.newaxis] if down is None else np.moveaxis(values, down, 0)
        for row in by_rows.reshape(len(by_rows), -1):
            if names is None:
                yield [row[place : place + 1] for place in range(len(row))]
            else:
                yield [row[name] for name in names]


def _row_indices(box: Box, down: int | None, rows: range, step: int) -> Iterator[tuple[slice, ...]]:
    index = list(box.index())
    for start in range(rows.start, rows.stop, step):
        if down is not None:
            index[down] = slice(start, min(start + step, rows.stop))
        yield tuple(index)


def _text_of(item: Any, place: Any = 0) -> str:
    """Return the text of one item, or of one field."""
    try:
        return cell_text(item[place])
    except (SystemError, ValueError):
        # Text of a forged file, of which NumPy can make no str.
        return "(not valid Unicode)"


def cell_text(value: Any) -> str:
    """Return a value as the text of a cell: in one line, and shortened.

    Examples
    --------
    >>> cell_text(np.float32(0.1)), cell_text(b"a"), cell_text(np.arange(9))
    ('0.1', "b'a'", '[0, 1, 2, 3, 4, 5, ...]')
    >>> len(cell_text("x" * 1000))
    80
    """
    text = _plain_text(value)
    if len(text) > _CELL_LENGTH:
        text = text[: _CELL_LENGTH - 3] + "..."
    return text


def _plain_text(value: Any) -> str:
    if isinstance(value, str):
        return printable(value[: _CELL_LENGTH + 1])
    if isinstance(value, bytes):
        return repr(value[:_CELL_LENGTH])
    if isinstance(value, (np.datetime64, np.timedelta64)):
        # Without a unit it is no date.
        has_unit = np.isnat(value) or np.datetime_data(value.dtype)[0] != "generic"
        return str(value if has_unit else value.view(np.int64))
    if isinstance(value, np.void) and value.dtype.names is not None:
        names = value.dtype.names
        return f"({_joined(value, names[:_NESTED_COUNT], len(names))})"
    if isinstance(value, np.void) and value.dtype.type is np.void:
        return repr(value.tobytes()[:_CELL_LENGTH])
    if isinstance(value, np.ndarray) and value.ndim:
        return f"[{_joined(value, range(min(len(value), _NESTED_COUNT)), len(value))}]"
    return printable(str(value))


def _joined(values: Any, places: Sequence[Any], count: int) -> str:
    texts = [_text_of(values, place) for place in places]
    return ", ".join([*texts, "..."] if count > len(places) else texts)


# -- two pages ------------------------------------------------------------------


def differing_cells(first: TablePage, second: TablePage) -> tuple[frozenset[tuple[int, int]], ...]:
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
    return tuple(found)


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
