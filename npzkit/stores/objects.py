"""A folder on a disk, or a prefix in a store: the files there, by one interface.

Owns how files are listed, and how one is put, replaced or removed on the condition that
nobody else changed it. `Objects` is the interface, `objects_at` returns one for a path or a
URL. Knows nothing about archives. What is left of uploads is `npzkit.stores.s3_upload`'s.
"""

from __future__ import annotations

import abc
import contextlib
import datetime
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from npzkit.errors import ArchiveLockedError, StaleArchiveError, UnsafeNameError, UnsupportedError
from npzkit.files import disk, new_file
from npzkit.files.any_source import open_any_source
from npzkit.files.file_objects import Identity, identity_of
from npzkit.files.locking import FileLock, is_locked, lock_path
from npzkit.files.path_sink import PathSink
from npzkit.files.sink import Sink
from npzkit.files.urls import Location
from npzkit.stores.fsspec_store import FsspecStore, version_in
from npzkit.stores.retries import T, tried
from npzkit.stores.store_for_url import check_writable, open_sink
from npzkit.stores.time_limits import extend
from npzkit.stores.upload_sink import UploadSink
from npzkit.stores.versions import Version

is_temporary = new_file.is_temporary
NOTHING_ADDED = (
    "Nothing of yours was added. Open a new writer and write again; several processes that write "
    "at once need the same name of an attempt."
)
"""The remedy of a writer that another one has overtaken."""
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
"""What stores call the time when an object was made."""
_LOCK_ATTEMPTS = 10
_COPIED_SIZE = 1 << 23
"""Bytes of a file that are copied at a time."""
_COPY_FACTOR = 1 << 10
"""How many times as fast as it sends bytes a store copies them itself, at least."""
_LIST_SIZE = 1 << 22
"""Bytes for which a list has time, beside that of other operations: it may be many requests."""


class Found(NamedTuple):
    """A file that is listed.

    Attributes
    ----------
    size : int
        Bytes.
    modified : float
        Seconds since 1970 when it was written, by the clock of the place; now if a store
        does not say.
    mark : Identity or Version
        What changes when it is written again.
    """

    size: int
    modified: float
    mark: Identity | Version


