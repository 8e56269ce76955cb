"""Several threads at work on one archive. Knows neither zip nor NPY.

No thread outlives the call that started it: there is no pool for a forked
child to find dead. The work releases the GIL: reads, CRCs, inflation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from npzkit.codecs import crc32, crc32_combine
from npzkit.source import Source

__all__ = ["read_blocks", "run", "thread_count"]

T = TypeVar("T")

BLOCK_SIZE = 1 << 24
"""Bytes one thread takes at a time."""
_STEP_SIZE = 1 << 20
"""Bytes whose CRC is taken while they are still in the cache."""


def thread_count(threads: int | None) -> int:
    """Return `threads`, or the processors this process may use.

    Raises
    ------
    ValueError
        `threads` is not a positive integer.
    """
    if threads is None:
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    if not isinstance(threads, int) or threads < 1:
        raise ValueError(f"threads must be a positive integer or None, not {threads!r}")
    return threads


def run(tasks: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """Call every task and return their results in order.

    The first exception is raised, and what had not begun by then never does.
    """
    if threads == 1 or len(tasks) < 2:
        return [task() for task in tasks]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(threads, len(tasks)), "npzkit") as executor:
        futures = [executor.submit(task) for task in tasks]
        try:
            return [future.result() for future in futures]
        except BaseException:
            executor.shutdown(wait=True, cancel_futures=True)
            raise


def read_blocks(
    source: Source, spans: Sequence[tuple[int, memoryview]], threads: int, *, verify: bool
) -> list[int]:
    """Fill each view from its offset and return each one's CRC-32.

    Parameters
    ----------
    source : Source
    spans : sequence of (int, memoryview)
        Offset in the file and where the bytes go. Long ones are shared out
        among the threads.
    threads : int
    verify : bool
        Whether to compute CRCs; else 0 is returned for each.
    """
    blocks = [
        (index, offset + start, view[start : start + BLOCK_SIZE])
        for index, (offset, view) in enumerate(spans)
        for start in range(0, len(view), BLOCK_SIZE)
    ]

    def read(offset: int, view: memoryview) -> int:
        crc = 0
        for start in range(0, len(view), _STEP_SIZE):
            step = view[start : start + _STEP_SIZE]
            source.readinto_at(offset + start, step)
            if verify:
                crc = crc32(step, crc)
        return crc

    tasks = [lambda o=offset, v=view: read(o, v) for _, offset, view in blocks]
    crcs = [0] * len(spans)
    for (index, _, view), crc in zip(blocks, run(tasks, threads), strict=True):
        crcs[index] = crc32_combine(crcs[index], crc, len(view))
    return crcs
