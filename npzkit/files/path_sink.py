"""Writing an archive to a path: as a new file that replaces the old one, or by appending.

Owns temporary files, buffering, the replacement of the old file, and the order
in which an append reaches the disk. Knows nothing about zip or NPY. At every
instant the path has the contents before a commit or after it, even after a crash.

A new file is committed by renaming it. An append is written behind the committed bytes, in one of
two ways. What is small is kept in memory, and written at once, without the first `SEAL_SIZE`
bytes of its last record, the seal: that is the commit. Other appends write into a room, behind
which the older end is found (`npzkit.files.room`), and are committed by cutting off what follows
their last record. In both, the file is synced before that and after, if it is to be durable, and
then a mark is put in its place.

Committed bytes are never cut off, and overwritten only to complete their commit.
Programs that take no lock are noticed: before each change, the file must have the
size and the last commit that were left in it.

The name of a new file follows from that of the old one. So the next writer finds
what a killed one left, and removes it if nobody holds its lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from itertools import count
from typing import Any

from npzkit.codecs.checksum import crc32
from npzkit.errors import ArchiveLockedError, ClosedArchiveError, StaleArchiveError
from npzkit.files import disk
from npzkit.files.disk import Buffer, Descriptor, File
from npzkit.files.file_objects import take_after
from npzkit.files.locking import FileLock, lock_path
from npzkit.files.room import FOUND_SIZE, SIGNATURE, Append, Ending, Room, without
from npzkit.files.sink import SEAL_SIZE, Sink, overwritten

_BUFFER_SIZE = 1 << 22
"""Bytes of small writes that are gathered for one system call."""
_DIRECT_SIZE = 1 << 16
"""Writes of at least this size go to the file without a copy."""
_RENAME_SECONDS = 60
"""On Windows, a file without a lock that is younger may be about to be renamed."""
_AHEAD_SIZE = 1 << 20
"""The system is asked to begin to write pieces of this size and above, if a sync will follow."""


def _status(path: str) -> os.stat_result | None:
    """Return what the system says of a path; None if nothing is there."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


class _Naming:
    """A block whose errors of the system name a file: the one that the user knows."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = self._name


_TEMPORARY_NAME = re.compile(r"\.npzkit-[0-9a-f]{16}\.tmp")


def is_temporary(name: str) -> bool:
    """Return whether a file is one that `PathSink` had not completed, or is writing."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


def _temporary_path(path: str, number: int) -> str:
    """Return one of the names that a file has until it is renamed to `path`."""
    name = os.path.basename(path)
    own = crc32(os.fsencode(name))
    return f"{path.removesuffix(name)}.npzkit-{own:08x}{number:08x}.tmp"


def remove_abandoned(path: str) -> bool:
    """Remove a temporary file whose writer has ended, and return whether it is gone.

    It stays if the system cannot say that nobody holds its lock. On Windows, where the lock ends
    before the file is renamed, it also stays for a while after the last write.
    """
    try:
        with lock_path(path, 0.0) as lock:
            if not lock.is_known:
                return False
            if not disk.RENAMES_OPEN_FILES:
                if abs(time.time() - os.fstat(lock.fileno()).st_mtime) < _RENAME_SECONDS:
                    return False
                # Windows removes no file that a writer has open.
                lock.close()
            disk.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


