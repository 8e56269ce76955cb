"""Archives that are unpickled: opened again.

Owns what must be the same then. A pickle may be opened on another host, with a copy of the file.
So it has what a copy keeps: size, time and the CRC-32 of the directory. Of an object in a store,
it has the version and that CRC-32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npzkit.archive.opened_archive import OpenedArchive
from npzkit.errors import StaleArchiveError


def reduced(archive: OpenedArchive, kind: type[Any], options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what ``__reduce__`` returns.

    Parameters
    ----------
    archive : OpenedArchive
    kind : type
        Of what is opened again: `NpzFile`, or a subclass.
    options : mapping
        Beside those of the archive.
    """
    state = archive.state
    if state is None:
        raise TypeError(
            "only an archive opened from a path or a URL can be pickled or copied; "
            "this one was opened from an object: send the bytes, and open them there"
        )
    archive.check_open()
    path, own_options = archive.reopening
    return _reopen, (kind, path, state, {**options, **own_options})


def _reopen(kind: type[Any], path: str, state: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Open a pickled archive again, refusing a file that has changed."""
    npz = kind._open_again(path, **options)
    archive = npz._archive
    try:
        check_state(
            archive.state, state, archive.path, "pickled", remedy="Open it again by its path."
        )
    except StaleArchiveError:
        npz.close()
        raise
    return npz


def check_state(
    found: tuple[Any, ...], expected: tuple[Any, ...], path: str | None, when: str, remedy: str
) -> None:
    """Raise StaleArchiveError if a file has another state than when it was opened or pickled.

    `found` may be the beginning of a state.
    """
    expected = expected[: len(found)]
    if found != expected:
        raise StaleArchiveError(
            f"the file changed since the archive was {when}", path=path, found=_shown(found),
            expected=_shown(expected), remedy=remedy,
        )  # fmt: skip


def _shown(state: tuple[Any, ...]) -> str:
    size, *marks = state
    return f"{size} bytes, version {', '.join(str(mark) for mark in marks if mark)}"
