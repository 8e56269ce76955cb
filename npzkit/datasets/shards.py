"""The shards of an open archive: opened when they are needed, a few at a time.

Owns which are open, that each is the one that the index names, and that each part that is used
has the CRC-32, the size, the method, the shape and the dtype that the index says.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from npzkit.archive.lazyarray import LazyArray, new_array
from npzkit.archive.npzfile import NpzFile
from npzkit.datasets import INDEX_NAME
from npzkit.datasets.index_format import state_of
from npzkit.datasets.part_checks import missing_shard, prove_part
from npzkit.datasets.reopened import Recent
from npzkit.datasets.shard_names import version_of
from npzkit.datasets.sharding import READ_COUNT, place_of, read_index
from npzkit.errors import (
    ChecksumError,
    FormatError,
    IndexFormatError,
    NpzkitError,
    StaleArchiveError,
    closed_error,
)
from npzkit.files.threads import run
from npzkit.limits import thread_count

_UNPROVEN_SIZE = 1 << 24
"""Bytes that an index may claim before its shards are looked at."""


class OpenShards:
    """The index and the shards of an archive. Threads may share it.

    Parameters
    ----------
    folder, storage_options
        As of `npzkit.ShardedFile`.
    options : dict
        Of `NpzFile`, for each shard.

    Attributes
    ----------
    is_open : bool
    path : str
        Of the folder, for messages.
    index : Index
    state : (int, int)
        Of the index; see `state_of`.
    """

    def __init__(
        self, folder: Any, options: dict[str, Any], storage_options: Mapping[str, Any] | None
    ) -> None:
        self._place, self._options = place_of(folder, storage_options), options
        self.path = self._place.name
        self.index, self.state = read_index(self._place, options["limits"], options["strict"])
        self._shards = Recent(is_local=self._place.is_local)
        self._opened: set[int] = set()
        self.is_open = True

    # -- shards -------------------------------------------------------------

    def shard(self, number: int) -> NpzFile:
        """Return an open shard, which is closed when nobody uses it any more.

        Raises
        ------
        MissingShardError
            It does not exist.
        StaleArchiveError
            It was replaced since the index was written, or the archive was.
        ClosedArchiveError
            The archive is closed.
        """
        self.check_open()
        npz: NpzFile = self._shards.get(number, partial(self._open_shard, number))
        if not self.is_open:
            # Closed meanwhile, by another thread.
            self._shards.clear()
        return npz

    def _open_shard(self, number: int) -> NpzFile:
        row = self.index.shards[number]
        self._place.check_inside(row.name)
        try:
            npz = NpzFile(self._place.file(row.name), **self._options)
        except FileNotFoundError as error:
            gone = missing_shard(row.name).locate(path=self._place.name)
            raise self._explained(gone) from error
        except NpzkitError as error:
            raise self._explained(error) from error
        npz._closes_silently = True
        found = version_of(npz)
        if found != (row.size, row.crc32):
            npz.close()
            raise self._explained(
                StaleArchiveError(
                    f"the shard {row.name!r} was replaced since the index was written",
                    path=self._place.name, found="size {}, CRC-32 {:08x}".format(*found),
                    expected=f"size {row.size}, CRC-32 {row.crc32:08x}",
                    remedy="Restore the file, or write the archive again.", is_damage=True,
                )
            )  # fmt: skip
        self._opened.add(number)
        return npz

    def check_backed(self, parts: Iterable[int]) -> None:
        """Check that the shards of parts exist, as large as the index says."""
        shards = sorted({self.index.shard_of(part) for part in parts} - self._opened)
        tasks = [partial(self.shard, number) for number in shards]
        run(tasks, 1 if self._place.is_local else READ_COUNT)

    def _explained(self, error: NpzkitError) -> NpzkitError:
        """Return the error of an archive that was replaced, if that is the cause."""
        try:
            self.check_unchanged()
        except StaleArchiveError as stale:
            return stale
        except (OSError, NpzkitError):
            pass
        return error

    def check_unchanged(self) -> None:
        """Raise StaleArchiveError if the folder has another index now, or none."""
        # A damaged index is another one.
        with (
            contextlib.suppress(FileNotFoundError, FormatError, ChecksumError),
            NpzFile(self._place.file(INDEX_NAME)) as npz,
        ):
            if state_of(npz) == self.state:
                return
        raise StaleArchiveError(
            "the archive was replaced or removed since it was opened", path=self._place.name,
            remedy="Open it again.",
        )  # fmt: skip

    def check_open(self) -> None:
        """Raise ClosedArchiveError if the archive is closed."""
        if not self.is_open:
            raise closed_error().locate(path=self.path)

    def close(self) -> None:
        """Close all shards. Reads that other threads have begun are completed."""
        self.is_open = False
        self._shards.clear()

    # -- parts --------------------------------------------------------------

    def part(self, number: int, part: int, *, verify: bool = True) -> LazyArray:
        """Return a part of an array as a `LazyArray`, checked to be what the index says."""
        shard = self.shard(self.index.shard_of(part))
        stored_key = self.index.stored_key(number, part)
        prove_part(self.index, number, part, shard, self.path)
        lazy = shard.lazy(stored_key, verify=verify)
        self.check_form(number, self.index.part(number, part).shape, lazy.shape, lazy.dtype)
        return lazy

    def prove_empty(self, number: int, *, verify: bool = False) -> None:
        """Check that an array without items is as its shard has it; others have parts.

        `verify` compares its CRC-32 too, which is that of its header.
        """
        if not self.index.part_numbers(number):
            shard = self.shard(self.index.home(number))
            prove_part(self.index, number, None, shard, self.path)
            if verify:
                shard.read(self.index.stored_key(number, None))

    def check_form(
        self, number: int, shape: tuple[int, ...], found: Any, dtype: np.dtype[Any]
    ) -> None:
        """Check that a part has the shape and the dtype that the index says."""
        expected = self.index.dtype(number)
        if found != shape or dtype != expected:
            raise IndexFormatError(
                "a part is not what the index says", path=self.path, key=self.index.keys[number],
                found=f"{dtype} {found}", expected=f"{expected} {shape}",
                remedy="Write the archive again.",
            )  # fmt: skip

    def allocate(
        self, number: int, shape: tuple[int, ...], parts: Sequence[int]
    ) -> np.ndarray[Any, Any]:
        """Return a new array for what is read of parts, which have enough bytes for it."""
        dtype = self.index.dtype(number)
        order: Any = "F" if self.index.fortran_order(number) else "C"
        if math.prod(shape) * dtype.itemsize > _UNPROVEN_SIZE or not self._place.is_local:
            # Each distant shard is opened once, before threads ask for it.
            self.check_backed(parts)
        try:
            return new_array(shape, dtype, order)
        except NpzkitError as error:
            raise error.locate(path=self.path, key=self.index.keys[number]) from error.__cause__

    def threads_for(self, count: int, threads: int | None = None) -> int:
        """Return the threads for a number of tasks."""
        usual = thread_count(threads)
        return usual if self._place.is_local else max(usual, min(count, READ_COUNT))
