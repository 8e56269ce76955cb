"""Where the files of a sharded archive are, and the bytes of its index.

Owns which place a path or URL means. What a place can do is `npzkit.files.objects`'s.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any

from npzkit.datasets import index_format
from npzkit.datasets.shard_names import INDEX_NAME
from npzkit.files.objects import LocalFolder, Place, StorePrefix, place_at
from npzkit.files.urls import Location, find_location

_NO_INDEX = (
    f"no {INDEX_NAME} in the folder: its archive was never committed, or it is no archive. If "
    "it is a folder of checkpoints, use npzkit.checkpoint.CheckpointStore(path)"
)


def place_of(
    folder: Any, storage_options: Mapping[str, Any] | None = None
) -> LocalFolder | StorePrefix:
    """Return the place that a path or URL of a folder, or of its index, means."""
    found = find_location(folder, storage_options)
    if isinstance(found, Location):
        # The URL of a web server may have a query.
        url, mark, query = found.url.partition("?") if found.is_web else (found.url, "", "")
        return place_at(Location(url.removesuffix(f"/{INDEX_NAME}") + mark + query, found.options))
    path = os.fsdecode(found)
    if os.path.basename(path) == INDEX_NAME and not os.path.isdir(path):
        path = os.path.dirname(path) or os.curdir
    return place_at(path)


def read_index(place: Place) -> bytes:
    """Return the bytes of the index; FileNotFoundError if there is none."""
    try:
        return place.read(INDEX_NAME, index_format.MAX_SIZE, "the index")
    except FileNotFoundError:
        if not (isinstance(place, LocalFolder) and os.path.isdir(place.path)):
            raise
        raise FileNotFoundError(errno.ENOENT, _NO_INDEX, place.name) from None
