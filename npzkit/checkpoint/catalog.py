"""What is known of the steps of a store: their metrics, and which are damaged.

Owns what is known of each step until its file changes, how a step is read although another
process may replace or remove it, and the report of `verify`. A step is sound if no check of
its record or its archive finds an error.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from npzkit.archive.npzfile import NpzFile
from npzkit.checkpoint.step_metadata import Record, record_of
from npzkit.checkpoint.steps import TOO_OFTEN, StepIdentity, Steps, looks_at
from npzkit.datasets.part_checks import Seen
from npzkit.datasets.sharded_contents import ShardedContents
from npzkit.errors import (
    LimitExceededError,
    NpzkitError,
    PickleRefusedError,
    StaleArchiveError,
    is_damage,
    printable,
)
from npzkit.maintenance.findings import Finding, VerifyReport

_GONE = (errno.ENOENT, errno.ESTALE)
"""Errors of a file that another process removed."""

T = TypeVar("T")


def is_gone(error: BaseException) -> bool:
    """Return whether an error means that a step was removed or replaced meanwhile."""
    return not is_damage(error) and (isinstance(error, StaleArchiveError) or is_absent(error))


def is_absent(error: BaseException) -> bool:
    """Return whether an error means that there is no such step."""
    return isinstance(error, OSError) and error.errno in _GONE and not is_damage(error)


class StoreReport(NamedTuple):
    """The report of `CheckpointStore.verify`.

    Attributes
    ----------
    path : str
        The folder.
    steps : dict of int to VerifyReport
    """

    path: str
    steps: Mapping[int, VerifyReport]

    @property
    def ok(self) -> bool:
        """Whether every step is sound."""
        return all(report.ok for report in self.steps.values())

    @property
    def damaged(self) -> tuple[int, ...]:
        """The steps that are not sound."""
        return tuple(step for step, report in self.steps.items() if not report.ok)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict that JSON can represent."""
        steps = {str(step): report.as_dict() for step, report in self.steps.items()}
        return {"path": self.path, "ok": self.ok, "steps": steps}

    def to_json(self, **options: Any) -> str:
        """Return the report as JSON; `options` are those of `json.dumps`."""
        import json

        return json.dumps(self.as_dict(), **options)

    def __str__(self) -> str:
        """Return a line per step, with its findings."""
        lines = []
        for step, report in self.steps.items():
            lines.append(f"step {step}: {report.verdict}")
            lines += [
                f"  {row.what}" if row.key is None else f"  {printable(row.key)}: {row.what}"
                for row in report.rows
                if row.severity == "error"
            ]
        return "\n".join(lines or ["no steps"])


@dataclass
class _Known:
    """What is known of one file; None of what was not looked for."""

    identity: StepIdentity
    record: Record | None = None
    is_damaged: bool = False


