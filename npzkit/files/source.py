"""Where the bytes of an archive are read from.

Owns the file descriptor, buffer or file object. Knows nothing about zip or NPY.
Every source reads at an explicit offset and has no position of its own, so
threads and forked processes can share it. The exception is a file object
without a descriptor, which takes a lock to seek and read.

A source may be closed while other threads read. A read in progress finishes and
returns the right bytes. A later read raises ClosedArchiveError. If a caller
closes its own file object, both raise it, because the bytes may be wrong.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from npzkit.errors import ClosedArchiveError, StaleArchiveError, UnsupportedError, closed_error
from npzkit.files.disk import CLOSED, Buffer, Descriptor, check_binary, duplicated, read_some
from npzkit.files.file_objects import (
    UNNAMED,
    can_read,
    cannot_seek,
    identity_of,
    is_archive,
    is_plain_file,
    name_of,
    open_regular,
    position_of,
    unwrapped,
)

T = TypeVar("T")


class Source:
    """Random access to the bytes of one archive.

    Attributes
    ----------
    name : str
        For messages and reprs: the path, or `UNNAMED`.
    path : str or None
        The absolute path, if the source was opened from a path.
    is_pathlike : bool
        Whether the path was passed as an ``os.PathLike``, not as a string.
    size : int
        Size in bytes when the source was opened. It is reduced if the archive
        ends earlier.
    is_locked : bool
        Whether the opener holds the lock against other writers.
    is_shared : bool
        Whether the opener changes the file in place. Its modification time then
        does not show changes by others.
    file : file object or None
        The file that the bytes are read from.
    handle : file object or None
        The object that was passed or opened: `file`, or a wrapper that would
        close `file` when it is deleted.
    position : int
        The position of a file object when it was passed.
    is_distant : bool
        Whether each read is a request that takes long. Callers then say with
        `ahead` what they will read, or read more at once.
    tag : str
        What a store calls the version of the object that was opened. Empty if it does not say,
        and for files.
    """

    name: str = UNNAMED
    tag: str = ""
    path: str | None = None
    is_pathlike: bool = False
    size: int = 0
    is_locked: bool = False
    is_shared: bool = False
    file: Any = None
    handle: Any = None
    position: int = 0
    is_distant: bool = False
    _file_size: int | None = None

    @property
    def state(self) -> Any:
        """What must be equal when the file is opened again: size and time, or version.

        None if it cannot be opened again.
        """
        return None

    @property
    def reopening(self) -> tuple[str, dict[str, Any]]:
        """What opens the file again: its path or URL, and options that go with it."""
        raise ClosedArchiveError("the archive was not opened from a path or a URL")

    @property
    def shown_path(self) -> str | None:
        """The name for reports and errors; None if there is none."""
        return None if self.name == UNNAMED else self.name

    @property
    def file_size(self) -> int:
        """The size of the file, including bytes after the archive."""
        return self.size if self._file_size is None else self._file_size

    def check_versioned(self) -> None:
        """Warn, once, if parts of two versions could be mixed. Only stores may have that."""

    def readinto_at(self, offset: int, view: memoryview) -> None:
        """Fill all of `view` (format ``B``) with the bytes at `offset`."""
        raise NotImplementedError

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`.

        The caller must check that the range is within the source.
        """
        buffer = bytearray(size)
        self.readinto_at(offset, memoryview(buffer))
        return bytes(buffer)

    def read_within(self, offset: int, size: int) -> bytes:
        """Return as many of `size` bytes at `offset`, which may be anywhere, as the source has."""
        room = max(self.size - offset, 0)
        return self.read_at(self.size - room, min(size, room))

    def at_hand(self, offset: int, size: int) -> bytes | None:
        """Return bytes like `read_at`, or None if that takes a request."""
        return self.read_at(offset, size)

    def ahead(
        self,
        spans: Iterable[tuple[int, int]],
        *,
        at_once: bool = False,
        others: bool = False,
        ticket: object = None,
    ) -> Source:
        """Return a source in which some ranges are cheap to read: itself, unless it is distant.

        Parameters
        ----------
        spans : iterable of (int, int)
            Where each range begins and ends. Others can be read too.
        at_once : bool, default False
            Fetch all of them now, into memory. Otherwise they are fetched as
            they are read, and bounded memory is used.
        others : bool, default False
            Whether ranges will be read that are not known yet.
        ticket : object, optional
            What `give_up` takes.
        """
        return self

    def fill(self, pieces: Iterable[tuple[int, memoryview]], ticket: object = None) -> None:
        """Fill each view from its offset, several at a time if the source is distant."""
        for offset, view in pieces:
            self.readinto_at(offset, view)

    def give_up(self, ticket: object) -> None:
        """Make reads with this ticket fail soon, if each of them is a request."""

    def refresh(self) -> None:
        """Read the size and times of the file again, after a writer truncated it."""

    def is_being_written(self) -> bool:
        """Return whether another writer has the file open, or changed it since it was opened."""
        return False

    def check_unchanged(self, is_kept: Callable[[], bool] = lambda: False) -> None:
        """Raise StaleArchiveError if the file has changed.

        Parameters
        ----------
        is_kept : callable
            Returns whether the archive that was opened is still intact, as after
            an append. Called once per change.
        """

    def check_whole(self) -> None:
        """Raise StaleArchiveError if the file was truncated: its maps would crash."""

    def close(self) -> None:
        """Release what the source owns. May be called twice."""


