"""The zip container: bytes to local headers, directory and end record, and back.

Knows no NumPy, except where records are handled by the thousand, or data by the megabyte. The
modules that read; at the top, each imports those before it (`last_commit` also `written_header`,
and `forward_archive` also `member_search`), and what is rare is imported in functions:

- `records`: the fixed records, parsed and formatted without I/O
- `extra_fields`: the extra fields (zip64, key-value pairs, alignment, Unicode path)
- `end_record`: the end record, found and resolved
- `entries`: the entries of the central directory, parsed and checked together
- `entry_columns`: the same for many entries at once
- `local_header`: whether a member can be read, and where its data begins
- `header_columns`: the same for many members at once
- `npzkit_record`: the form of what npzkit adds, on which no other program stumbles
- `commit`: what a commit says of itself: footer, intent, metadata
- `last_commit`: the bytes after the last end record that fits
- `directory`: end record and entries together, and what else belongs to a commit
- `array_index`: the NPY headers of all members, and where the lists of their chunks are
- `member_stream`: a member's data, decompressed piece by piece
- `chunk_list`: the list of a member's chunks, and whether it is believed
- `kept_chunks`: decoded chunks that an open archive keeps
- `chunks`: the bytes of a member at any offset, read and checked by chunks
- `forward_archive`: an archive that is read from front to back

Those that write:

- `written_header`: headers, entries and end records as npzkit writes them
- `member_writer`: one member to a sink, front to back
- `writer`: members, directory and end record to a sink

Those that examine or restore what is there:

- `dead_space`: how many bytes belong to no listed member
- `member_search`: members found by their local headers alone
- `directory_repair`: the newest state of an archive whose end is damaged

Source: PKWARE APPNOTE.TXT 6.3.10, cited by section.
"""
