"""Files: where bytes are read from and written to, locks, and threads that share a file.

Knows nothing about zip or NPY, but how an end record is found (`append_room`).
"""

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - File objects: only io's own file types are read by descriptor or with `readinto`, or patched
#   by seeking back. A subclass may change only `read`, the descriptor of a GzipFile leads to
#   other bytes, and a file opened for appending ignores seeks.
# - A small append is one large write and two small ones: all of it, with zeros for the first four
#   bytes of its end record; these four bytes; the mark.
# - Sync: the data of a new file is on the disk before it replaces an old one, also without
#   `durable=True`, because the old file may have been committed with it. On ext4 with a journal,
#   `files/sync_before_rename` has the data written, which takes 0.04 ms for 80 bytes where
#   `fdatasync` takes 0.3 to 0.7. The journal does the rest, because the rename cannot be on the
#   disk before what the journal got earlier. Elsewhere a sync is needed. What ext4 does by itself
#   (`auto_da_alloc`) is not enough: since Linux 5.6 it writes to extents that count as zeros
#   until they are written (`dioread_nolock`), and the journal does not wait for those. A call
#   that waits for the data returns after the extents are converted (since Linux 3.11). btrfs only
#   begins to write since Linux 3.15. Python has no `statfs`, and a type is not enough: ext4 may
#   have no journal. Pieces of 1 MiB and more are given to the disk as they are written
#   (`posix_fadvise`): 4 arrays of 64 MiB are saved over last time's file in 174 ms instead of
#   220. Space is not reserved for such files, which takes that away again.
# - A small archive is written in one go: up to four runs of small arrays are put together in
#   memory, and `files/new_file_at_once` creates, writes and renames the file. Its lock is its own
#   descriptor, not a second one, because nothing is written after the rename; a forked child
#   closes it. Symbolic links in the path of the folder are not resolved: a rename in a folder
#   that is switched meanwhile fails. `O_TMPFILE` with `linkat` would need no temporary name, but
#   takes 6.0 µs where a rename takes 5.4, and cannot replace a file.
# - The old file is closed before a new one takes its place, and opened again if more is written.
#   A network file system may report a full disk only when a file is closed, and Windows does not
#   rename open files.
# - Room on disk is reserved before bytes can be written through a map, with `posix_fallocate` or
#   with zeros. A map that finds no room kills the process. Holes in other programs' files are
#   looked for only if the file has fewer blocks than bytes.
# - Other writers: before a writer adds to a file, it compares the CRC-32 of its last directory
#   with the file's (0.3 ms for 100,000 entries). Other programs ask for no lock, and the time of
#   a file also changes with a map's pages.
# - A writer's lock is held by an open file of its own, so that a forked child can release it.
#   Libraries for locking either create a file beside the archive or, on Windows, lock bytes that
#   readers and writers need: Windows refuses both to everybody else. So the byte is the last that
#   a file could have. Who waits for the lock has the file closed between two attempts.
# - On Windows, a new file's lock ends before it is renamed, because no open file is. Another
#   writer may then lock the old file, and the rename fails; it is tried again after that one has
#   ended, if what was read from the old file is still there. No lock is taken after the rename
#   until more is written.
# - Files that are kept open are a quarter of what the process may have, at most (`kept_open` in
#   `datasets/reopened`). Under `ulimit -n 64`, imports and other libraries need the rest.
# - Only regular files are opened by their path. A FIFO would wait for a writer, and reading a
#   device may change it. So the system is asked first what is there, and then opens it without
#   waiting: another file may have taken its place. What waits in a FIFO is still there after the
#   error. File objects of streams are read by `iter_arrays`.
# - Is it still the same file? Everybody compares an `Identity`: size, time of modification, time
#   of change, inode, device. Programs can set the time of modification (`rsync -t`, `cp -p`), but
#   not the time of change. If two identities are equal, nothing is read. If they differ, the
#   contents may still be the same: `chmod` and hard links change the time of change, and copies
#   have another inode. Then the directory decides, because it has the CRC-32 of each array. An
#   open archive compares its bytes. Pickles and `open_many` compare size, time of modification
#   and the CRC-32 of the directory, because other hosts and copies have other inodes and devices.
#   A touched file is therefore refused, and a copy with its times is not. Two changes within one
#   tick of the system's clock (1 to 10 ms) are seen only if the file was replaced, not if it was
#   rewritten in place. On Windows, the time of change is that of creation.
# - Distant sources: a source whose reads are requests says so (`Source.is_distant`). Readers then
#   say which ranges they will read (`Source.ahead`), or read a member with one call. `ahead`
#   returns a source in which these ranges are in memory, or are fetched as far as somebody reads.
#   Everything else reads it like a file. A local source returns itself.
# - HTTP is urllib3: connections, pools, TLS, proxies. It is pure Python, works in forked children
#   (obstore's runtime ends such a child), and is imported with the first URL. With the thread
#   below, a request takes 0.2 ms more of the processor than with `http.client`: 1 % with 20 ms of
#   latency. npzkit does what it lacks: it asks in a thread that can be given up, because a
#   look-up of a name can be neither interrupted nor limited; it looks at the clock while a body
#   comes; it drops what urllib3 logs, because that has the queries of URLs. Its `Retry` and its
#   redirects are not used. A body breaks off after `urlopen` returned, and `stores/retries` is
#   one rule for all stores. `PoolManager` follows a redirect through the proxy of the first host,
#   reads the body of the answer that redirects, and does not say where it came to.
# - Chunked bodies are read by `http.client`. It reads the size of a chunk as Python reads a
#   number (`-1`, `+5`, `1_0`), and takes any two bytes for the end of a chunk, so a wrong server
#   can bring framing into the data. Whoever reads an array, or a part that npzkit wrote, compares
#   its CRC-32; nothing protects other parts from a server that is wrong. Refused are other
#   codings than `chunked`, which `http.client` does not decode, and a head with a line that is no
#   field: it ends the head there, also if the next line is `Transfer-Encoding: chunked`.
# - Archives share connections to one origin, with the same proxy, time limit and certificates. A
#   sharded archive of 512 files would otherwise hold 512 sockets, and TLS would greet the server
#   as often. A connection that was idle for 50 seconds is not used again, nor one on which
#   something came that nobody asked for: a second answer, or the end. A pool lives as long as an
#   archive that uses it, so an archive opened alone still makes its own connection.
# - Certificates of authorities are read once in a process, and again if `SSL_CERT_FILE` or
#   `SSL_CERT_DIR` changes. That takes longer than a request: `python -m timeit -s "import ssl"
#   "ssl.create_default_context()"`.
# - An upload has bytes that are not final: the header of an array that grows is known at its end.
#   The part that it is in waits (`Sink.keep`, `Sink.release`) while those after it are sent,
#   because S3 takes parts in any order. Other stores take them in order, so a compressed array is
#   in memory until its header is known.
# - Parts begin with 8 MiB and double each 1,000, so that 5 TiB fit into the 10,000 of S3. They
#   are sent by a `Pipeline` that lives as long as the sink. On Azure, each is one block, because
#   a blob has 50,000 at most.
# - An upload marks its object with a random value in the metadata. If the answer to the last
#   request is lost, the repeated request is refused as if another writer had been first. The mark
#   tells the two apart.
# - S3 is s3fs, because users' options and credentials are fsspec's. It took 27 ms for a first
#   request and 633 ms for the 200 ranges; obstore took 21 and 449. `_cat_file` cannot name a
#   version, so `get_object` is called with `IfMatch`.
# - A version is what came with the first bytes. If an answer lacks the ETag or date that the
#   first one had, it may be of another object, so it is stale. A weak ETag is compared together
#   with the date. A date of the second in which the server answers is no version (RFC 9110,
#   8.8.2.2): the open waits for the next second, but only if the archive is larger than the first
#   answer and there is no ETag, or the one that nginx makes of this second and the size.
# - Without a version, parts are read with a warning. To refuse them would lock users out of
#   servers whose files never change. Complete arrays need no warning, because their CRC-32 is in
#   the directory that was read first.
# - A range from the end that is refused (400, 405, 416, 501) is asked for by its offsets, after a
#   request for one byte that brings the size. Presigned URLs refuse HEAD.
# - fsspec's block caches are left out of a chain. With `check_files` too, fsspec 2026.9 joins the
#   blocks that it has of an older version to those of the new one.
# - File systems that fsspec does not share have a state: FTP has one connection, an archive in a
#   chain one place in its file. npzkit makes one call at a time to them.
# - Lists that file systems remember: those of Google and Azure answer `info` from the last list
#   of a folder, without a request. npzkit drops that list before each question for an object's
#   version, because the object may have been replaced since.
# - The beginning of a distant archive is not fetched when it is opened, if the first member of
#   the directory begins there. Its local header is checked when the member is read.
# - An index that is not proven may say where rows of a distant array are. The array's headers are
#   fetched with the first rows, and compared before the rows are returned.
# - Descriptors: a file is closed when the last call that uses it ends. System calls take a
#   `Descriptor` of `files/disk` instead of its number, and hold it until they return. So no read
#   uses a number that now belongs to another file, and no lock or count is needed. A caller's own
#   file object is checked again after each read.
# - Interrupts may come between any two bytecodes. A file is therefore opened and given its owner
#   in one C call, and closed in one. `files/threads` waits only in such calls, and starts threads
#   with `_thread`: the locks of `threading` are Python code, and an interrupt leaves them in a
#   wrong state.
# - An interrupt ends requests of other threads too, because their caller waits for these threads.
#   A call of fsspec, and a request of HTTP until its answer begins, cannot be ended. They are
#   made in threads of their own that nobody waits for after an interrupt, or in fsspec's event
#   loop. These are the only threads that outlive a call. While the body of an answer comes, its
#   socket is shut down. `SSLSocket.shutdown` ends the encryption too, so what comes after it is
#   never taken for data: a thread asks after each read whether it was given up.
# - Threads never outlive the call that started them, so a fork finds no dead pool. In
#   `files/threads`, `run` shares out tasks whose results are needed together. `Pipeline` passes
#   results on in order while more tasks come, and runs a few at a time.
# - One thread writes stored data while others compute its CRC-32. A file takes one write at a
#   time, and two writing threads were slower than one.
# - Progress is counted in bytes by any thread and reported in the caller's thread, which looks at
#   the count while it waits (`Meter` in `files/progress`).
# - A buffer is never resized after a view of it was made: a debugger may hold the view.
