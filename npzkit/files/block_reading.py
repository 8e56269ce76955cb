"""Large ranges of a file, read in blocks on several threads, with their CRC-32s.

Owns how large a block is, and how the CRC-32s of blocks are combined. Knows
nothing about zip or NPY.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from npzkit.codecs.checksum import chunk_crc32s, crc32, crc32_combine
from npzkit.files.progress import Advance
from npzkit.files.source import Source
from npzkit.files.threads import run

TASK_SIZE = 1 << 24
"""Bytes per task of a thread."""
_CACHED_SIZE = 1 << 18
"""Bytes to read before their CRC is computed, while they are in the cache."""


def crc32_at(
    file: Any, offset: int, size: int, threads: int, advance: Advance | None = None
) -> int:
    """Return the CRC-32 of a range of a file, in little memory; see `crc_tasks`."""
    (crc, _), *others = run(crc_tasks(file, offset, size, advance), threads)
    for found in others:
        crc = crc32_combine(crc, *found)
    return crc


def chunk_crc32s_at(file: Any, offset: int, size: int, chunk_size: int, threads: int) -> list[int]:
    """Return the CRC-32 of each chunk of a range of a file; chunks divide a block."""

    def read(start: int) -> list[int]:
        found = []
        for step in _steps(file, start, min(start + TASK_SIZE, offset + size)):
            found += chunk_crc32s(step, chunk_size)
        return found

    starts = range(offset, offset + size, TASK_SIZE)
    return [*chain.from_iterable(run([partial(read, start) for start in starts], threads))]


def crc_tasks(
    file: Any, offset: int, size: int, advance: Advance | None = None
) -> list[Callable[[], tuple[int, int]]]:
    """Return tasks for threads that do what those of `block_tasks` do, but keep no bytes.

    Parameters
    ----------
    file : Source or File
    offset, size : int
    advance : callable, optional
        Called with the number of bytes of each read, from several threads.
    """

    def read(start: int) -> tuple[int, int]:
        end, crc = min(start + TASK_SIZE, offset + size), 0
        for step in _steps(file, start, end):
            crc = crc32(step, crc)
            if advance is not None:
                advance(len(step))
        return crc, end - start

    starts = range(offset, offset + max(size, 1), TASK_SIZE)
    return [partial(read, start) for start in starts]


def _steps(file: Any, start: int, end: int) -> Iterator[memoryview]:
    """Yield a range of a file in pieces that stay in the cache; each one replaces the former."""
    buffer = memoryview(bytearray(min(_CACHED_SIZE, end - start)))
    for position in range(start, end, _CACHED_SIZE):
        step = buffer[: end - position]
        file.readinto_at(position, step)
        yield step


def block_tasks(
    source: Source, offset: int, view: memoryview, *, verify: bool
) -> list[Callable[[], tuple[int, int]]]:
    """Return tasks for threads that together fill a view from its offset in the file.

    The bytes of a distant source are fetched now, several blocks at a time.

    Parameters
    ----------
    source : Source
    offset : int
    view : memoryview
    verify : bool
        Whether to compute CRC-32s.

    Returns
    -------
    list of callable
        Each returns the CRC-32 of its bytes, 0 unless `verify`, and how many they are; in the
        file's order.
    """
    starts = range(0, len(view), TASK_SIZE)
    blocks = [(offset + start, view[start : start + TASK_SIZE]) for start in starts]
    if source.is_distant:
        source.fill(blocks)
    read = partial(_read_block, None if source.is_distant else source, verify)
    return [partial(read, *block) for block in blocks]


def _read_block(
    source: Source | None, verify: bool, offset: int, view: memoryview
) -> tuple[int, int]:
    """Fill a view, unless it is full, and return its CRC-32 and size."""
    crc = 0
    for start in range(0, len(view), _CACHED_SIZE):
        step = view[start : start + _CACHED_SIZE]
        if source is not None:
            source.readinto_at(offset + start, step)
        if verify:
            crc = crc32(step, crc)
    return crc, len(view)
