"""Where an archive's bytes go: a path replaced as a whole, or a file object.

Owns temporary files, buffering and the exchange of the old file for the new.
Must never know zip or NPY. A path holds the old contents or the new ones at
every instant, whatever happens in between.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import io
import os
import stat
import threading
from typing import Any

from npzkit.shared_file import OPEN_FLAGS, Buffer, write_at
from npzkit.source import unwrapped

__all__ = ["FileSink", "PathSink", "Sink", "open_sink", "write_all"]

_BUFFER_SIZE = 1 << 22
"""Small writes gathered before one system call."""
_DIRECT_SIZE = 1 << 16
"""From this size on a write goes to the file without a copy."""
_RESERVE_SIZE = 1 << 20
"""From this size on room is reserved first: a file written into reserved room
took 0.058 s where one that grew took 0.073 s (268 MB)."""


class Sink(abc.ABC):
    """A place to write one archive to, front to back.

    Attributes
    ----------
    position : int
        Bytes written so far.
    can_patch : bool
        Whether `patch` may change bytes that were written.
    can_read : bool
        Whether `readinto_at` can give them back.
    is_concurrent : bool
        Whether bytes at any place may be written at any time, by any thread.
    path, descriptor
        As of `Place`; None of a file object.
    """

    position: int = 0
    can_patch: bool = False
    can_read: bool = False
    is_concurrent: bool = False
    path: str | None = None
    descriptor: Any = None

    @abc.abstractmethod
    def write(self, data: Buffer) -> None:
        """Write all of `data` at `position`. It may be reused afterwards."""

    def reserve(self, size: int) -> None:
        """Say that `size` more bytes will come; where that fails, fail now."""

    @abc.abstractmethod
    def patch(self, offset: int, data: Buffer) -> None:
        """Overwrite bytes at `offset` that were written or skipped before."""

    def skip(self, size: int) -> None:
        """Leave `size` bytes, zeros, for `patch`. Where there is no room, fail now."""
        zeros = bytes(min(size, _BUFFER_SIZE))
        for start in range(0, size, len(zeros) or 1):
            self.write(zeros[: size - start])

    @abc.abstractmethod
    def readinto_at(self, offset: int, view: memoryview) -> None:
        """Fill `view` with bytes that were written or skipped before."""

    @abc.abstractmethod
    def commit(self) -> None:
        """Make what was written the contents. Nothing may follow but `close`."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Forget what was written, as far as that is possible."""


