"""The files of a checkpoint store: one per step, in a folder.

Owns the names of the files, the lock that keeps a second writer away, leftovers of writers
that were killed, and that what another process changes is looked at again. `Files` is what
steps that are files need of a place; the rest of the room knows no files. A step is listed
once its file is complete, because a writer renames it into place. No other file says which
steps there are.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.saving import PreparedArchive
from npzkit.datasets.shard_names import is_temporary
from npzkit.errors import ArchiveLockedError, DamagedCheckpointError, StaleArchiveError
from npzkit.files import disk
from npzkit.files.identity import identity_of
from npzkit.files.locking import FileLock, is_locked, lock_path
from npzkit.files.urls import Location
from npzkit.limits import Limits

Identity = tuple[Any, ...]
"""What changes when a step is saved again: it is compared, and means nothing else."""

_NO_LIMITS = Limits(header_size=None, metadata_size=None)
AS_SAVED: dict[str, Any] = {"strict": True, "limits": _NO_LIMITS}
"""How a step is opened: npzkit alone wrote it. So oddities are damage, and nothing is too large
that could be saved."""

_LOCK_NAME = ".npzkit-checkpoints.lock"
_ABANDONED_SECONDS = 3600
"""Age of a leftover that is removed where the file system has no locks."""
_LOCK_ATTEMPTS = 10
_LOOKS = 200
"""How often something is looked at, at most, if it is another each time."""
_SUFFIX = ".npz"
_STEP_NAME = re.compile(r"step_([0-9]{8,18})\.npz")
_SHOWN_COUNT = 5
"""Steps that a message names."""

T = TypeVar("T")


def name_of_step(step: int) -> str:
    """Return the name of a step's file.

    Examples
    --------
    >>> name_of_step(100)
    'step_00000100.npz'
    """
    return f"step_{step:08d}.npz"


def name_of_folder(step: int) -> str:
    """Return the name of the folder of a step that is split into several files."""
    return name_of_step(step).removesuffix(_SUFFIX)


def is_step_name(name: str) -> bool:
    """Return whether this is the name of a step's file."""
    found = _STEP_NAME.fullmatch(name)
    # A name with more zeros than necessary is not one of ours.
    return found is not None and (len(found[1]) == 8 or found[1][0] != "0")


def steps_in(names: Iterable[str]) -> tuple[int, ...]:
    """Return the steps whose files have these names, ascending."""
    return tuple(sorted(int(name[5:-4]) for name in names if is_step_name(name)))


def steps_of_folders(names: Iterable[str]) -> tuple[int, ...]:
    """Return the steps whose folders have these names, ascending."""
    return steps_in(name + _SUFFIX for name in names)


def shown_steps(steps: Iterable[int]) -> str:
    """Return the numbers of the first few steps, for a message.

    Examples
    --------
    >>> shown_steps(range(10, 90, 10))
    '10, 20, 30, 40, 50, ...'
    """
    found = [str(step) for step in steps]
    return ", ".join([*found[:_SHOWN_COUNT], *(["..."] if found[_SHOWN_COUNT:] else [])])


def looks_at(look: Callable[[], T], path: str) -> Iterator[T]:
    """Yield what a look finds, until two looks find the same.

    Another process may save and remove steps meanwhile. So who cannot use what one look has
    found waits for the next one.

    Raises
    ------
    StaleArchiveError
        Each look found something else.
    """
    last: Any = None
    for _ in range(_LOOKS):
        found = look()
        if found == last:
            return
        last = found
        yield found
    raise StaleArchiveError(
        "steps are saved or removed faster than they can be read", path=path,
        remedy="Try again, or have the writer keep more steps, as latest(3) does.",
    )  # fmt: skip


class Status(NamedTuple):
    """What is known of a step without reading it.

    Attributes
    ----------
    size : int
        Bytes.
    modified : float
        Seconds since 1970 when it was saved.
    """

    size: int
    modified: float


class Listing(NamedTuple):
    """What one look at a place finds.

    Attributes
    ----------
    files : tuple of int
        The steps that have a file, ascending.
    folders : tuple of int
        The steps that have a folder, complete or not, ascending.
    """

    files: tuple[int, ...]
    folders: tuple[int, ...]


