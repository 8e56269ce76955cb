"""Archives in one file or in many, by the same calls.

Owns `open`, `verify` and `load_tree`, which tell the two apart, which files are taken for a .npy
file (`open_any`, `is_npy`), and that an archive which is given open stays open. Which arrays are
read for a tree, and what is made of them, is `npzkit.trees.loaded_tree`'s.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from npzkit import format as npy
from npzkit.archive.npzfile import NpzFile
from npzkit.archive.opened_archive import NOT_MAPPED
from npzkit.datasets import INDEX_NAME, NOT_AN_INDEX
from npzkit.errors import TO_CONVERT, IndexFormatError, UnsupportedError
from npzkit.files.file_objects import can_read
from npzkit.files.urls import Location, check_local, find_location
from npzkit.limits import Limits
from npzkit.members.keys import ZARR_NAMES, check_not_foreign

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from npzkit.maintenance.findings import VerifyReport
    from npzkit.typing import ArchiveLike, MmapMode, Progress, Readable

    T = TypeVar("T", default=Any)


def open(
    file: Readable,
    *,
    mmap_mode: MmapMode | None = None,
    allow_pickle: bool = False,
    pickle_kwargs: Mapping[str, Any] | None = None,
    verify: bool = True,
    strict: bool = False,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> NpzFile:
    """Open an archive for reading.

    Parameters
    ----------
    file : path, URL, bytes-like, file object or zipfile.ZipFile
        An archive; or the folder of a sharded archive, or its
        ``index.npz``. Bytes are the contents of an archive, never a path.
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
    verify : bool, default True
        Compare what is read with CRC-32s, where a call does not say otherwise: complete
        arrays, and parts. Maps are never compared.
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
        As `NpzFile` and `ShardedFile`. For files of torch.save, safetensors, HDF5, MATLAB
        and Zarr, the error says how to convert them.

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
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> np.savez(stream, x=np.eye(3), y=np.arange(3))
    >>> with npzkit.open(stream) as npz:
    ...     print(npz.files)
    ['x', 'y']
    """
    missing: OSError | None = None
    options: Any = {
        "mmap_mode": mmap_mode, "verify": verify, "strict": strict, "limits": limits,
        "storage_options": storage_options,
    }  # fmt: skip
    ending = _ending_of(file)
    if not ending:
        try:
            npz = NpzFile(file, allow_pickle=allow_pickle, pickle_kwargs=pickle_kwargs, **options)
            try:
                check_not_foreign(npz._archive.one_file().entries, npz._archive.path)
            except UnsupportedError:
                npz.close()
                raise
            return npz
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            # Windows has no permission to open a folder. A store has no folders: the URL may be
            # the prefix of one.
            if not _may_be_folder(file):
                # It names the file: the calls on the way to the system say nothing more.
                raise error.with_traceback(None)  # noqa: B904 - it is the same error
            missing = error
    try:
        return _open_sharded(file, missing, options)
    except IndexFormatError as error:
        if ending != INDEX_NAME or error.what != NOT_AN_INDEX:
            raise
    return NpzFile(file, allow_pickle=allow_pickle, pickle_kwargs=pickle_kwargs, **options)


def open_any(file: Any, **options: Any) -> NpzFile:
    """Open an archive, or a .npy file as one, which `open` refuses: no checksum protects it."""
    if not is_npy(file):
        return open(file, **options)
    from npzkit.archive.npy_file import NpyFile

    return NpyFile(file, **{**options, "verify": False})


def is_npy(file: Any) -> bool:
    """Return whether this is a .npy file: one that is open, on a disk, or a file object."""
    if isinstance(file, NpzFile):
        return not file._archive.has_checksums
    if can_read(file):
        try:
            position = file.tell()
        except OSError:  # a pipe
            return False
        begins_so = _begins_as_npy(file)
        file.seek(position)
        return begins_so
    if not isinstance(file, (str, os.PathLike)) or not os.path.isfile(file):
        return False
    with builtins.open(file, "rb") as stream:
        return _begins_as_npy(stream)


def _begins_as_npy(stream: Any) -> bool:
    return bool(stream.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX)


def _open_sharded(file: Any, missing: OSError | None, options: dict[str, Any]) -> NpzFile:
    """Open a sharded archive. `missing` says why it is no archive in one file."""
    from npzkit.datasets.shardedfile import ShardedFile

    try:
        return ShardedFile(file, **options)
    except (FileNotFoundError, NotADirectoryError) as error:
        path = find_location(file)
        if not isinstance(path, Location) and is_zarr(path):
            raise UnsupportedError(
                "it is a Zarr store, not an archive", path=path, remedy=TO_CONVERT
            )._as_foreign() from None
        if missing is None:
            raise
        if error.filename == missing.filename:
            # It is a folder: what it lacks says more.
            raise IsADirectoryError(errno.EISDIR, error.strerror, error.filename) from None
        raise missing from None


def is_sharded(file: Any, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Return whether this is an open sharded archive, or a path or URL that can only be one."""
    if isinstance(file, NpzFile):
        from npzkit.datasets.shardedfile import ShardedFile

        return isinstance(file, ShardedFile)
    ending = _ending_of(file)
    if ending == INDEX_NAME:
        from npzkit.datasets.shard_names import is_index

        with contextlib.suppress(OSError):
            return is_index(find_location(file, storage_options))
        return False
    return bool(ending) or (not isinstance(find_location(file), Location) and _may_be_folder(file))


