"""Every system call that changes a file: all writing goes through this layer.

Owns descriptors, how long each is open, and the fallbacks for calls that an
operating system lacks. Knows nothing about the contents of a file. Tests
replace this module's `os` to record changes or to make them fail, as
`tests/support/crash.py` does. Only memory maps write without this module.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn, TypeVar

from npzkit.errors import closed_error

_CALL_SIZE = 1 << 30
"""Most bytes per call. Linux writes at most 2 GiB per call, and macOS refuses more."""
_READ_SIZE = 1 << 18
"""Most bytes to read with a call that returns them as a new object."""
_RESERVE_SIZE = 1 << 20
"""Space is reserved for writes of at least this size. Writing 268 MB took 0.058 s
with reserved space and 0.073 s without."""
_BLOCK_SIZE = 512
"""Bytes that ``st_blocks`` counts by."""
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV}
"""Errors of a system or a file system that does not support a call."""

OPEN_FLAGS = getattr(os, "O_BINARY", 0)
"""Flags for opening a folder; files are opened by `Descriptor`."""
RENAMES_OPEN_FILES = os.name != "nt"
"""Whether a file can be renamed, or replaced, while it is open."""
PATIENCE = 2.0
"""Seconds to try again where it cannot. Scanners for viruses hold a new file for moments."""
PAUSE = 0.01

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


class Descriptor(io.FileIO):
    """An open file that is passed to system calls in place of its number.

    A call keeps a reference to the object until it returns, and the file is
    closed when there are no references. So a call in progress ends before the
    file is closed, and the system cannot give its number to another file. This
    needs no lock and no reference count of our own.

    The object owns the file from the call that opens it to the call that closes
    it. Both run in C, where no interrupt can come between. Do not keep a
    `Descriptor` in a local variable for longer than a call, because the traceback
    of an exception keeps the variable.
    """

    __index__ = io.FileIO.fileno
    __del__ = io.FileIO.close


def duplicated(descriptor: Any) -> io.FileIO:
    """Return a file object for reading that owns a duplicate of a descriptor."""
    # One call in C, so that no interrupt leaves a duplicate without an owner.
    return next(map(io.FileIO, map(os.dup, (descriptor,)), ("rb",)))


def read_some(descriptor: Any, view: memoryview, offset: int, lock: threading.Lock) -> int:
    """Read some bytes at `offset` into `view` without moving the file's position.

    On systems without ``preadv`` it is moved under `lock`, and restored.
    """
    try:
        if hasattr(os, "preadv"):
            return os.preadv(descriptor, [view], offset)
        with lock, position_kept(descriptor):
            os.lseek(descriptor, offset, os.SEEK_SET)
            data = os.read(descriptor, min(len(view), _READ_SIZE))
    finally:
        # A traceback keeps this frame alive, but must not keep the file open.
        del descriptor
    view[: len(data)] = data
    return len(data)


@contextlib.contextmanager
def position_kept(descriptor: Any) -> Iterator[None]:
    """Restore the position of a file, which the caller's file object may share."""
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        yield
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)
        # As in `read_some`.
        del descriptor


def mapped(kind: Callable[..., Any], descriptor: Any, size: int, **options: Any) -> Any:
    """Return a map of an open file. On Windows, `mmap.mmap` moves the file's position."""
    try:
        with position_kept(descriptor):
            return kind(descriptor, size, **options)
    finally:
        del descriptor


class _Closed:
    """A placeholder for a closed `Descriptor`: any use raises ClosedArchiveError."""

    closed = True

    def __index__(self) -> NoReturn:
        raise closed_error()

    fileno = __index__


CLOSED = _Closed()


