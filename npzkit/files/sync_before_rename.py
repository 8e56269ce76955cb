"""Whether a file's data is on the disk before a rename that follows it.

Owns the rule that says where a new file needs no sync before it replaces an old one:

- ext4 with a journal of its own needs none, once the data has been handed to the disk and the
  file's blocks are known to hold it. Both belong to the journal's present transaction or to an
  earlier one, and the rename to that one or a later one. The disk's cache is emptied before a
  transaction counts, unless the option ``journal_async_commit`` is set. Other options do not
  matter, nor whether space was reserved.
- All others are synced: ext4 without a journal, btrfs, XFS, network shares, overlays of
  containers, and systems other than Linux. For tmpfs, a sync costs nothing.

ext4 by itself only begins to write a file that is renamed over another one. Since Linux 5.6, it
writes to blocks that count as zeros until they are written, and the journal does not wait for
these.
"""

from __future__ import annotations

import os
import struct
from typing import Any

from npzkit.files.disk import File

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

OPTIONS = "/proc/fs/ext4"
"""A folder for each device, with a file of the options that it is mounted with (Linux)."""
DEVICES = "/sys/dev/block"
"""Links from the numbers of devices to their names (Linux)."""
JOURNALS = "/proc/fs/jbd2"
"""Journals in use, by device and inode: 8 is ext4's own (Linux, ``EXT4_JOURNAL_INO``)."""
_FIEMAP = 0xC020660B
"""Asks where a file's blocks are (Linux, ``Documentation/filesystems/fiemap.rst``)."""
_WRITTEN_FIRST = struct.pack("=QQIIII", 0, 2**64 - 1, 1, 0, 0, 0)
"""Asks for none of them, and to wait until all data is written (``FIEMAP_FLAG_SYNC``)."""


def write_first(file: File) -> bool:
    """Write a file's data before any rename that follows, and return whether that was possible.

    If not, the file must be synced. That costs a commit of the journal: 0.2 ms and more.
    """
    if fcntl is None:
        return False
    device = os.fstat(file.descriptor).st_dev
    try:
        link = os.readlink(f"{DEVICES}/{os.major(device)}:{os.minor(device)}")
        name = os.path.basename(link)
        os.stat(f"{JOURNALS}/{name}-8")
        with open(f"{OPTIONS}/{name}/options", "rb", buffering=0) as options:
            if b"journal_async_commit" in options.read():
                return False
        fcntl.ioctl(file.descriptor, _FIEMAP, _WRITTEN_FIRST)
    except OSError:
        # A sync reports data that could not be written.
        return False
    return True
