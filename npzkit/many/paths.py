"""Which files a pattern means, and in which order.

Owns patterns of paths and of URLs. Opens nothing.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from npzkit.files.urls import Location, find_location, find_locations

__all__ = ["Found", "find_files"]

_DIGITS = re.compile(r"(\d+)")


class Found(NamedTuple):
    """A file of a data set.

    Attributes
    ----------
    file : str or Location
        As given: a relative path stays one.
    mark : tuple or None
        Its version, if the list of a store says it.
    """

    file: str | Location
    mark: tuple[Any, ...] | None = None


def find_files(paths: Any, storage_options: Mapping[str, Any] | None) -> list[Found]:
    """Return the files that a pattern matches, or those of a list.

    Parameters
    ----------
    paths : str, path-like or iterable of these
        A string with ``*``, ``?`` or ``[`` is a pattern, unless it is a file. The
        files of a pattern are sorted by their names, numbers by their value. A
        list keeps its order.
    storage_options : mapping, optional
        For URLs.

    Raises
    ------
    FileNotFoundError
        Nothing matches the pattern.
    ValueError
        The list is empty.
    """
    if not isinstance(paths, (str, os.PathLike)):
        listed = list(paths)
        if not listed:
            raise ValueError("the list of files is empty")
        return [_found(file) for file in find_locations(listed, storage_options)]
    file = find_location(paths, storage_options)
    if isinstance(file, Location):
        if not glob.has_magic(file.url) or file.is_web:
            return [Found(file)]
        return _checked(_in_store(file), file)
    file = os.fsdecode(file)
    if not glob.has_magic(file) or os.path.exists(file):
        return [Found(file)]
    return _checked([Found(path) for path in glob.iglob(file, recursive=True)], file)


def _found(file: Any) -> Found:
    return Found(file if isinstance(file, Location) else os.fsdecode(file))


def _checked(found: Iterable[Found], pattern: str | Location) -> list[Found]:
    files = sorted(found, key=_order)
    if not files:
        raise FileNotFoundError(errno.ENOENT, "no file matches the pattern", str(pattern))
    return files


def _order(found: Found) -> tuple[list[Any], str]:
    name = found.file.url if isinstance(found.file, Location) else found.file
    # Texts and numbers alternate, so that two names never compare a text with a number.
    return [int(part) if part.isdigit() else part for part in _DIGITS.split(name)], name


def _in_store(pattern: Location) -> Iterable[Found]:
    """Return the objects that match the pattern of a URL, with their versions."""
    from npzkit.files.fsspec_store import FsspecStore, version_in

    store = FsspecStore(*pattern)
    fs = store.file_system
    fs.invalidate_cache()
    found: Mapping[str, Any] = store.explained(lambda: fs.glob(store.path, detail=True))
    for name, info in found.items():
        if info["type"] == "file":
            url = f"{pattern.scheme}://{name.lstrip('/')}"
            yield Found(Location(url, pattern.options), tuple(version_in(info)))
