"""What the reader and the writer of `torch.distributed.checkpoint` have in common.

Guarantees that both find a checkpoint at the same place, also that of a process which saves
without the others, and that each process takes its share of the processors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from npzkit.files.urls import Location, find_location
from npzkit.limits import thread_count


class NpzStorage:
    """A checkpoint at a path or a URL, for one of the processes of a job."""

    def __init__(
        self, path: Any, threads: int | None, storage_options: Mapping[str, Any] | None
    ) -> None:
        super().__init__()
        self._path = path
        self._threads = own_threads(threads)
        self._storage_options = storage_options

    @property
    def checkpoint_id(self) -> Any:
        """The path or URL."""
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether a checkpoint can have this name: a path or a URL."""
        return isinstance(checkpoint_id, (str, os.PathLike))

    def prepare_local_plan(self, plan: Any) -> Any:
        """Return the plan as it is."""
        return plan

    def _folder(self, rank: int | None) -> Any:
        """Return where the checkpoint is, or that of one rank which saves without the others."""
        found = find_location(self._path, self._storage_options)
        if rank is None:
            return found
        name = f"rank-{rank:05}"
        if isinstance(found, Location):
            return Location(f"{found.url.rstrip('/')}/{name}", found.options)
        return os.path.join(os.fsdecode(found), name)


def own_threads(threads: int | None) -> int:
    """Return `threads`, or this process's share of the processors of its machine.

    ``torchrun`` sets LOCAL_WORLD_SIZE, the number of processes on a machine.
    """
    if threads is not None:
        return thread_count(threads)
    processes = os.environ.get("LOCAL_WORLD_SIZE", "")
    count = int(processes) if processes.isascii() and processes.isdigit() else 1
    return max(thread_count(None) // max(count, 1), 1)
