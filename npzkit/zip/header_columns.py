"""The local headers of many members at once, by NumPy.

Owns the fast way to compare local headers with their entries. Members that it does not accept
are left to `npzkit.zip.local_header`, which says what is wrong with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npzkit.zip.entry_columns import Columns, Ints, take_zip64, windows_of
from npzkit.zip.local_header import HEADER_READ, REPEATED
from npzkit.zip.records import LOCAL_HEADER_SIGNATURE, LOCAL_HEADER_SIZE, LOCAL_LAYOUT, SENTINEL_32

_COLUMNS = np.dtype(LOCAL_LAYOUT.columns(*HEADER_READ))


def find_many(
    columns: Columns, rows: Ints, window: np.ndarray[Any, Any], offset: int, least: int
) -> tuple[Ints, Ints]:
    """Find members whose local headers repeat their entries, and their data.

    Parameters
    ----------
    columns : Columns
    rows : numpy.ndarray
        Members whose local headers begin in `window`.
    window : numpy.ndarray of uint8
        Part of the file.
    offset : int
        Where it begins in the file.
    least : int
        Bytes that a member must have, at least 8.

    Returns
    -------
    chosen : numpy.ndarray of int64
        Which of `rows` are plain members (`Columns.is_usual`) that lie
        completely in the window. `find_data` tells what is wrong with others, if
        anything is.
    starts : numpy.ndarray of int64
        Where in the window the data of each of these begins.
    """
    positions = columns.header_offset[rows] - offset
    headers = windows_of(window, f"V{LOCAL_HEADER_SIZE}")
    is_in = positions < len(headers)
    positions[~is_in] = 0
    local = headers[positions].view(_COLUMNS)
    size, name_size = columns.compressed_size[rows], columns.name_size[rows]
    starts = positions + LOCAL_HEADER_SIZE + name_size + local["extra_size"]
    repeated_size = columns.repeated_size[rows]
    chosen = np.flatnonzero(
        is_in
        & columns.is_usual[rows]
        & (size >= least)
        & (local["signature"] == LOCAL_HEADER_SIGNATURE)
        & (local["name_size"] == name_size)
        & (name_size + local["extra_size"] >= repeated_size)
        & (starts + size <= np.minimum(columns.end_offset[rows] - offset, len(window)))
    )
    rows, starts, local = rows[chosen], starts[chosen], local[chosen]
    same = columns.repeats_text(rows, window, positions[chosen] + LOCAL_HEADER_SIZE)
    for field, found in _resolved(local, window, starts).items():
        same &= found == getattr(columns, field)[rows]
    return chosen[same], starts[same]


def _resolved(
    local: np.ndarray[Any, Any], window: np.ndarray[Any, Any], starts: Ints
) -> dict[str, Ints]:
    """Return the columns of `REPEATED`, with the sizes that a zip64 block has."""
    fields: dict[str, Ints] = {field: local[field] for field in REPEATED}
    sizes = ("uncompressed_size", "compressed_size")
    if any((fields[size] == SENTINEL_32).any() for size in sizes):
        large = [fields[size].astype(np.int64) for size in sizes]
        extra_size = local["extra_size"].astype(np.int64)
        take_zip64(window, starts - extra_size, extra_size, large)
        fields.update(zip(sizes, large, strict=True))
    return fields
