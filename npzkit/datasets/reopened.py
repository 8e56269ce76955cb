"""Many archives of which a few are open: those that were used last.

Owns how many these are, in the whole process. An archive that was not used for long is dropped,
not closed: it closes itself when the last thread that reads it is done. What must be the same when
it is opened again is `npzkit.archive.reopening`'s.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable
from typing import Any

from npzkit.errors import closed_error

_FILE_COUNT = 256
"""Files that stay open, if the process may have four times as many."""
_DISTANT_COUNT = 512
"""Archives in stores that stay open: each has up to 64 KiB in memory, and no file."""


def kept_open(most: int) -> int:
    """Return how many files to keep open: at most a quarter of what the process may have."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return most
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if limit == resource.RLIM_INFINITY else max(min(most, limit // 4), 1)


_FILES: dict[tuple[object, Hashable], Any] = {}
_DISTANT: dict[tuple[object, Hashable], Any] = {}
"""What is open, the last used at the end: by its owner and its key there."""


class Recent:
    """The archives of one owner that were used last, by any key. All owners share the room.

    Has no lock: each look and each change is one operation of a dict, which is safe also without
    a GIL. If two threads open the same archive at once, one of the two is dropped.

    Parameters
    ----------
    is_local : bool, default True
        Whether each has a file open.
    """

    def __init__(self, *, is_local: bool = True) -> None:
        self._kept = _FILES if is_local else _DISTANT
        # Unlike the id of an object, it is never another's, whatever interrupts `__del__`.
        self._owner = object()

    def get(self, key: Hashable, open_it: Callable[[], Any]) -> Any:
        """Return the archive of a key, which is opened if it is not open."""
        kept, own = self._kept, (self._owner, key)
        npz = kept.pop(own, None)
        if npz is None:
            npz = open_it()
            npz._closes_silently = True
            # In this order, so that threads that open at once leave no more than that.
            kept[own] = npz
            most = kept_open(_FILE_COUNT) if kept is _FILES else _DISTANT_COUNT
            for oldest in list(kept)[: max(len(kept) - most, 0)]:
                kept.pop(oldest, None)
        else:
            kept[own] = npz
        return npz

    def __contains__(self, key: Hashable) -> bool:
        return (self._owner, key) in self._kept

    def forget(self, key: Hashable) -> None:
        """Drop an archive."""
        self._kept.pop((self._owner, key), None)

    def clear(self) -> None:
        """Drop all."""
        for own in list(self._kept):
            if own[0] is self._owner:
                self._kept.pop(own, None)

    def __del__(self) -> None:
        self.clear()


_RECENT = Recent()


class Reopened:
    """An archive that is open while it is used, and opened again when it is read later.

    All archives of this kind share what is open. It can be pickled if
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
        return _RECENT.get(self._recipe, self._open_again)

    def _open_again(self) -> Any:
        npz = pickle.loads(self._recipe)
        # Raises why it could not be opened.
        npz._archive.check_open()
        return npz

    def close(self) -> None:
        """Let go of the archive. Others that read the same file can go on."""
        self._is_open, self._given = False, None
        _RECENT.forget(self._recipe)

    def copy(self) -> Reopened:
        """Return one for the same archive that is closed on its own."""
        other = Reopened.__new__(Reopened)
        other.__dict__.update(self.__dict__)
        return other
