"""How an array that is filled piece by piece begins in its archive, and ends.

Owns the side of the archive: when such an array may write, and what its seal
or its failure does to the archive. The arrays are `npzkit.writing`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npzkit.archive.written_archive import WrittenArchive
from npzkit.writing.array_plan import Plan
from npzkit.writing.created_array import CreatedArray, Hooks
from npzkit.writing.filled_array import begin_filled
from npzkit.writing.growing_array import begin_growing


def create(archive: WrittenArchive, plan: Plan) -> CreatedArray:
    """Begin an array; see `NpzWriter.create`. Called alone, as by `WrittenArchive.alone`."""
    archive.contents.check_free(plan.key, plan.name)
    if not plan.grows:
        # If there is no room, nothing is lost.
        archive.sink.reserve(plan.room, mapped=True)
    begin = begin_growing if plan.grows else begin_filled
    with archive.state.giving_up():
        created = begin(plan, archive.zip, archive.threads, _hooks(archive))
    archive.unsealed.add(created, grows=plan.grows)
    archive.note_added(plan.key, is_first=True)
    return created


def _hooks(archive: WrittenArchive) -> Hooks:
    """Return what a created array calls to write, to be sealed, and to give up."""

    def guarded(work: Callable[..., None], *args: Any) -> None:
        with archive.state.giving_up():
            work(*args)

    def write(work: Callable[..., None], *args: Any) -> None:
        archive.alone(guarded, work, *args)

    def complete(created: CreatedArray, seal: Callable[[], None]) -> None:
        seal()
        archive.unsealed.remove(created)
        # Its place may lie before the last commit already.
        archive.contents.is_edited = True

    def seal(created: CreatedArray, seal: Callable[[], None]) -> None:
        archive.alone(guarded, complete, created, seal)

    def discard(error: BaseException) -> None:
        if archive.state.is_open:
            what = "an array that was being created was given up"
            archive.state.turns.take(archive.state.give_up, what, error)

    return Hooks(write, seal, discard)
