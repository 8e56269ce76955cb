"""Ranges that will be read soon, fetched by few requests.

Owns which ranges are joined, and how much is kept in memory. Knows no store.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from npzkit.files.request_sizes import JOIN_SIZE, REQUEST_SIZE, Span, merged, piece_size
from npzkit.files.source import LentSource, Source

_WASTE = 20
"""A gap may be read if all gaps together are at most one part in so many of the bytes."""
_KEPT_SIZE = 1 << 26
"""Bytes that are fetched at a time. Twice as many are kept."""
_FIRST_SIZE = 1 << 20
"""Bytes that a reader is given at first. It may want no more than the beginning."""


def joined(spans: Iterable[Span]) -> list[Span]:
    """Join ranges that are close to each other.

    The smallest gaps are read as well, as long as that adds no more than one
    part in `_WASTE` of the bytes.

    Examples
    --------
    >>> joined([(0, 100_000), (101_000, 200_000), (300_000, 400_000)])
    [(0, 200000), (300000, 400000)]
    """
    apart = merged(spans)
    room = sum(end - begin for begin, end in apart) // _WASTE
    gaps = sorted(
        (apart[number][0] - apart[number - 1][1], number) for number in range(1, len(apart))
    )
    closed = set()
    for gap, number in gaps:
        room -= gap
        if room < 0 or gap >= JOIN_SIZE:
            break
        closed.add(number)
    starts = [number for number in range(len(apart)) if number not in closed]
    return [
        (apart[first][0], apart[last - 1][1])
        for first, last in itertools.pairwise([*starts, len(apart)])
    ]


def pieces_of(spans: Iterable[Span], size: int | None = None) -> list[Span]:
    """Cut ranges into pieces of `size` bytes, by default so many that all are under way at once.

    Examples
    --------
    >>> [end - begin for begin, end in pieces_of([(0, 10_000_000)])]
    [4194304, 4194304, 1611392]
    """
    spans = list(spans)
    if size is None:
        size = piece_size(sum(end - begin for begin, end in spans))
    return [
        (start, min(start + size, end)) for begin, end in spans for start in range(begin, end, size)
    ]


@contextlib.contextmanager
def giving_up(source: Source, ticket: object) -> Iterator[None]:
    """After an interrupt, end what other threads wait for: the caller waits for these threads."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            source.give_up(ticket)
        raise


class AheadSource(LentSource):
    """A source of which some ranges are fetched before they are read.

    What lies outside of them is read from the source below.

    Parameters
    ----------
    source : Source
        A distant one.
    spans : iterable of (int, int)
    at_once : bool
        Fetch all now. Otherwise they are fetched as far as somebody reads, by
        larger and larger parts.
    others : bool
        Whether the source remains distant, because other ranges are read too.
    ticket : object, optional
        Of these requests, for `Source.give_up`.
    """

    def __init__(
        self,
        source: Source,
        spans: Iterable[Span],
        *,
        at_once: bool,
        others: bool,
        ticket: object = None,
    ) -> None:
        super().__init__(source)
        self._ticket = object() if ticket is None else ticket
        self.is_distant = others
        # What is fetched at once was divided by `grouped`.
        pieces = pieces_of(joined(spans), REQUEST_SIZE if at_once else None)
        self._pieces = pieces if at_once else _small_first(pieces)
        self._begins = [begin for begin, _ in self._pieces]
        self._held: dict[int, memoryview] = {}
        self._is_little = sum(end - begin for begin, end in self._pieces) <= _FIRST_SIZE
        self._lock = threading.Lock()
        self._step = _FIRST_SIZE
        if at_once:
            self._fetch(list(range(len(self._pieces))), self._ticket)

    def readinto_at(self, offset: int, view: memoryview) -> None:
        done, ticket = 0, self._ticket
        while done < len(view):
            number = bisect.bisect_right(self._begins, offset + done) - 1
            if number < 0 or self._pieces[number][1] <= offset + done:
                # Not foreseen. Whatever follows it is read with it.
                spans = pieces_of([(offset + done, offset + len(view))])
                rest = [(begin, view[begin - offset : end - offset]) for begin, end in spans]
                self._source.fill(rest, ticket)
                return
            data, begin = self._piece(number, ticket), self._begins[number]
            part = data[offset + done - begin :][: len(view) - done]
            view[done : done + len(part)] = part
            done += len(part)

    def fill(self, pieces: Iterable[tuple[int, memoryview]], ticket: object = None) -> None:
        """Fill each view. What was foreseen is fetched with the first of them, if it is little."""
        ticket = self._ticket if ticket is None else ticket
        if self._is_little and not self._held:
            with giving_up(self, ticket), self._lock:
                if not self._held:
                    self._fetch(list(range(len(self._pieces))), ticket, pieces)
                    return
        self._source.fill(pieces, ticket)

    read_at = Source.read_at

    def ahead(self, spans: Iterable[Span], **options: Any) -> Source:
        # Of one that is not distant, they were fetched, or will be.
        return self._source.ahead(spans, **options) if self.is_distant else self

    def _piece(self, number: int, ticket: object) -> memoryview:
        data = self._held.get(number)
        if data is None:
            with giving_up(self, ticket), self._lock:
                data = self._held.get(number)
                if data is None:
                    data = self._fetch(self._next(number), ticket)
        return data

    def give_up(self, ticket: object) -> None:
        # Replaced, because reads with the old one fail.
        self._ticket = object()
        self._source.give_up(ticket)

    def _next(self, number: int) -> list[int]:
        """Return the pieces to fetch now, of which this is the first."""
        chosen, size = [number], 0
        for following in range(number + 1, len(self._pieces)):
            begin, end = self._pieces[following]
            size += end - begin
            if size > self._step or following in self._held:
                break
            chosen.append(following)
        self._step = min(4 * self._step, _KEPT_SIZE)
        return chosen

    def _fetch(
        self, numbers: list[int], ticket: object, others: Iterable[tuple[int, memoryview]] = ()
    ) -> Any:
        """Fetch pieces, and fill other views with the same requests; return the first piece."""
        spans = [self._pieces[number] for number in numbers]
        views = [memoryview(bytearray(end - begin)) for begin, end in spans]
        begins = [begin for begin, _ in spans]
        self._source.fill([*zip(begins, views, strict=True), *others], ticket)
        kept = dict(self._held)
        size = sum(map(len, kept.values()))
        while kept and size > _KEPT_SIZE:
            size -= len(kept.pop(next(iter(kept))))
        # One assignment, because other threads read.
        self._held = {**kept, **dict(zip(numbers, views, strict=True))}
        return views[0] if views else None


def _small_first(pieces: list[Span]) -> list[Span]:
    """Cut the first piece, so that a reader of the beginning waits for little."""
    if not pieces or pieces[0][1] - pieces[0][0] <= _FIRST_SIZE:
        return pieces
    begin, end = pieces[0]
    return [(begin, begin + _FIRST_SIZE), (begin + _FIRST_SIZE, end), *pieces[1:]]
