"""A sink for a path: the buffer of small writes, in front of a new file or one that is appended to.

Owns which bytes are written at once and which are gathered, and when a new file becomes one that
is appended to. `npzkit.files.new_file` and `npzkit.files.append` say what reaches the disk when.
Knows nothing about zip or NPY.
"""

from __future__ import annotations

from typing import Any

from npzkit.codecs.checksum import crc32
from npzkit.files.append import AppendedFile
from npzkit.files.append_room import Append, Ending
from npzkit.files.disk import Buffer
from npzkit.files.new_file import NewFile
from npzkit.files.sink import Sink

_BUFFER_SIZE = 1 << 22
"""Bytes of small writes that are gathered for one system call."""
_DIRECT_SIZE = 1 << 16
"""Writes of at least this size go to the file without a copy."""


class PathSink(Sink):
    """A sink that writes to a path.

    Attributes
    ----------
    file : NewFile or AppendedFile
        New until the first commit.
    """

    can_patch = True
    can_read = True
    is_concurrent = True

    def __init__(self, file: NewFile | AppendedFile) -> None:
        self.file = file
        self._buffer = bytearray()
        self._flushed = 0

    @property
    def paths(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.file.path, self.file.target)

    @property
    def descriptor(self) -> Any:
        return self.file.file.descriptor

    def resume(self, committed_size: int, last_size: int, last_crc32: int) -> None:
        """Set the size of the archive to append to.

        Its last `last_size` bytes, which have this CRC-32, were written by its last commit.
        """
        self._appended.begin(committed_size, last_size, last_crc32)
        self.committed_size = self.position = self._flushed = committed_size

    @property
    def _appended(self) -> AppendedFile:
        assert isinstance(self.file, AppendedFile)  # noqa: S101 - there is a committed state
        return self.file

    def start_over(self) -> None:
        old = self._appended
        if self.committed_size:
            old.check_path()
            old.check_unchanged()
        old.close_file()
        self.file = new = old.become(NewFile)
        new.replace()
        self.position = self.committed_size = self._flushed = 0

    def rewind(self) -> None:
        self._flush()
        self.position = self._flushed = 0

    def cut_rest(self) -> None:
        self._flush()
        self.file.set_size(self.position)

    # -- writing ------------------------------------------------------------

    def begin_append(self, append: Append) -> None:
        self._appended.begin_append(append)
        self.write(append.intent)

    def write(self, data: Buffer) -> None:
        if len(data) < _DIRECT_SIZE:
            self._buffer += data
            self.position += len(data)
            if len(self._buffer) >= _BUFFER_SIZE:
                self._flush()
        else:
            end = self.position + len(data)
            # At once, before the buffer needs less.
            self.file.have_room(end)
            self._flush()
            self.file.put(self.position, data)
            self.position = self._flushed = end

    def _flush(self) -> None:
        """Write the buffer, which always has the last bytes before `position`."""
        if self._buffer:
            # A debugger may hold views of the buffer, so it is replaced instead of emptied.
            gathered, self._buffer = self._buffer, bytearray()
            self.file.put(self.position - len(gathered), gathered)
        self._flushed = self.position

    def _write_all(self, *pieces: Buffer) -> None:
        for piece in pieces:
            self.write(piece)
        self._flush()

    def have_room(self, size: int) -> None:
        self.file.have_room(self.position + size)

    def reserve(self, size: int, *, mapped: bool = False) -> None:
        self.file.reserve(self.position, size, mapped)

    def skip(self, size: int) -> None:
        self.reserve(size)
        end = self.position + size
        if self.file.file.size < end:
            # Before the first small write: ext4 with inline_data (Linux 6.18) loses bytes that
            # are written after a small write and this.
            self.file.set_size(end)
        self._flush()
        self.position = self._flushed = end

    def readinto_at(self, offset: int, view: memoryview) -> None:
        if offset + len(view) > self._flushed:
            self._flush()
        self.file.file.readinto_at(offset, view)

    def read_at(self, offset: int, size: int) -> bytes:
        if offset + size > self._flushed:
            self._flush()
        return self.file.file.read_at(offset, size)

    def patch(self, offset: int, data: Buffer) -> None:
        # Skipped bytes are never in the buffer, so that threads that fill them never flush.
        if offset + len(data) > self._flushed:
            self._flush()
        self.file.put(offset, data)

    # -- commits ------------------------------------------------------------

    def commit(self, last: bytes, before: bytes = b"", ending: Ending | None = None) -> bool:
        file = self.file
        if isinstance(file, NewFile):
            self._write_all(before, last)
            self._put_in_place(file, before, last)
            return False
        self.position = self._flushed = file.commit(
            self.position, self._buffer, before, last, ending, self._write_all
        )
        self.committed_size = file.committed_size
        return self.position != self.committed_size

    def _put_in_place(self, new: NewFile, before: bytes, last: bytes) -> None:
        """Complete a new file, and append to it from now on."""
        new.cut_unused(self.position)
        try:
            new.complete()
        finally:
            if new.is_placed:
                self.committed_size = self.position
        self.file = file = new.become(AppendedFile)
        file.placed, file.size = new.placed, self.position
        file.begin(self.position, len(before) + len(last), crc32(last, crc32(before)))
        new.sync_folder()

    def abort(self) -> None:
        try:
            self.file.abort()
        finally:
            self.is_in_doubt = self.file.is_in_doubt

    def close(self) -> None:
        self.file.close()
