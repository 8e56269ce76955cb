"""The NPY headers of members: whether a member is an array, and whether its size fits.

Owns the check that a header and its data fill their member. `HeaderFinder` looks at bytes
that are in memory, and takes only what is usual. For anything else it returns None, and a
stream reads the header, or says what is wrong with it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from npzkit.errors import DAMAGED, NpyFormatError, NpzkitError
from npzkit.format.header import (
    MAGIC_LEN,
    MAGIC_PREFIX,
    PREFIX_SIZE,
    NpyHeader,
    end_of_data,
    header_size,
    parse_header,
)
from npzkit.members.keys import SUFFIX
from npzkit.zip.entries import UNKNOWN_SIZE, Entry
from npzkit.zip.local_header import find_data

if TYPE_CHECKING:
    from npzkit.zip.member_stream import MemberStream

_end_of_member = functools.partial(end_of_data, remedy=DAMAGED)
"""Of a file that is complete: `npzkit.repair` saves no rows of its members."""

BYTES_FOLLOW = "bytes follow the array"
HEADS_SIZE = 512
"""Bytes in which most members have both headers."""

_cached_header_size = functools.lru_cache(256)(header_size)
"""Most archives have few kinds of headers."""


class HeaderFinder:
    """Finds the NPY headers of one archive's members, and remembers the last one.

    Neighbours mostly have the same header. To compare it with the last one takes a
    third of the time of two lookups: its size by its prefix, and its meaning.

    Parameters
    ----------
    limit : int or None
        As in `header_size`.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._last: tuple[bytes, NpyHeader | None] = (b"", None)

    def find(
        self, head: bytes | memoryview, entry: Entry, verify: bool
    ) -> tuple[NpyHeader, int] | None:
        """Return a member's NPY header, and where its data begins, from `head`'s start.

        Parameters
        ----------
        head : bytes-like
            The archive's bytes from the local header on.
        entry : Entry
            Stored, without a data descriptor.
        verify : bool
            As in `find_data`.

        Returns
        -------
        (NpyHeader, int) or None
            None if `head` does not hold both headers, or as in `parse`.
        """
        start = find_data(head, entry, verify)
        if start is None:
            return None
        header = self.parse(head, start, entry)
        return header and (header, start)

    def parse(
        self, data: bytes | bytearray | memoryview, start: int, entry: Entry
    ) -> NpyHeader | None:
        """Parse the NPY header with which a member's bytes begin, at `start` of `data`.

        None if `data` does not hold all of it, and for anything but an array of
        plain values that fills the member.
        """
        raw, header = self._last
        if header is None or data[start : start + len(raw)] != raw:
            header = self._parse_other(data, start, entry)
            if header is None:
                return None
        # Bytes after a short member are the next one's.
        return header if header.data_offset + header.nbytes == entry.uncompressed_size else None

    def _parse_other(
        self, data: bytes | bytearray | memoryview, start: int, entry: Entry
    ) -> NpyHeader | None:
        """Parse a header that is not the last one, and remember it."""
        prefix = bytes(data[start : start + PREFIX_SIZE])
        if min(len(prefix), entry.uncompressed_size) < PREFIX_SIZE or prefix[:6] != MAGIC_PREFIX:
            return None
        try:
            end = start + _cached_header_size(prefix, self._limit)
            if end > len(data) or end - start > entry.uncompressed_size:
                return None
            raw = bytes(data[start:end])
            header = parse_header(raw)
        except NpzkitError:
            # The stream says what is wrong, and where.
            return None
        if header.dtype.hasobject:
            return None
        # One assignment, because threads share an archive.
        self._last = raw, header
        return header


def parse_plain(head: bytes, limit: int | None) -> NpyHeader | None:
    """Parse a header; None unless it is one of plain values, and not Python 2's."""
    try:
        if header_size(head[:PREFIX_SIZE], limit) != len(head):
            return None
        header = parse_header(head)
    except NpzkitError:
        return None
    return None if header.dtype.hasobject or header.python2 else header


def read_stream_header(
    stream: MemberStream, prefix: bytes, entry: Entry, limit: int | None
) -> NpyHeader:
    """Read the header of an array whose first bytes, `prefix`, were read already.

    Errors have the offset of the member's data, as those of the data do.
    """
    try:
        return _read_header(stream, prefix, entry, limit)
    except NpzkitError as error:
        raise error.locate(offset=stream.start) from error.__cause__


def _read_header(stream: MemberStream, prefix: bytes, entry: Entry, limit: int | None) -> NpyHeader:
    if len(prefix) < MAGIC_LEN:
        raise _end_of_member("magic string", MAGIC_LEN, len(prefix))
    size = header_size(prefix, limit)
    # Without a limit, a header that the member cannot hold would be read to its end.
    if entry.uncompressed_size < size:
        raise _end_of_member("array header", size, entry.uncompressed_size)
    header = parse_header(prefix[:size] + stream.read_up_to(max(size - len(prefix), 0)))
    check_nbytes(header, entry)
    return header


def is_array(prefix: bytes, entry: Entry) -> bool:
    """Whether a member is an array: a .npy member must be one, others may be.

    macOS puts what its file system knows of a file beside it, with the file's name.
    """
    must_be = entry.name.endswith(SUFFIX) and not entry.name.startswith("__MACOSX/")
    return must_be or prefix.startswith(MAGIC_PREFIX)


def check_nbytes(header: NpyHeader, entry: Entry) -> None:
    """Check that the member's size fits the header's shape, unless it is a pickle."""
    size = header.data_offset + header.nbytes
    if entry.uncompressed_size in (size, UNKNOWN_SIZE) or header.dtype.hasobject:
        return
    if size > entry.uncompressed_size:
        found = max(entry.uncompressed_size - header.data_offset, 0)
        raise _end_of_member(f"array data of shape {header.shape}", header.nbytes, found)
    raise NpyFormatError(
        BYTES_FOLLOW,
        found=entry.uncompressed_size,
        expected=size,
        remedy="np.load ignores them; save the array again.",
    )
