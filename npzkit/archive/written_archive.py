"""An archive that is being written: its file, its members, and how members are added to it.

Owns how members reach the file, and that one that fails leaves no half of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from npzkit.archive.writer_state import WriterState
from npzkit.codecs.methods import STORED
from npzkit.files.threads import Pipeline
from npzkit.members.metadata import TREE_KEY
from npzkit.members.notes import FLAT, check_version
from npzkit.writing.append import Resumed
from npzkit.writing.array_members import Member
from npzkit.writing.contents import Contents
from npzkit.writing.copy import npy_header_size
from npzkit.writing.metadata import EditedMetadata
from npzkit.writing.prepared_array import Prepared
from npzkit.writing.small_arrays import SmallArrays
from npzkit.writing.unsealed_arrays import Unsealed
from npzkit.zip.member_writer import Coding, deflate_small

if TYPE_CHECKING:
    from npzkit.members.note_edits import EditedNote

T = TypeVar("T")


class WrittenArchive:
    """An archive that is being written.

    Parameters
    ----------
    resumed : Resumed
        What there is to begin with.
    path : str
        For messages.
    metadata : mapping
        Added to that of the archive.
    threads : int

    Attributes
    ----------
    path, threads
    sink : Sink
    zip : ZipWriter
    unsealed : Unsealed
    state : WriterState
    contents : Contents
    metadata : EditedMetadata

    Raises
    ------
    UnsupportedError
        A newer version of npzkit wrote the note of its tree.
    """

    def __init__(
        self, resumed: Resumed, path: str, metadata: Mapping[str, Any], threads: int
    ) -> None:
        self.path, self.threads = path, threads
        self.sink = resumed.sink
        self.zip = resumed.writer(npy_header_size)
        self.unsealed = Unsealed()
        self.state = WriterState(resumed.sink, self.unsealed, path)
        self.contents = Contents(self.zip, self.unsealed, path)
        self.metadata = EditedMetadata(resumed.comment, metadata)
        self._tree: EditedNote | None = None
        # Edits would have to change it as well.
        check_version(self.metadata.values.get(TREE_KEY))

    @property
    def tree(self) -> EditedNote | None:
        """The note in the metadata, to be changed, or None if no edit changes it."""
        note = self.metadata.values.get(TREE_KEY)
        if note is None or note == FLAT:
            return None
        if self._tree is None or self._tree.note is not note:
            from npzkit.members.note_edits import EditedNote

            self._tree = EditedNote(note, self.contents.__contains__)
            self.metadata.values[TREE_KEY] = self._tree.note
        return self._tree

    def note_added(self, key: str, *, is_first: bool) -> None:
        """Note that an array was added, the first one under its key, or was replaced."""
        if self.tree is not None:
            self.tree.put(key, is_first=is_first)

    def note_removed(self, key: str) -> None:
        """Note that an array is about to be removed."""
        if self.tree is not None:
            self.tree.take(key)
            self.drop_empty_note()

    def drop_empty_note(self) -> None:
        """Remove a note that says nothing from the metadata."""
        if self.metadata.values.get(TREE_KEY) == {}:
            del self.metadata.values[TREE_KEY]

    def alone(self, work: Callable[..., T], *args: Any) -> T:
        """Call what changes the archive, while no other thread does.

        Raises
        ------
        ClosedArchiveError, RuntimeError
            The archive is closed, or a call further up is writing.
        """
        result: T = self.state.turns.take(self._work, work, args)
        return result

    def _work(self, work: Callable[..., T], args: tuple[Any, ...]) -> T:
        if not self.state.is_open:
            self.state.check_open()
        return work(*args)

    def put(self, members: list[Member], coding: Coding, overwrite: bool) -> None:
        """Write what belongs together: all members, or none if one of them cannot be written."""
        if len(members) > 1:
            for member in members:
                self.contents.check_all_free(member, overwrite=overwrite)
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
                else:
                    self._write_one(member, coding, pipeline, overwrite)
            with self.state.giving_up():
                pipeline.drain()

    def _write_one(
        self, member: Prepared, coding: Coding, pipeline: Pipeline, overwrite: bool
    ) -> None:
        key, name, pieces, size, extra = member
        self.contents.check_free(key, name, overwrite=overwrite)
        self.contents.give_way(name)
        with self.state.giving_up():
            self.zip.write_member(name, pieces, size, pipeline, coding=coding, extra=extra)

    def _write_small(
        self,
        arrays: SmallArrays,
        coding: Coding,
        overwrite: bool,
        pipeline: Pipeline | None = None,
    ) -> None:
        for name in self.contents.find_taken(arrays, overwrite=overwrite):
            self.contents.give_way(name)
        with self.state.giving_up():
            if pipeline is not None:
                self.zip.wait_for_place(pipeline)
            encode = None if coding.method == STORED else partial(deflate_small, level=coding.level)
            self.zip.write_small(arrays.members(encode), coding.method)
