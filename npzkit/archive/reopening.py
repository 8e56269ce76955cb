"""Archives that are opened again: unpickled, or read after they were dropped.

Owns what must be the same then, and how many of many archives are open at a time. A pickle may be
opened on another host, with a copy of the file. So it has what a copy keeps: size, time and the
CRC-32 of the directory. Of an object in a store, it has the version and that CRC-32. An archive
that was not used for long is dropped, not closed: it closes itself when the last thread that
reads it is done.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from npzkit.archive.contents import ArchiveContents
from npzkit.errors import StaleArchiveError
from npzkit.files.disk import kept_open
from npzkit.files.source import closed_error

OPEN_COUNT = 128
"""Archives that stay open, as in xarray: systems allow 256 files per process and more."""


class Recent:
    """The archives that were used last, by any key.

    Has no lock: each step is one operation of a dict. If two threads open the
    same archive at once, one of the two is dropped.

    Parameters
    ----------
    count : int
        Most archives to keep; fewer if the process may have few files open.
    is_local : bool, default True
        Whether each has a file open.
    """

    def __init__(self, count: int = OPEN_COUNT, is_local: bool = True) -> None:
        self._count = self._most = count
        self._is_local = is_local
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, open_it: Callable[[], Any]) -> Any:
        """Return the archive of a key, which is opened if it is not open."""
        npz = self._kept.pop(key, None)
        if npz is None:
            npz = open_it()
            npz._closes_silently = True
            self._most = kept_open(self._count) if self._is_local else self._count
        self._kept[key] = npz
        while len(self._kept) > self._most:
            try:
                self._kept.popitem(last=False)
            except KeyError:  # another thread was faster
                break
        return npz

    def __len__(self) -> int:
        return len(self._kept)

    def forget(self, key: Hashable) -> None:
        """Drop an archive."""
        self._kept.pop(key, None)

    def clear(self) -> None:
        """Drop all."""
        self._kept.clear()


_RECENT = Recent()


class Reopened:
    """An archive that is open while it is used, and opened again when it is read later.

    All archives of this kind share `OPEN_COUNT` open files. It can be pickled if
    the archive can.

    Parameters
    ----------
    npz : NpzFile or ShardedFile
        Belongs to this object from now on. If it was opened from an object, not
        from a path or a URL, it stays open.

    Attributes
    ----------
    path : str or None
        For messages.
    """

    def __init__(self, npz: Any) -> None:
        npz._closes_silently = True
        self.path: str | None = npz._archive.path
        self._is_open = True
        self._given = None
        self._recipe = b""
        try:
            self._recipe = pickle.dumps(npz)
        except TypeError:
            self._given = npz
        else:
            _RECENT.get(self._recipe, lambda: npz)

    def open(self) -> Any:
        """Return the archive, open.

        Raises
        ------
        ClosedArchiveError
            `close` was called.
        StaleArchiveError
            The file changed since it was first opened.
        OSError
            The file cannot be opened again.
        """
        if not self._is_open:
            raise closed_error().locate(path=self.path)
        if self._given is not None:
            return self._given
        return _RECENT.get(self._recipe, lambda: pickle.loads(self._recipe))

    def close(self) -> None:
        """Let go of the archive. Others that read the same file can go on."""
        self._is_open, self._given = False, None
        _RECENT.forget(self._recipe)

    def copy(self) -> Reopened:
        """Return one for the same archive that is closed on its own."""
        other = Reopened.__new__(Reopened)
        other.__dict__.update(self.__dict__)
        return other


def reduced(
    archive: ArchiveContents, open_again: Callable[..., Any], options: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return what ``__reduce__`` returns.

    Parameters
    ----------
    archive : ArchiveContents
    open_again : callable
        Takes the path and the options.
    options : mapping
        Beside those of the archive.
    """
    state = archive.state
    if state is None:
        raise TypeError(
            "only an archive opened from a path or a URL can be pickled; "
            "this one was opened from an object"
        )
    archive.check_open()
    path, own_options = archive.reopening
    return _reopen, (open_again, path, state, {**options, **own_options})


def _reopen(
    open_again: Callable[..., Any], path: str, state: tuple[Any, ...], options: Mapping[str, Any]
) -> Any:
    """Open a pickled archive again, refusing a file that has changed."""
    npz = open_again(path, **options)
    found = npz._archive.state
    if found != state:
        npz.close()
        raise StaleArchiveError(
            "the file changed since the archive was pickled",
            path=npz._archive.path,
            found=shown_state(found),
            expected=shown_state(state),
            remedy="Open it again by its path.",
        )
    return npz


def shown_state(state: tuple[Any, ...]) -> str:
    """Return a state, or the first parts of one, for messages."""
    size, *marks = state
    return f"{size} bytes, version {', '.join(str(mark) for mark in marks if mark)}"
