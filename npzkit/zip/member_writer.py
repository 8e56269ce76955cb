"""One member whose bytes come one after the other, stored or compressed.

Decides in which order header and data go out, what is patched when the
data is there, and how compressed data is cut: into chunks, each compressed on its own
and at a known offset; into groups of them, one per thread at a time; into sections,
each with an encoder chosen for it if it is deflated. The stream depends on the bytes
and on the pieces they come in, never on the threads. Knows nothing of other members.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from operator import add
from typing import Any, NamedTuple, cast

from npzkit.codecs.checksum import ChunkChecks, crc32, crc32_combine
from npzkit.codecs.coding import CHECKED_SIZE, STORED, ZSTANDARD, Coding
from npzkit.codecs.encoders import (
    Encoder,
    choose_encoder,
    deflate_chunk,
    encoder_for_level,
    encoder_for_small,
)
from npzkit.codecs.zstandard import ZstandardEncoder
from npzkit.files.sink import Sink
from npzkit.files.source import Source
from npzkit.files.threads import Pipeline
from npzkit.zip.array_index import head_of
from npzkit.zip.chunk_list import ChunkList, stored_chunks
from npzkit.zip.records import LocalHeader
from npzkit.zip.written_header import local_header, may_need_zip64

_STEP_SIZE = 1 << 20
"""Bytes that are written right after their CRC was taken, while they are in the cache."""
_KEPT_SIZE = 1 << 20
"""Bytes of a member that are kept in memory so that its header is complete first."""


class MemberWriter:
    """One member, written front to back; see `npzkit.zip.writer.ZipWriter.begin_member`.

    The header of a small member, or for a sink that cannot be patched, is
    written at the member's end. Any other is written at once and patched at the
    end.

    Parameters
    ----------
    sink : Sink
    enter : callable
        Lists the member; see `npzkit.zip.writer.ZipWriter.enter`.
    layout : callable
        Formats its header for the offset it is put at; see `npzkit.zip.written_header.local_bytes`.
    name, size, pipeline, coding, extra
        As in `npzkit.zip.writer.ZipWriter.begin_member`.
    head_size : callable
        As of `npzkit.zip.writer.ZipWriter`.

    Attributes
    ----------
    size : int
        Bytes written so far, uncompressed.
    crc32 : int
        Of all of them, once the pipeline was drained after `finish`.
    """

    def __init__(
        self,
        sink: Sink,
        enter: Callable[[str, LocalHeader, int, bytes, bytes, ChunkList | None], object],
        layout: Callable[..., bytes],
        name: str,
        size: int | None,
        pipeline: Pipeline,
        coding: Coding,
        extra: bytes,
        head_size: Callable[[bytes], int],
    ) -> None:
        self.size = 0
        self.crc32 = 0
        self._sink, self._enter, self._head_size = sink, enter, head_size
        self._has_room = may_need_zip64(coding.method, size)
        self._layout = partial(layout, has_room=self._has_room)
        self._name = name
        self._header = local_header(name, coding.method, size, extra)
        self._is_seekable = coding.is_seekable
        self._chunk_size = coding.chunk_size
        self._pipeline = pipeline
        self._offset = -1
        self._kept: list[bytes] = []
        self._compressed_size = 0
        self._checks = ChunkChecks(CHECKED_SIZE)
        self._start, self._start_offset = b"", 0
        self._head = self._local = b""
        self._chunks = (
            None if coding.method == STORED else ChunkedData(self._take, pipeline, coding)
        )

    def write_start(self, data: bytes) -> None:
        """Write the first bytes, which `finish` may replace by as many others.

        Compressed, they must be fewer than a chunk's.
        """
        self._pipeline.drain()
        self._start = self._head = data
        self.size = len(data)
        if self._chunks is None:
            self._take_stored(memoryview(data))
        else:
            self._start_offset = self._chunks.write_as_is(data)
            self._is_seekable = self._is_seekable and len(data) < self._chunk_size

    def write(self, view: memoryview) -> None:
        """Write the next bytes; they may change once the pipeline is drained."""
        if not self.size:
            self._head = head_of(view, self._head_size)
            if self._chunks is not None:
                begun = self._chunks.begin(self._head)
                self.size, view = begun, view[begun:]
        self.size += len(view)
        if self._chunks is not None:
            self._chunks.write(view)
        else:
            self._pipeline.drain()
            for offset in range(0, len(view), _STEP_SIZE):
                self._take_stored(view[offset : offset + _STEP_SIZE])

    def copy_chunks(
        self, source: Source, start: int, listed: ChunkList, first: int, end: int
    ) -> None:
        """Write whole chunks of another member as they are, except its last one.

        What was written before must end with a chunk, and both have chunks of one size.

        Parameters
        ----------
        source : Source
        start : int
            Where the other member's data begins.
        listed : ChunkList
            Of the other member.
        first, end : int
            The number of the first chunk, and the one behind the last.
        """
        step = max(_GROUP_SIZE // self._chunk_size, 1)
        for begin in range(first, end, step):
            stop = min(begin + step, end)
            offsets = listed.offsets[begin : stop + 1]
            data = source.read_at(start + offsets[0], offsets[-1] - offsets[0])
            places = (offset - offsets[0] for offset in offsets)
            chunks = [data[one:two] for one, two in itertools.pairwise(places)]
            sizes = [self._chunk_size] * len(chunks)
            self.size += sum(sizes)
            crc32s = list(listed.crc32s[begin:stop])
            cast(ChunkedData, self._chunks).pass_on(_Group(chunks, crc32s, sizes))

    def finish(self, start: bytes | None = None) -> None:
        """Complete the member: header, entry, list of chunks. `start` is as in `write_start`."""
        if self._chunks is not None:
            self._chunks.finish()
        self._pipeline.hand_on(lambda: start, self._complete)

    def _take_stored(self, data: memoryview) -> None:
        self._checks.add(data)
        self._take(data)

    def _take(self, data: bytes | memoryview) -> None:
        """Write the next bytes of the file; called in their order."""
        self._compressed_size += len(data)
        if self._offset >= 0:
            self._sink.write(data)
            return
        self._kept.append(bytes(data))
        if self._sink.can_patch and self._compressed_size > _KEPT_SIZE:
            self._put_header(self._header, is_final=False)

    def _put_header(self, header: LocalHeader, *, is_final: bool) -> None:
        """Write the header, and all bytes that waited for it."""
        self._offset = self._sink.position
        self._local = self._layout(header, self._offset)
        self._start_offset += self._offset + len(self._local)
        if not is_final:
            end = self._start_offset + len(self._start)
            self._sink.keep(self._offset, end - self._offset)
        self._sink.write(self._local)
        for data in self._kept:
            self._sink.write(data)
        self._kept.clear()

    def _complete(self, start: bytes | None) -> None:
        crc = self._checks.crc32 if self._chunks is None else self._chunks.crc32
        if start is not None and start != self._start:
            crc = self._crc_with(start, crc, 0, self.size)
        header = self._header._replace(
            crc32=crc, compressed_size=self._compressed_size, uncompressed_size=self.size
        )
        if self._offset < 0:
            self._put_header(header, is_final=start is None)
        else:
            self._sink.patch(self._offset, self._layout(header, self._offset))
        if start is not None and start != self._start:
            self._sink.patch(self._start_offset, start)
            self._head = start
        self._sink.release(self._offset)
        self.crc32 = crc
        listed = self._list(start) if self._is_seekable else None
        self._enter(self._name, header, self._offset, self._local, self._head, listed)

    def _list(self, start: bytes | None) -> ChunkList | None:
        """Return the list of the member's chunks, if it has one."""
        chunks = self._chunks
        if chunks is None:
            listed = stored_chunks(self._checks.crc32s, self.size)
        elif self.size <= self._chunk_size:
            return None
        else:
            offsets = (*chunks.offsets, self._compressed_size)
            method = self._header.method
            listed = ChunkList(self._chunk_size, self.size, chunks.crc32s, offsets, method)
        if listed is not None and start is not None:
            crc32s, step = [*listed.crc32s], listed.chunk_size
            for number, begin in enumerate(range(0, len(start), step)):
                end = min(begin + step, self.size)
                crc32s[number] = self._crc_with(start, crc32s[number], begin, end)
            listed = listed._replace(crc32s=crc32s)
        return listed

    def _crc_with(self, start: bytes, crc: int, begin: int, end: int) -> int:
        """Return the CRC of the bytes from `begin` to `end` once `start` replaced the first ones.

        A CRC is linear: what the two starts differ by is moved over the rest.
        """
        for data in (self._start[begin:end], start[begin:end]):
            crc ^= crc32_combine(crc32(data), 0, end - begin - len(data))
        return crc


