"""What the tasks of `npzkit.dask.to_npz` do, in whichever process they run.

Owns that a task may run several times: each run writes a shard of its own, under a new
name, and returns the shard's record. Shards whose records do not reach the last task are
in no index, and are removed by it. Knows no graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from npzkit.datasets.committing import commit_index
from npzkit.datasets.records import ShardRecord
from npzkit.datasets.shard_names import new_writer, shard_name
from npzkit.datasets.shard_writing import Part, write_shard
from npzkit.errors import UnsupportedError
from npzkit.files.objects import LocalFolder, StorePrefix

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
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size


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


def grouped(blocks: Iterable[Block], size: int) -> Iterator[list[Block]]:
    """Yield the blocks of each shard: one large block, or small ones up to `size` bytes."""
    group: list[Block] = []
    filled = 0
    for block in blocks:
        if group and (filled + block.nbytes > size or len(group) == _BLOCKS_COUNT):
            yield group
            group, filled = [], 0
        group.append(block)
        filled += block.nbytes
    if group:
        yield group


def write_blocks(
    destination: Destination, blocks: Sequence[Block], arrays: Sequence[Any]
) -> ShardRecord:
    """Write computed blocks to a shard, and return its record."""
    place, attempt, options = destination
    place.begin_writing()
    parts = [_part(block, array) for block, array in zip(blocks, arrays, strict=True)]
    return write_shard(place, shard_name(attempt, new_writer(), 0), parts, **options)


def _part(block: Block, array: Any) -> Part:
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
        return Part(key, array)
    return Part(key, array, offset, global_shape)


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
    commit_index(
        place, records, metadata, attempt=attempt, attrs=attrs, durable=options["durable"]
    )  # fmt: skip
