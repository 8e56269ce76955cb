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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from npzkit.codecs.checksum import combined_with_last
from npzkit.codecs.coding import CHECKED_SIZE, STORED
from npzkit.errors import (
    ArchiveLockedError,
    FormatError,
    NotMappableError,
    NpzkitError,
    StaleArchiveError,
)
from npzkit.files.block_reading import chunk_crc32s_at
from npzkit.files.disk import File, duplicated
from npzkit.files.file_objects import identity_of
from npzkit.files.locking import FileLock, holding, lock_path
from npzkit.files.source import FileSource, Source, open_source
from npzkit.limits import Limits
from npzkit.zip.array_index import ChunkLists
from npzkit.zip.chunk_list import stored_chunks
from npzkit.zip.directory import Directory, read_directory
from npzkit.zip.entries import Entry, Rows, walk_entries
from npzkit.zip.member_checks import data_offset
from npzkit.zip.record import extent, places_of
from npzkit.zip.records import (
    CENTRAL_ENTRY_SIZE,
    ENTRY_CRC32_OFFSET,
    ENTRY_FIELDS,
    FLAG_DESCRIPTOR,
    LOCAL_CRC32_OFFSET,
)  # fmt: skip

Take = Callable[[bool], tuple[int, list[int]]]
"""As of `Sealer.seal`."""

_CRC32 = struct.Struct("<L")
_TIMEOUT = 5.0
"""Seconds that a flush waits for a writer, which may be about to list the old CRC."""
_RATE = 200_000_000
"""It waits a second longer per this many bytes of the member, because others flush too."""

_held = threading.local()
"""The files that this thread has locked: a map may be dropped while another one is flushed."""


class Sealer:
    """Writes the CRCs of one archive's members that are mapped for writing.

    Parameters
    ----------
    source : Source
    starts, opened
        As of `_Seals`.

    Attributes
    ----------
    descriptor : int
        Of the archive, open for writing as long as the object exists.
    """

    def __init__(self, source: Source, starts: Sequence[int], opened: tuple[int, int]) -> None:
        self._file = _open_for_writing(cast(FileSource, source))
        self._checked_path = source.path
        self._path = path_of(source)
        self._seals = _Seals(self._file, starts, opened)
        # The CRC of each member when it was flushed last, by its name.
        self._last: dict[str, int] = {}
        self._lock = threading.RLock()
        self._process = os.getpid()

    @property
    def descriptor(self) -> Any:
        return self._file.descriptor

    def seal(self, entry: Entry, take: Take) -> None:
        """Write the CRC-32s of a member's bytes unless they are in the file already.

        Parameters
        ----------
        entry : Entry
            As the directory listed it when the member was mapped.
        take : callable
            Returns the CRC-32s of the member's chunks as they are now: if it is given True, of
            those that may have changed, and with them the number of the first one.

        Raises
        ------
        ArchiveLockedError
            A writer has the archive, and the CRC is another.
        StaleArchiveError
            The member was changed, and is no longer listed where it was, or
            another file took the place of the one that is mapped.
        """
        last = self._last.get(entry.name, entry.crc32)
        with self._alone_in_process():
            try:
                crc, is_written = self._seal(entry, take)
            except StaleArchiveError:
                if _crc32_of(take(False)[1], entry) == last:
                    return
                raise
        # Another map may have written the CRC of changes that were made by this one.
        if is_written or crc != last:
            if self._checked_path is not None:
                _check_same(self._checked_path, self.descriptor)
            self._last[entry.name] = crc

    def _seal(self, entry: Entry, take: Take) -> tuple[int, bool]:
        """Return the member's CRC, and whether it was written."""
        patience = entry.uncompressed_size / _RATE
        try:
            with self._alone(patience):
                return self._write(entry, take)
        except ArchiveLockedError:
            # A writer may work for hours, and need not be waited for if nothing changes.
            crc32s = take(False)[1]
            with _reader(self._file) as source:
                if not self._seals.find_wrong(source, entry, crc32s):
                    return _crc32_of(crc32s, entry), False
        with self._alone(_TIMEOUT + patience):
            return self._write(entry, take)

    def _write(self, entry: Entry, take: Take) -> tuple[int, bool]:
        with _reader(self._file) as source:
            crc32s = self._seals.completed(source, entry, *take(True)) or take(False)[1]
            wrong = self._seals.find_wrong(source, entry, crc32s)
        self._seals.write(wrong)
        return _crc32_of(crc32s, entry), bool(wrong)

    def fill_holes(self, offset: int, size: int) -> None:
        """Reserve room on disk for bytes that may be written through a map."""
        if self._file.has_holes(offset, size):
            with self._alone_in_process(), self._alone(_TIMEOUT):
                self._file.fill_holes(offset, size)

    def _alone_in_process(self) -> contextlib.AbstractContextManager[Any]:
        """Keep other threads out. A forked child has none, but may have
        inherited a locked lock.
        """
        return self._lock if os.getpid() == self._process else contextlib.nullcontext()

    @contextlib.contextmanager
    def _alone(self, timeout: float) -> Iterator[None]:
        """Keep writers out, and all others that flush maps of the file."""
        # Inode and device: which file it is, whatever its contents are.
        node = identity_of(os.fstat(self.descriptor))[-2:]
        held = _held.__dict__.setdefault("files", set())
        if node in held:
            yield
            return
        # A lock by the archive's descriptor does not keep out threads and forked children,
        # which share it. It is used only if the path leads elsewhere.
        with self._lock_path(timeout) or holding(self.descriptor, self._path, timeout):
            held.add(node)
            try:
                yield
            finally:
                held.discard(node)

    def _lock_path(self, timeout: float) -> FileLock | None:
        """Lock the file by its path; None if the path does not lead to it."""
        if self._path is None:
            return None
        here = os.fstat(self.descriptor)
        try:
            if not os.path.samestat(here, os.stat(self._path)):
                return None
            lock = lock_path(self._path, timeout)
        except ArchiveLockedError:
            raise
        except OSError:
            return None
        try:
            if os.path.samestat(here, os.fstat(lock.fileno())):
                return lock
        except BaseException:
            # Whoever keeps the error keeps this frame, and with it the lock.
            lock.close()
            raise
        lock.close()
        return None


