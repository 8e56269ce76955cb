"""Small members that lie close together: which are read in one call, and how by columns.

Owns these choices. Arrays share the memory of a `Window`. `Sweep` makes arrays of stored
members in it, half a microsecond for each. Members that are special in any way are left to
`npzkit.reading.member`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.checksum import isal_or_zlib
from npzkit.format.array import shaped
from npzkit.format.descr import AMBIGUOUS
from npzkit.format.header import MAGIC_PREFIX, NpyHeader
from npzkit.reading.member_headers import HEADS_SIZE, parse_plain
from npzkit.reading.small_member import Window
from npzkit.zip.entry_columns import Columns, Ints, windows_of
from npzkit.zip.header_columns import find_many

SPAN_SIZE = 1 << 20
"""Bytes of neighbours read in one call, and kept alive by any array of them."""
GAP_SIZE = 1 << 14
"""Unneeded bytes that are read along rather than making a second call."""

_START = np.dtype("<u8,<u2")
"""Magic and version, then the length of the header's text, in version 1.0."""
_MAGIC = int.from_bytes(MAGIC_PREFIX + b"\x01\x00", "little")

_UNKNOWN = NpyHeader((1, 0), (), False, np.dtype("u1"), 0, -1, False)
"""Of no array: no member has this size."""
_LARGEST_ARRAY = sys.maxsize
"""Bytes of an array, even if it shows each of them many times."""
_MOST_DIMENSIONS = 32
"""Of every NumPy."""


def spans_of(starts: Ints, sizes: Ints) -> Iterator[slice]:
    """Group members, in file order, that lie close together.

    One that is requested under two keys begins a new group, because arrays of one share memory.
    """
    ends = starts + sizes
    is_apart = (starts[1:] - ends[:-1] > GAP_SIZE) | (starts[1:] == starts[:-1])
    borders = [*(np.flatnonzero(is_apart) + 1).tolist(), len(starts)]
    first = 0
    for border in borders:
        while first < border:
            reached = np.searchsorted(ends[first:border], starts[first] + SPAN_SIZE, "right")
            last = first + max(int(reached), 1)
            yield slice(first, last)
            first = last


