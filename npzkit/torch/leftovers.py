"""What earlier saves to a folder have left: shards that never counted, and temporary files.

Owns which files are leftovers, and when they are removed: after the next commit, so that a
save that fails removes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container

from npzkit.datasets.places import Place
from npzkit.datasets.shard_names import attempt_of, is_temporary
from npzkit.errors import ArchiveLockedError
from npzkit.files.locking import lock_path


def find_leftovers(place: Place) -> list[str]:
    """Return the files that do not count any more once a save that begins now is committed."""
    return [name for name in place.listed() if is_temporary(name) or attempt_of(name)]


def remove_leftovers(place: Place, names: list[str], kept: Container[str]) -> None:
    """Remove leftovers, except temporary files that a writer has open."""
    for name in names:
        if name in kept:
            continue
        # Others may remove them too.
        with contextlib.suppress(OSError, ArchiveLockedError):
            if is_temporary(name):
                lock_path(place.file(name), 0.0).close()
            place.remove(name)
    place.end_uploads(lambda name: attempt_of(name) is not None)
