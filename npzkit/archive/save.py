"""A complete archive written in one call.

Owns `save`: what it checks before any file is touched, and in which order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from npzkit.archive.written_archive import WrittenArchive
from npzkit.codecs.coding import CHUNK_SIZE, Compression, check_coding, level_for, method_number
from npzkit.errors import ClosedArchiveError
from npzkit.members.containers import check_tree, flatten, is_nested
from npzkit.members.labels import check_unlabelled
from npzkit.members.metadata import TREE_KEY, without_note
from npzkit.members.notes import FLAT
from npzkit.writing.array_members import Member, Preparation, SmallArrays
from npzkit.zip.extra_fields import names_crc32

if TYPE_CHECKING:
    from npzkit.members.multipart import OnParts
    from npzkit.typing import Writable


def save(
    file: Writable,
    arrays: Any,
    *,
    compression: Compression = "stored",
    level: int | None = None,
    metadata: Mapping[str, Any] | None = None,
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
        `NpzWriter`.
    arrays : mapping of str to array-like, or a tree
        Arrays by key, written in this order. Keys such as ``"file"`` and
        ``"arr_0"`` are allowed. The arrays of a dict are all checked, and
        pickled if they hold objects, before any file is touched. Those of
        another mapping, such as an `NpzFile`, are read and written one by one
        to keep memory small. A dict may be nested, and a list, a tuple or an array
        is saved as well; see the notes. Tables, and arrays with units or
        coordinates, are refused: the error says what to save.
    compression, level, metadata, allow_pickle, durable, chunk_size, seekable, threads, lock_timeout
        As in `NpzWriter`.
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
    contain slashes, None, numbers, strings, bytes and NumPy scalars. A list or
    tuple may be given in place of `arrays`: its items get the keys ``0``, ``1``
    and so on. An array alone gets the key ``arr_0``.

    The fields of a namedtuple or of a dataclass become keys too. A namedtuple
    comes back as an equal one of a new class with the same name and fields,
    because no class is imported for a file. A dataclass comes back as a dict.
    Of a class that is registered with JAX as a pytree, the children are saved,
    and its static fields are not. Each of these may be given in place of `arrays`
    too. ``load_tree(file, like=example)`` returns the classes of the example.

    `load_tree` splits keys at their slashes only if the archive does not say what was
    saved: those of other programs, and of arrays that were added one by one.

    What is not an array is kept in the metadata under ``npzkit.tree``. Bytes are
    saved as arrays of uint8. At the top level, numbers, strings and lists of
    them are saved as arrays, as by `numpy.savez`.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"file": np.arange(3), "layer": {"w": np.eye(2)}})
    >>> np.load(io.BytesIO(stream.getvalue())).files
    ['file', 'layer/w']
    """
    if type(arrays) is not dict:
        check_unlabelled(arrays)
    is_tree = False
    if not isinstance(arrays, Mapping) or (isinstance(arrays, dict) and not _is_flat(arrays)):
        check_tree(arrays)
        is_tree = not isinstance(arrays, Mapping) or is_nested(arrays)
        if is_tree:
            arrays, note = flatten(arrays)
            plain, _ = without_note(metadata or {})
            metadata = plain if note is None else {**plain, TREE_KEY: note}
    if not is_tree and isinstance(arrays, dict) and "/" in "".join(map(str, arrays)):
        # A copy of an archive may come with the note of that one.
        metadata = {TREE_KEY: FLAT, **(metadata or {})}
    level_for(method_number(compression), level)
    prepared = PreparedArchive(
        arrays, compression, level, allow_pickle=allow_pickle, chunk_size=chunk_size,
        seekable=seekable, masked=masked, strings=strings,
    )  # fmt: skip
    prepared.write(
        file, metadata=metadata, durable=durable, threads=threads, lock_timeout=lock_timeout,
        storage_options=storage_options,
    )  # fmt: skip


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
    compression, level, chunk_size, seekable, allow_pickle, masked, strings
        As in `save`.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> prepared = npzkit.PreparedArchive({"w": np.eye(2)}, compression="deflated")
    >>> prepared.write(stream := io.BytesIO(), metadata={"step": 1})
    >>> npzkit.open(stream).info("w").method
    'deflated'
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        compression: Compression = "stored",
        level: int | None = None,
        *,
        chunk_size: int = CHUNK_SIZE,
        seekable: bool = True,
        **preparation: Any,
    ) -> None:
        self._coding = check_coding(compression, level, chunk_size, seekable)
        members: Iterable[Member] = Preparation(**preparation).many(arrays, self._coding)
        self._members = list(members) if isinstance(arrays, dict) else members
        self._is_written = False

    @property
    def names_crc32(self) -> int:
        """The CRC-32 of the names and attributes of the arrays, if they are those of a dict."""
        names: list[str] = []
        extras: list[tuple[str, bytes]] = []
        for member in self._members:
            if isinstance(member, SmallArrays):
                names += member.names
            else:
                names.append(member.name)
                extras.append((member.name, member.extra))
        return names_crc32(names, extras)

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
        archive = WrittenArchive(file, "w", **options)
        try:
            archive.metadata.formatted = formatted
            archive.alone(archive.write, self._members, self._coding, False)
            archive.state.run(archive.finish, ends=True)
        except BaseException as error:
            archive.state.abandon(error)
            raise

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


def _until_full(
    archive: WrittenArchive, size: int, first: Member, members: Iterator[Member]
) -> Iterator[Member]:
    yield first
    while archive.sink.position < size and (member := next(members, None)) is not None:
        yield member
