"""Where the files of a sharded archive are: a folder on a disk, or a prefix in a store.

Owns what the room needs of a place: to read the index, to replace it in one step, to list,
write and remove shards. Knows nothing about the contents of an index.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from npzkit.datasets.index_format import check_index_size
from npzkit.datasets.shard_names import INDEX_NAME
from npzkit.errors import ArchiveLockedError, StaleArchiveError
from npzkit.files import disk
from npzkit.files.destinations import check_writable, open_upload
from npzkit.files.identity import Identity, identity_of
from npzkit.files.locations import open_anywhere
from npzkit.files.locking import lock_path
from npzkit.files.objects import Objects
from npzkit.files.path_sink import PathSink
from npzkit.files.stores import Version
from npzkit.files.uploads import Condition
from npzkit.files.urls import Location, find_location

_NO_INDEX = (
    f"no {INDEX_NAME} in the folder: its archive was never committed, or it is no archive. If "
    "it is a folder of checkpoints, use npzkit.checkpoint.CheckpointStore(path)"
)


class Found(NamedTuple):
    """A file that is listed.

    Attributes
    ----------
    size : int
        Bytes.
    modified : float
        Seconds since 1970 when it was written, by the clock of the place.
    mark : Identity or Version
        What changes when it is written again.
    """

    size: int
    modified: float
    mark: Identity | Version


class Place(Protocol):
    """A folder, or a prefix of a store."""

    name: str
    """The path or URL, without secrets."""
    is_local: bool
    """Whether files are on a disk, and reading them takes no requests."""

    def file(self, name: str) -> Any:
        """Return what opens a file for reading and for writing: a path or a `Location`."""

    def check_inside(self, name: str) -> None:
        """Raise UnsafeNameError if a file is not really in the folder."""

    def listed(self) -> dict[str, Found]:
        """Return the files by name; empty if there is no such folder."""

    def find(self, name: str) -> Found | None:
        """Return what is known of one file; None if it does not exist."""

    def read_index(self) -> bytes:
        """Return the bytes of the index; FileNotFoundError if there is none."""

    def replace_index(self, data: bytes, older: bytes | None, *, durable: bool) -> None:
        """Write the index in one step; `older` is the one that was read before, if any.

        Raises
        ------
        StaleArchiveError, FileExistsError, ArchiveLockedError
            Somebody else wrote an index since.
        """

    def begin_writing(self) -> None:
        """Make the folder."""

    def settle(self, names: Iterable[str]) -> None:
        """Wait until files are on disk."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists, unless a writer has it open."""

    def remove_folder(self) -> None:
        """Remove the folder if it is empty."""

    def end_uploads(self, is_ended: Callable[[str], bool]) -> None:
        """End uploads that are under way, or were left by killed writers; asked by name."""


def place_of(folder: Any, storage_options: Mapping[str, Any] | None = None) -> Folder | Prefix:
    """Return the place that a path or URL of a folder, or of its index, means."""
    found = find_location(folder, storage_options)
    if isinstance(found, Location):
        return Prefix(found)
    return Folder(os.fsdecode(found))


