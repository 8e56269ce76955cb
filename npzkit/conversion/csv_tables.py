"""Arrays as text tables.

Owns which arrays are tables, and how values are written so that they read back as the same.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from npzkit.errors import ConversionError
from npzkit.files.progress import Advance
from npzkit.limits import is_backed
from npzkit.reading import blocks
from npzkit.reading.blocks import PIECE_SIZE


def check_delimiter(delimiter: str) -> None:
    """Raise ValueError for what is no delimiter of tables."""
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '\r\n"':
        raise ValueError(f"delimiter must be one character, not {delimiter!r}")


def check_is_table(shape: tuple[int, ...], dtype: np.dtype[Any], key: str) -> None:
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


def write_table(array: Any, out: BinaryIO, delimiter: str, advance: Advance) -> None:
    """Write an array that is a table, maybe a lazy one, as text: the names of fields first.

    Numbers are written so that they read back as the same. `advance` is called with the
    bytes of the array after some rows.
    """
    if array.dtype.names:
        out.write(_formatted([array.dtype.names], delimiter))
    if not array.shape:
        out.write(_formatted(_texts(array[()].reshape(1)), delimiter))
        return
    row_size = max(array.dtype.itemsize * (array.shape[1] if array.ndim == 2 else 1), 1)
    for index in blocks.blocks(array.shape[:1], row_size, size=PIECE_SIZE):
        out.write(_formatted(_texts(array[index]), delimiter))
        advance((index[0].stop - index[0].start) * row_size)


def _formatted(rows: Iterable[Iterable[Any]], delimiter: str) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8")


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
