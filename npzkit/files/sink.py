"""Where an archive's bytes go, and the one way in which a file object takes them.

Owns what a sink is, and the caller's file objects; paths are
`npzkit.files.path_sink`'s. Must never know zip or NPY.
"""

from __future__ import annotations

import abc
import errno
import io
import os
import threading
from typing import Any

from npzkit.errors import ClosedArchiveError
from npzkit.files.disk import Buffer
from npzkit.files.source import Source, name_of, unwrapped

__all__ = ["SEAL_SIZE", "FileSink", "Sink", "WrittenSource", "write_all"]

_ZEROS_SIZE = 1 << 22
"""Bytes that are skipped at a time where they must be written."""
SEAL_SIZE = 4
"""The first of the last bytes, written after all others: without them nothing counts."""


class Sink(abc.ABC):
    """A place to write one archive to, front to back, in one commit or several.

    What was committed is never changed: what comes later is written behind it,
    and counts once the first `SEAL_SIZE` of its last bytes are there.

    Attributes
    ----------
    position : int
        Bytes written so far.
    committed_size : int
        Those that count; 0 while none do.
    can_patch : bool
        Whether `patch` may change bytes that were written.
    can_read : bool
        Whether `readinto_at` can give them back.
    is_concurrent : bool
        Whether bytes at any place may be written at any time, by any thread.
    is_in_doubt : bool
        Whether a commit failed that nobody could take back.
    path, descriptor
        As of `Place`; None of a file object.
    """

    position: int = 0
    committed_size: int = 0
    can_patch: bool = False
    can_read: bool = False
    is_concurrent: bool = False
    is_in_doubt: bool = False
    path: str | None = None
    descriptor: Any = None

    @abc.abstractmethod
    def write(self, data: Buffer) -> None:
        """Write all of `data` at `position`. It may be reused afterwards."""

    def reserve(self, size: int, *, mapped: bool = False) -> None:
        """Reserve room for `size` more bytes; if that fails, fail now.

        `mapped` is as in `npzkit.files.disk.File.reserve`.
        """

    @abc.abstractmethod
    def patch(self, offset: int, data: Buffer) -> None:
        """Overwrite bytes at `offset` that were written or skipped before."""

    def skip(self, size: int) -> None:
        """Leave `size` bytes, zeros, for `patch`. Where there is no room, fail now."""
        zeros = bytes(min(size, _ZEROS_SIZE))
        for start in range(0, size, len(zeros) or 1):
            self.write(zeros[: size - start])

    @abc.abstractmethod
    def readinto_at(self, offset: int, view: memoryview) -> None:
        """Fill `view` with bytes that were written or skipped before."""

    @abc.abstractmethod
    def commit(self, last: bytes, before: bytes = b"") -> None:
        """Write the last bytes, and make all that was written the contents.

        `before` comes before them, and tells with them this commit from any
        other. More may follow, and be committed in turn. Where this fails, `abort`
        takes the contents back to the commit before.
        """

    @abc.abstractmethod
    def abort(self) -> None:
        """Forget what was not committed, as far as that is possible, and close.

        Raises
        ------
        OSError
            It is still there; readers pass over it.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of the file. What was not committed stays, and counts for nothing."""


class FileSink(Sink):
    """A caller's file object, written from its current position on.

    It is never closed here. Bytes that reached it before the first commit
    cannot be taken back; an aborted archive lacks its end record, so that no
    reader takes it for whole.

    Parameters
    ----------
    file : file object
    owned : bool
        Close it with the sink.
    committed_size : int, optional
        The file's first bytes, which are an archive: what is written comes
        behind them.
    """

    def __init__(
        self, file: Any, *, owned: bool = False, committed_size: int | None = None
    ) -> None:
        self._file = file
        self._owned = owned
        self._name = name_of(file)
        # The file has one position, and created arrays are filled while others are added.
        self._lock = threading.RLock()
        self.can_patch = _is_seekable(file)
        self.can_read = self.can_patch and file.readable()
        if committed_size is None:
            self._start = file.tell() if self.can_patch else 0
        else:
            self._start, self.committed_size = 0, committed_size
            self.position = committed_size
        # Of an append that was cut short.
        self._has_tail = committed_size is not None
        self._is_closed = False

    def write(self, data: Buffer) -> None:
        with self._lock:
            if self._has_tail:
                self._has_tail = False
                self._cut(self.committed_size)
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
            if self._is_closed:
                # A thread that fills an array came too late.
                raise ClosedArchiveError("the writer is closed", path=self._name)
            self._file.seek(self._start + offset)
            write_all(self._file, data)
            self._file.seek(self._start + self.position)

    def commit(self, last: bytes, before: bytes = b"") -> None:
        self.write(before)
        offset = self.position
        is_sealed_last = self.can_patch and self.committed_size > 0
        self.write(bytes(SEAL_SIZE) + last[SEAL_SIZE:] if is_sealed_last else last)
        self._flush()
        if is_sealed_last:
            self.patch(offset, last[:SEAL_SIZE])
            self._flush()
        self.committed_size = self.position

    def _flush(self) -> None:
        if hasattr(self._file, "flush"):
            self._file.flush()

    def _cut(self, size: int) -> None:
        """Drop the file's bytes from `size` on, and stand there."""
        with self._lock:
            self._file.truncate(self._start + size)
            self._file.seek(self._start + size)

    def abort(self) -> None:
        try:
            if self.committed_size and self.can_patch and not self._has_tail:
                self._cut(self.committed_size)
        finally:
            self.close()

    def close(self) -> None:
        self._is_closed = True
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


class WrittenSource(Source):
    """What a sink holds, to be read back: its first `size` bytes."""

    def __init__(self, sink: Sink, size: int) -> None:
        self._sink = sink
        self.size = size

    def readinto_at(self, offset: int, view: memoryview) -> None:
        self._sink.readinto_at(offset, view)
