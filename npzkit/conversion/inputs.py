"""What archives are packed from: .npy files, archives, folders, streams, URLs.

Owns which files are arrays, and the key of each.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from npzkit import format as npy
from npzkit.archive.npzfile import NpzFile
from npzkit.conversion.arrays import NOTHING, Array, Say
from npzkit.conversion.formats import PACK_ARCHIVES, check_no_table
from npzkit.conversion.npy_files import arrays_in_file, check_end
from npzkit.conversion.npz import array_in
from npzkit.conversion.output_paths import check_not_input
from npzkit.conversion.refusals import RENAMED, leads_out, why_left_out
from npzkit.datasets.opening import holds_index, is_npy, is_sharded, open
from npzkit.datasets.paths import find_files
from npzkit.display.blocks import is_taken_by_parts
from npzkit.errors import (
    SAVE_SOUND,
    Advice,
    ConversionError,
    KeyExistsError,
    NpzkitError,
    PickleRefusedError,
    UnsafeNameError,
    printable,
    quoted,
    some_of,
)
from npzkit.files.file_objects import UNNAMED, can_read, name_of
from npzkit.files.urls import Location, find_location, find_locations
from npzkit.members.keys import SUFFIX, check_key
from npzkit.trees.restoring import KeySelection

_WITHOUT_PICKLES = Advice(
    "npzkit.convert(file, output, skip=True)", "npzkit convert FILE OTHER --skip"
)
_STREAM_KEY = "arr_0"
"""Of an array from a stream, as in `numpy.savez`."""
PAIR = Advice("a pair (key, path)", "KEY=PATH")
"""What gives an array another key."""

Given = tuple[str | None, Any]
"""A key, or None for the usual one, and a path, an archive or a stream."""


class Input(NamedTuple):
    """An array that is to be read.

    Attributes
    ----------
    key : str
    path : str
        Of its file, or the name of the stream.
    load : callable
        Returns the array: a map if it is in a file on a disk, an `Array` if it is
        large and in an archive.
    attrs : mapping of str to object
    size : int, default 0
        Bytes to be read; 0 of a stream, and of a file behind a URL.
    work : int, default 0
        Bytes that are read for them: twice as many if they are checked first.
    parts : tuple of str, default ()
        What follows the key in those of other members that belong to a masked array, or to
        strings of any length.
    """

    key: str
    path: str
    load: Callable[[], Any]
    attrs: Mapping[str, Any] = NOTHING
    size: int = 0
    work: int = 0
    parts: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        """The keys of all members."""
        return [self.key + part for part in ("", *self.parts)]

    def read(self) -> Any:
        """Return the array; errors name its path."""
        try:
            return self.load()
        except NpzkitError as error:
            raise error.locate(path=self.path) from error.__cause__


class Packed(NamedTuple):
    """What one input gives.

    Attributes
    ----------
    items : list of Input
    path : str, default ""
        Of the archive that the arrays are in, or its name.
    npz : NpzFile, optional
        The archive.
    prefix : str, default ""
        What comes before its keys.
    home : str, default ""
        The name of its file without the suffix, if no key is given.
    """

    items: list[Input]
    path: str = ""
    npz: NpzFile | None = None
    prefix: str = ""
    home: str = ""

    @property
    def keys(self) -> list[str]:
        """The keys of all members."""
        return [key for item in self.items for key in item.keys]


def located(
    target: Any, inputs: Any, storage_options: Mapping[str, Any] | None
) -> tuple[Any, list[Given]]:
    """Return where to write, and what `npzkit.pack` is to read, each with its key or None.

    URLs become a `Location`.

    Raises
    ------
    TypeError
        An input is none of the kinds that `npzkit.pack` takes.
    """
    if _is_one(find_location(inputs)):
        inputs = [inputs]
    given: list[Given] = []
    for item in inputs.items() if isinstance(inputs, Mapping) else inputs:
        is_pair = isinstance(item, tuple) and len(item) == 2 and not isinstance(item, Location)
        key, source = item if is_pair else (None, item)
        if not isinstance(key, (str, type(None))) or not _is_one(find_location(source)):
            raise TypeError(
                "inputs must be paths, archives, file objects, or pairs of a key and one of "
                f"these, not {type(source).__name__}; npzkit.save makes an archive of arrays, "
                "and NpzWriter(file, 'a') adds them to one"
            )
        is_pattern = key is None and isinstance(source, str)
        found = find_files(source, storage_options) if is_pattern else [source]
        given += [(key, one) for one in found]
    target, *sources = find_locations([target, *(one for _, one in given)], storage_options)
    return target, [(key, one) for (key, _), one in zip(given, sources, strict=True)]


def _is_one(source: Any) -> bool:
    return isinstance(source, (str, os.PathLike, NpzFile, Location)) or can_read(source)


@contextlib.contextmanager
def opened_inputs(
    given: Iterable[Given],
    target: str | None,
    say: Say,
    *,
    wanted: KeySelection | None = None,
    skip: bool = False,
    **pickling: Any,
) -> Iterator[list[Packed]]:
    """Yield the arrays that are named, with the archives among them, open for the block.

    A folder stands for every array in it, and so does an archive.

    Parameters
    ----------
    given : iterable of Given
    target : str or None
        The path that is written to, which must not be among them.
    say : callable
        Takes notes about what is skipped.
    wanted : KeySelection, optional
        Which arrays of each are yielded; by default all.
    skip : bool, default False
        Whether to read all first, and leave out files that are damaged or cannot be opened.
    **pickling
        Of `npzkit.open`, for what is opened here: `allow_pickle` and `pickle_kwargs`.

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
    taken: dict[str, Input] = {}
    with _Opened(target, pickling) as archives:
        archives.skip, archives.wanted = skip, wanted
        found = _apart(list(_each(given, archives, say)), say)
        archives.check_found()
        for item in (item for packed in found for item in packed.items):
            check_key(item.key)
            for other in [taken.setdefault(key, item) for key in item.keys]:
                if other is not item:
                    raise KeyExistsError(
                        f"{quoted(other.path)} and {quoted(item.path)} would have the same key",
                        key=item.key, remedy="Give one of them another key by " + PAIR + ".",
                    )  # fmt: skip
        yield found