@contextlib.contextmanager
def _reader(file: File) -> Iterator[Source]:
    """Open an archive as it is now."""
    with duplicated(file.descriptor) as found:
        yield open_source(found)


# -- where it is written ------------------------------------------------------


class _Seals:
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
    repairs : bool, default False
        Whether what a killed flush left is completed.
    """

    def __init__(
        self,
        file: File,
        starts: Sequence[int],
        opened: tuple[int, int],
        *,
        repairs: bool = False,
    ) -> None:
        self.file, self._repairs = file, repairs
        self._starts = starts
        self._opened = opened
        self._opened_places: dict[tuple[int, bytes], int] = {}
        # In the copy of the directory that an append left which was killed.
        self._copied_places: dict[tuple[int, bytes], int] = {}
        self._size = -1
        self._entries: dict[str, Entry] = {}
        self._lists: ChunkLists
        self._places: dict[tuple[int, bytes], int] = {}

    def completed(
        self, source: Source, entry: Entry, first: int, crc32s: list[int]
    ) -> list[int] | None:
        """Return the CRC-32s of all chunks: those that are given, and others of the file's list.

        None if that does not have them.
        """
        if len(crc32s) * CHECKED_SIZE >= entry.uncompressed_size:
            return crc32s
        now = self._find_again(source, entry)
        listed = self._lists.find(now._replace(crc32=_header_crc32(source, now)), source)
        if listed is None or listed.chunk_size != CHECKED_SIZE:
            return None
        known = list(listed.crc32s)
        known[first : first + len(crc32s)] = crc32s
        return known

    def find_wrong(
        self, source: Source, entry: Entry, crc32s: Sequence[int]
    ) -> list[tuple[int, bytes]]:
        """Return where the file has other CRC-32s of a member, and the bytes that belong there.

        Parameters
        ----------
        source : Source
            The archive as it is now, to read from.
        entry : Entry
            As the directory listed it when it was mapped.
        crc32s : sequence of int
            Of the member's chunks as they are now.

        Raises
        ------
        StaleArchiveError
            The member is no longer listed where it was.
        """
        now = self._find_again(source, entry)
        value = _CRC32.pack(_crc32_of(crc32s, entry))
        places = [
            (now.header_offset + LOCAL_CRC32_OFFSET, value),
            (self._places[_identity(now)] + ENTRY_CRC32_OFFSET, value),
        ]
        for others in (self._opened_places, self._copied_places):
            other = others.get(_identity(entry))
            if other is not None:
                places.append((other + ENTRY_CRC32_OFFSET, value))
        span, listed = self._lists.span(now), stored_chunks(crc32s, now.uncompressed_size)
        if span is not None and listed is not None and self._is_list(source, now, span):
            data = listed.format()
            if extent(len(data)) == span[1] - span[0]:
                places += places_of(span[0], data)
        return [place for place in places if source.read_at(place[0], len(place[1])) != place[1]]

    def _is_list(self, source: Source, entry: Entry, span: tuple[int, int]) -> bool:
        """Return whether the list of a member's chunks is where the index says.

        A flush that was killed may have left an older one there. Then only `repair` writes it,
        if no member has any of these bytes.
        """
        crc32s = {entry.crc32, _header_crc32(source, entry)}
        if any(self._lists.find(entry._replace(crc32=crc), source) for crc in crc32s):
            return True
        if not self._repairs:
            return False
        before = [entry for entry in self._entries.values() if entry.header_offset <= span[0]]
        if not before:
            return False
        last = max(before, key=lambda entry: entry.header_offset)
        end = data_offset(source, last, verify=False) + last.compressed_size
        return end <= span[0] and span[1] <= last.end_offset

    def write(self, places: Sequence[tuple[int, bytes]]) -> None:
        """Write what `find_wrong` returned: to the local header first."""
        for place in places:
            self.file.patch(*place)

    def _find_again(self, source: Source, entry: Entry) -> Entry:
        """Return what `_find` does; the directory may be another by now."""
        try:
            return self._find(source, entry)
        except FormatError:
            self._size = -1
            return self._find(source, entry)

    def _find(self, source: Source, entry: Entry) -> Entry:
        """Return the member's entry as it is now, with which its own header agrees."""
        if source.size != self._size:
            directory = read_directory(source, starts=self._starts, silent=True, limits=Limits())
            start = directory.directory_offset
            self._places = _find_entries(directory.data, start)
            self._copied_places = {}
            if directory.far_copy is not None:
                begin, end = directory.far_copy
                self._copied_places = _find_entries(source.read_at(begin, end - begin), begin)
            if start != self._opened[0]:
                self._opened_places = _find_entries(source.read_at(*self._opened), self._opened[0])
            self._entries = Rows(directory.entries)
            self._lists = ChunkLists(source, directory)
            # While the source is open.
            _ = self._lists.index
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


