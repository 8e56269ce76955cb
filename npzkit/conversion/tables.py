"""Text tables to arrays and back: .csv, .tsv and .txt.

Owns which dtype the columns of a table have, and how the values of an array
are written as text that reads back as the same.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TextIO

import numpy as np

from npzkit.archive.checked_pieces import PIECE_SIZE
from npzkit.errors import ConversionError, NpzkitError
from npzkit.files.locations import open_stream
from npzkit.files.progress import Advance
from npzkit.files.urls import Location
from npzkit.limits import is_backed
from npzkit.reading import blocks

DELIMITERS: dict[str, str | None] = {".csv": ",", ".tsv": "\t", ".txt": None}
"""By a file's suffix; None means any white space."""

_INT = re.compile(r"[+-]?[0-9]{1,20}")
_FLOAT = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE
)
_COMPLEX = re.compile(r"\(?[0-9.+\-einfa]+j\)?", re.IGNORECASE)
_BOOL = re.compile(r"true|false", re.IGNORECASE)
_LEAST, _MOST, _MOST_UNSIGNED = -(2**63), 2**63 - 1, 2**64 - 1


class TableOptions(NamedTuple):
    """How tables are read.

    Attributes
    ----------
    delimiter : str or None
        None takes that of the file's suffix.
    has_header : bool or None
        Whether the first row names the columns. If it is None, the first row
        does if none of its cells is a value, but some cells below are.
    """

    delimiter: str | None = None
    has_header: bool | None = None


def check_delimiter(delimiter: str) -> str:
    """Return a delimiter of tables, or raise ValueError."""
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '\r\n"':
        raise ValueError(f"delimiter must be one character, not {delimiter!r}")
    return delimiter


class _Column:
    """What the cells of a column have in common."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.least = self.most = self.length = 0

    def add(self, cell: str) -> None:
        kind = _kind(cell)
        self.kinds.add(kind)
        if kind == "int":
            value = int(cell)
            self.least, self.most = min(self.least, value), max(self.most, value)
        self.length = max(self.length, len(cell))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrowest that holds every cell."""
        if self.kinds == {"bool"}:
            return np.dtype(bool)
        if self.kinds == {"int"} and self.least >= _LEAST and self.most <= _MOST:
            return np.dtype(np.int64)
        if self.kinds == {"int"} and self.least >= 0 and self.most <= _MOST_UNSIGNED:
            return np.dtype(np.uint64)
        if self.kinds <= {"int", "float", "empty"}:
            return np.dtype(np.float64)
        if self.kinds <= {"int", "float", "complex"}:
            return np.dtype(np.complex128)
        return np.dtype(f"U{self.length}")

    @property
    def converter(self) -> Callable[[str], Any] | None:
        """Functions that read cells that numpy cannot read."""
        if self.dtype.kind == "b":
            return lambda cell: cell.strip().lower() == "true"
        if self.dtype.kind == "c":
            return complex
        if self.dtype.kind == "f" and "empty" in self.kinds:
            return lambda cell: float(cell.strip() or "nan")
        return None


def _kind(cell: str) -> str:
    cell = cell.strip()
    if not cell:
        return "empty"
    for pattern, kind in ((_INT, "int"), (_FLOAT, "float"), (_BOOL, "bool")):
        if pattern.fullmatch(cell):
            return kind
    if _COMPLEX.fullmatch(cell):
        try:
            complex(cell)
        except ValueError:
            return "text"
        return "complex"
    return "text"


def read_table(
    file: str | Location, suffix: str, options: TableOptions, advance: Advance
) -> np.ndarray[Any, Any]:
    """Read a table: columns of one kind give a plain array, others a structured one.

    A header gives a structured array of its names. Lines before the values
    that begin with ``#`` are passed over; an empty cell among numbers is NaN.
    The file is read twice; `advance` is called with each number of bytes.

    Raises
    ------
    ConversionError
        The file is not a table.
    """
    path = str(file)
    delimiter = options.delimiter or DELIMITERS[suffix]
    quote = None if delimiter is None else '"'
    try:
        header, columns, skipped, count = _scan(file, delimiter, options.has_header, advance)
        dtype = _dtype_of(header, columns)
        if not count:
            return np.zeros((0,) if dtype.names else (0, len(columns)), dtype)
        converters: dict[int | str, Callable[[str], Any]] = {
            index: convert for index, c in enumerate(columns) if (convert := c.converter)
        }
        with _open(file) as text:
            lines: Any = _counted(text, advance)
            array: np.ndarray[Any, Any] = np.loadtxt(
                lines, dtype, comments=None, delimiter=delimiter, converters=converters or None,
                skiprows=skipped, ndmin=1 if dtype.names else 2, quotechar=quote,
            )  # fmt: skip
    except UnicodeDecodeError as error:
        raise _no_table(f"it is not UTF-8 ({error.reason})", path) from error
    except NpzkitError as error:
        raise error.locate(path=path) from None
    except (csv.Error, ValueError) as error:
        raise _no_table(str(error), path) from error
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _no_table(reason: str, path: str | None = None, remedy: str | None = None) -> ConversionError:
    return ConversionError(f"the file is not a table: {reason}", path=path, remedy=remedy)


def _open(file: str | Location) -> TextIO:
    return io.TextIOWrapper(open_stream(file), encoding="utf-8-sig", newline="")


def _counted(lines: Iterable[str], advance: Advance) -> Iterator[str]:
    """Yield lines, and count their characters, many lines at a time."""
    size = 0
    for line in lines:
        size += len(line)
        if size >= PIECE_SIZE:
            advance(size)
            size = 0
        yield line
    advance(size)


