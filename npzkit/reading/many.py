"""Many members at once, faster than one by one.

Owns the order of the work: small neighbours in one read, then threads share
blocks of large stored members, chunks of deflated members with an index, and
other members as a whole. Knows nothing about bytes: `npzkit.reading.member`
reads a member.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from npzkit.codecs.methods import DEFLATED, STORED
from npzkit.errors import NpzkitError
from npzkit.files.ahead import REQUEST_COUNT, grouped
from npzkit.files.block_reading import BLOCK_SIZE, read_blocks
from npzkit.files.threads import Pipeline, run
from npzkit.reading.member import CHUNKED_SIZE, SMALL_SIZE, MemberReader, Options, Result, is_plain
from npzkit.reading.shared_read import (
    GAP_SIZE,
    SPAN_SIZE,
    Window,
    memory_for,
    read_window,
)
from npzkit.reading.small_members import Sweep, is_small, spans_of
from npzkit.zip.directory_columns import Columns
from npzkit.zip.entries import Entry
from npzkit.zip.member_checks import check_entry

_SWEEP_COUNT = 64
"""The fewest neighbours that are checked by columns: fewer are read faster one by one."""
T = TypeVar("T")

Item = tuple[str, Entry]


def read_many(
    reader: MemberReader,
    entries: Mapping[str, Entry],
    keys: Sequence[str],
    names: Collection[str],
    threads: int,
    *,
    verify: bool,
) -> dict[str, Result]:
    """Read members together.

    Parameters
    ----------
    reader : MemberReader
    entries : mapping of str to Entry
        All of the archive, by member name.
    keys : sequence of str
        What to call the members; no key twice.
    names : collection of str
        The members, a name for each key.
    threads : int
    verify : bool

    Returns
    -------
    dict of str to numpy.ndarray or bytes
        In the order of `keys`.

    Raises
    ------
    NpzkitError
        For the first member that fails, with its key.
    """
    results: dict[str, Result] = dict.fromkeys(keys, b"")
    if reader.source.is_distant:
        wanted = [(key, entries[name]) for key, name in zip(keys, names, strict=True)]
        _read_distant(reader, wanted, results, threads, verify)
    else:
        _read_near(reader, entries, keys, names, results, threads, verify)
    return results


def _read_distant(
    reader: MemberReader,
    wanted: list[Item],
    results: dict[str, Result],
    threads: int,
    verify: bool,
) -> None:
    """Fetch neighbours together, and read them while the next ones are fetched."""
    wanted.sort(key=_offset_of)
    for key, entry in wanted:
        _located(key, partial(check_entry, entry, reader.size_limit))
    large = [item for item in wanted if _is_direct(item[1])]
    # Of one ticket, so that an interrupt ends all.
    together = reader.ahead([], others=True)
    tasks = [_task(together, item, Options(verify=verify)) for item in large]
    found = run(tasks, REQUEST_COUNT)
    results.update(zip([key for key, _ in large], found, strict=True))

    def read(near: MemberReader, items: list[Item]) -> None:
        entries = {entry.name: entry for _, entry in items}
        keys, names = [key for key, _ in items], [entry.name for _, entry in items]
        _read_near(near, entries, keys, names, results, threads, verify)

    others = [item for item in wanted if not _is_direct(item[1])]
    fetch_groups(reader, others, read)


def fetch_groups(
    reader: MemberReader, wanted: Iterable[Item], use: Callable[[MemberReader, list[Item]], None]
) -> None:
    """Fetch members of a distant source in groups, several at a time.

    Parameters
    ----------
    reader : MemberReader
    wanted : iterable of (str, Entry)
        Neighbours together.
    use : callable
        Called in this thread, in order, with each group and a reader to which
        it is near. The next groups are fetched meanwhile.
    """
    ticket = object()

    def size_of(item: Item) -> int:
        begin, end = reader.span(item[1])
        return end - begin

    def fetch(items: list[Item]) -> MemberReader:
        return reader.ahead([entry for _, entry in items], ticket=ticket)

    with Pipeline(REQUEST_COUNT) as pipeline:
        try:
            for items in grouped(wanted, size_of):
                pipeline.submit(partial(fetch, items), partial(_used, use, items))
            pipeline.drain()
        except BaseException:
            # Leaving the block waits for the threads.
            reader.source.give_up(ticket)
            raise


def _used(
    use: Callable[[MemberReader, list[Item]], None], items: list[Item], near: MemberReader
) -> None:
    use(near, items)


def _is_direct(entry: Entry) -> bool:
    """Whether a member fills requests by itself, and its bytes are an array's as they come."""
    return is_plain(entry) and entry.compressed_size >= BLOCK_SIZE