class FileSink(Sink):
    """A caller's file object, written from its current position on.

    It is never closed here. Bytes that reached it cannot be taken back; an
    aborted archive lacks its end record, so that no reader takes it for whole.
    """

    def __init__(self, file: Any, *, owned: bool = False) -> None:
        self._file = file
        self._owned = owned
        # The file has one position, and created arrays are filled while others are added.
        self._lock = threading.RLock()
        self.can_patch = _is_seekable(file)
        self.can_read = self.can_patch and file.readable()
        self._start = file.tell() if self.can_patch else 0

    def write(self, data: Buffer) -> None:
        with self._lock:
            write_all(self._file, data)
            self.position += len(data)

    def readinto_at(self, offset: int, view: memoryview) -> None:
        with self._lock:
            self._file.seek(self._start + offset)
            done = 0
            while done < len(view):
                count = self._file.readinto(view[done:])
                if not count:
                    raise OSError(errno.EIO, "the file object does not give back what it took")
                done += count
            self._file.seek(self._start + self.position)

    def patch(self, offset: int, data: Buffer) -> None:
        with self._lock:
            self._file.seek(self._start + offset)
            write_all(self._file, data)
            self._file.seek(self._start + self.position)

    def commit(self) -> None:
        if hasattr(self._file, "flush"):
            self._file.flush()
        self._close()

    def abort(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._owned:
            self._file.close()


def write_all(file: Any, data: Buffer) -> None:
    """Write all of `data` to a file object, which may take a part at a time.

    Raises
    ------
    BlockingIOError
        A non-blocking file takes no more now.
    """
    view = memoryview(data)
    while view:
        written = file.write(view if len(view) < len(data) else data)
        if written is None and isinstance(file, io.RawIOBase):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        if not isinstance(written, int):
            return
        if written == 0:
            raise OSError(errno.EIO, "the file object takes no more bytes")
        view = view[written:]


class PathSink(Sink):
    """A new file beside `path` that takes its place when it is complete.

    Readers that have the old file open or mapped keep it. A process that is
    killed leaves the old file, and one named ``.npzkit-*.tmp``.

    Parameters
    ----------
    path : str
        Symbolic links are followed; the file they lead to is replaced.
    exclusive : bool
        Refuse to replace: a file that is there, now or at commit, is an error.
    durable : bool
        Have the new file on disk before it takes the old one's place. Where
        only the last step fails, waiting for the folder, an error is raised
        though the new file is in place.

    Notes
    -----
    Windows does not replace a file that is open or mapped: `commit` then
    raises ``PermissionError``, and the old file stays.
    """

    can_patch = True
    can_read = True
    is_concurrent = True

    def __init__(self, path: str, *, exclusive: bool, durable: bool) -> None:
        if exclusive and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._path = os.path.realpath(path)
        self._exclusive = exclusive
        self._process = os.getpid()
        self._durable = durable
        self._buffer = bytearray()
        self._flushed = 0
        self._lock = threading.Lock()
        directory = os.path.dirname(self._path)
        self.path = self._temporary = os.path.join(directory, f".npzkit-{os.urandom(8).hex()}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | OPEN_FLAGS
        try:
            self.descriptor = os.open(self._temporary, flags, 0o666)
        except OSError as error:
            # The user knows this path, and not the temporary file's.
            error.filename = path
            raise
        try:
            self._take_mode()
        except BaseException:
            self.abort()
            raise

    def _take_mode(self) -> None:
        """Give the new file the old one's permissions."""
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(os.stat(self._path).st_mode)
            if hasattr(os, "fchmod"):
                # FAT and some network file systems have no permissions to set.
                with contextlib.suppress(OSError):
                    os.fchmod(self.descriptor, mode)

    def write(self, data: Buffer) -> None:
        if len(data) < _DIRECT_SIZE:
            self._buffer += data
            self.position += len(data)
            if len(self._buffer) >= _BUFFER_SIZE:
                self._flush()
        else:
            self._flush()
            self._write_at(self.position, memoryview(data))
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
            with memoryview(self._buffer) as view:
                self._write_at(self.position - len(view), view)
            self._buffer.clear()
        self._flushed = self.position

    def _write_at(self, offset: int, view: memoryview) -> None:
        write_at(self.descriptor, self._lock, offset, view)

    def reserve(self, size: int) -> None:
        if size < _RESERVE_SIZE or not hasattr(os, "posix_fallocate"):
            return
        try:
            os.posix_fallocate(self.descriptor, self.position, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV):
                raise

    def skip(self, size: int) -> None:
        self._flush()
        self.reserve(size)
        self.position += size
        self._flushed = self.position
        if os.fstat(self.descriptor).st_size < self.position:
            os.ftruncate(self.descriptor, self.position)

    def readinto_at(self, offset: int, view: memoryview) -> None:
        self._flush_before(offset + len(view))
        while len(view):
            if hasattr(os, "preadv"):
                count = os.preadv(self.descriptor, [view], offset)
            else:
                with self._lock:
                    os.lseek(self.descriptor, offset, os.SEEK_SET)
                    data = os.read(self.descriptor, min(len(view), _BUFFER_SIZE))
                count = len(data)
                view[:count] = data
            if not count:
                raise OSError(errno.EIO, "the file lost bytes while it was written", self.path)
            view, offset = view[count:], offset + count

    def patch(self, offset: int, data: Buffer) -> None:
        self._flush_before(offset + len(data))
        self._write_at(offset, memoryview(data))

    def commit(self) -> None:
        try:
            self._flush()
            if self._durable:
                os.fsync(self.descriptor)
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)
            self._replace()
        except BaseException:
            self.abort()
            raise
        if self._durable:
            _sync_directory(os.path.dirname(self._path))

    def _replace(self) -> None:
        if not self._exclusive:
            os.replace(self._temporary, self._path)
            return
        try:
            # Unlike a rename, a link never replaces what came in between.
            os.link(self._temporary, self._path)
        except FileExistsError:
            raise
        except (OSError, AttributeError):
            # No hard links here (FAT, some network shares): claim the name.
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            try:
                os.replace(self._temporary, self._path)
            except BaseException:
                os.unlink(self._path)
                raise
        else:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)

    def abort(self) -> None:
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)
        if os.getpid() != self._process:
            # A forked child that drops its copy leaves its parent's file alone.
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._temporary)


def _sync_directory(directory: str) -> None:
    """Have the new name on disk too. Windows cannot open directories."""
    if os.name != "nt":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_seekable(file: Any) -> bool:
    """Whether bytes already written can be changed by seeking back.

    Only io's own files are trusted to: a GzipFile says that it can seek, a
    subclass may hash or count what passes through its ``write``, and a file
    opened to append writes at its end wherever it was sought to.
    """
    file = unwrapped(file)
    if type(file) not in (io.FileIO, io.BufferedWriter, io.BufferedRandom):
        return type(file) is io.BytesIO
    raw = getattr(file, "raw", file)
    if type(raw) is not io.FileIO or raw.closed:
        return False
    return "a" not in raw.mode and raw.seekable()


def open_sink(file: Any, *, exclusive: bool = False, durable: bool = False) -> Sink:
    """Return the sink for a path or a file object with ``write``.

    A path that names a device or a pipe is written to as it is.

    Raises
    ------
    FileExistsError
        `exclusive`, and the path is there.
    OSError
        From making the temporary file: no such directory, no permission.
    """
    if hasattr(file, "write"):
        return FileSink(file)
    path = os.fspath(file)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode) and not exclusive:
        return FileSink(open(path, "wb", buffering=0), owned=True)
    return PathSink(os.path.abspath(path), exclusive=exclusive, durable=durable)