def _each(given: Iterable[Given], archives: _Opened, say: Say) -> Iterator[Packed]:
    """Yield what each input gives; what is left out is noted, unless nothing is left."""
    failed, count = None, 0
    for key, source in given:
        try:
            packed = archives.chosen(_find(key, source, archives, say))
            if archives.skip and packed.npz is not None:
                _check_all(packed.items)
        except (NpzkitError, OSError) as error:
            if not archives.skip:
                raise
            failed = error
            _leave_out(str(source), error, say)
        else:
            count += 1
            if packed.items or archives.wanted is None:
                yield packed
            else:
                say(f"left out {printable(str(source))}: it has no array that was chosen")
    if failed is not None and not count:
        raise failed


def _check_all(items: Iterable[Input]) -> None:
    """Read arrays, as they will be read again."""
    for item in items:
        array = item.read()
        if isinstance(array, Array):
            array.check_all()


def _leave_out(path: str, error: Exception, say: Say) -> None:
    which, advice = printable(path), ""
    if isinstance(error, NpzkitError) and error.key is not None:
        which += " with all its arrays"
        # The error of a shard has another path.
        if error.is_damage and error.path == path:
            advice = "; " + SAVE_SOUND + " saves the sound ones"
        elif isinstance(error, PickleRefusedError):
            advice = "; " + _WITHOUT_PICKLES + " saves the others"
    say("left out " + which + ": " + why_left_out(error) + advice)


def _apart(found: list[Packed], say: Say) -> list[Packed]:
    """Put the file's name before the key of each array of archives, if two of them have one key."""
    counts = Counter(key for packed in found if packed.home for key in packed.keys)
    shared = {key for key, count in counts.items() if count > 1}
    if not shared:
        return found
    say(
        f"archives have the same keys, such as {printable(min(shared))!r}: each key begins with "
        "the name of its file and a slash. "
        + Advice('join="concatenate"', "--join")
        + " of pack makes one array of those with the same key"
    )
    return [packed._replace(
        prefix=f"{packed.home}/",
        items=[item._replace(key=f"{packed.home}/{item.key}") for item in packed.items],
    ) if packed.home else packed for packed in found]  # fmt: skip


