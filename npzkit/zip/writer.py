"""Members, central directory and end record, written front to back.

Owns the container's bytes on the way out. Knows no NPY and no files, only a
`Sink`. What it writes is deterministic: no clock, no host, members in the
order they came in. zip64 appears only where a size, an offset or the number
of members needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from npzkit.codecs import STORED, compressor, crc32
from npzkit.sink import Sink
from npzkit.zip import records
from npzkit.zip.extra import format_alignment, format_zip64
from npzkit.zip.records import SENTINEL_16, SENTINEL_32, CentralEntry, LocalHeader

__all__ = ["ALIGNMENT", "ZipWriter"]

ALIGNMENT = 64
"""Of stored data: a cache line. Page-aligned data was read 30 % slower, data
off by 8 bytes took twice the time."""

_EXTERNAL_ATTRIBUTES = 0o600 << 16
_INPUT_SIZE = 1 << 20

Pieces = Sequence[memoryview | bytes] | Iterator[memoryview | bytes]


class ZipWriter:
    """Writes one archive to a sink.

    Parameters
    ----------
    sink : Sink
        At the start of the archive.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._entries: list[CentralEntry] = []

    def write_member(
        self,
        name: str,
        pieces: Pieces,
        size: int,
        *,
        method: int = STORED,
        level: int | None = None,
        extra: bytes = b"",
    ) -> CentralEntry:
        """Write one member.

        Parameters
        ----------
        name : str
            Written as ASCII, or as UTF-8 with flag bit 11.
        pieces : sequence or iterator of bytes-like
            The data. A sequence is read twice, first for its CRC.
        size : int
            Bytes in `pieces` together.
        method : int
            `STORED` or `DEFLATED`.
        level : int, optional
            0 to 9.
        extra : bytes
            For both headers.

        Returns
        -------
        CentralEntry
            What the directory will say.

        Notes
        -----
        A header goes out complete where its values can be known first: of
        stored data that lies in memory, and always where the sink cannot be
        patched. Else it is patched once the data is written. The bytes are
        the same either way.
        """
        raw_name, flags = _encode_name(name)
        is_large = _largest_size(size, method) >= SENTINEL_32
        if method == STORED and isinstance(pieces, Sequence):
            header = LocalHeader(
                records.VERSION_ZIP64 if is_large else records.VERSION_DEFAULT,
                flags, method, 0, records.DOS_DATE_1980, _crc32_of(pieces), size, size,
                raw_name, extra,
            )  # fmt: skip
            return self._write(header, pieces, is_large)
        tally = _Tally()
        compressed = _compress(pieces, method, level, tally)
        header = LocalHeader(
            records.VERSION_ZIP64 if is_large else records.VERSION_DEFAULT,
            flags, method, 0, records.DOS_DATE_1980, 0, 0, size, raw_name, extra,
        )  # fmt: skip
        if self._sink.can_patch:
            return self._write_and_patch(header, compressed, is_large, tally)
        kept = [bytes(piece) for piece in compressed]
        return self._write(tally.complete(header), kept, is_large)

    def _write(self, header: LocalHeader, pieces: Pieces, is_large: bool) -> CentralEntry:
        header_offset = self._sink.position
        local = self._local_bytes(header, is_large, header_offset)
        self._sink.reserve(len(local) + header.compressed_size)
        self._sink.write(local)
        for piece in pieces:
            self._sink.write(piece)
        return self._enter(header, header_offset)

    def _write_and_patch(
        self, header: LocalHeader, pieces: Iterable[Any], is_large: bool, tally: _Tally
    ) -> CentralEntry:
        header_offset = self._sink.position
        if header.method == STORED:
            self._sink.reserve(header.uncompressed_size)
        self._sink.write(self._local_bytes(header, is_large, header_offset))
        for piece in pieces:
            self._sink.write(piece)
        header = tally.complete(header)
        self._sink.patch(header_offset, self._local_bytes(header, is_large, header_offset))
        return self._enter(header, header_offset)

    def _local_bytes(self, header: LocalHeader, is_large: bool, offset: int) -> bytes:
        """Format a local header, with zip64 sizes and alignment as needed."""
        extra = header.extra
        if is_large:
            # Section 4.5.3: in a local header both sizes must be there.
            extra = format_zip64([header.uncompressed_size, header.compressed_size]) + extra
            header = header._replace(compressed_size=SENTINEL_32, uncompressed_size=SENTINEL_32)
        if header.method == STORED:
            end = offset + records.LOCAL_HEADER_SIZE + len(header.name) + len(extra)
            extra += format_alignment(end, ALIGNMENT)
        return records.format_local_header(header._replace(extra=extra))

    def _enter(self, header: LocalHeader, header_offset: int) -> CentralEntry:
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
        self._entries.append(entry)
        return entry

    def finish(self, comment: bytes = b"") -> None:
        """Write the central directory and the end record."""
        directory_offset = self._sink.position
        for entry in self._entries:
            self._sink.write(_central_bytes(entry))
        size = self._sink.position - directory_offset
        for part in _end_bytes(len(self._entries), size, directory_offset, comment):
            self._sink.write(part)


class _Tally:
    """CRC and compressed size of a member, known only once it is written."""

    def __init__(self) -> None:
        self.crc32 = 0
        self.compressed_size = 0

    def complete(self, header: LocalHeader) -> LocalHeader:
        return header._replace(crc32=self.crc32, compressed_size=self.compressed_size)


def _compress(
    pieces: Iterable[Any], method: int, level: int | None, tally: _Tally
) -> Iterator[bytes | memoryview]:
    """Yield the member's bytes as they are to be written, keeping the tally."""
    encoder = None if method == STORED else compressor(method, level)
    for piece in _split(pieces):
        tally.crc32 = crc32(piece, tally.crc32)
        out = piece if encoder is None else encoder.compress(piece)
        tally.compressed_size += len(out)
        if out:
            yield out
    if encoder is not None:
        out = encoder.flush()
        tally.compressed_size += len(out)
        yield out


def _split(pieces: Iterable[Any]) -> Iterator[memoryview]:
    """Cut pieces to a size at which the CRC's pass leaves them in the cache."""
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _INPUT_SIZE):
            yield view[start : start + _INPUT_SIZE]


def _crc32_of(pieces: Iterable[Any]) -> int:
    crc = 0
    for piece in pieces:
        crc = crc32(piece, crc)
    return crc


def _largest_size(size: int, method: int) -> int:
    """Bound what a member may take: deflate spends at most 9 bits on a byte."""
    return size if method == STORED else size + size // 8 + 1024


def _encode_name(name: str) -> tuple[bytes, int]:
    raw = name.encode("utf-8")
    return raw, 0 if raw.isascii() else records.FLAG_UTF8


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
