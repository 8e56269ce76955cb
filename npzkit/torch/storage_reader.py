"""Loading by `torch.distributed.checkpoint`: what its planners ask for, read from an archive.

Guarantees that a process reads the bytes of its own boxes only, directly into its tensors, and
that a part which is read completely is compared with its CRC-32.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from npzkit.archive.lazyarray import LazyArray
from npzkit.archive.npzfile import NpzFile
from npzkit.datasets.opening import open as open_archive
from npzkit.datasets.parted_array import read_piece
from npzkit.datasets.sharded_array import ShardedArray
from npzkit.datasets.shardedfile import ShardedFile
from npzkit.errors import ClosedArchiveError, NpzkitError, TreeMismatchError
from npzkit.files.threads import run
from npzkit.limits import Limits
from npzkit.torch.description import ENTRY, Item, metadata_of, parse_items
from npzkit.torch.storage import NpzStorage
from npzkit.trees.containers import decode_value
from npzkit.trees.frameworks import from_array, view_of

_LARGE_SIZE = 1 << 20
"""Bytes of a tensor that is read by a thread of its own."""


class NpzStorageReader(NpzStorage, StorageReader):
    """Read checkpoints for ``dcp.load``, on any number of processes.

    Each process reads the bytes of its own part of each tensor, directly into the
    tensor's memory. A tensor on another device is read into memory of the host first.

    Parameters
    ----------
    path : path or URL
        The folder of a checkpoint. Archives that PyTorch did not make can be read
        too, sharded or in one file: the names of the tensors are the archive's keys.
    verify : bool, default True
        Compare what is read with CRC-32s. If a process reads only some of a part,
        because other processes read the rest, those of the chunks that it needs are
        compared, where the checkpoint has them. ``npzkit.verify(path)`` checks everything.
    threads : int, optional
        Number of threads of this process. By default the processors of the machine
        are shared out among the processes that ``torchrun`` started on it.
    limits : Limits, optional
        Upper bounds on sizes and counts; see `npzkit.open`.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Notes
    -----
    Values that are not tensors are made by npzkit, without pickle. PyTorch's planner
    takes them as a pickle in memory, never from the file. Tensors within them, such as
    those of a tuple, come back on the CPU.

    Examples
    --------
    >>> import tempfile, torch, npzkit
    >>> import torch.distributed.checkpoint as dcp
    >>> path = tempfile.mkdtemp() + "/arrays.npz"
    >>> npzkit.save(path, {"weight": torch.ones(2, 3)})
    >>> state = {"weight": torch.zeros(2, 3)}
    >>> dcp.load(state, storage_reader=npzkit.torch.NpzStorageReader(path), no_dist=True)
    >>> state["weight"].sum()
    tensor(6.)
    """

    def __init__(
        self,
        path: Any,
        *,
        verify: bool = True,
        threads: int | None = None,
        limits: Limits | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(path, threads, storage_options)
        self._verify, self._limits = verify, limits
        self._npz: NpzFile | None = None
        self._items: dict[str, Item] = {}
        self._name = ""
        self.reset()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Prepare for another load, from `checkpoint_id` if it is given."""
        self._close()
        self._load_id = str(uuid4())
        if checkpoint_id:
            self._path = checkpoint_id

    # -- in the order of PyTorch's calls ------------------------------------

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Open the checkpoint, and return what planners need to know of it.

        With `rank` among `kwargs`, it is that of one rank which saved without the
        others.
        """
        self._close()
        rank = kwargs.get("rank")
        folder = self._folder(rank)
        if rank is None:
            npz = open_archive(
                self._path, verify=self._verify, limits=self._limits,
                storage_options=self._storage_options,
            )  # fmt: skip
        else:
            npz = ShardedFile(folder, verify=self._verify, limits=self._limits)
        npz._closes_silently = True
        # Without secrets.
        self._npz, self._name = npz, str(folder)
        try:
            self._items = parse_items(npz)
            metadata = metadata_of(npz.metadata.get(ENTRY), self._items)
        except NpzkitError as error:
            self._close()
            raise error.locate(path=self._name) from error.__cause__
        metadata.storage_meta = StorageMeta(self._name, load_id=self._load_id)
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing: the archive is open."""

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan asks for, check it, and close the checkpoint.

        Raises
        ------
        NpzkitError
            Data is damaged, or the checkpoint was replaced since the load began.
        TreeMismatchError
            A tensor has another shape than the planner said.
        """
        npz = self._npz
        if npz is None:
            raise ClosedArchiveError(
                "the checkpoint is not open", remedy="Call read_metadata first, as dcp.load does."
            )
        try:
            self._read_values(npz, plan, planner)
            self._read_tensors(plan, planner)
        except NpzkitError as error:
            raise error.locate(path=self._name) from error.__cause__
        finally:
            self._close()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _close(self) -> None:
        npz, self._npz = self._npz, None
        if npz is not None:
            npz.close()

    # -- values -------------------------------------------------------------

    def _read_values(self, npz: NpzFile, plan: LoadPlan, planner: LoadPlanner) -> None:
        # Optimizers have thousands of values, of which most are the same.
        known: dict[str, bytes] = {}
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                name = item.storage_index.fqn
                note = self._items[name].note
                text = json.dumps(note)
                if text not in known:
                    known[text] = _pickled(npz, name, note)
                planner.load_bytes(item, io.BytesIO(known[text]))

    # -- tensors ------------------------------------------------------------

    def _read_tensors(self, plan: LoadPlan, planner: LoadPlanner) -> None:
        pairs = [
            (item, planner.resolve_tensor(item).detach())
            for item in plan.items
            if item.type == LoadItemType.TENSOR
        ]
        large = [pair for pair in pairs if pair[1].nbytes >= _LARGE_SIZE]
        small = [pair for pair in pairs if pair[1].nbytes < _LARGE_SIZE]
        # Threads share tensors, or the bytes of one. Small ones are read by one thread, because
        # most of their time is Python, where threads wait for each other.
        inner = max(self._threads // max(len(large), 1), 1)
        tasks = [partial(self._fill, *pair, inner) for pair in large]
        if small:
            tasks.append(partial(self._fill_all, small))
        run(tasks, self._threads)
        for item, target in pairs:
            planner.commit_tensor(item, target)

    def _fill_all(self, pairs: list[tuple[ReadItem, torch.Tensor]]) -> None:
        for pair in pairs:
            self._fill(*pair, 1)

    def _fill(self, item: ReadItem, target: torch.Tensor, threads: int) -> None:
        """Fill a tensor with a box of an array."""
        name = item.storage_index.fqn
        shape: tuple[int, ...] = item.lengths
        if target.size() != shape:
            raise TreeMismatchError(
                "a tensor has another shape than the part that is loaded into it", key=name,
                found=tuple(target.size()), expected=tuple(shape),
            )  # fmt: skip
        array, special, _ = self._items[name]
        assert array is not None  # noqa: S101 - its metadata says so
        begin = item.storage_index.offset or (0,) * len(shape)
        offset = [start + inner for start, inner in zip(begin, item.storage_offsets, strict=True)]
        if special == "complex32":
            offset, shape = [*offset, 0], (*shape, 2)
        dtype = array.dtype
        out = view_of(target)
        if out is not None and out.dtype == dtype and out.shape == shape:
            read_box(array, offset, out, verify=self._verify, threads=threads)
            torch.autograd.graph.increment_version(target)
            return
        copy = np.empty(shape, dtype)
        read_box(array, offset, copy, verify=self._verify, threads=threads)
        with torch.no_grad():
            target.copy_(from_array(copy, special))


def _pickled(npz: NpzFile, name: str, note: Any) -> bytes:
    """Return a value as planners take it."""
    try:
        value = decode_value(note, npz.__getitem__, from_array)
    except NpzkitError as error:
        raise error.locate(key=name) from error.__cause__
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


# -- boxes of arrays --------------------------------------------------------


def read_box(
    array: LazyArray,
    offset: Sequence[int],
    out: np.ndarray[Any, Any],
    *,
    verify: bool,
    threads: int,
) -> None:
    """Fill `out` with the items of an array from `offset` on.

    Parameters
    ----------
    array : LazyArray
        Of an archive in one file, or in many.
    offset : sequence of int
        Where the box begins, along each axis.
    out : numpy.ndarray
        Of the array's dtype. Items are read directly into it if its memory is like that
        of the part.
    verify : bool
        Compare the CRC-32 of parts that are read completely.
    threads : int
        For one part.
    """
    if not out.size:
        if isinstance(array, ShardedArray):
            array._shards.prove_empty(array._number)
        return
    box = tuple(range(start, start + n) for start, n in zip(offset, out.shape, strict=True))
    if not isinstance(array, ShardedArray):
        read_piece(array, box, out, verify=verify, threads=threads)
        return
    for part, positions, at in array._pieces(box):
        # With the Ellipsis, a view also of an array without dimensions.
        place: tuple[Any, ...] = (*at, ...)
        read_piece(array._part(part), positions, out[place], verify=verify, threads=threads)
