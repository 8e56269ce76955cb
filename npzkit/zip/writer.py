"""Members, central directory and end record, written front to back.

Owns the container's bytes on the way out, and which members are listed. Knows
no NPY and no files, only a `Sink`. Its output is deterministic: no time, no
host name, members in the order of the calls, and the same bytes for any number
of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from npzkit.codecs.checksum import ChunkChecks, chunk_crc32s, combined_with_last, crc32
from npzkit.codecs.coding import CHECKED_SIZE, STORED, Coding
from npzkit.files.append_room import Append, Ending
from npzkit.files.sink import Sink
from npzkit.zip.array_index import Notes, head_of
from npzkit.zip.commit import (
    COMMENT_SIZE,
    FOOTER_MAGIC,
    FOOTER_SIZE,
    INTENT_SIZE,
    MARK_OFFSET,
    Footer,
    LongComment,
    format_far,
    format_intent,
    format_mark,
    masked_crc32,
    put_comment,
    room_before_end,
)
from npzkit.zip.entries import positions_of
from npzkit.zip.npzkit_record import RecordWriter
from npzkit.zip.records import (
    COMMENT_MAX_SIZE,
    END_SIGNATURE,
    LOCAL_HEADER_SIZE,
    SENTINEL_32,
    LocalHeader,
)
from npzkit.zip.written_header import (
    ALIGNMENT,
    SmallMembers,
    central_bytes,
    end_bytes,
    format_members,
    local_bytes,
    local_header,
)

if TYPE_CHECKING:
    from npzkit.files.source import Source
    from npzkit.files.threads import Pipeline
    from npzkit.zip.chunk_list import ChunkList
    from npzkit.zip.entries import Entry
    from npzkit.zip.member_writer import MemberWriter

_BLOCK_SIZE = 1 << 24
"""Stored bytes that are written in one call, and whose CRC one thread takes: a file
written by pieces of 1 MiB was three times slower to map later."""
_PARALLEL_SIZE = 1 << 21
"""Bytes from which on stored data is written while other threads take its CRC."""

Pieces = Sequence[memoryview | bytes] | Iterator[memoryview | bytes]


class ZipWriter:
    """Writes one archive to a sink.

    Parameters
    ----------
    sink : Sink
        At the start of the archive, or behind it.
    listed : dict of str to bytes, optional
        The entries that are there, by name; taken over.
    notes : Notes, optional
        What the array index keeps of them, as far as that is known; taken over.
    long_comment : (bytes, LongComment), optional
        A comment that the end record cannot hold, and where it is already.
    directory, end : bytes, optional
        The entries and the bytes of the end that are there, if they are.
    head_size : callable, optional
        Returns the size of a member's head by its first 16 bytes, 0 if it has none. A head
        is kept in the array index.

    Attributes
    ----------
    listed : dict of str to bytes
        The directory's entries, by the members' names; empty ones of members
        that are not complete, which a commit leaves out.
    """

    def __init__(
        self,
        sink: Sink,
        listed: dict[str, bytes] | None = None,
        notes: Notes | None = None,
        long_comment: tuple[bytes, LongComment] | None = None,
        *,
        directory: bytes = b"",
        end: bytes = b"",
        head_size: Callable[[bytes], int] = lambda prefix: 0,
    ) -> None:
        self.sink = sink
        self.listed = {} if listed is None else listed
        self._notes = Notes() if notes is None else notes
        self._long_comment = long_comment
        self._directory, self._count, self._end = directory, len(self.listed), end
        self._intent = 0
        self._head_size = head_size
        # While deflated members are under way, no place behind them is known.
        self._is_deflating = False

    def write_member(
        self,
        name: str,
        pieces: Pieces,
        size: int,
        pipeline: Pipeline,
        *,
        coding: Coding,
        extra: bytes = b"",
    ) -> None:
        """Write one member.

        Parameters
        ----------
        name : str
            Written as ASCII, or as UTF-8 with flag bit 11.
        pieces : sequence or iterator of bytes-like
            The data. A sequence may be read twice. It may be changed once the
            pipeline is drained.
        size : int
            Bytes in `pieces` together.
        pipeline : Pipeline
            Whose threads do the work; the member is complete when it is
            drained.
        coding : Coding
        extra : bytes
            For both headers.

        Notes
        -----
        A header is written complete if its values are known first, and always
        if the sink cannot be patched. Otherwise it is patched after the data is
        written. The bytes are the same either way.
        """
        if coding.method == STORED and isinstance(pieces, Sequence):
            self._write_stored(name, pieces, size, pipeline, extra, coding.is_seekable)
            return
        member = self.begin_member(name, size, pipeline, coding=coding, extra=extra)
        for piece in pieces:
            member.write(memoryview(piece))
        member.finish()

    def begin_member(
        self,
        name: str,
        size: int | None,
        pipeline: Pipeline,
        *,
        coding: Coding,
        extra: bytes = b"",
        alignment: int = ALIGNMENT,
        lead_size: int = 0,
    ) -> MemberWriter:
        """Begin a member whose bytes come one after the other.

        Parameters
        ----------
        size : int or None
            Bytes that will come, if that is known. Otherwise the sink must be
            one that can be patched.
        name, pipeline, coding, extra
            As in `write_member`.
        alignment, lead_size : int
            As in `local_bytes`, for a stored member.
        """
        from npzkit.zip.member_writer import MemberWriter

        if coding.method == STORED:
            pipeline.drain()
        else:
            self._is_deflating = True
        self.begin()
        self.listed.setdefault(name, b"")
        layout = partial(local_bytes, alignment=alignment, lead_size=lead_size)
        return MemberWriter(
            self.sink, self.enter, layout, name, size, pipeline, coding, extra, self._head_size
        )

    def begin(self) -> int:
        """Write an append's intent, if this is its first record; return where the next goes."""
        self.leave_empty()
        sink = self.sink
        if sink.position == sink.committed_size > 0:
            end, committed = self._end, sink.position
            intent = format_intent(committed, crc32(end))

            def far(offset: int) -> tuple[bytes, ...]:
                return format_far(offset, directory, count, committed, end)

            directory, count = self._directory, self._count
            record = committed - len(end) + max(end.rfind(END_SIGNATURE), 0)
            sink.begin_append(Append(intent, record, far))
            self._intent = sink.position - INTENT_SIZE
        return sink.position

    def leave_empty(self) -> None:
        """Go on at the start of a new file, if what was committed has no members.

        `np.load` cannot read an archive whose first member is behind an end record.
        """
        sink = self.sink
        if self.listed or not sink.position == sink.committed_size > 0:
            return
        is_bare = sink.committed_size == len(self._end)
        if is_bare or sink.read_at(0, len(END_SIGNATURE)) == END_SIGNATURE:
            sink.start_over()
            self._long_comment = None

    def wait_for_place(self, pipeline: Pipeline) -> None:
        """Wait until it is known where the next member begins."""
        if self._is_deflating:
            pipeline.drain()
            self._is_deflating = False

    def _write_stored(
        self,
        name: str,
        pieces: Sequence[Any],
        size: int,
        pipeline: Pipeline,
        extra: bytes,
        is_seekable: bool,
    ) -> None:
        """Write data that lies in memory, so that its size and its place are known."""
        self.wait_for_place(pipeline)
        sink = self.sink
        if sink.is_concurrent and size >= _PARALLEL_SIZE:
            member = self.reserve_member(name, size, extra, is_seekable=is_seekable)
            _put_down_all(sink, member, pieces, pipeline, self._head_of(pieces))
            return
        from npzkit.zip.chunk_list import stored_chunks

        checks = ChunkChecks(CHECKED_SIZE)
        for piece in pieces:
            checks.add(piece)
        chunks = stored_chunks(checks.crc32s, size) if is_seekable else None
        header = local_header(name, STORED, size, extra)
        header = header._replace(crc32=checks.crc32, compressed_size=size)
        self.put_member(name, header, pieces, self._head_of(pieces), lambda: chunks)

    def put_member(
        self,
        name: str,
        header: LocalHeader,
        pieces: Iterable[Any],
        head: bytes,
        take_chunks: Callable[[], ChunkList | None],
        alignment: int = ALIGNMENT,
        lead_size: int = 0,
    ) -> None:
        """Write a member whose header is known, because its bytes are, or exist already.

        Parameters
        ----------
        name : str
        header : LocalHeader
            With the CRC and both sizes.
        pieces : iterable of bytes-like
            Its bytes as they are in the file.
        head : bytes
            What the array index keeps of it.
        take_chunks : callable
            Called when the pieces are written: returns the list of the member's chunks, if it
            has one.
        alignment, lead_size : int
            As in `local_bytes`, for a stored member.
        """
        header_offset, sink = self.begin(), self.sink
        local = local_bytes(header, header_offset, alignment=alignment, lead_size=lead_size)
        sink.reserve(len(local) + header.compressed_size)
        sink.write(local)
        for piece in pieces:
            sink.write(piece)
        self.enter(name, header, header_offset, local, head, take_chunks())

    def _head_of(self, pieces: Sequence[Any]) -> bytes:
        return head_of(pieces[0], self._head_size) if pieces else b""

    def reserve_member(
        self,
        name: str,
        size: int,
        extra: bytes = b"",
        *,
        is_seekable: bool = True,
        stamp: int | None = None,
    ) -> ReservedMember:
        """Leave room for a stored member whose bytes come in any order.

        Its local header has no CRC-32 until it is sealed, and `stamp`, if one is given, in place
        of its time and date.
        """
        header_offset = self.begin()
        header = local_header(name, STORED, size, extra)._replace(compressed_size=size)
        stamped = header
        if stamp is not None:
            stamped = header._replace(time=stamp & 0xFFFF, date=stamp >> 16)
        local = local_bytes(stamped, header_offset)
        # A commit that comes before the seal makes this the archive's first bytes.
        self.sink.write(local)
        self.sink.skip(size)
        self.listed.setdefault(name, b"")
        return ReservedMember(self, name, header, header_offset, local, is_seekable=is_seekable)

    def write_small(self, members: SmallMembers, method: int) -> None:
        """Write small members together: the bytes are those of `write_member`."""
        pieces, entries, extra_sizes = format_members(members, method, self.begin())
        self.listed.update(zip(members.names, entries, strict=True))
        self._notes.enter_plain(members.names, members.heads, extra_sizes, members.lists)
        for piece in (b"".join(pieces),) if members.are_copies else pieces:
            self.sink.write(piece)

    def enter(
        self,
        name: str,
        header: LocalHeader,
        header_offset: int,
        local: bytes,
        head: bytes,
        chunks: ChunkList | None,
    ) -> None:
        """List a member, with its header as it is formatted; it replaces one of the same name."""
        self.listed[name] = central_bytes(header, header_offset)
        extra_size = len(local) - LOCAL_HEADER_SIZE - len(header.name)
        self._notes.enter(name, head, extra_size, chunks)

    def find_list(self, source: Source, entry: Entry) -> ChunkList | None:
        """Return the list of the chunks of a member that was written, to be read from `source`."""
        return self._notes.find_list(source, entry)

    def rewound(self) -> ZipWriter:
        """Return a writer that writes over what this one wrote, of which nothing was committed."""
        self.sink.rewind()
        return ZipWriter(self.sink, head_size=self._head_size)

    def take(self, other: ZipWriter) -> None:
        """Go on after what another writer to the same sink has written."""
        self.listed, self._notes = other.listed, other._notes

    def commit(self, comment: bytes = b"", avoided: Container[int] = ()) -> None:
        """Write the central directory and the end record: all that is listed counts.

        A comment of any size is taken; see `npzkit.zip.commit`. The file gets none of
        the sizes in `avoided`, at which an older end record would fit.
        """
        self.begin()
        entries = self.listed
        if not all(entries.values()):
            entries = {name: entry for name, entry in entries.items() if entry}
        directory = b"".join(entries.values())
        while True:
            start = self.sink.position
            added = self._added(start, entries, directory, comment)
            offset = start + len(added.record)
            *records64, end = end_bytes(
                len(entries), len(directory), offset, added.comment, directory or added.record
            )
            lead = b"".join(records64)
            records_offset = offset + len(directory)
            end_offset = records_offset + len(lead) + len(end)
            place = self._intent
            room = room_before_end(place, records_offset, end_offset) if place else 0
            if room or end_offset in avoided:
                self.sink.write(bytes(room or 1))
                continue
            ending = None
            if place:
                magic = offset - len(FOOTER_MAGIC), FOOTER_MAGIC
                ending = Ending((place + MARK_OFFSET, format_mark(end_offset)), magic)
            if not self.sink.commit(end, b"".join([added.record, directory, lead]), ending):
                break
        self._directory, self._count, self._end = directory, len(entries), lead + end
        self._intent = 0
        self._notes.committed(added.places)
        self._long_comment = added.long_comment

    def _added(
        self,
        start: int,
        entries: dict[str, bytes],
        directory: bytes,
        comment: bytes,
    ) -> _Added:
        """Return what is written at `start`, before a directory with these entries."""
        lead = b""
        if not (start or entries):
            # An archive begins with a member or an end record, not with a record.
            if len(comment) <= COMMENT_MAX_SIZE:
                return _Added(b"", comment, {}, None)
            lead = b"".join(end_bytes(0, 0, 0, b"", b""))
        added, long = RecordWriter(start + len(lead)), None
        places = self._notes.put_lists(added, entries)
        shown = comment
        if len(comment) > COMMENT_SIZE:
            long = self._long_comment
            if long is None or long[0] != comment:
                long = comment, put_comment(added, comment)
            shown = long[1].comment
        index = self._notes.format(entries, places)
        index_offset = added.put(index)
        added.put(bytes(FOOTER_SIZE))
        record_size = min(added.end - start - len(lead), SENTINEL_32)
        footer = Footer(
            added.end, len(directory), self._intent, record_size, added.end - index_offset,
            len(index), crc32(index), len(entries),
            masked_crc32(directory, positions_of(entries.values())), len(shown), crc32(shown),
        )  # fmt: skip
        data = lead + added.format()[:-FOOTER_SIZE] + footer.format()
        return _Added(data, shown, places, long)


