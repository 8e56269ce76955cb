"""The steps of a checkpoint store: files, or folders of shards, in one place.

Owns the names of steps, their two forms, and that what another process changes is looked at again.
`Steps` is what a folder (`npzkit.checkpoint.folder`) and a store of objects
(`npzkit.checkpoint.bucket`) have in common. These two own how a second writer is kept away.

A step is listed once its file is complete, because a writer renames it into place or ends its
upload. No other file says which steps there are. A step's folder is a sharded archive, which is
listed if it has an index. The first step decides the form of those that follow, and no writer
changes it. Steps of both forms, from two stores that were put together, are all listed. A file
hides the folder of its number.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.save import PreparedArchive
from npzkit.checkpoint.frozen import Shared
from npzkit.datasets import INDEX_NAME
from npzkit.datasets.index import Index
from npzkit.datasets.shard_names import ShardRecord, attempt_of
from npzkit.datasets.shardedfile import ShardedFile
from npzkit.datasets.shardedwriter import ShardedWriter
from npzkit.datasets.sharding import read_index
from npzkit.errors import ArchiveLockedError, NpzkitError, StaleArchiveError, printable, warn
from npzkit.files.file_objects import Identity
from npzkit.limits import Limits
from npzkit.members.metadata import parse_metadata
from npzkit.stores.objects import Found, LocalFolder, Objects, StorePrefix, is_temporary, objects_at

_NO_LIMITS = Limits(header_size=None, metadata_size=None)
_AS_SAVED: dict[str, Any] = {"strict": True, "limits": _NO_LIMITS}
"""How a step is opened: npzkit alone wrote it. So oddities are damage, and nothing is too large
that could be saved."""

_LOOKS = 200
"""How often something is looked at, at most, if it is another each time."""
_LISTS = 20
"""How often the steps are listed, at most, if folders are not complete."""
_SUFFIX = ".npz"
_STEP_NAME = re.compile(r"step_([0-9]{8}|[1-9][0-9]{8,17})\.npz")
_SHOWN_COUNT = 5
"""Steps that a message names."""
TOO_OFTEN = "Try again, or have the writer save less often, or keep more steps, as latest(3) does."
"""The remedy where a writer is faster than a reader."""

T = TypeVar("T")


def name_of_step(step: int, *, is_folder: bool = False) -> str:
    """Return the name of a step's file, or of its folder.

    Examples
    --------
    >>> name_of_step(100), name_of_step(100, is_folder=True)
    ('step_00000100.npz', 'step_00000100')
    """
    return f"step_{step:08d}" + ("" if is_folder else _SUFFIX)


def steps_in(names: Iterable[str]) -> tuple[int, ...]:
    """Return the steps whose files have these names, ascending."""
    return tuple(sorted(int(found[1]) for found in map(_STEP_NAME.fullmatch, names) if found))


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


class NewStep(NamedTuple):
    """What is to be written as a step.

    Attributes
    ----------
    step : int
    archive : PreparedArchive
        Has the arrays, for a file.
    arrays : mapping
        The same by key.
    metadata : bytes
    frozen : collection of str
        Keys of arrays that have shards of their own.
    shared : Shared or None
        Shards of another step that this one has too.
    order : list of str
        All keys.
    options : dict
        Those of `npzkit.ShardedWriter`.
    """

    step: int
    archive: PreparedArchive
    arrays: Mapping[str, Any]
    metadata: bytes
    frozen: Collection[str]
    shared: Shared | None
    order: list[str]
    options: dict[str, Any]


class Steps(abc.ABC):
    """The steps in one place, for any readers.

    Attributes
    ----------
    path : str
        Of the place, or its URL without secrets.
    """

    path: str
    _here: Any
    _durable: bool
    _has_warned = False

    @abc.abstractmethod
    def look(self) -> Listing:
        """List the place once."""

    @abc.abstractmethod
    def _find_file(self, step: int) -> Found | None:
        """Return what is known of a step's file."""

    @abc.abstractmethod
    def begin_writing(self) -> None:
        """Keep other writers away, and remove leftovers of killed ones, where that is possible.

        Raises
        ------
        ArchiveLockedError
            Another store writes here.
        FileNotFoundError
            The place was removed since.
        """

    @abc.abstractmethod
    def commit(self, new: NewStep) -> None:
        """Write a step as a file, which replaces an older one when complete.

        Raises
        ------
        ArchiveLockedError
            Another store saved or removed this step meanwhile.
        """

    @abc.abstractmethod
    def _remove_file(self, step: int, found: Found | None) -> bool:
        """Remove a step's file, unless it is another one than `found`."""

    def drop_cache(self, step: int) -> None:
        """Have the next read of a step come from the disk, as far as the system allows."""

    def close(self) -> None:
        """Let other writers in."""

    # -- what there is ----------------------------------------------------------

    def path_of(self, step: int, *, is_folder: bool | None = None) -> str:
        """Return the path of a step, or the one that it would get; a URL is without secrets."""
        if is_folder is None:
            is_folder = self.is_written_as_folder(step)
        return str(self._here.file(name_of_step(step, is_folder=bool(is_folder))))

    def _place(self, step: int) -> LocalFolder | StorePrefix:
        """Return the folder of a step, whether it exists or not."""
        return objects_at(self._here.file(name_of_step(step, is_folder=True)))

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
        return FileNotFoundError(
            errno.ENOENT, os.strerror(errno.ENOENT), self.path_of(step, is_folder=False)
        )

    def files(self, step: int) -> list[Found]:
        """Return the files of a step; the first is its own, or its index."""
        # If the identity is the same after the list, no shard was removed meanwhile.
        for is_folder, found in looks_at(lambda: self.identity(step), self.path):
            files = [found]
            if not is_folder:
                break
            listed = self._place(step).listed()
            files += [file for name, file in listed.items() if name != INDEX_NAME]
        return files

    def have_shared(self, shared: Shared | None, steps: Iterable[int]) -> bool:
        """Return whether all steps have the very files that are shared."""
        if shared is None:
            return True
        taken = _inodes(shared.place, {record.name for record in shared.records})
        return len(taken) == len(shared.records) and all(
            self._is_folder(step) and taken <= _inodes(self._place(step)) for step in steps
        )

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
        return place, index_at(place)

    def open(self, step: int) -> NpzFile:
        """Open a step; FileNotFoundError if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            return self._open_file(step)
        with contextlib.suppress(FileNotFoundError):
            return ShardedFile(self._place(step).location, **_AS_SAVED)
        raise self._missing(step)

    def _open_file(self, step: int) -> NpzFile:
        return NpzFile(self._here.file(name_of_step(step)), **_AS_SAVED)

    # -- changes ----------------------------------------------------------------

    def shard_writer(self, new: NewStep, **options: Any) -> ShardedWriter:
        """Return what writes to the folder of a step; `options` are those of the class."""
        options = {"durable": self._durable, **new.options, **options}
        return ShardedWriter(self._place(new.step).location, **options)

    def commit_folder(
        self,
        new: NewStep,
        fill: Callable[[ShardedWriter], Iterable[str | ShardRecord]] | None = None,
    ) -> None:
        """Write a step as a folder, which replaces an older one when complete.

        `fill` writes shards, and returns those that count; by default all arrays are written.

        Warns
        -----
        RuntimeWarning
            For the first time, what is shared had to be copied.
        """
        writer = self.shard_writer(new, metadata=parse_metadata(new.metadata, None))
        try:
            writer.commit(self._fill(new, writer) if fill is None else fill(writer))
            if self._durable:
                self._here.settle(())
        except BaseException as error:
            with contextlib.suppress(OSError, NpzkitError):
                writer.abort()
                self._place(new.step).remove_folder()
            if isinstance(error, (FileExistsError, StaleArchiveError)):
                raise self._overtaken(new.step) from error
            raise

    def _fill(self, new: NewStep, writer: ShardedWriter) -> list[ShardRecord]:
        """Write the arrays of a step, and return the shards that have them."""
        writer._order = new.order
        if new.shared is not None:
            place = new.shared.place
            are_linked = [writer._take(place, record) for record in new.shared.records]
            if not (all(are_linked) or self._has_warned):
                self._has_warned = True
                what = "files cannot be linked here, so frozen arrays are copied for each step"
                warn(f"{what}: {printable(self.path)}", RuntimeWarning)
        for is_frozen in (True, False):
            keys = [key for key in new.arrays if (key in new.frozen) == is_frozen]
            writer.update({key: new.arrays[key] for key in keys})
            writer._complete_shard()
        return writer.close()

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
        remove_unnamed(place, ())

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


def _inodes(place: Objects, names: Collection[str] | None = None) -> set[tuple[int, int]]:
    """Return the inode and the device of files in a folder: of those that are named, or of all."""
    if not place.is_local:
        return set()
    marks = (found.mark for name, found in place.listed().items() if names is None or name in names)
    return {
        (mark.inode, mark.device) for mark in marks if isinstance(mark, Identity) and mark.inode
    }


def index_at(place: LocalFolder | StorePrefix) -> Index:
    """Return the index of a step's folder."""
    return read_index(place, _NO_LIMITS)[0]


def remove_unnamed(place: Objects, named: Collection[str]) -> None:
    """Remove npzkit's shards that are not named, and the folder if nothing else is in it."""
    for name in place.listed():
        if (attempt_of(name) or is_temporary(name)) and name not in named:
            place.remove(name)
    place.remove_folder()
