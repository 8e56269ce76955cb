"""What a file system puts on the disk by itself, before it renames a file over another one.

Owns the rule that says where a new file needs no sync before it replaces an old one, so that a
power failure leaves one of them complete:

- ext4 writes the data of a file that is renamed over another one before the rename
  (``auto_da_alloc``), unless it is mounted with ``noauto_da_alloc`` or ``data=writeback``.
  Space that was reserved is no such data.
- tmpfs loses both with the power.
- All others need a sync. That holds for btrfs too, which only begins to write (since Linux
  3.15), for XFS, for network shares, for overlays of containers, and for systems without
  ``/proc``, such as macOS and Windows.
"""

from __future__ import annotations

import functools
import os
import re
import time

MOUNTS = "/proc/self/mountinfo"
"""Where Linux says what is mounted, and how (proc(5))."""
_SECONDS = 10
"""How long an answer counts. Another file system may get the same device number later."""
_MOUNT = re.compile(r"^\d+ \d+ (\d+:\d+) .* - (\S+) \S+ (\S+)$", re.MULTILINE)


def orders_renames(device: int) -> bool:
    """Return whether a file on this device (``st_dev``) needs no sync before it replaces another.

    False if that is unknown.
    """
    return _orders_renames(device, int(time.monotonic()) // _SECONDS)


@functools.lru_cache(8)
def _orders_renames(device: int, _: int) -> bool:
    try:
        with open(MOUNTS, encoding="utf-8", errors="replace") as file:
            mounts = file.read()
    except OSError:
        return False
    for number, kind, options in _MOUNT.findall(mounts):
        if number == f"{os.major(device)}:{os.minor(device)}":
            unsafe = {"noauto_da_alloc", "data=writeback"}.intersection(options.split(","))
            return kind == "tmpfs" or (kind == "ext4" and not unsafe)
    return False
