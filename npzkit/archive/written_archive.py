"""An archive that is being written: its file, its members, its commits.

Owns how members reach the file, that one that fails leaves no half of itself, its metadata,
when there is something to commit, and what closing an archive does besides. Which calls are allowed
when is `npzkit.archive.writer_state`'s; the bytes of a commit are `npzkit.zip.writer`'s.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from npzkit.archive.writer_state import WriterState
from npzkit.codecs.coding import Coding
from npzkit.errors import UnsupportedError
from npzkit.files import disk
from npzkit.files.file_objects import as_path, can_write, name_of
from npzkit.files.locking import check_timeout
from npzkit.files.threads import Pipeline
from npzkit.files.urls import Location, find_location
from npzkit.limits import thread_count
from npzkit.members.metadata import (
    FLAT,
    TREE_KEY,
    CheckedValues,
    check_tree_version,
    format_checked,
    format_metadata,
    nested_data,
    own_attrs,
    parse_metadata,
)
from npzkit.writing.array_members import Member, SmallArrays
from npzkit.writing.listed_members import MemberListing
from npzkit.writing.open_for_append import Resumed, open_archive
from npzkit.zip.dead_space import fills_most

if TYPE_CHECKING:
    from npzkit.writing.create_arguments import Plan
    from npzkit.writing.created_array import CreatedArray


class WrittenArchive:
    """An archive that is being written.

    The arguments are those of `npzkit.NpzWriter`.

    Attributes
    ----------
    path : str
        For messages.
    threads : int
    sink : Sink
    zip : ZipWriter
    state : WriterState
    alone : callable
        `WriterState.run`, which calls whatever changes the archive.
    listing : MemberListing
    metadata : EditedMetadata

    Raises
    ------
    UnsupportedError
        A newer version of npzkit wrote the note of its tree.
    """

    def __init__(
        self,
        file: Any,
        mode: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        durable: bool = False,
        threads: int | None = None,
        lock_timeout: float | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.threads, self._durable = thread_count(threads), durable
        format_checked(metadata)
        timeout = check_timeout(lock_timeout)
        file = find_location(file, storage_options)
        if can_write(file):
            self.path = name_of(file)
        elif isinstance(file, Location):
            self.path = str(file)
        else:
            self.path = file = as_path(file)
        opened = open_archive(file, mode, durable=durable, lock_timeout=timeout)
        try:
            self._begin(opened, metadata or {})
        except BaseException:
            # Nobody has the archive yet.
            opened.sink.abort()
            raise

    def _begin(self, resumed: Resumed, metadata: Mapping[str, Any]) -> None:
        self.sink = resumed.sink
        self.zip = resumed.writer()
        self.listing = MemberListing(self.zip, self.path)
        self.state = WriterState(resumed.sink, self.listing, self.path)
        self.alone = self.state.run
        self.metadata = EditedMetadata(resumed.comment, metadata)
        self.maps: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._tree: Any = None
        # Edits would have to change it as well.
        check_tree_version(self.metadata.values.get(TREE_KEY))

    # -- the note of nested data --------------------------------------------

    @property
    def tree(self) -> Any:
        """What follows edits, if the metadata has a note that they change; else None."""
        if self.metadata.values.get(TREE_KEY) in (None, FLAT):
            return None
        if self._tree is None:
            self._tree = nested_data("tree_edits").TreeEdits(self)
        return self._tree

    # -- members ------------------------------------------------------------

    def put(self, members: list[Member], coding: Coding, overwrite: bool) -> None:
        """Write what belongs together: all members, or none if one of them cannot be written."""
        if len(members) > 1:
            for member in members:
                self.listing.check_all_free(member, overwrite=overwrite)
        self.write(members, coding, overwrite)

    def write(self, members: Iterable[Member], coding: Coding, overwrite: bool) -> None:
        """Write members in their order, small stored ones together."""
        if isinstance(members, list) and len(members) == 1 and isinstance(members[0], SmallArrays):
            # No work for threads: a pipeline takes a fifth of the time of a small array.
            self._write_small(members[0], coding, overwrite)
            return
        with Pipeline(self.threads) as pipeline:
            for member in members:
                if isinstance(member, SmallArrays):
                    self._write_small(member, coding, overwrite, pipeline)
                    continue
                key, name, pieces, size, extra = member
                self.listing.check_free(key, name, overwrite=overwrite)
                self.listing.give_way(name)
                with self.state.giving_up():
                    self.zip.write_member(name, pieces, size, pipeline, coding=coding, extra=extra)
            with self.state.giving_up():
                pipeline.drain()

    def _write_small(
        self,
        arrays: SmallArrays,
        coding: Coding,
        overwrite: bool,
        pipeline: Pipeline | None = None,
    ) -> None:
        for name in self.listing.find_taken(arrays, overwrite=overwrite):
            self.listing.give_way(name)
        with self.state.giving_up():
            if pipeline is not None:
                self.zip.wait_for_place(pipeline)
            self.zip.write_small(arrays.members(coding), coding.method)

    # -- arrays that are filled piece by piece ------------------------------

    def create(self, plan: Plan) -> CreatedArray:
        """Begin an array; see `NpzWriter.create`."""
        from npzkit.writing.filled_array import begin_filled
        from npzkit.writing.growing_array import begin_growing

        self.listing.check_free(plan.key, plan.name)
        if self.tree is not None:
            self.tree.check_free(plan.key)
        with self.state.giving_up():
            self.zip.begin()
            if not plan.grows:
                self.sink.have_room(plan.room)
        if not plan.grows:
            # If there is no room, nothing is lost.
            self.sink.reserve(plan.room, mapped=True)
        begin = begin_growing if plan.grows else begin_filled
        with self.state.giving_up():
            created = begin(plan, self.zip, self.threads, self)
        self.listing.begin(created, grows=plan.grows)
        if self.tree is not None:
            self.tree.note.put(plan.key, is_first=True)
        return created

    def write_part(self, work: Callable[..., None], *args: Any) -> None:
        """Write a part of a created array."""
        self.alone(self._guarded, work, *args)

    def seal(self, created: CreatedArray, seal: Callable[[], None]) -> None:
        """Complete a created array."""
        self.write_part(self._seal, created, seal)

    def _guarded(self, work: Callable[..., None], *args: Any) -> None:
        with self.state.giving_up():
            work(*args)

    def _seal(self, created: CreatedArray, seal: Callable[[], None]) -> None:
        created._forget()
        seal()
        self.listing.sealed(created)

    def discard(self, error: BaseException) -> None:
        """Give the archive up because of a created array."""
        if self.state.is_open:
            what = "an array that was being created was given up"
            self.state.run(self.state.give_up, what, error, ends=True)

    # -- commits ------------------------------------------------------------

    def check_unmapped(self) -> None:
        """Check that nobody maps a new file, where the system could not put it in its place.

        Raises
        ------
        UnsupportedError
            Nothing is lost, and the same call may be made again.
        """
        if disk.RENAMES_OPEN_FILES or self.sink.committed_size:
            return
        self.listing.unmap_created()
        if self.maps:
            # What a circle of references holds is in no use.
            gc.collect()
        for key in self.maps.values():
            raise UnsupportedError(
                "Windows completes no file that is mapped, and a map of an array is in use",
                path=self.path, key=key,
                remedy="Delete the map, and close the writer or commit again.",
            )  # fmt: skip

    def commit(self, *, is_last: bool = False) -> None:
        """Make all that was written and changed the archive's contents.

        A new archive without arrays is written if it is the last commit.
        """
        listing, metadata, sink = self.listing, self.metadata, self.sink
        if sink.commits_once and not is_last:
            raise UnsupportedError(
                "what is uploaded, or written where nothing can be changed later, is committed "
                "once: when it is closed",
                path=self.path, remedy="Leave out commit(), or write to a path.",
            )  # fmt: skip
        listing.check_none_grows("commit()")
        if not is_last:
            self.check_unmapped()
        changed = metadata.changed()
        listing.apply_attrs()
        # Bytes after the last commit are a change as well.
        is_changed = listing.is_edited or sink.committed_size != sink.position
        # An empty archive that is new is written too.
        if sink.position and not is_changed and changed is None:
            return
        if not (sink.committed_size or is_last or any(listing.entries.values())):
            return
        # The directory of the commit before is given up.
        is_new = not sink.committed_size
        listing.has_dead |= not is_new
        with self.state.giving_up("the archive could not be completed"):
            if is_new and listing.has_dead and listing.can_move and sink.can_read:
                # Programs that read from front to back would find them.
                from npzkit.writing.copy import copy_down

                copy_down(self.zip)
                listing.has_dead = False
            self.zip.commit(metadata.comment if changed is None else changed)
        if changed is not None:
            metadata.take(changed)
        listing.is_edited = False

    def finish(self, auto_repack: bool = False) -> None:
        """Commit and close the archive, unless it is closed; repack it if much of it is dead.

        Raises
        ------
        ClosedArchiveError
            The archive was given up before.
        """
        state = self.state
        if state.failure:
            state.check_open()
        if not state.is_open:
            return
        self.check_unmapped()
        try:
            self.commit(is_last=True)
        except BaseException as error:
            if state.is_open:
                state.give_up("the archive could not be completed when it was closed", error)
            raise
        state.is_open = False
        try:
            listed, size = self.listing.entries.values(), self.sink.committed_size
            # Looking for dead bytes takes longer than these questions.
            if auto_repack and self.listing.has_dead and not fills_most(listed, size):
                from npzkit.maintenance.repack import repack_dead

                repack_dead(self.sink, durable=self._durable)
        finally:
            # Always, as the warning may be an error.
            try:
                self.sink.close()
            except BaseException as error:
                # Interrupts too: else the lock is held for as long as somebody keeps their frames.
                state.give_up("the file could not be closed", error, is_in_place=True)
                raise


class EditedMetadata:
    """The metadata of one archive, as a dict to be changed.

    A comment that is not npzkit's is kept as it is until the metadata changes.

    Parameters
    ----------
    comment : bytes
        Of the last commit.
    added : mapping
        Values to add to what the comment holds.

    Attributes
    ----------
    values : CheckedValues
    comment : bytes
        Of the last commit.
    formatted : bytes or None
        The comment to write in place of what the values say, if a caller has formatted it.
    """

    def __init__(self, comment: bytes, added: Mapping[str, Any]) -> None:
        self.comment = comment
        self.formatted: bytes | None = None
        self.values = CheckedValues(parse_metadata(comment), "metadata")
        self._committed = format_metadata(self.values)
        self.values.update(added)

    def replace(self, values: Mapping[str, Any]) -> None:
        """Replace all values but npzkit's own; raises as `changed`."""
        format_metadata(values)
        self.values = CheckedValues({**own_attrs(self.values), **values}, "metadata")

    def changed(self) -> bytes | None:
        """Return the comment for values that were changed; None if they are as committed.

        Raises
        ------
        LimitExceededError, ValueError, TypeError
            The values are too long, or JSON cannot express them.
        """
        comment = format_metadata(self.values) if self.formatted is None else self.formatted
        return comment if comment != self._committed else None

    def take(self, changed: bytes) -> None:
        """Note that a comment from `changed` was committed."""
        self.comment = self._committed = changed
