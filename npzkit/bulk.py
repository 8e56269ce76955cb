"""Many members at once, faster than one by one.

Owns the order of the work: small stored neighbours in one read, blocks of
large stored members and whole compressed ones shared out among threads.
Knows nothing of bytes; what a member is read by is `npzkit.reader`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from npzkit.errors import NpzkitError
from npzkit.parallel import read_blocks, run
from npzkit.reader import SMALL_SIZE, MemberReader, Options, Result, is_plain
from npzkit.window import read_usual, read_window
from npzkit.zip.entries import Entry

__all__ = ["read_many"]

_SPAN_SIZE = 1 << 20
"""Bytes of neighbours read in one call, and kept alive by any array of them."""
_GAP_SIZE = 1 << 14
"""Dead bytes that are read along rather than making a second call."""
_THREADS_SIZE = 1 << 20
"""Bytes of a compressed member from which on it is given to a thread: smaller
ones spend their time in Python, where threads only wait for each other."""

Item = tuple[str, Entry]


def read_many(
    reader: MemberReader, wanted: Mapping[str, Entry], threads: int, *, verify: bool = True
) -> dict[str, Result]:
    """Read members together; the result is in the order of `wanted`.

    Raises
    ------
    NpzkitError
        For the first member that fails, with its key.
    """
    results: dict[str, Result] = dict.fromkeys(wanted, b"")
    small: list[Item] = []
    large: list[Item] = []
    other: list[Item] = []
    last_offset, in_order = 0, True
    for item in wanted.items():
        entry = item[1]
        if not is_plain(entry):
            other.append(item)
        elif entry.compressed_size > SMALL_SIZE:
            large.append(item)
        else:
            small.append(item)
            in_order = in_order and entry.header_offset >= last_offset
            last_offset = entry.header_offset
    if not in_order:
        small.sort(key=lambda item: item[1].header_offset)
    for span in _spans(small):
        _read_span(reader, span, results, verify)
    _read_large(reader, large, results, threads, verify)
    options = Options(verify=verify)
    shared = [item for item in other if item[1].uncompressed_size >= _THREADS_SIZE]
    done = run([_task(reader, item, options) for item in shared], threads)
    results.update(zip((key for key, _ in shared), done, strict=True))
    for item in other:
        if item[1].uncompressed_size < _THREADS_SIZE:
            results[item[0]] = _task(reader, item, options)()
    return results


def _spans(wanted: Sequence[Item]) -> Iterator[list[Item]]:
    """Group members that lie close together, in file order.

    One that is asked for under two keys begins a group again: arrays of one
    group share memory.
    """
    span: list[Item] = []
    start = end = 0
    for item in wanted:
        offset, size = item[1].header_offset, item[1].compressed_size
        if span and (
            offset - end > _GAP_SIZE
            or offset + size - start > _SPAN_SIZE
            or offset == span[-1][1].header_offset
        ):
            yield span
            span = []
        if not span:
            start = offset
        end = offset + size
        span.append(item)
    if span:
        yield span


def _read_span(
    reader: MemberReader, span: Sequence[Item], results: dict[str, Result], verify: bool
) -> None:
    """Read small neighbours in one call and cut them out."""
    first, last = span[0][1], span[-1][1]
    size = last.header_offset + reader.extent(last) - first.header_offset
    window = read_window(reader.source, first.header_offset, size)
    header_limit, size_limit = reader.header_limit, reader.size_limit
    for key, entry in span:
        if size_limit is None or entry.compressed_size <= size_limit:
            try:
                array = read_usual(window, entry, header_limit, verify)
            except NpzkitError as error:
                error.locate(key=key)
                raise
            if array is not None:
                results[key] = array
                continue
        results[key] = _task(reader, (key, entry), Options(verify=verify))()


def _task(reader: MemberReader, item: Item, options: Options) -> Callable[[], Result]:
    """Return the reading of one member, its key in what it raises."""
    key, entry = item

    def read() -> Result:
        try:
            return reader.read(entry, options)
        except NpzkitError as error:
            error.locate(key=key)
            raise

    return read


def _read_large(
    reader: MemberReader,
    wanted: Sequence[Item],
    results: dict[str, Result],
    threads: int,
    verify: bool,
) -> None:
    """Read the headers of all, then the blocks of all on several threads."""
    prepared = []
    for key, entry in wanted:
        try:
            pending = reader.prepare(entry)
            if pending is None:
                results[key] = reader.read(entry, Options(verify=verify))
                continue
        except NpzkitError as error:
            error.locate(key=key)
            raise
        results[key] = pending.array
        prepared.append((key, entry, pending))
    spans = [(pending.offset, pending.view) for _, _, pending in prepared]
    crcs = read_blocks(reader.source, spans, threads, verify=verify)
    for (key, entry, pending), crc in zip(prepared, crcs, strict=True):
        try:
            if verify:
                pending.check(crc, entry)
        except NpzkitError as error:
            error.locate(key=key)
            raise
