"""`np.savez` and `np.savez_compressed`, with NumPy's signatures.

Owns NumPy's conventions: the ``.npz`` suffix, ``arr_0``, and pickle allowed by default.
`npzkit.archive.save` does the work.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from npzkit.archive.save import PreparedArchive
from npzkit.files.file_objects import can_write
from npzkit.files.urls import Location, find_location

if TYPE_CHECKING:
    from npzkit.typing import Writable

_WAIT_SECONDS = 60.0
"""For another writer: one of this thread never ends."""


def savez(file: Writable, *args: Any, allow_pickle: bool = True, **kwds: Any) -> None:
    """Save arrays to an uncompressed archive, with the signature of `numpy.savez`.

    Parameters
    ----------
    file : path or file object
        ``.npz`` is appended to a path that does not end with it.
    *args : array-like
        Saved as ``arr_0``, ``arr_1``, ...
    allow_pickle : bool, default True
        Whether object arrays may be saved.
    **kwds : array-like
        Saved under their names, before `args`. Use `npzkit.save` for the names
        of parameters (``file``, ``allow_pickle``).

    Raises
    ------
    ValueError
        A keyword has the name of a positional array, such as ``arr_0``.
    TypeError
        `allow_pickle` is neither true nor false, such as an array.
    NpzkitError, OSError
        As in `npzkit.save`.

    Notes
    -----
    Unlike NumPy, this replaces an existing file only when the new one is complete. While
    another writer has it open, this one waits up to a minute. Masked values and keys that
    cannot be read back are refused.
    """
    _savez(file, args, kwds, "stored", allow_pickle)


def savez_compressed(file: Writable, *args: Any, allow_pickle: bool = True, **kwds: Any) -> None:
    """Save arrays to a deflated archive, with the signature of `numpy.savez_compressed`.

    See `savez` for parameters and errors.
    """
    _savez(file, args, kwds, "deflated", allow_pickle)


def _with_suffix(path: str) -> str:
    return path if path.endswith(".npz") else f"{path}.npz"


def _savez(
    file: Any, args: tuple[Any, ...], kwds: dict[str, Any], compression: Any, allow_pickle: bool
) -> None:
    if type(allow_pickle) not in (bool, np.bool, int) or allow_pickle not in (0, 1):
        raise TypeError(
            f"allow_pickle must be True or False, not {type(allow_pickle).__name__}; "
            "npzkit.save(file, {'allow_pickle': array}) takes arrays of any name"
        )
    file = find_location(file)
    if isinstance(file, Location):
        file = file._replace(url=_with_suffix(file.url))
    elif not can_write(file):
        file = _with_suffix(os.fspath(file))
    for index, array in enumerate(args):
        key = f"arr_{index}"
        if key in kwds:
            raise ValueError(f"Cannot use un-named variables and keyword {key}")
        kwds[key] = array
    kwds = {key: np.asarray(a) if type(a) is bytes else a for key, a in kwds.items()}
    archive = PreparedArchive(kwds, compression, allow_pickle=allow_pickle)
    # As with NumPy's, the last of several writers wins.
    archive.write(file, lock_timeout=_WAIT_SECONDS)
