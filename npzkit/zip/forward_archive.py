"""An archive in a stream: its members as they come, and its directory at the end.

Owns the walk from record to record. An archive that was appended to has a
directory and an end record between its members, so the walk goes on to the end
of the stream. It keeps headers, directories and end records, but no data of
members. At the end, `read_directory` reads what was kept as it reads a file:
which record counts is decided by the same rules. A local header is compared
with its entry by `data_offset`, as in a file.

Members come before anything says whether the directory lists them. The caller
compares `members` with the directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

from npzkit.codecs.coding import CHUNKED, STORED
from npzkit.errors import LimitExceededError, NoDataError, NpzkitError, ZipFormatError
from npzkit.files.forward_source import ForwardSource
from npzkit.files.source import BufferSource
from npzkit.limits import Limits
from npzkit.zip import records
from npzkit.zip.commit import FOOTER_SIZE, INTENT_SIZE
from npzkit.zip.directory import Directory, check_member_count, check_total_size, read_directory
from npzkit.zip.end_record import not_an_archive
from npzkit.zip.entries import UNKNOWN_SIZE, Entry
from npzkit.zip.local_header import check_crc32, check_entry, data_offset, header_end
from npzkit.zip.member_search import RECORD_SIZES, descriptor_size, entry_of_header
from npzkit.zip.member_stream import ArrivingStream, LateStream, UndescribedStream
from npzkit.zip.npzkit_record import HEAD_SIZE, piece_size

_TAIL_SIZE = records.ZIP64_RECORDS_SIZE + records.END_SIZE + records.COMMENT_MAX_SIZE
"""The stream's last bytes, in which end records are searched for."""
_SIGNATURE = re.compile(
    b"|".join(map(re.escape, (records.LOCAL_HEADER_SIGNATURE, *RECORD_SIZES))), re.DOTALL
)
_GAP_STEP = 1 << 12
_GAP_KEPT_SIZE = 128
"""Bytes kept of those that belong to no record: enough to say what follows an archive."""
_DIRECTORY_COUNT = 2
"""Directories that are kept: that of the last commit, and of one that may follow unfinished."""
_BEGINNING_SIZE = 512
"""Bytes that say what a stream seems to be which is no archive."""


