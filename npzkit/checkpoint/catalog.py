"""What is known of the steps of a store: their metrics, and which are sound.

Owns what was found out of each step, until its file changes, and the report of
`verify`. A step is sound if its metadata match their checksum, and no other check of
the archive finds an error.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from npzkit.archive.npzfile import NpzFile
from npzkit.checkpoint.folder import Identity, Storage
from npzkit.checkpoint.record import Record, names_crc32, parse_record
from npzkit.errors import NoCheckpointError, NpzkitError, StaleArchiveError, is_damage
from npzkit.maintenance.verify import Finding, VerifyReport
from npzkit.sharding.shardedfile import ShardedFile
from npzkit.zip.extra_fields import foreign_extra

__all__ = ["GONE", "Catalog", "StoreReport", "is_gone", "record_of"]

GONE = (errno.ENOENT, errno.ESTALE)
"""Errors of a file that another process removed."""


def is_gone(error: BaseException) -> bool:
    """Return whether an error means that a step was removed or replaced meanwhile."""
    return not is_damage(error) and (
        isinstance(error, StaleArchiveError) or (isinstance(error, OSError) and error.errno in GONE)
    )


def record_of(npz: NpzFile, step: int) -> Record:
    """Return the checked record of an open step."""
    try:
        return parse_record(npz.metadata, npz._comment, step, _names_crc32(npz))
    except NpzkitError as error:
        raise error.locate(path=npz._archive.path) from None


def _names_crc32(npz: NpzFile) -> int | None:
    """Return the checksum of names and attributes; None of a folder, whose index has its own."""
    if isinstance(npz, ShardedFile):
        return None
    directory = npz._archive.directory
    extras = [(entry.name, foreign_extra(entry.extra)) for entry in directory.with_extra()]
    return names_crc32(directory.entries, extras)


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
            lines += [f"  {row.what}" for row in report.rows if row.severity == "error"]
        return "\n".join(lines or ["no steps"])


class _Known(NamedTuple):
    """What is known of one file; None of what was not looked for."""

    identity: Identity
    record: Record | None = None
    is_sound: bool | None = None


class Catalog:
    """What is known of the steps in one place."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[int, _Known] = {}

    def _of(self, step: int) -> _Known:
        identity = self._storage.identity(step)
        known = self._known.get(step)
        if known is None or known.identity != identity:
            known = self._known[step] = _Known(identity)
        return known

    def seen(self, step: int) -> Identity | None:
        """Return the identity of the file that is known as a step, without looking again."""
        known = self._known.get(step)
        return None if known is None else known.identity

    def note(self, step: int, *, is_sound: bool) -> None:
        """Remember whether a step is sound, for as long as its file is the same."""
        self._known[step] = self._of(step)._replace(is_sound=is_sound)

    def record(self, step: int) -> Record:
        """Return the checked record of a step; no array is read.

        Raises
        ------
        NpzkitError, OSError
            The step is damaged, or does not exist.
        """
        known = self._of(step)
        if known.record is None:
            try:
                with self._storage.open(step) as npz:
                    record = record_of(npz, step)
            except NpzkitError as error:
                if is_damage(error):
                    self.note(step, is_sound=False)
                raise
            known = self._known[step] = known._replace(record=record._replace(structure=None))
        assert known.record is not None  # noqa: S101 - read above
        return known.record

    def metrics(self, step: int) -> Mapping[str, Any]:
        """Return a step's metrics; none if it is damaged or was removed meanwhile."""
        try:
            return self.record(step).metrics
        except (NpzkitError, OSError) as error:
            if not (is_damage(error) or is_gone(error)):
                raise
            return {}

    def verify(self, step: int) -> VerifyReport:
        """Check every byte of a step, and remember the result.

        Raises
        ------
        OSError
            It cannot be read.
        NoCheckpointError
            It does not exist.
        """
        path = self._storage.path_of(step)
        try:
            with self._storage.open(step) as npz:
                report = npz.verify()
                try:
                    record_of(npz, step)
                except NpzkitError as error:
                    report = report._replace(rows=(_finding(error), *report.rows))
        except NpzkitError as error:
            if not is_damage(error):
                raise
            report = VerifyReport(path, (_finding(error),), 0, 0)
        except OSError as error:
            if is_gone(error):
                raise NoCheckpointError(f"there is no step {step}", path=path) from error
            if not is_damage(error):
                raise
            report = VerifyReport(path, (Finding(None, "error", str(error)),), 0, 0)
        self.note(step, is_sound=report.ok)
        return report

    def is_damaged(self, step: int) -> bool:
        """Return whether a step was found damaged before; nothing is read."""
        try:
            return self._of(step).is_sound is False
        except OSError as error:
            if is_gone(error):
                return False
            raise

    def newest_first(self) -> Iterator[int]:
        """Yield the steps from the newest to the oldest."""
        yield from reversed(self._storage.steps())

    def newest_sound(self) -> int | None:
        """Return the newest step that is sound, which is read if that is not known."""
        for step in self.newest_first():
            try:
                known = self._of(step).is_sound
                if known or (known is None and self.verify(step).ok):
                    return step
            except (NoCheckpointError, OSError) as error:
                if isinstance(error, OSError) and not is_gone(error):
                    raise
        return None


def _finding(error: NpzkitError) -> Finding:
    what = error.what
    if error.found is not None:
        what += f": found {error.shown(error.found)}"
    if error.expected is not None:
        what += f", expected {error.shown(error.expected)}"
    return Finding(None, "error", what, error.offset)