class PathSink(Sink):
    """A sink that writes to a path: a new file, or an append to the existing one.

    A new file has a temporary name beside `path` until the first commit.
    Programs that have the old file open or mapped keep reading it. If the
    process is killed, the path is as it was at the last commit. If it is killed
    before the first one, a file named ``.npzkit-*.tmp`` is left as well, until the next
    new file for this path.

    Parameters
    ----------
    path : str
        Symbolic links are followed; the file they lead to is replaced.
    exclusive : bool, default False
        Raise FileExistsError if the path exists, now or at the first commit.
    resume : bool, default False
        Append to the file. Call `resume` with the size of the archive before
        the first write, which removes everything after that size. The file has `size` bytes.
    durable : bool, default False
        Wait for the disk at each commit. Without it, too, a power failure leaves a new
        file or the old one that it replaces, complete (`npzkit.files.rename_order`). If
        only the sync of the folder fails, an error is raised although the new file is in
        place.
    lock_timeout : float, default 0
        Seconds to wait for another writer.
    lock : FileLock, optional
        A lock on the file at `path` that was taken before, which is what the new one replaces:
        StaleArchiveError is raised by a commit if the path has another file, or if this one was
        changed. It is released with the sink.

    Raises
    ------
    ArchiveLockedError
        Another writer has the file open.
    PermissionError
        The file at the path is read-only, even if its folder is writable.

    Notes
    -----
    Windows cannot replace a file that a program has open or mapped: `commit`
    then raises ``PermissionError``, and the old file stays.
    """

    can_patch = True
    can_read = True
    is_concurrent = True
    size: int | None = None
    """What the file's size must be; None for a new file, which nobody else knows."""
    _kind = Descriptor

    def __init__(
        self,
        path: str,
        *,
        exclusive: bool = False,
        resume: bool = False,
        durable: bool = False,
        lock_timeout: float = 0.0,
        lock: FileLock | None = None,
    ) -> None:
        if exclusive and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._set_up(os.path.realpath(path), path, durable)
        self._exclusive, self._lock_timeout = exclusive, lock_timeout
        try:
            self._lock(path, lock_timeout, lock)
            if resume:
                self._check_path()
                self._check_lock()
                self.size = self._file.size
            else:
                self._make(_status(self._path))
        except BaseException:
            self.abort()
            raise

    def _set_up(self, path: str, name: str, durable: bool) -> None:
        """Begin without a file; `name` is the path that the user knows."""
        self._path, self._name = path, name
        self._naming = _Naming(name)
        self._exclusive, self._lock_timeout = False, 0.0
        self._durable = durable
        self._process = os.getpid()
        self._buffer = bytearray()
        self._flushed = 0
        self._known = 0, 0
        self._temporary: str | None = None
        self._is_made = False
        self._replaced: os.stat_result | None = None
        self._is_changed = False
        self._is_replacing = False
        self._is_closed = self._has_room = False
        self._completed: list[tuple[int, int]] = []
        self._append: Append | None = None
        self._room: Room | None = None
        # Whether an append is committed by its seal, though it has written into a room.
        self._is_sealed = False
        self._opened: File | None = None
        self._placed: os.stat_result | None = None
        self._locks: list[FileLock] = []

    @property
    def path(self) -> str:
        """At which the file is now."""
        return self._temporary or self._path

    @property
    def paths(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.path, self._path)

    @property
    def descriptor(self) -> Any:
        return self._file.descriptor

    @property
    def _file(self) -> File:
        """The file, opened again if a commit closed it."""
        opened = self._opened
        if opened is None:
            if self._is_closed:
                # A thread was still filling an array when the writer closed.
                raise ClosedArchiveError("the writer is closed", path=self._name)
            self._opened = opened = self._reopen()
        return opened

    def _reopen(self) -> File:
        """Open the file at the path, which must be the one that was committed."""
        self._lock_again()
        try:
            file = File(self._path)
        except FileNotFoundError:
            if self._placed is None:
                raise
            raise self._stale() from None
        if self._placed is None or os.path.samestat(os.fstat(file.descriptor), self._placed):
            return file
        file.close()
        raise self._stale()

    def _lock_again(self) -> None:
        """Lock the file where the lock ended with a rename, so that others could replace it."""
        if not self._locks:
            self._locks.append(lock_path(self._path, 0.0))

    def _lock(self, path: str, timeout: float, lock: FileLock | None) -> None:
        """Lock the file at the path, if it exists."""
        if lock is None:
            try:
                lock = lock_path(path, timeout)
            except FileNotFoundError:
                return
        else:
            self._replaced = os.fstat(lock.fileno())
        self._locks.insert(0, lock)
        if not lock.writable():
            # For a replacement the system only checks the permissions of the folder, but users
            # expect a read-only file to stay.
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def _make(self, replaced: os.stat_result | None) -> None:
        """Create the new file, with the owner and permissions of the old one."""
        # A user who may not read the old file must never be able to open this one.
        mode = 0o666 if replaced is None else 0o600
        for number in count():
            name = _temporary_path(self._path, number)
            if self._try_name(name, mode) or (
                remove_abandoned(name) and self._try_name(name, mode)
            ):
                break
        if replaced is not None:
            self._is_replacing = True
            take_after(self._file.descriptor.fileno(), replaced)

    def _try_name(self, temporary: str, mode: int) -> bool:
        """Create and lock the new file, and return whether it could have this name."""
        # Set first, so that the file is removed if an interrupt comes once it exists.
        self._temporary, self._is_made = temporary, False
        try:
            self._opened = File(temporary, is_new=True, mode=mode, kind=self._kind)
        except FileExistsError:
            self._temporary = None
            return False
        except OSError as error:
            # The user knows this path, not that of the temporary file.
            error.filename = self._name
            raise
        held = len(self._locks)
        try:
            self._hold(temporary)
            self._is_made = os.fstat(self.descriptor).st_nlink > 0
        except (ArchiveLockedError, FileNotFoundError):
            # Until it is locked, others may take it for what a killed process left.
            pass
        if self._is_made:
            return True
        self._temporary = None
        self._close()
        self._release_locks(held)
        return False

    def _hold(self, temporary: str) -> None:
        """Lock the new file, so that nobody takes it for what a killed process left."""
        self._locks.append(lock_path(temporary, 0.0))

    # -- writing ------------------------------------------------------------

    def resume(self, committed_size: int, last_size: int, last_crc32: int) -> None:
        """Set the size of the archive to append to.

        Its last `last_size` bytes, which have this CRC-32, were written by its last commit.
        """
        self.committed_size = self.position = self._flushed = committed_size
        self._known = last_size, last_crc32

    def start_over(self) -> None:
        if self.committed_size:
            self._check_path()
            self._check_unchanged()
        self._close()
        self._replaced = os.fstat(self._locks[-1].fileno())
        self._exclusive = False
        self._make(_status(self._path))
        self.position = self.committed_size = self._flushed = 0
        self.size = None

    def rewind(self) -> None:
        self._flush()
        self.position = self._flushed = 0

    def cut_rest(self) -> None:
        self._flush()
        self._set_size(self.position)

    def _is_as_committed(self) -> bool:
        """Return whether the bytes of the last commit are unchanged.

        Programs that take no lock may have rewritten the file in place, or written behind it.
        """
        (size, crc), end, found = self._known, self.committed_size, self._file.size
        if found < end or (self.size is not None and found > self.size):
            return False
        if size < _DIRECT_SIZE:
            return crc32(self._file.read_at(end - size, size)) == crc
        from npzkit.files.block_reading import crc32_at

        return crc32_at(self._file, end - size, size, 1) == crc

    def _begin_to_change(self) -> None:
        """Remove everything after the last commit before the first write there."""
        if self._is_changed or not self.committed_size:
            return
        self._check_unchanged()
        self._is_changed = True
        if self._file.size > self.committed_size:
            self._set_size(self.committed_size)
            if self._durable:
                # Otherwise a crash could mix removed bytes with those written now.
                self._file.sync()

    def _check_size(self, end: int) -> None:
        """Raise StaleArchiveError if another program made the file longer or shorter.

        It may have `end` bytes from now on.
        """
        if self.size is not None:
            if self._file.size != self.size:
                raise overwritten(self._name)
            self.size = max(self.size, end)

    def _set_size(self, size: int) -> None:
        """Cut the file off, or extend it with zeros."""
        self._check_size(size)
        with self._naming:
            self._file.truncate(size)
        if self.size is not None:
            self.size = size

    def begin_append(self, append: Append) -> None:
        self._append, self._room = append, None
        self.write(append.intent)

    def _have_room(self, end: int) -> None:
        """Have room for an append up to `end`, before anything of it is written."""
        append, start = self._append, self.committed_size
        if append is None or end <= start:
            return
        if self._room is None:
            self._room = Room(self._put_down, self._sync, append, start + len(append.intent))
        self._room.reach(end)

    def _put(self, offset: int, data: Buffer) -> None:
        """Write bytes to the file."""
        self._have_room(offset + len(data))
        self._put_down(offset, data)

    def _put_down(self, offset: int, data: Buffer) -> None:
        self._begin_to_change()
        self._check_size(offset + len(data))
        with self._naming:
            self._file.patch(offset, data)
        if len(data) >= _AHEAD_SIZE and (self._durable or self._is_replacing):
            # The system begins to do what a sync would wait for.
            self._file.begin_sync(offset, len(data))

    def write(self, data: Buffer) -> None:
        if len(data) < _DIRECT_SIZE:
            self._buffer += data
            self.position += len(data)
            if len(self._buffer) >= _BUFFER_SIZE:
                self._flush()
        else:
            # At once, before the buffer needs less.
            self._have_room(self.position + len(data))
            self._flush()
            self._put(self.position, data)
            self.position += len(data)
            self._flushed = self.position

    def _flush_before(self, end: int) -> None:
        """Write the buffer if it has bytes before `end`."""
        # Skipped bytes are never in the buffer, so that threads that fill them never flush.
        if end > self._flushed:
            self._flush()

    def _flush(self) -> None:
        """Write the buffer, which always has the last bytes before `position`."""
        if self._buffer:
            # A debugger may hold views of the buffer, so it is replaced instead of emptied.
            gathered, self._buffer = self._buffer, bytearray()
            self._put(self.position - len(gathered), gathered)
        self._flushed = self.position

    def have_room(self, size: int) -> None:
        self._have_room(self.position + size)

    def reserve(self, size: int, *, mapped: bool = False) -> None:
        if self._is_replacing and not mapped:
            # It is written sooner than it would be reserved: 160 ms instead of 220 for 256 MiB.
            return
        self._have_room(self.position + size)
        self._begin_to_change()
        self._has_room = True
        self._check_size(self.position + size)
        try:
            with self._naming:
                self._file.reserve(self.position, size, mapped=mapped)
        finally:
            if self.size is not None:
                self.size = self._file.size

    def skip(self, size: int) -> None:
        self.reserve(size)
        end = self.position + size
        if self._file.size < end:
            # Before the first small write: ext4 with inline_data (Linux 6.18) loses bytes that
            # are written after a small write and this.
            self._set_size(end)
        self._flush()
        self.position = self._flushed = end

    def readinto_at(self, offset: int, view: memoryview) -> None:
        self._flush_before(offset + len(view))
        self._file.readinto_at(offset, view)

    def read_at(self, offset: int, size: int) -> bytes:
        self._flush_before(offset + size)
        return self._file.read_at(offset, size)

    def patch(self, offset: int, data: Buffer) -> None:
        self._flush_before(offset + len(data))
        self._put(offset, data)

    def _sync(self) -> None:
        if self._durable:
            self._file.sync()

    # -- commits ------------------------------------------------------------

    def commit(self, last: bytes, before: bytes = b"", ending: Ending | None = None) -> bool:
        if self._temporary is not None:
            self.write(before)
            self.write(last)
            self._flush()
            self._cut_unused()
            self._complete()
        elif not self._complete_append(last, before, ending):
            return True
        self._known = len(before) + len(last), crc32(last, crc32(before))
        return False

    def _complete(self) -> None:
        """Put the new file, of which everything is written, in its place."""
        # Otherwise a crash could leave an empty file in place of one that was committed with
        # durable=True.
        if self._durable or (self._is_replacing and not self._is_written_first()):
            self._file.sync()
        self._put_in_place()

    def _is_written_first(self) -> bool:
        from npzkit.files import rename_order

        return rename_order.write_first(self._file)

    def _complete_append(self, last: bytes, before: bytes, ending: Ending | None) -> bool:
        """Commit an append in one of the two ways of the module's docstring."""
        self._check_path()
        if self._is_changed:
            # Otherwise the first write does.
            self._check_unchanged()
        end = self.position + len(before) + len(last)
        is_cut = not self._is_sealed and not (
            self._room is None and self._is_small(end, before, last)
        )
        pieces: tuple[Buffer, ...] = (before,)
        if is_cut and ending is not None:
            self._have_room(end)
            pieces = without(before, ending.magic, self.position)
        else:
            self._append = None
        for piece in pieces:
            self.write(piece)
        offset = self.position
        self.write(last if is_cut else bytes(SEAL_SIZE) + last[SEAL_SIZE:])
        self._flush()
        self._sync()
        if not is_cut:
            self._cut_unused()
            self._put_last(offset, last[:SEAL_SIZE])
        elif not self._cut_rest():
            return False
        elif ending is not None:
            self._completed.append((offset, SEAL_SIZE))
            self._put_last(*ending.magic)
        self._sync()
        if ending is not None:
            self._put_last(*ending.mark)
        self.committed_size = self.position
        self._append = self._room = None
        self._completed.clear()
        self._is_changed = self._is_sealed = False
        return True

    def _is_small(self, end: int, before: bytes, last: bytes) -> bool:
        """Return whether others find the last end while all that is not written yet is written."""
        append = self._append
        is_in_hand = append is not None and self.position - len(self._buffer) == self.committed_size
        if append is None or not is_in_hand or end - append.record > FOUND_SIZE:
            return False
        return SIGNATURE not in bytes(self._buffer) + before + last[SEAL_SIZE:]

    def _put_last(self, offset: int, data: bytes) -> None:
        """Write bytes that are taken back if what follows fails."""
        self._completed.append((offset, len(data)))
        self._put_down(offset, data)

    def _cut_rest(self) -> bool:
        """Cut off what follows an append; if the system cannot, go on behind it."""
        try:
            self._set_size(self.position)
        except OSError as error:
            room = self._room
            if not disk.is_in_use(error) or room is None:
                raise
            # Windows cuts off nothing that is mapped.
            self.position = self._flushed = room.far_end
            self._is_sealed = True
            self._append = None
            return False
        return True

    def _cut_unused(self) -> None:
        """Cut off reserved bytes that were not used: nothing may follow the archive."""
        if self._has_room and self._file.size > self.position:
            self._set_size(self.position)

    def _check_path(self) -> None:
        """Raise StaleArchiveError if the path no longer leads to the open file."""
        try:
            if os.path.samestat(os.fstat(self._file.descriptor), os.stat(self._path)):
                return
        except FileNotFoundError:
            pass
        raise self._stale()

    def _check_unchanged(self) -> None:
        """Raise StaleArchiveError if another program changed the last commit."""
        if not self._is_as_committed():
            raise overwritten(self._name)

    def _stale(self) -> StaleArchiveError:
        return StaleArchiveError(
            "the archive was moved, removed or replaced while it was written",
            path=self._name,
            remedy="Committed arrays are in the original file. Open the file that is at "
            "the path now, and write the others again.",
        )

    def _check_lock(self) -> None:
        """Raise StaleArchiveError if the file was replaced between lock and open."""
        opened = os.fstat(self._file.descriptor)
        locked = os.fstat(self._locks[0].fileno()) if self._locks else opened
        if not os.path.samestat(locked, opened):
            raise StaleArchiveError(
                "the archive was replaced while it was being opened", path=self._name,
                remedy="Try again.",
            )  # fmt: skip

    def _check_replaced(self) -> None:
        """Check that the file which is replaced is the one that was locked.

        If nothing was read from it, another one may have taken its place, which is locked now.
        """
        found = _status(self._path)
        if self._replaced is not None:
            self._check_read(found)
        elif found is not None and stat.S_ISREG(found.st_mode) and not self._exclusive:
            # The last lock is that of the new file.
            held = (os.fstat(lock.fileno()) for lock in self._locks[:-1])
            if not any(os.path.samestat(one, found) for one in held):
                self._lock(self._path, self._lock_timeout, None)

    def _check_read(self, found: os.stat_result | None) -> None:
        """Raise StaleArchiveError if the file from which was read was replaced or changed."""
        if (read := self._replaced) is not None:
            if found is None or not os.path.samestat(read, found):
                raise self._stale()
            if (read.st_size, read.st_mtime_ns) != (found.st_size, found.st_mtime_ns):
                raise overwritten(self._name)

    def _put_in_place(self) -> None:
        """Rename the new file to the path, and close it."""
        temporary = self._temporary
        assert temporary is not None  # noqa: S101 - the caller asked
        self._check_replaced()
        self._placed = placed = os.fstat(self.descriptor)
        # A network file system may not report a full disk before this.
        self._close()
        if not disk.RENAMES_OPEN_FILES:
            self._release_locks()
        try:
            if self._exclusive:
                disk.link(temporary, self._path)
            elif disk.RENAMES_OPEN_FILES:
                disk.replace(temporary, self._path)
            else:
                self._replace_closed(temporary)
        except FileExistsError as error:
            # Of two writers that make the same file, none can have locked it.
            error.strerror = (
                "another writer made this file meanwhile, and what was written is discarded; "
                "open the file in mode 'a' and add the arrays again"
            )
            raise
        except BaseException as error:
            # An interrupt may come once the file is in its place.
            with contextlib.suppress(OSError):
                if os.path.samestat(placed, os.stat(self._path)):
                    self.committed_size = self.position
            if isinstance(error, OSError) and error.errno:
                # The user knows this path, not that of the temporary file.
                raise OSError(error.errno, error.strerror, self._name) from error
            raise
        self._temporary, self._is_replacing = None, False
        self._replaced = None
        self.committed_size = self.size = self.position
        if self._durable:
            disk.sync_directory(os.path.dirname(self._path))

    def _replace_closed(self, temporary: str) -> None:
        """Replace the old file once nobody has it open, not even this sink.

        Another writer may lock it in between. Then this one waits until that has ended.
        """
        end = time.monotonic() + disk.PATIENCE
        while True:
            try:
                disk.replace(temporary, self._path, patience=0.0)
            except PermissionError:
                if time.monotonic() >= end:
                    raise
            else:
                return
            time.sleep(disk.PAUSE)
            begin = time.monotonic()
            timeout = max(self._lock_timeout, end - begin)
            with lock_path(temporary, 0.0), contextlib.ExitStack() as others:
                # If nothing is at the path, the new file was in use.
                with contextlib.suppress(FileNotFoundError):
                    others.enter_context(lock_path(self._path, timeout))
                self._check_read(_status(self._path))
            end += time.monotonic() - begin

    def abort(self) -> None:
        # A forked child that drops its copy must not remove the file of its parent.
        is_own = os.getpid() == self._process
        try:
            if is_own and self._temporary is None:
                self._take_back()
        finally:
            # An error in closing does not matter: nothing in the file is kept.
            with contextlib.suppress(OSError):
                self.close()
            # Last, because Windows cannot remove an open file.
            if is_own and self._temporary is not None:
                (disk.unlink if self._is_made else remove_abandoned)(self._temporary)
                self._temporary = None

    def __del__(self) -> None:
        # An interrupt may come before the caller has a reference to the sink.
        if getattr(self, "_temporary", None) is not None:
            with contextlib.suppress(OSError):
                self.abort()

    def _take_back(self) -> None:
        """Cut off everything written since the last commit."""
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

    def close(self) -> None:
        self._is_closed = True
        try:
            self._close()
        finally:
            self._release_locks()

    def _close(self) -> None:
        opened = self._opened
        if opened is not None:
            try:
                opened.close()
            finally:
                self._opened = None
                # An interrupt may have come before the first call did anything.
                opened.close()

    def hand_over(self) -> FileLock:
        """Close the file, and return its lock for a rewrite of the file."""
        self._is_closed = True
        self._close()
        self._lock_again()
        # The last lock is on the file that is at the path now.
        for lock in self._locks[:-1]:
            lock.close()
        return self._locks.pop()

    def _release_locks(self, first: int = 0) -> None:
        for lock in self._locks[first:]:
            try:  # noqa: SIM105 - in half the time
                lock.close()
            except OSError:
                # Nothing was written through the lock's file, so an error does not matter.
                pass
        del self._locks[first:]
