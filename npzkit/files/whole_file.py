"""An archive that is in memory, written to its path in one go.

Owns the order of the calls: as few as keep what `npzkit.files.path_sink` guarantees, which
writes everything else. At every instant the path has its old contents or the new ones, even
after a crash, and no other process takes the new file for what a killed one left.
"""

from __future__ import annotations

import os
import stat

from npzkit.errors import quoted
from npzkit.files.disk import Buffer
from npzkit.files.locking import FileLock, lock_created
from npzkit.files.path_sink import PathSink
from npzkit.files.room import Ending

_ENDS_OF_FOLDERS = tuple(filter(None, (os.sep, os.altsep)))
_JOINED_SIZE = 1 << 14
"""Writes below this size are joined."""


class WholeFile(PathSink):
    """A sink for one commit, which keeps what it is given until then.

    Parameters
    ----------
    path : str
    durable, lock_timeout
        As of `npzkit.files.path_sink.PathSink`.

    Attributes
    ----------
    is_possible : bool
        Whether the path leads to a regular file, without a link, or to none yet. Others are
        for `npzkit.files.destinations`.
    """

    _kind = FileLock

    def __init__(self, path: str, *, durable: bool, lock_timeout: float) -> None:
        # Another thread may change the folder that relative paths begin in.
        absolute = path if path[:1] == "/" == os.sep else os.path.join(os.getcwd(), path)
        self._set_up(absolute, path, durable)
        self._lock_timeout = lock_timeout
        self._pieces: list[Buffer] = []
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
        try:
            self._begin()
            offset = 0
            for piece in self._pieces:
                with self._naming:
                    self._file.patch(offset, piece)
                offset += len(piece)
            self._complete()
        except BaseException as error:
            self._discard(error)
            raise
        finally:
            self.close()
        return False

    def _begin(self) -> None:
        if self._replaces:
            self._lock(self._name, self._lock_timeout, None)
        self._make(os.fstat(self._locks[0].fileno()) if self._locks else None)
        self._is_begun = True

    def _hold(self, temporary: str) -> None:
        # The file is held open by its own lock until it is in its place.
        self._locks.append(self.descriptor)
        lock_created(self._locks[-1], temporary)

    def _discard(self, error: BaseException) -> None:
        """Remove the new file unless it is in its place, and note which it is."""
        outcome = "what was written is in its place"
        if not self.committed_size:
            outcome = "the archive was discarded"
            try:
                self.abort()
            except OSError as second:
                outcome += f", but could not be removed: {second}"
        if self._is_begun:
            error.add_note(f"npzkit: {quoted(self._name)}: {outcome}.")
