"""Many members at once, faster than one by one.

Owns the order of the work. Small neighbours are read by the calling thread. All others are in
one queue for the threads, the largest first: blocks of stored members, chunks of compressed
members with a list of them, and other members as a whole. Knows nothing about bytes:
`npzkit.reading.member` reads a member.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from npzkit.codecs.coding import CHUNKED, STORED
from npzkit.errors import NpzkitError
from npzkit.files.block_reading import TASK_SIZE
from npzkit.files.request_sizes import REQUEST_COUNT, piece_size
from npzkit.files.threads import Pipeline, grouped, run
from npzkit.reading.adjacent_members import Sweep, spans_of
from npzkit.reading.fetched_headers import member_span
from npzkit.reading.member import CHUNKED_SIZE, NOTHING, MemberReader, Result
from npzkit.reading.small_member import (
    SMALL_SIZE,
    Options,
    check_form,
    is_plain,
    read_between,
)  # fmt: skip
from npzkit.zip.entries import Entry, Rows
from npzkit.zip.entry_columns import Columns, Ints
from npzkit.zip.local_header import check_entry

_SWEEP_COUNT = 64
"""The fewest neighbours that are checked by columns: fewer are read faster one by one."""
_SHARE_SIZE = 1 << 22
"""Bytes for which another thread is worth its start: it takes as long as reading 0.3 MiB."""
_INFLATING_COST = 8
"""How many stored bytes are read in the time of inflating one."""

SHARED_SIZE = 1 << 24
"""Bytes of memory that arrays share, and that any of them keeps alive."""
_OWN_SIZE = 1 << 24
"""Bytes from which an array has memory of its own. Huge pages begin at multiples of their size:
an array of 4 MiB would lie in one huge page and many small ones."""
_HUGE_PAGE_SIZE = 1 << 21
_ALIGNMENT = 64

T = TypeVar("T")

Item = tuple[str, Entry]


def read_many(
    reader: MemberReader,
    entries: Rows | Columns,
    keys: Sequence[str],
    names: Collection[str],
    threads: int,
    options: Options,
    outs: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> dict[str, Result]:
    """Read members together.

    Parameters
    ----------
    reader : MemberReader
    entries : Rows or Columns
        All of the archive.
    keys : sequence of str
        What to call the members; no key twice.
    names : collection of str
        The members, a name for each key.
    threads : int
    options : Options
        Of each member, without `out`.
    outs : mapping of str to numpy.ndarray, optional
        The arrays to fill, in little memory. A member in another memory order is first read
        into memory of its own. Members of a distant source are not only checked.

    Returns
    -------
    dict of str to numpy.ndarray or bytes
        In the order of `keys`. Not specified if there are `outs`.

    Raises
    ------
    NpzkitError
        For the first member that fails, with its key.
    ValueError
        One of `outs` has another shape or dtype.
    """
    results: dict[str, Result] = {} if outs is not None else dict.fromkeys(keys, b"")
    batch = _Batch(reader, results, threads, options, outs)
    if reader.source.is_distant:
        batch.read_distant([(key, entries[name]) for key, name in zip(keys, names, strict=True)])
    else:
        batch.read_near(entries, keys, names)
    return batch.results


class _Batch(NamedTuple):
    """Members that are read together, and their arrays by key; see `read_many`."""

    reader: MemberReader
    results: dict[str, Result]
    threads: int
    options: Options
    outs: Mapping[str, np.ndarray[Any, Any]] | None = None

    def read_distant(self, wanted: list[Item]) -> None:
        """Fetch neighbours together, and read them while the next ones are fetched."""
        wanted.sort(key=_offset_of)
        for key, entry in wanted:
            _located(key, partial(check_entry, entry, self.reader.size_limit))
        large = [item for item in wanted if _is_direct(item[1])]
        # Of one ticket, so that an interrupt ends all.
        together = self._replace(reader=self.reader.ahead([], others=True))
        found = run([together.task(item) for item in large], REQUEST_COUNT)
        self.results.update(zip([key for key, _ in large], found, strict=True))

        def read(near: MemberReader, items: list[Item]) -> None:
            entries = Rows((entry.name, entry) for _, entry in items)
            keys, names = [key for key, _ in items], [entry.name for _, entry in items]
            self._replace(reader=near).read_near(entries, keys, names)

        fetch_groups(self.reader, [item for item in wanted if not _is_direct(item[1])], read)

    def read_near(
        self, entries: Rows | Columns, keys: Sequence[str], names: Collection[str]
    ) -> None:
        """Read members from a source whose reads are cheap."""
        columns = entries.columns
        if columns is not None:
            rows, row_keys, wanted = small_neighbours(columns, keys, names)
        else:
            wanted = [(key, entries[name]) for key, name in zip(keys, names, strict=True)]
        brief: list[Item] = []
        queued: list[Item] = []
        for item in wanted:
            (brief if _is_brief(item[1]) else queued).append(item)

        def read_brief() -> None:
            if columns is not None:
                self._read_neighbours(columns, rows, row_keys)
            self._read_brief(brief)

        if queued:
            self._read_queue(queued, read_brief)
        else:
            read_brief()

    def _read_queue(self, queue: list[Item], first: Callable[[], None]) -> None:
        """Read members on several threads, while this thread does something else `first`."""
        # What is begun last should not take long.
        queue.sort(key=_cost_of, reverse=True)
        sizes = [
            entry.compressed_size if self.outs is None and is_plain(entry) else _OWN_SIZE
            for _, entry in queue
        ]
        reader = self.reader
        shared = self._replace(options=self.options._replace(threads=self.threads))
        tasks: list[Callable[[], Any]] = []
        fillings = []
        for (key, entry), memory in zip(queue, memory_for(sizes), strict=True):
            filling = _located(key, partial(reader.begin, entry, shared._options_of(key), memory))
            tasks += [self.task((key, entry))] if filling is None else filling.tasks
            fillings.append(filling)
        count = min(self.threads, 1 + sum(map(_cost_of, queue)) // _SHARE_SIZE)
        done = iter(run(tasks, count, first=first))
        for (key, entry), filling in zip(queue, fillings, strict=True):
            if filling is None:
                self.results[key] = next(done)
            else:
                parts = list(islice(done, len(filling.tasks)))
                finish = partial(reader.finish, filling, parts, entry, self._options_of(key))
                self.results[key] = _located(key, finish)

    def _read_brief(self, brief: list[Item]) -> None:
        """Read small members, neighbours together."""
        near: list[Item] = []
        for item in brief:
            entry = item[1]
            is_chunk = entry.method in CHUNKED and entry.uncompressed_size <= SMALL_SIZE
            if is_chunk or is_plain(entry):
                near.append(item)
            else:
                self.results[item[0]] = self.task(item)()
                self._hand_out()
        near.sort(key=_offset_of)
        for span in _spans(near):
            self._read_span(span)

    def _read_neighbours(self, columns: Columns, small: Ints, keys: Sequence[str]) -> None:
        """Read small stored members by columns."""
        reader = self.reader
        verify = self.options.verify
        sweep = Sweep(columns, reader.header_limit, reader.size_limit, verify=verify)
        for span in spans_of(columns.header_offset[small], columns.compressed_size[small]):
            rows, span_keys = small[span], keys[span]
            if len(rows) < _SWEEP_COUNT:
                items = list(zip(span_keys, columns.entries(rows), strict=True))
                for group in _spans(items):
                    self._read_span(group)
                continue
            window = read_between(reader, *columns.entries(rows[[0, -1]]))
            left = sweep.read(window, rows, span_keys, self.results)
            for index, entry in zip(left, columns.entries(rows[left]), strict=True):
                self.results[span_keys[index]] = self.task((span_keys[index], entry))()
            self._hand_out()

    def _read_span(self, span: Sequence[Item]) -> None:
        """Read small neighbours in one call and cut them out."""
        reader = self.reader
        window = read_between(reader, span[0][1], span[-1][1])
        for key, entry in span:
            try:
                check_entry(entry, reader.size_limit)
                self.results[key] = reader.read_in(window, entry, self.options)
            except NpzkitError as error:
                error.locate(key=key)
                raise
        self._hand_out()

    def _hand_out(self) -> None:
        """Copy small arrays that were read to where they belong, and drop them."""
        if self.outs is None:
            return
        for key, found in self.results.items():
            out: Any = self.outs[key]
            if found is not out and found is not NOTHING:
                check_form(out, getattr(found, "shape", None), getattr(found, "dtype", None))
                if self.options.keeps:
                    out[...] = found
        self.results.clear()

    def task(self, item: Item) -> Callable[[], Result]:
        """Return a function that reads one member; its errors name the key."""
        key, entry = item
        return partial(_located, key, partial(self.reader.read, entry, self._options_of(key)))

    def _options_of(self, key: str) -> Options:
        return self.options if self.outs is None else self.options._replace(out=self.outs[key])


def fetch_groups(
    reader: MemberReader, wanted: Collection[Item], use: Callable[[MemberReader, list[Item]], None]
) -> None:
    """Fetch members of a distant source in groups, several at a time.

    Parameters
    ----------
    reader : MemberReader
    wanted : collection of (str, Entry)
        Neighbours together.
    use : callable
        Called in this thread, in order, with each group and a reader to which
        it is near. The next groups are fetched meanwhile.
    """
    ticket = object()

    def size_of(item: Item) -> int:
        begin, end = member_span(item[1])
        return end - begin

    def fetch(items: list[Item]) -> tuple[MemberReader, list[Item]]:
        return reader.ahead([entry for _, entry in items], ticket=ticket), items

    with Pipeline(REQUEST_COUNT) as pipeline:
        try:
            # Each group is mostly fetched by one request.
            for items in grouped(wanted, size_of, piece_size(sum(map(size_of, wanted)))):
                pipeline.submit(partial(fetch, items), lambda found: use(*found))
            pipeline.drain()
        except BaseException:
            # Leaving the block waits for the threads.
            reader.source.give_up(ticket)
            raise


def _is_direct(entry: Entry) -> bool:
    """Whether a member fills requests by itself, and its bytes are an array's as they come."""
    return is_plain(entry) and entry.compressed_size >= TASK_SIZE


