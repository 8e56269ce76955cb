"""Archives that are unpickled: opened again.

Owns what must be the same then. A pickle may be opened on another host, with a copy of the file.
So it has what a copy keeps: size, time and the CRC-32 of the directory. Of an object in a store,
it has the version and that CRC-32. Owns also what happens if it cannot be opened again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npzkit.errors import StaleArchiveError


class NotReopened:
    """Takes the place of what could not be opened again: each use raises the error.

    Unpickling must not raise it. A worker of `multiprocessing.Pool` would lose the task, and
    the program would wait for its result for ever. Nor must pickling again, as dask's scheduler
    does, which may lack the file that its workers have.

    Parameters
    ----------
    error : Exception
    recipe : tuple
        What to pickle again.
    """

    is_open = False

    def __init__(self, error: Exception, recipe: tuple[Any, ...]) -> None:
        self._error, self.recipe = error, recipe

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error.with_traceback(None)

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, key: object) -> bool:
        return key in self.keys

    def close(self) -> None:
        """Do nothing."""


def reduced(archive: Any, kind: type[Any], options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what ``__reduce__`` returns.

    Parameters
    ----------
    archive : OpenedArchive
    kind : type
        Of what is opened again: `NpzFile`, or a subclass.
    options : mapping
        Beside those of the archive.
    """
    if isinstance(archive, NotReopened):
        return _reopen, archive.recipe
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
    """Open a pickled archive again, refusing a file that has changed when it is used."""
    npz: Any = object.__new__(kind)
    try:
        npz._open_again(path, **options)
        # Whoever unpickles it, as a pool does for each task, has no place for `with`.
        npz._closes_silently = True
        archive = npz._archive
        check_state(
            archive.state, state, archive.path, "pickled", remedy="Open it again by its path."
        )
    except Exception as error:
        if "_archive" in vars(npz):
            npz._archive.close()
        npz._archive = NotReopened(error, (kind, path, state, options))
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
