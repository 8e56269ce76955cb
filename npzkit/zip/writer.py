"""Members, central directory and end record, written front to back.

Owns the container's bytes on the way out. Knows no NPY and no files, only a
`Sink`. What it writes is deterministic: no clock, no host, members in the
order they came in, the same for any number of threads. zip64 appears only
where a size, an offset or the number of members needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from npzkit.codecs import STORED, crc32, crc32_combine
from npzkit.parallel import Pipeline
from npzkit.sink import Sink
from npzkit.zip import records
from npzkit.zip.deflate import DeflatedData
from npzkit.zip.extra import format_alignment, format_padding, format_zip64
from npzkit.zip.records import SENTINEL_16, SENTINEL_32, CentralEntry, LocalHeader
from npzkit.zip.sozip import CHUNK_SIZE, SeekIndex, format_index_member

__all__ = ["ALIGNMENT", "Coding", "MemberWriter", "ReservedMember", "ZipWriter"]

ALIGNMENT = 64
"""Of stored data: a cache line. Page-aligned data was read 30 % slower, data
off by 8 bytes took twice the time."""

_EXTERNAL_ATTRIBUTES = 0o600 << 16
_BLOCK_SIZE = 1 << 24
"""Stored bytes that one thread takes: a file written by pieces of 1 MiB was
three times slower to map later."""
_STEP_SIZE = 1 << 20
"""Bytes whose CRC's pass leaves them in the cache."""
_KEPT_SIZE = 1 << 20
"""Bytes of a member that are held back for its header to be complete first."""
_PARALLEL_SIZE = 1 << 21
"""Bytes from which on stored data is written by several threads."""
_ZIP64_SIZE = 20
"""Bytes of a local zip64 block: identifier, length and two sizes."""

Pieces = Sequence[memoryview | bytes] | Iterator[memoryview | bytes]


class Coding(NamedTuple):
    """How a member's bytes are to be put down.

    Attributes
    ----------
    method : int
        `STORED` or `DEFLATED`.
    level : int or None
        0 to 9; None chooses the encoder by a sample of the data.
    chunk_size : int
        Uncompressed bytes of the chunks that are deflated on their own.
    is_seekable : bool
        Whether a seek index follows a member of more than one chunk.
    """

    method: int = STORED
    level: int | None = None
    chunk_size: int = CHUNK_SIZE
    is_seekable: bool = True


