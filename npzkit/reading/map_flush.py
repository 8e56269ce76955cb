"""The CRC-32s of a stored member, updated after a map changed its bytes.

Owns when they are computed, what they are compared with, who waits meanwhile, and the places
that have them: the local header and the central entry, also in a directory that an append has
replaced, and then the list of the member's chunks. Until that is written it does not fit the
member, so it is not believed. Knows no arrays.

Several may change one member: two maps, two handles, threads, processes and
forked children. Each flushes after its own changes, in any order. So the CRC is
computed, compared with the file and written under a lock: the last flush sees
all changes before it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from npzkit.codecs.checksum import chunk_crc32s, combined_with_last
from npzkit.codecs.coding import CHECKED_SIZE, STORED
from npzkit.errors import (
    REPAIR,
    ArchiveLockedError,
    NotMappableError,
    NpzkitError,
    StaleArchiveError,
)
from npzkit.files.block_reading import chunk_crc32s_at
from npzkit.files.disk import File, duplicated
from npzkit.files.file_objects import identity_of
from npzkit.files.locking import holding, lock_path
from npzkit.files.source import FileSource, Source, open_source
from npzkit.zip.array_index import ChunkLists
from npzkit.zip.chunk_list import ChunkList
from npzkit.zip.directory import Directory, read_directory
from npzkit.zip.entries import Entry, Rows
from npzkit.zip.local_header import data_offset
from npzkit.zip.npzkit_record import extent, places_of
from npzkit.zip.records import (
    CENTRAL_ENTRY_SIZE,
    ENTRY_CRC32_OFFSET,
    FLAG_DESCRIPTOR,
    LOCAL_CRC32_OFFSET,
)  # fmt: skip

Patches = list[tuple[int, bytes]]
"""Bytes that belong in the file, and where."""

_CRC32 = struct.Struct("<L")
_TIMEOUT = 5.0
"""Seconds that a flush waits for a writer, which may be about to list the old CRC."""
_RATE = 200_000_000
"""It waits a second longer per this many bytes of the member, because others flush too."""

_held = threading.local()
"""The files that this thread has locked: a map may be dropped while another one is flushed."""


class MapFlush:
    """Writes the CRCs of one archive's members that are mapped for writing.

    Parameters
    ----------
    source : Source
    starts : sequence of int
        As of `read_directory`.
    opened : Directory
        As it was opened.
    flushed : set of str
        Takes the name of each member that was flushed: its CRC may be another.

    Attributes
    ----------
    descriptor : Descriptor
        Of the archive, open for writing as long as the object exists.
    """

    def __init__(
        self, source: Source, starts: Sequence[int], opened: Directory, flushed: set[str]
    ) -> None:
        self._file = _open_for_writing(cast(FileSource, source))
        self.descriptor = self._file.descriptor
        self._starts, self._opened, self._flushed = starts, opened, flushed
        self._checked_path, self._path = source.path, path_of(source)
        self._places: _Places | None = None
        # The CRC of each member when it was flushed last, by its name.
        self._last: dict[str, int] = {}
        self._lock = threading.RLock()
        self._process = os.getpid()

    def flush(self, entry: Entry, data: memoryview, begin: int, end: int) -> None:
        """Write the CRC-32s of a member's bytes unless they are in the file already.

        Parameters
        ----------
        entry : Entry
            As the directory listed it when the member was mapped.
        data : memoryview
            The member's bytes.
        begin, end : int
            The range of them that may have changed.

        Raises
        ------
        ArchiveLockedError
            A writer has the archive, and the CRC is another.
        StaleArchiveError
            The member was changed, and is no longer listed where it was, or
            another file took the place of the one that is mapped.
        """
        last = self._last.get(entry.name, entry.crc32)
        try:
            crc, wrong = self._flush(entry, data, begin, end)
        except StaleArchiveError:
            if _crc32_of(chunk_crc32s(data, CHECKED_SIZE), entry) == last:
                return
            raise
        finally:
            self._flushed.add(entry.name)
        # Another map may have written the CRC of changes that were made by this one.
        if wrong or crc != last:
            _check_same(self._checked_path, self.descriptor)
            self._last[entry.name] = crc

    def _flush(self, entry: Entry, *changed: Any) -> tuple[int, Patches]:
        """Return the CRC-32 of a member's bytes, and what the file lacked."""
        try:
            return self._write(0.0, entry, *changed)
        except ArchiveLockedError:
            # A writer may work for hours, and need not be waited for if nothing changes.
            crc, wrong = self._compare(entry, *changed)
        return self._write(_TIMEOUT, entry, *changed) if wrong else (crc, wrong)

    def _write(self, timeout: float, entry: Entry, *changed: Any) -> tuple[int, Patches]:
        with self._alone(timeout + entry.uncompressed_size / _RATE):
            crc, wrong = self._compare(entry, *changed)
            for patch in wrong:
                self._file.patch(*patch)
        return crc, wrong

    def _compare(self, entry: Entry, *changed: Any) -> tuple[int, Patches]:
        """Return the CRC-32 of a member's bytes, and what the file lacks."""
        places = self._places
        if places is None or not places.are_kept(entry, self._file.size):
            # One of its own, because maps may be dropped, and flushed, at any instant.
            source = FileSource(self.descriptor, handle=self.descriptor, owned=True)
            now = read_directory(source, starts=self._starts, silent=True)
            self._places = places = _Places(source, now, self._opened)
        return places.compare(entry, *changed)

    def fill_holes(self, offset: int, size: int) -> None:
        """Reserve room on disk for bytes that may be written through a map."""
        if self._file.has_holes(offset, size):
            with self._alone(_TIMEOUT):
                self._file.fill_holes(offset, size)

    @contextlib.contextmanager
    def _alone(self, timeout: float) -> Iterator[None]:
        """Keep writers out, and all others that flush maps of the file."""
        # Inode and device: which file it is, whatever its contents are.
        node = identity_of(os.fstat(self.descriptor))[-2:]
        held = _held.__dict__.setdefault("files", set())
        if node in held:
            yield
            return
        # A forked child has no other threads, but may have inherited a locked lock.
        alone = self._lock if os.getpid() == self._process else contextlib.nullcontext()
        with alone, self._lock_file(timeout):
            held.add(node)
            try:
                yield
            finally:
                held.discard(node)

    def _lock_file(self, timeout: float) -> contextlib.AbstractContextManager[Any]:
        """Lock the file by its path.

        A lock by the descriptor does not keep out threads and forked children, which share
        it. It is used only if the path leads elsewhere.
        """
        try:
            if self._path is not None:
                return lock_path(self._path, timeout, self.descriptor)
        except ArchiveLockedError:
            raise
        except OSError:
            pass
        return holding(self.descriptor, self._path, timeout)


