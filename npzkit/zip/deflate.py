"""A member's bytes to a deflate stream of chunks that can be read alone.

Owns how data is cut: into chunks, each compressed on its own and at a known
offset; into groups of them, one a thread at a time; into sections, each with
an encoder chosen for it. The stream depends on the bytes and on the pieces
they come in, never on the threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from npzkit.codecs.checksum import crc32, crc32_combine
from npzkit.codecs.encoders import (
    Encoder,
    choose_encoder,
    deflate_chunk,
    encoder_for_level,
    encoder_for_small,
)
from npzkit.files.threads import Pipeline

MAX_BLOCK_SIZE = 0xFFFF
"""Bytes that a stored block of deflate can hold."""

_GROUP_SIZE = 1 << 20
"""Bytes that a thread deflates at a time: each task costs 50 microseconds more."""
_LEAST_GROUPS = 8
_SECTION_SIZE = 1 << 23
"""Bytes for which one encoder is chosen: data changes along an array, and the
sample costs what zlib takes for a hundredth of them."""
_SMALL_SIZE = 1 << 16
"""Below this size, threads would wait for each other longer than they work."""


def deflate_small(data: bytes, level: int | None) -> bytes:
    """Deflate a member of one chunk that is too small for a choice of encoders."""
    return deflate_chunk(encoder_for_small(level), data, final=True)


class _Group(NamedTuple):
    """Neighbouring chunks, deflated; CRC and size are of what they were before."""

    chunks: list[bytes]
    crc32: int
    size: int


class DeflatedData:
    """Deflates data and passes the stream on, in order.

    Parameters
    ----------
    take : callable
        Called with each piece of the stream by the pipeline's owner.
    pipeline : Pipeline
    level : int or None
        0 to 9; None chooses by a sample of each section.
    chunk_size : int
        Bytes of every chunk but the last.

    Attributes
    ----------
    offsets : list of int
        Where each chunk begins in the stream. It and `crc32`, of the bytes
        before they were deflated, are complete when the pipeline was drained
        after `finish`.
    """

    def __init__(
        self,
        take: Callable[[bytes], None],
        pipeline: Pipeline,
        level: int | None,
        chunk_size: int,
    ) -> None:
        self.offsets: list[int] = []
        self.crc32 = 0
        self._take = take
        self._pipeline = pipeline
        self._level = level
        self._encoder = None if level is None else encoder_for_level(level, chunk_size)
        self._chunk_size = chunk_size
        self._target = chunk_size
        self._buffer = bytearray()
        self._count = 0
        self._section_end = 0
        self._position = 0

    def write_as_is(self, data: bytes) -> int:
        """Begin with a block of `data` itself and return where it lies in the stream.

        It may be changed there later: no other block refers to it. At most
        `MAX_BLOCK_SIZE` bytes; if they fill a chunk or more, the stream's chunks
        are not where a seek index has them.
        """
        size = len(data)
        head = b"\0" + size.to_bytes(2, "little") + (size ^ 0xFFFF).to_bytes(2, "little")
        if size < self._chunk_size:
            self._target -= size
        self._position = len(head) + size
        self.crc32 = crc32(data)
        self._take(head + data)
        return len(head)

    def write(self, view: memoryview) -> None:
        """Deflate the next bytes, except those of the last chunk, which are
        copied. The next call shows whether that chunk is the last one.
        """
        while len(view):
            if not self._buffer and len(view) > self._target:
                size = self._whole_chunks(len(view))
                self._deflate(view[:size], view)
            else:
                size = self._target - len(self._buffer)
                if not size:
                    self._deflate(memoryview(bytes(self._buffer)), view)
                    self._buffer.clear()
                self._buffer += view[:size]
            view = view[size:]

    def finish(self) -> None:
        """Deflate the last chunk and end the stream."""
        self._submit(memoryview(bytes(self._buffer)), final=True)

    def _whole_chunks(self, size: int) -> int:
        """Bytes of the complete chunks in `size` bytes, without the last chunk."""
        if self._target < self._chunk_size:
            return self._target
        return (size - 1) // self._chunk_size * self._chunk_size

    def _deflate(self, view: memoryview, ahead: memoryview) -> None:
        """Deflate whole chunks; `ahead` is what a sample may be taken of."""
        self._target = self._chunk_size
        # Small data is cut into smaller groups, so that all threads have work.
        group_size = min(_GROUP_SIZE, len(view) // _LEAST_GROUPS)
        step = max(group_size // self._chunk_size, 1) * self._chunk_size
        for start in range(0, len(view), step):
            if self._level is None and self._count >= self._section_end:
                sample = max(view[start:], ahead[start:], key=len)[:_SECTION_SIZE]
                self._encoder = choose_encoder(sample)
                self._section_end = self._count + max(_SECTION_SIZE // self._chunk_size, 1)
            self._submit(view[start : start + step], final=False)

    def _submit(self, view: memoryview, *, final: bool) -> None:
        encoder, chunk_size = self._encoder, self._chunk_size
        self._count += -(-len(view) // chunk_size)
        hand_out = self._pipeline.hand_on if len(view) < _SMALL_SIZE else self._pipeline.submit
        hand_out(lambda: _deflate_group(encoder, view, chunk_size, final=final), self._put)

    def _put(self, group: _Group) -> None:
        """Pass on a group; called in the order of the bytes."""
        for chunk in group.chunks:
            self.offsets.append(self._position if self.offsets else 0)
            self._position += len(chunk)
            self._take(chunk)
        self.crc32 = crc32_combine(self.crc32, group.crc32, group.size)


def _deflate_group(
    encoder: Encoder | None, view: memoryview, chunk_size: int, *, final: bool
) -> _Group:
    """Deflate neighbouring chunks; choose an encoder for them if none is given."""
    if encoder is None:
        # The only chunk there is.
        encoder = encoder_for_small(None) if len(view) < _SMALL_SIZE else choose_encoder(view)
    starts = range(0, max(len(view), 1), chunk_size)
    chunks = [
        deflate_chunk(
            encoder, view[start : start + chunk_size], final=final and start == starts[-1]
        )
        for start in starts
    ]
    return _Group(chunks, crc32(view), len(view))
