"""Ranges of a file, read in blocks on several threads, with the CRC-32s of their chunks.

Owns how large a block is, and that bytes are checked while they are in the cache. Knows
nothing about zip or NPY.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from npzkit.codecs.checksum import ChunkChecks, combined_with_last
from npzkit.files.progress import Advance
from npzkit.files.threads import run

TASK_SIZE = 1 << 24
"""Bytes per task of a thread."""
_CACHED_SIZE = 1 << 18
"""Bytes to read before their CRC is computed, while they are in the cache."""

Piece = tuple[int, memoryview]
"""An offset in a file, and where its bytes go."""


def read_pieces(
    file: Any, pieces: Iterable[Piece], chunk_size: int, advance: Advance | None = None
) -> list[int]:
    """Read pieces that follow each other, and return the CRC-32s of the chunks that they are.

    Parameters
    ----------
    file : Source, File or None
        None if the pieces are filled already.
    pieces : iterable of (int, memoryview)
    chunk_size : int
        0 computes no CRC-32.
    advance : callable, optional
        Called with the number of bytes of each read.
    """
    checks = ChunkChecks(chunk_size)
    for offset, piece in pieces:
        for start in range(0, len(piece), _CACHED_SIZE):
            step = piece[start : start + _CACHED_SIZE]
            if file is not None:
                file.readinto_at(offset + start, step)
            if chunk_size:
                checks.add(step)
            if advance is not None:
                advance(len(step))
    return checks.crc32s


def dropped(start: int, end: int) -> Iterator[Piece]:
    """Yield the pieces of a range that is only checked: each replaces the former."""
    buffer = memoryview(bytearray(min(_CACHED_SIZE, end - start)))
    for position in range(start, end, _CACHED_SIZE):
        yield position, buffer[: end - position]


def chunk_crc32s_at(
    file: Any,
    offset: int,
    size: int,
    chunk_size: int,
    threads: int,
    advance: Advance | None = None,
) -> list[int]:
    """Return the CRC-32 of each chunk of a range of a file; chunks divide a block."""
    tasks = [
        partial(read_pieces, file, dropped(start, end), chunk_size, advance)
        for start, end in blocks(offset, offset + size)
    ]
    return [*chain.from_iterable(run(tasks, threads))]


def crc32_at(
    file: Any, offset: int, size: int, threads: int, advance: Advance | None = None
) -> int:
    """Return the CRC-32 of a range of a file, in little memory."""
    crc32s = chunk_crc32s_at(file, offset, size, TASK_SIZE, threads, advance)
    return combined_with_last(crc32s, TASK_SIZE, size)


def blocks(begin: int, end: int) -> list[tuple[int, int]]:
    """Divide a range into those of tasks."""
    return [(start, min(start + TASK_SIZE, end)) for start in range(begin, end, TASK_SIZE)]
