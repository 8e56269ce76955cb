"""Small stored members that lie close together, read by columns.

Owns which of them are read in one call, and how their arrays are made: half a
microsecond for each. Local headers are checked by `npzkit.zip.local_header`.
Members that are special in any way are returned, and `npzkit.reading.member`
reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from npzkit.codecs.checksum import crc32
from npzkit.errors import NpzkitError
from npzkit.format.header import MAGIC_PREFIX, NpyHeader, parse_header
from npzkit.reading.shared_read import GAP_SIZE, HEADS_SIZE, SPAN_SIZE, Window
from npzkit.zip.directory_columns import Bools, Columns, Ints, windows_of
from npzkit.zip.local_header import find_many

__all__ = ["Layout", "Sweep", "is_small", "spans_of"]

_START = np.dtype("<u8,<u2")
"""Magic and version, then the length of the header's text, in version 1.0."""
_MAGIC = int.from_bytes(MAGIC_PREFIX + b"\x01\x00", "little")


class Layout(NamedTuple):
    """What every member with the same NPY header has in common."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    nbytes: int
    alignment: int


def is_small(columns: Columns, rows: Ints, limit: int) -> Bools:
    """Whether members are usual ones of at most `limit` bytes."""
    small: Bools = columns.is_usual[rows] & (columns.compressed_size[rows] <= limit)
    return small


def spans_of(columns: Columns, rows: Ints) -> Iterator[slice]:
    """Group members, in file order, that lie close together."""
    starts = columns.header_offset[rows]
    ends = starts + columns.compressed_size[rows]
    borders = [*(np.flatnonzero(starts[1:] - ends[:-1] > GAP_SIZE) + 1).tolist(), len(rows)]
    first = 0
    for border in borders:
        while first < border:
            reached = np.searchsorted(ends[first:border], starts[first] + SPAN_SIZE, "right")
            last = first + max(int(reached), 1)
            yield slice(first, last)
            first = last


class Sweep:
    """Reads spans of one archive and remembers the NPY headers that it met.

    Parameters
    ----------
    columns : Columns
    header_limit, size_limit : int or None
        As in `MemberReader`.
    verify : bool
    """

    def __init__(
        self, columns: Columns, header_limit: int | None, size_limit: int | None, *, verify: bool
    ) -> None:
        self._columns = columns
        self._header_limit = header_limit
        self._size_limit = size_limit
        self._verify = verify
        self._layouts: dict[bytes, Layout | None] = {}

    def read(
        self, window: Window, rows: Ints, keys: Sequence[str], results: dict[str, Any]
    ) -> Ints:
        """Put the arrays of usual members into `results`.

        Returns
        -------
        numpy.ndarray of int64
            Indices into `rows`, ascending, of the members that were not read.
        """
        columns, array = self._columns, window.array
        chosen, starts = find_many(columns, rows, array, window.offset, _START.itemsize)
        # A member that is requested under two keys gets separate memory for each.
        is_new = np.ones(len(rows), np.bool_)
        is_new[1:] = rows[1:] != rows[:-1]
        keep = is_new[chosen]
        if self._size_limit is not None:
            keep &= columns.compressed_size[rows[chosen]] <= self._size_limit
        chosen, starts = chosen[keep], starts[keep]
        chosen, starts, data_starts = self._find_arrays(array, rows, chosen, starts)
        left = self._cut(window, rows, chosen, starts, data_starts, keys, results)
        is_left = np.ones(len(rows), np.bool_)
        is_left[chosen] = False
        is_left[left] = True
        return np.flatnonzero(is_left)

    def _find_arrays(
        self, array: np.ndarray[Any, Any], rows: Ints, chosen: Ints, starts: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Keep members that begin with a header of version 1.0; find where it ends."""
        head = windows_of(array, f"V{_START.itemsize}")[starts].view(_START)
        sizes = head["f1"].astype(np.int64)
        usual = head["f0"] == _MAGIC
        usual &= sizes <= HEADS_SIZE
        usual &= sizes + _START.itemsize <= self._columns.compressed_size[rows[chosen]]
        if self._header_limit is not None:
            usual &= sizes <= self._header_limit
        starts = starts[usual]
        return chosen[usual], starts, starts + sizes[usual] + _START.itemsize

    def _cut(
        self,
        window: Window,
        rows: Ints,
        chosen: Ints,
        starts: Ints,
        data_starts: Ints,
        keys: Sequence[str],
        results: dict[str, Any],
    ) -> list[int]:
        """Compare CRCs and make arrays of members that passed all other checks."""
        columns, taken = self._columns, rows[chosen]
        array, view, verify = window.array, window.view, self._verify
        ends = starts + columns.compressed_size[taken]
        left: list[int] = []
        last: bytes | None = None
        layout: Layout | None = None
        for index, head, start, data_start, end, crc in zip(
            chosen.tolist(),
            _cut_heads(array, starts, data_starts),
            starts.tolist(),
            data_starts.tolist(),
            ends.tolist(),
            columns.crc32[taken].tolist(),
            strict=True,
        ):
            # Comparing with the previous header takes a third of the time of a lookup.
            if head != last:
                last, layout = head, self._layout(head)
                if layout is not None:
                    shape, dtype, order, nbytes, alignment = layout
            if (
                layout is None
                or data_start + nbytes != end
                or (dtype.type is np.void and columns.extra_size[rows[index]])
                or (verify and crc32(view[start:end]) != crc)
            ):
                left.append(index)
                continue
            if data_start % alignment:
                data_start = _move_down(view, data_start, end, alignment)  # noqa: PLW2901
            results[keys[index]] = np.ndarray(shape, dtype, array, data_start, None, order)
        return left

    def _layout(self, head: bytes) -> Layout | None:
        if head not in self._layouts:
            self._layouts[head] = _layout_of(head)
        return self._layouts[head]


def _move_down(view: memoryview, start: int, end: int, alignment: int) -> int:
    """Move data that is not aligned, such as np.savez's, over the end of its own NPY header.

    A copy for each array took twice as long, and allocating it as long again.
    """
    moved = start % alignment
    view[start - moved : end - moved] = view[start:end]
    return start - moved


def _cut_heads(array: np.ndarray[Any, Any], starts: Ints, ends: Ints) -> list[bytes]:
    """Return each NPY header: in 20 nanoseconds if all have one size, the usual case."""
    sizes = ends - starts
    if len(sizes) and (sizes == sizes[0]).all():
        heads: list[bytes] = windows_of(array, f"V{sizes[0]}")[starts].tolist()
        return heads
    view = array.data
    return [bytes(view[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def _layout_of(head: bytes) -> Layout | None:
    """Parse a header; None for one that `npzkit.reading.member` has to read."""
    try:
        header: NpyHeader = parse_header(head)
    except NpzkitError:
        return None
    dtype = header.dtype
    if header.python2 or dtype.hasobject or dtype.names is not None or not header.nbytes:
        return None
    order: Literal["C", "F"] = "F" if header.fortran_order else "C"
    return Layout(header.shape, dtype, order, header.nbytes, dtype.alignment)
