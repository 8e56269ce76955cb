"""The zip container: bytes to local headers, directory and end record, and back.

Knows no numpy, but for `columns` and `local`. Its modules, each importing only those before it:

- `records`: the fixed records, parsed and formatted without I/O
- `extra`: the extra fields (zip64, key-value pairs, alignment, Unicode path)
- `layout`: headers and end as npzkit writes them
- `end`: the end record, searched for and resolved
- `entries`: the central directory's entries, parsed and held together
- `columns`: the same, of many entries at once
- `directory`: end record and entries together
- `member`: a member's local header checked
- `local`: those of many members at once
- `stream`: its data, decompressed piece by piece
- `sozip`: the seek index behind a deflated member
- `chunks`, `random_access`: the bytes at an offset
- `deflate`: data to chunks that can be read alone
- `member_writer`: one member to a sink, front to back
- `writer`: members, directory and end record to a sink
- `reseal`: a new CRC for a stored member

Source: PKWARE APPNOTE.TXT 6.3.10, cited by section.
"""
