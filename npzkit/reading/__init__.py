"""Members to arrays: one, many, a part of one, or a map of it.

Where the zip layer and the NPY layer meet. Knows entries; keys are the
callers' names for them, except in `stream`.
"""

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - Each read of plain values ends in `SmallReader._finished`, which compares the CRC-32. Fast
#   ways only accept. If one of them finds anything wrong or unusual, the member is read again as
#   a stream, and that code says what is wrong. Damaged arrays are therefore read twice.
# - A small array passes few functions: at most 8 from `npz[key]` to the system call, for an array
#   of one block. `tests/archive/test_call_depth.py` counts them.
# - `load_all` has one queue, the largest members first, so that no thread is left with a long
#   task at the end. The calling thread reads the small ones first.
# - Arrays that exist are filled in two passes, because nothing may change unless all are sound.
#   Less than 8 MiB (`READ_ONCE_SIZE`) is read into memory and copied instead, which takes less
#   time. The first pass reads blocks of 1 MiB, which stay in the processor's cache for their
#   CRC-32. The second reads straight into the arrays, and compares the CRC-32s again, because the
#   file may have changed. For 256 MiB in 32 arrays, in the page cache, on two processors, the
#   passes take 23 and 24 ms. A copy out of a map takes as long as the second pass, but is killed
#   if the file is truncated, and its pages count as memory. New memory takes 77 ms to fill,
#   because its pages are made first. Compressed members are decompressed twice, which takes up to
#   twice as long as once, because what was checked would have to be kept: beside the arrays, less
#   than a hundredth of their size is in memory.
# - Small compressed members (under 1 MiB) are read by one thread. Most of their time is Python,
#   where threads wait for each other.
# - After a fork, the child opens the chunks of members again. At the fork a lock may have been
#   held, or a stream may have been in use.
# - A map of mode "r+" has a class of its own for its pages. Its `flush` updates the CRC-32 in the
#   local header and in the entry. The directory is then read again.
# - A flush takes the writers' lock. Under the lock it computes the CRC-32, compares it with the
#   file's and writes it. A writer lists entries as it found them, and two flushes of one array
#   would each write what they had computed earlier. The lock has its own descriptor, because
#   threads and forked children share the others. A flush that finds nothing to write waits for no
#   writer.
# - A flush writes the local header first. Two headers that differ only in their CRC-32 are
#   therefore not a damaged container: unchecked reads continue, and checked reads raise
#   `ChecksumError`. `repair` in place writes the other CRC-32 if one of the two matches the data.
#   It never writes a third one, because changed data that was not flushed looks like damage.
# - A stream is read to its end, because an archive that was appended to has end records between
#   its members. Its headers, directories and end records are kept, without the data. At the end,
#   they are read as a file is, by the same code. So a stream and a file get the same verdict.
# - Arrays that the directory does not list have been yielded by then. If one was replaced, the
#   last of its key is current, and a warning is enough. If one was removed, renamed or never
#   committed, it is an error, because nobody would notice it in a dict.
# - Between members, bytes that are not a record are skipped up to the next signature. What is
#   found there by mistake is not listed, so it is reported.
