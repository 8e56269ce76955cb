"""What archives are packed from: .npy files, archives, folders, streams, URLs.

Owns which files are arrays, and the key of each.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from npzkit import format as npy
from npzkit.archive.npzfile import NpzFile
from npzkit.conversion.arrays import Say
from npzkit.datasets.opening import holds_index, open
from npzkit.errors import (
    ConversionError,
    KeyExistsError,
    NpzkitError,
    PickleRefusedError,
    printable,
)
from npzkit.files.file_objects import UNNAMED, can_read, name_of
from npzkit.files.locations import open_stream
from npzkit.files.urls import Location, find_location
from npzkit.members.keys import SUFFIX, check_key
from npzkit.reading.blocks import is_taken_by_parts

ARCHIVE_SUFFIX = ".npz"
_TABLE_SUFFIXES = (".csv", ".tsv", ".txt")
_STREAM_KEY = "arr_0"
"""Of an array from a stream, as in `numpy.savez`."""

Given = tuple[str | None, Any]
"""A key, or None for the usual one, and a path, an archive or a stream."""


class Input(NamedTuple):
    """An array that is to be read.

    Attributes
    ----------
    key : str
    path : str
        Of its file, or the name of the stream.
    archive : NpzFile or None
        The open archive that has the array.
    member : str
        Its key there.
    stream : file object or None
        What gives one .npy.
    location : Location or None
        Of a file behind a URL.
    """

    key: str
    path: str
    archive: NpzFile | None = None
    member: str = ""
    stream: BinaryIO | None = None
    location: Location | None = None

    @property
    def suffix(self) -> str:
        name = self.path if self.location is None else self.location.file_name
        return SUFFIX if self.stream is not None else os.path.splitext(name)[1].lower()

    @property
    def size(self) -> int:
        """Bytes to be read; 0 of a stream, and of a file behind a URL."""
        if self.archive is not None:
            return self.archive.info(self.member).nbytes
        is_known = self.stream is None and self.location is None
        return os.path.getsize(self.path) if is_known else 0

    @property
    def work(self) -> int:
        """Bytes that are read for them: twice as many if they are checked first."""
        is_checked = self.archive is not None and is_taken_by_parts(self.archive.info(self.member))
        return self.size * (2 if is_checked else 1)


class Inputs(NamedTuple):
    """What is to be packed.

    Attributes
    ----------
    arrays : list of Input
    archives : list of (str, NpzFile)
        Those whose arrays are among them, and their names.
    """

    arrays: list[Input]
    archives: list[tuple[str, NpzFile]]

    @property
    def size(self) -> int:
        """Bytes to be read."""
        return sum(item.size for item in self.arrays)


def given_inputs(inputs: Any) -> list[Given]:
    """Return what the argument of `npzkit.pack` names, each with its key or None.

    URLs become a `Location`.

    Raises
    ------
    TypeError
        It is none of the kinds that `npzkit.pack` takes.
    """
    if _is_one(one := find_location(inputs)):
        return [(None, one)]
    found = []
    for item in inputs.items() if isinstance(inputs, Mapping) else inputs:
        is_pair = isinstance(item, tuple) and len(item) == 2 and not isinstance(item, Location)
        key, source = item if is_pair else (None, item)
        source = find_location(source)
        if not isinstance(key, (str, type(None))) or not _is_one(source):
            raise TypeError(
                "inputs must be paths, archives, file objects, or pairs of a key and one of "
                f"these, not {type(source).__name__}; npzkit.save writes arrays"
            )
        found.append((key, source))
    return found


def _is_one(source: Any) -> bool:
    return isinstance(source, (str, os.PathLike, NpzFile, Location)) or can_read(source)


@contextlib.contextmanager
def opened_inputs(
    given: Iterable[Given], target: str | None, say: Say, *, allow_pickle: bool = False
) -> Iterator[Inputs]:
    """Yield the arrays that are named; archives among them stay open for the block.

    A folder stands for every array in it, and so does an archive.

    Parameters
    ----------
    given : iterable of Given
    target : str or None
        The path that is written to, which must not be among them.
    say : callable
        Takes notes about what is skipped.
    allow_pickle : bool, default False
        For archives that are opened here.

    Raises
    ------
    OSError
        A path does not exist, or cannot be read.
    NpzkitError
        An archive is damaged.
    ConversionError
        A file is not an array, or is the target.
    UnsafeNameError
        Two arrays have the same key, or a key cannot be saved.
    """
    found: dict[str, Input] = {}
    with _Archives(target, allow_pickle=allow_pickle) as archives:
        for key, source in given:
            for item in _find(key, source, archives, say):
                check_key(item.key)
                other = found.setdefault(item.key, item)
                if other is not item:
                    raise KeyExistsError(
                        f"{other.path!r} and {item.path!r} would have the same key", key=item.key,
                        remedy="Give one of them another key by a pair (key, path).",
                    )  # fmt: skip
        yield Inputs(list(found.values()), archives.found)


class _Archives(contextlib.ExitStack):
    """The archives among the inputs; those that are opened here are closed at the end.

    Parameters
    ----------
    target : str or None
        The path that is written to.
    allow_pickle : bool
    """

    def __init__(self, target: str | None, *, allow_pickle: bool) -> None:
        super().__init__()
        self._target, self._allow_pickle = target, allow_pickle
        self._by_path: dict[str, NpzFile] = {}
        self.found: list[tuple[str, NpzFile]] = []

    def take(self, source: NpzFile) -> tuple[str, NpzFile]:
        """Return an archive that the caller has open, and its name."""
        path = source.archive_info().path
        self._check(path)
        self._note(path or UNNAMED, source)
        return path or UNNAMED, source

    def open(self, file: str | Location) -> NpzFile:
        """Open the archive at a path or URL, once."""
        path, options = file if isinstance(file, Location) else (file, None)
        self._check(path)
        if path not in self._by_path:
            self._by_path[path] = self.enter_context(
                open(path, allow_pickle=self._allow_pickle, storage_options=options)
            )
            self._note(str(file), self._by_path[path])
        return self._by_path[path]

    def _note(self, name: str, npz: NpzFile) -> None:
        if all(other is not npz for _, other in self.found):
            self.found.append((name, npz))

    def _check(self, path: str | None) -> None:
        """Raise if it is the file that is written to."""
        paths = [other for other in (path, self._target) if other and os.path.exists(other)]
        if len(paths) == 2 and os.path.samefile(*paths):
            raise ConversionError("the archive to write is also one of the inputs", path=path)


def _find(key: str | None, source: Any, archives: _Archives, say: Say) -> Iterator[Input]:
    """Yield the arrays of one input."""
    prefix = "" if key is None else f"{key}/"
    if isinstance(source, NpzFile):
        yield from _in_archive(prefix, *archives.take(source), say)
        return
    if can_read(source):
        yield Input(_STREAM_KEY if key is None else key, name_of(source), stream=source)
        return
    file = source if isinstance(source, Location) else os.fsdecode(source)
    if isinstance(file, Location):
        stem = os.path.splitext(file.file_name)[0]
        item = Input(stem if key is None else key, str(file), location=file)
    else:
        is_folder = stat.S_ISDIR(os.stat(file).st_mode)
        if holds_index(file):
            yield from _in_archive(prefix, file, archives.open(file), say)
            return
        if is_folder:
            yield from _in_folder(file, prefix, say)
            return
        stem = os.path.splitext(os.path.basename(file))[0]
        item = Input(stem if key is None else key, file)
    path = item.path
    if item.suffix == ARCHIVE_SUFFIX:
        yield from _in_archive(prefix, path, archives.open(file), say)
        return
    if item.suffix != SUFFIX:
        raise _not_packed(item)
    yield item


def _not_packed(item: Input) -> ConversionError:
    """Return the error for a file of another kind."""
    what = f"the file's suffix is none of {SUFFIX} {ARCHIVE_SUFFIX}"
    remedy = "Use npzkit.convert for other formats."
    if item.suffix in _TABLE_SUFFIXES:
        what = "a text table is not packed"
        remedy = "Read it with NumPy's genfromtxt or with pandas, and save the arrays."
    return ConversionError(what, path=item.path, remedy=remedy)


def _in_folder(path: str, prefix: str, say: Say) -> Iterator[Input]:
    items = [item._replace(key=prefix + item.key) for item in arrays_in_folder(path, say)]
    if not items:
        raise ConversionError(f"there is no array in the folder: no {SUFFIX} file", path=path)
    yield from items


def _in_archive(prefix: str, path: str, npz: NpzFile, say: Say) -> Iterator[Input]:
    """Yield the arrays of an archive; other members are skipped."""
    for key in npz.files:
        if npz.info(key).dtype is None:
            say(f"{printable(path)}: skipped {printable(key)!r}, which is not an array")
        else:
            yield Input(prefix + key, path, npz, key)


def arrays_in_folder(folder: str, say: Say) -> Iterator[Input]:
    """Yield the arrays below a folder, in the order of their names.

    Hidden files and folders are skipped. So are files of no known kind and
    symbolic links to something outside the folder, and that is noted.
    """
    root = os.path.realpath(folder)
    passed: list[str] = []
    for place, inner, names in os.walk(folder, onerror=_raise):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        passed += [name for name in inner if os.path.islink(os.path.join(place, name))]
        for name in sorted(names):
            path = os.path.join(place, name)
            if name.startswith("."):
                continue
            stem, suffix = os.path.splitext(os.path.relpath(path, folder))
            is_inside = os.path.commonpath([root, os.path.realpath(path)]) == root
            if suffix.lower() == SUFFIX and is_inside and os.path.isfile(path):
                yield Input(stem.replace(os.sep, "/"), path)
            else:
                passed.append(name)
    if passed:
        shown = ", ".join(map(printable, passed[:5])) + (", ..." if len(passed) > 5 else "")
        what = "entry that is not an array" if len(passed) == 1 else "entries that are not arrays"
        say(f"{printable(folder)}: skipped {len(passed)} {what}: {shown}")


def _raise(error: OSError) -> None:
    raise error


def read_input(item: Input, *, allow_pickle: bool = False) -> Any:
    """Read an array that is not in an archive. A file on a disk becomes a map.

    Raises
    ------
    NpzkitError, OSError
        The file is damaged, or needs pickle.
    """
    try:
        if item.stream is not None:
            return npy.read_array(item.stream, allow_pickle=allow_pickle)
        if item.location is None and stat.S_ISREG(os.stat(item.path).st_mode):
            try:
                return npy.open_memmap(item.path, mode="r")
            except PickleRefusedError:
                if not allow_pickle:
                    raise
        with open_stream(item.path if item.location is None else item.location) as stream:
            return npy.read_array(stream, allow_pickle=allow_pickle)
    except NpzkitError as error:
        raise error.locate(path=item.path) from error.__cause__