class ForwardArchive:
    """An archive that is read from front to back.

    Parameters
    ----------
    stream : object with ``read``
        The archive begins where it is.
    limits : Limits

    Attributes
    ----------
    source : ForwardSource
    limits : Limits
    has_commit : bool
        Whether an end record came. What follows it may not be committed.
    """

    def __init__(self, stream: object, limits: Limits) -> None:
        self.source, self.limits = ForwardSource(stream, _TAIL_SIZE), limits
        self._count = self._total = 0
        self.has_commit = False
        self._is_in_directory = False
        self._directories: list[int] = []
        # By offset, the CRC and the sizes of each member whose local header does not have them.
        self._found: dict[int, tuple[int, int, int] | None] = {}

    def members(self) -> Iterator[ForwardMember]:
        """Yield each member. Its data is passed over unless it is read before the next one.

        The stream's end, wherever it is, ends the iteration. `read_directory`
        says whether the archive is complete.
        """
        while head := self.source.peek(4):
            if head == records.LOCAL_HEADER_SIGNATURE:
                member = self._begin_member()
                if member is None:
                    return
                yield member
                try:
                    self.end(member)
                except LimitExceededError:
                    raise
                except NpzkitError:
                    # What is wrong with the data was the reader's to find.
                    pass
            elif head in RECORD_SIZES:
                self._keep_record(head)
            else:
                self._pass_gap()

    def read_directory(self, *, strict: bool = False) -> Directory:
        """Read the directory at the end of the stream; see `npzkit.zip.directory.read_directory`.

        To be called after the iteration.
        """
        return read_directory(self.source, strict=strict, limits=self.limits)

    def check(self, entry: Entry) -> None:
        """Compare an entry of the directory with the member that came in the stream.

        Raises
        ------
        ZipFormatError
            None came at its offset, or they disagree.
        NpzkitError
            As `check_entry` and `data_offset`.
        """
        if entry.header_offset not in self._found:
            raise ZipFormatError(
                "the directory lists a member that did not come in the stream",
                offset=entry.header_offset,
            )
        check_entry(entry)
        data_offset(self.source, entry)
        found = self._found[entry.header_offset]
        if found is not None and found != entry.described:
            raise ZipFormatError(
                "the data and the central directory disagree",
                offset=entry.header_offset,
                found=found,
                expected=entry.described,
            )

    def _begin_member(self) -> ForwardMember | None:
        """Read a local header; None if the stream ends in it."""
        self._end_directory()
        source, size = self.source, records.LOCAL_HEADER_SIZE
        offset, head = source.offset, source.peek(size)
        if len(head) == size:
            size = header_end(head)
        data = source.keep(size)
        if len(data) < size:
            return None
        entry = _entry_of(data, offset)
        self._found[offset] = None
        member = ForwardMember(source, entry, self.limits.member_size)
        self._charge(0 if member.is_described_late else entry.uncompressed_size, 1)
        return member

    def _charge(self, size: int, count: int = 0) -> None:
        """Count members and their bytes, also of those that no directory lists any more."""
        self._count += count
        self._total += size
        check_member_count(self._count, self.limits)
        check_total_size(self._total, self.limits)

    def end(self, member: ForwardMember) -> None:
        """Move to the end of the member that was yielded last; see `ForwardMember.end`."""
        stream = None if member.has_ended else member.end()
        if stream is not None:
            self._charge(stream.tell())
            self._found[member.entry.header_offset] = stream.found.described

    def _keep_record(self, signature: bytes) -> None:
        """Keep a record of the directory, or of its end, and what is needed of npzkit's own."""
        added = piece_size(self.source.peek(HEAD_SIZE))
        if added:
            self._end_directory()
            # An intent is small, and a footer is the end of its piece.
            self.source.keep(min(added, INTENT_SIZE))
            left = max(added - INTENT_SIZE, 0)
            self.source.take(max(left - FOOTER_SIZE, 0))
            self.source.keep(min(left, FOOTER_SIZE))
            return
        if not self._is_in_directory:
            self._is_in_directory = True
            self._directories.append(self.source.begin_piece())
            if len(self._directories) > _DIRECTORY_COUNT:
                self.source.drop_piece(self._directories.pop(0))
        size = RECORD_SIZES[signature]
        head = self.source.peek(size)
        if len(head) == size and signature == records.CENTRAL_ENTRY_SIGNATURE:
            size += sum(records.ENTRY_SIZES.unpack(head))
        elif len(head) == size and signature == records.END_SIGNATURE:
            size += int.from_bytes(head[-2:], "little")
        self.source.keep(size)
        if signature == records.END_SIGNATURE:
            self.has_commit = True
            self._end_directory()

    def _end_directory(self) -> None:
        """Keep what follows apart from the directory, so that this can be dropped."""
        if self._is_in_directory:
            self._is_in_directory = False
            self.source.begin_piece()

    def _pass_gap(self) -> None:
        """Pass over bytes that are no record, up to the next signature.

        Raises
        ------
        ZipFormatError
            The stream begins with them, so it is no archive.
        """
        source = self.source
        if not source.offset:
            raise not_an_archive(BufferSource(source.peek(_BEGINNING_SIZE)))
        kept = _GAP_KEPT_SIZE
        while data := source.peek(_GAP_STEP):
            found = _SIGNATURE.search(data)
            # A signature may begin in the last bytes.
            size = found.start() if found else max(len(data) - 3, 1)
            source.keep(min(size, kept))
            source.take(max(size - kept, 0))
            kept = max(kept - size, 0)
            if found:
                return


