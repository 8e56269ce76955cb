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

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - Local headers are written complete if their values are known first, and patched otherwise. The
#   bytes are the same. zip64 is decided from the largest size that a member can reach, so that
#   both ways agree.
# - Attributes are in both headers, and are compared when a member is first read. A change of
#   attributes is written to the directory alone, with the pair `npzkit.changed`, which says so.
# - Alignment is padded with the extra field 0xD935 of Android's zipalign, which zip programs
#   skip.
# - Chunks, groups, sections: a deflated array is cut in three ways. A chunk (256 KiB) is
#   compressed alone. A group (up to 1 MiB) is one task of a thread. A section (8 MiB) is one
#   choice of encoder. Only groups may depend on the number of threads, so the bytes never do.
# - Chunks are inflated by libdeflate. On one thread and on two, it is 1.2 (noise) to 1.7 times
#   (text) as fast as isal. It only takes complete streams, in memory. Members without chunks are
#   inflated by it as a whole while all threads together hold at most 64 MiB of compressed bytes,
#   and by isal beyond that. Seek points are made by zlib-ng.
# - libdeflate is called by ctypes where that works. The package deflate inflates into a new
#   bytearray, whose small pages took 15 (weights) to 60 % (sparse data) of the time.
#   `codecs/libdeflate` calls the same library in the package's extension module and passes memory
#   with huge pages. Without that, loading what NumPy deflated takes 8 % (weights) to 69 % (sparse
#   data) more processor time. Where its functions are not exported, the package is used.
# - libdeflate deflates arrays of one small chunk only. It makes complete streams, and the bit
#   that ends one can be found by a decoder alone, in C functions of another package whose ABI may
#   change. Long text takes 1.7 times the processor time with zlib-ng and zlib.
# - ISA-L gets the first four bytes of a stream in a call of their own. Without that, one chunk in
#   8,000 had other bytes in another run: levels 1 and 2 of ISA-L hash the third byte from an
#   uninitialized register, which has the compressor's address. `tests/codecs/test_encoders.py`
#   deflates the same chunks at many addresses.
# - Chunks of Zstandard are libzstd's jobs (`nb_workers=1`, `overlap_log=1`, flushed after each
#   chunk): nothing else makes blocks that do not use the offsets of the blocks before. A job
#   needs a thread of the library, for which the caller waits: 15 % of the time, and compressors
#   are kept for as long as a call lasts (`Pipeline.spare`), because a forked child would wait for
#   a thread that it does not have. Chunks have 256 KiB as deflated ones do: with 512 KiB, sparse
#   data would be decoded 12 % faster, but each method would have a default of its own.
# - One frame: zipfile of Python 3.14 reads no more than the first, so that zstd's own seekable
#   format is out. It has neither its content size, which a stream does not know first, nor a
#   checksum, because the archive has one. The header of an array is in a block of its own, as it
#   is: without that, 128 KiB would have to be read to know its shape.
# - libzstd is called by ctypes where that works, as libdeflate is, with one decoder per thread:
#   loading takes 0.6 to 0.8 of the time, and a small array 1.6 µs instead of 36.
# - Seek points of other programs' streams are copies of zlib-ng's decoder, every 3 MiB, of 38 KiB
#   each. isal's decoder cannot be copied.
# - A list of chunks is believed if its CRC-32s, combined, are the member's. Complete reads
#   compare the member's own, and start over without the list if it differs. Parts compare that of
#   each chunk.
# - The footer has the CRC-32 of the directory with the CRC-32 fields of the entries taken as
#   zero: a flush of a map rewrites those in place, and the footer still fits. `info` and `lazy`
#   answer from the array index. Before data is used, the array's own header is compared with it.
#   An append keeps its rows as bytes: for 100,000 arrays, parsing and formatting them took 60 ms
#   more.
# - Every archive with a member has a record, because its footer has the checksum of the
#   directory: one flipped bit would else be another key or unit. In a file of one array it takes
#   about 260 bytes. An archive without members has none: 7-Zip takes a hidden member at the start
#   of the file for a broken archive. So a bit that flips in the metadata of an archive without
#   arrays is not noticed.
# - Metadata that is too long for the comment is found by the comment, which keeps their place and
#   CRC-32, not by the footer: other programs that append keep the comment, but their directory
#   switches the index off.
# - Directories of 64 entries and more are parsed by columns (`zip/entry_columns`), smaller ones
#   by the loop in `zip/entries`. The loop also says what is wrong with the large ones.
# - A name that cannot be used sets a bit in the flags of its entry that no file has. Fast paths
#   refuse flags that they do not know, so the check costs nothing per member. `zip/local_header`
#   reports the reason.
# - The usual end of a file is one end record without zip64's, alone in the last 64 KiB, in an
#   archive that begins where the file does. One search shows that (`usual_end` in
#   `zip/end_record`), and the directory is taken from the bytes that were read for it. Everything
#   else is looked at by the code that says what is wrong.
# - An end record must lie where its directory ends. Others, such as those of archives in an
#   array, are skipped before anything is parsed: a hostile file can hold one every 22 bytes.
# - After the last end record that fits, `zip/last_commit` asks what the file says, and infers
#   nothing from members or directories. The first record of an append, its intent, gets a mark
#   when the rest is written. With the mark, a commit that cannot be read is damaged, and is never
#   skipped for an older one. Without it, and if its end is not that of the file, the append was
#   never complete. One mark is enough: no sector holds both the intent and the end, unless it
#   holds all of the append.
# - What completes an append comes last: the seal, or the cut behind its end. The mark follows,
#   without a sync: it tells damage from an append that was never complete. An end without its
#   seal is never read, and so npzkit and `np.load` read the same state of a file, or npzkit
#   warns.
# - A far copy of the last directory stands behind the room in which a large append writes, so
#   that every program finds an end in the last 64 KiB of the file at every instant. The append is
#   committed by cutting the file off behind its end, so that neither the copy nor room that was
#   not needed stays. Until then the footer has no magic: an end in the room, behind which the
#   copy is damaged, is not the last commit. Where the system cannot cut off what is mapped
#   (Windows), records are written once more behind the copy, and sealed.
