"""The zip container: bytes to local headers, directory and end record, and back.

Knows no numpy. Its modules, each importing only those before it:

- `records`: the fixed records, parsed and formatted without I/O
- `extra`: the extra fields (zip64, key-value pairs, alignment, Unicode path)
- `end`: the end record, searched for and resolved
- `entries`: the central directory's entries, parsed and held together
- `directory`: both together
- `member`: a member's local header checked
- `stream`: its data, decompressed piece by piece
- `writer`: members, directory and end record to a sink

Source: PKWARE APPNOTE.TXT 6.3.10, cited by section.
"""