class ForwardMember:
    """A member whose data comes next in the stream.

    Parameters
    ----------
    source : ForwardSource
    entry : Entry
        By the local header alone.
    size_limit : int or None

    Attributes
    ----------
    entry : Entry
        With sizes of `UNKNOWN_SIZE` if they follow the data.
    has_ended : bool
        Whether the source is at the end of the member.
    """

    def __init__(self, source: ForwardSource, entry: Entry, size_limit: int | None) -> None:
        self.entry = entry
        self._source, self._size_limit = source, size_limit
        self._start = source.offset
        self._stream: ArrivingStream | None = None
        self.has_ended = False

    @property
    def is_described_late(self) -> bool:
        """Whether its sizes and its CRC follow the data."""
        return bool(self.entry.flags & records.FLAG_DESCRIPTOR)

    def held(self, size: int) -> bytes | None:
        """Return the bytes of a member that is stored or in chunks; None if they exceed `size`.

        Raises
        ------
        NpzkitError
            As `check_entry`.
        """
        entry = self.entry
        if entry.compressed_size > size or entry.method not in (STORED, *CHUNKED):
            return None
        check_entry(entry, self._size_limit)
        return self._source.peek(entry.compressed_size)

    def open(self) -> ArrivingStream:
        """Return the member's data as a stream.

        Raises
        ------
        NpzkitError
            As `check_entry` and `UndescribedStream`.
        """
        if self._stream is None:
            self._stream = self._opened()
        return self._stream

    def _opened(self) -> ArrivingStream:
        entry = self.entry
        is_unknown = entry.uncompressed_size == UNKNOWN_SIZE
        check_entry(entry, None if is_unknown else self._size_limit)
        if not self.is_described_late:
            return ArrivingStream(self._source, entry, self._start)
        if is_unknown and entry.method == STORED:
            empty = entry._replace(crc32=0, compressed_size=0, uncompressed_size=0)
            if descriptor_size(self._source.peek, empty):
                # Programs that write to a pipe describe folders so.
                return LateStream(self._source, empty, self._start)
        if is_unknown:
            return UndescribedStream(self._source, entry, self._start, self._size_limit)
        return LateStream(self._source, entry, self._start)

    def end(self) -> LateStream | None:
        """Move on to where the member ends, after its data and its descriptor.

        Returns the stream of data whose CRC and sizes follow it.

        Raises
        ------
        ZipFormatError, ChecksumError
            The descriptor disagrees with the data; or the data is damaged, and
            was not read before.
        UnsupportedError
            Nothing shows where the data ends.
        """
        self.has_ended = True
        if not self.is_described_late:
            self._source.skip_to(self._start + self.entry.compressed_size)
            return None
        stream = cast(LateStream, self.open())
        stream.drain()
        self._keep_descriptor(stream.found)
        return stream

    def _keep_descriptor(self, found: Entry) -> None:
        """Compare the descriptor that follows the data with what was found, and keep it."""
        size = descriptor_size(self._source.peek, found)
        if size:
            self._source.keep(size)
            return
        data = self._source.peek(records.DESCRIPTOR_MAX_SIZE)
        if len(data) < records.DESCRIPTOR_MIN_SIZE:
            raise NoDataError("the stream ends early", offset=self._source.offset)
        for place in (4, 0):
            claimed = found._replace(crc32=int.from_bytes(data[place : place + 4], "little"))
            if data.startswith(records.data_descriptors(*claimed.described)):
                check_crc32(found.crc32, claimed, self._start)
        raise ZipFormatError(
            "the data descriptor and the data disagree",
            offset=self._source.offset,
            found=data,
            expected=found.described,
        )


def _entry_of(data: bytes, offset: int) -> Entry:
    """Return what a local header, which begins at `offset`, says of its member."""
    entry = entry_of_header(data, offset)
    if entry.flags & records.FLAG_DESCRIPTOR:
        size = entry.uncompressed_size
        # Info-ZIP gives the size of stored data here, and only the CRC after it.
        if (
            entry.method != STORED
            or not size
            or records.SENTINEL_32 in (size, entry.compressed_size)
        ):
            end = offset + len(data) + UNKNOWN_SIZE
            return entry._replace(
                compressed_size=UNKNOWN_SIZE, uncompressed_size=UNKNOWN_SIZE, end_offset=end
            )
    return entry
