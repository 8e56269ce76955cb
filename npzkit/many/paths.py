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

_DIGITS, _END = re.compile(r"(\d+)"), re.compile(r"\D*\Z")
_DIGITS_AT_END = re.compile(r"\d*\Z")


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
    files = list(found)
    if not files:
        raise FileNotFoundError(errno.ENOENT, "no file matches the pattern", str(pattern))
    return in_order(files)


def in_order(files: list[Found]) -> list[Found]:
    """Return files sorted by their names, numbers by their value."""
    names = list(map(_name, files))
    # Mostly, all names are alike but for one number: that takes a fifth of the time.
    shared = os.path.commonprefix([min(names), max(names)])  # noqa: RUF071 - of characters
    start = shared[: len(shared) - len(_DIGITS_AT_END.search(shared)[0])]  # type: ignore[index]
    end = _END.search(names[0])[0]  # type: ignore[index]
    numbers = [name[len(start) : len(name) - len(end)] for name in names]
    if all(map(str.isdecimal, numbers)) and all(name.endswith(end) for name in names):
        keys: list[Any] = list(zip(map(int, numbers), names, strict=True))
    else:
        keys = [(_parts(name), name) for name in names]
    return [files[number] for number in sorted(range(len(files)), key=keys.__getitem__)]


def _name(found: Found) -> str:
    return found.file.url if isinstance(found.file, Location) else found.file


def _parts(name: str) -> list[Any]:
    """Return texts and numbers, which alternate: so a text is never compared with a number."""
    parts: list[Any] = _DIGITS.split(name)
    parts[1::2] = map(int, parts[1::2])
    return parts


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
