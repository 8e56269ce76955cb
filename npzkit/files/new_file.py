"""A new file, which has a temporary name until it is committed, and then replaces the old one.

Owns temporary files, and the replacement of the old file. At every instant the path has the old
file or the new one, complete, even after a crash. A commit:

1. syncs the file, if it is to be durable, or if it replaces another one and the file system does
   not order the rename after the data (`npzkit.files.sync_before_rename`);
2. renames it to its path; in mode "x", links it there;
3. syncs the folder, if it is to be durable.

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

from npzkit.codecs.checksum import crc32
from npzkit.errors import ArchiveLockedError, quiet_at_exit
from npzkit.files import disk
from npzkit.files.disk import Descriptor, File
from npzkit.files.file_objects import take_after
from npzkit.files.locking import FileLock, lock_created, lock_path
from npzkit.files.sink import overwritten
from npzkit.files.written_file import WrittenFile

_RENAME_SECONDS = 60
"""On Windows, a file without a lock that is younger may be about to be renamed."""
_TEMPORARY_NAME = re.compile(r"\.npzkit-[0-9a-f]{16}\.tmp")


def is_temporary(name: str) -> bool:
    """Return whether a file is one that a writer had not completed, or is writing."""
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


def _status(path: str) -> os.stat_result | None:
    """Return what the system says of a path; None if nothing is there."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