def holds_index(path: str) -> bool:
    """Return whether a folder has the index of a sharded archive, also a damaged one."""
    from npzkit.datasets.shard_names import is_index

    path = os.path.join(path, INDEX_NAME)
    return os.path.isfile(path) and is_index(path, if_damaged=True)


def sharded_folder(file: Any, storage_options: Mapping[str, Any] | None = None) -> str:
    """Return the folder of a sharded archive, also for its index; empty for other archives."""
    from npzkit.datasets.shard_names import attempt_of, is_index

    place = find_location(file, storage_options)
    path = str(place) if isinstance(place, Location) else os.fsdecode(place)
    folder, name = os.path.split(path)
    if name != INDEX_NAME:
        return path if holds_index(path) else ""
    folder = folder or os.curdir
    if isinstance(place, Location):
        return folder if is_sharded(place) else ""
    # Of a damaged archive with this name, the shards beside it tell what it was.
    is_found = os.path.isfile(path) and is_index(
        path, if_damaged=any(map(attempt_of, os.listdir(folder)))
    )
    return folder if is_found else ""


def is_zarr(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder is a Zarr store."""
    return any(os.path.exists(os.path.join(path, name)) for name in ZARR_NAMES)


def _ending_of(file: Any) -> str:
    """Return `INDEX_NAME` for a path or URL with this name, / for a URL that ends so, or nothing.

    Such a URL can only be a sharded archive.
    """
    name = file.url if isinstance(file, Location) else file
    if type(file) is not str and isinstance(file, os.PathLike):
        name = os.fspath(file)
    if not isinstance(name, str) or not (name.endswith((INDEX_NAME, "/")) or "?" in name):
        return ""
    found = find_location(file)
    if not isinstance(found, Location):
        is_index_name = os.path.basename(found) == INDEX_NAME and not os.path.isdir(found)
        return INDEX_NAME if is_index_name else ""
    path = _path_of(found)
    return "/" if path.endswith("/") else INDEX_NAME * path.endswith(f"/{INDEX_NAME}")


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
        if options.get("limits") is not None:
            raise ValueError("limits are those that npzkit.open was given: pass them there")
        yield file
        return
    with open(file, **options) as npz:
        yield npz


def verify(
    file: ArchiveLike,
    keys: Sequence[str] | None = None,
    *,
    progress: Progress | None = None,
    threads: int | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Check an archive against every rule, without stopping at the first fault.

    These are checked:

    - the end records and the directory
    - overlaps and gaps between members
    - each local header against its directory entry
    - the header of each array against the size of the member
    - all data against its CRC-32
    - seek indexes, by reading with them
    - names that cannot be extracted safely
    - which members contain Python objects, or are no arrays
    - of a sharded archive, the index against the shards, and which shards it does not list

    Parameters
    ----------
    file : path, URL, bytes-like, file object or NpzFile
        May be the folder of a sharded archive, as for `npzkit.open`.
        A file object that cannot seek, such as a pipe, is copied to a temporary file.
    keys : sequence of str, optional
        Members to check; all by default.
    progress : callable, optional
        Called with the uncompressed bytes done and the total, in this thread,
        every few megabytes and at the end.
    threads : int, optional
        Number of threads; None uses all processors.
    limits : Limits, optional
        Limits to check the archive against. The default is those of an
        `NpzFile`, or ``Limits()``.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Returns
    -------
    VerifyReport
        If the file is not an archive, the report has one row that says so.

    Raises
    ------
    OSError
        The file cannot be read.
    MemberNotFoundError
        One of `keys` is not found.
    TypeError
        `keys` is a string.
    StaleArchiveError
        The file changes while it is checked, or was written over since an `NpzFile` opened it.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"w": np.arange(1000.0), "b": np.zeros(3)})
    >>> npzkit.verify(stream).ok
    True
    >>> data = bytearray(stream.getvalue())
    >>> data[5000] ^= 1
    >>> print(npzkit.verify(data))  # doctest: +ELLIPSIS
    severity  key  at byte  what
    error     w         64  the data is damaged: its CRC-32 differs: found ...
    archive: NOT sound, 2 members, 1 error
    """
    if not is_sharded(file, storage_options):
        from npzkit.maintenance import verify as single

        try:
            return single.verify(
                file, keys, progress=progress, threads=threads, limits=limits,
                storage_options=storage_options,
            )  # fmt: skip
        except (FileNotFoundError, IsADirectoryError):
            # As `open`, which takes the prefix of a sharded archive in a store.
            if not _may_be_folder(file):
                raise
    with opened(file, limits=limits, storage_options=storage_options) as npz:
        return npz.verify(keys, progress=progress, threads=threads)


def load_tree(
    file: ArchiveLike,
    prefix: str | None = None,
    *,
    like: T | None = None,
    into: T | None = None,
    strict: bool = True,
    only: str | Iterable[str] | None = None,
    verify: bool = True,
    mmap_mode: MmapMode | None = None,
    allow_pickle: bool = False,
    encoding: str = "ASCII",
    limits: Limits | None = None,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> T:
    """Load nested data as it was saved: dicts, lists and tuples of arrays.

    Parameters
    ----------
    file : path, URL, bytes-like, file object or NpzFile
        Any archive, also the folder of a sharded one. If it was not saved as
        nested data, keys are split at ``/``.
    prefix : str, optional
        Key of the part to load, or the beginning of keys up to a slash; no other
        array is read. By default everything is loaded.
    like : object, optional
        An example with the structure to load, and with the types to load it in:
        dicts, lists, tuples, the classes of namedtuples and dataclasses, tensors
        of PyTorch with their devices, arrays of JAX (or their descriptions by
        `jax.eval_shape`) with their sharding. It is not changed. None, ``...``
        and empty dicts and lists in it stand for whatever was saved there: tensors too, if
        torch is imported. `npzkit.torch.load_file` makes tensors of any arrays.
    into : object, optional
        As `like`, but its arrays, tensors, dicts and lists are filled in place.
        Nothing is changed if an error is raised, unless another program overwrites
        the file at that moment.
    strict : bool, default True
        Raise an error if the archive does not fit the example. If False, a
        warning names the keys, and what does not fit keeps the example's value,
        unless nothing fits.
    only : str or iterable of str, optional
        Patterns such as ``"encoder/*"``, in which ``*`` also matches ``/``. They are of
        complete keys, also with a `prefix`. Only matching keys, and what is under them,
        are loaded, and no other array is read. With an example, all others keep the
        example's value.
    verify : bool, default True
        Check the CRC-32 of each array.
    mmap_mode : {None, "r", "c", "r+"}, optional
        Map the arrays instead of reading them; see `NpzFile.memmap`.
    allow_pickle, limits
        As in `npzkit.open`. An `NpzFile` has its own: `allow_pickle` is ignored then, and
        `limits` raise a ValueError.
    encoding : str, default "ASCII"
        Of text in Python objects that Python 2 wrote, as in `npzkit.load`.
    threads : int, optional
        Number of threads; by default one per processor.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Returns
    -------
    object
        What was saved; a dict if it was not saved as nested data. Arrays are new and
        writable. Masked arrays and arrays of strings that were split are joined. If one
        key is the beginning of another, both stay at the same level:
        ``{"a": ..., "a/b": ...}``. With a `prefix`, the value under it.

    Raises
    ------
    MemberNotFoundError
        There is nothing under `prefix`, or nothing that matches a pattern.
    TreeMismatchError
        The archive does not fit the example. The error names all keys that are
        missing, left over, or of another shape or dtype.
    OSError, NpzkitError
        As `npzkit.open` and `NpzFile.load_all`.
    ValueError
        `like` and `into` are both given, or an array or a tensor in `into` cannot
        be written to.
    TypeError
        The example is a model or an optimizer, not its ``state_dict()``, or no data at all.

    Warns
    -----
    TreeMismatchWarning
        With ``strict=False``; its attribute `mismatch` is the error.

    Notes
    -----
    `npzkit.save` and `NpzWriter.add` keep a note in the archive's metadata that
    describes lists, tuples, namedtuples, int keys and values that are not
    arrays. `NpzWriter` keeps the note up to date. An array that is added is placed
    by its key. An array that is removed leaves its container, and a container in
    which nothing is left goes too. A list, tuple or namedtuple that lacks an item,
    or to which one was added, becomes a dict by index or name, and keeps the other
    items. With `only`, it becomes such a dict if it is loaded in part.

    Contiguous arrays and tensors of `into` are filled by the archive, in two passes and in
    little memory, as by `NpzFile.load_all` with `out`. Others, such as tensors on a GPU, and
    trees of less than 8 MiB are first loaded into memory.

    Tensors of PyTorch come back as arrays. With an example they come back as
    tensors, those that it does not describe on the CPU. Tensors that were tied
    are tied again if they are tied in the example.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"layer": {"name": "dense", "w": np.eye(2)}, "steps": [None, (1, 2.5)]})
    >>> npzkit.load_tree(stream)
    {'layer': {'name': 'dense', 'w': array([[1., 0.],
           [0., 1.]])}, 'steps': [None, (1, 2.5)]}
    >>> npzkit.load_tree(stream, "layer")["name"]
    'dense'
    >>> npzkit.load_tree(stream, only=["layer/n*", "steps/1"])
    {'layer': {'name': 'dense'}, 'steps': {1: (1, 2.5)}}
    >>> npzkit.load_tree(stream, "layer", like={"w": np.zeros((2, 2)), "name": ""})["w"][0]
    array([1., 0.])
    """
    if not isinstance(prefix, (str, type(None))):
        raise TypeError(f"prefix must be a key, not {type(prefix).__name__}")
    if like is not None and into is not None:
        raise ValueError("like and into are both examples; pass one of them")
    from npzkit.trees.loaded_tree import read_tree

    if mmap_mode is not None and not isinstance(file, NpzFile):
        check_local(file, *NOT_MAPPED)
    with opened(
        file, allow_pickle=allow_pickle, pickle_kwargs={"encoding": encoding}, limits=limits,
        storage_options=storage_options,
    ) as npz:  # fmt: skip
        tree: T = read_tree(
            npz, None if mmap_mode is None else partial(_mapped, npz, mmap_mode),
            (prefix or "").rstrip("/"), only,
            like=like, into=into, strict=strict, verify=verify, threads=threads,
        )  # fmt: skip
    return tree


def _mapped(npz: NpzFile, mode: MmapMode, keys: Collection[str]) -> dict[str, Any]:
    return {key: npz.memmap(key, mode) for key in keys}
