"""Which files a pattern means, and in which order.

Owns patterns of paths and of URLs. Opens nothing.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from npzkit.files.urls import Location, find_location, find_locations

_DIGITS, _END = re.compile(r"(\d+)"), re.compile(r"\D*\Z")
_DIGITS_AT_END = re.compile(r"\d*\Z")


def find_files(paths: Any, storage_options: Mapping[str, Any] | None) -> list[str | Location]:
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
        return [
            file if isinstance(file, Location) else os.fsdecode(file)
            for file in find_locations(listed, storage_options)
        ]
    file = find_location(paths, storage_options)
    if isinstance(file, Location):
        if not glob.has_magic(file.url) or file.is_web:
            return [file]
        from npzkit.stores.objects import objects_matching

        return _checked(objects_matching(file), file)
    file = os.fsdecode(file)
    if not glob.has_magic(file) or os.path.exists(file):
        return [file]
    return _checked(glob.iglob(file, recursive=True), file)


def _checked(found: Iterable[str | Location], pattern: str | Location) -> list[str | Location]:
    files = list(found)
    if not files:
        raise FileNotFoundError(errno.ENOENT, "no file matches the pattern", str(pattern))
    return in_order(files)


def in_order(files: list[str | Location]) -> list[str | Location]:
    """Return files sorted by their names, numbers by their value."""
    names = [file.url if isinstance(file, Location) else file for file in files]
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


def _parts(name: str) -> list[Any]:
    """Return texts and numbers, which alternate: so a text is never compared with a number."""
    parts: list[Any] = _DIGITS.split(name)
    parts[1::2] = map(int, parts[1::2])
    return parts
