"""How an open archive is pickled: by its path or URL, and opened again.

Owns that a file which changed in between is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from npzkit.archive.opened_archive import OpenedArchive
from npzkit.errors import StaleArchiveError

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
    state = source.state
    if state is None:
        raise TypeError(
            "only an archive opened from a path can be pickled; this one was opened from an object"
        )
    archive.check_open()
    path, own_options = source.reopening
    return _reopen, (open_again, path, state, {**options, **own_options})


def _reopen(
    open_again: Callable[..., Any], path: str, state: tuple[Any, ...], options: Mapping[str, Any]
) -> Any:
    """Open a pickled archive again, refusing a file that has changed."""
    npz = open_again(path, **options)
    source = npz._archive.source
    found = source.state
    if found != state:
        npz.close()
        raise StaleArchiveError(
            "the file changed since the archive was pickled",
            path=source.name,
            found=_shown(found),
            expected=_shown(state),
            remedy="Open it again by its path.",
        )
    return npz


def _shown(state: tuple[Any, ...]) -> str:
    size, *marks = state
    return f"{size} bytes, version {', '.join(str(mark) for mark in marks if mark)}"
