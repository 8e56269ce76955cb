"""The zip container: bytes to local headers, directory and end record, and back.

Knows no NumPy, except where records are handled by the thousand. The modules that
read, each importing only those before it:

- `records`: the fixed records, parsed and formatted without I/O
- `extra_fields`: the extra fields (zip64, key-value pairs, alignment, Unicode path)
- `end_record`: the end record, found and resolved
- `entries`: the entries of the central directory, parsed and checked together
- `directory_columns`: the same for many entries at once
- `local_header`: a local header checked against its entry, one or many at once
- `member_checks`: whether a member can be read, and where its data begins
- `tail`: the bytes after the last end record that fits
- `directory`: end record and entries together
- `member_stream`: a member's data, decompressed piece by piece
- `sozip`: the seek index after a deflated member
- `chunks`, `random_access`: the bytes at an offset
- `forward_stream`, `forward`: an archive that is read from front to back

Those that write:

- `layout`: headers and end records as npzkit writes them
- `deflate`: data to chunks that can be read alone
- `member_writer`: one member to a sink, front to back
- `writer`: members, directory and end record to a sink
- `crc_update`: a new CRC-32 for a stored member

Those that change or repair what is there:

- `entry_records`: entries changed or kept byte by byte
- `dead_bytes`: how many bytes belong to no listed member
- `local_header_scan`: members found by their local headers alone
- `damaged_directory`: the newest state of an archive whose end is damaged

Source: PKWARE APPNOTE.TXT 6.3.10, cited by section.
"""