class Sound(NamedTuple):
    """Members that pass all checks.

    Attributes
    ----------
    chosen : numpy.ndarray of int64
        Which of the rows they are.
    member_starts, starts, ends : numpy.ndarray of int64
        Where in the window each NPY header and its data begin, and where the data end.
    kinds : numpy.ndarray of int64
        Which header each of them has.
    headers, heads : list
        Distinct headers, and their bytes.
    """

    chosen: Ints
    member_starts: Ints
    starts: Ints
    ends: Ints
    kinds: Ints
    headers: list[NpyHeader]
    heads: list[bytes]


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
        self._headers: dict[bytes, NpyHeader] = {}

    def read(
        self, window: Window, rows: Ints, keys: Sequence[str], results: dict[str, Any]
    ) -> Ints:
        """Put the arrays of usual members into `results`.

        Returns
        -------
        numpy.ndarray of int64
            Indices into `rows`, ascending, of the members that were not read.
        """
        found, (array, view, _) = self.find(window, rows), window
        kinds, starts = found.kinds, found.starts
        alignments = np.array([header.dtype.alignment for header in found.headers], np.int64)
        starts = _move_down(view, starts, found.ends, starts % alignments[kinds])
        take = {kind: _taker(array, found.headers[kind]) for kind in set(kinds.tolist())}
        places = zip(kinds.tolist(), starts.tolist(), strict=True)
        shown = map(keys.__getitem__, found.chosen.tolist())
        results.update(zip(shown, [take[kind]((at, ...)) for kind, at in places], strict=True))
        is_left = np.ones(len(rows), np.bool_)
        is_left[found.chosen] = False
        return np.flatnonzero(is_left)

    def find(self, window: Window, rows: Ints) -> Sound:
        """Find usual members that pass all checks."""
        columns, (array, view, offset) = self._columns, window
        chosen, starts = find_many(columns, rows, array, offset, _START.itemsize)
        if self._size_limit is not None:
            is_small = columns.compressed_size[rows[chosen]] <= self._size_limit
            chosen, starts = chosen[is_small], starts[is_small]
        chosen, member_starts, starts = self._find_arrays(array, rows, chosen, starts)
        taken = rows[chosen]
        ends = member_starts + columns.compressed_size[taken]
        heads = _cut_heads(array, member_starts, starts)
        distinct, kinds = _numbered(heads)
        headers = [self._parsed(head) for head in distinct]
        sizes = np.array([min(header.nbytes, len(array) + 1) for header in headers], np.int64)
        is_ambiguous = np.array([header.dtype.char in AMBIGUOUS for header in headers], np.bool_)
        fits = starts + sizes[kinds] == ends
        fits &= ~(is_ambiguous[kinds] & (columns.extra_size[taken] > 0))
        if self._verify:
            spans = zip(member_starts.tolist(), ends.tolist(), strict=True)
            crc32 = isal_or_zlib().crc32
            fits &= columns.crc32[taken] == [crc32(view[start:end]) for start, end in spans]
        return Sound(
            chosen[fits], member_starts[fits], starts[fits], ends[fits], kinds[fits], headers,
            distinct,
        )  # fmt: skip

    def _parsed(self, head: bytes) -> NpyHeader:
        if head not in self._headers:
            self._headers[head] = _parse_usual(head, self._header_limit)
        return self._headers[head]

    def _find_arrays(
        self, array: np.ndarray[Any, Any], rows: Ints, chosen: Ints, starts: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Keep members that begin with a header of version 1.0; find where it ends."""
        head = windows_of(array, f"V{_START.itemsize}")[starts].view(_START)
        sizes = head["f1"].astype(np.int64)
        usual = head["f0"] == _MAGIC
        usual &= sizes <= HEADS_SIZE
        usual &= sizes + _START.itemsize <= self._columns.compressed_size[rows[chosen]]
        starts = starts[usual]
        return chosen[usual], starts, starts + sizes[usual] + _START.itemsize


def _numbered(heads: list[bytes]) -> tuple[list[bytes], Ints]:
    """Return each distinct header, and which one each member has."""
    numbers = dict(zip(dict.fromkeys(heads), itertools.count()))
    return list(numbers), np.fromiter(map(numbers.__getitem__, heads), np.int64, len(heads))


def _move_down(view: memoryview, starts: Ints, ends: Ints, shifts: Ints) -> Ints:
    """Move data that is not aligned, such as np.savez's, over the end of its own NPY header.

    A copy for each array took twice as long, and allocating it as long again.
    Returns where the data begins now.
    """
    moved = np.flatnonzero(shifts)
    columns = [column[moved].tolist() for column in (starts, ends, shifts)]
    for start, end, shift in zip(*columns, strict=True):
        view[start - shift : end - shift] = view[start:end]
    return starts - shifts


_Take = Callable[[tuple[Any, ...]], np.ndarray[Any, Any]]


def _taker(array: np.ndarray[Any, Any], header: NpyHeader) -> _Take:
    """Return what takes the array of a header from ``(at, ...)``, the byte where it begins.

    To take one from an array of all that may begin somewhere takes a third of the time of
    making it. On a 32-bit system, that array may be too large to be described.
    """
    one = shaped(header, array)
    count = len(array) - header.nbytes + 1
    if count * header.nbytes > _LARGEST_ARRAY:
        return lambda index: shaped(header, array[index[0] :])
    return np.ndarray((count, *one.shape), one.dtype, array, 0, (1, *one.strides)).__getitem__


def _cut_heads(array: np.ndarray[Any, Any], starts: Ints, ends: Ints) -> list[bytes]:
    """Return each NPY header: in 20 nanoseconds if all have one size, the usual case."""
    sizes = ends - starts
    if len(sizes) and (sizes == sizes[0]).all():
        heads: list[bytes] = windows_of(array, f"V{sizes[0]}")[starts].tolist()
        return heads
    view = array.data
    return [bytes(view[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def _parse_usual(head: bytes, limit: int | None) -> NpyHeader:
    """Parse a header; `_UNKNOWN` for one that `npzkit.reading.member` has to read."""
    header = parse_plain(head, limit)
    if header is None or not header.nbytes or len(header.shape) >= _MOST_DIMENSIONS:
        return _UNKNOWN
    return header if header.dtype.names is None else _UNKNOWN
