"""When what was written counts: commits, and the last one.

Owns what a commit needs, when there is nothing to commit, and what closing an
archive does besides. The bytes of a commit are `npzkit.zip.writer`'s.
"""

from __future__ import annotations

from npzkit.archive.written_archive import WrittenArchive
from npzkit.errors import UnsupportedError
from npzkit.zip.dead_space import fills_most


def commit(archive: WrittenArchive, *, is_last: bool = False) -> None:
    """Make all that was written and changed the archive's contents.

    Parameters
    ----------
    archive : WrittenArchive
    is_last : bool
        Whether an empty archive is written too.
    """
    contents, metadata, sink = archive.contents, archive.metadata, archive.sink
    if sink.commits_once and not is_last:
        raise UnsupportedError(
            "what is uploaded, or written where nothing can be changed later, is committed once: "
            "when it is closed",
            path=archive.path, remedy="Leave out commit(), or write to a path.",
        )  # fmt: skip
    archive.unsealed.check_none_grows("commit()")
    changed = metadata.changed()
    contents.apply_attrs()
    # Bytes after the last commit are a change as well.
    is_changed = contents.is_edited or sink.committed_size != sink.position
    # An empty archive that is new is written too.
    if sink.position and not is_changed and changed is None:
        return
    if not (sink.committed_size or is_last or any(contents.listed.values())):
        # Members after an end record at the file's start would not be an archive.
        return
    # The directory of the commit before is given up.
    contents.has_dead |= sink.committed_size > 0
    with archive.state.giving_up("the archive could not be completed"):
        archive.zip.commit(metadata.comment if changed is None else changed)
    if changed is not None:
        metadata.take(changed)
    contents.is_edited = False


def finish(archive: WrittenArchive, *, durable: bool, auto_repack: bool) -> None:
    """Commit and close the archive, unless it is closed; repack it if much of it is dead.

    Raises
    ------
    ClosedArchiveError
        The archive was given up before.
    """
    state = archive.state
    state.check_sound()
    if not state.is_open:
        return
    try:
        commit(archive, is_last=True)
    except BaseException as error:
        if state.is_open:
            state.give_up("the archive could not be completed when it was closed", error)
        raise
    state.is_open = False
    try:
        if auto_repack and _may_be_dead(archive):
            from npzkit.maintenance.repack import repack_dead

            repack_dead(archive.sink, durable=durable)
    finally:
        # Always, as the warning may be an error.
        try:
            archive.sink.close()
        except BaseException as error:
            # Interrupts too: else the lock is held for as long as somebody keeps their frames.
            state.give_up("the file could not be closed", error, is_in_place=True)
            raise


def _may_be_dead(archive: WrittenArchive) -> bool:
    """Whether more than half of the file may be dead: looking for it takes longer than this."""
    contents = archive.contents
    return contents.has_dead and not fills_most(
        contents.listed.values(), archive.sink.committed_size
    )
