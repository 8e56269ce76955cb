"""Where the bytes of an archive are written to.

Owns the interface of a sink, and the sink for a caller's file object.
`npzkit.files.path_sink` writes to paths, `npzkit.files.new_file_at_once` small archives, and
`npzkit.stores.upload_sink` to stores. Knows of zip only that an archive's last record begins with
`SIGNATURE`.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from typing import Any

from npzkit.errors import ClosedArchiveError, StaleArchiveError
from npzkit.files.append_room import SIGNATURE, Append, Ending, Room, without
from npzkit.files.disk import Buffer
from npzkit.files.file_objects import name_of, unwrapped, write_all

_ZEROS_SIZE = 1 << 22
"""Zeros written at a time to skip bytes."""
SEAL_SIZE = len(SIGNATURE)
"""Bytes of its last record that a small append writes after everything else.
Until then it is not valid."""


def overwritten(path: str) -> StaleArchiveError:
    """Return the error for an archive that another program has changed."""
    return StaleArchiveError(
        "another program wrote to the archive while it was open here", path=path,
        remedy="Its changes are kept: open the archive again, and repeat yours.",
    )  # fmt: skip


class Sink:
    """A place to write one archive to, from front to back, in one or more commits.

    Committed bytes are never changed, but for what their commit lacks. Later data
    is written after them, and is valid once the file ends with its last record: either the
    first `SEAL_SIZE` bytes of that are written last, or what follows it is cut off.

    Attributes
    ----------
    position : int
        Bytes written so far.
    committed_size : int
        Bytes committed so far; 0 before the first commit.
    can_patch : bool
        Whether `patch` can change bytes that were written, and `keep` was called for.
    can_read : bool
        Whether `readinto_at` can read them back.
    is_concurrent : bool
        Whether any thread may write bytes at any offset at any time.
    is_in_doubt : bool
        Whether a commit failed and could not be undone.
    commits_once : bool
        Whether nothing can be written after a commit.
    paths : tuple of str
        At one of them, other processes find the file; none for a file object.
    descriptor : Descriptor or None
        To map the file with.
    """

    position: int = 0
    committed_size: int = 0
    can_patch: bool = False
    can_read: bool = False
    is_concurrent: bool = False
    is_in_doubt: bool = False
    commits_once: bool = False
    paths: tuple[str, ...] = ()
    descriptor: Any = None

    def write(self, data: Buffer) -> None:
        """Write all of `data` at `position`. It may be reused afterwards."""
        raise NotImplementedError

    def have_room(self, size: int) -> None:
        """Let an append have room for `size` more bytes, which `reserve` takes on the disk."""

    def reserve(self, size: int, *, mapped: bool = False) -> None:
        """Reserve space for `size` more bytes, so that a full disk is reported now.

        `mapped` is as in `npzkit.files.disk.File.reserve`.
        """

    def keep(self, offset: int, size: int) -> None:
        """Say that bytes at `offset`, which are written next, will be patched until `release`."""

    def release(self, offset: int) -> None:
        """Say that the bytes which were kept at `offset` are final."""

    def patch(self, offset: int, data: Buffer) -> None:
        """Overwrite bytes at `offset` that were written or skipped before."""
        raise NotImplementedError

    def skip(self, size: int) -> None:
        """Leave `size` zeros for `patch` to fill. If the disk is full, fail now."""
        zeros = bytes(min(size, _ZEROS_SIZE))
        for start in range(0, size, len(zeros) or 1):
            self.write(zeros[: size - start])

    def readinto_at(self, offset: int, view: memoryview) -> None:
        """Fill `view` with bytes that were written or skipped before."""
        raise NotImplementedError

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes that were written or skipped before."""
        buffer = bytearray(size)
        self.readinto_at(offset, memoryview(buffer))
        return bytes(buffer)

    def begin_append(self, append: Append) -> None:
        """Write the first bytes of an append, behind the last commit."""
        raise NotImplementedError

    def commit(self, last: bytes, before: bytes = b"", ending: Ending | None = None) -> bool:
        """Write the last record, and make everything written so far valid.

        `before` is written before it. Together they identify this commit. More
        data and commits may follow. If this fails, `abort` restores the
        previous commit.

        `ending` is given for an append only.

        Returns whether the place is none where a commit can end. Then nothing is committed,
        `position` is another one, and the caller tries again with records for that.
        """
        raise NotImplementedError

    def start_over(self) -> None:
        """Let what is written next take the place of what was committed, which has no members."""
        raise NotImplementedError

    def rewind(self) -> None:
        """Write what comes next over what was written, of which nothing was committed."""
        raise NotImplementedError

    def cut_rest(self) -> None:
        """Cut off what follows `position`, after `rewind`."""
        raise NotImplementedError

    def abort(self) -> None:
        """Remove what was not committed, if possible, and close.

        Raises
        ------
        OSError
            It could not be removed; readers skip it.
        """
        raise NotImplementedError

    def discard(self, error: BaseException) -> None:
        """Abort because of an error, and add a note to it that says what became of the archive."""
        # If only the sync of the folder failed, the new file is in place.
        state = "is in its place" if self.committed_size else "was discarded"
        try:
            self.abort()
        except OSError as second:
            state += f", but could not be removed: {second}"
        error.add_note(f"npzkit: the new archive {state}.")

    def close(self) -> None:
        """Close the file. Uncommitted bytes stay in it, and readers skip them."""
        raise NotImplementedError


