"""Arrays to the members they are written as, for one archive.

Owns which way an array takes: as a member of its own, split into several members, or, if
it is small, together with its neighbours. Small arrays that share dtype, shape and order
share one NPY header, and their data is copied in runs. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, repeat, tee
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from npzkit.codecs.checksum import chunk_crc32s, combined_with_last, crc32, isal_or_zlib
from npzkit.codecs.coding import CHECKED_SIZE, CHUNK_SIZE, STORED, Coding
from npzkit.format.array import array_bytes, simple_header
from npzkit.format.descr import AMBIGUOUS
from npzkit.members.keys import check_key, check_keys
from npzkit.zip.written_header import SmallMembers

if TYPE_CHECKING:
    from npzkit.members.multipart import Splitting
    from npzkit.typing import OnParts
    from npzkit.writing.array_bytes import Prepared
    from npzkit.zip.chunk_list import ChunkList

_SMALL_SIZE = (1 << 16) - 1
"""Bytes up to which an array is written together with those that follow it."""
_STORED_SIZE = (1 << 21) - 1
"""Bytes up to which an array is stored as small ones are. The CRC-32 of larger ones is for
several threads."""
_COPIED_SIZE = 1 << 14
"""Bytes up to which stored arrays are copied; larger ones are written from their own memory."""
_FEW_COUNT = 8
"""Fewer arrays are no reason to import ISA-L."""
_RUN_SIZE = 1 << 19
"""Bytes of small arrays that are copied and written together: their copies fit in the
cache. With 4 MiB, saving took a fifth longer."""


class _Head(NamedTuple):
    """The NPY header that all arrays of one dtype, shape and order share.

    Attributes
    ----------
    data : bytes
    crc32 : int
    size : int
        Bytes of each member: of the header and the array.
    dtype : numpy.dtype
        Kept alive, because the header is found by its identity.
    """

    data: bytes
    crc32: int
    size: int
    dtype: np.dtype[Any]


class SmallArrays:
    """Consecutive plain small arrays, as columns.

    Thousands of arrays share few dtypes and shapes, and so few headers.

    Attributes
    ----------
    names : list of str
    heads : list of _Head
    arrays : list of numpy.ndarray
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.heads: list[_Head] = []
        self.arrays: list[np.ndarray[Any, Any]] = []

    def members(self, coding: Coding) -> SmallMembers:
        """Return them as members: their bytes as they are stored, or compressed."""
        crc32s: Sequence[int]
        heads, head_crc32s, sizes, _ = zip(*self.heads, strict=True)
        is_stored = coding.method == STORED
        are_copies = not is_stored or max(sizes) <= _COPIED_SIZE
        data: list[Any]
        if are_copies:
            # The order in which every array is written.
            in_memory_order: Literal["A"] = "A"
            data = list(map(np.ndarray.tobytes, self.arrays, repeat(in_memory_order)))
        else:
            data = list(map(_bytes_of, self.arrays))
        take_crc32 = crc32 if len(data) < _FEW_COUNT else isal_or_zlib().crc32
        lists: Sequence[ChunkList | None] = [None] * len(data)
        if is_stored and coding.is_seekable and max(sizes) > CHUNK_SIZE:
            crc32s, lists = zip(*map(_checked, self.heads, data), strict=True)
        else:
            crc32s = list(map(take_crc32, data, head_crc32s))
        pieces: tuple[Any, ...] = (heads, data)
        if not is_stored:
            from npzkit.zip.member_writer import compress_small

            pieces = (compress_small(heads, data, coding),)
        return SmallMembers(self.names, pieces, sizes, crc32s, heads, lists, are_copies)


Member: TypeAlias = "Prepared | SmallArrays"