def _cost_of(item: Item) -> int:
    """Return how many stored bytes are read in the time of a member."""
    _, entry = item
    is_stored = entry.method == STORED
    return entry.compressed_size if is_stored else _INFLATING_COST * entry.uncompressed_size


def _is_brief(entry: Entry) -> bool:
    """Whether a member takes so little time that it is all spent in Python.

    Threads would wait for each other.
    """
    if is_plain(entry):
        return entry.compressed_size <= SMALL_SIZE
    return entry.uncompressed_size < CHUNKED_SIZE


def small_neighbours(
    columns: Columns, keys: Sequence[str], names: Collection[str]
) -> tuple[Ints, list[str], list[Item]]:
    """Return the rows and keys of small stored members in file order, and all others."""
    rows = columns.rows(names)
    is_wanted = columns.is_usual[rows] & (columns.compressed_size[rows] <= SMALL_SIZE)
    order = np.flatnonzero(is_wanted)
    order = order[np.argsort(columns.header_offset[rows[order]], kind="stable")]
    others = np.flatnonzero(~is_wanted)
    left = zip([keys[i] for i in others.tolist()], columns.entries(rows[others]), strict=True)
    return rows[order], [keys[index] for index in order.tolist()], list(left)


def _offset_of(item: Item) -> int:
    return item[1].header_offset


