"""Opening archives, in one file or in many.

Owns `open`, which tells the two apart.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.opened_archive import MmapMode
from npzkit.archive.opening import open as open_file
from npzkit.files.urls import Location, find_location
from npzkit.limits import Limits
from npzkit.sharding.shard_names import INDEX_NAME
from npzkit.sharding.shardedfile import ShardedFile

__all__ = ["open"]


def open(
    file: Any,
    *,
    mmap_mode: MmapMode | None = None,
    allow_pickle: bool = False,
    pickle_kwargs: Mapping[str, Any] | None = None,
    strict: bool = False,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> NpzFile | ShardedFile:
    """Open an archive for reading.

    Parameters
    ----------
    file : path, URL, bytes-like, file object or zipfile.ZipFile
        An archive; or the folder of a sharded archive, or its
        ``index.json``. Bytes are the contents of an archive, never a path.
        URLs begin with ``https://``, ``http://``, ``s3://``, ``gs://``,
        ``az://``, ``memory://``, or any other scheme of fsspec. They may be
        chains, such as ``simplecache::https://...``, and ``UPath`` objects. The
        URL of a folder on a web server must end with ``/``.
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
    NpzFile or ShardedFile
        A `ShardedFile` for a folder. To be closed, preferably by a ``with``
        statement.

    Raises
    ------
    OSError, NpzkitError
        As `NpzFile` and `ShardedFile`.

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
    missing: OSError | None = None
    if not is_folder(file, storage_options):
        try:
            return open_file(
                file, mmap_mode=mmap_mode, allow_pickle=allow_pickle, pickle_kwargs=pickle_kwargs,
                strict=strict, limits=limits, storage_options=storage_options,
            )  # fmt: skip
        except (FileNotFoundError, IsADirectoryError) as error:
            # A store has no folders: the URL may be the prefix of one.
            if not isinstance(find_location(file, storage_options), Location):
                raise
            missing = error
    try:
        return ShardedFile(
            file, mmap_mode=mmap_mode, strict=strict, limits=limits,
            storage_options=storage_options,
        )  # fmt: skip
    except FileNotFoundError:
        if missing is None:
            raise
        raise missing from None


def is_folder(file: Any, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Return whether this is the path or the URL of a folder, or of an index."""
    found = find_location(file, storage_options)
    if isinstance(found, Location):
        path = found.url.partition("?")[0] if found.is_web else found.url
        return path.endswith(("/", f"/{INDEX_NAME}"))
    if not isinstance(found, (str, os.PathLike)):
        return False
    return os.path.basename(os.fspath(found)) == INDEX_NAME or os.path.isdir(found)


@contextlib.contextmanager
def opened(file: Any) -> Iterator[NpzFile | ShardedFile]:
    """Yield an open archive as it is, and anything else opened until the block ends."""
    if isinstance(file, (NpzFile, ShardedFile)):
        yield file
        return
    with open(file) as npz:
        yield npz
