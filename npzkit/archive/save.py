"""A complete archive written in one call.

Owns `save`: what it checks before any file is touched, and in which order.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from npzkit.codecs.checksum import crc32
from npzkit.codecs.coding import CHUNK_SIZE, Coding, check_coding, level_for, method_number
from npzkit.errors import ClosedArchiveError
from npzkit.files.any_sink import check_name
from npzkit.files.file_objects import as_path, can_write
from npzkit.files.locking import check_timeout
from npzkit.files.new_file_at_once import NewFileAtOnce
from npzkit.files.urls import Location, find_location
from npzkit.imported import imported
from npzkit.limits import thread_count
from npzkit.members.metadata import (
    FLAT,
    TREE_KEY,
    check_attrs_by_key,
    check_given,
    format_checked,
    nested_data,
)
from npzkit.writing.array_members import Member, Preparation, SmallArrays
from npzkit.zip.writer import ZipWriter

if TYPE_CHECKING:
    from npzkit.archive.written_archive import WrittenArchive
    from npzkit.typing import Compression, OnParts, Writable

_JOINT = "npzkit.jax.processes"
"""The module that saves arrays which are spread over processes, imported with the first one."""
_FEW_COUNT = 4
"""Most runs of small arrays that are written in one go: they fit in the cache."""


def save(
    file: Writable,
    arrays: Any,
    *,
    compression: Compression = "stored",
    level: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    attrs: Mapping[str, Mapping[str, Any]] | None = None,
    allow_pickle: bool = False,
    durable: bool = False,
    chunk_size: int = CHUNK_SIZE,
    seekable: bool = True,
    threads: int | None = None,
    lock_timeout: float | None = None,
    masked: OnParts = "refuse",
    strings: OnParts = "refuse",
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Save a mapping of arrays as one archive.

    The file at the path is replaced when the new one is complete; if anything
    fails, it stays as it was. So does the object at a URL.

    Parameters
    ----------
    file : path, URL or file object
        A path is used as it is; ``.npz`` is not appended. URLs are as in
        `NpzWriter`, whose ``mode="x"`` refuses a file that exists.
    arrays : mapping of str to array-like, or a tree
        Arrays by key, written in this order. Keys such as ``"file"`` and
        ``"arr_0"`` are allowed. The arrays of a dict are all checked, and
        pickled if they hold objects, before any file is touched. Those of
        another mapping, such as an `NpzFile`, are read and written one by one
        to keep memory small; attributes, metadata and what nested data has beside arrays
        are not copied (`npzkit.repack` copies all). A dict may be nested, and a list, a
        tuple or an array is saved as well; see the notes. Tables, and arrays with units
        or coordinates of astropy, pint or xarray, are refused: the error says what to save.
    compression, level, metadata, allow_pickle, durable, chunk_size, seekable, threads, lock_timeout
        As in `NpzWriter`. What is not an array is kept in the metadata too, under
        ``npzkit.tree``.
    attrs : mapping of str to mapping, optional
        Attributes by key: ``{"t": {"unit": "K"}}``. See `NpzWriter.add`.
    masked, strings : {"refuse", "split"}, default "refuse"
        As in `NpzWriter`.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Raises
    ------
    NpzkitError, OSError, ValueError, TypeError
        As `NpzWriter` and `NpzWriter.add`. The old file is kept.

    Notes
    -----
    Mappings in a dict, and lists and tuples that hold arrays, become keys with
    ``/``: ``{"layer": {"w": w}}`` is saved as ``layer/w``, and
    ``{"steps": [a, b]}`` as ``steps/0`` and ``steps/1``. `npzkit.load_tree`
    returns the dicts, lists and tuples in their order, with int keys, keys that
    contain slashes, None, numbers, strings, bytes and NumPy scalars, sets, dates,
    dtypes and devices. A list or tuple may be given in place of `arrays`: its items
    get the keys ``0``, ``1`` and so on. An array alone gets the key ``arr_0``.

    The fields of a namedtuple or of a dataclass become keys too. A namedtuple
    comes back as an equal one of a new class with the same name and fields,
    because no class is imported for a file. A dataclass comes back as a dict.
    Of a class that is registered with JAX as a pytree, the children are saved,
    and its static fields are not. Each of these may be given in place of `arrays`
    too. ``load_tree(file, like=example)`` returns the classes of the example.

    `load_tree` splits keys at their slashes only if the archive does not say what was
    saved: those of other programs, and of arrays that were added one by one.

    If an array of JAX is spread over processes, all of them call `save` with the same tree,
    after ``jax.distributed.initialize()``. `file` is a folder then, which becomes a sharded
    archive: each process writes the parts that it has.

    What is not an array is kept in the metadata under ``npzkit.tree``. Bytes are
    saved as arrays of uint8. At the top level, numbers, strings and lists of
    them are saved as arrays, as by `numpy.savez`. `load_tree` returns the numbers and
    strings themselves; lists and NumPy scalars, unless anything is nested, come back as arrays.
    If the array of a list would have other values, as of ``["x", 1.5]``, the list is kept.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"file": np.arange(3), "layer": {"w": np.eye(2)}})
    >>> np.load(io.BytesIO(stream.getvalue())).files
    ['file', 'layer/w']
    """
    check_given(metadata)
    if type(arrays) is not dict:
        _check_arrays(file, arrays)
    arrays, metadata, is_spread = _as_saved(arrays, metadata)
    check_attrs_by_key(attrs, arrays)
    if is_spread:
        joint = importlib.import_module(_JOINT)
        joint.save(
            file, arrays, attrs, metadata=metadata, compression=compression, level=level,
            durable=durable, chunk_size=chunk_size, seekable=seekable, threads=threads,
            storage_options=storage_options,
        )  # fmt: skip
        return
    if level is not None:
        level_for(method_number(compression), level)
    prepared = PreparedArchive(
        arrays, compression, level, attrs=attrs, allow_pickle=allow_pickle,
        chunk_size=chunk_size, seekable=seekable, masked=masked, strings=strings,
    )  # fmt: skip
    prepared.write(
        file, metadata=metadata, durable=durable, threads=threads, lock_timeout=lock_timeout,
        storage_options=storage_options,
    )  # fmt: skip


