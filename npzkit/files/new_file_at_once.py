"""An archive that is in memory, written to its path in one go.

Owns what is written together. It is an `npzkit.files.new_file.NewFile` that is created when all
of it is known, by as few calls as keep what that guarantees.
"""

from __future__ import annotations

import os
import stat

from npzkit.errors import quoted
from npzkit.files.append_room import Ending
from npzkit.files.disk import Buffer
from npzkit.files.new_file import NewFile
from npzkit.files.sink import Sink

_ENDS_OF_FOLDERS = tuple(filter(None, (os.sep, os.altsep)))
_JOINED_SIZE = 1 << 14
"""Writes below this size are joined."""


class NewFileAtOnce(Sink):
    """A sink for one commit, which keeps what it is given until then.

    Parameters
    ----------
    path : str
    durable, lock_timeout
        As of `npzkit.files.new_file.NewFile`.

    Attributes
    ----------
    is_possible : bool
        Whether the path leads to a regular file, without a link, or to none yet. Others are
        for `npzkit.files.any_sink`.
    """

    def __init__(self, path: str, *, durable: bool, lock_timeout: float) -> None:
        # Another thread may change the folder that relative paths begin in.
        absolute = path if path[:1] == "/" == os.sep else os.path.join(os.getcwd(), path)
        self._file = NewFile(
            absolute, path, durable=durable, lock_timeout=lock_timeout, is_final=True
        )
        self._pieces: list[Buffer] = []
        self._buffer = bytearray()
        self._is_begun = False
        try:
            self.is_possible = self._replaces = stat.S_ISREG(os.lstat(path).st_mode)
        except FileNotFoundError:
            # A path that is empty, or ends with a slash, names no file.
            is_file = path and not path.endswith(_ENDS_OF_FOLDERS)
            self.is_possible, self._replaces = bool(is_file), False

    def write(self, data: Buffer) -> None:
        self.position += len(data)
        if len(data) < _JOINED_SIZE:
            self._buffer += data
        else:
            self._pieces += (self._buffer, data)
            self._buffer = bytearray()

    def commit(self, last: bytes, before: bytes = b"", ending: Ending | None = None) -> bool:
        self._pieces.append(self._buffer + before + last)
        self.position += len(before) + len(last)
        file = self._file
        try:
            if self._replaces:
                file.lock()
            file.make(os.fstat(file.locks[0].fileno()) if file.locks else None)
            self._is_begun = True
            offset = 0
            for piece in self._pieces:
                file.put(offset, piece)
                offset += len(piece)
            file.complete()
            file.sync_folder()
        except BaseException as error:
            self._discard(error)
            raise
        finally:
            file.close()
        return False

    def _discard(self, error: BaseException) -> None:
        """Remove the new file unless it is in its place, and note which it is."""
        outcome = "what was written is in its place"
        if not self._file.is_placed:
            outcome = "the archive was discarded"
            try:
                self._file.abort()
            except OSError as second:
                outcome += f", but could not be removed: {second}"
        if self._is_begun:
            error.add_note(f"npzkit: {quoted(self._file.name)}: {outcome}.")

    def close(self) -> None:
        self._file.close()
