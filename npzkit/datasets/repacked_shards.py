"""The shards of an archive written again: few large ones, in place of many small ones.

Decides that an array which has grown by many parts is one again, with its method of compression.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from npzkit.archive.lazyarray import LazyArray
from npzkit.archive.npzwriter import NpzWriter
from npzkit.codecs.coding import LEVELS, METHOD_NAMES
from npzkit.datasets.added_shards import Base
from npzkit.datasets.shardedfile import ShardedFile
from npzkit.datasets.shardedwriter import ShardedWriter
from npzkit.files.progress import Meter

if TYPE_CHECKING:
    from npzkit.typing import Progress


_BLOCK_SIZE = 1 << 25
"""Bytes that are in memory at a time."""
_WRITTEN = {METHOD_NAMES[method] for method in LEVELS}


def repack_shards(
    folder: Any, *, progress: Progress | None = None, compression: Any = None, **options: Any
) -> None:
    """Write all arrays of a sharded archive to new shards, which take the place of its old ones.

    `compression` is that of all arrays; by default each keeps its own. `options` are those of
    `ShardedWriter`. Readers that have the archive open get StaleArchiveError, and so does this
    if another writer commits meanwhile: then the archive is that one's.
    """
    with ShardedWriter(folder, **options) as writer:
        # Before the arrays, so that a commit that comes meanwhile is noticed.
        writer._base.before = Base.read(writer._place).before
        with ShardedFile(folder) as npz:
            writer.metadata.update(npz.metadata)
            meter = Meter(progress, npz._archive.nbytes)
            for key in npz:
                coding = compression or _coding_of({part.method for part in npz.parts(key)})
                with writer._open_shard() as shard:
                    _write(shard, key, npz.lazy(key), npz.info(key).attrs, coding, meter)
        # Windows removes no shard that is open.
        try:
            writer.commit()
        except BaseException:
            writer.abort()
            raise
        meter.finish()


def _coding_of(methods: set[str]) -> str:
    """Return the method of an array's parts; if they have several, or one that npzkit only reads,
    the one that each program reads.
    """
    if len(methods) > 1 or not methods <= _WRITTEN:
        return "deflated"
    return min(methods, default="stored")


def _write(
    shard: NpzWriter, key: str, lazy: LazyArray, attrs: Mapping[str, Any], coding: Any, meter: Meter
) -> None:
    """Write an array, of which a block of rows is in memory at a time."""
    if lazy.nbytes <= _BLOCK_SIZE or not lazy.ndim:
        shard.add(key, lazy[...], attrs=attrs, compression=coding)
        meter.add(lazy.nbytes)
        return
    step = max(_BLOCK_SIZE // max(lazy.nbytes // len(lazy), 1), 1)
    with shard.create(key, lazy.shape, lazy.dtype, attrs=attrs, compression=coding) as dst:
        for start in range(0, len(lazy), step):
            rows: np.ndarray[Any, Any] = lazy[start : start + step]
            dst.append(rows)
            meter.add(rows.nbytes)