class ZipWriter:
    """Writes one archive to a sink.

    Parameters
    ----------
    sink : Sink
        At the start of the archive.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._records: list[bytes] = []
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
        A header goes out complete where its values can be known first, and
        always where the sink cannot be patched. Else it is patched once the
        data is written. The bytes are the same either way.
        """
        if coding.method == STORED and isinstance(pieces, Sequence):
            self._write_stored(name, pieces, size, pipeline, extra)
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
    ) -> MemberWriter:
        """Begin a member whose bytes come one after the other.

        Parameters
        ----------
        size : int or None
            Bytes that will come, where that is known. Else the sink must be
            one that can be patched, and room is left for zip64 sizes.
        name, pipeline, coding, extra
            As in `write_member`.
        """
        if coding.method == STORED:
            pipeline.drain()
        else:
            self._is_deflating = True
        return MemberWriter(self, name, size, pipeline, coding, extra)

    def _write_stored(
        self, name: str, pieces: Sequence[Any], size: int, pipeline: Pipeline, extra: bytes
    ) -> None:
        """Write data that lies in memory, so that its size and its place are known."""
        if self._is_deflating:
            pipeline.drain()
            self._is_deflating = False
        sink = self.sink
        if sink.is_concurrent and size >= _PARALLEL_SIZE:
            member = self.reserve_member(name, size, extra)
            _put_down_all(sink, member, pieces, pipeline)
            return
        header_offset = sink.position
        crc = 0
        for piece in pieces:
            crc = crc32(piece, crc)
        header = local_header(name, STORED, size, extra)
        header = header._replace(crc32=crc, compressed_size=size)
        local = local_bytes(header, header_offset)
        sink.reserve(len(local) + size)
        sink.write(local)
        for piece in pieces:
            sink.write(piece)
        pipeline.hand_on(lambda: None, lambda _: self.enter(header, header_offset))

    def reserve_member(self, name: str, size: int, extra: bytes = b"") -> ReservedMember:
        """Leave room for a stored member whose bytes come in any order."""
        header_offset = self.sink.position
        header = local_header(name, STORED, size, extra)._replace(compressed_size=size)
        local = local_bytes(header, header_offset)
        self.sink.skip(len(local) + size)
        return ReservedMember(self, header, header_offset, header_offset + len(local))

    def write_small(self, members: Iterable[tuple[bytes, bytes, bytes, int]]) -> None:
        """Write many small stored members, in less than a microsecond each.

        Parameters
        ----------
        members : iterable of (bytes, bytes, bytes, int)
            Of each the name, in ASCII; its data in two parts, the NPY header
            and what follows it; the CRC of both.

        Notes
        -----
        The bytes are those of `write_member`; they go to the sink together.
        """
        offset = self.sink.position
        parts: list[bytes] = []
        add, enter = parts.append, self._records.append
        pack, pack_entry = records.LOCAL.pack, records.CENTRAL.pack
        local_signature = records.LOCAL_HEADER_SIGNATURE
        central_signature = records.CENTRAL_ENTRY_SIGNATURE
        version, date = records.VERSION_DEFAULT, records.DOS_DATE_1980
        made_by = records.CREATE_SYSTEM_UNIX | version
        paddings = _PADDINGS
        for name, head, data, crc in members:
            name_size = len(name)
            size = len(head) + len(data)
            padding = paddings[(offset + records.LOCAL_HEADER_SIZE + name_size) % ALIGNMENT]
            add(
                pack(
                    local_signature, version, 0, STORED, 0, date, crc, size, size,
                    name_size, len(padding),
                )
            )  # fmt: skip
            add(name)
            add(padding)
            add(head)
            add(data)
            enter(
                pack_entry(
                    central_signature, made_by, version, 0, STORED, 0, date, crc, size, size,
                    name_size, 0, 0, 0, 0, _EXTERNAL_ATTRIBUTES, offset,
                ) + name
            )  # fmt: skip
            offset += records.LOCAL_HEADER_SIZE + name_size + len(padding) + size
        self.sink.write(b"".join(parts))

    def leave_entry(self) -> int:
        """Leave a place in the directory for a member that is listed later."""
        self._records.append(b"")
        return len(self._records) - 1

    def enter(self, header: LocalHeader, header_offset: int, place: int | None = None) -> None:
        """List a member in the directory, behind the others or in its place."""
        entry = CentralEntry(
            records.CREATE_SYSTEM_UNIX | header.version_needed,
            *header[:8],
            disk_start=0,
            internal_attributes=0,
            external_attributes=_EXTERNAL_ATTRIBUTES,
            header_offset=header_offset,
            name=header.name,
            extra=header.extra,
            comment=b"",
        )
        place = self.leave_entry() if place is None else place
        self._records[place] = _central_bytes(entry)

    def finish(self, comment: bytes = b"") -> None:
        """Write the central directory and the end record."""
        directory_offset = self.sink.position
        self.sink.write(b"".join(self._records))
        size = self.sink.position - directory_offset
        for part in _end_bytes(len(self._records), size, directory_offset, comment):
            self.sink.write(part)


class ReservedMember:
    """A stored member with a place in the file, whose bytes are put there by others.

    Attributes
    ----------
    offset, size : int
        Where its bytes begin in the file, and how many there are.
    """

    def __init__(
        self, writer: ZipWriter, header: LocalHeader, header_offset: int, offset: int
    ) -> None:
        self._writer = writer
        self._header = header
        self._header_offset = header_offset
        self._entry = writer.leave_entry()
        self.offset = offset
        self.size = header.uncompressed_size

    def seal(self, crc: int) -> None:
        """Complete its header and list it, now that its CRC is known."""
        header = self._header._replace(crc32=crc)
        self._writer.sink.patch(self._header_offset, local_bytes(header, self._header_offset))
        self._writer.enter(header, self._header_offset, self._entry)


