"""Arrays of archives as arrays of dask.

Owns `from_npz`: its graph, and the name of the array, which is made of CRC-32s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize

from npzkit.dask.archived_array import ArchivedArray
from npzkit.dask.chunking import Chunks, chosen_chunks, chunk_size
from npzkit.dask.joined_array import JoinedArray, grouped_sources
from npzkit.dask.sources import Source, check_alike, find_sources, first_items

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


def _joined(sources: list[Source], chunks: Any) -> da.Array:
    """Return the arrays of several archives as one."""
    check_alike(sources)
    dtype = max((source.array.dtype for source in sources), key=lambda dtype: dtype.itemsize)
    # Where they are in the list also tells them apart.
    numbers = {id(source): number for number, source in enumerate(sources)}
    across = max(sources, key=lambda source: source.array.nbytes).chunks[1:]
    pieces = []
    for group in grouped_sources(sources, chunk_size()):
        array = JoinedArray([source.array for source in group], dtype)
        rows = group[0].chunks[0] if len(group) == 1 else (array.shape[0],)
        identity = [(source.identity, numbers[id(source)]) for source in group]
        pieces.append(_array(array, (rows, *across), identity))
    found: da.Array = da.concatenate(pieces)
    if chunks is not None:
        found = found.rechunk(chosen_chunks(chunks, found.chunks, dtype))
    return found


def _array(array: ArchivedArray | JoinedArray, chunks: Chunks, identity: Any) -> da.Array:
    found: da.Array = da.from_array(
        array, chunks=chunks, name=f"from-npz-{tokenize(identity, array.dtype, chunks)}",
        inline_array=True, asarray=True, meta=np.empty((0,) * array.ndim, array.dtype),
    )  # fmt: skip
    return found
