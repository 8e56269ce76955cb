"""`np.load`, with NumPy's signature.

Owns the detection of the file type. Other modules do the work.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.opened_archive import NOT_MAPPED
from npzkit.drop_ins.numpy_memmap import open_memmap
from npzkit.errors import NoDataError, NpzkitError, PickleRefusedError, ZipFormatError
from npzkit.files.any_source import stores
from npzkit.files.file_objects import can_read, known_name, open_regular
from npzkit.files.urls import Location, check_local, find_location
from npzkit.format.array import read_array
from npzkit.format.header import MAGIC_PREFIX
from npzkit.limits import DEFAULT_HEADER_SIZE

if TYPE_CHECKING:
    from npzkit.typing import Readable

_ZIP_BEGINNINGS = (b"PK\x03\x04", b"PK\x05\x06")


def load(
    file: Readable,
    mmap_mode: Any = None,
    allow_pickle: bool = False,
    fix_imports: bool = True,
    encoding: str = "ASCII",
    *,
    max_header_size: int = DEFAULT_HEADER_SIZE,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Load a ``.npz``, ``.npy`` or pickle file, with the signature of `numpy.load`.

    Parameters
    ----------
    file : path, URL or file object
        Bytes are a path, as in `numpy.load`; `npzkit.open` takes them as contents. A file
        object needs ``read`` and ``seek``, and is read from its current position.
    mmap_mode : {None, "r", "c", "r+", "w+"}, optional
        If given, memory-map the file instead of reading it. Archives support
        ``"r"``, ``"c"`` and ``"r+"``.
    allow_pickle : bool, default False
        Whether to read object arrays. Unpickling can run code from the file.
    fix_imports, encoding : optional
        Used for pickles that Python 2 wrote.
    max_header_size : int, default 10_000
        Largest size of an NPY header. Ignored if `allow_pickle` is true.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Returns
    -------
    NpzFile or numpy.ndarray or object
        Close an `NpzFile` after use, or open it in a ``with`` statement. As NumPy's, it
        gives no ResourceWarning if it is not closed.

    Raises
    ------
    NoDataError
        The file is empty, or a file object has nothing left to read. This is
        also an ``EOFError``, as in NumPy.
    ValueError
        The encoding is not "ASCII", "latin1" or "bytes", or the file is a
        pickle and `allow_pickle` is false.
    NpzkitError
        As in `NpzFile` and `npzkit.format.read_array`.
    OSError
        The path cannot be opened.

    Notes
    -----
    NumPy ignores `mmap_mode` for an archive. Here ``npz[key]`` returns a map,
    and raises an error if the array cannot be mapped. With ``"r+"``, changes of the
    array go to the file.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> np.savez(stream, x=np.eye(3))
    >>> _ = stream.seek(0)
    >>> with npzkit.load(stream) as npz:
    ...     print(npz["x"][0])
    [1. 0. 0.]
    """
    if encoding not in ("ASCII", "latin1", "bytes"):
        # Any other encoding could change the bytes of array data in a pickle.
        raise ValueError(f"encoding must be 'ASCII', 'latin1', or 'bytes', not {encoding!r}")
    pickle_kwargs = {"encoding": encoding, "fix_imports": fix_imports}
    options: Any = {"allow_pickle": allow_pickle, "pickle_kwargs": pickle_kwargs}
    options["max_header_size"] = max_header_size
    name = os.fsdecode(file) if isinstance(file, bytes) else file
    place: Any = find_location(name, storage_options)
    archive, archive_options = place, options
    if isinstance(place, Location):
        if mmap_mode:
            check_local(place.url, *NOT_MAPPED)
        archive, archive_options = place.url, {**options, "storage_options": place.options}
        with contextlib.suppress(ZipFormatError):
            # It mostly is one, and then this is the only request.
            return _archive(archive, **archive_options)
    with _opened(place) as stream:
        beginning = _beginning_of(stream, place)
        if beginning.startswith(_ZIP_BEGINNINGS):
            return _archive(archive, mmap_mode=mmap_mode, **archive_options)
        if beginning != MAGIC_PREFIX:
            return _load_pickle(stream, place, allow_pickle, pickle_kwargs)
        try:
            if mmap_mode:
                limit = 2**64 if allow_pickle else max_header_size
                return open_memmap(place, mode=mmap_mode, max_header_size=limit)
            return read_array(stream, **options)
        except NpzkitError as error:
            raise error.locate(path=_path_of(place)) from error.__cause__


def _beginning_of(stream: Any, place: Any) -> bytes:
    """Return what shows the format of a stream, which stays where it is."""
    found: bytes = stream.read(len(MAGIC_PREFIX))
    if not found:
        # NumPy's message.
        what, remedy = "No data left in file", "The file is empty, or the stream is at its end."
        raise NoDataError(what, path=_path_of(place), remedy=remedy)
    stream.seek(-len(found), os.SEEK_CUR)
    return found


def _opened(place: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a stream of what is at a place, to be closed unless it is the caller's."""
    if isinstance(place, Location):
        return stores().open_stream(place)  # type: ignore[no-any-return]
    if can_read(place):
        return contextlib.nullcontext(place)
    return io.BufferedReader(open_regular(os.fsdecode(place)))


def _path_of(file: Any) -> str | os.PathLike[str] | None:
    """Return the path for messages, or the name of a file object if it has one."""
    if isinstance(file, Location):
        return str(file)
    if isinstance(file, (str, os.PathLike)):
        return file
    return known_name(file)


def _load_pickle(stream: Any, file: Any, allow_pickle: bool, pickle_kwargs: dict[str, Any]) -> Any:
    if not allow_pickle:
        from npzkit.zip.end_record import PICKLE, UNKNOWN, kind_of

        start, head = stream.tell(), stream.read(512)
        stream.seek(0, os.SEEK_END)
        kind = kind_of(head, stream.tell() - start, _path_of(file))
        stream.seek(start)
        may_be_pickle = kind.meaning in (PICKLE, UNKNOWN)
        raise PickleRefusedError(
            "the file is neither an .npz nor an .npy file; "
            + ("it may be pickled (object) data" if may_be_pickle else kind.meaning),
            path=_path_of(file),
            remedy="Pass allow_pickle=True only if you trust the file: unpickling can run code "
            "from it." if may_be_pickle else kind.remedy,
        )  # fmt: skip
    try:
        return pickle.load(stream, **pickle_kwargs)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        raise pickle.UnpicklingError(f"Failed to interpret file {file!r} as a pickle") from error


def _archive(*args: Any, **options: Any) -> NpzFile:
    """Open an archive that, as NumPy's, gives no warning if it is not closed."""
    npz = NpzFile(*args, **options)
    npz._closes_silently = True
    return npz
