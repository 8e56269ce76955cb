"""Saving by `torch.distributed.checkpoint`: each rank writes shards, the coordinator commits.

Owns `NpzStorageWriter`: the order of its calls, what travels between the ranks, and which
items share a shard.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import math
import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from npzkit.codecs.coding import CHUNK_SIZE, check_coding
from npzkit.datasets import INDEX_NAME
from npzkit.datasets.shard_names import ShardRecord, attempt_of, new_attempt, new_writer, shard_name
from npzkit.datasets.sharding import ShardPart, commit_index, parse_size, place_of, write_shard
from npzkit.errors import NpzkitError, TreeMismatchError, UnsupportedError
from npzkit.files.threads import run
from npzkit.members.metadata import format_metadata
from npzkit.members.tensors import special_dtype, to_array
from npzkit.stores.objects import LocalFolder, StorePrefix, is_temporary
from npzkit.torch.description import ENTRY, format_entry, key_for
from npzkit.torch.storage import NpzStorage
from npzkit.trees.containers import encode_value

if TYPE_CHECKING:
    from npzkit.typing import Compression


class _Attempt(NamedTuple):
    """What the coordinator tells the ranks, in ``SavePlan.storage_data``."""

    name: str


class _StoredShard(NamedTuple):
    """What a rank tells the coordinator, in ``WriteResult.storage_data``.

    Attributes
    ----------
    note : object
        Of a value.
    special : str or None
        The dtype of a tensor whose array has another one.
    record : ShardRecord or None
        Of the shard, with the first of its items.
    """

    note: Any = None
    special: str | None = None
    record: ShardRecord | None = None


class NpzStorageWriter(NpzStorage, StorageWriter):
    """Write checkpoints for ``dcp.save`` and ``dcp.async_save``.

    The checkpoint is a sharded archive: each process writes its part of the tensors to
    a ``.npz`` file of its own, and then one process writes the index. Until that is
    done, the folder is the checkpoint that it was before, also if a process is killed.
    `npzkit.open` reads the folder, and `numpy.load` its files. Nothing is pickled.

    Parameters
    ----------
    path : path or URL
        The folder. It is made if necessary. ``dcp.save(..., checkpoint_id=path)``
        names another one.
    metadata : mapping, optional
        Of the archive: ``npzkit.open(path).metadata``. That of the coordinator counts.
    compression, level, chunk_size
        As in `npzkit.NpzWriter`. Compressed tensors can be loaded by any number of
        processes too.
    shard_size : int or str, default "5GB"
        A process writes several files if its tensors have more bytes than this. A
        tensor, or a process's part of it, is in one file.
    threads : int, optional
        Number of threads of this process. By default the processors of the machine
        are shared out among the processes that ``torchrun`` started on it.
    durable : bool, default True
        Wait until everything is on the disk.
    overwrite : bool, default True
        Whether a checkpoint in the folder may be replaced.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Notes
    -----
    One job may save to a folder at a time. A commit removes the files of the checkpoint
    that it replaces, and those that interrupted saves have left.

    The key of a tensor is its name in the state dict, such as ``model.layer.weight``.
    Tensors that share memory are saved once for each of their names. Values that are
    not tensors may be None, numbers, strings, bytes, dates, dtypes, NumPy's arrays and
    scalars, and lists, tuples, namedtuples, sets and dicts of all these and of tensors.
    Others raise `PickleRefusedError` or `UnsupportedError`, which names the key.

    ``dcp.async_save`` copies the state dict before it returns, by PyTorch's
    ``DefaultStager`` unless you pass another one.

    Examples
    --------
    >>> import tempfile, torch, npzkit
    >>> import torch.distributed.checkpoint as dcp
    >>> folder = tempfile.mkdtemp()
    >>> writer = npzkit.torch.NpzStorageWriter(folder, metadata={"step": 7})
    >>> _ = dcp.save({"weight": torch.ones(2)}, storage_writer=writer, no_dist=True)
    >>> npz = npzkit.open(folder)
    >>> npz["weight"], npz.metadata["step"]
    (array([1., 1.], dtype=float32), 7)
    """

    def __init__(
        self,
        path: Any,
        *,
        metadata: Mapping[str, Any] | None = None,
        compression: Compression = "stored",
        level: int | None = None,
        chunk_size: int = CHUNK_SIZE,
        shard_size: int | str = "5GB",
        threads: int | None = None,
        durable: bool = True,
        overwrite: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(path, threads, storage_options)
        check_coding(compression, level, chunk_size, True)
        format_metadata(metadata or {})
        self._metadata = dict(metadata or {})
        self._shard_size = parse_size(shard_size)
        self._durable, self._overwrite = durable, overwrite
        self._coding: dict[str, Any] = {
            "compression": compression, "level": level, "chunk_size": chunk_size
        }  # fmt: skip
        self._rank: int | None = None
        self.reset()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Prepare for another save, to `checkpoint_id` if it is given."""
        if checkpoint_id:
            self._path = checkpoint_id
        self._save_id = self._attempt = new_attempt()
        self._leftovers: list[str] = []

    def storage_meta(self) -> StorageMeta | None:
        """Return the folder, and what tells this save from others."""
        return StorageMeta(self._place().name, save_id=self._save_id)

    def _place(self) -> LocalFolder | StorePrefix:
        return place_of(self._folder(self._rank))

    # -- in the order of PyTorch's calls ------------------------------------

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begin a save. Each process without collectives saves to a folder of its own."""
        self._attempt = new_attempt()
        self._rank = None if kwargs.get("use_collectives", True) else kwargs.get("rank")

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Make the folder, and return plans with the name of the save.

        Raises
        ------
        FileExistsError
            There is a checkpoint, and `overwrite` is False.
        """
        place = self._place()
        place.begin_writing()
        if not self._overwrite and INDEX_NAME in place.listed():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), place.name)
        # None of the ranks has begun to write: what is there does not count after the commit.
        self._leftovers = [
            name for name in place.listed() if is_temporary(name) or attempt_of(name)
        ]
        told = _Attempt(self._attempt)
        return [dataclasses.replace(plan, storage_data=told) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the items of a plan to shards, which do not count before `finish`.

        Raises
        ------
        UnsupportedError
            A value or a tensor cannot be saved; the error names its key.
        OSError
            A file cannot be written. What was written is removed.
        """
        place, writer = self._place(), new_writer()
        groups = _grouped(plan.items, self._shard_size)
        told = plan.storage_data
        # A planner that caches its plans may have one that another storage was told.
        attempt = told.name if isinstance(told, _Attempt) else self._attempt
        names = [shard_name(attempt, writer, number) for number in range(len(groups))]
        # Threads share groups, or the bytes of one.
        inner = max(self._threads // max(len(groups), 1), 1)
        tasks = [
            partial(self._write_group, place, name, group, planner, inner)
            for name, group in zip(names, groups, strict=True)
        ]
        try:
            written = run(tasks, self._threads)
        except BaseException:
            for name in names:
                place.remove(name)
            raise
        future: Future[list[WriteResult]] = Future()
        future.set_result([result for results in written for result in results])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index, so that the shards become the checkpoint.

        Raises
        ------
        IndexFormatError
            The parts of a tensor overlap or leave gaps.
        StaleArchiveError, ArchiveLockedError
            Another job saved to the folder at the same time. Its checkpoint is kept.
        """
        found = [(result.index.fqn, result.storage_data) for part in results for result in part]
        records = [stored.record for _, stored in found if stored.record is not None]
        entry = format_entry(
            metadata,
            {name: stored.note for name, stored in found},
            {name: stored.special for name, stored in found if stored.special is not None},
        )
        place = self._place()
        commit_index(
            place, records, {**self._metadata, ENTRY: entry}, attempt=self._attempt,
            durable=self._durable,
        )  # fmt: skip
        for name in set(self._leftovers).difference(record.name for record in records):
            # Others may remove them too.
            with contextlib.suppress(OSError):
                place.remove(name)
        place.end_uploads(lambda name: attempt_of(name) is not None)
        metadata.storage_meta = self.storage_meta()

    # -- one shard ----------------------------------------------------------

    def _write_group(
        self,
        place: LocalFolder | StorePrefix,
        name: str,
        items: list[WriteItem],
        planner: SavePlanner,
        threads: int,
    ) -> list[WriteResult]:
        """Write the items of a group to one shard."""
        results: list[WriteResult] = []

        def parts() -> Any:
            for item in items:
                stored, size, found = _parts_of(item, planner)
                results.append(WriteResult(item.index, size, stored))
                yield from found

        record = write_shard(
            place, name, parts(), threads=threads, durable=self._durable, **self._coding
        )
        if results:
            first = results[0]
            stored = first.storage_data._replace(record=record)
            results[0] = dataclasses.replace(first, storage_data=stored)
        return results


def _parts_of(item: WriteItem, planner: SavePlanner) -> tuple[_StoredShard, int, list[ShardPart]]:
    """Return what the coordinator needs of an item, its size in bytes, and its arrays."""
    name = item.index.fqn
    key = key_for(name)
    try:
        if item.type == WriteItemType.BYTE_IO:
            note, arrays = encode_value(_value_of(item, planner), key)
            size = sum(array.nbytes for array in arrays.values())
            return _StoredShard(note), size, [ShardPart(*pair) for pair in arrays.items()]
        tensor = planner.resolve_data(item)
        array, special = to_array(tensor), special_dtype(tensor)
    except NpzkitError as error:
        raise error.locate(key=name) from error.__cause__
    part = _placed(item, key, array, is_paired=special == ("complex32",))
    return _StoredShard(special=special[0] if special else None), array.nbytes, [part]


def _value_of(item: WriteItem, planner: SavePlanner) -> Any:
    """Return a value itself: `resolve_data` would pickle it."""
    look_up = getattr(planner, "lookup_object", None)
    if look_up is None:
        raise UnsupportedError(
            "this planner gives values as pickles only", key=item.index.fqn,
            found=type(planner).__name__,
            remedy="Give it a method lookup_object(index), as DefaultSavePlanner has.",
        )  # fmt: skip
    return look_up(item.index)


def _placed(item: WriteItem, key: str, array: Any, *, is_paired: bool) -> ShardPart:
    """Return the part of a tensor, or the complete one, that an item is.

    If `is_paired`, one more axis of the array has the real and the imaginary part.
    """
    data = item.tensor_data
    assert data is not None  # noqa: S101 - PyTorch's promise for tensors
    shape, size, offset = tuple(data.size), tuple(data.chunk.sizes), tuple(data.chunk.offsets)
    found = array.shape[:-1] if is_paired else array.shape
    if found != size:
        raise TreeMismatchError(
            "a tensor has another shape than the planner said", key=item.index.fqn,
            found=found, expected=size,
        )  # fmt: skip
    if size == shape:
        return ShardPart(key, array)
    if is_paired:
        offset, shape = (*offset, 0), (*shape, 2)
    return ShardPart(key, array, offset, shape)


def _grouped(items: list[WriteItem], shard_size: int) -> list[list[WriteItem]]:
    """Return the items of each shard, in their order."""
    sizes = list(map(_size_of, items))
    total = sum(sizes)
    count = max(math.ceil(total / shard_size), 1)
    bound = total / count
    groups: list[list[WriteItem]] = [[]]
    filled = 0
    for item, size in zip(items, sizes, strict=True):
        if groups[-1] and filled + size / 2 > bound * len(groups):
            groups.append([])
        groups[-1].append(item)
        filled += size
    return groups if items else []


def _size_of(item: WriteItem) -> int:
    if item.tensor_data is None:
        return 0
    itemsize: int = item.tensor_data.properties.dtype.itemsize
    return itemsize * int(math.prod(item.tensor_data.chunk.sizes))
