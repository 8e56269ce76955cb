"""The CRC-32 of a stored member, updated after a map changed its bytes.

Owns when the CRC is computed, what it is compared with, and who waits
meanwhile. `npzkit.zip.crc_update` knows where it is written. Knows no arrays.

Several may change one member: two maps, two handles, threads, processes and
forked children. Each flushes after its own changes, in any order. So the CRC is
computed, compared with the file and written under a lock: the last flush sees
all changes before it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

from npzkit.errors import ArchiveLockedError, NotMappableError, NpzkitError, StaleArchiveError
from npzkit.files.disk import File, duplicated
from npzkit.files.locking import FileLock, holding, lock_path
from npzkit.files.source import FileSource, Source, open_source
from npzkit.limits import Limits
from npzkit.zip.crc_update import Seals, Unflushed, find_unsealed, seal
from npzkit.zip.directory import Directory, read_directory
from npzkit.zip.entries import Entry

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
        As of `npzkit.zip.crc_update.Seals`.

    Attributes
    ----------
    descriptor : int
        Of the archive, open for writing as long as the object exists.
    """

    def __init__(self, source: Source, starts: Sequence[int], opened: tuple[int, int]) -> None:
        self._file = _open_for_writing(cast(FileSource, source))
        self._checked_path = source.path
        self._path = source.path or _name_of(source)
        self._seals = Seals(self._file, starts, opened)
        # The CRC of each member when it was flushed last, by its name.
        self._last: dict[str, int] = {}
        self._lock = threading.RLock()
        self._process = os.getpid()

    @property
    def descriptor(self) -> Any:
        return self._file.descriptor

    def seal(self, entry: Entry, take_crc32: Callable[[], int]) -> None:
        """Write the CRC-32 of a member's bytes unless it is in the file already.

        Parameters
        ----------
        entry : Entry
            As the directory listed it when the member was mapped.
        take_crc32 : callable
            Returns the CRC-32 of the member's bytes as they are now.

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
                crc, is_written = self._seal(entry, take_crc32)
            except StaleArchiveError:
                if take_crc32() == last:
                    return
                raise
        # Another map may have written the CRC of changes that were made by this one.
        if is_written or crc != last:
            if self._checked_path is not None:
                _check_same(self._checked_path, self.descriptor)
            self._last[entry.name] = crc

    def _seal(self, entry: Entry, take_crc32: Callable[[], int]) -> tuple[int, bool]:
        """Return the member's CRC, and whether it was written."""
        patience = entry.uncompressed_size / _RATE
        try:
            with self._alone(patience):
                return self._write(entry, take_crc32)
        except ArchiveLockedError:
            # A writer may work for hours, and need not be waited for if nothing changes.
            crc = take_crc32()
            with self._reader() as source:
                if not self._seals.find_wrong(source, entry, crc):
                    return crc, False
        with self._alone(_TIMEOUT + patience):
            return self._write(entry, take_crc32)

    def _write(self, entry: Entry, take_crc32: Callable[[], int]) -> tuple[int, bool]:
        crc = take_crc32()
        with self._reader() as source:
            wrong = self._seals.find_wrong(source, entry, crc)
        self._seals.write(wrong, crc)
        return crc, bool(wrong)

    def fill_holes(self, offset: int, size: int) -> None:
        """Reserve room on disk for bytes that may be written through a map."""
        if self._file.has_holes(offset, size):
            with self._alone_in_process(), self._alone(_TIMEOUT):
                self._file.fill_holes(offset, size)

    @contextlib.contextmanager
    def _reader(self) -> Iterator[Source]:
        """Open the archive as it is now."""
        with duplicated(self.descriptor) as file:
            yield open_source(file)

    def _alone_in_process(self) -> contextlib.AbstractContextManager[Any]:
        """Keep other threads out. A forked child has none, but may have
        inherited a locked lock.
        """
        return self._lock if os.getpid() == self._process else contextlib.nullcontext()

    @contextlib.contextmanager
    def _alone(self, timeout: float) -> Iterator[None]:
        """Keep writers out, and all others that flush maps of the file."""
        found = os.fstat(self.descriptor)
        identity = found.st_dev, found.st_ino
        held = _held.__dict__.setdefault("files", set())
        if identity in held:
            yield
            return
        with self._locked(timeout):
            held.add(identity)
            try:
                yield
            finally:
                held.discard(identity)

    def _locked(self, timeout: float) -> contextlib.AbstractContextManager[Any]:
        """Lock the file by a descriptor of its own.

        A lock by the archive's descriptor does not keep out threads and forked
        children, which share it. It is used only if the path leads elsewhere.
        """
        return self._lock_path(timeout) or holding(self.descriptor, self._path, timeout)

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


def complete_flushes(
    source: Source, directory: Directory, threads: int
) -> tuple[list[str], list[Unflushed]]:
    """Complete flushes of maps that were killed, in the file itself.

    Returns
    -------
    sealed : list of str
        Names of members whose two CRCs differed and are the data's now.
    left : list of Unflushed
        Members that are left as they are, as neither was the data's.
    """
    found = [find_unsealed(source, entry, threads) for entry in directory.entries.values()]
    unsealed = [one for one in found if one is not None]
    complete = [one for one in unsealed if one.is_complete]
    if complete:
        file = File(source.path)
        try:
            for one in complete:
                seal(source, directory, one, file)
            file.sync()
        finally:
            file.close()
    return [one.entry.name for one in complete], [one for one in unsealed if not one.is_complete]


def _name_of(source: Source) -> str | None:
    """Return the path that a caller's file object was opened by, as far as it says so."""
    name = getattr(source.handle, "name", None)
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
    if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
        raise StaleArchiveError(
            "another file has replaced the mapped one at this path",
            path=path,
            remedy="Open it again; what was written through the map is only in the old file.",
        )
