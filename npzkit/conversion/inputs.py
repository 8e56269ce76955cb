"""What commands make arrays of: .npy files, text tables, archives, folders, a pipe.

Owns which files are arrays and under which keys they go.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import click
import numpy as np

import npzkit
from npzkit import format as npy
from npzkit.archive.pieces import is_taken_by_parts
from npzkit.cli.opening import opened
from npzkit.cli.output import printable
from npzkit.conversion.tables import DELIMITERS, TableOptions, read_table
from npzkit.conversion.targets import Refusal, check_new_key
from npzkit.errors import NpzkitError, PickleRefusedError
from npzkit.files.progress import Advance
from npzkit.members.keys import SUFFIX

__all__ = [
    "ARCHIVE_SUFFIX",
    "PIPE",
    "SUFFIXES",
    "Input",
    "Inputs",
    "arrays_in_folder",
    "opened_inputs",
    "read_input",
]

PIPE = "-"
ARCHIVE_SUFFIX = ".npz"
SUFFIXES = (SUFFIX, *DELIMITERS)
"""Of files that are one array."""
_IN_FOLDERS = (SUFFIX, ".csv", ".tsv")
"""Of a folder's text files most are no tables."""


class Input(NamedTuple):
    """An array that is to be read.

    Attributes
    ----------
    key : str
    path : str
        Or "-" for the standard input stream.
    archive : NpzFile or None
        The open archive at `path`, for one of its arrays.
    member : str
        Its key there.
    """

    key: str
    path: str
    archive: npzkit.NpzFile | None = None
    member: str = ""

    @property
    def suffix(self) -> str:
        return SUFFIX if self.path == PIPE else os.path.splitext(self.path)[1].lower()

    @property
    def size(self) -> int:
        """Bytes to be read; 0 of a pipe."""
        if self.archive is not None:
            return self.archive.info(self.member).nbytes
        return 0 if self.path == PIPE else os.path.getsize(self.path)

    @property
    def work(self) -> int:
        """Bytes that are read for them: twice, if they are looked through first."""
        if self.archive is not None:
            return self.size * (2 if is_taken_by_parts(self.archive.info(self.member)) else 1)
        return self.size * (1 if self.suffix == SUFFIX else 2)


class Inputs(NamedTuple):
    """What the arguments of a command name.

    Attributes
    ----------
    arrays : list of Input
    archives : dict of str to NpzFile
        Those whose arrays are among them, by their paths.
    """

    arrays: list[Input]
    archives: dict[str, npzkit.NpzFile]

    @property
    def size(self) -> int:
        """Bytes to be read."""
        return sum(item.size for item in self.arrays)


@contextlib.contextmanager
def opened_inputs(
    given: Sequence[str], target: str, *, allow_pickle: bool = False
) -> Iterator[Inputs]:
    """Yield what is named by arguments, each ``[KEY=]PATH``; archives among them stay open.

    A folder is every array in it, and an archive too.

    Parameters
    ----------
    given : sequence of str
    target : str
        Where they go, which is none of them.
    allow_pickle : bool, default False
        For archives.

    Raises
    ------
    OSError
        A path is not there.
    NpzkitError
        An archive is damaged.
    Refusal
        A file that is no array, two of the same key, or one that cannot be a key.
    """
    found: dict[str, Input] = {}
    with contextlib.ExitStack() as stack:
        archives: dict[str, npzkit.NpzFile] = {}

        def open_archive(path: str) -> npzkit.NpzFile:
            if os.path.exists(target) and os.path.samefile(path, target):
                raise Refusal(f"{path!r} is written to, so it cannot be read from as well.")
            if path not in archives:
                archives[path] = stack.enter_context(opened(path, allow_pickle=allow_pickle))
            return archives[path]

        for text in given:
            for item in _find(text, open_archive):
                check_new_key(item.key)
                other = found.setdefault(item.key, item)
                if other is not item:
                    raise Refusal(
                        f"{other.path!r} and {item.path!r} would both be {item.key!r}. "
                        "Name one by KEY=PATH."
                    )
        yield Inputs(list(found.values()), archives)


