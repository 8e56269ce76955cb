"""Arrays of dask as a sharded archive.

Owns `to_npz`: what it refuses, the graph that writes, and what its tasks do. A task may run
several times: each run writes a shard of its own, under a new name, and returns the shard's
record. Shards whose records do not reach the last task are in no index, and are removed by
it.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef

from npzkit.codecs.coding import CHUNK_SIZE, check_coding
from npzkit.datasets.shard_names import ShardRecord, new_attempt, new_writer, shard_name
from npzkit.datasets.sharding import (
    NAME_A_FOLDER,
    ShardPart,
    check_own_folder,
    commit_index,
    parse_size,
    place_of,
    write_shard,
)
from npzkit.errors import UnsupportedError
from npzkit.files.threads import grouped
from npzkit.files.urls import Location, find_location
from npzkit.members.keys import check_key
from npzkit.members.metadata import as_read, check_attrs_by_key
from npzkit.stores.objects import LocalFolder, StorePrefix

if TYPE_CHECKING:
    from npzkit.typing import Compression


_BLOCKS_COUNT = 256
"""Most blocks of a shard, so that a task does not wait for thousands."""


class Block(NamedTuple):
    """A block of an array of dask, and where it belongs.

    Attributes
    ----------
    key : str
        Of the array in the archive.
    offset, shape, global_shape : tuple of int
    dtype : numpy.dtype
    """

    key: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Destination(NamedTuple):
    """Where shards are written, and how.

    Attributes
    ----------
    place : LocalFolder or StorePrefix
    attempt : str
    options : dict
        Of `npzkit.NpzWriter`.
    """

    place: LocalFolder | StorePrefix
    attempt: str
    options: dict[str, Any]


def write_blocks(
    destination: Destination, blocks: Sequence[Block], arrays: Sequence[Any]
) -> ShardRecord:
    """Write computed blocks to a shard, and return its record."""
    place, attempt, options = destination
    place.begin_writing()
    parts = [_part(block, array) for block, array in zip(blocks, arrays, strict=True)]
    return write_shard(place, shard_name(attempt, new_writer(), 0), parts, **options)


def _part(block: Block, array: Any) -> ShardPart:
    key, offset, shape, global_shape, dtype = block
    if isinstance(array, np.ma.MaskedArray):
        raise masked(key)
    array = np.asarray(array)
    if array.shape != shape:
        raise ValueError(
            f"the block of {key!r} at {offset} has the shape {array.shape}, but the array of dask "
            f"says {shape}; give map_blocks(..., chunks=) the shapes that its function returns"
        )
    if array.dtype != dtype:
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise TypeError(
                f"the block of {key!r} at {offset} has the dtype {array.dtype}, but the array of "
                f"dask says {dtype}; give map_blocks(..., dtype=) what its function returns"
            )
        array = array.astype(dtype)
    if shape == global_shape:
        return ShardPart(key, array)
    return ShardPart(key, array, offset, global_shape)


def masked(key: str) -> UnsupportedError:
    """Return the error for an array with a mask."""
    return UnsupportedError(
        "masked arrays of dask cannot be saved", key=key,
        remedy="Save data and mask as two arrays: dask.array.ma.getdata(x) and getmaskarray(x).",
    )  # fmt: skip


def commit_shards(
    destination: Destination,
    metadata: Mapping[str, Any],
    attrs: Mapping[str, Mapping[str, Any]],
    records: list[ShardRecord],
) -> None:
    """Make the shards that were written the contents of the archive."""
    place, attempt, options = destination
    place.begin_writing()
    commit_index(place, records, metadata, attempt=attempt, attrs=attrs, durable=options["durable"])


def to_npz(
    url: Any,
    arrays: Mapping[str, Any],
    *,
    compute: bool = True,
    metadata: Mapping[str, Any] | None = None,
    attrs: Mapping[str, Mapping[str, Any]] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    compression: Compression = "stored",
    level: int | None = None,
    chunk_size: int = CHUNK_SIZE,
    seekable: bool = True,
    shard_size: int | str = "128MiB",
    durable: bool = False,
) -> Delayed | None:
    """Save arrays of dask as a sharded archive: a folder of ``.npz`` files.

    Each task writes one file, and the last one writes ``index.npz``. Only then
    is the archive there, in place of what the folder had before. If anything
    fails, the old archive stays as it was. Tasks may be repeated, and workers
    may be lost. Workers need nothing in common but the folder.

    Parameters
    ----------
    url : path or URL
        Of the folder, which is made if necessary. All workers must reach it, so it
        cannot be a file object, as for `npzkit.xarray.to_npz`, which writes one file.
    arrays : mapping of str to dask.array.Array
        Computed together, so that what they have in common is computed once.
    compute : bool, default True
        Whether to write now.
    metadata : mapping, optional
        Of the archive, as in `npzkit.NpzWriter`.
    attrs : mapping of str to mapping, optional
        Attributes by key.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`. The graph contains them, also
        secret ones.
    compression, level, chunk_size, seekable
        As in `npzkit.NpzWriter`.
    shard_size : int or str, default "128MiB"
        Small chunks that follow each other are written to one file, up to this
        many bytes and 256 chunks. A larger chunk has a file of its own.
    durable : bool, default False
        Whether each file waits for the disk. The index of an archive that
        replaces another one always does.

    Returns
    -------
    dask.delayed.Delayed or None
        With ``compute=False``, what writes the archive when it is computed.

    Raises
    ------
    UnsupportedError
        The URL ends in ``.npz`` or cannot be written to; an array has chunks of
        unknown size, Python objects or a mask.
    UnsafeNameError
        A key is not safe.
    FileExistsError
        The folder has other ``.npz`` files, and is no sharded archive.
    ValueError, TypeError
        Bad compression, level, metadata or attributes.
    OSError, NpzkitError
        Of a task, if it fails.

    Notes
    -----
    A file of a lost worker is removed by the last task. If the last task is not
    reached, the files that were written are removed by a later call that writes
    to the folder, once they are a day older than the new ones.

    Examples
    --------
    >>> import dask.array as da, npzkit.dask
    >>> x = da.arange(10, chunks=5)
    >>> saving = npzkit.dask.to_npz("memory://doctest/out", {"x": x, "y": x * x}, compute=False)
    >>> saving.compute()
    >>> npzkit.open("memory://doctest/out").files
    ['x', 'y']
    """
    if not isinstance(arrays, Mapping):
        raise TypeError(
            f"arrays must be a mapping, such as {{'x': x}}, not {type(arrays).__name__}"
        )
    check_coding(compression, level, chunk_size, seekable)
    options = {
        "compression": compression, "level": level, "chunk_size": chunk_size,
        "seekable": seekable, "durable": durable,
    }  # fmt: skip
    destination = Destination(_place(url, storage_options), new_attempt(), options)
    checked = {key: _checked(key, value) for key, value in arrays.items()}
    check_attrs_by_key(attrs, checked)
    plain_attrs = {key: as_read(each) for key, each in (attrs or {}).items()}
    saving = _graph(
        destination, checked, as_read(metadata or {}), plain_attrs, parse_size(shard_size)
    )
    if not compute:
        return saving
    saving.compute()
    return None


def _place(url: Any, storage_options: Mapping[str, Any] | None) -> Any:
    if not isinstance(url, (str, os.PathLike)):
        raise TypeError(f"url must be the path or the URL of a folder, not {type(url).__name__}")
    found = find_location(url, storage_options)
    name = found.url if isinstance(found, Location) else os.fsdecode(found)
    if name.lower().endswith(".npz"):
        raise UnsupportedError(
            "the tasks of dask cannot write to one file", path=name,
            remedy=NAME_A_FOLDER,
        )  # fmt: skip
    place = place_of(url, storage_options)
    if isinstance(place, StorePrefix):
        # Refuses web servers. A local folder may be one that only workers have.
        place.begin_writing()
    check_own_folder(place)
    return place


def _checked(key: str, value: Any) -> da.Array:
    """Return an array that can be saved."""
    check_key(key)
    array: da.Array = da.asanyarray(value)
    if any(map(math.isnan, array.shape)):
        raise UnsupportedError(
            "the sizes of the chunks are not known", key=key, found=f"shape {array.shape}",
            remedy="Compute them first: x.compute_chunk_sizes().",
        )  # fmt: skip
    if array.dtype.hasobject:
        raise UnsupportedError(
            "Python objects cannot be saved by tasks", key=key, found=f"dtype {array.dtype}",
            remedy="Convert the array: x.astype('U20') for text.",
        )  # fmt: skip
    if isinstance(array._meta, np.ma.MaskedArray):
        raise masked(key)
    return array


# -- the graph ----------------------------------------------------------------


def _graph(
    destination: Destination,
    arrays: Mapping[str, da.Array],
    metadata: Mapping[str, Any],
    attrs: Mapping[str, Mapping[str, Any]],
    shard_size: int,
) -> Delayed:
    """Return a graph of one task per shard, and one that commits them."""
    writing, last = (f"to-npz-{what}-{destination.attempt}" for what in ("shard", "index"))
    refs = dict(itertools.chain.from_iterable(map(_blocks, arrays, arrays.values())))
    tasks: dict[Any, Task] = {}
    for number, group in enumerate(grouped(refs, attrgetter("nbytes"), shard_size, _BLOCKS_COUNT)):
        name, blocks = (writing, number), List(*(refs[block] for block in group))
        tasks[name] = Task(name, write_blocks, destination, group, blocks)
    records = List(*map(TaskRef, tasks))
    tasks[last] = Task(last, commit_shards, destination, metadata, attrs, records)
    collections: list[Any] = list(arrays.values())
    graph = HighLevelGraph.from_collections(last, tasks, dependencies=collections)
    # Together with the tasks of the arrays, so that one task computes a block and writes it.
    optimized = da.Array.__dask_optimize__(graph, [last])
    return Delayed(last, HighLevelGraph.from_collections(last, optimized))


def _blocks(key: str, array: da.Array) -> Iterator[tuple[Block, TaskRef]]:
    """Yield each block of an array that has items, and its task; of an empty array, the first."""
    chunks = [list(map(int, lengths)) for lengths in array.chunks]
    starts = [[0, *itertools.accumulate(lengths)] for lengths in chunks]
    global_shape, dtype = tuple(map(sum, chunks)), array.dtype
    for at in np.ndindex(*array.numblocks):
        offset = tuple(start[index] for start, index in zip(starts, at, strict=True))
        shape = tuple(lengths[index] for lengths, index in zip(chunks, at, strict=True))
        if 0 in shape and (0 not in global_shape or any(at)):
            continue
        block = Block(key, offset, shape, global_shape, dtype)
        yield block, TaskRef((array.name, *at))