class BufferSource(Source):
    """Bytes in memory: ``bytes``, ``bytearray``, ``memoryview``."""

    def __init__(self, buffer: Any) -> None:
        self._view = memoryview(buffer).cast("B").toreadonly()
        self.size = self._file_size = len(self._view)

    def readinto_at(self, offset: int, view: memoryview) -> None:
        view[:] = self.view_at(offset, len(view))

    def view_at(self, offset: int, size: int) -> memoryview:
        """Return the bytes themselves, which may be used when the source is closed."""
        try:
            return self._view[offset : offset + size]
        except ValueError:
            raise closed_error() from None

    def close(self) -> None:
        self._view.release()


class FileSource(Source):
    """A regular file, read by its descriptor.

    Attributes
    ----------
    identity : Identity
        Of the file when it was opened, used to detect changes.

    Notes
    -----
    Reads use ``preadv``. If it is missing (Windows), they seek and read under a lock.
    """

    def __init__(self, file: Any, *, handle: Any, owned: bool) -> None:
        self.file = file
        self.handle = handle
        is_own = type(file) is Descriptor and owned
        if not is_own:
            self.name = name_of(handle)
        self._lent: Any = None if is_own else file
        self._descriptor: Any = file if is_own else _Lent(file, handle if owned else None)
        self._lock = threading.Lock()
        self.position = 0 if is_own else position_of(file)
        self.refresh()

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a system function with the file's descriptor as its first argument.

        The file stays open until the call returns.

        Raises
        ------
        ClosedArchiveError
            The source was closed before the call, or a caller's own file was
            closed before it returned.
        """
        if self._lent is None:
            return function(self._descriptor, *args, **options)
        return self._call_lent(self._descriptor, function, *args, **options)

    def _call_lent(
        self, descriptor: Any, function: Callable[..., T], *args: Any, **options: Any
    ) -> T:
        """Call a system function, and check that the caller did not close the file meanwhile."""
        try:
            result = function(descriptor, *args, **options)
        except (OSError, ValueError):
            if self._lent.closed:
                raise closed_error() from None
            raise
        else:
            if self._lent.closed:
                raise closed_error()
        finally:
            # A traceback keeps this frame alive, but must not keep the file open.
            del descriptor
        return result

    @property
    def state(self) -> Any:
        return None if self.path is None else (self.identity.size, self.identity.modified_ns)

    @property
    def reopening(self) -> tuple[str, dict[str, Any]]:
        return str(self.path), {}

    def refresh(self) -> None:
        # `call` does nothing else for a file of our own.
        is_own = self._lent is None
        found = os.fstat(self._descriptor) if is_own else self.call(os.fstat)
        self.identity = self._accepted = identity_of(found)
        self.size = self._file_size = found.st_size

    def is_being_written(self) -> bool:
        if self.is_locked:
            return False
        # Asked of a file that looks damaged or unfinished.
        from npzkit.files.locking import is_locked

        if self.call(is_locked):
            return True
        # A writer that has closed may have completed the append that looks unfinished.
        return identity_of(self.call(os.fstat)) != self.identity

    def read_at(self, offset: int, size: int) -> bytes:
        if not hasattr(os, "pread"):
            return super().read_at(offset, size)
        own = self._lent is None
        data = (
            os.pread(self._descriptor, size, offset) if own else self.call(os.pread, size, offset)
        )
        return data if len(data) == size else super().read_at(offset, size)

    def readinto_at(self, offset: int, view: memoryview) -> None:
        count = 0
        if hasattr(os, "preadv"):
            # Like `read_some`, but saves Python calls per small member.
            if self._lent is None:
                count = os.preadv(self._descriptor, [view], offset)
            else:
                count = self.call(os.preadv, [view], offset)
        while count < len(view):
            more = self.call(read_some, view[count:], offset + count, self._lock)
            if not more:
                raise _stale(found=offset + count, expected=self.size)
            count += more

    def check_unchanged(self, is_kept: Callable[[], bool] = lambda: False) -> None:
        now = identity_of(self.call(os.fstat))
        if self.is_shared:
            self.identity = self.identity._replace(
                modified_ns=now.modified_ns, changed_ns=now.changed_ns
            )
        if now in (self._accepted, self.identity):
            return
        if not is_kept():
            raise _stale(found=now.size, expected=self.file_size)
        # `identity` stays, so that unpickling detects the change.
        self._accepted = now

    def check_whole(self) -> None:
        size = self.call(os.fstat).st_size
        if size < self.size:
            raise _stale(found=size, expected=self.size)

    def close(self) -> None:
        self._descriptor = CLOSED
        if self._lent is None:
            self.file = self.handle = CLOSED


class _Lent:
    """A caller's file, used like a `Descriptor`. The caller may close it at any time.

    Parameters
    ----------
    file : file object
        The file whose descriptor is used.
    owned : file object or None
        Closed when the descriptor is no longer used.
    """

    def __init__(self, file: Any, owned: Any) -> None:
        self._file, self._owned = file, owned

    def fileno(self) -> int:
        try:
            return cast(int, self._file.fileno())
        except ValueError:
            raise closed_error() from None

    __index__ = fileno

    def __del__(self) -> None:
        if self._owned is not None:
            self._owned.close()


class SeekingSource(Source):
    """Any object with ``read`` and ``seek``, used under a lock."""

    def __init__(self, file: Any, *, owned: bool = False) -> None:
        self.file = self.handle = file
        self.name = name_of(file)
        self._owned = owned
        self._is_closed = False
        self._lock = threading.Lock()
        self.position = position_of(file)
        end = file.seek(0, os.SEEK_END)
        self.size = self._file_size = end if end is not None else file.tell()
        file.seek(self.position)

    def readinto_at(self, offset: int, view: memoryview) -> None:
        try:
            with self._lock:
                self._readinto_at(offset, view)
        except ValueError:
            if not self._is_gone():
                raise
            raise closed_error() from None
        finally:
            if self._is_closed:
                self._close_unused()

    def _readinto_at(self, offset: int, view: memoryview) -> None:
        if self._is_gone():
            raise closed_error()
        done = 0
        self.file.seek(offset)
        while done < len(view):
            piece = self.file.read(len(view) - done)
            if not piece:
                raise _stale(found=offset + done, expected=self.size)
            view[done : done + len(piece)] = piece
            done += len(piece)

    def _is_gone(self) -> bool:
        return self._is_closed or bool(getattr(self.file, "closed", False))

    def close(self) -> None:
        self._is_closed = True
        self._close_unused()

    def _close_unused(self) -> None:
        """Close an owned file. If a read is in progress, the read closes it at its end."""
        # Never waits: in a forked child the lock may be held by no thread.
        if self._owned and self._lock.acquire(blocking=False):
            try:
                self.handle.close()
            finally:
                self._lock.release()


class LentSource(Source):
    """The source of an open archive. Closing this source leaves the archive open."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.name, self.path, self.is_pathlike = source.name, source.path, source.is_pathlike
        self.size, self._file_size = source.size, source.file_size
        self.file, self.handle, self.position = source.file, source.handle, source.position
        self.is_distant = source.is_distant

    def at_hand(self, offset: int, size: int) -> bytes | None:
        return self._source.at_hand(offset, size)

    def ahead(self, spans: Iterable[tuple[int, int]], **options: Any) -> Source:
        return self._source.ahead(spans, **options)

    def fill(self, pieces: Iterable[tuple[int, memoryview]], ticket: object = None) -> None:
        self._source.fill(pieces, ticket)

    def give_up(self, ticket: object) -> None:
        self._source.give_up(ticket)

    def read_at(self, offset: int, size: int) -> bytes:
        return self._source.read_at(offset, size)

    def readinto_at(self, offset: int, view: memoryview) -> None:
        self._source.readinto_at(offset, view)

    def check_unchanged(self, is_kept: Callable[[], bool] = lambda: False) -> None:
        self._source.check_unchanged(is_kept)

    def check_versioned(self) -> None:
        self._source.check_versioned()


