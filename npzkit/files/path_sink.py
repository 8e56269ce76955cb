"""An archive at a path: a new file that takes the old one's place, or appends to it.

Owns temporary files, buffering, the exchange of the old file for the new, and
the order in which an append reaches the disk. Must never know zip or NPY. A
path holds the contents before a commit or those after it at every instant,
whatever happens in between.

A commit to a new file is its renaming. A commit to a file that is in its place
has four steps: everything but the first `SEAL_SIZE` of the last bytes is
written behind what was committed before; synced; those bytes are written;
synced. No byte that was committed is written to or cut off.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Any

from npzkit.codecs.methods import crc32
from npzkit.errors import ClosedArchiveError, StaleArchiveError
from npzkit.files import disk
from npzkit.files.disk import Buffer, File, check_binary
from npzkit.files.locking import FileLock, lock_path
from npzkit.files.parallel import crc32_at
from npzkit.files.sink import SEAL_SIZE, FileSink, Sink

__all__ = ["PathSink", "open_sink"]

_BUFFER_SIZE = 1 << 22
"""Small writes gathered before one system call."""
_DIRECT_SIZE = 1 << 16
"""From this size on a write goes to the file without a copy."""


class PathSink(Sink):
    """A file at `path`: a new one, beside it until the first commit, or the one that is there.

    Readers that have an old file open or mapped keep it. A process that is
    killed leaves the path as it was at the last commit; before the first, also
    a file named ``.npzkit-*.tmp``.

    Parameters
    ----------
    path : str
        Symbolic links are followed; the file they lead to is replaced.
    exclusive : bool, default False
        Refuse to replace: a file that is there, now or at commit, is an error.
    resume : bool, default False
        Write behind what is in the file: `committed_size` is to be set to it
        before the first write. What lies behind that is dropped by then.
    durable : bool, default False
        Wait for the disk at each commit. A new file that takes an old one's
        place is synced in any case, so that a loss of power leaves one of them.
        Where only the last step of a new file's fails, waiting for the folder,
        an error is raised though the file is in place.
    lock_timeout : float, default 0
        Seconds to wait for another writer.
    lock : FileLock, optional
        On the file at `path`, taken before; released with the sink.

    Raises
    ------
    ArchiveLockedError
        Another writer has the file.
    PermissionError
        The file at the path may not be written to, though its folder may.

    Notes
    -----
    Windows does not replace a file that somebody has open or mapped: `commit`
    then raises ``PermissionError``, and the old file stays.
    """

    can_patch = True
    can_read = True
    is_concurrent = True

    def __init__(
        self,
        path: str,
        *,
        exclusive: bool = False,
        resume: bool = False,
        durable: bool = False,
        lock_timeout: float = 0.0,
        lock: FileLock | None = None,
    ) -> None:
        if exclusive and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._path, self._name = os.path.realpath(path), path
        self._exclusive = exclusive
        self._durable = durable
        self._process = os.getpid()
        self._buffer = bytearray()
        self._flushed = 0
        self._known = 0, 0
        self._temporary: str | None = None
        self._is_changed = False
        self._is_replacing = False
        self._is_closed = False
        self._seal_offset = -1
        self._opened: File | None = None
        self._placed: os.stat_result | None = None
        self._locks: list[FileLock] = []
        try:
            self._lock(path, lock_timeout, lock)
            if resume:
                self._check_path()
                self._check_lock()
            else:
                self._make(path)
        except BaseException:
            self.abort()
            raise

    @property
    def path(self) -> str:  # type: ignore[override]
        return self._temporary or self._path

    @property
    def descriptor(self) -> Any:
        return self._file.descriptor

    @property
    def _file(self) -> File:
        """The file, opened again where a commit closed it."""
        opened = self._opened
        if opened is None:
            if self._is_closed:
                # A thread that fills an array came too late.
                raise ClosedArchiveError("the writer is closed", path=self._name)
            self._opened = opened = self._reopen()
        return opened

    def _reopen(self) -> File:
        """Open the file at the path, which must be the one that was put there."""
        try:
            file = File(self._path)
        except FileNotFoundError:
            if self._placed is None:
                raise
            raise self._stale() from None
        if self._placed is None or os.path.samestat(os.fstat(file.descriptor), self._placed):
            return file
        file.close()
        raise self._stale()

    def _lock(self, path: str, timeout: float, lock: FileLock | None) -> None:
        """Keep other writers from the file, if there is one."""
        if lock is None:
            try:
                lock = lock_path(path, timeout)
            except FileNotFoundError:
                return
        self._locks.append(lock)
        if not lock.writable():
            # To replace it the system asks for the folder alone, users for the file.
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def _make(self, path: str) -> None:
        """Make the new file, with the old one's owner and permissions."""
        try:
            replaced = os.stat(self._path)
        except FileNotFoundError:
            replaced = None
        directory = os.path.dirname(self._path)
        temporary = os.path.join(directory, f".npzkit-{os.urandom(8).hex()}.tmp")
        # First, so that an interrupt that comes once the file is there has it removed.
        self._temporary = temporary
        try:
            # Who may not read the old file opens this one at no time either.
            self._opened = File(temporary, is_new=True, mode=0o600 if replaced else 0o666)
        except OSError as error:
            # The user knows this path, and not the temporary file's.
            error.filename = path
            raise
        self._locks.append(lock_path(temporary, 0.0))
        if replaced:
            self._is_replacing = True
            self._file.take_after(replaced)

    # -- writing ------------------------------------------------------------

    def resume(self, committed_size: int, last_size: int) -> None:
        """Say how many of the bytes that are there count: writing goes on behind them.

        The last of them, `last_size` bytes, are what was written by the commit alone.
        """
        self.committed_size = self.position = self._flushed = committed_size
        self._known = last_size, self._crc_of_last(last_size)

    def _crc_of_last(self, size: int) -> int:
        """Return the CRC-32 of the last of the bytes that were committed."""
        return crc32_at(self._file, self.committed_size - size, size, 1)

    def _is_as_committed(self) -> bool:
        """Whether what the last commit wrote is still where it was.

        Programs that take no lock may have rewritten the file in place.
        """
        size, crc = self._known
        return self._file.size >= self.committed_size and self._crc_of_last(size) == crc

    def _begin_to_change(self) -> None:
        """Drop what lies behind the last commit before anything is written there."""
        if self._is_changed or not self.committed_size:
            return
        self._check_unchanged()
        self._is_changed = True
        if self._file.size > self.committed_size:
            self._file.truncate(self.committed_size)
            if self._durable:
                # Else parts of it could come back among what is written now.
                self._file.sync()

    def write(self, data: Buffer) -> None:
        if len(data) < _DIRECT_SIZE:
            self._buffer += data
            self.position += len(data)
            if len(self._buffer) >= _BUFFER_SIZE:
                self._flush()
        else:
            self._flush()
            self._put(self.position, data)
            self.position += len(data)
            self._flushed = self.position

    def _flush_before(self, end: int) -> None:
        """Write what was gathered, where bytes before `end` are among it."""
        # Of what was skipped nothing is, so that threads that fill it never flush.
        if end > self._flushed:
            self._flush()

    def _flush(self) -> None:
        """Write what was gathered: always the last bytes before `position`."""
        if self._buffer:
            # A debugger may hold views of what is written: it is let go, never emptied.
            gathered, self._buffer = self._buffer, bytearray()
            self._put(self.position - len(gathered), gathered)
        self._flushed = self.position

    def _put(self, offset: int, data: Buffer) -> None:
        self._begin_to_change()
        self._file.patch(offset, data)

    def reserve(self, size: int, *, mapped: bool = False) -> None:
        self._begin_to_change()
        self._file.reserve(self.position, size, mapped=mapped)

    def skip(self, size: int) -> None:
        self._flush()
        self.reserve(size)
        self.position += size
        self._flushed = self.position
        if self._file.size < self.position:
            self._file.truncate(self.position)

    def readinto_at(self, offset: int, view: memoryview) -> None:
        self._flush_before(offset + len(view))
        self._file.readinto_at(offset, view)

    def patch(self, offset: int, data: Buffer) -> None:
        self._flush_before(offset + len(data))
        self._put(offset, data)

    # -- commits ------------------------------------------------------------

    def commit(self, last: bytes, before: bytes = b"") -> None:
        self.write(before)
        if self._temporary is None:
            self._append(last)
        else:
            self.write(last)
            self._flush()
            self._cut_behind()
            # What takes a file's place must not reach the disk as a name alone: the
            # old file may hold what was committed with durable=True.
            if self._durable or self._is_replacing:
                self._file.sync()
            self._put_in_place()
        self._known = len(before) + len(last), crc32(last, crc32(before))

    def _append(self, last: bytes) -> None:
        """Commit behind what was committed before; see the module's docstring."""
        self._check_path()
        self._check_unchanged()
        offset = self.position
        self.write(bytes(SEAL_SIZE) + last[SEAL_SIZE:])
        self._flush()
        self._cut_behind()
        if self._durable:
            self._file.sync()
        self._seal_offset = offset
        self._file.patch(offset, last[:SEAL_SIZE])
        if self._durable:
            self._file.sync()
        self.committed_size = self.position
        self._is_changed = False

    def _cut_behind(self) -> None:
        """Cut off what was reserved and not used: nothing may follow the archive's end."""
        if self._file.size > self.position:
            self._file.truncate(self.position)

    def _check_path(self) -> None:
        """Raise where nobody would find what is written."""
        try:
            if os.path.samestat(os.fstat(self._file.descriptor), os.stat(self._path)):
                return
        except FileNotFoundError:
            pass
        raise self._stale()

    def _check_unchanged(self) -> None:
        """Raise where the place behind the last commit is another archive's by now."""
        if not self._is_as_committed():
            raise StaleArchiveError(
                "another program wrote to the archive while it was open here", path=self._name,
                remedy="What it wrote is left alone; look at what is there now, and write again.",
            )  # fmt: skip

    def _stale(self) -> StaleArchiveError:
        return StaleArchiveError(
            "the archive was moved, removed or replaced while it was written",
            path=self._name,
            remedy="What was committed before is in the file that was opened; "
            "open what is at the path now, and write it again.",
        )

    def _check_lock(self) -> None:
        """Raise where the file was exchanged between being locked and being opened."""
        opened = os.fstat(self._file.descriptor)
        locked = os.fstat(self._locks[0].fileno()) if self._locks else opened
        if not os.path.samestat(locked, opened):
            raise StaleArchiveError(
                "the archive was replaced while it was opened", path=self._name,
                remedy="Try again.",
            )  # fmt: skip

    def _put_in_place(self) -> None:
        """Give the new file its name, and let the old one go."""
        temporary = self._temporary
        assert temporary is not None  # noqa: S101 - the caller asked
        self._placed = os.fstat(self.descriptor)
        # A network's file system may say only now that there is no room.
        self._close()
        if not disk.RENAMES_OPEN_FILES:
            self._release_locks()
        if self._exclusive:
            disk.link(temporary, self._path)
        else:
            disk.replace(temporary, self._path)
        self._temporary = None
        self.committed_size = self.position
        if not disk.RENAMES_OPEN_FILES:
            self._locks.append(lock_path(self._path, 0.0))
        if self._durable:
            disk.sync_directory(os.path.dirname(self._path))

    def abort(self) -> None:
        # A forked child that drops its copy leaves its parent's file alone.
        is_own = os.getpid() == self._process
        try:
            if is_own and self._temporary is None:
                self._take_back()
        finally:
            # Nothing that counts is in what is closed.
            with contextlib.suppress(OSError):
                self.close()
            # Last, as Windows removes no file that is open.
            if is_own and self._temporary is not None:
                disk.unlink(self._temporary)
                self._temporary = None

    def __del__(self) -> None:
        # An interrupt may come before anybody has taken the sink.
        if getattr(self, "_temporary", None) is not None:
            with contextlib.suppress(OSError):
                self.abort()

    def _take_back(self) -> None:
        """Cut off what was written since the last commit."""
        file = self._opened
        if file is None or not self._is_changed or file.size <= self.committed_size:
            return
        if not self._is_as_committed():
            # What would be cut off is another program's.
            return
        try:
            file.truncate(self.committed_size)
        except OSError:
            if self._seal_offset >= self.committed_size:
                # It was sealed and then failed to be synced: without the seal it counts no more.
                self.is_in_doubt = True
                file.patch(self._seal_offset, bytes(SEAL_SIZE))
                self.is_in_doubt = False
            raise

    def close(self) -> None:
        self._is_closed = True
        try:
            self._close()
        finally:
            self._release_locks()

    def _close(self) -> None:
        opened = self._opened
        if opened is not None:
            try:
                opened.close()
            finally:
                self._opened = None
                # An interrupt may have come before it did anything.
                opened.close()

    def hand_over(self) -> FileLock:
        """Close the file, and return the lock on it to whoever rewrites it."""
        self._is_closed = True
        self._close()
        # The last one is the file's that is at the path now.
        for lock in self._locks[:-1]:
            lock.close()
        return self._locks.pop()

    def _release_locks(self) -> None:
        for lock in self._locks:
            # Nothing was written by it.
            with contextlib.suppress(OSError):
                lock.close()
        self._locks.clear()


def open_sink(
    file: Any,
    *,
    exclusive: bool = False,
    durable: bool = False,
    lock_timeout: float = 0.0,
) -> Sink:
    """Return the sink for a new archive at a path, or in a file object with ``write``.

    A path that names a device or a pipe is written to as it is.

    Raises
    ------
    FileExistsError
        `exclusive`, and the path is there.
    ArchiveLockedError
        Another writer has the file that is there.
    OSError
        From making the temporary file: no such directory, no permission.
    """
    if hasattr(file, "write"):
        check_binary(file, "wb")
        return FileSink(file)
    path = os.fspath(file)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if not os.path.basename(path):
            # No file can have the name of a folder that is not there, or none at all.
            raise
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode) and not exclusive:
        return FileSink(open(path, "wb", buffering=0), owned=True)
    return PathSink(path, exclusive=exclusive, durable=durable, lock_timeout=lock_timeout)