class Folder:
    """A folder on a disk. A `Place`."""

    is_local = True

    def __init__(self, path: str) -> None:
        if os.path.basename(path) == INDEX_NAME and not os.path.isdir(path):
            path = os.path.dirname(path) or os.curdir
        self.name = path
        # A program may change its working directory.
        self._path = os.path.abspath(path)

    @property
    def reopening(self) -> tuple[str, dict[str, Any]]:
        """What opens the place in another process."""
        return self._path, {}

    def file(self, name: str) -> str:
        """Return the path of a file."""
        return os.path.join(self._path, name)

    def check_inside(self, name: str) -> None:
        """Raise UnsafeNameError if a file is a link that leads out of the folder."""
        path = self.file(name)
        if os.path.islink(path):
            real = os.path.realpath(path)
            if os.path.dirname(real) != os.path.realpath(self._path):
                from npzkit.errors import UnsafeNameError

                raise UnsafeNameError(
                    "a shard is a link that leads out of the folder", path=self.name, found=name,
                    remedy="Put the file itself into the folder.", is_damage=True,
                )  # fmt: skip

    def listed(self) -> dict[str, Found]:
        """Return the files by name; empty if there is no such folder."""
        found = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self._path) as entries:
            for entry in entries:
                # A temporary file may be gone.
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat()
                    found[entry.name] = _found(stat)
        return found

    def find(self, name: str) -> Found | None:
        """Return what is known of one file; None if it does not exist."""
        try:
            return _found(os.stat(self.file(name)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_index(self) -> bytes:
        """Return the bytes of the index; FileNotFoundError if there is none."""
        try:
            return _read_all(self.file(INDEX_NAME))
        except FileNotFoundError:
            if not os.path.isdir(self._path):
                raise
            raise FileNotFoundError(errno.ENOENT, _NO_INDEX, self.name) from None

    def replace_index(self, data: bytes, older: bytes | None, *, durable: bool) -> None:
        """Write the index in one step, if it is the one that was read before."""
        sink = PathSink(self.file(INDEX_NAME), exclusive=older is None, durable=durable)
        try:
            # Locked from here on.
            if older is not None and self.read_index() != older:
                raise _overtaken(self.name)
            sink.commit(data)
        except BaseException:
            sink.abort()
            raise
        sink.close()

    def begin_writing(self) -> None:
        """Make the folder."""
        disk.make_directory(self._path)

    def settle(self, names: Iterable[str]) -> None:
        """Wait until files are on disk."""
        for name in names:
            file = disk.File(self.file(name))
            try:
                file.sync()
            finally:
                file.close()
        disk.sync_directory(self._path)

    def remove(self, name: str) -> None:
        """Remove a file if it exists, unless a writer has it open."""
        path = self.file(name)
        with contextlib.suppress(FileNotFoundError, ArchiveLockedError):
            # A writer holds a lock on its temporary file.
            lock_path(path, 0.0).close()
            disk.unlink(path)

    def remove_folder(self) -> None:
        """Remove the folder if it is empty."""
        disk.remove_directory(self._path)

    def end_uploads(self, is_ended: Callable[[str], bool]) -> None:
        """Do nothing: a killed writer leaves a temporary file, which is listed."""


class Prefix:
    """A prefix in a store, or a folder of a web server, which is read only. A `Place`."""

    is_local = False

    def __init__(self, location: Location) -> None:
        url, mark, query = location.url, "", ""
        if location.is_web:
            # A signature of the URL goes with each file.
            url, mark, query = location.url.partition("?")
        url = url.removesuffix(f"/{INDEX_NAME}").rstrip("/")
        self._url, self._query, self._options = url, mark + query, location.options
        self.location = Location(url + self._query, location.options)
        self.name = str(Location(url, location.options))

    @property
    def reopening(self) -> tuple[str, dict[str, Any]]:
        """What opens the place in another process."""
        url = f"{self._url}/{INDEX_NAME}{self._query}"
        return url, {"storage_options": self._options}

    def file(self, name: str) -> Location:
        """Return where an object is."""
        return Location(f"{self._url}/{name}{self._query}", self._options)

    def check_inside(self, name: str) -> None:
        """Do nothing: a store has no links."""

    def _objects(self) -> Objects:
        return Objects(Location(self._url, self._options))

    def listed(self) -> dict[str, Found]:
        """Return the objects by name."""
        return {
            name: Found(found.version.size, found.modified, found.version)
            for name, found in self._objects().listed().items()
        }

    def find(self, name: str) -> Found | None:
        """Return what is known of one object; None if it does not exist."""
        return self.listed().get(name)

    def read_index(self) -> bytes:
        """Return the bytes of the index; FileNotFoundError if there is none."""
        return _read_all(self.file(INDEX_NAME))

    def replace_index(self, data: bytes, older: bytes | None, *, durable: bool) -> None:
        """Upload the index on the condition that it is the one that was read before."""
        condition = Condition(is_absent=True)
        if older is not None:
            version = self._objects().version(INDEX_NAME)
            if version is None or self.read_index() != older:
                raise _overtaken(self.name)
            condition = Condition(tag=version.tag)
        sink = open_upload(self.file(INDEX_NAME), condition)
        try:
            sink.commit(data)
        except BaseException:
            sink.abort()
            raise
        sink.close()

    def begin_writing(self) -> None:
        """Check that objects can be written there. A store needs no folder."""
        check_writable(self.location)

    def settle(self, names: Iterable[str]) -> None:
        """Do nothing: what a store has, it keeps."""

    def remove(self, name: str) -> None:
        """Remove an object if it exists."""
        self._objects().remove(name)

    def remove_folder(self) -> None:
        """Do nothing: a store has no folders."""

    def end_uploads(self, is_ended: Callable[[str], bool]) -> None:
        """End uploads, as far as the store lists them."""
        self._objects().end_uploads(is_ended)


def _found(stat: os.stat_result) -> Found:
    return Found(stat.st_size, stat.st_mtime, identity_of(stat))


def _read_all(file: Any) -> bytes:
    source = open_anywhere(file)
    try:
        check_index_size(source.size, source.name)
        return source.read_at(0, source.size)
    finally:
        source.close()


def _overtaken(name: str) -> StaleArchiveError:
    return StaleArchiveError(
        "another writer committed to this folder at the same time", path=name,
        remedy="Its archive is kept. Let one writer commit to a folder at a time.",
    )  # fmt: skip