def _find(text: str, open_archive: Callable[[str], npzkit.NpzFile]) -> Iterator[Input]:
    key, path = _split(text)
    if path == PIPE:
        yield Input("arr_0" if key is None else key, path)
        return
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        prefix = "" if key is None else f"{key}/"
        items = [Input(prefix + item.key, item.path) for item in arrays_in_folder(path, _say)]
        if not items:
            raise Refusal(f"no array in the folder {path!r}: none of {' '.join(_IN_FOLDERS)}.")
        yield from items
        return
    stem = os.path.splitext(os.path.basename(path))[0]
    item = Input(stem if key is None else key, path)
    if item.suffix == ARCHIVE_SUFFIX:
        yield from _in_archive(path, "" if key is None else f"{key}/", open_archive(path))
        return
    if item.suffix not in SUFFIXES:
        raise Refusal(
            f"{path!r} is of no kind that can be read here: none of {' '.join(SUFFIXES)} "
            f"{ARCHIVE_SUFFIX}. Other files: npzkit convert."
        )
    yield item


def _in_archive(path: str, prefix: str, npz: npzkit.NpzFile) -> Iterator[Input]:
    """Yield the arrays of an archive; other members are passed over."""
    for key in npz.files:
        if npz.info(key).dtype is None:
            _say(f"{printable(path)}: passed over {printable(key)!r}, which is no array")
        else:
            yield Input(prefix + key, path, npz, key)


def _say(text: str) -> None:
    click.echo(f"npzkit: {text}", err=True)


def _split(text: str) -> tuple[str | None, str]:
    """Split ``KEY=PATH``; a file of that whole name is a file."""
    key, equals, path = text.partition("=")
    return (None, text) if not equals or os.path.lexists(text) else (key, path)


def arrays_in_folder(
    folder: str, say: Callable[[str], None], suffixes: Sequence[str] = _IN_FOLDERS
) -> Iterator[Input]:
    """Yield the arrays below a folder, in the order of their names.

    What is hidden is passed over; what is of no known kind, or a symbolic link
    to something outside, also, and that is said.
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
            if suffix.lower() in suffixes and is_inside and os.path.isfile(path):
                yield Input(stem.replace(os.sep, "/"), path)
            else:
                passed.append(name)
    if passed:
        shown = ", ".join(map(printable, passed[:5])) + (", ..." if len(passed) > 5 else "")
        noun = "entry" if len(passed) == 1 else "entries"
        say(f"{printable(folder)}: passed over {len(passed)} {noun} that are no arrays: {shown}")


def _raise(error: OSError) -> None:
    raise error


def read_input(
    item: Input,
    options: TableOptions,
    *,
    allow_pickle: bool = False,
    advance: Advance | None = None,
) -> Any:
    """Read an array; one in an .npy file is a map, of which nothing is in memory.

    `advance` is called with each number of bytes that were read of a table.

    Raises
    ------
    NpzkitError, OSError
        The file is damaged, or needs pickle.
    Refusal
        A table that is none.
    """
    if item.suffix != SUFFIX:
        return read_table(item.path, item.suffix, options, advance or (lambda size: None))
    try:
        if item.path == PIPE:
            return _read_pipe(allow_pickle=allow_pickle)
        if stat.S_ISREG(os.stat(item.path).st_mode):
            try:
                return npy.open_memmap(item.path, mode="r")
            except PickleRefusedError:
                if not allow_pickle:
                    raise
        with open(item.path, "rb") as file:
            return npy.read_array(file, allow_pickle=allow_pickle)
    except NpzkitError as error:
        raise error.locate(path=item.path) from error.__cause__


def _read_pipe(*, allow_pickle: bool) -> np.ndarray[Any, Any]:
    if sys.stdin.isatty():
        raise Refusal("- reads one .npy from a pipe, and there is none.")
    array: np.ndarray[Any, Any] = npy.read_array(sys.stdin.buffer, allow_pickle=allow_pickle)
    return array
