"""What is fetched of a distant archive before its members are read.

Owns where the bytes of a member lie as far as its entry says, with room for what only its own
headers say; and its headers and its seek index, once they were fetched. Reads no member.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from npzkit.codecs.coding import CHUNKED
from npzkit.files.source import Source
from npzkit.reading.small_member import HEADERS_SIZE
from npzkit.zip.entries import Entry
from npzkit.zip.sozip import may_have_index

_INDEX_SIZE = 1 << 11
"""Bytes allowed for a seek index, beside one for each `_INDEXED_SIZE` of the member."""
_INDEXED_SIZE = 1 << 14
_FORESEEN_COUNT = 20_000
"""Members whose headers are fetched together: a few kilobytes each."""


class MemberEnds:
    """The headers and the seek indexes of an archive's members, and what is near to them.

    Parameters
    ----------
    source : Source
        Of the archive. If it is not distant, nothing is fetched.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._fetched: dict[str, Source] = {}

    def foresee(self, entries: Iterable[Entry]) -> None:
        """Fetch those of many members together, because they will be read one by one."""
        if not self._source.is_distant:
            return
        chosen = list(itertools.islice(entries, _FORESEEN_COUNT))
        spans = itertools.chain.from_iterable(map(_end_spans, chosen))
        source = self._source.ahead(spans, at_once=True, others=True)
        self._fetched.update((entry.name, source) for entry in chosen)

    def of(self, entry: Entry) -> Source:
        """Return the source with those of one member, fetched together."""
        if not self._source.is_distant:
            return self._source
        found = self._fetched.get(entry.name)
        if found is None:
            found = self._source.ahead(_end_spans(entry), others=True)
            self._fetched[entry.name] = found
        return found


def member_span(entry: Entry) -> tuple[int, int]:
    """Return where a member and its seek index lie, with some room for its headers."""
    room = _index_room(entry) if entry.method in CHUNKED else HEADERS_SIZE
    end = _least_start(entry) + entry.compressed_size + room
    return entry.header_offset, min(end, entry.end_offset)


def _end_spans(entry: Entry) -> list[tuple[int, int]]:
    """Return where the headers of a member lie, and its seek index if it can have one."""
    start, end = _least_start(entry), entry.end_offset
    spans = [(entry.header_offset, min(start + HEADERS_SIZE, end))]
    if may_have_index(entry):
        begin = start + entry.compressed_size
        spans.append((min(begin, end), min(begin + _index_room(entry), end)))
    return spans


def _least_start(entry: Entry) -> int:
    """Return where a member's data begins unless its local extra field is longer."""
    return entry.name_end + len(entry.extra)


def _index_room(entry: Entry) -> int:
    """Return the bytes, counted from where a member ends at least, in which its index lies."""
    return HEADERS_SIZE + _INDEX_SIZE + entry.uncompressed_size // _INDEXED_SIZE