def _check_arrays(file: Any, arrays: Any) -> None:
    """Refuse a mapping in the place of a file, and arrays that have more than arrays keep."""
    if isinstance(file, Mapping):
        raise TypeError("the file comes first: npzkit.save(file, {'key': array})")
    from npzkit.members.refused_values import check_unlabelled

    check_unlabelled(arrays)


def _as_saved(arrays: Any, metadata: Mapping[str, Any] | None) -> tuple[Any, Any, bool]:
    """Return arrays by key, metadata with a note of what the keys do not say, and `_are_spread`."""
    is_dict = isinstance(arrays, dict)
    is_tree = is_spread = False
    note = (metadata or {}).get(TREE_KEY) if is_dict else None
    if note is not None and not nested_data("notes").is_of(note, arrays):
        # With all metadata of another archive came the note of its nested data.
        metadata, _ = nested_data("containers").without_note(metadata)
    if not _is_flat(arrays) if is_dict else not isinstance(arrays, Mapping):
        arrays, metadata, is_tree = nested_data("containers").as_saved(arrays, metadata)
        is_spread = _are_spread(arrays)
    if not is_tree and is_dict and "/" in "".join(map(str, arrays)):
        # A copy of an archive may come with the note of that one.
        metadata = {TREE_KEY: FLAT, **(metadata or {})}
    return arrays, metadata, is_spread


def _are_spread(arrays: Mapping[str, Any]) -> bool:
    """Return whether arrays of JAX have parts in other processes, too."""
    if imported("jax") is None or not isinstance(arrays, dict):
        return False
    from npzkit.members.tensors import is_spread

    return any(map(is_spread, arrays.values()))


def _is_flat(arrays: dict[Any, Any]) -> bool:
    """Whether these are arrays by strings, as in most calls."""
    return set(map(type, arrays)) <= {str} and set(map(type, arrays.values())) <= {np.ndarray}


