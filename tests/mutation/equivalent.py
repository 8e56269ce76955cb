"""Faults that change nothing which a test could see, each with the reason."""

from __future__ import annotations

__all__ = ["EQUIVALENT"]

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "reading/stream.py",
        "if not entry.extra:",
        "if (False):",
    ): "An empty extra field has no attributes either way.",
    (
        "zip/directory.py",
        "and source.at_hand(start, 4) is None",
        "and source.at_hand(start, 5) is None",
    ): "Asks for one byte more of what is in memory.",
    (
        "zip/directory.py",
        "if not isinstance(begins, list):",
        "if (False):",
    ): "NumPy's integers slice the same bytes, more slowly.",
    (
        "trees/restoring.py",
        "names = found if notes.keys() <= found.keys() else _in_order(found, notes)",
        "names = found if (notes.keys() < found.keys()) else _in_order(found, notes)",
    ): "The same names give the same order, more slowly.",
    (
        "format/literal.py",
        'self.kind = match.lastgroup or ""',
        "self.kind = (match.lastgroup)",
    ): "For the type checker: each match has a last group.",
    (
        "zip/member_search.py",
        'self._start, self._data = 0, b""',
        'self._start, self._data = 1, b""',
    ): "No bytes are held yet.",
    (
        "reading/load_all.py",
        "if len(rows) < _SWEEP_COUNT:",
        "if (False):",
    ): "A shortcut for few members.",
    (
        "zip/kept_chunks.py",
        "while self._size > _KEPT_SIZE and len(self._chunks) > 1:",
        "while (self._size >= _KEPT_SIZE) and len(self._chunks) > 1:",
    ): "One chunk less is kept.",
    (
        "reading/member.py",
        "is_usual = entry.method == DEFLATED and not entry.flags & FLAG_DESCRIPTOR",
        "is_usual = (entry.method == DEFLATED)",
    ): "A stream compares the descriptor too, more slowly.",
    (
        "zip/end_record.py",
        "if place > 0:",
        "if place > 1:",
    ): "The signature cannot begin at its own second byte.",
    (
        "zip/chunks.py",
        "self._source = source.ahead([(data_start, data_start + entry.compressed_size)])",
        "self._source = source.ahead([(data_start, (data_start - entry.compressed_size))])",
    ): "Nothing is fetched ahead.",
    (
        "reading/member_headers.py",
        "if header is None or data[start : start + len(raw)] != raw:",
        "if (True):",
    ): "The header is parsed again.",
    (
        "zip/entries.py",
        "if UNICODE_PATH in extra:",
        "if (True):",
    ): "A field without such a block has no path.",
    (
        "zip/header_columns.py",
        "if any((fields[size] == SENTINEL_32).any() for size in sizes):",
        "if any(((fields[size] != SENTINEL_32)).any() for size in sizes):",
    ): "No size has its place in a zip64 block.",
    (
        "maintenance/damaged_rows.py",
        "stream = MemberStream(reader.source, entry, start, verify=False)",
        "stream = MemberStream(reader.source, entry, start, verify=True)",
    ): "The entry was made of the only header.",
    (
        "reading/member_headers.py",
        "found = max(entry.uncompressed_size - header.data_offset, 0)",
        "found = max(entry.uncompressed_size - header.data_offset, 1)",
    ): "Only the message of an error shows it.",
    (
        "reading/byte_ranges.py",
        "gap = max(gap, step * stride - extent)",
        "gap = max(gap, (step * stride + extent))",
    ): "Says only which items are read at once.",
    (
        "maintenance/damaged_rows.py",
        "with Pipeline(1) as pipeline:",
        "with Pipeline(2) as pipeline:",
    ): "Two threads compress the same bytes.",
    (
        "zip/chunks.py",
        "if begin < stop and min(stop * self.chunk_size, self.size) > end:",
        "if begin < stop and (min(stop * self.chunk_size, self.size) >= end):",
    ): "A last chunk that is complete is kept too.",
    (
        "reading/member.py",
        "at_once = sum(end - begin for begin, end in spans) <= WHOLE_SIZE",
        "at_once = (sum((end - begin for begin, end in spans)) < WHOLE_SIZE)",
    ): "Members of exactly this size are fetched in pieces.",
    (
        "stores/upload_sink.py",
        "return any(start < end and part.start < stop for start, stop in self._kept.items())",
        "return any((start <= end) and part.start < stop for start, stop in self._kept.items())",
    ): "A part that ends where kept bytes begin is sent later.",
    (
        "reading/member_headers.py",
        "compressed = head[start : start + entry.compressed_size]",
        "compressed = head[start : (start + entry.compressed_size - 1)]",
    ): "A header that needs the last byte is read from the file.",
    (
        "zip/chunks.py",
        "begin, end = self._offsets[missing[0]], self._offsets[missing[-1] + 1]",
        "begin, end = self._offsets[missing[0]], self._offsets[missing[-1] + 0]",
    ): "The last chunk is fetched by itself.",
    (
        "zip/extra_fields.py",
        "if len(data) > 0xFFFF:",
        "if (len(data) >= 65535):",
    ): "All attributes together may not have so many bytes.",
    (
        "format/descr.py",
        "names = dtype.names or ()",
        "names = (dtype.names)",
    ): "For the type checker: a structure has names.",
    (
        "datasets/shards.py",
        "self._proven[part] = 1",
        "self._proven[part] = 2",
    ): "Each number but 0 says that the part was compared.",
    (
        "zip/member_writer.py",
        "if start is not None and start != self._start:",
        "if (start is not None):",
    ): "The same bytes have the same CRC-32, and are written again.",
    (
        "zip/member_stream.py",
        "if self._checked:",
        "if (False):",
    ): "The same checks pass again.",
    (
        "stores/upload_sink.py",
        "if not self._is_closed:",
        "if (True):",
    ): "`tried` asks whether the sink is closed too.",
    (
        "stores/upload_sink.py",
        "self._waiting.clear()",
        "pass",
    ): "The parts go with the sink.",
    (
        "files/written_file.py",
        "lock.close()",
        "pass",
    ): "A lock that is dropped is closed.",
    (
        "checkpoint/folder.py",
        "self.close()",
        "pass",
    ): "The older lock is dropped, and so closed.",
    (
        "maintenance/repair.py",
        "sink.close()",
        "pass",
    ): "The sink is dropped after its commit, and so closed.",
}
"""Reasons, by module, line before and line after: `Mutant.name`. Most are about speed."""