class MemberWriter:
    """One member, written front to back; see `ZipWriter.begin_member`.

    Its header waits for the member's end where little comes, or where the sink
    cannot be patched; else it is put down at once and patched at the end.

    Attributes
    ----------
    size : int
        Bytes written so far, uncompressed.
    """

    def __init__(
        self,
        writer: ZipWriter,
        name: str,
        size: int | None,
        pipeline: Pipeline,
        coding: Coding,
        extra: bytes,
    ) -> None:
        self.size = 0
        self._writer = writer
        self._sink = writer.sink
        self._name = name
        self._header = local_header(name, coding.method, size, extra)
        self._has_room = size is None
        self._is_seekable = coding.is_seekable
        self._chunk_size = coding.chunk_size
        self._pipeline = pipeline
        self._offset = -1
        self._kept: list[bytes] = []
        self._compressed_size = 0
        self._crc = 0
        self._start, self._start_offset = b"", 0
        self._deflated = (
            None
            if coding.method == STORED
            else DeflatedData(self._take, pipeline, coding.level, coding.chunk_size)
        )

    def write_start(self, data: bytes) -> None:
        """Write the first bytes, which `finish` may replace by as many others."""
        self._pipeline.drain()
        self._start = data
        self.size = len(data)
        if self._deflated is None:
            self._take_stored(memoryview(data))
        else:
            self._start_offset = self._deflated.write_as_is(data)

    def write(self, view: memoryview) -> None:
        """Write the next bytes; they may change once the pipeline is drained."""
        self.size += len(view)
        if self._deflated is not None:
            self._deflated.write(view)
        else:
            self._pipeline.drain()
            for offset in range(0, len(view), _STEP_SIZE):
                self._take_stored(view[offset : offset + _STEP_SIZE])

    def finish(self, start: bytes | None = None) -> None:
        """Complete the member: header, entry, seek index. `start` is as in `write_start`."""
        if self._deflated is not None:
            self._deflated.finish()
        self._pipeline.hand_on(lambda: start, self._complete)

    def _take_stored(self, data: memoryview) -> None:
        self._crc = crc32(data, self._crc)
        self._take(data)

    def _take(self, data: bytes | memoryview) -> None:
        """Put down the next bytes of the file; called in their order."""
        self._compressed_size += len(data)
        if self._offset >= 0:
            self._sink.write(data)
            return
        self._kept.append(bytes(data))
        if self._sink.can_patch and self._compressed_size > _KEPT_SIZE:
            self._put_header(self._header)

    def _put_header(self, header: LocalHeader) -> None:
        """Put down the header, and all that waited for it."""
        self._offset = self._sink.position
        local = local_bytes(header, self._offset, has_room=self._has_room)
        self._start_offset += self._offset + len(local)
        self._sink.write(local)
        for data in self._kept:
            self._sink.write(data)
        self._kept.clear()

    def _complete(self, start: bytes | None) -> None:
        deflated = self._deflated
        header = self._header._replace(
            crc32=self._crc if deflated is None else deflated.crc32,
            compressed_size=self._compressed_size,
            uncompressed_size=self.size,
        )
        if start is not None and start != self._start:
            header = header._replace(crc32=self._crc_with(start, header.crc32))
        was_put = self._offset >= 0
        if not was_put:
            self._put_header(header)
        if was_put:
            self._sink.patch(
                self._offset, local_bytes(header, self._offset, has_room=self._has_room)
            )
        if start is not None and start != self._start:
            self._sink.patch(self._start_offset, start)
        if self._has_room and deflated is not None and not _needs_zip64(header):
            # Readers of seek indexes go by the central extra field's size.
            header = header._replace(extra=format_padding(_ZIP64_SIZE) + header.extra)
        self._writer.enter(header, self._offset)
        if deflated is not None and self._is_seekable and len(deflated.offsets) > 1:
            offsets = (*deflated.offsets, self._compressed_size)
            index = SeekIndex(self._chunk_size, offsets, self.size)
            self._sink.write(format_index_member(self._name, index))

    def _crc_with(self, start: bytes, crc: int) -> int:
        """Return the CRC of all bytes once `start` replaced their first ones.

        A CRC is linear: what the two starts differ by is moved over the rest.
        """
        size = self.size - len(start)
        for data in (self._start, start):
            crc ^= crc32_combine(crc32(data), 0, size)
        return crc


def local_header(name: str, method: int, size: int | None, extra: bytes) -> LocalHeader:
    """Return a member's header without what is known only later.

    Whether it needs zip64 sizes is decided by the most it can come to, so that
    the header's own size never changes; where `size` is None, at the end.
    """
    raw_name = name.encode("utf-8")
    is_large = size is not None and _largest_size(size, method) >= SENTINEL_32
    return LocalHeader(
        records.VERSION_ZIP64 if is_large else records.VERSION_DEFAULT,
        0 if raw_name.isascii() else records.FLAG_UTF8,
        method, 0, records.DOS_DATE_1980, 0, 0, size or 0, raw_name, extra,
    )  # fmt: skip