class NewFile(WrittenFile):
    """A file that replaces another one when it is complete; `make` creates it.

    Programs that have the old file open or mapped keep reading it. If the
    process is killed, the path is as it was, and a file named ``.npzkit-*.tmp`` is left as
    well, until the next new file for this path.

    Parameters
    ----------
    path, name, durable, lock_timeout
        As of `WrittenFile`. Without `durable`, too, a power failure leaves a new
        file or the old one that it replaces, complete. If only the sync of the folder fails,
        an error is raised although the new file is in place.
    exclusive : bool
        Raise FileExistsError if the path exists when the file is to be put there.
    is_final : bool
        Whether nothing is written after the file is in its place. It is held open by its own
        lock then.

    Attributes
    ----------
    is_placed : bool
        Whether the file is in its place.
    placed : os.stat_result
        What the system said of it then.

    Notes
    -----
    Windows cannot replace a file that a program has open or mapped: `complete`
    then raises ``PermissionError``, and the old file stays.
    """

    _temporary: str | None = None

    def __init__(
        self,
        path: str,
        name: str,
        *,
        durable: bool,
        exclusive: bool = False,
        lock_timeout: float = 0.0,
        is_final: bool = False,
    ) -> None:
        super().__init__(path, name, durable=durable, lock_timeout=lock_timeout)
        self._exclusive, self._is_final = exclusive, is_final
        self._is_made = self._is_replacing = self.is_placed = False
        self._replaced: os.stat_result | None = None
        self.placed: os.stat_result

    @property
    def path(self) -> str:
        return self._temporary or self.target

    def lock(self) -> None:
        """Lock the file at the path, if it exists."""
        try:  # noqa: SIM105 - in half the time
            self.hold(lock_path(self.name, self.lock_timeout))
        except FileNotFoundError:
            pass

    def replace(self) -> None:
        """Create the file that replaces the one of which the last lock is.

        StaleArchiveError is raised by a commit if the path has another file, or if this one was
        changed.
        """
        self._replaced = os.fstat(self.locks[-1].fileno())
        self.make(_status(self.target))

    def make(self, replaced: os.stat_result | None) -> None:
        """Create the new file, with the owner, permissions and attributes of the old one."""
        # A user who may not read the old file must never be able to open this one.
        mode = 0o666 if replaced is None else 0o600
        for number in count():
            name = _temporary_path(self.target, number)
            if self._try_name(name, mode) or (
                remove_abandoned(name) and self._try_name(name, mode)
            ):
                break
        if replaced is not None:
            self._is_replacing = self._will_sync = True
            take_after(self.descriptor.fileno(), self.target, replaced)

    def _try_name(self, temporary: str, mode: int) -> bool:
        """Create and lock the new file, and return whether it could have this name."""
        # Set first, so that the file is removed if an interrupt comes once it exists.
        self._temporary, self._is_made = temporary, False
        kind = FileLock if self._is_final else Descriptor
        try:
            self.file = File(temporary, is_new=True, mode=mode, kind=kind)
        except FileExistsError:
            self._temporary = None
            return False
        except OSError as error:
            # The user knows this path, not that of the temporary file.
            error.filename = self.name
            raise
        held = len(self.locks)
        try:
            self._hold(temporary)
            self._is_made = os.fstat(self.descriptor).st_nlink > 0
        except (ArchiveLockedError, FileNotFoundError):
            # Until it is locked, others may take it for what a killed process left.
            pass
        if self._is_made:
            return True
        self._temporary = None
        self.close_file()
        self.release_locks(held)
        return False

    def _hold(self, temporary: str) -> None:
        """Lock the new file, so that nobody takes it for what a killed process left."""
        if self._is_final:
            self.locks.append(self.descriptor)
            lock_created(self.locks[-1], temporary)
        else:
            self.locks.append(lock_path(temporary, 0.0))

    def reserve(self, offset: int, size: int, mapped: bool) -> None:
        # It is written sooner than it would be reserved: 160 ms instead of 220 for 256 MiB.
        if mapped or not self._is_replacing:
            super().reserve(offset, size, mapped)

    # -- the commit ---------------------------------------------------------

    def complete(self) -> None:
        """Put the file, of which everything is written, in its place, and close it.

        `sync_folder` comes next.
        """
        # Otherwise a crash could leave an empty file in place of one that was committed with
        # durable=True.
        if self.durable or (self._is_replacing and not self._is_written_first()):
            self.file.sync()
        self._put_in_place()

    def sync_folder(self) -> None:
        if self.durable:
            disk.sync_directory(os.path.dirname(self.target))

    def _is_written_first(self) -> bool:
        from npzkit.files import sync_before_rename

        return sync_before_rename.write_first(self.file)

    def _check_replaced(self) -> None:
        """Check that the file which is replaced is the one that was locked.

        If nothing was read from it, another one may have taken its place, which is locked now.
        """
        found = _status(self.target)
        if self._replaced is not None:
            self._check_read(found)
        elif found is not None and stat.S_ISREG(found.st_mode) and not self._exclusive:
            # The last lock is that of the new file.
            held = (os.fstat(lock.fileno()) for lock in self.locks[:-1])
            if not any(os.path.samestat(one, found) for one in held):
                self.lock()

    def _check_read(self, found: os.stat_result | None) -> None:
        """Raise StaleArchiveError if the file from which was read was replaced or changed."""
        if (read := self._replaced) is not None:
            if found is None or not os.path.samestat(read, found):
                raise self.stale()
            if (read.st_size, read.st_mtime_ns) != (found.st_size, found.st_mtime_ns):
                raise overwritten(self.name)

    def _put_in_place(self) -> None:
        """Rename the new file to the path, and close it."""
        temporary = self._temporary
        assert temporary is not None  # noqa: S101 - it was made
        self._check_replaced()
        self.placed = os.fstat(self.descriptor)
        # A network file system may not report a full disk before this.
        self.close_file()
        if not disk.RENAMES_OPEN_FILES:
            self.release_locks()
        try:
            if self._exclusive:
                disk.link(temporary, self.target)
            elif disk.RENAMES_OPEN_FILES:
                disk.replace(temporary, self.target)
            else:
                self._replace_closed(temporary)
        except FileExistsError as error:
            # Of two writers that make the same file, none can have locked it.
            text = (
                "another writer made this file meanwhile, and what was written is discarded; "
                "the file exists now: open it in mode 'a' to add to it"
            )
            raise FileExistsError(errno.EEXIST, text, self.name) from error
        except ArchiveLockedError:
            raise
        except BaseException as error:
            # An interrupt may come once the file is in its place.
            with contextlib.suppress(OSError):
                self.is_placed = os.path.samestat(self.placed, os.stat(self.target))
            if isinstance(error, OSError) and error.errno:
                # The user knows this path, not that of the temporary file.
                raise OSError(error.errno, error.strerror, self.name) from error
            raise
        self._temporary, self.is_placed = None, True

    def _replace_closed(self, temporary: str) -> None:
        """Replace the old file once nobody has it open, not even this writer.

        Another writer may lock it in between. Then this one waits until that has ended.
        """
        end = time.monotonic() + disk.PATIENCE
        while True:
            try:
                disk.replace(temporary, self.target, patience=0.0)
            except PermissionError:
                if time.monotonic() >= end:
                    raise
            else:
                return
            time.sleep(disk.PAUSE)
            begin = time.monotonic()
            timeout = max(self.lock_timeout, end - begin)
            with lock_path(temporary, 0.0), contextlib.ExitStack() as others:
                # If nothing is at the path, the new file was in use.
                with contextlib.suppress(FileNotFoundError):
                    others.enter_context(lock_path(self.target, timeout))
                self._check_read(_status(self.target))
            end += time.monotonic() - begin

    def _remove(self) -> None:
        if self._temporary is not None:
            (disk.unlink if self._is_made else remove_abandoned)(self._temporary)
            self._temporary = None

    @quiet_at_exit
    def __del__(self) -> None:
        # An interrupt may come before the caller has a reference.
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                self.abort()


def new_file(
    path: str,
    *,
    exclusive: bool = False,
    durable: bool = False,
    lock_timeout: float = 0.0,
    lock: FileLock | None = None,
) -> NewFile:
    """Create a file that is to replace what is at a path.

    Parameters
    ----------
    path : str
        Symbolic links are followed; the file they lead to is replaced.
    exclusive : bool, default False
        Raise FileExistsError if the path exists, now or at the commit.
    durable, lock_timeout
        As of `NewFile`.
    lock : FileLock, optional
        A lock on the file at `path` that was taken before, which is what the new one replaces;
        see `NewFile.replace`. It is released with the sink.

    Raises
    ------
    ArchiveLockedError
        Another writer has the file open.
    PermissionError
        The file at the path is read-only, even if its folder is writable.
    """
    if exclusive and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    file = NewFile(
        os.path.realpath(path), path, durable=durable, exclusive=exclusive,
        lock_timeout=lock_timeout,
    )  # fmt: skip
    try:
        if lock is None:
            file.lock()
            file.make(_status(file.target))
        else:
            file.hold(lock)
            file.replace()
    except BaseException:
        file.abort()
        raise
    return file