class Catalog:
    """What is known of the steps in one place."""

    def __init__(self, storage: Steps) -> None:
        self._storage = storage
        self._known: dict[int, _Known] = {}

    def _of(self, step: int, identity: StepIdentity | None = None) -> _Known:
        """Return what is known of the file with this identity, by default of the one there now."""
        identity = identity or self._storage.identity(step)
        known = self._known.get(step)
        if known is None or known.identity != identity:
            known = self._known[step] = _Known(identity)
        return known

    def seen(self, step: int) -> StepIdentity | None:
        """Return the identity of the file that is known as a step, without looking again."""
        known = self._known.get(step)
        return None if known is None else known.identity

    def note(self, step: int, identity: StepIdentity, *, is_damaged: bool) -> None:
        """Remember whether the file of a step with this identity was found damaged.

        That it was sound is not remembered: it may be damaged since.
        """
        self._of(step, identity).is_damaged = is_damaged

    def forget(self, step: int) -> None:
        """Let a step be read again when that matters."""
        self._known.pop(step, None)

    def read(
        self,
        step: int,
        read: Callable[[NpzFile], T],
        is_final: Callable[[T], bool] = lambda result: True,
    ) -> tuple[StepIdentity, T]:
        """Open a step and read it; again if it was replaced meanwhile.

        Another process may replace or remove a step at any moment. So an error, or a result
        that is not final, counts only if the step is the same afterwards.

        Parameters
        ----------
        step : int
        read : callable
            Is passed the open step.
        is_final : callable, optional
            Whether a result counts in any case.

        Returns
        -------
        identity : StepIdentity
            Of the step that was read.
        result : object

        Raises
        ------
        FileNotFoundError
            There is no such step.
        StaleArchiveError
            The step was replaced each time.
        NpzkitError, OSError
            As `read`. If the step is damaged, that is remembered.
        """
        last: BaseException | None = None
        for identity in looks_at(lambda: self._storage.identity(step), self._storage.path):
            try:
                with self._storage.open(step) as npz:
                    result = _read(npz, read)
            except (NpzkitError, OSError) as error:
                if not (is_damage(error) or is_gone(error)):
                    raise
                if self._is_now(step, identity) and is_damage(error):
                    self.note(step, identity, is_damaged=True)
                    raise
                last = error
            else:
                if is_final(result) or self._is_now(step, identity):
                    return identity, result
        raise StaleArchiveError(
            f"step {step} was replaced each time that it was read", path=self._storage.path,
            remedy=TOO_OFTEN,
        ) from last  # fmt: skip

    def _is_now(self, step: int, identity: StepIdentity) -> bool:
        """Return whether a step has this identity now, by a new look."""
        try:
            return step in self._storage.steps() and self._storage.identity(step) == identity
        except FileNotFoundError:
            return False

    def record(self, step: int) -> Record:
        """Return the checked record of a step; no array is read.

        Raises
        ------
        NpzkitError, OSError
            The step is damaged, or does not exist.
        """
        record = self._of(step).record
        if record is None:
            identity, found = self.read(step, lambda npz: record_of(npz, step))
            record = found._replace(structure=None)
            self._of(step, identity).record = record
        return record

    def metrics(self, step: int) -> Mapping[str, Any]:
        """Return a step's metrics; none if it is damaged or was removed meanwhile."""
        try:
            return self.record(step).metrics
        except (NpzkitError, OSError) as error:
            if not (is_damage(error) or is_gone(error)):
                raise
            return {}

    def metric_names(self, steps: Iterable[int]) -> list[str]:
        """Return the names of all metrics of these steps."""
        return list(dict.fromkeys(name for step in steps for name in self.metrics(step)))

    def verify(self, step: int, seen: Seen | None = None) -> VerifyReport:
        """Check every byte of a step, and remember the result.

        `seen` is that of `npzkit.datasets.part_checks.verify_shards`.

        Raises
        ------
        OSError
            It cannot be read, or does not exist.
        """
        path = self._storage.path_of(step)
        try:
            identity, report = self.read(
                step, lambda npz: _report_of(npz, step, seen), lambda report: report.ok
            )
        except (NpzkitError, OSError) as error:
            if is_damage(error):
                known = error if isinstance(error, NpzkitError) else NpzkitError(str(error))
                return VerifyReport(path, (Finding._of(None, known),), 0, 0)
            raise
        self.note(step, identity, is_damaged=not report.ok)
        return report

    def is_damaged(self, step: int) -> bool:
        """Return whether a step was found damaged before; nothing is read."""
        try:
            return self._of(step).is_damaged
        except OSError as error:
            if is_gone(error):
                return False
            raise

    def is_sound_now(self, step: int, *, is_whole: bool) -> bool:
        """Return whether a step is sound: its metadata, or every byte of it.

        It is read, and what was known of it is forgotten.
        """
        self.forget(step)
        try:
            return self.verify(step).ok if is_whole else bool(self.record(step))
        except (NpzkitError, OSError) as error:
            if not (is_damage(error) or is_gone(error)):
                raise
            return False


def _read(npz: NpzFile, read: Callable[[NpzFile], T]) -> T:
    """Read an open step. What is refused is damage if a checksum says that bytes have changed."""
    try:
        return read(npz)
    except (LimitExceededError, PickleRefusedError) as error:
        key = error.key
        error.is_damage = not npz.verify(None if key is None or key not in npz else [key]).ok
        raise


def _report_of(npz: NpzFile, step: int, seen: Seen | None) -> VerifyReport:
    """Return what is wrong with an open step."""
    if isinstance(npz._archive, ShardedContents):
        npz._archive.seen = seen
    report = npz.verify()
    try:
        record_of(npz, step)
    except NpzkitError as error:
        report = report._replace(rows=(Finding._of(None, error), *report.rows))
    if not report.ok:
        npz._archive.check_unchanged()
    return report
