"""An archive in a store, as a source: its tail is kept, and every other byte is a request.

Owns what is asked for, how many requests are under way, and that all bytes are
of the version that was opened. Knows nothing about zip. What a request is in a
store is that store's (`Store`).
"""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Iterable
from functools import partial
from itertools import repeat
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from npzkit.errors import Advice, UnsupportedError, UnversionedFileWarning, closed_error, warn
from npzkit.files.progress import Advance
from npzkit.files.request_sizes import REQUEST_COUNT, Span
from npzkit.files.source import Source
from npzkit.files.threads import run
from npzkit.files.urls import Location
from npzkit.stores.joined_requests import AheadSource, giving_up, pieces_of
from npzkit.stores.received_bytes import current_reception
from npzkit.stores.retries import tried
from npzkit.stores.versions import Version

_PLACE_SECONDS = 60.0
"""Seconds to wait for one of them to end."""

TAIL_SIZE = (1 << 16) + 64
"""Bytes of the first request: 64 KiB, and those by which the longest end of a zip exceeds it."""
_FRONT_FACTOR = 3
"""What is fetched in front of a range that ends in the tail, as a multiple of its size. An
archive's end is read backwards: in front of its directory is an index, which is at most so much
longer."""
_MOST_FRONT = 1 << 22


class Opened(NamedTuple):
    """The answer to the first request.

    Attributes
    ----------
    tail : bytes-like
        The object's last bytes, or all.
    version : Version
    is_new : bool, default False
        Whether it was modified so lately that its time does not tell its versions apart yet.
    """

    tail: Any
    version: Version
    is_new: bool = False


class Store(abc.ABC):
    """One object in a store. Shared by threads, and by forked processes.

    Attributes
    ----------
    name : str
        The URL without secrets.
    received : callable or None
        Called by `readinto` with the number of bytes that came, as they come if possible.
    """

    name: str
    received: Advance | None = None

    @abc.abstractmethod
    def open(self, tail_size: int) -> Opened:
        """Return the last `tail_size` bytes of the object, and its version.

        Raises
        ------
        FileNotFoundError, PermissionError
            There is no such object, or it may not be read.
        OSError
            The store cannot be reached.
        UnsupportedError
            The server does not support ranges.
        """

    @abc.abstractmethod
    def readinto(self, offset: int, view: memoryview, version: Version) -> None:
        """Fill `view` with the bytes at `offset`, mostly by one request.

        Raises
        ------
        StaleArchiveError
            The object has another version.
        OSError, UnsupportedError
            As `open`.
        """

    def no_ranges(self) -> UnsupportedError:
        """Return the error for a store that sends the whole object instead of a range."""
        return UnsupportedError(
            "the server does not support ranges of bytes",
            path=self.name,
            found="all bytes of the object",
            expected="those of a range",
            remedy="Python's http.server cannot send these; nginx and most others can. Download "
            "the file, and open the copy: "
            + Advice(
                "npzkit.open(urllib.request.urlopen(url).read()) does both.",
                "curl -o copy.npz URL, npzkit ls copy.npz.",
            ),
        )

    def abort(self) -> None:
        """Make requests of other threads end soon, because nobody waits for them any more."""

    def close(self) -> None:
        """Close connections. Requests of other threads are completed. May be called twice."""