class Files(Protocol):
    """Where the files of steps are; `npzkit.checkpoint.sharded_steps` adds those with folders."""

    path: str
    """The path or URL of the place."""

    def path_of(self, step: int) -> str:
        """Return the path or URL of a step's file."""

    def look(self) -> Listing:
        """List the place again."""

    def has_folder(self, step: int) -> bool:
        """Return whether a step has a folder; at a URL, as of the last look."""

    def folder_of(self, step: int) -> str | Location:
        """Return where the folder of a step is, whether it exists or not."""

    def identity(self, step: int) -> Identity:
        """Return what changes when a step is saved again; FileNotFoundError if it is gone."""

    def status(self, step: int) -> Status:
        """Return the size and the time of a step's file; FileNotFoundError if it is gone."""

    def open(self, step: int, **options: Any) -> NpzFile:
        """Open a step's file; FileNotFoundError if it does not exist."""

    def commit(
        self, step: int, archive: PreparedArchive, metadata: bytes, is_synced: bool = False
    ) -> None:
        """Write a step with the text of its metadata.

        It replaces an older one of this number when it is complete. With `is_synced`, wait
        for the disk in any case.
        """

    def remove(self, step: int, identity: Identity | None = None) -> bool:
        """Remove a step's file if it exists, and return whether it is gone.

        With an identity, a step that was saved again since stays.
        """

    def settle(self, step: int) -> None:
        """Wait until a step is on disk, and its name, unless each commit does so."""

    def settle_names(self, always: bool = False) -> None:
        """Wait until removals are on disk, if commits wait for the disk."""

    def drop_cache(self, step: int) -> None:
        """Have the next read of a step come from the disk, as far as the system allows."""

    def begin_writing(self) -> None:
        """Keep other writers away until `close`; called before each change."""

    def close(self) -> None:
        """Let other writers in."""


