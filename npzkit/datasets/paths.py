"""Which files a pattern means, which archives a folder has, and in which order.

Owns patterns of paths and of URLs, and what is an archive by its name. Opens nothing.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from npzkit.datasets import INDEX_NAME
from npzkit.datasets.shard_names import attempt_of
from npzkit.files.urls import Location, find_location
from npzkit.members.keys import common_start

if TYPE_CHECKING:
    from npzkit.typing import PathLike

T = TypeVar("T", str, Location, "str | Location")

SUFFIX = ".npz"
"""The suffix of archives in folders."""
_DIGITS, _END = re.compile(r"(\d+)"), re.compile(r"\D*\Z")
_DIGITS_AT_END = re.compile(r"\d*\Z")


def find_files(paths: Any, storage_options: Mapping[str, Any] | None) -> list[str | Location]:
    """Return the files that a pattern matches, or those that a list names.

    Parameters
    ----------
    paths : str, path-like or iterable of these
        A string with ``*``, ``?`` or ``[`` is a pattern, unless it is a file. The
        files of a pattern are sorted by their names, numbers by their value. A
        list keeps its order, and may have patterns.
    storage_options : mapping, optional
        For URLs.

    Raises
    ------
    FileNotFoundError
        Nothing matches the pattern.
    ValueError
        The list is empty.
    """
    if not isinstance(paths, (str, os.PathLike, Location)):
        listed = list(paths)
        if not listed:
            raise ValueError("the list of files is empty")
        return [file for path in listed for file in find_files(path, storage_options)]
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


def find_archives(
    folder: PathLike, *, recursive: bool = False, suffixes: tuple[str, ...] = (SUFFIX,),
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:  # fmt: skip
    """Return the archives in a folder: files with one of `suffixes`, and sharded archives.

    Nothing is opened. A sharded archive, which is a folder with an ``index.npz`` and shards, is
    one archive. Links to files are followed, also those that lead nowhere; links to folders are
    not. Hidden files and folders, whose names begin with a dot, are passed over.

    They are sorted by name, numbers by their value. A file, a sharded archive and the URL of a
    web server, which cannot list its files, are the only archive in the result. With `recursive`,
    a folder that cannot be listed is among them: opening it raises the error.
    """
    failed: list[OSError] = []
    found = find_location(folder, storage_options)
    if isinstance(found, Location):
        given = top = found.url
        sep = "/"
        names = _objects_below(found, recursive=recursive)
    else:
        # Windows takes both separators.
        given, sep = os.fsdecode(found), os.sep
        top = given.replace(os.altsep or sep, sep)
        below = _files_below(top, failed, suffixes, recursive=recursive)
        names = list(below) if os.path.isdir(top) else None
    if names is None:
        return [given]
    # What is in `top` begins with this, and a separator.
    start = top.rstrip("/" + sep)
    unlisted = {os.fsdecode(error.filename).rstrip(sep) for error in failed}
    placed = [(name, *name.rpartition(sep)[::2]) for name in names]
    sharded = {folder for _, folder, last in placed if last == INDEX_NAME} & {
        folder for _, folder, last in placed if attempt_of(last)
    }
    if not recursive and start in sharded | unlisted:
        return [given]
    files = [
        name for name, folder, last in placed
        if name.lower().endswith(suffixes) and not (
            folder in sharded and (last == INDEX_NAME or attempt_of(last))
        )
    ]  # fmt: skip
    archives = [
        given if archive == start else archive
        for archive in (*files, *sharded, *unlisted)
        if (recursive or archive.rpartition(sep)[0] == start)
        and f"{sep}." not in archive[len(start) :]
    ]
    return in_order(archives)


def _objects_below(prefix: Location, *, recursive: bool) -> list[str] | None:
    """Return the objects below a prefix, at depths up to 2 or at any; None if it is none."""
    is_folder = prefix.url.endswith("/")
    if prefix.is_web or prefix.is_chain or prefix.url.endswith(SUFFIX):
        return None
    from npzkit.stores.objects import objects_below

    try:
        names = objects_below(prefix, None if recursive else 2)
    except FileNotFoundError:
        if is_folder:
            raise
        return None
    return names if names or is_folder else None


def _files_below(
    folder: str, failed: list[OSError], suffixes: tuple[str, ...], *, recursive: bool
) -> Iterator[str]:
    """Yield files with these suffixes in a folder, and in sharded archives there, or at any depth.

    Adds to `failed` for each folder that cannot be listed.
    """
    for place, inner, names in os.walk(folder, onerror=failed.append):
        if not recursive:
            inner[:] = [
                name for name in inner
                if place == folder and os.path.isfile(os.path.join(place, name, INDEX_NAME))
            ]  # fmt: skip
        for name in names:
            path = os.path.join(place, name)
            # Opening a link that leads nowhere raises the error.
            is_broken = os.path.islink(path) and not os.path.exists(path)
            if name.lower().endswith(suffixes) and (is_broken or os.path.isfile(path)):
                yield path


def _checked(found: Iterable[str | Location], pattern: str | Location) -> list[str | Location]:
    files = list(found)
    if not files:
        raise FileNotFoundError(errno.ENOENT, "no file matches the pattern", str(pattern))
    return in_order(files)


def in_order(files: list[T]) -> list[T]:
    """Return paths and locations sorted by their names, numbers by their value."""
    if len(files) < 2:
        return files
    names = [file.url if isinstance(file, Location) else file for file in files]
    # Mostly, all names are alike but for one number: that takes a fifth of the time.
    shared = common_start(names)
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
