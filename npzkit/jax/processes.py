"""Many processes of JAX that save, or load, as one.

Owns how they agree, and which of them saves which part: the one whose device has the first
replica; and what is not spread, the first process. Each writes shards of its own,
and the first one commits them, as dask's workers and PyTorch's ranks do. What they tell each
other goes through the service that `jax.distributed.initialize` starts, by its barriers and
its store of keys and values. Devices take no part, so that a thread may save while they compute.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

# No public function of JAX exchanges text without the devices, which may compute meanwhile.
from jax._src import distributed

from npzkit import errors
from npzkit.datasets.shardedwriter import ShardedWriter
from npzkit.datasets.sharding import NAME_A_FOLDER, ShardPart
from npzkit.errors import NpzkitError, UnsupportedError, shown_value
from npzkit.files.urls import Location, find_location
from npzkit.jax.agreement import Agreement
from npzkit.members.tensors import as_array, is_spread

T = TypeVar("T")
Fill = Callable[[ShardedWriter], list[str]]
"""Writes what a process saves, and returns the names of the shards of all."""

_CALLS = itertools.count()
"""Each process makes the same calls in the same order, so these numbers name them."""
_PATIENCE = 3600
"""Seconds that a process waits for the others. JAX ends it sooner if one of them dies."""


class Processes(Agreement):
    """The processes of a job in one call, which each of them makes.

    If the work of one process fails, all of them raise an error: that one its own, and the others
    one that names it. The call is over then.
    """

    is_joint = True

    def __init__(self) -> None:
        service = distributed.global_state
        self._client: Any = service.client
        if self._client is None:
            raise UnsupportedError(
                "arrays are spread over processes that do not know each other",
                remedy="Call jax.distributed.initialize() when the program starts.",
            )
        self._number: int = service.process_id
        self._name, self._counts = f"npzkit/{next(_CALLS)}", itertools.count()
        self._has_failed = False

    @property
    def is_first(self) -> bool:
        """Whether this process commits for all."""
        return self._number == 0

    # -- to agree -------------------------------------------------------------

    def first(self, work: Callable[[], Any]) -> Any:
        """Return what the work of the first process returns, as JSON has it."""
        return self.each(work if self.is_first else _nothing)[0]

    def own(self, work: Callable[[], T]) -> T:
        """Return what this process's work returns, once that of all has succeeded."""
        results: list[T] = []
        self.each(lambda: results.append(work()))
        return results[0]

    def each(self, work: Callable[[], Any]) -> list[Any]:
        """Return what the work of each process returns, which JSON can have."""
        failure: Exception | None = None
        told = {}
        try:
            told["result"] = work()
        except Exception as error:
            if self._has_failed:
                # By an exchange within this work, so that all know.
                raise
            failure = error
            told = {"error": type(error).__name__, "what": str(error)}
        answers = self._exchange(told)
        for number, answer in enumerate(answers):
            if "error" in answer:
                self._has_failed = True
                if number == self._number and failure is not None:
                    raise failure
                raise _failure_of(number, **answer) from failure
        return [answer["result"] for answer in answers]

    def _exchange(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        """Tell all processes something, and return what each one tells."""
        name = f"{self._name}/{next(self._counts)}"
        try:
            self._client.key_value_set(f"{name}/{self._number:08}", json.dumps(told))
            self._client.wait_at_barrier(name, int(_PATIENCE * 1000))
            found = self._client.key_value_dir_get(f"{name}/")
        except RuntimeError as error:
            self._has_failed = True
            raise NpzkitError(
                "not all processes came to this call, or one of them died",
                found=shown_value(str(error)),
                remedy="Start the job again, with this call in each process, and the same tree.",
            ) from error  # fmt: skip
        return [json.loads(text) for _, text in sorted(found)]


class JointSave(Processes):
    """A save by all processes.

    Parameters
    ----------
    arrays : mapping of str to array-like
        By key, as all processes have them.
    attrs : mapping of str to mapping, optional
        Attributes by key.

    Attributes
    ----------
    arrays : dict of str to array-like
        The parts that this process saves, by names of their own.
    """

    def __init__(
        self, arrays: Mapping[str, Any], attrs: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        super().__init__()
        self._attrs = attrs or {}
        self._parts: dict[str, ShardPart] = {}
        for key, array in arrays.items():
            for part in self._parts_of(key, array):
                self._parts[key if part.offset is None else f"{key}@{part.offset}"] = part
        self.arrays = {name: part.array for name, part in self._parts.items()}

    def _parts_of(self, key: str, array: Any) -> Iterator[ShardPart]:
        if is_spread(array):
            for shard in array.addressable_shards:
                if shard.replica_id == 0:
                    yield _part_of(key, array.shape, shard)
        elif self.is_first:
            yield ShardPart(key, array)

    def save(
        self,
        arrays: Mapping[str, Any],
        open_writer: Callable[..., ShardedWriter],
        commit: Callable[[Fill], Any],
    ) -> Any:
        """Write what this process saves, and have the first one commit what all wrote.

        Parameters
        ----------
        arrays : mapping of str to array-like
            Those of `arrays`, or copies.
        open_writer : callable
            Returns the writer of an attempt, in the other processes.
        commit : callable
            In the first process: opens a writer, fills it, and commits. What it returns, all
            return, as JSON has it.
        """
        if self.is_first:
            return self.first(partial(commit, partial(self._fill, arrays)))
        attempt = self.first(_nothing)
        writers: list[ShardedWriter] = []

        def write() -> list[str]:
            writers.append(open_writer(attempt=attempt))
            return self._write(arrays, writers[0])

        try:
            self.each(write)
            return self.first(_nothing)
        except BaseException:
            for writer in writers:
                writer.abort()
            raise

    def _fill(self, arrays: Mapping[str, Any], writer: ShardedWriter) -> list[str]:
        self.first(lambda: writer.attempt)
        return list(itertools.chain(*self.each(partial(self._write, arrays, writer))))

    def _write(self, arrays: Mapping[str, Any], writer: ShardedWriter) -> list[str]:
        """Write the parts of this process, and return the shards that have them."""
        for name, array in arrays.items():
            key, _, offset, global_shape, _ = self._parts[name]
            writer.add(key, array, offset, global_shape, self._attrs.get(key))
        return [record.name for record in writer.close()]


def _nothing() -> None:
    """Do what is left to the first process."""


def _part_of(key: str, shape: tuple[int, ...], shard: Any) -> ShardPart:
    """Return what a device has of an array, or the array if that is all."""
    array = as_array(shard.data, key)
    # Random keys have one more axis as numbers.
    global_shape = (*shape, *array.shape[len(shape) :])
    if array.shape == global_shape:
        return ShardPart(key, array)
    starts = [axis.start or 0 for axis in shard.index[: len(shape)]]
    return ShardPart(key, array, (*starts, *(0 for _ in array.shape[len(shape) :])), global_shape)


def _failure_of(number: int, error: str, what: str) -> NpzkitError:
    """Return the error of another process, of a class that is npzkit's."""
    kind: Any = getattr(errors, error, None)
    is_own = isinstance(kind, type) and issubclass(kind, NpzkitError)
    return (kind if is_own else NpzkitError)(f"process {number} failed: {what}")


def save(
    folder: Any,
    arrays: Mapping[str, Any],
    attrs: Mapping[str, Mapping[str, Any]] | None,
    **options: Any,
) -> None:
    """Save arrays as a sharded archive; `options` are those of `npzkit.ShardedWriter`.

    Raises
    ------
    UnsupportedError
        It is no folder.
    """
    joint = JointSave(arrays, attrs)
    found = find_location(folder, options.get("storage_options"))
    name = found.url if isinstance(found, Location) else os.fsdecode(found)
    if name.lower().endswith(".npz"):
        raise UnsupportedError(
            "several processes cannot write to one file", path=name,
            remedy=NAME_A_FOLDER,
        )  # fmt: skip

    def commit(fill: Fill) -> None:
        writer = ShardedWriter(folder, **options)
        try:
            writer.commit(fill(writer))
        except BaseException:
            writer.abort()
            raise

    joint.save(joint.arrays, partial(ShardedWriter, folder, **options), commit)
