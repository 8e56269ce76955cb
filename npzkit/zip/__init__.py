"""The zip container: bytes to local headers, directory and end record, and back.

Knows no numpy, but for `columns` and `local`. Its modules, each importing only those before it:

- `records`: the fixed records, parsed and formatted without I/O
- `extra`: the extra fields (zip64, key-value pairs, alignment, Unicode path)
- `end`: the end record, searched for and resolved
- `entries`: the central directory's entries, parsed and held together
- `columns`: the same, of many entries at once
- `directory`: end record and entries together
- `member`: a member's local header checked
- `local`: those of many members at once
- `stream`: its data, decompressed piece by piece
- `writer`: members, directory and end record to a sink

Source: PKWARE APPNOTE.TXT 6.3.10, cited by section.
"""