# -- where it is written ------------------------------------------------------


class _Places:
    """Where an archive has the CRCs of its members.

    Parameters
    ----------
    source : Source
        What the archive is read from.
    directory : Directory
        As it is now.
    opened : Directory
        That of the archive when it was opened. After an append, only those who opened the
        archive before still use it.
    repairs : bool, default False
        Whether what a killed flush left is completed.
    """

    def __init__(
        self, source: Source, directory: Directory, opened: Directory, *, repairs: bool = False
    ) -> None:
        self._source, self._directory, self._repairs = source, directory, repairs
        self.lists = ChunkLists(source, directory)
        found = {directory.directory_offset: directory}
        if directory.far_copy is not None:
            found[directory.far_copy[0]] = directory
        found.setdefault(opened.directory_offset, opened)
        self._directories = [(start, one.data, one.places()) for start, one in found.items()]

    def are_kept(self, entry: Entry, size: int) -> bool:
        """Return whether a file of this size still ends with the directory that lists an entry."""
        # With a torn end the size proves nothing, because an append may end there too.
        is_last = size == self._directory.end_offset
        return is_last and any(self._listed(entry, *self._directories[0]))

    def compare(self, entry: Entry, data: memoryview, begin: int, end: int) -> tuple[int, Patches]:
        """Return the CRC-32 of a member's bytes, and what the file lacks.

        Raises
        ------
        StaleArchiveError
            The member is no longer listed where it was.
        """
        now = self._directory.entries.get(entry.name)
        if now is None or now[:3] + now[5:8] != entry[:3] + entry[5:8]:
            raise StaleArchiveError(
                "the member is no longer where it was mapped",
                key=entry.name,
                remedy="Its changes are in the file, but not listed. Open the archive again.",
            )
        data_offset(self._source, now, verify=False)
        crc32s = self._chunk_crc32s(now, data, begin, end)
        return _crc32_of(crc32s, now), self.find_wrong(now, crc32s)

    def _chunk_crc32s(self, now: Entry, data: memoryview, begin: int, end: int) -> list[int]:
        """Return the CRC-32s of a member's chunks; of those that did not change, as listed."""
        if end - begin < len(data):
            listed = self.lists.find(now._replace(crc32=_header_crc32(self._source, now)))
            if listed is not None and listed.chunk_size == CHECKED_SIZE:
                crc32s, first = list(listed.crc32s), begin // CHECKED_SIZE
                changed = data[first * CHECKED_SIZE : -(-end // CHECKED_SIZE) * CHECKED_SIZE]
                found = chunk_crc32s(changed, CHECKED_SIZE)
                crc32s[first : first + len(found)] = found
                return crc32s
        return chunk_crc32s(data, CHECKED_SIZE)

    def find_wrong(self, entry: Entry, crc32s: Sequence[int]) -> Patches:
        """Return where the file has other CRC-32s of a member, and the bytes that belong there.

        The local header comes first.
        """
        source, value = self._source, _CRC32.pack(_crc32_of(crc32s, entry))
        places = [(entry.header_offset + LOCAL_CRC32_OFFSET, value)]
        for directory in self._directories:
            places += [(place, value) for place in self._listed(entry, *directory)]
        data = ChunkList(CHECKED_SIZE, entry.uncompressed_size, crc32s).format()
        begin, end = self.lists.span(entry) or (0, 0)
        if end - begin == extent(len(data)) and self._is_list(entry, begin, end):
            places += places_of(begin, data)
        return [place for place in places if source.read_at(place[0], len(place[1])) != place[1]]

    def _listed(
        self, entry: Entry, start: int, data: bytes, places: dict[str, int]
    ) -> Iterator[int]:
        """Yield where a directory has the CRC-32 of an entry, if it is still in its place."""
        place = places.get(entry.name)
        if place is not None:
            size, crc = CENTRAL_ENTRY_SIZE + len(entry.raw_name), ENTRY_CRC32_OFFSET
            found, known = self._source.read_at(start + place, size), data[place : place + size]
            if found[:crc] + found[crc + 4 :] == known[:crc] + known[crc + 4 :]:
                yield start + place + crc

    def _is_list(self, entry: Entry, begin: int, end: int) -> bool:
        """Return whether the list of a member's chunks is where the index says.

        A flush that was killed may have left an older one there. Then only `repair` writes it,
        if no member has any of these bytes.
        """
        crc32s = {entry.crc32, _header_crc32(self._source, entry)}
        if any(self.lists.find(entry._replace(crc32=crc)) for crc in crc32s):
            return True
        return self._repairs and any(
            data_offset(self._source, one, verify=False) + one.compressed_size <= begin
            for one in self._directory.entries.values()
            if one.header_offset <= begin and end <= one.end_offset
        )


def _crc32_of(crc32s: Sequence[int], entry: Entry) -> int:
    """Return the CRC-32 of a member, from those of its chunks."""
    return combined_with_last(crc32s, CHECKED_SIZE, entry.uncompressed_size)


def _header_crc32(source: Source, entry: Entry) -> int:
    """Return the CRC-32 that a member's local header has."""
    data = source.read_at(entry.header_offset + LOCAL_CRC32_OFFSET, _CRC32.size)
    return int.from_bytes(data, "little")


# -- what others changed --------------------------------------------------------


def is_outdated(source: Source, directory: Directory, starts: Sequence[int], entry: Entry) -> bool:
    """Return whether an entry has an old CRC because its directory no longer
    counts. Others may flush a member after an append, which wrote another
    directory.
    """
    if not isinstance(source, FileSource):
        return False
    with source.call(duplicated) as file, contextlib.suppress(NpzkitError):
        now = open_source(file)
        if now.size != directory.end_offset:
            found = read_directory(now, starts=starts, silent=True)
            listed = found.entries.get(entry.name)
            return listed is not None and listed.crc32 != entry.crc32
    return False


def with_flushed_crc32s(directory: Directory, source: Source) -> Directory:
    """Return a directory with the CRCs that it has by now."""
    data = source.read_at(directory.directory_offset, directory.size)
    entries = Rows(directory.entries)
    for name, place in directory.places().items():
        (crc,) = _CRC32.unpack_from(data, place + ENTRY_CRC32_OFFSET)
        entries[name] = entries[name]._replace(crc32=crc)
    return directory._replace(entries=entries, data=data)


class Unflushed(NamedTuple):
    """A stored member whose local header and entry have different CRCs and agree otherwise.

    A killed flush leaves such a member, because it writes one after the other, and then the list
    of its chunks.

    Attributes
    ----------
    entry : Entry
    header_crc32 : int
        What the local header has.
    crc32s : list of int
        Of the data's chunks.
    """

    entry: Entry
    header_crc32: int
    crc32s: list[int]

    @property
    def is_complete(self) -> bool:
        """Whether the data has one of the two CRCs, so that it has not changed since."""
        return _crc32_of(self.crc32s, self.entry) in (self.header_crc32, self.entry.crc32)

    def __str__(self) -> str:
        if self.is_complete:
            return (
                "the data has one of them: the flush of a map was interrupted, or a copy of "
                "another version over the file; " + REPAIR + " writes that one to both"
            )
        return (
            "the data has neither of them: it was changed through a map without a flush, or is "
            "damaged"
        )


def find_unflushed(
    source: Source, entry: Entry, threads: int, lists: ChunkLists | None = None
) -> Unflushed | None:
    """Return what is known about a member that a killed flush may have left; None for any other.

    With `lists`, also of one that lacks only the list of its chunks.
    """
    if entry.method != STORED or entry.flags & FLAG_DESCRIPTOR:
        return None
    try:
        start = data_offset(source, entry, verify=False)
    except NpzkitError:
        return None
    crc = _header_crc32(source, entry)
    is_flushed = crc == entry.crc32
    if is_flushed and (lists is None or lists.span(entry) is None or lists.find(entry)):
        return None
    crc32s = chunk_crc32s_at(source, start, entry.compressed_size, CHECKED_SIZE, threads)
    found = Unflushed(entry, crc, crc32s)
    return None if is_flushed and not found.is_complete else found


def complete_flushes(
    source: Source, directory: Directory, threads: int
) -> tuple[list[str], list[Unflushed]]:
    """Complete flushes of maps that were killed, in the file itself.

    Returns
    -------
    flushed : list of str
        Names of members whose two CRCs differed and are the data's now, or whose list of
        chunks is.
    left : list of Unflushed
        Members that are left as they are, as neither was the data's.
    """
    places = _Places(source, directory, directory, repairs=True)
    entries = directory.entries.values()
    found = [find_unflushed(source, entry, threads, places.lists) for entry in entries]
    left = [one for one in found if one and not one.is_complete]
    complete = [one for one in found if one and one.is_complete]
    if complete:
        with contextlib.closing(File(source.path)) as file:
            for one in complete:
                for patch in places.find_wrong(one.entry, one.crc32s):
                    file.patch(*patch)
            file.sync()
    return [one.entry.name for one in complete], left


def path_of(source: Source) -> str | None:
    """Return the path of a file, or that by which a caller's file object says it was opened."""
    name = getattr(source.handle, "name", None) if source.path is None else source.path
    return os.path.abspath(name) if isinstance(name, str) else None


def _open_for_writing(source: FileSource) -> File:
    """Open the source's file again, or take the caller's, which is open for writing."""
    if source.path is None:
        if not source.file.writable():
            raise NotMappableError(
                "the member cannot be mapped for writing: the file object is open for reading",
                remedy="Open it with mode 'r+b', or open the archive by its path.",
            )
        return source.call(partial(File, None))
    file = File(source.path)
    _check_same(source.path, source.file)
    return file


def _check_same(path: str | None, descriptor: Any) -> None:
    """Raise if another file has taken the place of the one that is open."""
    try:
        is_same = path is None or os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return
    if not is_same:
        raise StaleArchiveError(
            "another file has replaced the mapped one at this path",
            path=path,
            remedy="Open it again; what was written through the map is only in the old file.",
        )
