"""Archives written again; of one in many files, few large shards in place of many small ones.

Owns `repack`, which tells the two apart, and decides that an array which has grown by many parts
is one again, with its method of compression.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from npzkit.archive.lazyarray import LazyArray
from npzkit.archive.npzwriter import NpzWriter
from npzkit.codecs.coding import CHUNK_SIZE, LEVELS, METHOD_NAMES
from npzkit.datasets.added_shards import Base
from npzkit.datasets.opening import open
from npzkit.datasets.shardedfile import ShardedFile
from npzkit.datasets.shardedwriter import ShardedWriter
from npzkit.errors import ArchiveLockedError, StaleArchiveError
from npzkit.files.progress import Meter
from npzkit.files.urls import find_location
from npzkit.maintenance import repack as single

if TYPE_CHECKING:
    from npzkit.typing import ArchiveLike, Progress, Writable


_BLOCK_SIZE = 1 << 25
"""Bytes that are in memory at a time."""
_WRITTEN = {METHOD_NAMES[method] for method in LEVELS}


def repack(
    file: ArchiveLike,
    output: Writable | None = None,
    *,
    compression: str | int | None = None,
    align: int = 64,
    level: int | None = None,
    chunk_size: int = CHUNK_SIZE,
    seekable: bool = True,
    threads: int | None = None,
    durable: bool = False,
    overwrite: bool = False,
    lock_timeout: float | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Rewrite an archive, so that stored arrays are aligned and compressed ones seekable.

    Arrays that any program wrote can then be mapped, or read in parts. Members
    that need no change are copied without inflating them. Keys, their order,
    attributes and metadata stay the same. Dead space is removed.

    Of the folder of a sharded archive, the arrays are written to new shards, few if it has
    grown by many. They replace the old ones: `output` is None. Readers that have it open get
    StaleArchiveError.

    Parameters
    ----------
    file : path, URL, bytes-like, file object or NpzFile
        An archive, or the local folder of a sharded one.
        An `NpzFile` stays open and keeps reading the old file, also if `output` is its
        path, which takes ``overwrite=True``.
    output : path, URL or file object, optional
        None replaces `file`, which must be a path or the URL of a store. The old
        file stays until the new one is complete. Programs that have it open keep
        reading it.
    compression : {None, "stored", "deflated", "zstd"} or int
        The method of all members; None keeps the method of each.
    align : int, default 64
        Alignment of stored arrays, a power of two up to 32768. That of shards is 64.
    level : int, optional
        As in `NpzWriter`, for members that are compressed again.
    chunk_size : int, default 262_144
        As in `NpzWriter`, for members that are compressed again.
    seekable : bool, default True
        Whether to compress members again that have no seek index and more than
        one chunk. If false, they are copied unchanged.
    threads : int, optional
        Number of threads; None uses all processors.
    durable : bool, default False
        Wait until the new file is on disk before it replaces the old one.
    overwrite : bool, default False
        Whether to replace another file that is already at `output`.
    lock_timeout : float, optional
        Seconds to wait if another writer has the replaced file open.
    progress : callable, optional
        Called with the uncompressed bytes done and the total, every few
        megabytes and at the end.
    storage_options : dict, optional
        For the stores of `file` and `output`, if they are URLs; see `npzkit.open`.

    Raises
    ------
    NpzkitError
        The archive, or a member that is written again, is damaged.
        `output` does not change.
    UnsupportedError
        A member is encrypted, or its method is not supported.
    ArchiveLockedError
        Another writer has the replaced file open.
    FileExistsError
        `output` already exists, and `overwrite` is False.
    OSError
        The new file cannot be written. The old one stays.
    ValueError
        An argument is invalid, or `output` is a file object for the same file as
        `file`.
    StaleArchiveError
        `file` is a URL or a sharded archive and is replaced, and another writer replaced it
        meanwhile.

    Warns
    -----
    UserWarning
        A member's name is not usable; the member is copied unchanged.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> old, new = io.BytesIO(), io.BytesIO()
    >>> np.savez_compressed(old, x=np.arange(100_000))
    >>> npzkit.repack(old, new)
    >>> npzkit.open(new).info("x").seekable
    True
    """
    options: dict[str, Any] = {
        "compression": compression, "level": level, "chunk_size": chunk_size,
        "seekable": seekable, "threads": threads, "durable": durable, "progress": progress,
    }  # fmt: skip
    place = find_location(file)
    if output is None and isinstance(place, (str, os.PathLike)) and os.path.isdir(place):
        if (align, overwrite, lock_timeout) != (64, False, None):
            raise ValueError("align, overwrite and lock_timeout are not for sharded archives")
        repack_shards(place, **options)
        return
    single.rewrite(
        file, output, None, align=align, overwrite=overwrite, lock_timeout=lock_timeout,
        storage_options=storage_options, **options,
    )  # fmt: skip


def repack_shards(
    folder: Any, *, progress: Progress | None = None, compression: Any = None, **options: Any
) -> None:
    """Write all arrays of a sharded archive to new shards, which take the place of its old ones.

    `compression` is that of all arrays; by default each keeps its own. `options` are those of
    `ShardedWriter`. Readers that have the archive open get StaleArchiveError, and so does this
    if another writer commits meanwhile: then the archive is that one's.
    """
    # Of another folder, the error says what it may be.
    open(folder).close()
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
            # There may be none.
            writer.commit(writer.close())
        except BaseException as error:
            writer.abort()
            if isinstance(error, (ArchiveLockedError, StaleArchiveError)):
                error.remedy = "Nothing was changed. Repack it again."
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