class Preparation:
    """Prepares arrays for one archive.

    Parameters
    ----------
    allow_pickle : bool
        Whether arrays of Python objects may be written.
    masked, strings : {"refuse", "split"}
        Which arrays are split into several members.
    """

    def __init__(
        self, *, allow_pickle: bool = False, masked: OnParts = "refuse", strings: OnParts = "refuse"
    ) -> None:
        self._allow_pickle = allow_pickle
        self._splitting: Splitting | None = None
        if not masked == strings == "refuse":
            from npzkit.members.multipart import check_splitting

            self._splitting = check_splitting(masked, strings)
        # By a dtype's identity, a shape and an order; None if such arrays are not small. All
        # by what counts as small.
        self._heads: dict[int, dict[tuple[Any, ...], _Head | None]] = {}

    def one(
        self, key: str, name: str, array: Any, attrs: Mapping[str, Any] | None, coding: Coding
    ) -> list[Member]:
        """Return the members of one array; several if it is split."""
        parts = self._splitting.parts(array) if self._splitting is not None else []
        if parts:
            # The first one has the attributes of the array.
            return [
                _prepared(
                    key + part.suffix, check_key(key + part.suffix), part.array,
                    part.attrs if part.suffix else {**(attrs or {}), **part.attrs},
                    allow_pickle=False,
                )
                for part in parts
            ]  # fmt: skip
        if attrs:
            return [_prepared(key, name, array, attrs, allow_pickle=self._allow_pickle)]
        return list(self.columns((key,), (name,), (array,), coding))

    def many(
        self,
        arrays: Mapping[str, Any],
        coding: Coding,
        attrs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Iterator[Member]:
        """Yield the members of arrays by key, in their order, small neighbours together."""
        keys = list(arrays)
        names = check_keys(keys)
        if self._splitting is None and not attrs:
            return self.columns(keys, names, arrays.values(), coding)
        found = map((attrs or {}).get, keys)
        return chain.from_iterable(
            map(self.one, keys, names, arrays.values(), found, repeat(coding))
        )

    def each(
        self, items: Iterable[tuple[str, Any, Mapping[str, Any] | None]], coding: Coding
    ) -> Iterator[Member]:
        """Yield the members of keys, arrays and attributes; without these, small ones together."""
        for has_attrs, group in groupby(items, lambda item: bool(item[2])):
            if has_attrs:
                for key, array, attrs in group:
                    yield from self.one(key, check_key(key), array, attrs, coding)
            else:
                keys, names, arrays = tee(group, 3)
                yield from self.columns(
                    (key for key, _, _ in keys), (check_key(key) for key, _, _ in names),
                    (array for _, array, _ in arrays), coding,
                )  # fmt: skip

    def columns(
        self, keys: Iterable[str], names: Iterable[str], arrays: Iterable[Any], coding: Coding
    ) -> Iterator[Member]:
        """Yield the members of arrays that are not split, small neighbours together.

        Takes half a microsecond for an array that is like the one before it.
        """
        # Those are one chunk.
        largest = _STORED_SIZE if coding.method == STORED else min(_SMALL_SIZE, coding.chunk_size)
        heads = self._heads.setdefault(largest, {})
        head: _Head | None = None
        last_dtype, last_shape, last_order = None, None, None
        run = SmallArrays()
        size = 0
        for key, name, array in zip(keys, names, arrays, strict=True):
            if type(array) is np.ndarray:
                dtype, shape = array.dtype, array.shape
                order = len(shape) > 1 and array.flags.fnc
                if dtype is not last_dtype or shape != last_shape or order is not last_order:
                    # By identity: dtypes that differ only in their metadata are equal.
                    kind = id(dtype), shape, order
                    head = (
                        heads[kind]
                        if kind in heads
                        else heads.setdefault(kind, _head(array, largest))
                    )
                    last_dtype, last_shape, last_order = dtype, shape, order
                if head is not None:
                    run.names.append(name)
                    run.heads.append(head)
                    run.arrays.append(array)
                    size += head[2]
                    if size > _RUN_SIZE or head[2] > _SMALL_SIZE:
                        yield run
                        run, size = SmallArrays(), 0
                    continue
            if run.names:
                yield run
                run, size = SmallArrays(), 0
            yield _prepared(key, name, array, None, allow_pickle=self._allow_pickle)
        if run.names:
            yield run


def _checked(head: _Head, data: bytes) -> tuple[int, ChunkList | None]:
    """Return the CRC-32 of a stored member and the list of its chunks, if it has one."""
    if head.size <= CHUNK_SIZE:
        return crc32(data, head.crc32), None
    from npzkit.zip.chunk_list import stored_chunks

    crc32s = chunk_crc32s(data, CHECKED_SIZE, len(head.data), head.crc32)
    crc = combined_with_last(crc32s, CHECKED_SIZE, head.size)
    return crc, stored_chunks(crc32s, head.size)


def _bytes_of(array: np.ndarray[Any, Any]) -> bytes | memoryview:
    """Return the data of an array in the order in which it is written."""
    return array_bytes(array) if array.flags.forc else array.tobytes()


def _prepared(*array: Any, **options: Any) -> Prepared:
    """Return an array as a member of its own, by what is imported with the first one."""
    from npzkit.writing.array_bytes import prepare

    return prepare(*array, **options)


def _head(array: np.ndarray[Any, Any], largest: int) -> _Head | None:
    """Return the header of arrays like this one; None unless they are small and plain."""
    dtype = array.dtype
    is_simple = dtype.isbuiltin == 1 or (dtype.kind in "SU" and dtype.isnative)
    is_plain = is_simple and not dtype.hasobject and dtype.metadata is None
    is_plain = is_plain and dtype.char not in AMBIGUOUS
    if not is_plain or array.nbytes > largest:
        return None
    data = simple_header(dtype, array.shape, array.flags.fnc)
    size = len(data) + array.nbytes
    return _Head(data, crc32(data), size, dtype) if size <= largest else None
