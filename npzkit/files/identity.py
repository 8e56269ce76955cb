"""What tells a file from the one that was at its path before.

Owns the value that everybody compares who asks whether a file on a disk is still the same.
Of an object in a store, it is `npzkit.stores.base_store.Version`.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Identity(NamedTuple):
    """The state of a file when it was looked at.

    If two are equal, the file is the same and has not changed. If they differ, its contents
    may still be the same: `chmod` and a hard link change `changed_ns`, and a copy has another
    `inode`. An open archive then compares its directory.

    Attributes
    ----------
    size : int
        Bytes.
    modified_ns : int
        Modification time, which programs can set: ``rsync -t`` and ``cp -p`` do.
    changed_ns : int
        Time of the last change of the contents or the inode, which no program can set. On
        Windows, the time of creation.
    inode : int
        0 on file systems of Windows that have none.
    device : int
        Differs between hosts that share a file system, and may differ after a boot.
    """

    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    device: int

    @property
    def elsewhere(self) -> tuple[int, ...]:
        """What other hosts see of the same file: all but the device."""
        return self[:-1]

    @property
    def node(self) -> tuple[int, int]:
        """Which file it is, whatever its contents are."""
        return self.inode, self.device


def identity_of(found: os.stat_result) -> Identity:
    """Return the identity of a file that the system was asked for."""
    return Identity(
        found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev
    )  # fmt: skip
