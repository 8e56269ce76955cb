"""The steps of a checkpoint store: files, or folders of shards, in one folder.

Owns the names of steps, the lock that keeps a second writer away, leftovers of writers that were
killed, and that what another process changes is looked at again. `npzkit.checkpoint.bucket` does
the same in a store of objects.

A step is listed once its file is complete, because a writer renames it into place. No other
file says which steps there are. A step's folder is a sharded archive, which is listed if it has
an index. The first step decides the form of those that follow, and no writer changes it. Steps
of both forms, from two stores that were put together, are all listed. A file hides the folder
of its number.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.save import PreparedArchive
from npzkit.datasets import INDEX_NAME
from npzkit.datasets.index import Index
from npzkit.datasets.shard_names import ShardRecord, attempt_of
from npzkit.datasets.shardedfile import ShardedFile
from npzkit.datasets.shardedwriter import ShardedWriter
from npzkit.datasets.sharding import read_index
from npzkit.errors import (
    ArchiveLockedError,
    DamagedCheckpointError,
    NpzkitError,
    StaleArchiveError,
    printable,
    warn,
)
from npzkit.files.file_objects import Identity
from npzkit.limits import Limits
from npzkit.members.metadata import parse_metadata
from npzkit.stores.objects import Found, LocalFolder, Objects, StorePrefix, is_temporary, objects_at

_NO_LIMITS = Limits(header_size=None, metadata_size=None)
AS_SAVED: dict[str, Any] = {"strict": True, "limits": _NO_LIMITS}
"""How a step is opened: npzkit alone wrote it. So oddities are damage, and nothing is too large
that could be saved."""

_LOCK_NAME = ".npzkit-checkpoints.lock"
_ABANDONED_SECONDS = 3600
"""Age of a leftover that is removed where the file system has no locks."""
_LOOKS = 200
"""How often something is looked at, at most, if it is another each time."""
_LISTS = 20
"""How often the steps are listed, at most, if folders are not complete."""
_SUFFIX = ".npz"
_STEP_NAME = re.compile(r"step_([0-9]{8,18})\.npz")
_SHOWN_COUNT = 5
"""Steps that a message names."""
TOO_OFTEN = "Try again, or have the writer save less often, or keep more steps, as latest(3) does."
"""The remedy where a writer is faster than a reader."""

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
        remedy=TOO_OFTEN,
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


class StepIdentity(NamedTuple):
    """What changes when a step is saved again.

    Attributes
    ----------
    is_folder : bool
    found : Found
        Of its file, or of the index of its folder.
    """

    is_folder: bool
    found: Found


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


class Steps:
    """The steps in a folder, for one writer at a time and any readers.

    Parameters
    ----------
    folder : path
    durable : bool
        Wait for the disk at each commit.
    """

    _lock: Any = None
    _has_warned = False

    def __init__(self, folder: str | os.PathLike[str], *, durable: bool) -> None:
        # A program may change its working directory while a store is open.
        self.path = os.path.abspath(os.fsdecode(folder))
        self._here: Any = LocalFolder(self.path)
        self._durable = durable

    # -- in a folder; a store of objects does these in another way --------------

    def look(self) -> Listing:
        """List the folder once."""
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

    def _find_file(self, step: int) -> Found | None:
        """Return what is known of a step's file, or of a link that leads to none."""
        found: Found | None = self._here.find(name_of_step(step))
        if found is None and os.path.islink(self.file_path(step)):
            link: Any = os.lstat(self.file_path(step))
            return Found(link.st_size, link.st_mtime, link)
        return found

    def _write_file(self, step: int, archive: PreparedArchive, metadata: bytes) -> None:
        archive.write(self.file_path(step), formatted=metadata, durable=self._durable)

    def _remove_file(self, step: int, found: Found | None) -> bool:
        """Remove a step's file, unless it is another one than `found`."""
        # A second writer has no lock on a share without locks.
        if found is not None and self._find_file(step) not in (found, None):
            return False
        self._here.unlink(name_of_step(step))
        return True

    # -- what there is ----------------------------------------------------------

    def file_path(self, step: int) -> str:
        """Return the path of a step's file, or its URL without secrets."""
        return str(self._here.file(name_of_step(step)))

    def folder_path(self, step: int) -> str:
        """Return the path of a step's folder."""
        return self.file_path(step).removesuffix(_SUFFIX)

    def _folder_of(self, step: int) -> Any:
        """Return what opens a step's folder, whether it exists or not."""
        return self._here.file(name_of_folder(step))

    def _place(self, step: int) -> LocalFolder | StorePrefix:
        return objects_at(self._folder_of(step))

    def path_of(self, step: int) -> str:
        """Return the path of a step, or the one that it would get."""
        is_folder = self.is_written_as_folder(step)
        return self.folder_path(step) if is_folder else self.file_path(step)

    def _is_folder(self, step: int) -> bool:
        """Return whether a step is a folder."""
        known = self._identity(step)
        return known is not None and known.is_folder

    def is_written_as_folder(self, step: int) -> bool | None:
        """Return whether a step is to be a folder: as it is now, or as the newest one is.

        None if there is no step: the first one decides.
        """
        look = self.look()
        steps = sorted({*look.files, *look.folders}, key=lambda one: (one == step, one))
        known = map(self._identity, reversed(steps))
        return next((identity.is_folder for identity in known if identity), None)

    def steps(self) -> tuple[int, ...]:
        """Return the steps that are complete, ascending.

        A folder without an index is not complete, or was removed since the look. Other steps
        may have come since then, so the place is listed again until two looks find the same.
        """
        for look in islice(looks_at(self.look, self.path), _LISTS):
            folders = [step for step in look.folders if step not in look.files]
            complete = [step for step in folders if self._identity(step)]
            if len(complete) == len(folders):
                break
        return tuple(sorted([*look.files, *complete])) if folders else look.files

    def identity(self, step: int) -> StepIdentity:
        """Return what changes when a step is saved again; FileNotFoundError if there is none."""
        found = self._identity(step)
        if found is None:
            raise self._missing(step)
        return found

    def _identity(self, step: int) -> StepIdentity | None:
        if (found := self._find_file(step)) is not None:
            return StepIdentity(False, found)
        found = self._place(step).find(INDEX_NAME)
        return None if found is None else StepIdentity(True, found)

    def _missing(self, step: int) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.file_path(step))

    def status(self, step: int) -> Status:
        """Return the size and the time of a step."""
        # If the identity is the same after the list, no shard was removed meanwhile.
        for is_folder, found in looks_at(lambda: self.identity(step), self.path):
            status = Status(found.size, found.modified)
            if not is_folder:
                break
            files = self._place(step).listed().values()
            status = status._replace(size=sum(file.size for file in files))
        return status

    def inodes_of(self, step: int) -> set[tuple[int, int]]:
        """Return which files a step's folder has; those that have no inode are left out."""
        return inodes(self._place(step), None) if self._is_folder(step) else set()

    def index_of(self, step: int) -> tuple[LocalFolder | StorePrefix, Index]:
        """Return where the shards of a step are, and its index.

        Raises
        ------
        FileNotFoundError
            The step is no folder.
        """
        if not self._is_folder(step):
            raise self._missing(step)
        place = self._place(step)
        return place, _index_at(place)

    def open(self, step: int, **options: Any) -> NpzFile:
        """Open a step; FileNotFoundError if it does not exist."""
        options = {**AS_SAVED, **options}
        with contextlib.suppress(FileNotFoundError):
            return self._open_file(step, **options)
        with contextlib.suppress(FileNotFoundError):
            return ShardedFile(self._folder_of(step), **options)
        raise self._missing(step)

    def _open_file(self, step: int, **options: Any) -> NpzFile:
        """Open a step's file.

        A link that leads to no file is damage: the step is lost, and no older one takes its
        place in silence.
        """
        path = self.file_path(step)
        try:
            return NpzFile(self._here.file(name_of_step(step)), **options)
        except FileNotFoundError as error:
            if not os.path.islink(path):
                raise
            raise DamagedCheckpointError(
                "the step's file is a link to a file that does not exist", path=path,
                found=os.readlink(path), remedy="Check whether its disk is mounted.",
            ) from error  # fmt: skip

    # -- changes ----------------------------------------------------------------

    def commit(self, step: int, archive: PreparedArchive, metadata: bytes) -> None:
        """Write a step as a file, which replaces an older one when complete."""
        self._write_file(step, archive, metadata)

    def shard_writer(self, step: int, **options: Any) -> ShardedWriter:
        """Return what writes to the folder of a step; `options` are those of the class."""
        return ShardedWriter(self._folder_of(step), **{"durable": self._durable, **options})

    def commit_shards(
        self,
        step: int,
        metadata: bytes,
        fill: Callable[[ShardedWriter], Iterable[str | ShardRecord]],
        **options: Any,
    ) -> None:
        """Write a step as a folder, which replaces an older one when complete.

        `fill` returns the shards that count. `options` are those of `npzkit.ShardedWriter`.
        """
        writer = self.shard_writer(step, metadata=parse_metadata(metadata, None), **options)
        try:
            writer.commit(fill(writer))
            if self._durable:
                self._here.settle(())
        except BaseException as error:
            with contextlib.suppress(OSError, NpzkitError):
                writer.abort()
                self._place(step).remove_folder()
            if isinstance(error, (FileExistsError, StaleArchiveError)):
                raise self._overtaken(step) from error
            raise

    def fill(
        self,
        groups: Sequence[Mapping[str, Any]],
        taken: tuple[Objects, Sequence[ShardRecord]] | None,
        order: Iterable[str],
        writer: ShardedWriter,
    ) -> list[ShardRecord]:
        """Write the arrays of a step, and return the shards that have them.

        Parameters
        ----------
        groups : sequence of mapping
            Arrays by key; those of different groups are in different shards.
        taken : (Objects, sequence of ShardRecord) or None
            Shards of another step that this one has too, and where they are.
        order : iterable of str
            Of all keys.
        writer : ShardedWriter

        Warns
        -----
        RuntimeWarning
            For the first time, what is taken had to be copied.
        """
        writer._order = order
        if taken is not None:
            place, records = taken
            are_linked = [writer._take(place, record) for record in records]
            if not all(are_linked):
                self._warn_of_copies()
        for arrays in groups:
            writer.update(arrays)
            writer._complete_shard()
        return writer.close()

    def _warn_of_copies(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            what = "files cannot be linked here, so frozen arrays are copied for each step"
            warn(f"{what}: {printable(self.path)}", RuntimeWarning)

    def _overtaken(self, step: int) -> ArchiveLockedError:
        return ArchiveLockedError(
            f"another checkpoint store saved or removed step {step} at the same time",
            path=self.path, remedy="Let one store write here at a time.",
        )  # fmt: skip

    def remove(self, step: int, identity: StepIdentity | None = None) -> bool:
        """Remove a step if it exists and is the one with this identity."""
        known = self._identity(step)
        if known is None or (identity and known != identity):
            return known is None
        if known.is_folder:
            self._remove_folder(step)
            return True
        return self._remove_file(step, identity.found if identity else None)

    def _remove_folder(self, step: int) -> None:
        """Remove the folder of a step. Its index goes first: without it, it is not listed."""
        place = self._place(step)
        place.remove(INDEX_NAME)
        if place.is_local:
            if place.find(INDEX_NAME) is not None:
                raise ArchiveLockedError(
                    "another program writes to this step", path=place.name,
                    remedy="Wait until it has ended.",
                )  # fmt: skip
            if self._durable:
                # Before its shards are removed.
                place.settle(())
        _remove_unnamed(place, set())

    def settle(self, step: int) -> None:
        """Wait until a step is on disk, and its name, if that was not done before."""
        if self._durable:
            return
        if self._is_folder(step):
            place = self._place(step)
            place.settle(place.listed())
            self._here.settle(())
        else:
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
        paths = [self.file_path(step)]
        if self._is_folder(step):
            place: Any = self._place(step)
            paths = [place.file(name) for name in place.listed()]
        for path in paths:
            with open(path, "rb") as file, contextlib.suppress(OSError):
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
        locks_work = self._here.has_locks(_LOCK_NAME)
        self._remove_temporary(locks_work=locks_work)
        if locks_work:
            # This store has the lock: nobody else writes.
            for step in self.look().folders:
                with contextlib.suppress(OSError, NpzkitError):
                    _remove_unnamed(self._place(step), _named(self._place(step)))

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


def inodes(place: Objects, names: Collection[str] | None) -> set[tuple[int, int]]:
    """Return the inode and the device of files in a folder: of those that are named, or of all."""
    if not place.is_local:
        return set()
    marks = (found.mark for name, found in place.listed().items() if names is None or name in names)
    return {
        (mark.inode, mark.device) for mark in marks if isinstance(mark, Identity) and mark.inode
    }


def _index_at(place: LocalFolder | StorePrefix) -> Index:
    return read_index(place, _NO_LIMITS)[0]


def _named(place: LocalFolder | StorePrefix) -> set[str]:
    """Return the shards that the index of a folder names; none if there is no index."""
    # A share may remember that there was no index: only the list and the file together say so.
    if INDEX_NAME in place.listed() or place.find(INDEX_NAME) is not None:
        return {shard.name for shard in _index_at(place).shards}
    return set()


def _remove_unnamed(place: LocalFolder | StorePrefix, named: set[str]) -> None:
    """Remove npzkit's shards that are not named, and the folder if nothing else is in it."""
    for name in place.listed():
        if (attempt_of(name) or is_temporary(name)) and name not in named:
            place.remove(name)
    place.remove_folder()