class _Opened(contextlib.ExitStack):
    """The archives among the inputs; those that are opened here are closed at the end.

    Parameters
    ----------
    target : str or None
        The path that is written to.
    pickling : dict

    Attributes
    ----------
    skip : bool
        Whether to leave out files that are damaged or cannot be opened.
    wanted : KeySelection or None
    """

    skip = False
    wanted: KeySelection | None = None

    def __init__(self, target: str | None, pickling: dict[str, Any]) -> None:
        super().__init__()
        self._target, self.pickling = target, pickling
        self._by_path: dict[str, NpzFile] = {}
        self._keys: dict[str, None] = {}

    def chosen(self, packed: Packed) -> Packed:
        """Return what an input has of the arrays that are wanted, by their keys in it."""
        if self.wanted is None:
            return packed
        items = {item.key.removeprefix(packed.prefix): item for item in packed.items}
        self._keys.update(dict.fromkeys(items))
        return packed._replace(items=[item for key, item in items.items() if key in self.wanted])

    def check_found(self) -> None:
        """Raise MemberNotFoundError for what is wanted and in no input."""
        if self.wanted is not None:
            self.wanted.check_used([*self._keys], None, is_empty=False)

    def archive(self, source: NpzFile | str | Location) -> tuple[str, NpzFile]:
        """Return the name of an archive, and the archive, which is opened once."""
        if isinstance(source, NpzFile):
            path = source.archive_info().path
            check_not_input(path, self._target)
            return path or UNNAMED, source
        path, options = source if isinstance(source, Location) else (source, None)
        check_not_input(path, self._target)
        if path not in self._by_path:
            npz = open(path, storage_options=options, **self.pickling)
            self._by_path[path] = self.enter_context(npz)
        return str(source), self._by_path[path]


def _find(key: str | None, source: Any, archives: _Opened, say: Say) -> Packed:
    """Return the arrays of one input."""
    prefix = "" if key is None else f"{key}/"
    pickling = archives.pickling
    if isinstance(source, NpzFile):
        path, npz = archives.archive(source)
        stem = "" if path == UNNAMED else os.path.splitext(os.path.basename(path))[0]
        return _in_archive(prefix, stem, path, npz, say)
    if can_read(source):
        load = partial(_read_stream, source, **pickling)
        return Packed([Input(_STREAM_KEY if key is None else key, name_of(source), load)])
    file = source if isinstance(source, Location) else os.fsdecode(source)
    path, mode, has_index = str(file), 0, False
    if isinstance(file, str):
        mode, has_index = os.stat(file).st_mode, holds_index(file)
    is_folder = stat.S_ISDIR(mode)
    stem, suffix = os.path.splitext(os.path.basename(getattr(file, "file_name", path)))
    if isinstance(file, Location):
        # A store has no folders: this may be the prefix of a sharded archive.
        has_index = not suffix or is_sharded(file.url)
    is_array, is_archive = suffix.lower() == SUFFIX, suffix.lower() == ".npz"
    if stat.S_ISREG(mode):
        # Both are found under any name. Only a zip archive with one of these suffixes is read.
        is_archive |= is_array and zipfile.is_zipfile(path)
        is_array = is_npy(path) or (is_array and not is_archive)
    if has_index or (is_archive and not is_folder and not is_array):
        return _in_archive(prefix, stem, *archives.archive(file), say)
    if is_folder:
        return Packed(list(_in_folder(path, prefix, say, archives)))
    if is_array:
        items = list(_in_file(stem if key is None else key, file, say, **pickling))
        # A pipe is read only once.
        is_checked = archives.skip and not stat.S_ISFIFO(mode)
        _check_all(items if is_checked else ())
        return Packed(items)
    check_no_table(path)
    raise ConversionError(
        f"the file's suffix is none of {SUFFIX} .npz", path=path,
        remedy="Use " + Advice("npzkit.convert", "npzkit convert") + " for other formats.",
    )  # fmt: skip


def _in_archive(prefix: str, stem: str, path: str, npz: NpzFile, say: Say) -> Packed:
    """Return the arrays of an archive; other members are skipped."""
    found = Packed([], path, npz, prefix, "" if prefix else stem)
    there = set(npz.files)
    whole = {
        key: parts
        for key in npz._archive.split_keys(npz.files)
        if (parts := npz.info(key).split_into) and there.issuperset(parts)
    }
    joined = {part for parts in whole.values() for part in parts}
    for key in npz.files:
        if key in joined:
            continue
        info = npz.info(key)
        if info.dtype is None:
            say(f"{printable(path)}: skipped {printable(key)!r}, which is not an array")
            continue
        _check_name(key, path)
        parts = whole.get(key, ())
        is_large = not parts and is_taken_by_parts(info)
        read: Any = partial(array_in, npz) if is_large else npz.join if parts else npz.read
        size = sum(npz.info(part).nbytes for part in (key, *parts))
        ends = tuple(part.removeprefix(key) for part in parts)
        work, load = size * (2 if is_large else 1), partial(read, key)
        found.items.append(Input(prefix + key, path, load, info.attrs, size, work, ends))
    return found


