"""The steps of a checkpoint store: the files in one folder.

Owns the names of steps, the lock that keeps a second writer away, leftovers of writers that
were killed, and that what another process changes is looked at again.
`npzkit.checkpoint.bucket` does the same in a store of objects.

A step is listed once its file is complete, because a writer renames it into place. No other
file says which steps there are.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.save import PreparedArchive
from npzkit.datasets.shard_names import is_temporary
from npzkit.errors import ArchiveLockedError, DamagedCheckpointError, StaleArchiveError
from npzkit.limits import Limits
from npzkit.stores.objects import Found, LocalFolder

_NO_LIMITS = Limits(header_size=None, metadata_size=None)
AS_SAVED: dict[str, Any] = {"strict": True, "limits": _NO_LIMITS}
"""How a step is opened: npzkit alone wrote it. So oddities are damage, and nothing is too large
that could be saved."""

_LOCK_NAME = ".npzkit-checkpoints.lock"
_ABANDONED_SECONDS = 3600
"""Age of a leftover that is removed where the file system has no locks."""
_LOOKS = 200
"""How often something is looked at, at most, if it is another each time."""
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


def is_step_name(name: str) -> bool:
    """Return whether this is the name of a step's file."""
    found = _STEP_NAME.fullmatch(name)
    # A name with more zeros than necessary is not one of ours.
    return found is not None and (len(found[1]) == 8 or found[1][0] != "0")


def steps_in(names: Iterable[str]) -> tuple[int, ...]:
    """Return the steps whose files have these names, ascending."""
    return tuple(sorted(int(name[5:-4]) for name in names if is_step_name(name)))


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


class Steps:
    """The steps in a folder, for one writer at a time and any readers.

    Parameters
    ----------
    folder : path
    durable : bool
        Wait for the disk at each commit.
    """

    _lock: Any = None

    def __init__(self, folder: str | os.PathLike[str], *, durable: bool) -> None:
        # A program may change its working directory while a store is open.
        self.path = os.path.abspath(os.fsdecode(folder))
        self._here: Any = LocalFolder(self.path)
        self._durable = durable

    # -- in a folder; a store of objects does these in another way --------------

    def steps(self) -> tuple[int, ...]:
        """Return the steps, ascending."""
        with contextlib.suppress(FileNotFoundError):
            return steps_in(os.listdir(self.path))
        return ()

    def _find(self, step: int) -> Found | None:
        """Return what is known of a step's file, or of a link that leads to none."""
        found: Found | None = self._here.find(name_of_step(step))
        if found is None and os.path.islink(self.path_of(step)):
            link: Any = os.lstat(self.path_of(step))
            return Found(link.st_size, link.st_mtime, link)
        return found

    def commit(self, step: int, archive: PreparedArchive, metadata: bytes) -> None:
        """Write a step, which replaces an older one when it is complete."""
        archive.write(self.path_of(step), formatted=metadata, durable=self._durable)

    def remove(self, step: int, seen: Found | None = None) -> bool:
        """Remove a step if it exists and is what was `seen`; return whether it is gone."""
        found = self._find(step)
        if found is not None:
            # A second writer has no lock on a share without locks.
            if seen not in (None, found):
                return False
            self._here.unlink(name_of_step(step))
        return True

    # -- what there is ----------------------------------------------------------

    def path_of(self, step: int) -> str:
        """Return the path of a step's file, or its URL without secrets."""
        return str(self._here.file(name_of_step(step)))

    def identity(self, step: int) -> Found:
        """Return what changes when a step is saved again; FileNotFoundError if there is none."""
        found = self._find(step)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path_of(step))
        return found

    def status(self, step: int) -> Status:
        """Return the size and the time of a step."""
        found = self.identity(step)
        return Status(found.size, found.modified)

    def open(self, step: int, **options: Any) -> NpzFile:
        """Open a step; FileNotFoundError if it does not exist.

        A link that leads to no file is damage: the step is lost, and no older one takes its
        place in silence.
        """
        path = self.path_of(step)
        try:
            return NpzFile(self._here.file(name_of_step(step)), **{**AS_SAVED, **options})
        except FileNotFoundError as error:
            if not os.path.islink(path):
                raise
            raise DamagedCheckpointError(
                "the step's file is a link to a file that does not exist", path=path,
                found=os.readlink(path), remedy="Check whether its disk is mounted.",
            ) from error  # fmt: skip

    # -- on disk ----------------------------------------------------------------

    def settle(self, step: int) -> None:
        """Wait until a step is on disk, and its name, if that was not done before."""
        if not self._durable:
            self._here.settle((name_of_step(step),))

    def settle_names(self) -> None:
        """Wait until removals are on disk, if commits wait for the disk."""
        if self._durable:
            self._here.settle(())

    def drop_cache(self, step: int) -> None:
        """Have the next read of a step come from the disk, as far as the system allows."""
        if not (self._here.is_local and hasattr(os, "posix_fadvise")):
            return
        self.settle(step)
        with open(self.path_of(step), "rb") as file, contextlib.suppress(OSError):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    # -- one writer at a time ---------------------------------------------------

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
        self._remove_temporary(locks_work=self._here.has_locks(_LOCK_NAME))

    def _has_lock(self) -> bool:
        """Return whether the lock is open, and on the file that is in the folder now."""
        try:
            return os.path.samestat(os.fstat(self._lock.fileno()), os.stat(self._lock_path))
        except (OSError, ValueError):
            # A forked child has closed the lock of its parent.
            return False

    @property
    def _lock_path(self) -> str:
        return os.path.join(self.path, _LOCK_NAME)

    def _remove_temporary(self, *, locks_work: bool) -> None:
        """Remove temporary files that no writer has open."""
        with os.scandir(self.path) as entries:
            left = [entry.name for entry in entries if is_temporary(entry.name)]
        for name in left:
            with contextlib.suppress(OSError):
                # A writer holds a lock on its temporary file, so that it is not removed.
                if locks_work or self._is_abandoned(os.path.join(self.path, name)):
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