# -- compressed data ----------------------------------------------------------

MAX_BLOCK_SIZE = 0xFFFF
"""Bytes that a block of deflate can hold as they are. One of Zstandard can hold more."""

_GROUP_SIZE = 1 << 20
"""Bytes that a thread compresses at a time: each task costs 50 microseconds more."""
_LEAST_GROUPS = 8
_SECTION_SIZE = 1 << 23
"""Bytes for which one encoder is chosen: data changes along an array, and the
sample costs what zlib takes for a hundredth of them."""
_SMALL_SIZE = 1 << 16
"""Below this size, threads would wait for each other longer than they work."""


def compress_small(heads: Iterable[bytes], data: Iterable[bytes], coding: Coding) -> list[bytes]:
    """Compress members of one chunk that are too small for a choice of encoders."""
    if coding.method != ZSTANDARD:
        small = encoder_for_small(coding.level)
        return [deflate_chunk(small, each, final=True) for each in map(add, heads, data)]
    encoder = ZstandardEncoder(coding.level, coding.chunk_size)
    spare: dict[Any, list[Any]] = {}
    found = []
    for head, rest in zip(heads, data, strict=True):
        kept = head if _is_kept(head, coding.chunk_size) else b""
        chunks = encoder.chunks([head[len(kept) :] + rest], spare, first=True, final=True)
        found.append(b"".join((encoder.lead(len(kept)), kept, *chunks)))
    return found


