"""Arrays of archives as arrays of dask.

Owns `from_npz`: which archives an argument means, what tells the data of one array from
another's, which archives share a chunk, and the name of the array, which is made of
CRC-32s. A task needs no open file: each process opens the archive when it first reads from
it, keeps it open for the tasks that follow, and refuses one that changed since.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import tokenize

from npzkit.archive.lazyarray import LazyArray
from npzkit.archive.npzfile import NpzFile
from npzkit.dask.chunking import Chunks, chosen_chunks, chunk_size, natural_chunks
from npzkit.datasets.manyfiles import is_alike
from npzkit.datasets.opening import open as open_archive
from npzkit.datasets.parted_array import JoinedLayout, PartedArray, as_index
from npzkit.datasets.paths import find_files
from npzkit.datasets.reopened import Reopened
from npzkit.datasets.shardedfile import ShardedFile
from npzkit.errors import DifferentFilesError, quoted
from npzkit.files.threads import grouped, run
from npzkit.files.urls import Location
from npzkit.limits import thread_count
from npzkit.reading.indexing import Positions, select


class ArchivedArray:
    """An array of an archive, which is read by indexing it. Can be pickled.

    Parameters
    ----------
    archive : Reopened
    key : str

    Attributes
    ----------
    key : str
    path : str or None
        For messages.
    shape : tuple of int
    dtype : numpy.dtype
    ndim, nbytes : int
    """

    def __init__(self, archive: Reopened, key: str) -> None:
        self._archive, self.key, self.path = archive, key, archive.path
        lazy: LazyArray = archive.open().lazy(key)
        self.shape, self.dtype = lazy.shape, lazy.dtype
        self.ndim, self.nbytes = lazy.ndim, lazy.nbytes

    def __getitem__(self, index: Any) -> Any:
        lazy = self._archive.open().lazy(self.key)
        # Reading all of it checks the CRC-32 as well.
        is_all = tuple(map(len, select(index, self.shape).positions)) == self.shape
        return lazy.read()[index] if is_all else lazy[index]

    def __repr__(self) -> str:
        return f"ArchivedArray({self.path!r}, {self.key!r})"


_FETCH_COUNT = 16
"""Distant archives that are opened at once."""


class TaskSource(NamedTuple):
    """An array of an archive.

    Attributes
    ----------
    array : ArchivedArray
    chunks : Chunks
        That are cheap to read.
    identity : tuple
        The CRC-32s of its data, and what they do not cover.
    """

    array: ArchivedArray
    chunks: Chunks
    identity: tuple[Any, ...]


def find_sources(url: Any, key: str, storage_options: Mapping[str, Any] | None) -> list[TaskSource]:
    """Return the array of a key in each archive that `url` means.

    Parameters
    ----------
    url : path, URL, NpzFile, ShardedFile, or iterable of paths and URLs
        A string with ``*``, ``?`` or ``[`` is a pattern, unless it is a file.
    key : str
    storage_options : mapping, optional
    """
    if isinstance(url, NpzFile):
        # The user may close it.
        return [_source(Reopened(pickle.loads(pickle.dumps(url))), key)]
    if isinstance(url, (bytes, Mapping)) or not isinstance(url, (str, os.PathLike, Iterable)):
        raise TypeError(
            f"url must be a path, a URL, a list of them or an open archive, not a "
            f"{type(url).__name__}"
        )
    files = find_files(url, storage_options)
    is_distant = any(isinstance(file, Location) for file in files)
    return run(
        [partial(_opened, file, key) for file in files],
        _FETCH_COUNT if is_distant else thread_count(None),
    )


def _opened(file: str | Location, key: str) -> TaskSource:
    if isinstance(file, Location):
        return _source(Reopened(open_archive(file.url, storage_options=file.options)), key)
    return _source(Reopened(open_archive(file)), key)


def _source(archive: Reopened, key: str) -> TaskSource:
    npz: NpzFile = archive.open()
    lazy, info = npz.lazy(key), npz.info(key)
    parts = npz.parts(key) if isinstance(npz, ShardedFile) else ()
    boxes = ((part.offset, part.shape) for part in parts)
    chunks = natural_chunks(
        lazy.shape, lazy.dtype.itemsize, bool(info.fortran_order), lazy.chunks, boxes
    )
    crcs = tuple(part.crc32 for part in parts) or (info.crc32,)
    identity = crcs, lazy.shape, lazy.dtype, info.fortran_order
    return TaskSource(ArchivedArray(archive, key), chunks, identity)


def first_items(array: ArchivedArray, size: int) -> bytes:
    """Return the bytes of the first items of an array: up to `size` bytes, or one item."""
    count = max(size // max(array.dtype.itemsize, 1), 1)
    index = (slice(0, 1),) * (array.ndim - 1) + (slice(0, count),) * (array.ndim > 0)
    return bytes(np.asarray(array[index]).tobytes())


def check_alike(sources: Sequence[TaskSource]) -> None:
    """Raise DifferentFilesError unless arrays can be joined along their first axis.

    Their lengths may differ, and the widths of strings.
    """
    first = sources[0].array
    if not first.ndim:
        raise ValueError(
            f"the array {first.key!r} of {quoted(str(first.path))} has no axis along which files "
            "can be joined"
        )
    for array, _, _ in sources:
        is_fitting = array.ndim == first.ndim and array.shape[1:] == first.shape[1:]
        if not (is_fitting and is_alike(array.dtype, first.dtype)):
            raise DifferentFilesError(
                "the array does not fit that of the first file", path=array.path, key=array.key,
                found=f"{array.dtype} {array.shape}", expected=f"{first.dtype} {first.shape}",
                remedy="Leave the file out.",
            )  # fmt: skip


_GROUP_COUNT = 16
"""Most archives of a chunk: a task names each."""


class ConcatenatedArray(PartedArray):
    """Arrays of several archives, one after the other. Can be pickled.

    Parameters
    ----------
    arrays : sequence of ArchivedArray
        Alike except for their lengths, and the widths of strings.
    dtype : numpy.dtype
    """

    def __init__(self, arrays: Sequence[ArchivedArray], dtype: np.dtype[Any]) -> None:
        self._arrays = list(arrays)
        starts = np.cumsum([0, *(array.shape[0] for array in arrays)], dtype=np.int64)
        shape = int(starts[-1]), *arrays[0].shape[1:]
        self._layout = JoinedLayout(0, False, starts, shape, dtype)
        self._key, self.attrs = arrays[0].key, MappingProxyType({})
        self._describe(shape, dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._layout.dtype

    def _read_piece(
        self, part: int, positions: tuple[Positions, ...], place: np.ndarray[Any, Any]
    ) -> None:
        place[...] = self._arrays[part][as_index(positions)]

    def __reduce__(self) -> tuple[Any, ...]:
        return ConcatenatedArray, (self._arrays, self.dtype)


_SAMPLE_SIZE = 4096
_PROVEN_COUNT = 4
"""CRC-32s that tell any two arrays apart."""


def from_npz(
    url: Any, key: str, chunks: Any = None, *, storage_options: Mapping[str, Any] | None = None
) -> da.Array:
    """Return an array of an archive as an array of dask. No data is read now.

    Parameters
    ----------
    url : path, URL, NpzFile or ShardedFile; or iterable of paths and URLs
        An archive: one file, or the folder of a sharded archive. An open archive
        may be closed afterwards. It must have been opened from a path or a URL.
        The arrays of several archives are joined along their first axis: those
        of a list, in its order, or of a pattern such as ``"runs/*.npz"``, sorted
        by name, with numbers by their value.
    key : str
    chunks : int, tuple, str or dict, optional
        As of `dask.array.from_array`. By default, chunks are complete parts of
        a sharded archive, or rows of an archive in one file, joined to the size
        of dask's option ``array.chunk-size``, 128 MiB. Up to 16 small archives
        of a list make one chunk.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`. The graph contains them, also
        secret ones.

    Returns
    -------
    dask.array.Array
        Its name is made of the CRC-32s of the data and the chunks: the same
        data has the same name, wherever it is.

    Raises
    ------
    OSError, NpzkitError
        As `npzkit.open`.
    MemberNotFoundError
        The key does not exist.
    UnsupportedError
        It is an array of Python objects.
    DifferentFilesError
        The arrays of several archives differ in dtype, or in shape apart from
        their lengths.
    StaleArchiveError
        Raised when the array is computed, if the archive was replaced.

    Notes
    -----
    Each process opens the archive when it reads its first chunk, and keeps it
    open. A slice reads only its bytes. A chunk that is a complete array, or a
    complete part of a sharded archive, is checked by its CRC-32.

    Examples
    --------
    >>> import npzkit.dask
    >>> npzkit.dask.from_npz("fixtures/numpy_savez.npz", "x", chunks=2)[1:, 0].compute()
    array([3, 6, 9])
    """
    sources = find_sources(url, key, storage_options)
    if len(sources) > 1:
        return _joined(sources, chunks)
    array, natural, identity = sources[0]
    chosen = chosen_chunks(chunks, natural, array.dtype)
    # Among 10,000 arrays of one shape, two have the same CRC-32 with a probability of 1 %.
    if len(identity[0]) < _PROVEN_COUNT and array.nbytes:
        identity = (*identity, first_items(array, _SAMPLE_SIZE))
    return _array(array, chosen, identity)


def _joined(sources: list[TaskSource], chunks: Any) -> da.Array:
    """Return the arrays of several archives as one."""
    check_alike(sources)
    dtype = max((source.array.dtype for source in sources), key=lambda dtype: dtype.itemsize)
    # Where they are in the list also tells them apart.
    numbers = {id(source): number for number, source in enumerate(sources)}
    across = max(sources, key=lambda source: source.array.nbytes).chunks[1:]
    pieces = []
    for group in grouped(sources, attrgetter("array.nbytes"), chunk_size(), _GROUP_COUNT):
        array = ConcatenatedArray([source.array for source in group], dtype)
        rows = group[0].chunks[0] if len(group) == 1 else (array.shape[0],)
        identity = [(source.identity, numbers[id(source)]) for source in group]
        pieces.append(_array(array, (rows, *across), identity))
    found: da.Array = da.concatenate(pieces)
    if chunks is not None:
        found = found.rechunk(chosen_chunks(chunks, found.chunks, dtype))
    return found


def _array(array: ArchivedArray | ConcatenatedArray, chunks: Chunks, identity: Any) -> da.Array:
    found: da.Array = da.from_array(
        array, chunks=chunks, name=f"from-npz-{tokenize(identity, array.dtype, chunks)}",
        inline_array=True, asarray=True, meta=np.empty((0,) * array.ndim, array.dtype),
    )  # fmt: skip
    return found
