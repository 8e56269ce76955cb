"""Opening archives: by what they can be opened from, or as they are given.

Owns `open`, and that an archive which is given open stays open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.opened_archive import MmapMode
from npzkit.limits import Limits

__all__ = ["open", "opened"]


def open(
    file: Any,
    *,
    mmap_mode: MmapMode | None = None,
    allow_pickle: bool = False,
    pickle_kwargs: Mapping[str, Any] | None = None,
    strict: bool = False,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> NpzFile:
    """Open an archive for reading.

    Parameters
    ----------
    file : path, URL, bytes-like, file object or zipfile.ZipFile
        Bytes are the contents of an archive, never a path. URLs begin with
        ``https://``, ``http://``, ``s3://``, ``gs://``, ``az://``,
        ``memory://``, or any other scheme of fsspec. They may be chains, such
        as ``simplecache::https://...``, and ``UPath`` objects.
    mmap_mode : {None, "r", "c", "r+"}, optional
        If given, ``npz[key]`` maps the array instead of reading it; see
        `NpzFile.memmap`.
    allow_pickle : bool, default False
        Whether arrays of Python objects may be read.
    pickle_kwargs : dict, optional
        Passed to `pickle.loads`.
    strict : bool, default False
        Raise an error for oddities that otherwise only cause a warning.
    limits : Limits, optional
        Upper bounds on sizes and counts.
    storage_options : dict, optional
        For the store of a URL, as for fsspec: ``{"anon": True}`` for S3,
        ``{"headers": {...}, "timeout": 30}`` for HTTP. Without them, a store's
        library reads the environment.

    Returns
    -------
    NpzFile
        To be closed, preferably by a ``with`` statement.

    Raises
    ------
    OSError, NpzkitError
        As `NpzFile`.

    Notes
    -----
    Opening a URL makes one request, which brings the end of the archive. A
    second one follows if its directory is longer than 64 KiB, or if the store
    can only count from the front. `NpzFile.info` and `NpzFile.lazy` make none
    for archives of npzkit. An array takes one request. All requests are for the
    version that was opened: if the object is replaced, they raise
    `StaleArchiveError`.

    Examples
    --------
    >>> import npzkit
    >>> with npzkit.open("fixtures/numpy_savez.npz") as npz:
    ...     print(npz.files)
    ['x', 'y', 'scalar']
    """
    return NpzFile(
        file,
        mmap_mode=mmap_mode,
        allow_pickle=allow_pickle,
        pickle_kwargs=pickle_kwargs,
        strict=strict,
        limits=limits,
        storage_options=storage_options,
    )


@contextlib.contextmanager
def opened(file: Any) -> Iterator[NpzFile]:
    """Yield an `NpzFile` as it is, and anything else opened until the block ends."""
    if isinstance(file, NpzFile):
        yield file
        return
    with open(file) as npz:
        yield npz