class WrittenSource(Source):
    """A source that reads back the first `size` bytes of a sink, or of a `File`."""

    def __init__(self, sink: Any, size: int) -> None:
        self._sink = sink
        self.size = size

    def readinto_at(self, offset: int, view: memoryview) -> None:
        self._sink.readinto_at(offset, view)

    def read_at(self, offset: int, size: int) -> bytes:
        return cast(bytes, self._sink.read_at(offset, size))


class SourceFile(io.RawIOBase):
    """A source up to `end_offset`, as a readable file object with a position.

    `owned` is a source to close with it.
    """

    def __init__(self, source: Source, end_offset: int, owned: Source | None = None) -> None:
        self._source = source
        self._size = end_offset
        self._position = 0
        self._owned = owned

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}
        self._position = start[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        view = view[: max(self._size - self._position, 0)]
        self._source.readinto_at(self._position, view)
        self._position += len(view)
        return len(view)

    def close(self) -> None:
        super().close()
        if self._owned is not None:
            self._owned.close()


def overlay(view: memoryview | bytearray, offset: int, place: int, data: Buffer) -> int:
    """Copy the part of `data`, which begins at `place`, that `view` shows from `offset` on.

    Returns how many bytes that are.
    """
    begin, end = max(place, offset), min(place + len(data), offset + len(view))
    if begin < end:
        view[begin - offset : end - offset] = data[begin - place : end - place]
    return max(end - begin, 0)


def _stale(*, found: int, expected: int) -> StaleArchiveError:
    return StaleArchiveError(
        "the file changed since it was opened",
        found=f"{found} bytes",
        expected=f"{expected} bytes",
        remedy="Open it again.",
    )


def duplicate(source: Source) -> Any:
    """Return a new file object for the file of a source, or None if it has no descriptor."""
    if not isinstance(source, FileSource):
        return None
    file = source.call(duplicated)
    file.name = source.name
    return file


def open_source(file: Any, *, owned: bool = False) -> Source:
    """Return a source for a path, a bytes-like object, a file object or an open archive.

    Parameters
    ----------
    file : str, path-like, bytes-like, file object or NpzFile
        Bytes are contents, never a path. A file object needs ``read`` and
        ``seek``. An archive stays open when the source is closed.
    owned : bool, default False
        Whether closing the source closes the file object. A file opened from a
        path is always closed.

    Raises
    ------
    OSError
        The path cannot be opened.
    FormatError
        The path is that of a FIFO, a socket or a device.
    UnsupportedError
        The stream cannot seek.
    """
    name = file
    if type(file) is not str:
        if isinstance(file, (bytes, bytearray, memoryview)):
            return BufferSource(file)
        if is_archive(file):
            return LentSource(file._lend_source())
        if can_read(file):
            return _wrap_file(file, owned=owned)
        name = os.fsdecode(file)
    # Of a path that begins with a slash, this is the absolute one, in half the time.
    path = os.path.normpath(name) if os.sep == "/" == name[:1] else os.path.abspath(name)
    opened = open_regular(name)
    try:
        source = FileSource(opened, handle=opened, owned=True)
    except BaseException:
        opened.close()
        raise
    source.name, source.path, source.is_pathlike = name, path, file is not name
    return source


def _wrap_file(file: Any, *, owned: bool) -> Source:
    """Return a source that reads by descriptor if `file` is a plain file, or by seeking."""
    inner = unwrapped(file)
    check_binary(inner, "rb")
    if is_plain_file(inner):
        if inner.writable() and isinstance(inner, io.BufferedRandom):
            inner.flush()
        return FileSource(inner, handle=file, owned=owned)
    try:
        return SeekingSource(file, owned=owned)
    except (OSError, AttributeError) as error:
        is_known = not isinstance(error, OSError) or error.errno in (None, errno.ESPIPE)
        # Windows says of a pipe that an argument is invalid.
        if not is_known and not cannot_seek(file):
            raise
        raise UnsupportedError(
            "the file object cannot seek, and an archive is read from its end",
            remedy="Read it from front to back, npzkit.iter_arrays(file), or into memory first: "
            "npzkit.open(file.read()).",
        ) from error
