"""Many local headers at once, checked against the columns of their entries.

Owns the checks of `npzkit.zip.member` for members that are unremarkable:
stored, plain, and repeating their entries. Of any other it only says that it
is not; `member` says what is wrong with it, if anything is. Knows numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npzkit.codecs.methods import STORED
from npzkit.zip.columns import Bools, Columns, Ints, windows_of
from npzkit.zip.extra import ZIP64_ID
from npzkit.zip.records import LOCAL_HEADER_SIGNATURE, LOCAL_HEADER_SIZE, SENTINEL_32

__all__ = ["find_usual"]

_LOCAL = np.dtype(
    {
        "names": [
            "signature", "flags", "method", "crc32", "compressed_size", "uncompressed_size",
            "name_size", "extra_size",
        ],
        "formats": ["<u4", "<u2", "<u2", "<u4", "<u4", "<u4", "<u2", "<u2"],
        "offsets": [0, 6, 8, 14, 18, 22, 26, 28],
        "itemsize": LOCAL_HEADER_SIZE,
    }
)  # fmt: skip
_SIGNATURE = int.from_bytes(LOCAL_HEADER_SIGNATURE, "little")
_FORCED_ZIP64 = np.dtype("<u2,<u2,<u8,<u8")
"""Identifier, 16, uncompressed and compressed size (section 4.5.3)."""


def find_usual(
    columns: Columns, rows: Ints, window: np.ndarray[Any, Any], offset: int, least: int
) -> tuple[Ints, Ints]:
    """Find members whose local headers repeat their entries, and their data.

    Parameters
    ----------
    columns : Columns
    rows : numpy.ndarray
        Of members whose local headers begin in `window`.
    window : numpy.ndarray of uint8
        Part of the file.
    offset : int
        Where it begins in the file.
    least : int
        Bytes that a member must have, at least 8.

    Returns
    -------
    chosen : numpy.ndarray of int64
        Which of `rows` are stored members that lie in the window whole.
    starts : numpy.ndarray of int64
        Where in the window the data of each of these begins.
    """
    positions = columns.header_offset[rows] - offset
    fixed = windows_of(window, f"V{LOCAL_HEADER_SIZE}")
    is_in = positions < len(fixed)
    positions[~is_in] = 0
    local = fixed[positions].view(_LOCAL)
    size = columns.compressed_size[rows]
    name_size = columns.name_size[rows]
    starts = positions + LOCAL_HEADER_SIZE + name_size + local["extra_size"]
    is_usual = (
        is_in
        & columns.is_usual[rows]
        & (size >= least)
        & (local["signature"] == _SIGNATURE)
        & (local["flags"] == columns.flags[rows])
        & (local["method"] == STORED)
        & (local["crc32"] == columns.crc32[rows])
        & (local["name_size"] == name_size)
        & (starts + size <= np.minimum(columns.end_offset[rows] - offset, len(window)))
    )
    chosen = np.flatnonzero(is_usual)
    same = _has_same_sizes(local[chosen], size[chosen], window, starts[chosen])
    same &= columns.repeats_name(rows[chosen], window, positions[chosen] + LOCAL_HEADER_SIZE)
    chosen = chosen[same]
    return chosen, starts[chosen]


def _has_same_sizes(
    local: np.ndarray[Any, Any], size: Ints, window: np.ndarray[Any, Any], starts: Ints
) -> Bools:
    """Compare both sizes, in a zip64 block too: np.savez forces one on every member."""
    same: Bools = (local["compressed_size"] == size) & (local["uncompressed_size"] == size)
    if same.all():
        return same
    forced = np.flatnonzero(
        ~same
        & (local["compressed_size"] == SENTINEL_32)
        & (local["uncompressed_size"] == SENTINEL_32)
        & (local["extra_size"] == _FORCED_ZIP64.itemsize)
    )
    if len(forced):
        block_starts = starts[forced] - _FORCED_ZIP64.itemsize
        block = windows_of(window, f"V{_FORCED_ZIP64.itemsize}")[block_starts].view(_FORCED_ZIP64)
        expected = size[forced].astype(np.uint64)
        same[forced] = (
            (block["f0"] == ZIP64_ID)
            & (block["f1"] == _FORCED_ZIP64.itemsize - 4)
            & (block["f2"] == expected)
            & (block["f3"] == expected)
        )
    return same
