"""The files of a data set as they are read: headers, complete arrays, parts.

Owns how a file is opened, that it is the version that was found first, and how
many are open. Which files make which array is `npzkit.datasets.joined`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.reopening import check_state
from npzkit.codecs.coding import STORED
from npzkit.datasets.reopened import Recent
from npzkit.datasets.skeleton import Arrays, Skeleton, nbytes_of, skeleton_of
from npzkit.errors import (
    ClosedArchiveError,
    NpzkitError,
    StaleArchiveError,
    explain,
    format_count,
    quoted,
    some_of,
)
from npzkit.files.file_objects import Identity, identity_of, open_regular
from npzkit.files.threads import run
from npzkit.files.urls import Location
from npzkit.limits import thread_count
from npzkit.members.metadata import parse_attrs
from npzkit.members.tensors import restored_dtype

_ALIKE_COUNT = 4
"""Kinds of files of the same size that are kept in mind."""
_BATCH = 64
"""Files whose headers are read by one task of a thread."""
_SMALL_SIZE = 1 << 16
"""Bytes of a file that is read as a whole, also for a small part of it."""
_SHARED_SIZE = 1 << 22
"""Bytes of an array that several threads read; smaller ones are read by a thread each."""
_LOST = "Open the files again with npzkit.open_many."


class Known(NamedTuple):
    """What is known of many files.

    Attributes
    ----------
    names : list of str
        Paths or URLs, in the order of the files.
    marks : list of tuple
        Of each file, what tells its version: the `Identity` of a file on a disk, or the
        `Version` of an object, and the CRC-32 of its directory.
    kinds : list of Arrays
        Each different combination of arrays.
    kind_of : list of int
        By file, its place in `kinds`.
    left_out : dict of str to str
        The files that cannot be opened or do not fit, and why.
    """

    names: Sequence[str]
    marks: list[tuple[Any, ...]]
    kinds: Sequence[Arrays]
    kind_of: Sequence[int]
    left_out: Mapping[str, str]

    def without(self, error: NpzkitError) -> Known:
        """Return what is known of the others: without files like the one that an error names."""
        odd = self.kind_of[self.names.index(str(error.path))]
        rows = zip(self.names, self.marks, self.kind_of, strict=True)
        names, marks, kind_of = zip(*(row for row in rows if row[2] != odd), strict=True)
        told = {}
        for name, kind in zip(self.names, self.kind_of, strict=True):
            if kind == odd:
                error.path, error.remedy = name, None
                told[name] = str(error)
        return Known(
            list(names), list(marks), [*self.kinds[:odd], *self.kinds[odd + 1 :]],
            [kind - (kind > odd) for kind in kind_of],
            {**self.left_out, **told},
        )  # fmt: skip


class Files:
    """Files that are read by their numbers.

    Parameters
    ----------
    names : list of str or Location
    options : mapping
        Of `npzkit.open`.
    folder : str, optional
        That of relative paths; by default the current one.

    Attributes
    ----------
    names : list of str or Location
    options, folder
    marks : list of tuple
        The version of each, once their headers are read; see `Known`.
    is_wanted : callable, optional
        Returns whether a key counts. In a file with a damaged header, no others do.
    """

    def __init__(
        self, names: list[str | Location], options: Mapping[str, Any], folder: str | None = None
    ) -> None:
        self.names = names
        self.options = options
        self.folder = os.getcwd() if folder is None else folder
        self._recent: Recent | None = Recent(is_local=not self.is_distant)
        self._alike: dict[int, list[Skeleton]] = {}
        self.marks: list[tuple[Any, ...]] = []
        self.is_wanted: Callable[[str], bool] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Files, (self.names, self.options, self.folder)

    @property
    def is_distant(self) -> bool:
        """Whether any of them is at a URL."""
        return any(isinstance(name, Location) for name in self.names)

    def path(self, number: int) -> str:
        """Return the path or the URL of a file, for messages."""
        return str(self.names[number])

    def place(self, number: int) -> str | Location:
        """Return where a file is, also after the process went to another folder."""
        name = self.names[number]
        # The test takes a tenth of the time of joining. On Windows, such a path may lack a drive.
        if isinstance(name, Location) or (os.name == "posix" and os.path.isabs(name)):
            return name
        return os.path.join(self.folder, name)

    def _descriptor(self, number: int) -> Any:
        """Open a local file without looking at it."""
        return open_regular(cast(str, self.place(number)))

    def _open(self, number: int) -> NpzFile:
        return NpzFile(self.place(number), **self.options)

    # -- headers ------------------------------------------------------------

    def _mark_of(self, npz: NpzFile) -> tuple[Any, ...]:
        """Return what tells the version of an open file."""
        archive = npz._archive.one_file()
        source: Any = archive.source
        identity = source.version if source.is_distant else source.identity
        return *identity, archive.directory_crc32

    def read_arrays(self, number: int) -> tuple[tuple[Any, ...], Arrays]:
        """Return the version of a file, and which arrays it has."""
        if self._alike and not isinstance(self.names[number], Location):
            with self._descriptor(number) as descriptor:
                found = identity_of(os.fstat(descriptor))
                for skeleton in self._alike.get(found.size, ()):
                    crc = skeleton.match(descriptor)
                    if crc is not None:
                        return (*found, crc), skeleton.arrays
        npz = self._open(number)
        try:
            self._remember(npz)
            try:
                arrays = _arrays_of(npz, lambda key: True)
            except NpzkitError:
                if self.is_wanted is None:
                    raise
                arrays = _arrays_of(npz, self.is_wanted)
            return self._mark_of(npz), arrays
        finally:
            if npz._lend_source().is_distant and self._recent is not None:
                # Opening it again would be a request.
                self._recent.get(number, lambda: npz)
            else:
                npz.close()

    def _remember(self, npz: NpzFile) -> None:
        """Take a file as an example for others of its size, if it can be one."""
        archive = npz._archive.one_file()
        source, entries = archive.source, archive.entries
        if source.is_distant or any(entry.method != STORED for entry in entries.values()):
            return
        try:
            skeleton = skeleton_of(archive, {key: npz.info(key) for key in npz.files})
        except NpzkitError:
            # One with a damaged header is no example.
            return
        if skeleton is not None:
            others = self._alike.get(source.file_size, [])
            self._alike[source.file_size] = [skeleton, *others[: _ALIKE_COUNT - 1]]

    # -- data ---------------------------------------------------------------

    def archive(self, number: int) -> NpzFile:
        """Return a file, open.

        Raises
        ------
        StaleArchiveError
            It is not the version that was found first.
        ClosedArchiveError
            The files were closed.
        """
        recent = self._recent
        if recent is None:
            raise ClosedArchiveError("the files are closed", remedy=_LOST)
        # One that is opened now is compared then.
        if number in recent and not isinstance(self.names[number], Location):
            found = identity_of(os.stat(cast(str, self.place(number))))
            if not _is_same(found, self.marks[number]):
                self._check_state(number, found[:2])
                # It may be a copy, or another file of the same size and time.
                recent.forget(number)
        npz: NpzFile = recent.get(number, partial(self._opened, number))
        return npz

    def _opened(self, number: int) -> NpzFile:
        npz = self._open(number)
        try:
            self._check_state(number, npz._archive.state or ())
        except StaleArchiveError:
            npz.close()
            raise
        self.marks[number] = self._mark_of(npz)
        return npz

    def _check_state(self, number: int, found: tuple[Any, ...]) -> None:
        """Check that a file is the one that was found first, or a copy, as far as is known."""
        expected = self.marks[number]
        if not isinstance(self.names[number], Location):
            expected = *expected[:2], expected[-1]
        check_state(found, expected, self.path(number), "first opened", _LOST)

    def lazy(self, number: int, key: str, arrays: Arrays, *, verify: bool = True) -> Any:
        """Return an array of a file as a `LazyArray`."""
        return self._checked(self.archive(number).lazy(key, verify=verify), number, key, arrays)

    def _checked(self, array: Any, number: int, key: str, arrays: Arrays) -> Any:
        """Check that an array, lazy or not, has the shape and dtype that were found first."""
        found, expected = (array.shape, array.dtype), arrays[key]
        if found != expected:
            raise StaleArchiveError(
                "the array is not as it was found first", path=self.path(number), key=key,
                found=f"{found[1]} {found[0]}", expected=f"{expected[1]} {expected[0]}",
                remedy=_LOST,
            )  # fmt: skip
        return array

    def read(
        self,
        number: int,
        keys: Sequence[str],
        arrays: Arrays,
        into: Mapping[str, np.ndarray[Any, Any]],
        *,
        is_trial: bool = False,
        verify: bool = True,
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Read complete arrays of a file.

        Parameters
        ----------
        number : int
        keys : sequence of str
        arrays : Arrays
            Of this file, as they were found first.
        into : mapping of str to numpy.ndarray
            Arrays to fill, which are C-contiguous.
        is_trial : bool, default False
            Only check what would fill them.
        verify : bool, default True
            Compare their CRC-32s.
        """
        found = self._read_alike(number, keys, arrays, {} if is_trial else into)
        if found is not None:
            return found
        npz, found = self.archive(number), {}
        for key in keys:
            if key in into:
                found[key] = out = into[key]
                threads = 1 if out.nbytes < _SHARED_SIZE else thread_count(None)
                try:
                    npz._archive.fill({key: out}, threads, verify, is_trial=is_trial)
                except ValueError as error:
                    if not isinstance(error, NpzkitError):
                        # It is another array now, which has no place there.
                        self._checked(npz.lazy(key), number, key, arrays)
                    raise
            else:
                found[key] = self._checked(npz.read(key, verify=verify), number, key, arrays)
        if npz.file_size not in self._alike:
            self._remember(npz)
        return found

    def _read_alike(
        self,
        number: int,
        keys: Sequence[str],
        arrays: Arrays,
        into: Mapping[str, np.ndarray[Any, Any]],
    ) -> dict[str, np.ndarray[Any, Any]] | None:
        """Read a file that is like another one; None if it is not, or has to be explained."""
        mark = self.marks[number]
        skeletons = self._alike.get(mark[0])
        if not skeletons or self._recent is None or isinstance(self.names[number], Location):
            return None
        if mark[0] > _SMALL_SIZE and 2 * sum(nbytes_of(*arrays[key]) for key in keys) < mark[0]:
            # Most of the file would be read for nothing.
            return None
        with self._descriptor(number) as descriptor:
            if not _is_same(identity_of(os.fstat(descriptor)), mark):
                return None
            for skeleton in skeletons:
                if all(skeleton.arrays.get(key) == arrays[key] for key in keys):
                    found = skeleton.read(descriptor, keys, into)
                    if found is not None:
                        return found
        return None

    def close(self) -> None:
        """Let go of all files."""
        self._recent = None


