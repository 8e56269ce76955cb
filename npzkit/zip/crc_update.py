"""A new CRC-32 for a stored member whose bytes were changed in place.

Owns the places that repeat it: the local header and the central entry, also in
a directory that an append has replaced.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from npzkit.codecs.methods import STORED
from npzkit.errors import FormatError, NpzkitError, StaleArchiveError, UnsupportedError
from npzkit.files.block_reading import crc32_at
from npzkit.files.disk import File
from npzkit.files.source import Source
from npzkit.limits import Limits
from npzkit.zip.directory import Directory, read_directory
from npzkit.zip.entries import Entry, walk_entries
from npzkit.zip.member_checks import data_offset
from npzkit.zip.records import CENTRAL_ENTRY_SIZE, ENTRY_FIELDS, FLAG_DESCRIPTOR

_CRC32 = struct.Struct("<L")
_LOCAL_CRC32_OFFSET = 14
_ENTRY_CRC32_OFFSET = 16


def check_resealable(entry: Entry) -> None:
    """Raise UnsupportedError if the CRC is also in a third place, after the data."""
    if entry.flags & FLAG_DESCRIPTOR:
        raise UnsupportedError(
            "the member's CRC-32 is stored after its data, where it cannot be updated",
            remedy="npzkit.repack(path) writes it before the data; or map with mode='c'.",
        )


class Seals:
    """Where an archive has the CRCs of its members. The directory is read once,
    and again if the file's size or a header shows that it changed.

    Parameters
    ----------
    file : File
        The archive, open for writing.
    starts : sequence of int
        As of `read_directory`.
    opened : (int, int)
        Offset and size of the directory that was opened. After an append, only
        those who opened the archive before still use it.
    """

    def __init__(self, file: File, starts: Sequence[int], opened: tuple[int, int]) -> None:
        self.file = file
        self._starts = starts
        self._opened = opened
        self._opened_places: dict[tuple[int, bytes], int] = {}
        self._size = -1
        self._entries: dict[str, Entry] = {}
        self._places: dict[tuple[int, bytes], int] = {}

    def find_wrong(self, source: Source, entry: Entry, crc32: int) -> list[int]:
        """Return the offsets at which the file has another CRC for a member.

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
        except FormatError:
            self._size = -1
            now = self._find(source, entry)
        places = [
            now.header_offset + _LOCAL_CRC32_OFFSET,
            self._places[_identity(now)] + _ENTRY_CRC32_OFFSET,
        ]
        opened = self._opened_places.get(_identity(entry))
        if opened is not None:
            places.append(opened + _ENTRY_CRC32_OFFSET)
        value = _CRC32.pack(crc32)
        return [place for place in places if source.read_at(place, len(value)) != value]

    def write(self, places: Sequence[int], crc32: int) -> None:
        """Write a CRC at the offsets that `find_wrong` returned: to the local header first."""
        for place in places:
            self.file.patch(place, _CRC32.pack(crc32))

    def _find(self, source: Source, entry: Entry) -> Entry:
        """Return the member's entry as it is now, which its local header agrees with."""
        if source.size != self._size:
            directory = read_directory(source, starts=self._starts, silent=True, limits=Limits())
            start = directory.directory_offset
            self._places = _find_entries(directory.data, start)
            if start != self._opened[0]:
                self._opened_places = _find_entries(source.read_at(*self._opened), self._opened[0])
            self._entries = dict(directory.entries)
            # Set last, so that an interrupt before causes another complete read. With a
            # torn end the size proves nothing, because an append may end there too.
            self._size = directory.end_offset
        now = self._entries.get(entry.name)
        if now is None or now[:3] + now[5:8] != entry[:3] + entry[5:8]:
            raise StaleArchiveError(
                "the member is no longer where it was mapped",
                key=entry.name,
                remedy="Its changes are in the file, but not listed. Open the archive again.",
            )
        data_offset(source, now, verify=False)
        return now


def current_entries(directory: Directory, source: Source) -> dict[str, Entry]:
    """Return the entries of a directory with the CRCs that it has by now."""
    data = source.read_at(directory.directory_offset, directory.size)
    places, entries = _find_entries(data, 0), dict(directory.entries)
    for name, entry in entries.items():
        place = places.get(_identity(entry))
        if place is not None:
            (crc,) = _CRC32.unpack_from(data, place + _ENTRY_CRC32_OFFSET)
            entries[name] = entry._replace(crc32=crc)
    return entries


class Unflushed(NamedTuple):
    """A stored member whose local header and entry have different CRCs and agree otherwise.

    A killed flush leaves such a member, because it writes one after the other.

    Attributes
    ----------
    entry : Entry
    header_crc32, data_crc32 : int
        What the local header has, and what the data does.
    """

    entry: Entry
    header_crc32: int
    data_crc32: int

    @property
    def is_complete(self) -> bool:
        """Whether the data has one of the two CRCs, so that it has not changed since."""
        return self.data_crc32 in (self.header_crc32, self.entry.crc32)

    def __str__(self) -> str:
        if self.is_complete:
            return "the flush of a map was interrupted: npzkit.repair(path) completes it"
        return (
            "the data has neither of them: it was changed through a map without a flush, or is "
            "damaged"
        )


def find_unsealed(source: Source, entry: Entry, threads: int) -> Unflushed | None:
    """Return what is known about a member that a killed flush may have left; None for any other."""
    if entry.method != STORED or entry.flags & FLAG_DESCRIPTOR:
        return None
    try:
        start = data_offset(source, entry, verify=False)
    except NpzkitError:
        return None
    (crc,) = _CRC32.unpack(source.read_at(entry.header_offset + _LOCAL_CRC32_OFFSET, _CRC32.size))
    if crc == entry.crc32:
        return None
    return Unflushed(entry, crc, crc32_at(source, start, entry.compressed_size, threads))


def seal(source: Source, directory: Directory, unsealed: Unflushed, file: File) -> None:
    """Write the data's CRC in the place where the file has the other one of an `Unflushed`."""
    entry, crc = unsealed.entry, unsealed.data_crc32
    if unsealed.header_crc32 != crc:
        file.patch(entry.header_offset + _LOCAL_CRC32_OFFSET, _CRC32.pack(crc))
    if entry.crc32 != crc:
        start = directory.directory_offset
        places = _find_entries(source.read_at(start, directory.size), start)
        file.patch(places[_identity(entry)] + _ENTRY_CRC32_OFFSET, _CRC32.pack(crc))


def _identity(entry: Entry) -> tuple[int, bytes]:
    """Bytes are a name only together with flags and extra field, which decode them."""
    return entry.flags & 0xFFFF, entry.raw_name + entry.extra


def _find_entries(data: bytes, offset: int) -> dict[tuple[int, bytes], int]:
    """Return where each entry lies in the file; of equal ones, the last."""
    places = {}
    for begin, _ in walk_entries(data):
        fields = ENTRY_FIELDS.unpack_from(data, begin)
        names_end = begin + CENTRAL_ENTRY_SIZE + sum(fields[6:8])
        places[fields[1], data[begin + CENTRAL_ENTRY_SIZE : names_end]] = offset + begin
    return places
