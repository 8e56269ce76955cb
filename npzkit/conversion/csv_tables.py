"""Arrays as text tables.

Owns which arrays are tables, and how values are written so that they read back as the same.
"""

from __future__ import annotations

import math
from typing import Any, BinaryIO

import numpy as np

from npzkit.display import blocks
from npzkit.display.blocks import PIECE_SIZE
from npzkit.errors import Advice, ConversionError, format_dtype, shown_value
from npzkit.files.progress import Advance
from npzkit.limits import is_backed


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
        nested = [name for name in dtype.names or () if dtype[name].subdtype or dtype[name].names]
        of = f": its field {shown_value(nested[0])} is an array or a record" if nested else ""
        raise ConversionError(
            f"an array of shape {shape} and dtype {format_dtype(dtype, 80)} is not a table{of}",
            key=key, remedy="Write it with " + Advice('format="npy"', "--format npy") + ".",
        )  # fmt: skip


def write_table(array: Any, mask: Any, out: BinaryIO, delimiter: str, advance: Advance) -> None:
    """Write an array that is a table, maybe a lazy one, as text: the names of fields first.

    Numbers are written so that they read back as the same, and what `mask` hides, unless that
    is None, as empty cells. `advance` is called with the
    bytes of the array after some rows.
    """
    if array.dtype.names:
        _write(np.array([array.dtype.names]), out, delimiter)
    if not array.shape:
        _write(_texts(_masked(array, mask, ()).reshape(1)), out, delimiter)
        return
    row_size = max(array.dtype.itemsize * (array.shape[1] if array.ndim == 2 else 1), 1)
    for index in blocks.blocks(array.shape[:1], row_size, size=PIECE_SIZE):
        _write(_texts(_masked(array, mask, index)), out, delimiter)
        advance((index[0].stop - index[0].start) * row_size)


def _write(texts: np.ndarray[Any, Any], out: BinaryIO, delimiter: str) -> None:
    """Write cells, those in quotes that need them (RFC 4180, section 2)."""
    find = np.strings.find
    is_odd = (texts == "") | np.any([find(texts, c) >= 0 for c in (delimiter, *'"\r\n')], axis=0)
    if is_odd.any():
        quoted = np.strings.add(np.strings.add('"', np.strings.replace(texts, '"', '""')), '"')
        texts = np.where(is_odd, quoted, texts)
    np.savetxt(out, texts, "%s", delimiter.replace("%", "%%"), encoding="utf-8")


def _masked(array: Any, mask: Any, index: Any) -> Any:
    return array[index] if mask is None else np.ma.MaskedArray(array[index], mask[index])


def _texts(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return each value as NumPy writes it, which reads back as the same."""
    if values.dtype.names:
        return np.stack([_texts(values[name]) for name in values.dtype.names], axis=-1)
    if isinstance(values, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(values), "", _texts(values.data))
    if values.dtype.kind == "S":
        return np.strings.decode(values, "utf-8", "backslashreplace")
    return values.astype(np.str_)