def _scan(
    file: str | Location, delimiter: str | None, has_header: bool | None, advance: Advance
) -> tuple[list[str] | None, list[_Column], int, int]:
    """Return names or None, the columns, the lines before the values, and the rows."""
    with _open(file) as text:
        lead, lines = _without_lead(_counted(text, advance))
        rows = _rows(lines, delimiter, lead)
        first = next(rows, None)
        if first is None:
            raise _no_table("it has no rows")
        line, cells = first
        columns = [_Column() for _ in cells]
        count = 0
        for number, row in rows:
            if len(row) != len(cells):
                raise _no_table(
                    f"line {number} has {len(row)} columns, and line {line} has {len(cells)}"
                )
            for column, cell in zip(columns, row, strict=True):
                column.add(cell)
            count += 1
    if has_header is None:
        has_values = any(not column.kinds <= {"text", "empty"} for column in columns)
        has_header = has_values and all(_kind(cell) in ("text", "empty") for cell in cells)
    if has_header:
        return _names(cells), columns, line, count
    for column, cell in zip(columns, cells, strict=True):
        column.add(cell)
    return None, columns, lead, count + 1


def _without_lead(file: Iterator[str]) -> tuple[int, Iterator[str]]:
    """Return how many empty lines and comments come first, and the lines after them."""
    lead = 0
    for line in file:
        if line.strip() and not line.startswith("#"):
            return lead, itertools.chain([line], file)
        lead += 1
    return lead, iter(())


def _rows(
    lines: Iterator[str], delimiter: str | None, lead: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not empty: its last line's number, and its cells."""
    if delimiter is None:
        for number, line in enumerate(lines, lead + 1):
            if cells := line.split():
                yield number, cells
        return
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    for cells in reader:
        if cells:
            yield lead + reader.line_num, cells


def _names(cells: list[str]) -> list[str]:
    names = [cell.strip() or f"f{index}" for index, cell in enumerate(cells)]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise _no_table(
            f"two columns are called {NpzkitError.shown(sorted(twice)[0])}",
            remedy="Rename one, or pass header=False if the first row holds values.",
        )
    return names


def _dtype_of(header: list[str] | None, columns: list[_Column]) -> np.dtype[Any]:
    dtypes = [column.dtype for column in columns]
    if header is not None:
        return np.dtype(list(zip(header, dtypes, strict=True)))
    kinds = {dtype.kind for dtype in dtypes}
    if len(kinds) == 1 or kinds <= set("iufc"):
        return np.result_type(*dtypes)
    return np.dtype([(f"f{index}", dtype) for index, dtype in enumerate(dtypes)])


def check_writable(shape: tuple[int, ...], dtype: np.dtype[Any], key: str) -> None:
    """Raise ConversionError for an array that is not a table of plain values."""
    fields = [dtype[name] for name in dtype.names] if dtype.names else [dtype]
    is_plain = all(field.kind != "O" and not field.subdtype and not field.names for field in fields)
    is_plain = is_plain and not any(field.type is np.void for field in fields)
    is_table = is_plain and len(shape) <= (1 if dtype.names else 2)
    if not is_table or not is_backed(shape, math.prod(shape) * dtype.itemsize):
        raise ConversionError(
            f"an array of shape {shape} and dtype {str(dtype)[:80]} is not a table",
            key=key, remedy='Write it with format="npy".',
        )  # fmt: skip


def write_table(
    out: TextIO,
    dtype: np.dtype[Any],
    rows: Iterable[np.ndarray[Any, Any]],
    delimiter: str,
    shown: Callable[[str], str] = str,
) -> None:
    """Write rows of plain values as text, the names of fields first.

    Numbers are written so that they read back as the same. `shown` is called
    with each text before it is written.
    """
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    if dtype.names:
        writer.writerow(map(shown, dtype.names))
    for part in rows:
        for row in _texts(part):
            writer.writerow([shown(cell) if isinstance(cell, str) else cell for cell in row])


def write_array(
    array: Any,
    out: TextIO,
    delimiter: str,
    advance: Advance = lambda size: None,
    shown: Callable[[str], str] = str,
) -> None:
    """Write an array that is a table, maybe a lazy one, some rows at a time; see `write_table`.

    `advance` is called with the bytes of these rows.
    """
    if not array.shape:
        write_table(out, array.dtype, [array[()].reshape(1)], delimiter, shown)
        return
    row_size = max(array.dtype.itemsize * (array.shape[1] if array.ndim == 2 else 1), 1)

    def rows() -> Iterator[np.ndarray[Any, Any]]:
        for index in blocks.blocks(array.shape[:1], row_size, size=PIECE_SIZE):
            yield array[index]
            advance((index[0].stop - index[0].start) * row_size)

    write_table(out, array.dtype, rows(), delimiter, shown)


def _texts(part: np.ndarray[Any, Any]) -> Iterator[Iterable[Any]]:
    if part.dtype.names:
        columns = [_cells(part[name]) for name in part.dtype.names]
        return zip(*columns, strict=True)
    if part.ndim < 2:
        return ([cell] for cell in _cells(part.reshape(-1)))
    return iter(map(_cells, part))


def _cells(values: np.ndarray[Any, Any]) -> list[Any]:
    """Return values as what the csv module writes so that it reads back as the same."""
    if values.dtype.kind == "S":
        return [cell.decode("utf-8", "backslashreplace") for cell in values.tolist()]
    if values.dtype.kind in "biuU" or values.dtype == np.float64:
        return values.tolist()  # type: ignore[no-any-return]
    return [str(cell) for cell in values]