def _read_near(
    reader: MemberReader,
    entries: Mapping[str, Entry],
    keys: Sequence[str],
    names: Collection[str],
    results: dict[str, Result],
    threads: int,
    verify: bool,
) -> None:
    """Read members from a source whose reads are cheap."""
    small: list[Item] = []
    large: list[Item] = []
    other: list[Item] = []
    neighbours = None
    if isinstance(entries, Columns):
        neighbours, wanted = _neighbours(entries, keys, names)
    else:
        wanted = [(key, entries[name]) for key, name in zip(keys, names, strict=True)]
    for item in wanted:
        is_large = item[1].compressed_size > SMALL_SIZE
        (other if not is_plain(item[1]) else large if is_large else small).append(item)

    def read_small() -> None:
        if neighbours is not None:
            _read_neighbours(reader, neighbours, results, verify)
        _read_spans(reader, small, results, verify)

    _read_large(reader, large, results, threads, verify, read_small)
    _read_others(reader, other, results, threads, verify)


def _read_spans(
    reader: MemberReader, small: list[Item], results: dict[str, Result], verify: bool
) -> None:
    """Read small members, neighbours together."""
    small.sort(key=_offset_of)
    for span in _spans(small):
        _read_span(reader, span, results, verify)


def _read_others(
    reader: MemberReader,
    other: Sequence[Item],
    results: dict[str, Result],
    threads: int,
    verify: bool,
) -> None:
    """Read members that are not stored: large ones on threads, small neighbours together."""
    options = Options(verify=verify)
    shared, small = [], []
    for item in other:
        if item[1].uncompressed_size >= CHUNKED_SIZE:
            shared.append(item)
        elif item[1].method == DEFLATED and item[1].uncompressed_size <= SMALL_SIZE:
            small.append(item)
        else:
            results[item[0]] = _task(reader, item, options)()
    _read_spans(reader, small, results, verify)
    _read_shared(reader, shared, results, threads, options)


class _Neighbours(NamedTuple):
    """Small stored members, in the order of the file.

    Attributes
    ----------
    columns : Columns
        Of the archive.
    rows : numpy.ndarray of int64
    keys : list of str
    """

    columns: Columns
    rows: Any
    keys: list[str]


def _neighbours(
    columns: Columns, keys: Sequence[str], names: Collection[str]
) -> tuple[_Neighbours, list[Item]]:
    """Return the small stored members, and all others."""
    rows = columns.rows(names)
    is_wanted = is_small(columns, rows, SMALL_SIZE)
    order = np.flatnonzero(is_wanted)
    order = order[np.argsort(columns.header_offset[rows[order]], kind="stable")]
    found = _Neighbours(columns, rows[order], [keys[index] for index in order.tolist()])
    others = np.flatnonzero(~is_wanted)
    left_keys = [keys[index] for index in others.tolist()]
    return found, list(zip(left_keys, columns.entries(rows[others]), strict=True))


def _read_neighbours(
    reader: MemberReader, neighbours: _Neighbours, results: dict[str, Result], verify: bool
) -> None:
    """Read small stored members by columns."""
    columns, small, small_keys = neighbours
    sweep = Sweep(columns, reader.header_limit, reader.size_limit, verify=verify)
    for span in spans_of(columns, small):
        span_rows, span_keys = small[span], small_keys[span]
        if len(span_rows) < _SWEEP_COUNT:
            items = list(zip(span_keys, columns.entries(span_rows), strict=True))
            for group in _spans(items):
                _read_span(reader, group, results, verify)
            continue
        window = _read_between(reader, *columns.entries(span_rows[[0, -1]]))
        left = sweep.read(window, span_rows, span_keys, results)
        for index, entry in zip(left, columns.entries(span_rows[left]), strict=True):
            item = span_keys[index], entry
            results[item[0]] = _task(reader, item, Options(verify=verify))()


