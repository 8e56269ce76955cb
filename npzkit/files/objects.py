"""The objects under one URL: which there are, and their removal.

Owns what is known of an object without reading it. Knows nothing about archives. What is
left of uploads is `npzkit.files.s3_upload`'s.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from npzkit.errors import StaleArchiveError, UnsupportedError
from npzkit.files.fsspec_store import FsspecStore, version_in
from npzkit.files.stores import Version, tried
from npzkit.files.urls import Location

_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
"""What stores call the time when an object was made."""


class Listed(NamedTuple):
    """An object as it is listed.

    Attributes
    ----------
    version : Version
    modified : float
        Seconds since 1970 when it was made; now if the store does not say.
    """

    version: Version
    modified: float


class Objects:
    """The objects under a URL, as in a folder.

    Parameters
    ----------
    location : Location

    Attributes
    ----------
    name : str
        The URL without secrets.
    folders : list of str or None
        Names of what is listed as folders, when `listed` was called last.

    Raises
    ------
    UnsupportedError
        Nothing can be listed or removed there.
    """

    def __init__(self, location: Location) -> None:
        self.folders: list[str] | None = None
        if location.is_web or location.is_chain:
            raise UnsupportedError(
                "a web server, or a chain of URLs, cannot hold a store of checkpoints",
                path=str(location), remedy="Use a store of objects, such as s3://bucket/run.",
            )  # fmt: skip
        self._url, self._options = location.url.rstrip("/"), location.options
        self.name = str(location).rstrip("/")
        self._store = FsspecStore(self._url, self._options)

    def location(self, name: str) -> Location:
        """Return where an object is."""
        return Location(f"{self._url}/{name}", self._options)

    def listed(self) -> dict[str, Listed]:
        """Return what is known of each object, by its name; empty if there is none."""
        found: dict[str, Listed] = self._try("the list of objects", self._list)
        return found

    def _list(self) -> dict[str, Listed]:
        fs, path = self._store.file_system, self._store.path
        # A file system remembers what it listed.
        fs.invalidate_cache(path)
        try:
            found = fs.ls(path, detail=True)
        except FileNotFoundError:
            self.folders = []
            return {}
        finally:
            fs.invalidate_cache(path)
        self.folders = [
            info["name"].rstrip("/").rpartition("/")[2]
            for info in found
            if info["type"] == "directory"
        ]
        return {
            info["name"].rpartition("/")[2]: Listed(version_in(info), _time_in(info))
            for info in found
            if info["type"] == "file"
        }

    def version(self, name: str) -> Version | None:
        """Return the version of an object; None if there is none."""
        if self._store.is_s3:
            # One request. s3fs makes two for an object that is not there.
            listed = self.listed().get(name)
            return None if listed is None else listed.version
        store = FsspecStore(*self.location(name))
        with contextlib.suppress(FileNotFoundError):
            found: Version = self._try(name, store.find_version)
            return found
        return None

    def remove(self, name: str, version: Version | None = None) -> bool:
        """Remove an object if it exists, and return whether it is gone.

        With a version, which is one that was listed, another version of it stays. S3 compares
        the version at the instant of the removal; for other stores, it is compared just before.
        """
        if version is not None:
            # Some stores write a version in another way where they tell of a single object.
            found = self.listed().get(name)
            if found is not None and version.differs(found.version):
                return False
        try:
            self._try(f"the removal of {name}", partial(self._remove, name, version))
        except StaleArchiveError:
            return False
        except FileNotFoundError:
            # Another process removed it.
            pass
        return True

    def _remove(self, name: str, version: Version | None) -> None:
        path = f"{self._store.path}/{name}"
        if self._store.is_s3 and version is not None and version.tag:
            from npzkit.files.s3_upload import remove_version

            remove_version(self._store, path, version.tag)
        else:
            self._store.file_system.rm_file(path)

    def end_uploads(self, is_ended: Callable[[str], bool]) -> None:
        """End uploads of killed writers, as far as the store lists them; it is asked by name."""
        if self._store.is_s3:
            from npzkit.files.s3_upload import end_uploads

            key = self._store.file_system.split_path(self._store.path)[1]
            prefix = f"{key}/" if key else ""
            end_uploads(self._store, prefix, lambda found: is_ended(found.removeprefix(prefix)))

    def _try(self, what: str, request: Callable[[], Any]) -> Any:
        return tried(partial(self._store.explained, request), f"{self.name}, {what}")


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
