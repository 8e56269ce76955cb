"""A file that is appended to: the order in which an append reaches the disk.

Owns what is written when, what is synced in between, and what is checked before. At every
instant the file has the contents before a commit or after it, even after a crash. An
append is written behind the committed bytes, in one of two ways:

==  =====================================  ====================================================
    what is small                          other appends
==  =====================================  ====================================================
1   is kept in memory                      are written into a room, behind which the older end
                                           is found (`npzkit.files.append_room`)
2   all of it is written at once, without  the record, the directory and the end are written,
    the first `SEAL_SIZE` bytes of its     without the magic of the record's footer
    end record, the seal
3   sync                                   sync
4   the seal is written: that is the       what follows the end is cut off: that is the commit;
    commit                                 then the magic is written
5   sync                                   sync
6   the mark is written                    the mark is written
==  =====================================  ====================================================

If the system refuses the cut, as Windows does while somebody maps the file, record, directory and
end are written again behind the copy, and committed by their seal.

It is synced only if it is to be durable; then the copy of the older end is synced, too, and a cut
that comes before the first write.

Committed bytes are never cut off, and overwritten only to complete their commit.
Programs that take no lock are noticed: before each change, the file must have the
size and the last commit that were left in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from npzkit.codecs.checksum import crc32
from npzkit.errors import StaleArchiveError
from npzkit.files import disk
from npzkit.files.append_room import FOUND_SIZE, SIGNATURE, Append, Ending, Room, without
from npzkit.files.disk import Buffer, File
from npzkit.files.locking import FileLock, lock_path
from npzkit.files.sink import SEAL_SIZE, overwritten
from npzkit.files.written_file import WrittenFile

_CHECKED_SIZE = 1 << 16
"""A commit of at least this size is compared piece by piece."""


class AppendedFile(WrittenFile):
    """A file that is appended to.

    Parameters
    ----------
    path, name, durable, lock_timeout
        As of `WrittenFile`.

    Attributes
    ----------
    placed : os.stat_result or None
        Of a file that was just put in its place, and is opened when it is needed.
    committed_size : int
        0 until `begin` is called.
    size : int
        What the file's size must be.
    """

    placed: os.stat_result | None = None
    committed_size = size = 0
    _known = 0, 0
    _is_changed = False
    _append: Append | None = None
    _room: Room | None = None
    # Whether an append is committed by its seal, though it has written into a room.
    _is_sealed = False
    # What a failed commit had written to be valid, which is taken back then.
    _completed: tuple[tuple[int, int], ...] = ()

    def begin(self, committed_size: int, last_size: int, last_crc32: int) -> None:
        """Append behind `committed_size` bytes, the last ones of which, of this CRC-32, are known.

        Everything behind them is removed before the first write.
        """
        self.committed_size = committed_size
        self._known = last_size, last_crc32
        self._append = self._room = None
        self._completed = ()
        self._is_changed = self._is_sealed = False

    def _open(self) -> File:
        """Open the file at the path, which must be the one that was committed."""
        if self._is_closed:
            super()._open()
        self._lock_again()
        try:
            file = File(self.target)
        except FileNotFoundError:
            if self.placed is None:
                raise
            raise self.stale() from None
        if self.placed is None or os.path.samestat(os.fstat(file.descriptor), self.placed):
            return file
        file.close()
        raise self.stale()

    def _lock_again(self) -> None:
        """Lock the file where the lock ended with a rename, so that others could replace it."""
        if not self.locks:
            self.locks.append(lock_path(self.target, 0.0))

    # -- what is checked ----------------------------------------------------

    def check_path(self) -> None:
        """Raise StaleArchiveError if the path no longer leads to the open file."""
        try:
            if os.path.samestat(os.fstat(self.descriptor), os.stat(self.target)):
                return
        except FileNotFoundError:
            pass
        raise self.stale()

    def check_lock(self) -> None:
        """Raise StaleArchiveError if the file was replaced between lock and open."""
        if not os.path.samestat(os.fstat(self.locks[0].fileno()), os.fstat(self.descriptor)):
            raise StaleArchiveError(
                "the archive was replaced while it was being opened", path=self.name,
                remedy="Try again.",
            )  # fmt: skip

    def check_unchanged(self) -> None:
        """Raise StaleArchiveError if another program changed the last commit."""
        if not self._is_as_committed():
            raise overwritten(self.name)

    def _is_as_committed(self) -> bool:
        """Return whether the bytes of the last commit are unchanged.

        Programs that take no lock may have rewritten the file in place, or written behind it.
        """
        (size, crc), end, file = self._known, self.committed_size, self.file
        if not end <= file.size <= self.size:
            return False
        if size < _CHECKED_SIZE:
            return crc32(file.read_at(end - size, size)) == crc
        from npzkit.files.block_reading import crc32_at

        return crc32_at(file, end - size, size, 1) == crc

    def _check_size(self, end: int) -> None:
        """Raise StaleArchiveError if another program made the file longer or shorter.

        It may have `end` bytes from now on.
        """
        if self.file.size != self.size:
            raise overwritten(self.name)
        self.size = max(self.size, end)

    # -- writing ------------------------------------------------------------

    def begin_append(self, append: Append) -> None:
        self._append, self._room = append, None

    def have_room(self, end: int) -> None:
        append, start = self._append, self.committed_size
        if append is None or end <= start:
            return
        if self._room is None:
            self._room = Room(self._put_down, self._sync, append, start + len(append.intent))
        self._room.reach(end)

    def put(self, offset: int, data: Buffer) -> None:
        if self._append is not None:
            self.have_room(offset + len(data))
        self._put_down(offset, data)

    def _put_down(self, offset: int, data: Buffer) -> None:
        if not self._is_changed:
            self._begin_to_change()
        self._check_size(offset + len(data))
        super().put(offset, data)

    def _begin_to_change(self) -> None:
        """Remove everything after the last commit before the first write there."""
        if self._is_changed or not self.committed_size:
            return
        self.check_unchanged()
        self._is_changed = True
        if self.file.size > self.committed_size:
            self.set_size(self.committed_size)
            # Otherwise a crash could mix removed bytes with those written now.
            self._sync()

    def set_size(self, size: int) -> None:
        self._check_size(size)
        super().set_size(size)
        self.size = size

    def reserve(self, offset: int, size: int, mapped: bool) -> None:
        self.have_room(offset + size)
        self._begin_to_change()
        self._check_size(offset + size)
        try:
            super().reserve(offset, size, mapped)
        finally:
            self.size = self.file.size

    def _sync(self) -> None:
        if self.durable:
            self.file.sync()

    # -- the commit ---------------------------------------------------------

    def commit(
        self,
        position: int,
        pending: Buffer,
        before: bytes,
        last: bytes,
        ending: Ending | None,
        write: Callable[..., object],
    ) -> int:
        """Complete an append in one of the two ways of the module.

        Parameters
        ----------
        position : int
            Where the rest goes, behind what is `pending`.
        before, last, ending
            As in `npzkit.files.sink.Sink.commit`.
        write : callable
            Writes what is pending, and pieces behind it.

        Returns
        -------
        int
            The end, which is `committed_size` now; or, if nothing was committed, where to go on.
        """
        self.check_path()
        if self._is_changed:
            # Otherwise the first write does.
            self.check_unchanged()
        end = position + len(before) + len(last)
        seal, rest = last[:SEAL_SIZE], last[SEAL_SIZE:]
        is_cut = not self._is_sealed and not (
            self._room is None
            and position - len(pending) == self.committed_size
            and self._is_small(end, (pending, before, rest))
        )
        if is_cut and ending is not None:
            self.have_room(end)
            write(*without(before, ending.magic, position), last)
        else:
            self._append = None
            write(before, last if is_cut else bytes(SEAL_SIZE) + rest)
        self._sync()
        if not is_cut:
            self.cut_unused(end)
            self._put_last(end - len(last), seal)
        elif behind := self._cut_rest(end):
            return behind
        elif ending is not None:
            self._completed += ((end - len(last), SEAL_SIZE),)
            self._put_last(*ending.magic)
        self._sync()
        if ending is not None:
            self._put_last(*ending.mark)
        self.begin(end, len(before) + len(last), crc32(last, crc32(before)))
        return end

    def _is_small(self, end: int, pieces: tuple[Buffer, ...]) -> bool:
        """Return whether others find the last end while all that is not written yet is written."""
        append = self._append
        is_near = append is not None and end - append.record <= FOUND_SIZE
        return is_near and SIGNATURE not in b"".join(pieces)

    def _put_last(self, offset: int, data: bytes) -> None:
        """Write bytes that are taken back if what follows fails."""
        self._completed += ((offset, len(data)),)
        self._put_down(offset, data)

    def _cut_rest(self, end: int) -> int:
        """Cut off what follows an append; if the system cannot, return where to go on behind it."""
        try:
            self.set_size(end)
        except OSError as error:
            room = self._room
            if not disk.is_in_use(error) or room is None:
                raise
            # Windows cuts off nothing that is mapped.
            self._is_sealed = True
            self._append = None
            return room.far_end
        return 0

    def _take_back(self) -> None:
        file = self._opened
        if file is None or not self._is_changed or file.size <= self.committed_size:
            return
        if not self._is_as_committed():
            # Another program wrote bytes that would be cut off, or changed the last commit.
            return
        try:
            file.truncate(self.committed_size)
        except OSError as error:
            if not self._completed and disk.is_in_use(error):
                # It is no part of the archive, and the next writer removes it.
                return
            if self._completed:
                # The commit was complete, but the sync failed. Without its seal it is not.
                self.is_in_doubt = True
                for offset, size in reversed(self._completed):
                    file.patch(offset, bytes(size))
                self.is_in_doubt = False
            raise

    def hand_over(self) -> FileLock:
        """Close the file, and return its lock for a rewrite of the file."""
        self._is_closed = True
        self.close_file()
        self._lock_again()
        # The last lock is on the file that is at the path now.
        for lock in self.locks[:-1]:
            lock.close()
        return self.locks.pop()


def appended_file(
    path: str, *, durable: bool, lock_timeout: float = 0.0, lock: FileLock | None = None
) -> AppendedFile:
    """Open a file to append to it; call `AppendedFile.begin` before the first write.

    Parameters
    ----------
    path : str
        Symbolic links are followed.
    durable, lock_timeout
        As of `AppendedFile`.
    lock : FileLock, optional
        A lock on the file that was taken before. It is released with the file.

    Raises
    ------
    ArchiveLockedError
        Another writer has the file open.
    PermissionError
        The file is read-only.
    """
    file = AppendedFile(os.path.realpath(path), path, durable=durable, lock_timeout=lock_timeout)
    try:
        file.hold(lock or lock_path(path, lock_timeout))
        file.check_path()
        file.check_lock()
        file.size = file.file.size
    except BaseException:
        file.abort()
        raise
    return file
