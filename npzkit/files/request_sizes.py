"""Ranges of a file, and how many of them are requested from a store at a time.

Owns how large a request is. What is kept of their answers is `npzkit.stores.joined_requests`'s.
"""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]
"""Where a range begins and ends in the file."""

REQUEST_COUNT = 10
"""Requests under way at a time."""
REQUEST_SIZE = 1 << 24
"""Most bytes of one request."""
JOIN_SIZE = 1 << 20
"""Gaps below this are read too, rather than making another request."""
_LEAST_SIZE = 1 << 22
"""Ranges of no more bytes are fetched by one request."""


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return ranges in order, without empty ones, and those that touch as one."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if begin < end and found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif begin < end:
            found.append((begin, end))
    return found


def piece_size(total: int) -> int:
    """Return the bytes of one request, so that all requests are under way at the same time.

    They are limited for the sake of memory, and many small ones take longer.
    """
    return min(max(-(-total // REQUEST_COUNT), _LEAST_SIZE), REQUEST_SIZE)
