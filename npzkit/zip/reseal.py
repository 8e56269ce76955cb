"""A new CRC-32 for a stored member whose bytes were changed where they lie.

Owns the places that repeat it: the local header and the central entry, also
that of a directory which an append has taken the place of.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from npzkit.disk import File
from npzkit.errors import FormatError, StaleArchiveError, UnsupportedError
from npzkit.limits import Limits
from npzkit.source import Source
from npzkit.zip.directory import read_directory
from npzkit.zip.entries import Entry, walk_entries
from npzkit.zip.member import data_offset
from npzkit.zip.records import (
    CENTRAL_ENTRY_SIZE,
    ENTRY_FIELDS,
    FLAG_DESCRIPTOR,
)

__all__ = ["Seals", "check_resealable"]

_LOCAL_CRC32_OFFSET = 14
_ENTRY_CRC32_OFFSET = 16


def check_resealable(entry: Entry) -> None:
    """Raise UnsupportedError where the CRC stands in a third place, behind the data."""
    if entry.flags & FLAG_DESCRIPTOR:
        raise UnsupportedError(
            "the member's CRC-32 stands behind its data, and is not changed there",
            remedy="npzkit.repack(path) writes it in front; or map with mode='c'.",
        )


class Seals:
    """The CRCs of an archive's members, written anew in both places.

    The directory is walked once, and again where the file's size or a header
    says that it is another.

    Parameters
    ----------
    file : File
        The archive, open for writing.
    starts : sequence of int
        As of `read_directory`.
    opened : (int, int)
        Offset and size of the directory that was opened. Behind an append it
        counts no more, but for whoever goes on reading by it.
    """

    def __init__(self, file: File, starts: Sequence[int], opened: tuple[int, int]) -> None:
        self.file = file
        self._starts = starts
        self._opened = opened
        self._opened_places: dict[tuple[int, bytes], int] = {}
        self._size = -1
        self._entries: dict[str, Entry] = {}
        self._places: dict[tuple[int, bytes], int] = {}

    def write(self, source: Source, entry: Entry, crc32: int) -> None:
        """Write a member's CRC into its local header and its entry.

        Parameters
        ----------
        source : Source
            The archive as it is now, to read from.
        entry : Entry
            As the directory listed it when it was mapped.
        crc32 : int
            Of the member's bytes as they are now.

        Raises
        ------
        StaleArchiveError
            The member is no longer listed where it was.
        """
        try:
            now = self._find(source, entry)
            data_offset(source, now)
        except FormatError:
            self._size = -1
            now = self._find(source, entry)
            data_offset(source, now)
        value = struct.pack("<L", crc32)
        self.file.patch(now.header_offset + _LOCAL_CRC32_OFFSET, value)
        self.file.patch(self._places[_identity(now)] + _ENTRY_CRC32_OFFSET, value)
        opened = self._opened_places.get(_identity(entry))
        if opened is not None:
            self.file.patch(opened + _ENTRY_CRC32_OFFSET, value)
        self._entries[entry.name] = now._replace(crc32=crc32)

    def _find(self, source: Source, entry: Entry) -> Entry:
        """Return the member's entry as it is now."""
        if source.size != self._size:
            directory = read_directory(source, starts=self._starts, silent=True, limits=Limits())
            # With a torn end the size says nothing: an append may end there as well.
            self._entries, self._size = dict(directory.entries), directory.end_offset
            start = directory.directory_offset
            data = source.read_at(start, directory.end_offset - start)
            self._places = _find_entries(data, start)
            if start != self._opened[0]:
                self._opened_places = _find_entries(source.read_at(*self._opened), self._opened[0])
        now = self._entries.get(entry.name)
        if now is None or now[:3] + now[5:8] != entry[:3] + entry[5:8]:
            raise StaleArchiveError(
                "the member is no longer where it was mapped",
                key=entry.name,
                remedy="Its changes are in the file, but not listed; open the archive again.",
            )
        return now


def _identity(entry: Entry) -> tuple[int, bytes]:
    """Bytes are a name only together with flags and extra field, which decode them."""
    return entry.flags, entry.raw_name + entry.extra


def _find_entries(data: bytes, offset: int) -> dict[tuple[int, bytes], int]:
    """Return where each entry lies in the file; of equal ones, the last."""
    places = {}
    for begin, _ in walk_entries(data):
        fields = ENTRY_FIELDS.unpack_from(data, begin)
        names_end = begin + CENTRAL_ENTRY_SIZE + sum(fields[6:8])
        places[fields[1], data[begin + CENTRAL_ENTRY_SIZE : names_end]] = offset + begin
    return places