def _crc32_of(crc32s: Sequence[int], entry: Entry) -> int:
    """Return the CRC-32 of a member, from those of its chunks."""
    return combined_with_last(crc32s, CHECKED_SIZE, entry.uncompressed_size)


def _header_crc32(source: Source, entry: Entry) -> int:
    """Return the CRC-32 that a member's local header has."""
    data = source.read_at(entry.header_offset + LOCAL_CRC32_OFFSET, _CRC32.size)
    return int.from_bytes(data, "little")


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


# -- what others changed --------------------------------------------------------


def is_outdated(source: Source, directory: Directory, starts: Sequence[int], entry: Entry) -> bool:
    """Return whether an entry has an old CRC because its directory no longer
    counts. Others may flush a member after an append, which wrote another
    directory.
    """
    if not isinstance(source, FileSource):
        return False
    with source.call(duplicated) as file:
        now = open_source(file)
        if now.size == directory.end_offset:
            return False
        try:
            found = read_directory(now, starts=starts, silent=True, limits=Limits())
        except NpzkitError:
            return False
    listed = found.entries.get(entry.name)
    return listed is not None and listed.crc32 != entry.crc32


def resealed(directory: Directory, source: Source) -> Directory:
    """Return a directory with the CRCs that it has by now."""
    data = source.read_at(directory.directory_offset, directory.size)
    places, entries = _find_entries(data, 0), Rows(directory.entries)
    for name, entry in entries.items():
        place = places.get(_identity(entry))
        if place is not None:
            (crc,) = _CRC32.unpack_from(data, place + ENTRY_CRC32_OFFSET)
            entries[name] = entry._replace(crc32=crc)
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
                "another version over the file; npzkit.repair(path) writes that one to both"
            )
        return (
            "the data has neither of them: it was changed through a map without a flush, or is "
            "damaged"
        )


def find_unsealed(
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
    is_sealed = crc == entry.crc32
    if is_sealed and (lists is None or lists.span(entry) is None or lists.find(entry)):
        return None
    crc32s = chunk_crc32s_at(source, start, entry.compressed_size, CHECKED_SIZE, threads)
    found = Unflushed(entry, crc, crc32s)
    return None if is_sealed and not found.is_complete else found


def complete_flushes(
    source: Source, directory: Directory, threads: int
) -> tuple[list[str], list[Unflushed]]:
    """Complete flushes of maps that were killed, in the file itself.

    Returns
    -------
    sealed : list of str
        Names of members whose two CRCs differed and are the data's now, or whose list of
        chunks is.
    left : list of Unflushed
        Members that are left as they are, as neither was the data's.
    """
    lists, entries = ChunkLists(source, directory), directory.entries.values()
    found = [find_unsealed(source, entry, threads, lists) for entry in entries]
    unsealed = [one for one in found if one is not None]
    complete = [one for one in unsealed if one.is_complete]
    if complete:
        file = File(source.path)
        try:
            opened = directory.directory_offset, directory.size
            seals = _Seals(file, (0,), opened, repairs=True)
            with _reader(file) as now:
                for one in complete:
                    seals.write(seals.find_wrong(now, one.entry, one.crc32s))
            file.sync()
        finally:
            file.close()
    return [one.entry.name for one in complete], [one for one in unsealed if not one.is_complete]


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


def _check_same(path: str, descriptor: Any) -> None:
    """Raise if another file has taken the place of the one that is open."""
    here = os.fstat(descriptor)
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return
    if not os.path.samestat(here, there):
        raise StaleArchiveError(
            "another file has replaced the mapped one at this path",
            path=path,
            remedy="Open it again; what was written through the map is only in the old file.",
        )