def _arrays_of(npz: NpzFile, is_wanted: Callable[[str], bool]) -> Arrays:
    """Return the arrays of a file, by its index or by their own headers."""
    archive, found = npz._archive.one_file(), {}
    index = archive.read_index()
    for key in filter(is_wanted, npz.files):
        entry = archive.entry(key)
        with archive.explained(key):
            header = index.find(entry.name) or archive.reader.header(entry)[0]
            if header is not None:
                dtype = restored_dtype(header.fresh().dtype, parse_attrs(entry.extra))
                found[key] = header.shape, dtype
    return found


def _is_same(found: Identity, mark: tuple[Any, ...]) -> bool:
    """Whether a file is the one that has this mark, as far as is known without reading it."""
    # Other hosts see another device.
    return found[:-1] == mark[: len(found) - 1]


def read_headers(files: Files, threads: int) -> tuple[Known, dict[int, Exception]]:
    """Read the headers of all files in threads; also return the errors of some, by number.

    Those are not among the files that are known.
    """
    names = [files.path(number) for number in range(len(files.names))]
    errors: dict[int, Exception] = {}
    numbers: dict[int, int] = {}
    by_values: dict[Any, int] = {}
    found: list[Any] = []

    def read(batch: range) -> list[tuple[tuple[Any, ...], Arrays]]:
        rows = []
        for number in batch:
            try:
                rows.append(files.read_arrays(number))
            except (NpzkitError, OSError) as error:
                errors[number] = error
        return rows

    batches = [range(len(names))[start:][:_BATCH] for start in range(0, len(names), _BATCH)]
    for part in run([partial(read, batch) for batch in batches], threads):
        found += part
    marks, kind_of = [], []
    for mark, arrays in found:
        number = numbers.get(id(arrays))
        if number is None:
            number = by_values.setdefault(tuple(arrays.items()), len(by_values))
            numbers[id(arrays)] = number
        marks.append(mark)
        kind_of.append(number)
    left_out = {names[number]: str(errors[number]) for number in sorted(errors)}
    kept = [name for number, name in enumerate(names) if number not in errors]
    return Known(kept, marks, list(map(dict, by_values)), kind_of, left_out), errors


def all_named(errors: Mapping[int, Exception], files: Files) -> Exception:
    """Return the error of the first file that cannot be opened, which names the others too."""
    first, *others = sorted(errors)
    error = errors[first]
    if not others:
        return error
    shown = some_of(others, lambda number: quoted(files.path(number)))
    text = f"{format_count(len(others), 'other file')} cannot be opened either: {shown}"
    explain(error, text)
    return error