class RemoteSource(Source):
    """An object in a store.

    Parameters
    ----------
    location : Location
    store : Store
        That the URL names. It is closed with the source, also if that cannot be made.

    Attributes
    ----------
    location : Location
    version : Version
        Of the object when it was opened. Every read is of this version.
    """

    is_distant = True

    def __init__(self, location: Location, store: Store) -> None:
        self.location = location
        self._store = store
        self.name = self._store.name
        self._is_closed = self._has_warned = False
        self._given_up: set[object] = set()
        self._reset_places()
        try:
            what = f"{self.name}, the last {TAIL_SIZE} bytes"
            opened = tried(partial(self._store.open, TAIL_SIZE), what)
        except BaseException:
            self._store.close()
            raise
        reception = current_reception()
        if reception is not None:
            reception.expect(opened.version.size)
            reception.add(len(opened.tail))
            store.received = reception.add
        self.version: Version = opened.version
        self.tag = opened.version.tag
        self.size = self._file_size = opened.version.size
        # One assignment when it grows, because threads read.
        self._tail: tuple[int, Any] = self.size - len(opened.tail), opened.tail

    @property
    def state(self) -> Any:
        return tuple(self.version)

    @property
    def reopening(self) -> tuple[str, dict[str, Any]]:
        return self.location.url, {"storage_options": self.location.options}

    def check_versioned(self) -> None:
        # What is at hand is of one version.
        if not (self.version.is_known or self._has_warned or not self._tail[0]):
            self._has_warned = True
            # Nothing shows whether the object is replaced while it is open.
            warn(
                f"{self.name}: the store sends neither an ETag nor a time that tells versions of "
                "the file apart. If a file of the same size replaces it while it is open, parts of "
                "arrays may come from both. If that can happen, read complete arrays, which are "
                "checked, or download the file and open the copy.",
                UnversionedFileWarning,
            )

    # -- reading ------------------------------------------------------------

    def at_hand(self, offset: int, size: int) -> bytes | None:
        start, tail = self._tail
        begin = offset - start
        return None if begin < 0 else bytes(memoryview(tail)[begin : begin + size])

    def read_at(self, offset: int, size: int) -> bytes:
        self._check_open()
        start, _ = self._tail
        if offset < start < offset + size:
            self._grow(offset)
        found = self.at_hand(offset, size)
        return super().read_at(offset, size) if found is None else found

    def readinto_at(self, offset: int, view: memoryview) -> None:
        spans = pieces_of([(offset, offset + len(view))])
        self.fill([(begin, view[begin - offset : end - offset]) for begin, end in spans])

    def fill(self, pieces: Iterable[tuple[int, memoryview]], ticket: object = None) -> None:
        """Fill each view from its offset: one request for each, several under way."""
        self._check_open()
        start, tail = self._tail
        wanted = []
        for offset, view in pieces:
            here = min(max(start - offset, 0), len(view))
            begin, count = max(offset - start, 0), len(view) - here
            view[here:] = memoryview(tail)[begin : begin + count]
            if here:
                wanted.append((offset, view[:here]))
        if not wanted:
            return
        ticket = object() if ticket is None else ticket
        with giving_up(self, ticket):
            run([partial(self._request, ticket, *piece) for piece in wanted], REQUEST_COUNT)

    def ahead(
        self,
        spans: Iterable[Span],
        *,
        at_once: bool = False,
        others: bool = False,
        ticket: object = None,
    ) -> Source:
        return AheadSource(self, spans, at_once=at_once, others=others, ticket=ticket)

    def give_up(self, ticket: object) -> None:
        self._given_up.add(ticket)
        # Requests of other calls are made again.
        self._store.abort()

    def _grow(self, offset: int) -> None:
        """Keep more of the object's end: from `offset` on, and some bytes before it."""
        start, tail = self._tail
        front = min(max((self.size - offset) * _FRONT_FACTOR, TAIL_SIZE), _MOST_FRONT, offset)
        longer = memoryview(bytearray(self.size - offset + front))
        longer[start - offset + front :] = tail
        begin = offset - front
        self.readinto_at(begin, longer[: start - begin])
        self._tail = begin, longer

    # -- requests -----------------------------------------------------------

    def _request(self, ticket: object, offset: int, view: memoryview) -> None:
        what = f"bytes {offset} to {offset + len(view) - 1}"
        read = partial(self._store.readinto, offset, view, self.version)
        if self._process != os.getpid():
            self._reset_places()
        places = self._places
        with contextlib.suppress(Empty):
            # An interrupt may have lost a place: nobody waits for ever.
            places.get(timeout=_PLACE_SECONDS)
        try:
            with giving_up(self, ticket):
                tried(read, f"{self.name}, {what}", lambda: ticket not in self._given_up)
        finally:
            places.put(None)

    def _reset_places(self) -> None:
        """Begin without requests under way. A forked child has none of its parent's."""
        self._process = os.getpid()
        places: SimpleQueue[None] = SimpleQueue()
        any(map(places.put, repeat(None, REQUEST_COUNT)))
        self._places = places

    # -- the object ---------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed_error()

    def close(self) -> None:
        self._is_closed = True
        self._store.close()