class Folder:
    """A folder with one file per step, for one writer at a time and any readers.

    Parameters
    ----------
    path : path
    durable : bool
        Wait for the disk at each commit.
    """

    def __init__(self, path: str | os.PathLike[str], *, durable: bool) -> None:
        # A program may change its working directory while a store is open.
        self.path = os.path.abspath(os.fsdecode(path))
        self._durable = durable
        self._lock: FileLock | None = None

    def path_of(self, step: int) -> str:
        """Return the path of a step's file."""
        return os.path.join(self.path, name_of_step(step))

    def look(self) -> Listing:
        """List the folder once: a step that changes its form between two lists would be missed."""
        try:
            with os.scandir(self.path) as found:
                entries = {entry.name: entry for entry in found}
        except FileNotFoundError:
            return Listing((), ())
        # Where links of other names lead is not asked: some lead to themselves.
        folders = (
            step for step in steps_of_folders(entries) if entries[name_of_folder(step)].is_dir()
        )  # fmt: skip
        return Listing(steps_in(entries), tuple(folders))

    def has_folder(self, step: int) -> bool:
        """Return whether a step has a folder."""
        return os.path.isdir(self.folder_of(step))

    def folder_of(self, step: int) -> str:
        """Return the path of a step's folder."""
        return os.path.join(self.path, name_of_folder(step))

    def identity(self, step: int) -> Identity:
        """Return what changes when a step's file does."""
        return identity_of(self._stat(step))

    def status(self, step: int) -> Status:
        """Return the size and the time of a step's file."""
        found = self._stat(step)
        return Status(found.st_size, found.st_mtime)

    def _stat(self, step: int) -> os.stat_result:
        """Return what the system knows of a step's file, or of a link that leads to none."""
        try:
            return os.stat(self.path_of(step))
        except FileNotFoundError:
            return os.lstat(self.path_of(step))

    def open(self, step: int, **options: Any) -> NpzFile:
        """Open a step's file; FileNotFoundError if it does not exist.

        A link that leads to no file is damage: the step is lost, and no older one takes its
        place in silence.
        """
        path = self.path_of(step)
        try:
            return NpzFile(path, **AS_SAVED, **options)
        except FileNotFoundError as error:
            if not os.path.islink(path):
                raise
            raise DamagedCheckpointError(
                "the step's file is a link to a file that does not exist", path=path,
                found=os.readlink(path), remedy="Check whether its disk is mounted.",
            ) from error  # fmt: skip

    # -- changes ------------------------------------------------------------

    def commit(
        self, step: int, archive: PreparedArchive, metadata: bytes, is_synced: bool = False
    ) -> None:
        """Write a step's file, which replaces an older one when it is complete."""
        durable = self._durable or is_synced
        archive.write(self.path_of(step), formatted=metadata, durable=durable)

    def remove(self, step: int, identity: Identity | None = None) -> bool:
        """Remove a step's file if it exists and is the one with this identity."""
        with contextlib.suppress(FileNotFoundError):
            # A second writer has no lock on a share without locks.
            if identity is not None and self.identity(step) != identity:
                return False
        disk.unlink(self.path_of(step))
        return True

    def settle(self, step: int) -> None:
        """Wait until a step's file and its name are on disk, if that was not done before."""
        if self._durable:
            return
        file = disk.File(self.path_of(step))
        try:
            file.sync()
        finally:
            file.close()
        disk.sync_directory(self.path)

    def settle_names(self, always: bool = False) -> None:
        """Wait until removals are on disk, if commits wait for the disk."""
        if self._durable or always:
            disk.sync_directory(self.path)

    def drop_cache(self, step: int) -> None:
        """Have the next read of a step come from the disk, as far as the system allows."""
        if not hasattr(os, "posix_fadvise"):
            return
        self.settle(step)
        with open(self.path_of(step), "rb") as file, contextlib.suppress(OSError):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    # -- one writer at a time -----------------------------------------------

    def begin_writing(self) -> None:
        """Make the folder if necessary, take its lock, and remove leftovers of killed writers.

        Raises
        ------
        ArchiveLockedError
            Another store writes to the folder.
        FileNotFoundError
            The folder was removed since.
        """
        if self._lock is not None:
            if self._has_lock(self._lock):
                return
            if not os.path.isdir(self.path):
                # It may have been on a disk that is gone: no new one is made in its place.
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
            self.close()
        else:
            os.makedirs(self.path, exist_ok=True)
        self._lock = self._take_lock()
        self._remove_leftovers()

    def _has_lock(self, lock: FileLock) -> bool:
        """Return whether a lock is open, and on the file that is in the folder now."""
        try:
            return os.path.samestat(os.fstat(lock.fileno()), os.stat(self._lock_path))
        except (OSError, ValueError):
            # A forked child has closed the lock of its parent.
            return False

    @property
    def _lock_path(self) -> str:
        return os.path.join(self.path, _LOCK_NAME)

    def _take_lock(self) -> FileLock:
        for _ in range(_LOCK_ATTEMPTS):
            with contextlib.suppress(FileExistsError):
                disk.File(self._lock_path, is_new=True).close()
            try:
                return lock_path(self._lock_path, 0.0)
            except FileNotFoundError:
                # Someone removed it.
                continue
            except ArchiveLockedError as error:
                raise ArchiveLockedError(
                    "another checkpoint store writes to this folder", path=self.path,
                    remedy="Wait until it is closed, or save to another folder. Reading needs "
                    "no lock.",
                ) from error  # fmt: skip
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._lock_path)

    def _remove_leftovers(self) -> None:
        """Remove temporary files that no writer has open."""
        with os.scandir(self.path) as entries:
            left = [entry.path for entry in entries if is_temporary(entry.name)]
        if not left:
            return
        locks_work = self._locks_work()
        for path in left:
            with contextlib.suppress(OSError, ArchiveLockedError):
                if locks_work:
                    # A writer holds a lock on its temporary file.
                    lock_path(path, 0.0).close()
                elif not self._is_abandoned(path):
                    continue
                disk.unlink(path)

    def _locks_work(self) -> bool:
        """Return whether a second lock is refused, which some network shares do not do."""
        if not disk.RENAMES_OPEN_FILES:
            # Windows, where no file that is open can be removed.
            return True
        with open(self._lock_path, "rb") as second:
            return is_locked(second.fileno())

    def _is_abandoned(self, path: str) -> bool:
        """Return whether a file is old, by the clock of the file system alone."""
        os.utime(self._lock_path)
        return os.stat(self._lock_path).st_mtime - os.stat(path).st_mtime > _ABANDONED_SECONDS

    def close(self) -> None:
        """Let other writers in."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()