class File:
    """A file open for reading and writing at any offset, by several threads.

    Parameters
    ----------
    path : str or None
        The file to open, unless a descriptor is given.
    descriptor : int, optional
        The descriptor of a file open for writing; a duplicate of it is kept.
    is_new : bool, default False
        Create the file, and raise FileExistsError if it exists.
    mode : int, default 0o666
        Permissions of a new file, before the umask is applied.
    kind : type, default Descriptor
        What holds a new file.

    Attributes
    ----------
    descriptor : Descriptor
        `CLOSED` after the file is closed.
    """

    def __init__(
        self,
        path: str | None,
        descriptor: Any = None,
        *,
        is_new: bool = False,
        mode: int = 0o666,
        kind: type[Descriptor] = Descriptor,
    ) -> None:
        self.descriptor: Any = CLOSED
        self.path = path
        self._lock = threading.Lock()
        if descriptor is not None:
            # As in `duplicated`.
            self.descriptor = next(map(Descriptor, map(os.dup, (descriptor,)), ("r+b",)))
        elif is_new and path is not None:
            self.descriptor = kind(path, "x+b", opener=partial(os.open, mode=mode))
        elif path is not None:
            self.descriptor = Descriptor(path, "r+b", opener=os.open)

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def patch(self, offset: int, data: Buffer) -> None:
        """Write all of `data` at `offset`."""
        view = memoryview(data)
        if hasattr(os, "pwrite"):
            while view:
                written = os.pwrite(self.descriptor, view[:_CALL_SIZE], offset)
                view, offset = view[written or _refused() :], offset + written
            return
        with self._lock, position_kept(self.descriptor):
            os.lseek(self.descriptor, offset, os.SEEK_SET)
            while len(view):
                view = view[os.write(self.descriptor, view[:_CALL_SIZE]) or _refused() :]

    def readinto_at(self, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes at `offset`."""
        while len(view):
            count = read_some(self.descriptor, view, offset, self._lock)
            if not count:
                raise OSError(errno.EIO, "the file was truncated while it was written", self.path)
            view, offset = view[count:], offset + count

    def read_at(self, offset: int, size: int) -> bytes:
        """Return the bytes at `offset`, without a copy where the system has ``pread``."""
        data = os.pread(self.descriptor, size, offset) if hasattr(os, "pread") else b""
        if len(data) == size:
            return data
        buffer = bytearray(size)
        self.readinto_at(offset, memoryview(buffer))
        return bytes(buffer)

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes, or extend it with zeros."""
        try:
            os.ftruncate(self.descriptor, size)
        except OSError as error:
            # Windows cuts off no file that is mapped.
            if RENAMES_OPEN_FILES or error.errno not in (errno.EINVAL, errno.EACCES):
                raise
            raise _in_use(error, self.path) from None

    def reserve(self, offset: int, size: int, mapped: bool = False) -> None:
        """Reserve disk space for `size` new bytes, so that a full disk is reported now.

        Parameters
        ----------
        offset, size : int
            A range that was not written yet.
        mapped : bool, default False
            Whether the bytes may be written through a map. If the disk is full,
            the system then kills the process instead of raising an error. So the
            space is reserved for any size, by writing zeros if necessary.
        """
        if not mapped and size < _RESERVE_SIZE:
            return
        if not _allocate(self.descriptor.fileno(), offset, size) and mapped:
            self._write_zeros(offset, size)

    def fill_holes(self, offset: int, size: int) -> None:
        """Reserve disk space for the holes in a range, before it is mapped.

        Written bytes are not changed. No other process may write to the range
        meanwhile.
        """
        for start, end in list(self._holes(offset, offset + size)):
            if not _allocate(self.descriptor.fileno(), start, end - start):
                self._write_zeros(start, end - start)

    def has_holes(self, offset: int, size: int) -> bool:
        """Return whether parts of a range have no disk space; False if unknown."""
        return any(True for _ in self._holes(offset, offset + size))

    def _holes(self, offset: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each hole; reserved space may look like one."""
        found = os.fstat(self.descriptor)
        # Most files have no holes, and are not searched.
        if not hasattr(os, "SEEK_HOLE") or found.st_blocks * _BLOCK_SIZE >= found.st_size:
            return
        while (start := self._seek(offset, os.SEEK_HOLE, end)) < end:
            offset = self._seek(start, os.SEEK_DATA, end)
            yield start, offset

    def _seek(self, offset: int, whence: int, end: int) -> int:
        """Return the offset of the next hole or data, or `end` if there is none before it."""
        with self._lock, position_kept(self.descriptor):
            try:
                return min(os.lseek(self.descriptor, offset, whence), end)
            except OSError as error:
                if error.errno not in (errno.ENXIO, *_UNSUPPORTED):
                    raise
                return end

    def _write_zeros(self, offset: int, size: int) -> None:
        zeros = memoryview(bytes(min(size, _READ_SIZE)))
        for start in range(0, size, len(zeros) or 1):
            self.patch(offset + start, zeros[: size - start])

    def begin_sync(self, offset: int, size: int) -> None:
        """Have the system begin to write a range, so that a later `sync` takes less time.

        The pages stay in memory, because they are being written.
        """
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self.descriptor, offset, size, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        """Wait until everything written is on disk."""
        if _sync_fully(self.descriptor.fileno()):
            return
        if hasattr(os, "fdatasync"):
            os.fdatasync(self.descriptor)
        else:
            os.fsync(self.descriptor)

    def close(self) -> None:
        """Close the file now, or when a write in progress ends.

        May be called twice.
        """
        if self.descriptor is CLOSED:
            return
        try:
            # A network file system may not report a full disk before a close. Closing a
            # duplicate reports it too, in one call in C that no interrupt can split.
            next(map(os.close, map(os.dup, (self.descriptor,))))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        finally:
            self.descriptor = CLOSED


def _allocate(descriptor: int, offset: int, size: int) -> bool:
    """Reserve space in a file, and return whether the system supports it."""
    if not hasattr(os, "posix_fallocate"):
        return False
    if size:
        try:
            os.posix_fallocate(descriptor, offset, size)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return False
    return True


def _refused() -> NoReturn:
    """Raise OSError, as no bytes were written: a loop would not end."""
    raise OSError(errno.EIO, "the file accepts no more bytes")


def _sync_fully(descriptor: int) -> bool:
    """Sync with F_FULLFSYNC on macOS, where fsync leaves data in the drive's cache."""
    try:
        import fcntl
    except ImportError:
        return False
    call: Any = getattr(fcntl, "F_FULLFSYNC", None)
    if call is None:
        return False
    try:
        fcntl.fcntl(descriptor, call)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
            raise
        return False
    return True


def is_in_use(error: BaseException) -> bool:
    """Return whether Windows refused to change a file that is open or mapped."""
    return not RENAMES_OPEN_FILES and isinstance(error, PermissionError)


def _in_use(error: OSError, path: str | None) -> PermissionError:
    """Return the error for a file that is in use, which names no other file than `path`."""
    what = "another program, or this one, has the file open or mapped: close it, and try again"
    return PermissionError(error.errno, what, path)


def _once_free(patience: float, call: Callable[..., T], path: str, *others: str) -> T:
    """Return what a call does for a path; on Windows, wait until nobody has the file open."""
    end = time.monotonic() + patience
    while True:
        try:
            return call(path, *others)
        except PermissionError as error:
            if not is_in_use(error):
                raise
            if time.monotonic() >= end:
                raise _in_use(error, others[-1] if others else path) from None
        time.sleep(PAUSE)


def replace(source: str, target: str, *, patience: float = PATIENCE) -> None:
    """Rename a file to `target`, replacing an existing file in one step; or a folder."""
    _once_free(patience, os.replace, source, target)


def link(source: str, target: str) -> None:
    """Rename a file, unless `target` exists.

    Raises
    ------
    FileExistsError
    """
    try:
        # Unlike a rename, a link never replaces an existing file.
        os.link(source, target)
    except (OSError, AttributeError):
        # No hard links (FAT, some network shares): create `target` first, if it is free.
        Descriptor(target, "xb", opener=partial(os.open, mode=0o666)).close()
        try:
            replace(source, target)
        except BaseException:
            unlink(target)
            raise
    else:
        with contextlib.suppress(OSError):
            unlink(source)


def share(source: str, target: str) -> bool:
    """Give a file a second name, and return whether the file system can do so.

    Raises
    ------
    FileNotFoundError, FileExistsError
    """
    try:
        # A link to a symbolic link would be relative to another folder.
        os.link(os.path.realpath(source), target)
    except (FileNotFoundError, FileExistsError):
        raise
    except (OSError, AttributeError):
        # No hard links (FAT, some network shares), or too many of this file.
        return False
    return True


def unlink(path: str, *, patience: float = PATIENCE) -> None:
    """Remove a file if it exists."""
    with contextlib.suppress(FileNotFoundError):
        _once_free(patience, os.unlink, path)


def make_directory(path: str) -> None:
    """Make a directory, and those above it, unless it exists."""
    os.makedirs(path, exist_ok=True)


def remove_directory(path: str) -> None:
    """Remove a directory if it exists and is empty."""
    with contextlib.suppress(OSError):
        os.rmdir(path)


def sync_directory(directory: str) -> None:
    """Wait until renames in a directory are on disk. Windows cannot open directories."""
    if os.name == "nt":
        return
    # Unpacking is not a call, so no interrupt can come before the try. A `Descriptor`
    # cannot open a folder.
    (descriptor,) = map(os.open, (directory,), (os.O_RDONLY | OPEN_FLAGS,))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_binary(file: Any, mode: str) -> None:
    """Raise TypeError for a file object that was opened in text mode."""
    if isinstance(file, io.TextIOBase):
        raise TypeError(f"the file is open in text mode; use open(path, {mode!r}) instead")
