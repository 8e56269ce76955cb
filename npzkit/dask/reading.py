"""Arrays of archives as arrays of dask.

Owns `from_npz`: which archives an argument means, and the name of the array, which is made
of the data's CRC-32s.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.reopening import Reopened
from npzkit.dask.archived_array import ArchivedArray
from npzkit.dask.chunking import Chunks, chosen_chunks, natural_chunks
from npzkit.sharding.opening import open as open_archive
from npzkit.sharding.shardedfile import ShardedFile

__all__ = ["from_npz"]

_SAMPLE_SIZE = 4096
_PROVEN_COUNT = 4
"""CRC-32s that tell any two arrays apart."""


def from_npz(
    url: Any,
    key: str,
    chunks: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> da.Array:
    """Return an array of an archive as an array of dask. No data is read now.

    Parameters
    ----------
    url : path, URL, NpzFile or ShardedFile
        An archive: one file, or the folder of a sharded archive. An open archive
        may be closed afterwards. It must have been opened from a path or a URL.
    key : str
    chunks : int, tuple, str or dict, optional
        As of `dask.array.from_array`. By default, chunks are complete parts of
        a sharded archive, or rows of an archive in one file, joined to the size
        of dask's option ``array.chunk-size``, 128 MiB.
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
    >>> npzkit.dask.from_npz("fixtures/numpy_savez.npz", "x", chunks=2)[1:].compute()
    array([1, 2, 3, 4, 5])
    """
    archive = _reopened(url, storage_options)
    array = ArchivedArray(archive, key)
    npz = archive.open()
    chosen = chosen_chunks(chunks, _natural(npz, key), array.dtype)
    name = f"from-npz-{tokenize(_identity(npz, key), chosen)}"
    meta = np.empty((0,) * array.ndim, array.dtype)
    found: da.Array = da.from_array(
        array, chunks=chosen, name=name, inline_array=True, asarray=True, meta=meta
    )
    return found


def _reopened(url: Any, storage_options: Mapping[str, Any] | None) -> Reopened:
    if isinstance(url, (NpzFile, ShardedFile)):
        return Reopened(pickle.loads(pickle.dumps(url)))
    if not isinstance(url, (str, os.PathLike)):
        raise TypeError(f"url must be a path, a URL or an open archive, not {type(url).__name__}")
    return Reopened(open_archive(url, storage_options=storage_options))


def _natural(npz: NpzFile | ShardedFile, key: str) -> Chunks:
    lazy = npz.lazy(key)
    info = npz.info(key)
    parts = npz.parts(key) if isinstance(npz, ShardedFile) else ()
    boxes = ((part.offset, part.shape) for part in parts)
    return natural_chunks(
        lazy.shape, lazy.dtype.itemsize, bool(info.fortran_order), lazy.chunks, boxes
    )


def _identity(npz: NpzFile | ShardedFile, key: str) -> tuple[Any, ...]:
    """Return what tells the data of an array from others.

    Among 10,000 arrays of one shape, two have the same CRC-32 with a probability of 1 %.
    So the first items are added, unless there are the CRC-32s of several parts.
    """
    info, lazy = npz.info(key), npz.lazy(key)
    parts = npz.parts(key) if isinstance(npz, ShardedFile) else ()
    crcs = [part.crc32 for part in parts] or [info.crc32]
    sample = b"" if len(crcs) >= _PROVEN_COUNT or not lazy.size else _first_items(lazy)
    return crcs, sample, lazy.shape, lazy.dtype, info.fortran_order


def _first_items(lazy: Any) -> bytes:
    """Return the bytes of the first row of an array, or of as much of it as is cheap."""
    count = max(_SAMPLE_SIZE // max(lazy.dtype.itemsize, 1), 1)
    axes = len(lazy.shape)
    index = [slice(0, 1)] * axes
    if axes:
        index[0 if lazy._header.fortran_order else axes - 1] = slice(0, count)
    found: bytes = lazy[tuple(index)].tobytes()
    return found