def local_bytes(header: LocalHeader, offset: int, *, has_room: bool = False) -> bytes:
    """Format a local header, with zip64 sizes and alignment as needed.

    With `has_room` there is room for zip64 sizes where they are not needed.
    """
    extra = header.extra
    if _needs_zip64(header):
        # Section 4.5.3: in a local header both sizes must be there.
        extra = format_zip64([header.uncompressed_size, header.compressed_size]) + extra
        header = header._replace(
            version_needed=records.VERSION_ZIP64,
            compressed_size=SENTINEL_32,
            uncompressed_size=SENTINEL_32,
        )
    elif has_room:
        extra = format_padding(_ZIP64_SIZE) + extra
    if header.method == STORED:
        end = offset + records.LOCAL_HEADER_SIZE + len(header.name) + len(extra)
        extra += format_alignment(end, ALIGNMENT)
    return records.format_local_header(header._replace(extra=extra))


def _needs_zip64(header: LocalHeader) -> bool:
    return (
        header.version_needed >= records.VERSION_ZIP64
        or max(header.uncompressed_size, header.compressed_size) >= SENTINEL_32
    )


def _put_down_all(
    sink: Sink, member: ReservedMember, pieces: Sequence[Any], pipeline: Pipeline
) -> None:
    """Write a member's pieces one behind the other, blocks at the same time, and seal it."""
    crc, offset = 0, member.offset

    def add(found: tuple[int, int]) -> None:
        nonlocal crc
        crc = crc32_combine(crc, *found)

    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _BLOCK_SIZE):
            block = view[start : start + _BLOCK_SIZE]
            pipeline.submit(partial(_put_down, sink, offset + start, block), add)
        offset += len(view)
    pipeline.hand_on(lambda: None, lambda _: member.seal(crc))


def _put_down(sink: Sink, offset: int, block: memoryview) -> tuple[int, int]:
    """Write a block in its place; return its CRC and its size."""
    crc = 0
    for start in range(0, len(block), _STEP_SIZE):
        crc = crc32(block[start : start + _STEP_SIZE], crc)
    sink.patch(offset, block)
    return crc, len(block)


def _largest_size(size: int, method: int) -> int:
    """Bound what a member may take: deflate spends at most 9 bits on a byte."""
    return size if method == STORED else size + size // 8 + 1024


def _central_bytes(entry: CentralEntry) -> bytes:
    """Format an entry; what does not fit 32 bits moves to a zip64 block."""
    names = ("uncompressed_size", "compressed_size", "header_offset")
    large = {name: value for name in names if (value := getattr(entry, name)) >= SENTINEL_32}
    if large:
        zip64_version = records.CREATE_SYSTEM_UNIX | records.VERSION_ZIP64
        entry = entry._replace(
            extra=format_zip64(list(large.values())) + entry.extra,
            version_made_by=zip64_version,
            version_needed=records.VERSION_ZIP64,
            **cast(Any, dict.fromkeys(large, SENTINEL_32)),
        )
    return records.format_central_entry(entry)


def _end_bytes(count: int, size: int, offset: int, comment: bytes) -> Iterator[bytes]:
    """Format the end record, with zip64 records before it where they are needed."""
    if count >= SENTINEL_16 or max(size, offset) >= SENTINEL_32:
        yield records.format_zip64_end_of_central_directory(
            records.Zip64EndOfCentralDirectory(
                records.ZIP64_END_SIZE - 12,
                records.CREATE_SYSTEM_UNIX | records.VERSION_ZIP64,
                records.VERSION_ZIP64,
                0, 0, count, count, size, offset,
            )
        )  # fmt: skip
        yield records.format_zip64_locator(records.Zip64Locator(0, offset + size, 1))
    small_count = min(count, SENTINEL_16)
    yield records.format_end_of_central_directory(
        records.EndOfCentralDirectory(
            0,
            0,
            small_count,
            small_count,
            min(size, SENTINEL_32),
            min(offset, SENTINEL_32),
            comment,
        )
    )


_PADDINGS = [format_alignment(offset, ALIGNMENT) for offset in range(ALIGNMENT)]
"""The padding for a header that ends at each offset, modulo the alignment."""