class PreparedArchive:
    """Arrays that were checked, and only need to be written: `save` in two steps.

    What cannot be saved raises its error now. The archive may be written later, once, also in
    another thread, if the arrays stay as they are until then.

    Parameters
    ----------
    arrays : dict of str to array-like
        By key, without nested data. Those of another mapping are checked one by one, when they
        are written.
    compression, level, attrs, chunk_size, seekable, allow_pickle, masked, strings
        As in `save`.
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        compression: Compression = "stored",
        level: int | None = None,
        *,
        attrs: Mapping[str, Mapping[str, Any]] | None = None,
        chunk_size: int = CHUNK_SIZE,
        seekable: bool = True,
        **preparation: Any,
    ) -> None:
        self._coding = check_coding(compression, level, chunk_size, seekable)
        members: Iterable[Member] = Preparation(**preparation).many(arrays, self._coding, attrs)
        self._members = list(members) if isinstance(arrays, dict) else members
        self._is_written = False

    def _crc32s(self) -> dict[str, int]:
        """Return the CRC-32 of each array's member by its name; nothing can be written then."""
        from npzkit.files.threads import run

        self._is_written = True
        found: dict[str, int] = {}
        tasks: dict[str, Callable[[], int]] = {}
        for member in self._members:
            if isinstance(member, SmallArrays):
                small = member.members(Coding(is_seekable=False))
                found.update(zip(small.names, small.crc32s, strict=True))
            else:
                tasks[member.name] = partial(reduce, _crc32_with, member.pieces, 0)
        taken = run([*tasks.values()], thread_count(None))
        return found | dict(zip(tasks, taken, strict=True))

    def write(self, file: Any, *, formatted: bytes | None = None, **options: Any) -> None:
        """Write the archive.

        Parameters
        ----------
        file, **options
            As in `NpzWriter`: ``metadata``, ``durable``, ``threads``, ``lock_timeout`` and
            ``storage_options``.
        formatted : bytes, optional
            The text of the metadata, for callers that have it.

        Raises
        ------
        ClosedArchiveError
            It was written before.
        NpzkitError, OSError, ValueError, TypeError
            As `save`. The old file is kept.
        """
        if self._is_written:
            raise ClosedArchiveError("these arrays were written", remedy="Prepare them again.")
        self._is_written = True
        if _are_few(self._members) and self._write_at_once(
            file, self._members, formatted, **options
        ):
            return
        from npzkit.archive.written_archive import WrittenArchive

        archive = WrittenArchive(file, "w", **options)
        try:
            archive.metadata.formatted = formatted
            archive.alone(archive.write, self._members, self._coding, False)
            archive.state.run(archive.finish, ends=True)
        except BaseException as error:
            archive.state.abandon(error)
            raise

    def _write_at_once(
        self,
        file: Any,
        members: list[SmallArrays],
        formatted: bytes | None,
        *,
        metadata: Mapping[str, Any] | None = None,
        durable: bool = False,
        threads: int | None = None,
        lock_timeout: float | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> bool:
        """Write small arrays in one go, and return whether `file` is a path where that can be."""
        if threads is not None:
            thread_count(threads)
        comment = formatted or (b"" if metadata is None else format_checked(metadata))
        timeout = 0.0 if lock_timeout is None else check_timeout(lock_timeout)
        if storage_options is not None or type(file) is not str or "://" in file:
            file = find_location(file, storage_options)
            if isinstance(file, Location) or can_write(file):
                return False
            file = as_path(file)
        check_name(file)
        sink = NewFileAtOnce(file, durable=durable, lock_timeout=timeout)
        if not sink.is_possible:
            return False
        writer = ZipWriter(sink)
        try:
            for arrays in members:
                writer.write_small(arrays.members(self._coding), self._coding.method)
            writer.commit(comment)
        except BaseException:
            # An interrupt may have come while the sink was closing.
            sink.close()
            raise
        return True

    def _write_in_files(self, open_writer: Callable[[], Any], size: int) -> None:
        """Write the arrays to one file after the other, each until it has so many bytes.

        `open_writer` returns a context manager of the `NpzWriter` of a file that has room.
        """
        members = iter(self._members)
        for member in members:
            with open_writer() as writer:
                archive: WrittenArchive = writer._archive
                group = _until_full(archive, size, member, members)
                archive.alone(archive.write, group, self._coding, False)


def _crc32_with(crc: int, piece: Any) -> int:
    return crc32(piece, crc)


def _until_full(
    archive: WrittenArchive, size: int, first: Member, members: Iterator[Member]
) -> Iterator[Member]:
    yield first
    while archive.sink.position < size and (member := next(members, None)) is not None:
        yield member


def _are_few(members: Iterable[Member]) -> TypeGuard[list[SmallArrays]]:
    """Return whether all are small arrays, in memory, and together not large."""
    return (
        type(members) is list
        and len(members) <= _FEW_COUNT
        and {SmallArrays}.issuperset(map(type, members))
    )
