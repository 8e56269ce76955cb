"""Large ranges of a file, read in blocks on several threads, with their CRC-32s.

Owns how large a block is, and how the CRC-32s of blocks are combined. Knows
nothing about zip or NPY.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from npzkit.codecs.checksum import crc32, crc32_combine
from npzkit.files.progress import Advance
from npzkit.files.source import Source
from npzkit.files.threads import run

BLOCK_SIZE = 1 << 24
"""Bytes per task of a thread."""
_STEP_SIZE = 1 << 20
"""Bytes to read before their CRC is computed, while they are in the cache."""


_SHARE_SIZE = 1 << 22
"""Bytes for which another thread is worth its start: it takes as long as reading 0.3 MiB."""


class Readable(Protocol):
    """An object that can be read at an offset: a `Source`, or a `Sink` that can read."""

    def readinto_at(self, offset: int, view: memoryview, /) -> None: ...


def crc32_at(
    file: Readable, offset: int, size: int, threads: int, advance: Advance | None = None
) -> int:
    """Return the CRC-32 of a range of a file, using little memory.

    `advance` is called with the number of bytes of each read, from several threads.
    """

    def read(start: int) -> tuple[int, int]:
        end = min(start + BLOCK_SIZE, offset + size)
        buffer = memoryview(bytearray(min(_STEP_SIZE, end - start)))
        crc = 0
        for position in range(start, end, _STEP_SIZE):
            step = buffer[: end - position]
            file.readinto_at(position, step)
            crc = crc32(step, crc)
            if advance is not None:
                advance(len(step))
        return crc, end - start

    if size <= BLOCK_SIZE:
        return read(offset)[0]
    crc = 0
    starts = range(offset, offset + size, BLOCK_SIZE)
    for found in run([partial(read, start) for start in starts], threads):
        crc = crc32_combine(crc, *found)
    return crc


def read_blocks(
    source: Source,
    spans: Sequence[tuple[int, memoryview]],
    threads: int,
    *,
    verify: bool,
    first: Callable[[], object] | None = None,
) -> list[int]:
    """Fill each view from its offset in the file, and return the CRC-32 of each.

    Parameters
    ----------
    source : Source
    spans : sequence of (int, memoryview)
        Offset in the file, and the view to fill. Long ones are divided among
        the threads.
    threads : int
    verify : bool
        Whether to compute CRCs. If false, 0 is returned for each.
    first : callable, optional
        As of `run`.
    """
    blocks = [
        (index, offset + start, view[start : start + BLOCK_SIZE])
        for index, (offset, view) in enumerate(spans)
        for start in range(0, len(view), BLOCK_SIZE)
    ]

    is_distant = source.is_distant
    if is_distant:
        source.fill([(offset, view) for _, offset, view in blocks])

    def read(offset: int, view: memoryview) -> int:
        crc = 0
        for start in range(0, len(view), _STEP_SIZE):
            step = view[start : start + _STEP_SIZE]
            if not is_distant:
                source.readinto_at(offset + start, step)
            if verify:
                crc = crc32(step, crc)
        return crc

    tasks = [lambda o=offset, v=view: read(o, v) for _, offset, view in blocks]
    threads = min(threads, 1 + sum(len(view) for _, view in spans) // _SHARE_SIZE)
    crcs = [0] * len(spans)
    for (index, _, view), crc in zip(blocks, run(tasks, threads, first=first), strict=True):
        crcs[index] = crc32_combine(crcs[index], crc, len(view))
    return crcs
