"""Steps that are folders of shards, beside steps that are files.

Owns when a step's folder counts, how a step changes its form, and the removal of both.
`ShardedSteps` adds such steps to `npzkit.checkpoint.folder.Files`, which keep the lock.

A step's folder is a sharded archive. One rule says which form of a step counts: its file,
if it has one, or else its folder, if that has an index. So a step changes its form at one
call of the system: a file takes the place of a folder when the file is renamed into place,
and a folder that of a file when the file is removed, as the last call of a commit. If a
writer is killed, the other form is a leftover. What does not count is removed first, so
that no removal makes an older version count again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, TypeVar

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.saving import PreparedArchive
from npzkit.checkpoint.folder import AS_SAVED, Files, Folder, Identity, Status, looks_at
from npzkit.datasets.index_format import parse_index
from npzkit.datasets.places import place_of, read_index
from npzkit.datasets.shard_names import INDEX_NAME, attempt_of, is_temporary
from npzkit.datasets.shardedfile import ShardedFile
from npzkit.datasets.shardedwriter import ShardedWriter
from npzkit.errors import ArchiveLockedError, NpzkitError, StaleArchiveError
from npzkit.files import disk
from npzkit.files.objects import Found, LocalFolder, StorePrefix
from npzkit.members.metadata import parse_metadata

_LOOKS = 20
"""How often a place is listed at most, if what it has changes each time."""

T = TypeVar("T")


class ShardedSteps:
    """The steps of one place, which may be files or folders.

    Parameters
    ----------
    files : Files
        Of the steps that are files.
    durable : bool
        Wait for the disk at each commit.
    """

    def __init__(self, files: Files, *, durable: bool) -> None:
        self._files, self._durable = files, durable
        self.path = files.path
        self._is_clean = False

    def _place(self, step: int) -> LocalFolder | StorePrefix:
        """Return the place of a step's folder, whether it exists or not."""
        return place_of(self._files.folder_of(step))

    def _index_of(self, step: int) -> Found:
        """Return what is known of the index of a step's folder; FileNotFoundError if none."""
        found = self._place(step).find(INDEX_NAME)
        if found is None:
            path = self.folder_path(step)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found

    def _of_either(self, of_file: Callable[[], T], of_folder: Callable[[], T]) -> T:
        """Return something of the form of a step that counts; FileNotFoundError if none does.

        Both are looked for twice: between two looks, one may have taken the place of the
        other.
        """
        for of_form in (of_file, of_folder):
            with contextlib.suppress(FileNotFoundError):
                return of_form()
        if not isinstance(self._files, Folder):
            # A bucket remembers what it listed.
            self._files.look()
        with contextlib.suppress(FileNotFoundError):
            return of_file()
        return of_folder()

    def _is_folder(self, step: int) -> bool:
        """Return whether the folder of a step counts."""
        with contextlib.suppress(FileNotFoundError):
            return isinstance(self.identity(step), Found)
        return False

    # -- what there is ------------------------------------------------------

    def path_of(self, step: int) -> str:
        """Return the path of a step: of its file, unless it is a folder."""
        return self.folder_path(step) if self._is_folder(step) else self._files.path_of(step)

    def file_path(self, step: int) -> str:
        """Return the path of a step's file."""
        return self._files.path_of(step)

    def folder_path(self, step: int) -> str:
        """Return the path of a step's folder."""
        return self._files.path_of(step).removesuffix(".npz")

    def steps(self) -> tuple[int, ...]:
        """Return the steps that are complete, ascending.

        A folder without an index is not complete, or was removed since the look. Other steps
        may have come since then, so the place is listed again until two looks find the same.
        """
        for look in islice(looks_at(self._files.look, self.path), _LOOKS):
            folders = [step for step in look.folders if step not in look.files]
            complete = [step for step in folders if self._is_complete(step)]
            if len(complete) == len(folders):
                break
        return tuple(sorted([*look.files, *complete])) if folders else look.files

    def _is_complete(self, step: int) -> bool:
        """Return whether a step that has a folder counts, in either form."""
        try:
            return bool(self.identity(step))
        except FileNotFoundError:
            return False

    def identity(self, step: int) -> Identity:
        """Return what changes when a step is saved again."""
        return self._of_either(lambda: self._files.identity(step), lambda: self._index_of(step))

    def status(self, step: int) -> Status:
        """Return the size and the time of a step."""

        def of_folder() -> Status:
            # If the index is the same after the list, no shard was removed meanwhile.
            for index in looks_at(lambda: self._index_of(step), self.path):
                files = self._place(step).listed().values()
                found = Status(sum(file.size for file in files), index.modified)
            return found

        return self._of_either(lambda: self._files.status(step), of_folder)

    def open(self, step: int, **options: Any) -> NpzFile:
        """Open a step; FileNotFoundError if it does not exist."""
        return self._of_either(
            lambda: self._files.open(step, **options),
            lambda: ShardedFile(self._files.folder_of(step), **AS_SAVED, **options),
        )

    # -- changes ------------------------------------------------------------

    def commit(self, step: int, archive: PreparedArchive, metadata: bytes) -> None:
        """Write a step as a file, which replaces an older one, or a folder, when complete."""
        # The folder may have been committed with durable=True.
        self._files.commit(step, archive, metadata, self._files.has_folder(step))
        if self._files.has_folder(step):
            self._remove_folder(step)

    def commit_shards(
        self, step: int, arrays: Mapping[str, Any], metadata: bytes, **options: Any
    ) -> None:
        """Write a step as a folder, which replaces an older one, or a file, when complete.

        `options` are those of `npzkit.ShardedWriter`.
        """
        older = self._file_now(step)
        durable = self._durable or older is not None
        writer = ShardedWriter(
            self._files.folder_of(step), metadata=parse_metadata(metadata, None), durable=durable,
            **options,
        )  # fmt: skip
        try:
            writer.update(arrays)
            writer.commit(writer.close())
            if durable:
                self._files.settle_names(always=True)
            self._take_place_of_file(step, older)
        except (FileExistsError, StaleArchiveError) as error:
            self._give_up(step, writer)
            raise ArchiveLockedError(
                f"another checkpoint store saved or removed step {step} at the same time",
                path=self.path, remedy="Let one store write here at a time.",
            ) from error  # fmt: skip
        except BaseException:
            self._give_up(step, writer)
            raise

    def _file_now(self, step: int) -> Identity | None:
        """Return the identity of a step's file, by a new look; None if there is no file."""
        with contextlib.suppress(FileNotFoundError):
            if step in self._files.look().files:
                return self._files.identity(step)
        return None

    def _take_place_of_file(self, step: int, older: Identity | None) -> None:
        """Make a step's complete folder count: remove the file that was there before.

        Raises
        ------
        StaleArchiveError
            Another store has saved the file since.
        """
        if self._file_now(step) != older or not (
            older is None or self._files.remove(step, older)
        ):  # fmt: skip
            raise StaleArchiveError("the step was saved again since", path=self.path)
        if older is not None:
            self._files.settle_names()

    def _give_up(self, step: int, writer: ShardedWriter) -> None:
        """Remove what a save that failed has written, if the system still allows it."""
        with contextlib.suppress(OSError, NpzkitError):
            writer.abort()
            if self._file_now(step) is not None:
                # The folder does not count, even if its index is there.
                self._remove_folder(step)
            else:
                self._place(step).remove_folder()

    def remove(self, step: int, identity: Identity | None = None) -> bool:
        """Remove a step, in both forms, if it exists and is the one with this identity."""
        try:
            now = file = self._files.identity(step)
        except FileNotFoundError:
            file = None
            now = self._place(step).find(INDEX_NAME) or ()
        if identity and now and now != identity:
            return False
        if self._files.has_folder(step):
            self._remove_folder(step)
        return file is None or self._files.remove(step, identity)

    def _remove_folder(self, step: int) -> None:
        """Remove the folder of a step. Its index goes first: without it, it does not count."""
        place = self._place(step)
        place.remove(INDEX_NAME)
        if place.is_local:
            if place.find(INDEX_NAME) is not None:
                raise ArchiveLockedError(
                    "another program writes to this step", path=place.name,
                    remedy="Wait until it has ended.",
                )  # fmt: skip
            if self._durable:
                # Before its shards are removed, and before the file of this step is.
                place.settle(())
        _remove_unnamed(place, set())

    def settle(self, step: int) -> None:
        """Wait until a step is on disk, and its name."""
        if not self._is_folder(step):
            self._files.settle(step)
        elif not self._durable:
            place = self._place(step)
            place.settle(place.listed())
            if place.is_local:
                disk.sync_directory(self.path)

    def settle_names(self) -> None:
        """Wait until removals are on disk, if commits wait for the disk."""
        self._files.settle_names()

    def drop_cache(self, step: int) -> None:
        """Have the next read of a step come from the disk, as far as the system allows."""
        if not self._is_folder(step):
            self._files.drop_cache(step)
            return
        self.settle(step)
        place = self._place(step)
        if isinstance(place, LocalFolder) and hasattr(os, "posix_fadvise"):
            for name in place.listed():
                with open(place.file(name), "rb") as file, contextlib.suppress(OSError):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def begin_writing(self) -> None:
        """Keep other writers away, and remove what killed writers left in folders of steps."""
        self._files.begin_writing()
        if not self._is_clean and isinstance(self._files, Folder) and self._files._locks_work():
            # This store has the lock: nobody else writes.
            look = self._files.look()
            for step in look.folders:
                with contextlib.suppress(OSError, NpzkitError):
                    if step in look.files:
                        self._remove_folder(step)
                    else:
                        self._remove_leftovers(step)
            self._is_clean = True

    def _remove_leftovers(self, step: int) -> None:
        place = self._place(step)
        named: set[str] = set()
        # A share may remember that there was no index: only the list and the file together
        # say so.
        if INDEX_NAME in place.listed() or place.find(INDEX_NAME) is not None:
            named = {shard.name for shard in parse_index(read_index(place)).shards}
        _remove_unnamed(place, named)

    def close(self) -> None:
        """Let other writers in."""
        self._is_clean = False
        self._files.close()


def _remove_unnamed(place: LocalFolder | StorePrefix, named: set[str]) -> None:
    """Remove npzkit's shards that are not named, and the folder if nothing else is in it."""
    for name in place.listed():
        if (attempt_of(name) or is_temporary(name)) and name not in named:
            place.remove(name)
    place.remove_folder()
