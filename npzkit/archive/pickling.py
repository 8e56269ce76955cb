"""How an open archive is pickled: by its path, and opened again.

Owns that a file which changed in between is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from npzkit.archive.opened_archive import OpenedArchive
from npzkit.errors import StaleArchiveError
from npzkit.files.source import FileSource

__all__ = ["reduced"]


def reduced(
    archive: OpenedArchive, open_again: Callable[..., Any], options: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return what ``__reduce__`` returns.

    Parameters
    ----------
    archive : OpenedArchive
    open_again : callable
        Takes the path and the options.
    options : mapping
    """
    source = archive.source
    if not isinstance(source, FileSource) or source.path is None:
        raise TypeError(
            "only an archive opened from a path can be pickled; this one was opened from an object"
        )
    archive.check_open()
    state = source.file_size, source.modified_ns
    return _reopen, (open_again, source.path, state, options)


def _reopen(
    open_again: Callable[..., Any], path: str, state: tuple[int, int], options: Mapping[str, Any]
) -> Any:
    """Open a pickled archive again, refusing a file that has changed."""
    npz = open_again(path, **options)
    source = npz._archive.source
    found = getattr(source, "file_size", None), getattr(source, "modified_ns", None)
    if found != state:
        npz.close()
        raise StaleArchiveError(
            "the file changed since the archive was pickled",
            path=path,
            found=f"{found[0]} bytes, modified at {found[1]} ns",
            expected=f"{state[0]} bytes, modified at {state[1]} ns",
            remedy="Open it again by its path.",
        )
    return npz
