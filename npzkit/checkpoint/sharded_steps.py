"""Steps that are folders of shards, beside steps that are files.

Owns what a step's folder is called, when it counts, and its removal. `ShardedSteps` adds
such steps to another `npzkit.checkpoint.folder.Storage`, which keeps the files and the lock.

A step's folder is a sharded archive. It counts once it has its index, and no longer when
the index is removed. If a step is both a file and a folder, because a writer was killed
between the two, the file counts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.npzwriter import NpzWriter
from npzkit.checkpoint.folder import Folder, Identity, Status, Storage
from npzkit.checkpoint.step_names import name_of_step, steps_in
from npzkit.errors import ArchiveLockedError, NpzkitError, StaleArchiveError
from npzkit.files import disk
from npzkit.files.urls import Location
from npzkit.sharding import places
from npzkit.sharding.committing import commit_index, discard
from npzkit.sharding.index_format import parse_index
from npzkit.sharding.records import ShardRecord
from npzkit.sharding.shard_names import (
    INDEX_NAME,
    attempt_of,
    is_temporary,
    new_attempt,
    new_writer,
    shard_name,
)
from npzkit.sharding.shard_writing import record_file
from npzkit.sharding.shardedfile import ShardedFile
from npzkit.writing.array_members import Member
from npzkit.zip.writer import Coding

__all__ = ["ShardedSteps"]

_SUFFIX = ".npz"


class Files(Storage, Protocol):
    """The storage of steps that are files: what `ShardedSteps` asks of it besides."""

    def folder_names(self) -> list[str]:
        """Return the names of folders beside the files."""

    def folder_of(self, name: str) -> str | Location:
        """Return where such a folder is."""


class ShardedSteps:
    """A `npzkit.checkpoint.folder.Storage` whose steps may be files or folders.

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

    def _place(self, step: int) -> places.Folder | places.Prefix:
        """Return the place of a step's folder, whether it exists or not."""
        return places.place_of(self._files.folder_of(_folder_name(step)))

    def _index_of(self, step: int) -> places.Found:
        """Return what is known of the index of a step's folder; FileNotFoundError if none."""
        found = self._place(step).find(INDEX_NAME)
        if found is None:
            path = f"{self.path}/{_folder_name(step)}"
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found

    def _is_folder(self, step: int) -> bool:
        """Return whether a step is a folder, and not a file as well."""
        try:
            self._files.identity(step)
        except FileNotFoundError:
            return self._place(step).find(INDEX_NAME) is not None
        return False

    def _folders(self) -> list[int]:
        """Return the steps that have a folder, complete or not."""
        return list(steps_in(name + _SUFFIX for name in self._files.folder_names()))

    # -- what there is ------------------------------------------------------

    def path_of(self, step: int) -> str:
        """Return the path of a step: of its file, unless it is a folder."""
        return self.folder_path(step) if self._is_folder(step) else self._files.path_of(step)

    def file_path(self, step: int) -> str:
        """Return the path of a step's file."""
        return self._files.path_of(step)

    def folder_path(self, step: int) -> str:
        """Return the path of a step's folder."""
        return self._files.path_of(step).removesuffix(_SUFFIX)

    def steps(self) -> tuple[int, ...]:
        """Return the steps that are complete, ascending."""
        files = self._files.steps()
        folders = [
            step for step in self._folders()
            if step not in files and self._place(step).find(INDEX_NAME) is not None
        ]  # fmt: skip
        return tuple(sorted([*files, *folders])) if folders else files

    def identity(self, step: int) -> Identity:
        """Return what changes when a step is saved again."""
        try:
            return self._files.identity(step)
        except FileNotFoundError:
            return tuple(self._index_of(step))

    def status(self, step: int) -> Status:
        """Return the size and the time of a step."""
        try:
            return self._files.status(step)
        except FileNotFoundError:
            modified = self._index_of(step).modified
            files = self._place(step).listed()
            return Status(sum(found.size for found in files.values()), modified)

    def open(self, step: int, **options: Any) -> NpzFile:
        """Open a step; FileNotFoundError if it does not exist."""
        try:
            return self._files.open(step, **options)
        except FileNotFoundError:
            return ShardedFile(self._files.folder_of(_folder_name(step)), **options)

    # -- changes ------------------------------------------------------------

    def commit(self, step: int, members: Iterable[Member], coding: Coding, metadata: bytes) -> None:
        """Write a step as a file, which replaces an older one, or a folder, when complete."""
        self._files.commit(step, members, coding, metadata)
        self._remove_folder(step)

    def commit_shards(
        self,
        step: int,
        members: Iterable[Member],
        coding: Coding,
        metadata: bytes,
        shard_size: int,
    ) -> None:
        """Write a step as a folder, which replaces an older one, or a file, when complete."""
        place, attempt = self._place(step), new_attempt()
        records: list[ShardRecord] = []
        place.begin_writing()
        try:
            left = iter(members)
            for number, member in enumerate(left):
                name = shard_name(attempt, new_writer(), number)
                with NpzWriter(place.file(name), "x", durable=self._durable) as writer:
                    group = _until_full(writer, member, left, shard_size)
                    writer._archive.alone(writer._archive.write, group, coding, False)
                records.append(record_file(place, name))
            fields = json.loads(metadata)
            commit_index(place, records, fields, attempt=attempt, durable=self._durable)
        except (FileExistsError, StaleArchiveError) as error:
            self._discard(place, attempt)
            raise ArchiveLockedError(
                f"another checkpoint store saved or removed step {step} at the same time",
                path=self.path, remedy="Let one store write here at a time.",
            ) from error  # fmt: skip
        except BaseException:
            self._discard(place, attempt)
            raise
        if self._durable and place.is_local:
            disk.sync_directory(self.path)
        with contextlib.suppress(FileNotFoundError):
            self._files.identity(step)
            self._files.remove(step)

    def _discard(self, place: places.Folder | places.Prefix, attempt: str) -> None:
        """Remove the shards of a save that failed, if the system still allows it."""
        with contextlib.suppress(OSError, NpzkitError):
            discard(place, [name for name in place.listed() if attempt_of(name) == attempt])
            place.remove_folder()

    def remove(self, step: int, identity: Identity | None = None) -> bool:
        """Remove a step if it exists and is the one with this identity."""
        if not self._is_folder(step):
            return self._files.remove(step, identity)
        if identity is not None and self.identity(step) != identity:
            return False
        self._remove_folder(step)
        return True

    def _remove_folder(self, step: int) -> None:
        if _folder_name(step) not in self._files.folder_names():
            return
        place = self._place(step)
        # Without its index, the step does not count.
        place.remove(INDEX_NAME)
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
        if isinstance(place, places.Folder) and hasattr(os, "posix_fadvise"):
            for name in place.listed():
                with open(place.file(name), "rb") as file, contextlib.suppress(OSError):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def begin_writing(self) -> None:
        """Keep other writers away, and remove what killed writers left in folders of steps."""
        self._files.begin_writing()
        if not self._is_clean and isinstance(self._files, Folder) and self._files._locks_work():
            # This store has the lock: nobody else writes.
            for step in self._folders():
                with contextlib.suppress(OSError, NpzkitError):
                    self._remove_leftovers(step)
            self._is_clean = True

    def _remove_leftovers(self, step: int) -> None:
        place = self._place(step)
        named: set[str] = set()
        if place.find(INDEX_NAME) is not None:
            named = {shard.name for shard in parse_index(place.read_index()).shards}
        _remove_unnamed(place, named)

    def close(self) -> None:
        """Let other writers in."""
        self._is_clean = False
        self._files.close()


def _folder_name(step: int) -> str:
    return name_of_step(step).removesuffix(_SUFFIX)


def _until_full(
    writer: NpzWriter, first: Member, left: Iterator[Member], size: int
) -> Iterator[Member]:
    """Yield members until their archive has `size` bytes."""
    yield first
    while writer._archive.sink.position < size:
        member = next(left, None)
        if member is None:
            return
        yield member


def _remove_unnamed(place: places.Folder | places.Prefix, named: set[str]) -> None:
    """Remove npzkit's shards that are not named, and the folder if nothing else is in it."""
    for name in place.listed():
        if (attempt_of(name) or is_temporary(name)) and name not in named:
            place.remove(name)
    place.remove_folder()
