"""The arrays of archives that an argument means.

Owns how archives are found and opened, what tells the data of one array from another's,
and that arrays which are to be joined fit each other.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.reopening import Reopened
from npzkit.dask.archived_array import ArchivedArray
from npzkit.dask.chunking import Chunks, natural_chunks
from npzkit.datasets.opening import open as open_archive
from npzkit.datasets.paths import find_files
from npzkit.datasets.shardedfile import ShardedFile
from npzkit.errors import DifferentFilesError
from npzkit.files.threads import run, thread_count
from npzkit.files.urls import Location

_FETCH_COUNT = 16
"""Distant archives that are opened at once."""


class Source(NamedTuple):
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


def find_sources(url: Any, key: str, storage_options: Mapping[str, Any] | None) -> list[Source]:
    """Return the array of a key in each archive that `url` means.

    Parameters
    ----------
    url : path, URL, NpzFile, ShardedFile, or iterable of paths and URLs
        A string with ``*``, ``?`` or ``[`` is a pattern, unless it is a file.
    key : str
    storage_options : mapping, optional
    """
    if isinstance(url, (NpzFile, ShardedFile)):
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


def _opened(file: str | Location, key: str) -> Source:
    if isinstance(file, Location):
        return _source(Reopened(open_archive(file.url, storage_options=file.options)), key)
    return _source(Reopened(open_archive(file)), key)


def _source(archive: Reopened, key: str) -> Source:
    npz: NpzFile | ShardedFile = archive.open()
    lazy, info = npz.lazy(key), npz.info(key)
    parts = npz.parts(key) if isinstance(npz, ShardedFile) else ()
    boxes = ((part.offset, part.shape) for part in parts)
    chunks = natural_chunks(
        lazy.shape, lazy.dtype.itemsize, bool(info.fortran_order), lazy.chunks, boxes
    )
    crcs = tuple(part.crc32 for part in parts) or (info.crc32,)
    identity = crcs, lazy.shape, lazy.dtype, info.fortran_order
    return Source(ArchivedArray(archive, key), chunks, identity)


def first_items(array: ArchivedArray, size: int) -> bytes:
    """Return the bytes of the first items of an array: up to `size` bytes, or one item."""
    count = max(size // max(array.dtype.itemsize, 1), 1)
    index = (slice(0, 1),) * (array.ndim - 1) + (slice(0, count),) * (array.ndim > 0)
    return bytes(np.asarray(array[index]).tobytes())


def check_alike(sources: Sequence[Source]) -> None:
    """Raise DifferentFilesError unless arrays can be joined along their first axis.

    Their lengths may differ, and the widths of strings.
    """
    first = sources[0].array
    if not first.ndim:
        raise ValueError(
            f"the array {first.key!r} of {first.path!r} has no axis along which files can be joined"
        )
    for array, _, _ in sources:
        is_alike = array.dtype == first.dtype or (
            first.dtype.kind in "SU"
            and (array.dtype.kind, array.dtype.byteorder)
            == (first.dtype.kind, first.dtype.byteorder)
        )
        if not is_alike or array.ndim != first.ndim or array.shape[1:] != first.shape[1:]:
            raise DifferentFilesError(
                "the array does not fit that of the first file", path=array.path, key=array.key,
                found=f"{array.dtype} {array.shape}", expected=f"{first.dtype} {first.shape}",
                remedy="Leave the file out.",
            )  # fmt: skip
