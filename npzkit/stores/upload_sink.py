"""Writing an archive to a store: as an upload in parts, which appears when it is complete.

Owns how bytes are cut into parts, how many parts are in memory, which part waits because
some of its bytes are not final, and that what was not completed is removed. What a
request is in a store is that store's (`Upload`). Knows nothing about zip.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import sys
from functools import partial
from typing import Any, NamedTuple

from npzkit.errors import ClosedArchiveError, StaleArchiveError, UnsupportedError, quiet_at_exit
from npzkit.files.append_room import Ending
from npzkit.files.disk import Buffer
from npzkit.files.sink import Sink
from npzkit.files.source import overlay
from npzkit.files.threads import Pipeline
from npzkit.stores.retries import tried
from npzkit.stores.time_limits import patiently

PART_SIZE = 1 << 23
"""Bytes of the first parts. S3 takes no part below 5 MiB, except for the last one."""
GROWTH = 1000
"""Parts of one size. Those after them have twice the size, because S3 takes 10,000 parts."""
THREADS = 4
"""Parts that are sent at once. Twice as many are in memory."""
_LARGE_SIZE = 1 << 24
"""Of parts above this size, one is sent while the next one is made."""


class Upload(abc.ABC):
    """One object that is being made. Shared by threads.

    Nothing is visible in the store until `put` or `complete` returns.

    Attributes
    ----------
    name : str
        The URL without secrets.
    older : str or None
        What must be at the name for the object to appear there: the object with this ETag, or
        other mark of a `Version`. None is no object; if it is empty, any object or none.
    has_parts : bool
        Whether the store takes parts. Otherwise, the object is made of all bytes at once.
    has_any_order : bool
        Whether parts may be sent in any order, or there are none.

    Notes
    -----
    Each method raises TransientError if it may be called again, and
    PermissionError, FileNotFoundError (no such bucket) or another OSError if not.
    """

    has_parts: bool = True
    has_any_order: bool = False

    def __init__(self, name: str, older: str | None) -> None:
        self.name, self.older = name, older

    def check(self) -> None:
        """Raise FileExistsError or StaleArchiveError if another object is at the name now."""
        if self.older != "" and self.find_tag() != self.older:
            raise replaced(self.name, self.older)

    @abc.abstractmethod
    def find_tag(self) -> str | None:
        """Return what tells the object at the name from others; None if there is none."""

    @abc.abstractmethod
    def put(self, data: bytearray) -> None:
        """Make the object of these bytes.

        Raises
        ------
        FileExistsError, StaleArchiveError
            Another object is at the name.
        """

    @abc.abstractmethod
    def begin(self) -> None:
        """Begin to take parts. Remove what killed writers left under this name."""

    @abc.abstractmethod
    def send(self, number: int, data: bytearray) -> None:
        """Send one part. Parts are counted from 1."""

    @abc.abstractmethod
    def complete(self) -> None:
        """Make the object of all parts.

        Raises
        ------
        FileExistsError, StaleArchiveError
            Another object is at the name.
        """

    def is_in_place(self) -> bool:
        """Return whether the object is known to be this one, after an answer was lost."""
        return False

    def stop(self) -> None:
        """Make requests of other threads end soon, because nobody waits for them any more."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Remove the parts, unless the object is complete. May be called twice."""


def replaced(name: str, older: str | None) -> OSError | StaleArchiveError:
    """Return the error for an object that is not the one to be replaced."""
    if older is None:
        return FileExistsError(errno.EEXIST, "already exists", name)
    return StaleArchiveError(
        "another writer replaced or removed the object meanwhile", path=name,
        remedy="The object of the other writer is kept. To replace it, write the archive again.",
    )  # fmt: skip


class _Part(NamedTuple):
    """Bytes of the object from `start` on; parts are counted from 1."""

    number: int
    start: int
    data: bytearray


