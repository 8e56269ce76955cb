"""A new CRC-32 for a stored member whose bytes were changed where they lie.

Owns the two places that repeat it: the local header and the central entry.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from npzkit.errors import StaleArchiveError, UnsupportedError
from npzkit.limits import Limits
from npzkit.shared_file import SharedFile
from npzkit.source import Source
from npzkit.zip.directory import read_directory
from npzkit.zip.entries import Entry
from npzkit.zip.member import data_offset
from npzkit.zip.records import CENTRAL_ENTRY_SIZE, ENTRY_FIELDS, FLAG_DESCRIPTOR

__all__ = ["check_resealable", "reseal"]

_LOCAL_CRC32_OFFSET = 14
_ENTRY_CRC32_OFFSET = 16


def check_resealable(entry: Entry) -> None:
    """Raise UnsupportedError where the CRC stands in a third place, behind the data."""
    if entry.flags & FLAG_DESCRIPTOR:
        raise UnsupportedError(
            "the member's CRC-32 stands behind its data, and is not changed there",
            remedy="npzkit.repack(path) writes it in front; or map with mode='c'.",
        )


def reseal(
    source: Source, file: SharedFile, entry: Entry, crc32: int, *, starts: Sequence[int] = (0,)
) -> None:
    """Write a member's CRC into its local header and its entry.

    Parameters
    ----------
    source, file
        The archive as it is now, to read from and to write to.
    entry : Entry
        As the directory listed it when it was mapped.
    crc32 : int
        Of the member's bytes as they are now.
    starts : sequence of int
        As of `read_directory`.

    Raises
    ------
    StaleArchiveError
        The member is no longer listed where it was.
    """
    directory = read_directory(source, starts=starts, silent=True, limits=Limits())
    now = directory.entries.get(entry.name)
    if now is None or now[:3] + now[5:8] != entry[:3] + entry[5:8]:
        raise StaleArchiveError(
            "the member is no longer where it was mapped",
            key=entry.name,
            remedy="Its changes are in the file, but not listed; open the archive again.",
        )
    if now.crc32 == crc32:
        return
    data_offset(source, now)
    start = directory.directory_offset
    data = source.read_at(start, directory.end_offset - start)
    value = struct.pack("<L", crc32)
    file.patch(now.header_offset + _LOCAL_CRC32_OFFSET, value)
    file.patch(start + _find_entry(data, now) + _ENTRY_CRC32_OFFSET, value)


def _find_entry(data: bytes, entry: Entry) -> int:
    """Return where a member's entry, the last of its name, lies in the directory.

    Bytes are a name only together with flags and extra field, which say how to
    decode them.
    """
    position = found = 0
    while data.startswith(b"PK\x01\x02", position):
        fields = ENTRY_FIELDS.unpack_from(data, position)
        name_size, extra_size, comment_size = fields[6:9]
        name_end = position + CENTRAL_ENTRY_SIZE + name_size
        extra_end = name_end + extra_size
        names = data[position + CENTRAL_ENTRY_SIZE : extra_end]
        if fields[1] == entry.flags and names == entry.raw_name + entry.extra:
            found = position
        position = extra_end + comment_size
    return found