def _read_between(reader: MemberReader, first: Entry, last: Entry) -> Window:
    """Read two small members, and all between them, in one call."""
    size = last.header_offset + reader.extent(last) - first.header_offset
    return read_window(reader.source, first.header_offset, size)


def _offset_of(item: Item) -> int:
    return item[1].header_offset


def _spans(wanted: Sequence[Item]) -> Iterator[list[Item]]:
    """Group members that lie close together, in file order.

    A member that is requested under two keys begins a new group, because arrays
    of one group share memory.
    """
    span: list[Item] = []
    start = end = last = -SPAN_SIZE
    for item in wanted:
        entry = item[1]
        offset = entry.header_offset
        begin, end = end, offset + entry.compressed_size
        if end - start > SPAN_SIZE or offset - begin > GAP_SIZE or offset == last:
            if span:
                yield span
            span, start = [], offset
        last = offset
        span.append(item)
    if span:
        yield span


def _read_span(
    reader: MemberReader, span: Sequence[Item], results: dict[str, Result], verify: bool
) -> None:
    """Read small neighbours in one call and cut them out."""
    window = _read_between(reader, span[0][1], span[-1][1])
    options = Options(verify=verify)
    for key, entry in span:
        try:
            check_entry(entry, reader.size_limit)
            read = reader.read_in if entry.method == STORED else reader.inflate_in
            results[key] = read(window, entry, options)
        except NpzkitError as error:
            error.locate(key=key)
            raise


def _task(reader: MemberReader, item: Item, options: Options) -> Callable[[], Result]:
    """Return a function that reads one member; its errors name the key."""
    key, entry = item
    return partial(_located, key, partial(reader.read, entry, options))


def _read_shared(
    reader: MemberReader,
    wanted: Sequence[Item],
    results: dict[str, Result],
    threads: int,
    options: Options,
) -> None:
    """Share large compressed members among threads, by chunks if they have an index."""
    jobs = []
    tasks: list[Callable[[], Any]] = []
    for key, entry in wanted:
        inflation = _located(key, partial(reader.prepare_inflation, entry, options))
        begin = len(tasks)
        if inflation is None:
            tasks.append(_task(reader, (key, entry), options))
        else:
            tasks += inflation.tasks(threads)
        jobs.append((key, entry, inflation, slice(begin, len(tasks))))
    done = run(tasks, threads)
    for key, entry, inflation, part in jobs:
        results[key] = done[part.start]
        if inflation is not None:
            finish = partial(reader.finish_inflation, inflation, done[part], entry, options)
            results[key] = _located(key, finish)


def _located(key: str, work: Callable[[], T]) -> T:
    """Call `work`; errors name the key."""
    try:
        return work()
    except NpzkitError as error:
        error.locate(key=key)
        raise


def _read_large(
    reader: MemberReader,
    wanted: Sequence[Item],
    results: dict[str, Result],
    threads: int,
    verify: bool,
    first: Callable[[], None],
) -> None:
    """Read the headers of all, then the blocks of all on several threads.

    This thread does something else `first`.
    """
    prepared = []
    memories = memory_for([entry.compressed_size for _, entry in wanted])
    for (key, entry), memory in zip(wanted, memories, strict=True):
        pending = _located(key, partial(reader.prepare, entry, verify=verify, memory=memory))
        if pending is None:
            results[key] = _task(reader, (key, entry), Options(verify=verify))()
        else:
            results[key] = pending.array
            prepared.append((key, entry, pending))
    spans = [(pending.offset, pending.view) for _, _, pending in prepared]
    crcs = read_blocks(reader.source, spans, threads, verify=verify, first=first)
    for (key, entry, pending), crc in zip(prepared, crcs, strict=True):
        if verify:
            _located(key, partial(pending.check, crc, entry))