class UploadSink(Sink):
    """A sink that uploads. One commit makes the object.

    An archive of less than one part is sent by one request. Of a larger one, parts are
    sent while the next ones are written. If an interrupt comes during the last request, the
    store may still make the object of it, complete.

    Parameters
    ----------
    upload : Upload

    Attributes
    ----------
    name : str
        The URL without secrets.

    Raises
    ------
    FileExistsError
        There is an object, and the upload must not replace it.
    """

    commits_once = True

    def __init__(self, upload: Upload) -> None:
        self.name = upload.name
        # Bytes can be changed until their part is sent.
        self.can_patch = upload.has_any_order
        self._upload = upload
        self._process = os.getpid()
        self._open = _Part(1, 0, bytearray())
        self._waiting: list[_Part] = []
        self._kept: dict[int, int] = {}
        self._has_begun = self._is_closed = False
        self._pipeline = Pipeline(THREADS)
        self._try("the request for its state", upload.check)

    # -- writing ------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        self._check_open()
        view = memoryview(data)
        while view:
            part = self._open
            size = PART_SIZE << (part.number - 1) // GROWTH
            if not self._upload.has_parts:
                size = sys.maxsize
            piece = view[: size - len(part.data)]
            part.data.extend(piece)
            self.position += len(piece)
            view = view[len(piece) :]
            if len(part.data) == size:
                self._open = _Part(part.number + 1, self.position, bytearray())
                self._waiting.append(part)
                self._send_final()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedArchiveError("the writer is closed", path=self.name)

    def keep(self, offset: int, size: int) -> None:
        self._kept[offset] = offset + size

    def release(self, offset: int) -> None:
        self._kept.pop(offset, None)
        self._send_final()

    def _send_final(self) -> None:
        """Send those full parts whose bytes will not change."""
        final = [part for part in self._waiting if not self._is_kept(part)]
        self._waiting = [part for part in self._waiting if self._is_kept(part)]
        for part in final:
            self._send(part)

    def _is_kept(self, part: _Part) -> bool:
        end = part.start + len(part.data)
        return any(start < end and part.start < stop for start, stop in self._kept.items())

    def _send(self, part: _Part) -> None:
        if not self._has_begun:
            # Set first: an upload that was begun must be aborted.
            self._has_begun = True
            self._try("the beginning of the upload", self._upload.begin)
        if len(part.data) > _LARGE_SIZE:
            self._pipeline.drain()
        self._pipeline.submit(partial(self._send_one, part), lambda _: None)

    def _send_one(self, part: _Part) -> None:
        if not self._is_closed:
            self._try(f"part {part.number}", partial(self._upload.send, part.number, part.data))

    def patch(self, offset: int, data: Buffer) -> None:
        self._check_open()
        changed = sum(
            overlay(part.data, part.start, offset, data) for part in (*self._waiting, self._open)
        )
        if changed < len(data):
            raise UnsupportedError("bytes that were sent cannot be changed", path=self.name)

    def readinto_at(self, offset: int, view: memoryview) -> None:
        raise UnsupportedError("bytes that were uploaded cannot be read back", path=self.name)

    # -- the end ------------------------------------------------------------

    def commit(self, last: bytes, before: bytes = b"", ending: Ending | None = None) -> bool:
        self.write(before)
        self.write(last)
        self._kept.clear()
        if not (self._has_begun or self._waiting):
            self._finish(partial(self._upload.put, self._open.data))
            return False
        if self._open.data:
            self._waiting.append(self._open)
        self._send_final()
        self._pipeline.drain()
        self._finish(self._upload.complete)
        return False

    def _finish(self, request: Any) -> None:
        """Make the last request. If its answer is lost, find out whether it did its work."""
        try:
            self._try("the end of the upload", request)
        except (FileExistsError, PermissionError, StaleArchiveError):
            raise
        except BaseException as error:
            if not self._is_in_place():
                raise
            self.committed_size = self.position
            if not isinstance(error, Exception):
                raise
        self.committed_size = self.position
        self.close()

    def _is_in_place(self) -> bool:
        with contextlib.suppress(Exception):
            return patiently(self._upload.is_in_place)
        return False

    def abort(self) -> None:
        # A forked child that drops its copy must not end its parent's upload.
        is_under_way, self._is_closed = not self._is_closed, True
        if os.getpid() != self._process or sys.is_finalizing():
            return
        if is_under_way:
            self._upload.stop()
        try:
            self.close()
        finally:
            if self._has_begun and not self.committed_size:
                self._has_begun = False
                self._remove()

    def _remove(self) -> None:
        try:
            what = f"{self.name}, the removal of parts"
            patiently(partial(tried, self._upload.abort, what))
        except OSError as error:
            raise OSError(
                f"{error}. No archive is visible; the next upload to this name removes the parts"
            ) from None

    def close(self) -> None:
        self._is_closed = True
        if os.getpid() != self._process:
            # A forked child has none of its parent's threads.
            return
        self._waiting.clear()
        # As after an exception: what is not being sent is dropped.
        self._pipeline.__exit__(GeneratorExit)

    @quiet_at_exit
    def __del__(self) -> None:
        # An interrupt may come before the caller has a reference to the sink.
        if getattr(self, "_has_begun", False) and not (self.committed_size or self._is_closed):
            with contextlib.suppress(OSError):
                self.abort()

    def _try(self, what: str, request: Any) -> Any:
        return tried(request, f"{self.name}, {what}", lambda: not self._is_closed)
