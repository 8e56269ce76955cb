"""What a process knows of the others of its job.

Owns the share of the processors that a process takes, and the folder of a process that
saves without the others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from npzkit.files.threads import thread_count
from npzkit.files.urls import Location, find_location


def own_threads(threads: int | None) -> int:
    """Return `threads`, or this process's share of the processors of its machine.

    ``torchrun`` sets LOCAL_WORLD_SIZE, the number of processes on a machine.
    """
    if threads is not None:
        return thread_count(threads)
    processes = os.environ.get("LOCAL_WORLD_SIZE", "")
    count = int(processes) if processes.isascii() and processes.isdigit() else 1
    return max(thread_count(None) // max(count, 1), 1)


def rank_folder(path: Any, storage_options: Mapping[str, Any] | None, rank: int | None) -> Any:
    """Return where a checkpoint is, or that of one rank which saves without the others.

    Examples
    --------
    >>> rank_folder("memory://run", None, 3)
    Location('memory://run/rank-00003')
    """
    found = find_location(path, storage_options)
    if rank is None:
        return found
    name = f"rank-{rank:05}"
    if isinstance(found, Location):
        return Location(f"{found.url.rstrip('/')}/{name}", found.options)
    return os.path.join(os.fsdecode(found), name)