def _spans(wanted: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Group members, in file order, that lie close together; see `spans_of`."""
    starts = np.array([entry.header_offset for _, entry in wanted], np.int64)
    sizes = np.array([entry.compressed_size for _, entry in wanted], np.int64)
    return (wanted[span] for span in spans_of(starts, sizes))


def _located(key: str, work: Callable[[], T]) -> T:
    """Call `work`; errors name the key."""
    try:
        return work()
    except NpzkitError as error:
        error.locate(key=key)
        raise


def memory_for(sizes: Sequence[int]) -> Iterator[np.ndarray[Any, Any] | None]:
    """Yield memory for each of several arrays, or None if one should have its own.

    Linux gives out a large piece of memory in huge pages, and smaller ones in pages
    of 4 KiB, which take twice as long as reading the bytes that go there.

    Parameters
    ----------
    sizes : sequence of int
        The most bytes that each array needs.
    """
    rooms = [-(-size // _ALIGNMENT) * _ALIGNMENT if size < _OWN_SIZE else 0 for size in sizes]
    ends = list(accumulate(rooms))
    memory, begin = np.empty(0, np.uint8), 0
    for size, room, end in zip(sizes, rooms, ends, strict=True):
        if not room:
            yield None
            continue
        start = end - room
        if end - begin > len(memory):
            begin = start
            last = min(bisect_left(ends, begin + SHARED_SIZE), len(ends) - 1)
            memory = _huge_pages(ends[last] - begin)
        yield memory[start - begin : start - begin + size]


def _huge_pages(size: int) -> np.ndarray[Any, Any]:
    """Return memory that begins with a huge page; what is before it is never touched.

    Without that, small pages at both ends take as long as a quarter of the reading.
    """
    if size < _HUGE_PAGE_SIZE:
        return np.empty(size, np.uint8)
    memory = np.empty(size + _HUGE_PAGE_SIZE, np.uint8)
    address = memory.__array_interface__["data"][0]
    start = -address % _HUGE_PAGE_SIZE
    return memory[start : start + size]