class Objects(abc.ABC):
    """A folder on a disk, or a prefix in a store.

    Names are those of files directly in it. A file is complete when it is listed: writers
    rename it into place, or end its upload.

    Attributes
    ----------
    name : str
        The path or URL, without secrets.
    location : object
        What `objects_at` takes to return it again, in another process too.
    is_local : bool
        Whether files are on a disk, and reading them takes no requests.
    """

    name: str
    location: Any
    is_local: bool

    @abc.abstractmethod
    def file(self, name: str) -> Any:
        """Return what opens a file for reading and for writing: a path or a `Location`."""

    def check_inside(self, name: str) -> None:
        """Raise UnsafeNameError if a file is a link that leads out of the folder."""

    @abc.abstractmethod
    def listed(self) -> dict[str, Found]:
        """Return the files by name; empty if there is no such folder."""

    def find(self, name: str) -> Found | None:
        """Return what is known of one file; None if it does not exist."""
        return self.listed().get(name)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file; FileNotFoundError if there is none."""
        with contextlib.closing(open_any_source(self.file(name))) as source:
            return source.read_at(0, source.size)

    def put(self, name: str, data: bytes, older: bytes | None, *, durable: bool = False) -> None:
        """Write a file in one step, in place of the one with the bytes `older`, if any.

        Raises
        ------
        StaleArchiveError, ArchiveLockedError
            Somebody else wrote the file since, or is writing it. Theirs is kept.
        """
        try:
            sink = self._sink(name, older, durable=durable)
            try:
                # A file on a disk is locked from here on.
                if older is not None and self.read(name) != older:
                    raise self.overtaken()
                sink.commit(data)
            except BaseException:
                sink.abort()
                raise
        except FileExistsError:
            raise self.overtaken() from None
        sink.close()

    @abc.abstractmethod
    def _sink(self, name: str, older: bytes | None, *, durable: bool) -> Sink: ...

    def take(self, place: Objects, name: str, new: str, *, durable: bool = False) -> bool:
        """Give a file of another place of this kind a new name here, and leave it there too.

        Returns whether no byte of it came through this process: a disk links it, and a store
        copies it itself, where each can do so.
        """
        sink = self._sink(new, None, durable=durable)
        try:
            with contextlib.closing(open_any_source(place.file(name))) as source:
                for offset in range(0, source.size, _COPIED_SIZE):
                    size = min(_COPIED_SIZE, source.size - offset)
                    sink.write(source.read_at(offset, size))
            sink.commit(b"")
        except BaseException:
            sink.abort()
            raise
        sink.close()
        return False

    def overtaken(self) -> StaleArchiveError:
        """Return the error for a commit that comes behind another one."""
        return StaleArchiveError(
            "another writer committed to this folder since this one was opened", path=self.name,
            remedy=NOTHING_ADDED,
        )  # fmt: skip

    @abc.abstractmethod
    def remove(self, name: str, mark: Any = None) -> bool:
        """Remove a file if it exists, and return whether it is gone.

        It stays while a writer has it open. With a mark, which was listed, a file that was
        written again since stays too.
        """

    @abc.abstractmethod
    def begin_writing(self) -> None:
        """Make the folder; UnsupportedError if it is a file, or a URL that cannot be written to."""

    def settle(self, names: Iterable[str]) -> None:
        """Wait until files are on disk, and their names."""

    def remove_folder(self) -> None:
        """Remove the folder if it is empty."""

    def end_uploads(self, is_ended: Callable[[str], bool]) -> None:
        """End uploads that are under way, or were left by killed writers; asked by name."""


def objects_at(location: str | Location) -> LocalFolder | StorePrefix:
    """Return the place at a path, or under a URL."""
    return StorePrefix(location) if isinstance(location, Location) else LocalFolder(location)


def objects_matching(pattern: Location) -> list[Location]:
    """Return the objects of a store that match the pattern of a URL."""
    store = FsspecStore(*pattern)
    names = _names(store, partial(store.call, store.file_system.glob, store.path))
    return [Location(f"{pattern.scheme}://{name.lstrip('/')}", pattern.options) for name in names]


def objects_below(prefix: Location, depth: int | None) -> list[str]:
    """Return the URLs of the objects below a prefix, up to a depth if there is one.

    Raises FileNotFoundError if there is nothing.
    """
    store = FsspecStore(*prefix)
    path, url = store.path.rstrip("/"), prefix.url.rstrip("/")
    find = partial(store.call, store.file_system.find, store.path, maxdepth=depth)
    names = _names(store, find)
    if not names:
        # Down to a depth, `find` leaves out what cannot be listed, even all of it.
        _listing(store, partial(store.call, store.file_system.ls, store.path))
    return [url + name[len(path) :] for name in names if name.startswith(f"{path}/")]


def _names(store: FsspecStore, request: Callable[..., Mapping[str, Any]]) -> list[str]:
    found = _listing(store, request)
    return [name for name, info in found.items() if info["type"] == "file"]


def _listing(store: FsspecStore, request: Callable[..., T], what: str = "its list") -> T:
    def listed() -> T:
        # A file system remembers what it listed.
        store.file_system.invalidate_cache()
        extend(_LIST_SIZE)
        try:
            return request(detail=True)
        finally:
            store.file_system.invalidate_cache()

    return tried(partial(store.explained, listed), f"{store.name}, {what}")


class LocalFolder(Objects):
    """A folder on a disk."""

    is_local = True

    def __init__(self, path: str) -> None:
        self.name = path
        # A program may change its working directory.
        self.location = self.path = os.path.abspath(path)

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def check_inside(self, name: str) -> None:
        path = self.file(name)
        if os.path.islink(path):
            real = os.path.realpath(path)
            if os.path.dirname(real) != os.path.realpath(self.path):
                raise UnsafeNameError(
                    "a shard is a link that leads out of the folder", path=self.name, found=name,
                    remedy="Put the file itself into the folder.", is_damage=True,
                )  # fmt: skip

    def listed(self) -> dict[str, Found]:
        found = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path) as entries:
            for entry in entries:
                # A temporary file may be gone. On Windows an entry has no inode, and what it says
                # of a file with several names may be old.
                with contextlib.suppress(FileNotFoundError):
                    found[entry.name] = _found(os.stat(entry))
        return found

    def find(self, name: str) -> Found | None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return _found(os.stat(self.file(name)))
        return None

    def _sink(self, name: str, older: bytes | None, *, durable: bool) -> PathSink:
        file = new_file.new_file(self.file(name), exclusive=older is None, durable=durable)
        return PathSink(file)

    def take(self, place: Objects, name: str, new: str, *, durable: bool = False) -> bool:
        return disk.share(place.file(name), self.file(new)) or super().take(
            place, name, new, durable=durable
        )

    def remove(self, name: str, mark: Any = None) -> bool:
        path = self.file(name)
        try:
            # A writer holds a lock on its temporary file.
            lock_path(path, 0.0).close()
            if mark is not None and identity_of(os.stat(path)) != mark:
                return False
            self.unlink(name)
        except FileNotFoundError:
            return True
        except ArchiveLockedError:
            return False
        return True

    def unlink(self, name: str) -> None:
        """Remove a name, whoever has its file open, and wherever it leads to.

        Windows removes no file that is open. What a reader has is removed some other time.
        """
        disk.unlink(self.file(name), patience=0.0)

    def lock(self, name: str) -> FileLock:
        """Take the lock of a file, which is made if necessary. It ends with its holder.

        Raises ArchiveLockedError if another process has it.
        """
        path = self.file(name)
        for _ in range(_LOCK_ATTEMPTS):
            with contextlib.suppress(FileExistsError):
                disk.File(path, is_new=True).close()
            # Someone may have removed it.
            with contextlib.suppress(FileNotFoundError):
                return lock_path(path, 0.0)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def has_locks(self, name: str) -> bool:
        """Return whether a second lock of a locked file is refused, which some shares do not do."""
        if not disk.RENAMES_OPEN_FILES:
            # Windows, where no file that is open can be removed.
            return True
        with open(self.file(name), "rb") as second:
            return is_locked(second.fileno())

    def begin_writing(self) -> None:
        try:
            disk.make_directory(self.path)
        except FileExistsError as error:
            if not os.path.isfile(self.path):
                raise
            raise UnsupportedError(
                "a sharded archive is a folder, and this is a file", path=self.name,
                remedy="Name a folder, or a path where nothing is.",
            ) from error  # fmt: skip

    def settle(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.closing(disk.File(self.file(name))) as file:
                file.sync()
        disk.sync_directory(self.path)

    def remove_folder(self) -> None:
        disk.remove_directory(self.path)


class StorePrefix(Objects):
    """A prefix in a store, or a folder of a web server, which can only be read.

    Attributes
    ----------
    folders : list of str or None
        Names of what is listed as folders, when `listed` was called last.
    """

    is_local = False

    def __init__(self, location: Location) -> None:
        url, mark, query = location.url, "", ""
        if location.is_web:
            # A signature of the URL goes with each file.
            url, mark, query = location.url.partition("?")
        self._url, self._query, self._options = url.rstrip("/"), mark + query, location.options
        self.location = Location(self._url + self._query, location.options)
        self.name = str(Location(self._url, location.options))
        self.folders: list[str] | None = None

    def file(self, name: str) -> Location:
        return Location(f"{self._url}/{name}{self._query}", self._options)

    def check_listable(self) -> None:
        """Raise UnsupportedError if nothing can be listed or removed there."""
        if self.location.is_web or self.location.is_chain:
            raise UnsupportedError(
                "a web server, or a chain of URLs, cannot hold a store of checkpoints",
                path=str(self.location), remedy="Use a store of objects, such as s3://bucket/run.",
            )  # fmt: skip

    def _store(self) -> FsspecStore:
        self.check_listable()
        return FsspecStore(self._url, self._options)

    def listed(self) -> dict[str, Found]:
        store = self._store()
        try:
            ask = partial(store.call, store.file_system.ls, store.path)
            found = _listing(store, ask, "the list of objects")
        except FileNotFoundError:
            found = []
        self.folders = [
            info["name"].rstrip("/").rpartition("/")[2]
            for info in found
            if info["type"] == "directory"
        ]
        return {
            info["name"].rpartition("/")[2]: _listed(info)
            for info in found
            if info["type"] == "file"
        }

    def tag_of(self, name: str) -> str | None:
        """Return what tells an object from others at its name; None if there is none."""
        store = self._store()
        version: Any = None
        if store.is_s3:
            # One request. s3fs makes two for an object that is not there.
            found = self.listed().get(name)
            version = None if found is None else found.mark
        else:
            with contextlib.suppress(FileNotFoundError):
                version = self._try(store, name, FsspecStore(*self.file(name)).find_version)
        return None if version is None else str(version.tag)

    def upload(self, name: str, tag: str | None) -> UploadSink:
        """Return what an object is written to, which takes the place of the one with the tag."""
        return open_sink(self.file(name), exclusive=tag is None, tag=tag or "")

    def _sink(self, name: str, older: bytes | None, *, durable: bool) -> UploadSink:
        tag = None if older is None else self.tag_of(name)
        if tag is None and older is not None:
            raise self.overtaken()
        return self.upload(name, tag)

    def take(self, place: Objects, name: str, new: str, *, durable: bool = False) -> bool:
        store = self._store()

        def copied() -> bool:
            source = FsspecStore(*place.file(name))
            extend(source.find_version().size // _COPY_FACTOR)
            try:
                store.call(store.file_system.cp_file, source.path, f"{store.path}/{new}")
            except NotImplementedError:
                return False
            return True

        return self._try(store, f"the copy {new}", copied) or super().take(
            place, name, new, durable=durable
        )

    def remove(self, name: str, mark: Any = None) -> bool:
        """Remove an object. S3 compares the mark at that instant; other stores, just before it."""
        store = self._store()
        version = None if mark is None else Version(*mark)
        if version is not None:
            # Some stores write a version in another way where they tell of a single object.
            found = self.listed().get(name)
            if found is not None and version.differs(Version(*found.mark)):
                return False
        try:
            self._try(store, f"the removal of {name}", partial(_remove, store, name, version))
        except StaleArchiveError:
            return False
        except FileNotFoundError:
            # Another process removed it.
            pass
        return True

    def begin_writing(self) -> None:
        check_writable(self.location)

    def end_uploads(self, is_ended: Callable[[str], bool]) -> None:
        store = self._store()
        if store.is_s3:
            from npzkit.stores.s3_upload import end_uploads

            key = store.file_system.split_path(store.path)[1]
            prefix = f"{key}/" if key else ""
            end_uploads(store, prefix, lambda found: is_ended(found.removeprefix(prefix)))

    def _try(self, store: FsspecStore, what: str, request: Callable[[], T]) -> T:
        return tried(partial(store.explained, request), f"{self.name}, {what}")


def _found(stat: os.stat_result) -> Found:
    return Found(stat.st_size, stat.st_mtime, identity_of(stat))


def _listed(info: Mapping[str, Any]) -> Found:
    version = version_in(info)
    return Found(version.size, _time_in(info), version)


def _time_in(info: Mapping[str, Any]) -> float:
    for name in _TIMES:
        value = info.get(name)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = datetime.datetime.fromisoformat(value)
        if isinstance(value, datetime.datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return time.time()


def _remove(store: FsspecStore, name: str, version: Version | None) -> None:
    path = f"{store.path}/{name}"
    if store.is_s3 and version is not None and version.tag:
        from npzkit.stores.s3_upload import remove_version

        remove_version(store, path, version.tag)
    else:
        store.call(store.file_system.rm_file, path)


def abandoned_files(folder: str, *, recursive: bool = False) -> Iterator[tuple[str, int]]:
    """Yield the path and the size of each temporary file in a folder that no writer has open."""
    for place, folders, names in os.walk(folder):
        if not recursive:
            folders.clear()
        for path in [os.path.join(place, name) for name in sorted(names) if is_temporary(name)]:
            # It may be renamed or removed meanwhile.
            with contextlib.suppress(OSError), disk.Descriptor(path) as file:
                if not is_locked(file):
                    yield path, os.fstat(file.fileno()).st_size
