"""Reading steps back: the one asked for, or the newest that is sound.

Owns `Checkpoint`, and that a damaged step is never skipped silently. How a tree is made of
arrays is `npzkit.trees.loaded_tree`'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from npzkit.archive.npzfile import NpzFile
from npzkit.checkpoint.catalog import Catalog, is_absent
from npzkit.checkpoint.retention import Readers
from npzkit.checkpoint.step_metadata import MISNAMED, record_of
from npzkit.checkpoint.steps import Steps, looks_at, shown_steps
from npzkit.errors import (
    Advice,
    ChecksumError,
    DamagedCheckpointError,
    DamagedCheckpointWarning,
    NoCheckpointError,
    NpzkitError,
    is_damage,
    warn,
)
from npzkit.jax.agreement import Agreement
from npzkit.members.keys import suggestion
from npzkit.trees.loaded_tree import read_tree

_NEWEST = "store.load() takes the newest step that is sound."


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
    """What of a step to read, and how; and with which processes to agree about the step."""

    only: str | Iterable[str] | None = None
    like: Any = None
    into: Any = None
    strict: bool = True
    verify: bool = True
    mmap_mode: Any = None
    agreement: Agreement = Agreement()


class Loader:
    """Reads the steps of one place."""

    def __init__(self, storage: Steps, catalog: Catalog, readers: Readers, threads: int) -> None:
        self._storage, self._catalog, self._readers = storage, catalog, readers
        self._threads = threads

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
        gone: list[int] = []
        misses = 0

        def look() -> tuple[list[int], int]:
            found = request.agreement.first(self._storage.steps)
            return [step for step in found if step not in damaged and step not in gone], misses

        for found, _ in looks_at(look, self._storage.path):
            steps = found
            while steps:
                step = steps[-1]
                try:
                    return self.step(step, request)
                except NoCheckpointError:
                    misses += 1
                    # If it was removed since, newer ones may have come.
                    if step in request.agreement.first(self._storage.steps):
                        gone.append(step)
                    break
                except DamagedCheckpointError as error:
                    damaged[step] = error
                    warn(f"{error.what}; this step was skipped", DamagedCheckpointWarning)
                    steps, _ = look()
        if damaged:
            named = shown_steps(sorted(damaged, reverse=True))
            raise DamagedCheckpointError(
                "no checkpoint is sound", path=self._storage.path,
                found=f"{len(damaged)} damaged: {named}", expected="one sound step",
                remedy="npzkit.repair(store.path(step), output) saves the sound arrays of a step "
                "that is a file, and npzkit.open(store.path(step)) reads those of one that is a "
                "folder. To begin again, use another folder.",
            ) from damaged[max(damaged)]  # fmt: skip
        raise self.empty()

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
            return request.agreement.own(partial(self._step, step, request))
        except DamagedCheckpointError:
            if request.agreement.is_joint:
                # Another process may have found that, so retention is to read the step.
                self._catalog.forget(step)
            raise

    def _step(self, step: int, request: Request) -> Checkpoint:
        with self.explained(step), self._readers.reading(step):
            identity, checkpoint = self._catalog.read(
                step, lambda npz: self._read(npz, step, request)
            )
        if request.verify and request.only is None and not request.agreement.is_joint:
            self._catalog.note(step, identity, is_damaged=False)
        return checkpoint

    def _read(self, npz: NpzFile, step: int, request: Request) -> Checkpoint:
        record = record_of(npz, step)
        mapped = None if request.mmap_mode is None else partial(self._map, npz, step, request)
        tree = read_tree(
            npz, mapped, only=request.only,
            like=request.like, into=request.into, strict=request.strict, verify=request.verify,
            threads=self._threads,
        )  # fmt: skip
        return Checkpoint(step, tree, record.metrics, record.metadata)

    def _map(
        self, npz: NpzFile, step: int, request: Request, keys: Collection[str]
    ) -> dict[str, Any]:
        """Map arrays into memory; a map counts as a reader."""
        if request.verify:
            for row in npz.verify(keys).rows:
                if row.severity == "error" and row.key is not None:
                    raise ChecksumError(row.what, key=row.key, offset=row.where)
        arrays = {}
        for key in keys:
            arrays[key] = array = npz.memmap(key, request.mmap_mode)
            pages: Any = array._mmap  # type: ignore[attr-defined]
            self._readers.hold(step, pages, lambda pages: not pages.closed)
        return arrays

    @contextlib.contextmanager
    def explained(self, step: int) -> Iterator[None]:
        """Have errors say which step is missing or damaged."""
        try:
            yield
        except (NpzkitError, OSError) as error:
            if is_absent(error):
                raise self.missing(step) from error
            if is_damage(error):
                raise self.damaged(step, error) from error
            raise

    def empty(self) -> NoCheckpointError:
        """Return the error for a place without steps."""
        return NoCheckpointError(
            "there is no checkpoint", path=self._storage.path,
            remedy="Check the folder. To begin a new run, catch NoCheckpointError.",
        )  # fmt: skip

    def without_metric(self, metric: str, names: Sequence[str]) -> NoCheckpointError:
        """Return the error for steps that have metrics of these names, and not the one wanted."""
        is_there = metric in names
        what = "no sound step has a number as its metric" if is_there else "no step has the metric"
        told = "" if is_there else f"{suggestion(metric, names, 'metrics')} "
        return NoCheckpointError(
            f"{what} {metric!r}", path=self._storage.path, remedy=told + _NEWEST
        )

    def missing(self, step: int) -> NoCheckpointError:
        """Return the error for a step that does not exist."""
        steps = self._storage.steps()
        found = "no step" if not steps else f"{len(steps)} steps, the newest is {steps[-1]}"
        return NoCheckpointError(
            f"there is no step {step}", path=self._storage.path, found=found,
            remedy=Advice("store.steps", "npzkit ckpt ls FOLDER") + " lists them.",
        )  # fmt: skip

    def damaged(self, step: int, error: NpzkitError | OSError) -> DamagedCheckpointError:
        """Return the error for a step that is damaged, with the reason."""
        found = error if isinstance(error, NpzkitError) else NpzkitError(str(error))
        key = "" if found.key is None else f", key {found.key!r}"
        return DamagedCheckpointError(
            f"step {step} is damaged{key}: {found.what}", path=self._storage.path_of(step),
            key=found.key, offset=found.offset, found=found.found, expected=found.expected,
            remedy=f"{MISNAMED} {_NEWEST}" if found.remedy == MISNAMED else _NEWEST,
        )  # fmt: skip
