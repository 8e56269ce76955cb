"""Every call that changes a file: the one layer that all writing goes through.

Owns descriptors and how long each is open, and what stands in for a call that
the operating system lacks. Knows nothing of what is in a file. A test that puts
something else in the place of this module's `os` sees, or spoils, every
change: `tests/support/crash.py` does. Maps alone write behind its back.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn, Protocol

from npzkit.errors import ClosedArchiveError

__all__ = ["CLOSED", "OPEN_FLAGS", "RENAMES_OPEN_FILES", "Buffer", "Descriptor", "File", "Place",
           "check_binary", "duplicated", "link", "replace", "sync_directory", "unlink"]  # fmt: skip

_CALL_SIZE = 1 << 30
"""Linux takes at most 2 GiB a call, macOS refuses more."""
_READ_SIZE = 1 << 22
"""Bytes asked of a call that returns them as an object of its own."""
_RESERVE_SIZE = 1 << 20
"""From this size on room is reserved first: a file written into reserved room
took 0.058 s where one that grew took 0.073 s (268 MB)."""
_BLOCK_SIZE = 512
"""Bytes that ``st_blocks`` counts by."""
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV}
"""Errors of a system or a file system that does not know a call."""

OPEN_FLAGS = getattr(os, "O_BINARY", 0)
"""What a folder is opened with; files are opened by `Descriptor`."""
RENAMES_OPEN_FILES = os.name != "nt"
"""Whether a file can be renamed, or replaced, while it is open."""

Buffer = bytes | bytearray | memoryview


class Descriptor(io.FileIO):
    """An open file that is passed to the calls of the system in place of its number.

    A call holds the object until it returns, and the file is closed when nobody
    holds the object. So a call that is under way ends before the file is closed,
    and the system cannot give the number to another file meanwhile. That costs
    no lock and no count of our own.

    The file has an owner from the call that opens it to the call that closes it:
    both happen in C, where no interrupt comes between. Keep no `Descriptor` in a
    local variable for longer than a call: an exception keeps the variable.
    """

    __index__ = io.FileIO.fileno
    __del__ = io.FileIO.close


def duplicated(descriptor: Any) -> io.FileIO:
    """Return a file object for reading that owns a duplicate of a descriptor."""
    # In one call of C's, so that no interrupt finds a duplicate without an owner.
    return next(map(io.FileIO, map(os.dup, (descriptor,)), ("rb",)))


class _Closed:
    """What takes the place of a `Descriptor` that was let go: any use is an error."""

    closed = True

    def __index__(self) -> NoReturn:
        raise ClosedArchiveError("the archive is closed", remedy="Open it again.")

    fileno = __index__


CLOSED = _Closed()


class Place(Protocol):
    """A file in which bytes are written at offsets, by several at a time.

    Attributes
    ----------
    path : str or None
        By which other processes find it.
    descriptor : Descriptor or None
        By which it can be mapped.
    """

    @property
    def path(self) -> str | None: ...
    @property
    def descriptor(self) -> Any: ...
    def patch(self, offset: int, data: Buffer) -> None: ...


class File:
    """A file open for reading and writing at offsets, by several at a time; a `Place`.

    Parameters
    ----------
    path : str or None
        Opened, unless there is a descriptor.
    descriptor : int, optional
        Of a file open for writing; a duplicate of it is kept.
    is_new : bool, default False
        Make the file; one that is there is an error.
    mode : int, default 0o666
        Permissions of a new file, less those that the process gives to none.

    Attributes
    ----------
    descriptor : Descriptor
        `CLOSED`, once the file is closed.
    """

    def __init__(
        self,
        path: str | None,
        descriptor: Any = None,
        *,
        is_new: bool = False,
        mode: int = 0o666,
    ) -> None:
        self.descriptor: Any = CLOSED
        self.path = path
        self._lock = threading.Lock()
        if descriptor is not None:
            # As in `duplicated`.
            self.descriptor = next(map(Descriptor, map(os.dup, (descriptor,)), ("r+b",)))
        elif is_new and path is not None:
            self.descriptor = Descriptor(path, "x+b", opener=partial(os.open, mode=mode))
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
                view, offset = view[_checked(written) :], offset + written
            return
        with self._lock:
            os.lseek(self.descriptor, offset, os.SEEK_SET)
            while len(view):
                view = view[_checked(os.write(self.descriptor, view[:_CALL_SIZE])) :]

    def readinto_at(self, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes at `offset`."""
        while len(view):
            if hasattr(os, "preadv"):
                count = os.preadv(self.descriptor, [view], offset)
            else:
                with self._lock:
                    os.lseek(self.descriptor, offset, os.SEEK_SET)
                    data = os.read(self.descriptor, min(len(view), _READ_SIZE))
                count = len(data)
                view[:count] = data
            if not count:
                raise OSError(errno.EIO, "the file lost bytes while it was written", self.path)
            view, offset = view[count:], offset + count

    def truncate(self, size: int) -> None:
        """Cut the file, or lengthen it by zeros."""
        os.ftruncate(self.descriptor, size)

    def reserve(self, offset: int, size: int, *, mapped: bool = False) -> None:
        """Reserve room for `size` new bytes at `offset`; if that fails, fail now.

        Parameters
        ----------
        offset, size : int
            Nothing was written there yet.
        mapped : bool, default False
            Whether the bytes may come through a map. A full disk then raises
            no error later: the system kills the process. So the room is taken
            whatever the size, by writing zeros if the system cannot reserve it.
        """
        if not mapped and size < _RESERVE_SIZE:
            return
        if not _allocate(self.descriptor.fileno(), offset, size) and mapped:
            self._write_zeros(offset, size)

    def fill_holes(self, offset: int, size: int) -> None:
        """Take room for what was never written of `size` bytes, before they are mapped.

        What was written stays as it is. No other process may write there meanwhile.
        """
        for start, end in list(self._holes(offset, offset + size)):
            if not _allocate(self.descriptor.fileno(), start, end - start):
                self._write_zeros(start, end - start)

    def has_holes(self, offset: int, size: int) -> bool:
        """Return whether parts of a range have no room on disk; False if unknown."""
        return any(True for _ in self._holes(offset, offset + size))

    def _holes(self, offset: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield where each hole begins and ends; reserved room may look like one."""
        found = os.fstat(self.descriptor)
        # Most files have none, and are not searched.
        if not hasattr(os, "SEEK_HOLE") or found.st_blocks * _BLOCK_SIZE >= found.st_size:
            return
        while (start := self._seek(offset, os.SEEK_HOLE, end)) < end:
            offset = self._seek(start, os.SEEK_DATA, end)
            yield start, offset

    def _seek(self, offset: int, whence: int, end: int) -> int:
        """Return where the next hole, or data, begins; `end` if there is none before it."""
        with self._lock:
            # The position may be one that the caller's file object shares.
            position = os.lseek(self.descriptor, 0, os.SEEK_CUR)
            try:
                return min(os.lseek(self.descriptor, offset, whence), end)
            except OSError as error:
                if error.errno not in (errno.ENXIO, *_UNSUPPORTED):
                    raise
                return end
            finally:
                os.lseek(self.descriptor, position, os.SEEK_SET)

    def _write_zeros(self, offset: int, size: int) -> None:
        zeros = memoryview(bytes(min(size, _READ_SIZE)))
        for start in range(0, size, len(zeros) or 1):
            self.patch(offset + start, zeros[: size - start])

    def take_after(self, other: os.stat_result) -> None:
        """Take another file's owner, group and permissions, as far as the system lets."""
        if not hasattr(os, "fchmod"):
            return
        mode = other.st_mode & 0o777
        # FAT and some shares have none of these.
        with contextlib.suppress(OSError):
            if not self._take_owner(other):
                # What its group may do is not for the members of another one.
                mode &= 0o707 | (mode & 0o007) << 3
            os.fchmod(self.descriptor, mode)

    def _take_owner(self, other: os.stat_result) -> bool:
        """Take a file's owner, and return whether its group could be taken."""
        own = os.fstat(self.descriptor)
        is_same_group = own.st_gid == other.st_gid
        if not is_same_group:
            with contextlib.suppress(OSError):
                os.fchown(self.descriptor, -1, other.st_gid)
                is_same_group = True
        if own.st_uid != other.st_uid:
            # Root alone gives files away.
            with contextlib.suppress(OSError):
                os.fchown(self.descriptor, other.st_uid, -1)
        return is_same_group

    def sync(self) -> None:
        """Wait until what was written is on disk."""
        if _sync_fully(self.descriptor.fileno()):
            return
        if hasattr(os, "fdatasync"):
            os.fdatasync(self.descriptor)
        else:
            os.fsync(self.descriptor)

    def close(self) -> None:
        """Let the file go: it is closed now, or when a write that is under way ends.

        May be called twice.
        """
        if self.descriptor is CLOSED:
            return
        try:
            # A network's file system may report only now that there is no room. The close of
            # a duplicate does: in one call of C's, so that no interrupt comes between.
            next(map(os.close, map(os.dup, (self.descriptor,))))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        finally:
            self.descriptor = CLOSED


def _allocate(descriptor: int, offset: int, size: int) -> bool:
    """Reserve room in a file, and return whether the system can."""
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


def _checked(written: int) -> int:
    """Raise where the system takes no bytes and says nothing: a loop would not end."""
    if written <= 0:
        raise OSError(errno.EIO, "the file takes no more bytes")
    return written


def _sync_fully(descriptor: int) -> bool:
    """Sync by macOS's own call: there fsync leaves the data in the drive's cache."""
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


def replace(source: str, target: str) -> None:
    """Rename a file; what was at `target` is gone in the same instant."""
    os.replace(source, target)


def link(source: str, target: str) -> None:
    """Give a file a new name, unless something is there.

    Raises
    ------
    FileExistsError
    """
    try:
        # Unlike a rename, a link never replaces what came in between.
        os.link(source, target)
    except (OSError, AttributeError):
        # No hard links here (FAT, some network shares): claim the name, if it is free.
        Descriptor(target, "xb", opener=partial(os.open, mode=0o666)).close()
        try:
            os.replace(source, target)
        except BaseException:
            os.unlink(target)
            raise
    else:
        with contextlib.suppress(OSError):
            os.unlink(source)


def unlink(path: str) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def sync_directory(directory: str) -> None:
    """Wait until new names are on disk too. Windows cannot open directories."""
    if os.name == "nt":
        return
    # No interrupt comes before the try: unpacking is no call. A `Descriptor` takes no folder.
    (descriptor,) = map(os.open, (directory,), (os.O_RDONLY | OPEN_FLAGS,))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_binary(file: Any, mode: str) -> None:
    """Raise TypeError for a file object that was opened in text mode."""
    if isinstance(file, io.TextIOBase):
        raise TypeError(f"the file is open in text mode: open it with open(path, {mode!r})")
