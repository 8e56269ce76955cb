"""`np.load`, `np.savez` and `np.savez_compressed`, with numpy's signatures.

Owns what is numpy's own about them: the suffix, ``arr_0``, the guess at a
file's kind, pickle on by default for writing. All work is done elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.saving import save_arrays
from npzkit.errors import NoDataError, NpzkitError, PickleRefusedError
from npzkit.files.source import UNNAMED, name_of
from npzkit.format.array import read_array
from npzkit.format.header import MAGIC_PREFIX
from npzkit.format.memmap import open_memmap
from npzkit.limits import DEFAULT_HEADER_SIZE

__all__ = ["load", "savez", "savez_compressed"]

_ZIP_BEGINNINGS = (b"PK\x03\x04", b"PK\x05\x06")


def load(
    file: Any,
    mmap_mode: Any = None,
    allow_pickle: bool = False,
    fix_imports: bool = True,
    encoding: str = "ASCII",
    *,
    max_header_size: int = DEFAULT_HEADER_SIZE,
) -> Any:
    """Load a ``.npz``, ``.npy`` or pickle file: `numpy.load` for npzkit.

    Parameters
    ----------
    file : path or file object
        Bytes are a path, as for `open`. A file object needs ``read`` and
        ``seek``, and is read from its current position.
    mmap_mode : {None, "r", "c", "r+", "w+"}, optional
        Map instead of reading. For an archive ``"r"`` and ``"c"``.
    allow_pickle : bool, default False
        Whether arrays of objects may be read. Unpickling runs code from the
        file.
    fix_imports, encoding : optional
        For pickles that Python 2 wrote.
    max_header_size : int, default 10_000
        Largest NPY header; without effect under `allow_pickle`.

    Returns
    -------
    NpzFile or numpy.ndarray or object
        An archive is to be closed, best by a ``with`` statement.

    Raises
    ------
    NoDataError
        An empty file, or a file object with nothing left to read; also an
        ``EOFError``, as from numpy.
    ValueError
        Another encoding than "ASCII", "latin1" and "bytes"; a pickle without
        `allow_pickle`.
    NpzkitError
        As `NpzFile`, and as `npzkit.format.read_array`.
    OSError
        The path cannot be opened.

    Notes
    -----
    numpy ignores `mmap_mode` for an archive; here ``npz[key]`` then maps, and
    raises where it cannot.

    Examples
    --------
    >>> import npzkit
    >>> with npzkit.load("fixtures/numpy_savez.npz") as npz:
    ...     print(npz["x"][0])
    [0 1 2]
    """
    if encoding not in ("ASCII", "latin1", "bytes"):
        # Any other could decode the bytes of an array's data to other bytes.
        raise ValueError(f"encoding must be 'ASCII', 'latin1', or 'bytes', not {encoding!r}")
    pickle_kwargs = {"encoding": encoding, "fix_imports": fix_imports}
    if isinstance(file, bytes):
        file = os.fsdecode(file)
    is_path = not hasattr(file, "read")
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(open(os.fspath(file), "rb")) if is_path else file
        beginning = stream.read(len(MAGIC_PREFIX))
        if not beginning:
            raise NoDataError(
                "no data left in the file",
                path=_path_of(file),
                remedy="The file is empty, or the stream is at its end.",
            )
        stream.seek(-len(beginning), os.SEEK_CUR)
        if beginning.startswith(_ZIP_BEGINNINGS):
            return NpzFile(
                file,
                allow_pickle=allow_pickle,
                pickle_kwargs=pickle_kwargs,
                max_header_size=max_header_size,
                mmap_mode=mmap_mode,
            )
        if beginning != MAGIC_PREFIX:
            return _load_pickle(stream, file, allow_pickle, pickle_kwargs)
        try:
            if mmap_mode:
                limit = 2**64 if allow_pickle else max_header_size
                return open_memmap(file, mode=mmap_mode, max_header_size=limit)
            return read_array(
                stream,
                allow_pickle=allow_pickle,
                pickle_kwargs=pickle_kwargs,
                max_header_size=max_header_size,
            )
        except NpzkitError as error:
            error.locate(path=_path_of(file))
            raise


def _path_of(file: Any) -> str | os.PathLike[str] | None:
    """Return a path for messages; an object's name, if it has one."""
    if isinstance(file, (str, os.PathLike)):
        return file
    name = name_of(file)
    return None if name == UNNAMED else name


def _load_pickle(stream: Any, file: Any, allow_pickle: bool, pickle_kwargs: dict[str, Any]) -> Any:
    if not allow_pickle:
        raise PickleRefusedError(
            "this is neither an .npz nor an .npy file; it may be pickled (object) data",
            path=_path_of(file),
            remedy="Pass allow_pickle=True only if you trust the file: "
            "unpickling runs code from it.",
        )
    try:
        return pickle.load(stream, **pickle_kwargs)
    except Exception as error:
        raise pickle.UnpicklingError(f"Failed to interpret file {file!r} as a pickle") from error


def savez(file: Any, *args: Any, allow_pickle: bool = True, **kwds: Any) -> None:
    """Save arrays as an archive, stored: `numpy.savez` for npzkit.

    Parameters
    ----------
    file : path or file object
        ``.npz`` is appended to a path that lacks it.
    *args : array-like
        Saved as ``arr_0``, ``arr_1``, ...
    allow_pickle : bool, default True
        Whether arrays of objects may be saved.
    **kwds : array-like
        Saved under their names, before `args`. Names that Python takes for
        parameters (``file``, ``allow_pickle``) go through `npzkit.save`.

    Raises
    ------
    ValueError
        A keyword has the name of a positional array.
    NpzkitError, OSError
        As `npzkit.save`.

    Notes
    -----
    Differs from numpy in that a path is replaced as a whole, a masked array
    is refused, and keys that no reader could use are refused.
    """
    _savez(file, args, kwds, "stored", allow_pickle)


def savez_compressed(file: Any, *args: Any, allow_pickle: bool = True, **kwds: Any) -> None:
    """Save arrays as an archive, deflated: `numpy.savez_compressed` for npzkit.

    See `savez` for parameters and errors.
    """
    _savez(file, args, kwds, "deflated", allow_pickle)


def _savez(
    file: Any, args: tuple[Any, ...], kwds: dict[str, Any], compression: Any, allow_pickle: bool
) -> None:
    if not hasattr(file, "write"):
        file = os.fspath(file)
        if not file.endswith(".npz"):
            file += ".npz"
    for index, array in enumerate(args):
        key = f"arr_{index}"
        if key in kwds:
            raise ValueError(f"Cannot use un-named variables and keyword {key}")
        kwds[key] = array
    save_arrays(file, kwds, compression=compression, allow_pickle=allow_pickle)