class FileSink(Sink):
    """A caller's file object, written from its current position on.

    It stays open unless `owned`. An archive that begins it takes the place of all of it; behind
    other bytes, what follows the archive stays. Bytes written before the first commit
    cannot be removed. An aborted archive has no end record, so that readers do
    not take it for a complete one.

    Parameters
    ----------
    file : file object
    owned : bool
        Close the file object with the sink.
    committed_size : int, optional
        Size of an archive at the start of the file. New data is written after
        it.
    """

    def __init__(
        self, file: Any, *, owned: bool = False, committed_size: int | None = None
    ) -> None:
        self._file = file
        self._owned = owned
        self._name = name_of(file)
        # The file has one position, which threads that fill created arrays share.
        self._lock = threading.RLock()
        self.can_patch = _is_seekable(file)
        self.can_read = self.can_patch and file.readable()
        # A commit that another one follows is changed last of all: in its place, nothing can be.
        self.commits_once = not self.can_patch
        if committed_size is None:
            self._start = file.tell() if self.can_patch else 0
        else:
            self._start, self.committed_size = 0, committed_size
            self.position = committed_size
        # Bytes of an unfinished append may follow the archive.
        self._has_tail = committed_size is not None
        self._size = self._find_size() if self._has_tail and self.can_patch else 0
        self._is_closed = False
        # An archive without members, in whose place another one is written.
        self._empty = b""
        self._room: Room | None = None

    def write(self, data: Buffer) -> None:
        with self._lock:
            if self._has_tail:
                if self._find_size() != self._size:
                    raise overwritten(self._name)
                self._has_tail = False
                self._cut(self.committed_size)
            if self._room is not None:
                self._room.reach(self.position + len(data))
            write_all(self._file, data)
            self.position += len(data)

    def begin_append(self, append: Append) -> None:
        self.write(append.intent)
        self._room = Room(self.patch, lambda: None, append, self.position)

    def readinto_at(self, offset: int, view: memoryview) -> None:
        with self._lock:
            self._file.seek(self._start + offset)
            done = 0
            while done < len(view):
                count = self._file.readinto(view[done:])
                if not count:
                    raise OSError(errno.EIO, "the file object lost bytes that were written")
                done += count
            self._file.seek(self._start + self.position)

    def patch(self, offset: int, data: Buffer) -> None:
        with self._lock:
            if self._is_closed:
                # A thread was still filling an array when the writer closed.
                raise ClosedArchiveError("the writer is closed", path=self._name)
            self._file.seek(self._start + offset)
            write_all(self._file, data)
            self._file.seek(self._start + self.position)

    def commit(self, last: bytes, before: bytes = b"", ending: Ending | None = None) -> bool:
        pieces: tuple[Buffer, ...] = (before,)
        if ending is not None:
            pieces = without(before, ending.magic, self.position)
        self.write(b"".join((*pieces, last)))
        is_whole = self.can_patch and self._start == 0 and self._room is None
        if is_whole and self._find_size() > self.position:
            # Of what the file object had before.
            self._cut(self.position)
        self._flush()
        if self._room is not None:
            self._room = None
            self._cut(self.position)
            if ending is not None:
                self.patch(*ending.magic)
                self.patch(*ending.mark)
            self._flush()
        self.committed_size, self._empty = self.position, b""
        return False

    def start_over(self) -> None:
        self._empty = self.read_at(0, self.committed_size)
        if not self._has_tail:
            self._has_tail, self._size = True, self._start + self.position
        self.position = self.committed_size = 0

    def rewind(self) -> None:
        with self._lock:
            self.position = 0
            self._file.seek(self._start)

    def cut_rest(self) -> None:
        self._cut(self.position)

    def _find_size(self) -> int:
        """Return the size of the file, at whose end its position is then."""
        return int(self._file.seek(0, os.SEEK_END))

    def _flush(self) -> None:
        if hasattr(self._file, "flush"):
            self._file.flush()

    def _cut(self, size: int) -> None:
        """Truncate the file to `size` bytes, and seek to its end."""
        with self._lock:
            self._file.truncate(self._start + size)
            self._file.seek(self._start + size)

    def abort(self) -> None:
        try:
            if self._has_tail or not self.can_patch:
                return
            if self.committed_size:
                self._cut(self.committed_size)
            elif self._empty:
                self._cut(0)
                write_all(self._file, self._empty)
        finally:
            self.close()

    def close(self) -> None:
        self._is_closed = True
        if self._owned:
            self._file.close()


def _is_seekable(file: Any) -> bool:
    """Return whether bytes already written can be changed by seeking back.

    Only the file types of `io` are trusted. A GzipFile claims that it can seek,
    a subclass may hash or count what its ``write`` gets, and a file opened in
    append mode always writes at its end.
    """
    file = unwrapped(file)
    if type(file) not in (io.FileIO, io.BufferedWriter, io.BufferedRandom):
        return type(file) is io.BytesIO
    raw = getattr(file, "raw", file)
    if type(raw) is not io.FileIO or raw.closed:
        return False
    return "a" not in raw.mode and raw.seekable()
