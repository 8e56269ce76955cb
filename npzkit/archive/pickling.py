"""How an open archive is pickled: by its path or URL, and opened again.

Owns what must be the same then; a changed file is refused. A pickle may be opened on
another host, with a copy of the file. So it has what a copy keeps: size, time and the CRC-32
of the directory. Of an object in a store, it has the version and that CRC-32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from npzkit.archive.opened_archive import OpenedArchive
from npzkit.errors import StaleArchiveError


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
    if source.state is None:
        raise TypeError(
            "only an archive opened from a path can be pickled; this one was opened from an object"
        )
    archive.check_open()
    path, own_options = source.reopening
    return _reopen, (open_again, path, state_of(archive), {**options, **own_options})


def state_of(archive: OpenedArchive) -> tuple[Any, ...]:
    """Return what must be equal when the archive is opened again."""
    return *archive.source.state, archive.directory_crc32


def _reopen(
    open_again: Callable[..., Any], path: str, state: tuple[Any, ...], options: Mapping[str, Any]
) -> Any:
    """Open a pickled archive again, refusing a file that has changed."""
    npz = open_again(path, **options)
    found = state_of(npz._archive)
    if found != state:
        npz.close()
        raise StaleArchiveError(
            "the file changed since the archive was pickled",
            path=npz._archive.source.name,
            found=shown_state(found),
            expected=shown_state(state),
            remedy="Open it again by its path.",
        )
    return npz


def shown_state(state: tuple[Any, ...]) -> str:
    """Return a state, or the first parts of one, for messages."""
    size, *marks = state
    return f"{size} bytes, version {', '.join(str(mark) for mark in marks if mark)}"
