"""Opening archives, in one file or in many.

Owns `open`, which tells the two apart, and that an archive which is given open stays open.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.opened_archive import MmapMode
from npzkit.datasets.shard_names import INDEX_NAME
from npzkit.files.urls import Location, find_location
from npzkit.limits import Limits


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
    NpzFile
        For a folder, an `npzkit.ShardedFile`, which is one too. To be closed,
        preferably by a ``with`` statement.

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
    if not _names_folder(file):
        try:
            return NpzFile(
                file, mmap_mode=mmap_mode, allow_pickle=allow_pickle, pickle_kwargs=pickle_kwargs,
                strict=strict, limits=limits, storage_options=storage_options,
            )  # fmt: skip
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            # Windows has no permission to open a folder. A store has no folders: the URL may be
            # the prefix of one.
            if not _may_be_folder(file):
                raise
            missing = error
    from npzkit.datasets.shardedfile import ShardedFile

    try:
        return ShardedFile(
            file, mmap_mode=mmap_mode, strict=strict, limits=limits,
            storage_options=storage_options,
        )  # fmt: skip
    except (FileNotFoundError, NotADirectoryError) as error:
        if missing is None:
            raise
        if error.filename == missing.filename:
            # It is a folder: what it lacks says more.
            raise IsADirectoryError(errno.EISDIR, error.strerror, error.filename) from None
    raise missing


def is_sharded(file: Any) -> bool:
    """Return whether this is an open sharded archive, or a path or URL that can only be one."""
    if isinstance(file, NpzFile):
        from npzkit.datasets.shardedfile import ShardedFile

        return isinstance(file, ShardedFile)
    return _names_folder(file) or (
        not isinstance(find_location(file), Location) and _may_be_folder(file)
    )


def holds_index(path: str) -> bool:
    """Return whether a path is an index, or that of a folder which has one."""
    return os.path.basename(path) == INDEX_NAME or os.path.isfile(os.path.join(path, INDEX_NAME))


def _names_folder(file: Any) -> bool:
    """Return whether this can only be a sharded archive: its index, or a URL that ends with /."""
    if not isinstance(file, (str, os.PathLike)):
        return False
    name = os.fspath(file) if isinstance(file, os.PathLike) else file
    if not isinstance(name, str) or not (name.endswith((INDEX_NAME, "/")) or "?" in name):
        return False
    found = find_location(file)
    if not isinstance(found, Location):
        return os.path.basename(name) == INDEX_NAME
    return _path_of(found).endswith(("/", f"/{INDEX_NAME}"))


def _path_of(location: Location) -> str:
    """Return a URL without the query that a web server takes."""
    return location.url.partition("?")[0] if location.is_web else location.url


def _may_be_folder(file: Any) -> bool:
    """Return whether this is the path of a folder, or a URL that does not end with .npz."""
    found = find_location(file)
    if isinstance(found, Location):
        return not _path_of(found).endswith(".npz")
    return isinstance(found, (str, os.PathLike)) and os.path.isdir(found)


@contextlib.contextmanager
def opened(file: Any, **options: Any) -> Iterator[NpzFile]:
    """Yield an `NpzFile` as it is, and anything else opened until the block ends."""
    if isinstance(file, NpzFile):
        yield file
        return
    with open(file, **options) as npz:
        yield npz
