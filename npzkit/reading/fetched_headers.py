"""What is fetched of a distant archive before its members are read.

Owns where the bytes of a member lie as far as its entry says, with room for what only its own
headers say; and its headers and the list of its chunks, once they were fetched. Reads no member.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from npzkit.files.source import Source
from npzkit.reading.small_member import HEADERS_SIZE
from npzkit.zip.array_index import ChunkLists
from npzkit.zip.entries import Entry

_FORESEEN_COUNT = 20_000
"""Members whose headers are fetched together: a few kilobytes each."""


class FetchedHeaders:
    """The headers of an archive's members and the lists of their chunks, and what is near to them.

    Parameters
    ----------
    source : Source
        Of the archive. If it is not distant, nothing is fetched.
    lists : ChunkLists
    """

    def __init__(self, source: Source, lists: ChunkLists) -> None:
        self._source, self._lists = source, lists
        self._fetched: dict[str, Source] = {}

    def foresee(self, entries: Iterable[Entry]) -> None:
        """Fetch those of many members together, because they will be read one by one."""
        if not self._source.is_distant:
            return
        chosen = list(itertools.islice(entries, _FORESEEN_COUNT))
        spans = itertools.chain.from_iterable(map(self._spans, chosen))
        source = self._source.ahead(spans, at_once=True, others=True)
        self._fetched.update((entry.name, source) for entry in chosen)

    def of(self, entry: Entry) -> Source:
        """Return the source with those of one member, fetched together."""
        if not self._source.is_distant:
            return self._source
        found = self._fetched.get(entry.name)
        if found is None:
            found = self._source.ahead(self._spans(entry), others=True)
            self._fetched[entry.name] = found
        return found

    def _spans(self, entry: Entry) -> list[tuple[int, int]]:
        """Return where the headers of a member lie, and the list of its chunks if it has one."""
        begin, end = entry.header_offset, min(_least_start(entry) + HEADERS_SIZE, entry.end_offset)
        listed = self._lists.span(entry)
        return [(begin, end)] if listed is None else [(begin, end), listed]


def member_span(entry: Entry) -> tuple[int, int]:
    """Return where a member lies, with some room for its headers."""
    end = _least_start(entry) + entry.compressed_size + HEADERS_SIZE
    return entry.header_offset, min(end, entry.end_offset)


def _least_start(entry: Entry) -> int:
    """Return where a member's data begins unless its local extra field is longer."""
    return entry.name_end + len(entry.extra)
