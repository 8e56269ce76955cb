"""Reading a step back: the one asked for, or the newest that is sound.

Owns `Checkpoint`, and that a damaged step is never skipped silently. How a tree is made of
arrays is `npzkit.archive.trees`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.trees import read_tree
from npzkit.checkpoint.catalog import Catalog, is_gone, record_of
from npzkit.checkpoint.readers import Readers
from npzkit.checkpoint.sharded_steps import ShardedSteps
from npzkit.checkpoint.step_names import shown_steps
from npzkit.errors import (
    ChecksumError,
    DamagedCheckpointError,
    DamagedCheckpointWarning,
    NoCheckpointError,
    NpzkitError,
    StaleArchiveError,
    is_damage,
    warn,
)
from npzkit.members.selection import Selection

_LOOKS = 200
"""How often steps are listed at most, if what was listed is removed each time."""


class Checkpoint(NamedTuple):
    """A step that was loaded.

    Attributes
    ----------
    step : int
    tree : object
        What was saved, with its dicts, lists and tuples; or the example that was
        passed as `into`, filled.
    metrics : dict of str to number
    metadata : dict
    """

    step: int
    tree: Any
    metrics: dict[str, Any]
    metadata: dict[str, Any]

    def __repr__(self) -> str:
        return f"Checkpoint(step={self.step}, metrics={self.metrics})"


class Request(NamedTuple):
    """What of a step to read, and how."""

    only: Selection | None = None
    like: Any = None
    into: Any = None
    strict: bool = True
    verify: bool = True
    mmap_mode: Any = None


def looks_at(list_steps: Callable[[], tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield the steps that exist, until two looks find the same.

    Another process may remove steps while newer ones come. So if none of the steps that one
    look found exists any more, look again.
    """
    last = None
    for _ in range(_LOOKS):
        steps = list_steps()
        if steps == last:
            return
        last = steps
        yield steps


class Loader:
    """Reads the steps of one place."""

    def __init__(self, storage: ShardedSteps, catalog: Catalog, readers: Readers) -> None:
        self._storage, self._catalog, self._readers = storage, catalog, readers

    def newest(self, request: Request) -> Checkpoint:
        """Read the newest step that is sound.

        Raises
        ------
        NoCheckpointError
            There is no step.
        DamagedCheckpointError
            There are steps, but none is sound.

        Warns
        -----
        DamagedCheckpointWarning
            For each step that is damaged and newer.
        """
        damaged: dict[int, NpzkitError] = {}
        gone: set[int] = set()
        last: tuple[int, ...] | None = None
        looks = 0
        while looks < _LOOKS:
            steps = self._storage.steps()
            # A step that was removed since is no proof that there is none: newer ones may
            # have come. Only what two looks find in the same way counts.
            is_settled, last = steps == last, steps
            left = [step for step in steps if step not in damaged and step not in gone]
            if not left and is_settled:
                break
            try:
                if left:
                    return self.step(left[-1], request)
                looks += 1
            except NoCheckpointError:
                looks += 1
                if is_settled:
                    gone.add(left[-1])
            except DamagedCheckpointError as error:
                damaged[left[-1]] = error
                warn(f"{error.what}; this step was skipped", DamagedCheckpointWarning)
        else:
            raise StaleArchiveError(
                "steps are removed faster than they can be read", path=self._storage.path,
                remedy="Load again, or have the writer keep more steps, as latest(3) does.",
            )  # fmt: skip
        if damaged:
            raise self._none_sound(damaged) from damaged[max(damaged)]
        raise NoCheckpointError(
            "there is no checkpoint", path=self._storage.path,
            remedy="Check the folder. To begin a new run, catch NoCheckpointError.",
        )  # fmt: skip

    def _none_sound(self, damaged: dict[int, NpzkitError]) -> DamagedCheckpointError:
        named = shown_steps(sorted(damaged, reverse=True))
        return DamagedCheckpointError(
            "no checkpoint is sound", path=self._storage.path,
            found=f"{len(damaged)} damaged: {named}", expected="one sound step",
            remedy="npzkit.repair(path, output=...) saves the sound arrays of a step.",
        )  # fmt: skip

    def step(self, step: int, request: Request) -> Checkpoint:
        """Read one step.

        Raises
        ------
        NoCheckpointError
            There is no such step.
        DamagedCheckpointError
            It is damaged.
        """
        try:
            with self._readers.reading(step):
                identity, checkpoint = self._catalog.read(
                    step, lambda npz: self._read(npz, step, request)
                )
        except (NpzkitError, OSError) as error:
            if is_damage(error):
                raise self.damaged(step, error) from error
            if isinstance(error, OSError) and is_gone(error):
                raise self.missing(step) from error
            raise
        if request.verify and request.only is None:
            self._catalog.note(step, identity, is_sound=True)
        return checkpoint

    def _read(self, npz: NpzFile, step: int, request: Request) -> Checkpoint:
        record = record_of(npz, step)

        def read(keys: Collection[str]) -> dict[str, Any]:
            if request.mmap_mode is None:
                return npz.load_all(keys, verify=request.verify)
            return self._map(npz, step, list(keys), request)

        tree = read_tree(
            npz, read, selection=request.only,
            like=request.like, into=request.into, strict=request.strict,
        )  # fmt: skip
        return Checkpoint(step, tree, record.metrics, record.metadata)

    def _map(
        self, npz: NpzFile, step: int, keys: list[str], request: Request
    ) -> dict[str, Any]:  # fmt: skip
        """Map arrays into memory; a map counts as a reader."""
        if request.verify:
            for row in npz.verify(keys).rows:
                if row.severity == "error" and row.key is not None:
                    raise ChecksumError(row.what, key=row.key, offset=row.where)
        arrays = {}
        for key in keys:
            arrays[key] = array = npz.memmap(key, request.mmap_mode)
            self._readers.hold(step, array._mmap, _is_open)  # type: ignore[attr-defined]
        return arrays

    def missing(self, step: int) -> NoCheckpointError:
        """Return the error for a step that does not exist."""
        steps = self._storage.steps()
        found = "no step" if not steps else f"{len(steps)} steps, the newest is {steps[-1]}"
        return NoCheckpointError(
            f"there is no step {step}", path=self._storage.path, found=found,
            remedy="store.steps lists them.",
        )  # fmt: skip

    def damaged(self, step: int, error: NpzkitError | OSError) -> DamagedCheckpointError:
        """Return the error for a step that is damaged, with the reason."""
        found = error if isinstance(error, NpzkitError) else NpzkitError(str(error))
        key = "" if found.key is None else f", key {found.key!r}"
        return DamagedCheckpointError(
            f"step {step} is damaged{key}: {found.what}", path=self._storage.path_of(step),
            key=found.key, offset=found.offset, found=found.found, expected=found.expected,
            remedy="store.load() takes the newest step that is sound.",
        )  # fmt: skip


def _is_open(pages: Any) -> bool:
    return not pages.closed
