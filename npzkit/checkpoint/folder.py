"""The steps of a checkpoint store in a folder on a disk.

Owns the lock that keeps a second writer away, and leftovers of writers that were killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.checkpoint.steps import (
    Listing,
    NewStep,
    Steps,
    index_at,
    name_of_step,
    remove_unnamed,
    steps_in,
    steps_of_folders,
)
from npzkit.datasets import INDEX_NAME
from npzkit.errors import ArchiveLockedError, DamagedCheckpointError, NpzkitError
from npzkit.stores.objects import Found, LocalFolder, is_temporary

_LOCK_NAME = ".npzkit-checkpoints.lock"
_ABANDONED_SECONDS = 3600
"""Age of a leftover that is removed where the file system has no locks."""


class Folder(Steps):
    """The steps in a folder, for one writer at a time and any readers.

    Parameters
    ----------
    path : path
    durable : bool
        Wait for the disk at each commit.
    """

    _lock: Any = None

    def __init__(self, path: str | os.PathLike[str], *, durable: bool) -> None:
        # A program may change its working directory while a store is open.
        self.path = os.path.abspath(os.fsdecode(path))
        self._here: LocalFolder = LocalFolder(self.path)
        self._durable = durable

    def look(self) -> Listing:
        """List the folder once."""
        try:
            with os.scandir(self.path) as found:
                entries = {entry.name: entry for entry in found}
        except FileNotFoundError:
            return Listing((), ())
        # Where links of other names lead is not asked: some lead to themselves.
        named = {s: entries[name_of_step(s, is_folder=True)] for s in steps_of_folders(entries)}
        folders = (step for step, entry in named.items() if entry.is_dir())
        return Listing(steps_in(entries), tuple(folders))

    def _find_file(self, step: int) -> Found | None:
        """Return what is known of a step's file, or of a link that leads to none."""
        found = self._here.find(name_of_step(step))
        path = self._file(step)
        if found is None and os.path.islink(path):
            link: Any = os.lstat(path)
            return Found(link.st_size, link.st_mtime, link)
        return found

    def _file(self, step: int) -> str:
        return self._here.file(name_of_step(step))

    def _open_file(self, step: int) -> NpzFile:
        """Open a step's file.

        A link that leads to no file is damage: the step is lost, and no older one takes its
        place in silence.
        """
        try:
            return super()._open_file(step)
        except FileNotFoundError as error:
            path = self._file(step)
            if not os.path.islink(path):
                raise
            raise DamagedCheckpointError(
                "the step's file is a link to a file that does not exist", path=path,
                found=os.readlink(path), remedy="Check whether its disk is mounted.",
            ) from error  # fmt: skip

    def commit(self, new: NewStep) -> None:
        """Write a step as a file, which replaces an older one when complete."""
        path = self._file(new.step)
        try:
            new.archive.write(
                path, formatted=new.metadata, durable=self._durable,
                threads=new.options["threads"],
            )  # fmt: skip
        except IsADirectoryError:
            told = "a folder has the name of this step's file: move it away"
            raise IsADirectoryError(errno.EISDIR, told, path) from None

    def _remove_file(self, step: int, found: Found | None) -> bool:
        # `remove` has just compared the file, for a second writer on a share without locks.
        self._here.unlink(name_of_step(step))
        return True

    def drop_cache(self, step: int) -> None:
        """Have the next read of a step come from the disk, as far as the system allows."""
        if not hasattr(os, "posix_fadvise"):
            return
        self.settle(step)
        paths = [self._file(step)]
        if self._is_folder(step):
            place: Any = self._place(step)
            paths = [place.file(name) for name in place.listed()]
        for path in paths:
            with open(path, "rb") as file, contextlib.suppress(OSError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    # -- one writer at a time ---------------------------------------------------

    def begin_writing(self) -> None:
        """Make the folder if necessary, take its lock, and remove leftovers of killed writers."""
        if self._lock is not None:
            if self._has_lock():
                return
            if not os.path.isdir(self.path):
                # It may have been on a disk that is gone: no new one is made in its place.
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
            self.close()
        else:
            os.makedirs(self.path, exist_ok=True)
        try:
            self._lock = self._here.lock(_LOCK_NAME)
        except ArchiveLockedError as error:
            raise ArchiveLockedError(
                "another checkpoint store writes to this folder", path=self.path,
                remedy="Wait until it is closed, or save to another folder. Reading needs "
                "no lock.",
            ) from error  # fmt: skip
        locks_work = self._here.has_locks(_LOCK_NAME)
        self._remove_temporary(locks_work=locks_work)
        if locks_work:
            # This store has the lock: nobody else writes.
            for step in self.look().folders:
                with contextlib.suppress(OSError, NpzkitError):
                    place = self._place(step)
                    # A share may remember that there was no index: only the list and the file
                    # together say so.
                    is_named = INDEX_NAME in place.listed() or place.find(INDEX_NAME) is not None
                    shards = index_at(place).shards if is_named else ()
                    remove_unnamed(place, {shard.name for shard in shards})

    def _has_lock(self) -> bool:
        """Return whether the lock is open, and on the file that is in the folder now."""
        try:
            return os.path.samestat(os.fstat(self._lock.fileno()), os.stat(self._lock_path))
        except (OSError, ValueError):
            # A forked child has closed the lock of its parent.
            return False

    @property
    def _lock_path(self) -> str:
        return self._here.file(_LOCK_NAME)

    def _remove_temporary(self, *, locks_work: bool) -> None:
        """Remove temporary files that no writer has open."""
        with os.scandir(self.path) as entries:
            left = [entry.name for entry in entries if is_temporary(entry.name)]
        for name in left:
            with contextlib.suppress(OSError):
                # A writer holds a lock on its temporary file, so that it is not removed.
                if locks_work or self._is_abandoned(self._here.file(name)):
                    self._here.remove(name)

    def _is_abandoned(self, path: str) -> bool:
        """Return whether a file is old, by the clock of the file system alone."""
        os.utime(self._lock_path)
        return os.stat(self._lock_path).st_mtime - os.stat(path).st_mtime > _ABANDONED_SECONDS

    def close(self) -> None:
        """Let other writers in."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()