def _is_kept(head: bytes, chunk_size: int) -> bool:
    """Whether the header of an array is in a stream of Zstandard as it is."""
    return len(head) < min(chunk_size, MAX_BLOCK_SIZE)


class _Group(NamedTuple):
    """Neighbouring chunks, compressed; CRC-32s and sizes are of what they were before."""

    chunks: list[bytes]
    crc32s: list[int]
    sizes: list[int]


class ChunkedData:
    """Compresses data in chunks and passes the stream on, in order.

    Parameters
    ----------
    take : callable
        Called with each piece of the stream by the pipeline's owner.
    pipeline : Pipeline
    coding : Coding
        Without a level, the encoder of deflated data is chosen by a sample of each section.

    Attributes
    ----------
    offsets : list of int
        Where each chunk begins in the stream.
    crc32s : list of int
        Of each chunk's bytes before they were compressed.
    crc32 : int
        Of all of them. All three are complete when the pipeline was drained after
        `finish`.
    """

    def __init__(
        self,
        take: Callable[[bytes], None],
        pipeline: Pipeline,
        coding: Coding,
    ) -> None:
        self.offsets: list[int] = []
        self.crc32s: list[int] = []
        self.crc32 = 0
        self._take = take
        self._pipeline = pipeline
        method, level, chunk_size, _ = coding
        self._leads = method == ZSTANDARD
        self._encoder: Encoder | ZstandardEncoder | None = None
        if method == ZSTANDARD:
            self._encoder = ZstandardEncoder(level, chunk_size)
        elif level is not None:
            self._encoder = encoder_for_level(level, chunk_size)
        self._chooses = self._encoder is None
        self._chunk_size = self._target = chunk_size
        self._buffer = bytearray()
        self._count = 0
        self._section_end = 0
        self._position = 0

    def begin(self, head: bytes = b"") -> int:
        """Begin a stream of Zstandard with `head` as it is, and return how many bytes that took.

        So the header of an array is in the first bytes of its member: a block of Zstandard,
        which can be decoded only as a whole, has up to 128 KiB.
        """
        if not self._leads or self._position:
            return 0
        head = head if _is_kept(head, self._chunk_size) else b""
        self.write_as_is(head)
        return len(head)

    def write_as_is(self, data: bytes) -> int:
        """Begin with a block of `data` itself and return where it lies in the stream.

        It may be changed there later, because no other block refers to it. At most
        `MAX_BLOCK_SIZE` bytes; if they fill a chunk or more, the stream's chunks
        are not where a list has them.
        """
        size = len(data)
        lead = (self._encoder or Encoder).lead(size)
        if size < self._chunk_size:
            self._target -= size
        self._position = len(lead) + size
        self.crc32 = crc32(data)
        self._pipeline.hand_on(lambda: lead + data, self._take)
        return len(lead)

    def write(self, view: memoryview) -> None:
        """Compress the next bytes, except those of the last chunk, which are
        copied. The next call shows whether that chunk is the last one.
        """
        while len(view):
            if not self._buffer and len(view) > self._target:
                size = self._whole_chunks(len(view))
                self._compress(view[:size], view)
            else:
                size = self._target - len(self._buffer)
                if not size:
                    self._compress(memoryview(bytes(self._buffer)), view)
                    self._buffer.clear()
                self._buffer += view[:size]
            view = view[size:]

    def pass_on(self, group: _Group) -> None:
        """Write whole chunks that are compressed; those written before must be whole, too."""
        if self._buffer:
            data = memoryview(bytes(self._buffer))
            self._buffer.clear()
            self._compress(data, data)
        self._count += len(group.chunks)
        self._pipeline.hand_on(lambda: group, self._put)

    def finish(self) -> None:
        """Compress the last chunk and end the stream."""
        self.begin()
        self._submit(memoryview(bytes(self._buffer)), final=True)

    def _whole_chunks(self, size: int) -> int:
        """Bytes of the complete chunks in `size` bytes, without the last chunk."""
        if self._target < self._chunk_size:
            return self._target
        return (size - 1) // self._chunk_size * self._chunk_size

    def _compress(self, view: memoryview, ahead: memoryview) -> None:
        """Compress whole chunks; `ahead` is what a sample may be taken of."""
        self._target = self._chunk_size
        # Small data is cut into smaller groups, so that all threads have work.
        group_size = min(_GROUP_SIZE, len(view) // _LEAST_GROUPS)
        step = max(group_size // self._chunk_size, 1) * self._chunk_size
        for start in range(0, len(view), step):
            if self._chooses and self._count >= self._section_end:
                sample = max(view[start:], ahead[start:], key=len)[:_SECTION_SIZE]
                self._encoder = choose_encoder(sample)
                self._section_end = self._count + max(_SECTION_SIZE // self._chunk_size, 1)
            self._submit(view[start : start + step], final=False)

    def _submit(self, view: memoryview, *, final: bool) -> None:
        group = partial(
            _compress_group, self._encoder, view, self._chunk_size, self._pipeline.spare,
            first=not self._count, final=final,
        )  # fmt: skip
        self._count += -(-len(view) // self._chunk_size)
        hand_out = self._pipeline.hand_on if len(view) < _SMALL_SIZE else self._pipeline.submit
        hand_out(group, self._put)

    def _put(self, group: _Group) -> None:
        """Pass on a group; called in the order of the bytes."""
        for chunk, crc, size in zip(*group, strict=True):
            self.crc32 = crc32_combine(self.crc32, crc, size)
            # The first chunk begins with what was written as it is.
            self.crc32s.append(crc if self.offsets else self.crc32)
            self.offsets.append(self._position if self.offsets else 0)
            self._position += len(chunk)
            self._take(chunk)


def _compress_group(
    encoder: Encoder | ZstandardEncoder | None,
    view: memoryview,
    chunk_size: int,
    spare: Any,
    *,
    first: bool,
    final: bool,
) -> _Group:
    """Compress neighbouring chunks; choose an encoder for them if none is given."""
    if encoder is None:
        # The only chunk there is.
        encoder = encoder_for_small(None) if len(view) < _SMALL_SIZE else choose_encoder(view)
    pieces = [view[start : start + chunk_size] for start in range(0, max(len(view), 1), chunk_size)]
    chunks = encoder.chunks(pieces, spare, first=first, final=final)
    return _Group(chunks, list(map(crc32, pieces)), list(map(len, pieces)))