def _check_name(key: str, path: str) -> None:
    """Check that a key of an archive can be saved."""
    try:
        check_key(key)
    except UnsafeNameError as error:
        error.remedy = "Give it another key" + RENAMED
        raise error.locate(path=path)  # noqa: B904 - it is the same error


_LINKS = "link that leads to no array in it", "links that lead to no array in it", ""
_ARCHIVES = "archive", "archives", ". " + PACK_ARCHIVES
_OTHERS = "entry that is not an array", "entries that are not arrays", ""
"""What of a folder is not packed: as one, as several, and what to do."""


def _in_folder(folder: str, prefix: str, say: Say, archives: _Opened) -> Iterator[Input]:
    """Yield the arrays below a folder, in the order of their names.

    Hidden files and folders are skipped. So are files of other kinds and symbolic links to
    folders, to nothing, and to something outside the folder, and that is noted.

    Raises
    ------
    ConversionError
        There is none.
    """
    root = os.path.realpath(folder)
    passed: dict[tuple[str, str, str], list[str]] = {_LINKS: [], _ARCHIVES: [], _OTHERS: []}
    is_empty = True
    for place, inner, names in os.walk(folder, onerror=_raise):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        passed[_LINKS] += [name for name in inner if os.path.islink(os.path.join(place, name))]
        for name in sorted(name for name in names if not name.startswith(".")):
            path = os.path.join(place, name)
            stem, suffix = os.path.splitext(os.path.relpath(path, folder))
            is_file = not leads_out(root, path) and os.path.isfile(path)
            if suffix.lower() == SUFFIX and is_file:
                key = prefix + stem.replace(os.sep, "/")
                try:
                    items = list(_in_file(key, path, say, **archives.pickling))
                    _check_all(items if archives.skip else ())
                except (NpzkitError, OSError) as error:
                    if not archives.skip:
                        raise
                    _leave_out(path, error, say)
                    continue
                yield from items
                is_empty = False
            else:
                is_archive = name.lower().endswith(".npz")
                other = _LINKS if os.path.islink(path) else _OTHERS
                passed[_ARCHIVES if is_archive else other].append(name)
    if is_empty:
        raise ConversionError(
            f"there is no array in the folder: no {SUFFIX} file", path=folder,
            remedy=PACK_ARCHIVES if passed[_ARCHIVES] else None,
        )  # fmt: skip
    for (one, several, hint), names in passed.items():
        if names:
            what = one if len(names) == 1 else several
            shown = some_of(names, printable, most=5)
            say(f"{printable(folder)}: skipped {len(names)} {what}: {shown}" + hint)


def _raise(error: OSError) -> None:
    raise error


def _in_file(key: str, file: str | Location, say: Say, **pickling: Any) -> Iterator[Input]:
    """Yield the arrays of a file: several, with numbered keys, if it was saved to repeatedly."""
    path = str(file)
    try:
        arrays = [] if isinstance(file, Location) else arrays_in_file(path)
    except NpzkitError as error:
        raise error.locate(path=path) from error.__cause__
    if not arrays:
        size = 0 if isinstance(file, Location) else os.path.getsize(file)
        load = partial(_read_file, file, **pickling)
        yield Input(key, path, load, size=size, work=size)
        return
    keys = [key]
    if len(arrays) > 1:
        say(f"{printable(path)}: the file holds {len(arrays):,} arrays, one after the other")
        keys = [f"{key}.{number}" for number in range(len(arrays))]
    for name, array in zip(keys, arrays, strict=True):
        yield Input(name, path, array.mapped, size=array.nbytes, work=array.nbytes)


def _read_file(file: str | Location, **pickling: Any) -> Any:
    """Read an array that is not mapped: behind a URL, from a FIFO, of Python objects."""
    if isinstance(file, Location):
        from npzkit.stores.store_for_url import open_stream

        stream = open_stream(file)
    else:
        stream = builtins.open(file, "rb")  # noqa: SIM115 - closed below
    with stream:
        return _read_stream(stream, **pickling)


def _read_stream(stream: Any, **pickling: Any) -> Any:
    """Read the one array of a stream."""
    array = npy.read_array(stream, **pickling)
    check_end(stream, array.dtype, array.shape)
    return array