class _Added(NamedTuple):
    """What a commit adds to its directory.

    Attributes
    ----------
    record : bytes
    comment : bytes
        Of the end record.
    places : dict of str to (int, int)
        As of `npzkit.zip.array_index.Notes`.
    long_comment : (bytes, LongComment) or None
        As of `ZipWriter`.
    """

    record: bytes
    comment: bytes
    places: dict[str, tuple[int, int]]
    long_comment: tuple[bytes, LongComment] | None


class ReservedMember:
    """A stored member with reserved room in the file, whose bytes others write.

    Attributes
    ----------
    offset, size : int
        Where its bytes begin in the file, and how many there are.
    header_offset : int
    local : bytes
        Its local header, as it is until it is sealed.
    """

    def __init__(
        self,
        writer: ZipWriter,
        name: str,
        header: LocalHeader,
        header_offset: int,
        local: bytes,
        *,
        is_seekable: bool,
    ) -> None:
        self._writer = writer
        self._name = name
        self._header = header
        self.header_offset = header_offset
        self.local = local
        self._is_seekable = is_seekable
        self.offset = header_offset + len(local)
        self.size = header.uncompressed_size

    def seal(self, crc32s: Sequence[int], head: bytes) -> None:
        """Complete its header and list it, now that its CRC-32s are known.

        Parameters
        ----------
        crc32s : sequence of int
            Of its chunks of `npzkit.codecs.coding.CHECKED_SIZE` bytes.
        head : bytes
            What the array index keeps of it.
        """
        from npzkit.zip.chunk_list import stored_chunks

        size = self.size
        header = self._header._replace(crc32=combined_with_last(crc32s, CHECKED_SIZE, size))
        self._writer.sink.patch(self.header_offset, local_bytes(header, self.header_offset))
        chunks = stored_chunks(crc32s, size) if self._is_seekable else None
        self._writer.enter(self._name, header, self.header_offset, self.local, head, chunks)


def _put_down_all(
    sink: Sink, member: ReservedMember, pieces: Sequence[Any], pipeline: Pipeline, head: bytes
) -> None:
    """Write a member's pieces one behind the other, and seal it.

    This thread writes while others compute the CRC. A file accepts one write at
    a time: two threads that wrote took longer than one (42 and 37 ms for 256
    MiB; writing alone takes 35).
    """
    checks, offset = ChunkChecks(CHECKED_SIZE), 0
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _BLOCK_SIZE):
            block = view[start : start + _BLOCK_SIZE]
            take = partial(chunk_crc32s, block, CHECKED_SIZE, offset + start)
            pipeline.submit(take, partial(checks.put, len(block)))
            sink.patch(member.offset + offset + start, block)
        offset += len(view)
    pipeline.hand_on(lambda: None, lambda _: member.seal(checks.crc32s, head))
