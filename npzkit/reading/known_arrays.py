"""The headers of all arrays, as the array index before the directory lists them.

Owns how far the index is trusted. It lists what an archive holds without reading members. It
is read when somebody lists the archive, and then compared with the own header of each
member that is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from npzkit.codecs.coding import CHUNK_SIZE, CHUNKED, STORED, method_name
from npzkit.errors import Advice, ZipFormatError
from npzkit.format.header import NpyHeader
from npzkit.members.array_info import ArrayInfo, describe
from npzkit.members.metadata import parse_attrs
from npzkit.reading.member import MemberReader
from npzkit.reading.member_headers import parse_plain
from npzkit.zip.chunk_list import most_compressed
from npzkit.zip.directory import Directory
from npzkit.zip.entries import LARGEST, Entry
from npzkit.zip.entry_columns import Bools, Ints
from npzkit.zip.records import FLAG_UTF8, LOCAL_HEADER_SIZE
from npzkit.zip.written_header import ALIGNMENT

_METHOD_NAMES = np.array([method_name(number) for number in range(max(CHUNKED) + 1)], object)
"""By their numbers."""
_OF_HEADERS = ("shape", "dtype", "fortran_order", "nbytes")
_COLUMNS = (
    "flags", "method", "crc32", "compressed_size", "uncompressed_size", "header_offset",
    "disk_start", "name_size", "extra_size",
)  # fmt: skip


_ASKED_COUNT = 8
"""The most members that are described one by one before all are described at once."""
_PRICE = 50
"""How many are described at once in the time of one."""
_VERY_MANY_COUNT = 100_000
"""From so many members on, what is known of all takes much memory: they are described at once
only if that is cheaper."""
_FEW_COUNT = 10
"""Members whose headers are fetched together when the first one is described: no more
requests than may be under way at once, so the others cost no time."""


class KnownArrays:
    """The headers of the arrays of an open archive, as far as its index can be believed.

    Nothing is known of a member that is not an array of plain values, or whose
    size does not fit its header: then its own headers are read.

    Parameters
    ----------
    reader : MemberReader
        Of the directory.
    directory : Directory

    Attributes
    ----------
    infos : dict of str to ArrayInfo
        By key; empty until many members were asked for.
    """

    def __init__(self, reader: MemberReader, directory: Directory) -> None:
        self._reader = reader
        self._entries = entries = directory.entries
        self._asked = 0
        # Members whose own headers were found to be what the index says.
        self._proven: set[str] = set()
        self.infos: dict[str, ArrayInfo] = {}
        limit = reader.header_limit
        self._index = index = reader.lists.index
        self._is_damaged = index is None and directory.footer is not None
        if index is not None:
            self._headers = [None, *(parse_plain(head, limit) for head in index.heads[1:])]
            columns = [np.asarray(column, np.int64) for column in entries.fields()]
            self._fields = dict(zip(_COLUMNS, columns, strict=True))
            self._numbers = self._believe(index.numbers)

    def _believe(self, numbers: Ints) -> Ints:
        """Return the number of each member's header, 0 if it does not fit the member."""
        fields, size_limit = self._fields, self._reader.size_limit
        sizes = [-1 if one is None else one.data_offset + one.nbytes for one in self._headers]
        fits = np.array([size if size < LARGEST else -1 for size in sizes], np.int64)[numbers]
        is_known = (fits == fields["uncompressed_size"]) & (fields["disk_start"] == 0)
        is_known &= fields["flags"] & ~FLAG_UTF8 == 0
        is_known &= np.isin(fields["method"], [STORED, *CHUNKED])
        if size_limit is not None:
            is_known &= fields["uncompressed_size"] <= size_limit
        return np.where(is_known, numbers, 0)

    def find(self, name: str) -> NpyHeader | None:
        """Return the NPY header of a member; None if its own has to be read."""
        index = self._index
        return None if index is None else self._headers[self._numbers.item(index.rows[name])]

    def data_start(self, entry: Entry) -> int | None:
        """Return where a stored member's data begins in the file; None if that is not known."""
        header = self.find(entry.name)
        if header is None or entry.method != STORED:
            return None
        info = self.describe(entry.name, entry)
        start = 0 if info is None else info.data_offset - header.data_offset
        return start if 0 < start <= entry.end_offset - entry.compressed_size else None

    def extra_size(self, entry: Entry) -> int | None:
        """Return the bytes of the local header's extra field; None if that is not known."""
        return None if self._index is None else self._index.extra_size(entry.name)

    def is_listed(self, entry: Entry) -> bool:
        """Whether the record should have a list of a member's chunks."""
        return self._index is not None and self._index.is_listed(entry.name)

    def has_checks(self, entry: Entry) -> bool:
        """Whether CRC-32s of chunks should be in the record; true if the index is damaged."""
        return self._is_damaged or self.is_listed(entry)

    def describe(self, key: str, entry: Entry) -> ArrayInfo | None:
        """Return what is known of a member, or None if its own headers have to be read.

        Raises
        ------
        ZipFormatError
            Its attributes are damaged.
        """
        header, index = self.find(entry.name), self._index
        if header is None or index is None:
            return None
        start = entry.name_end + index.extra_size(entry.name)
        attrs = parse_attrs(entry.extra)
        return describe(key, entry, header, start, attrs, is_listed=index.is_listed(entry.name))

    def info(self, key: str, entry: Entry, keys: list[str]) -> ArrayInfo | None:
        """Return what `describe` does, and describe all members if many were asked for.

        Parameters
        ----------
        key : str
            Under which the member is listed.
        entry : Entry
        keys : list of str
            Of all members.
        """
        self._asked += 1
        if self._index is None:
            if self._asked == (1 if len(self._entries) <= _FEW_COUNT else _ASKED_COUNT + 1):
                self._reader.headers_ahead.foresee(self._entries.values())
            return None
        most = _ASKED_COUNT if len(keys) < _VERY_MANY_COUNT else len(keys)
        if self._asked > min(most, 1 + len(keys) // _PRICE):
            self.describe_all(keys)
        return self.describe(key, entry)

    def describe_all(self, keys: Sequence[str]) -> None:
        """Fill `infos` at once, half a microsecond each: whoever asks for many asks for all.

        Left out are members of which `describe` returns None, and those with
        attributes, or a dtype, that have to be looked at one by one.

        Parameters
        ----------
        keys : sequence of str
            Of all members, in the directory's order.
        """
        index = self._index
        if index is None or self.infos:
            return
        fields = self._fields
        # A dtype that says everything about its arrays' dtype.
        plain = np.array([h is not None and h.dtype.type is not np.void for h in self._headers])
        kept = plain[self._numbers] & (fields["extra_size"] == 0)
        numbers = self._numbers[kept]
        methods = fields["method"][kept]
        is_stored = methods == STORED
        starts = fields["header_offset"] + LOCAL_HEADER_SIZE + fields["name_size"]
        starts = (starts + index.extra_sizes)[kept]
        starts += self._of_headers("data_offset", np.int64)[numbers] * is_stored
        no_attrs: Mapping[str, Any] = MappingProxyType({})
        is_kept = kept.tolist()
        shown = list(itertools.compress(keys, is_kept))
        columns = (
            shown,
            itertools.compress(self._entries, is_kept),
            *[self._of_headers(name)[numbers].tolist() for name in _OF_HEADERS],
            fields["compressed_size"][kept].tolist(),
            _METHOD_NAMES[methods].tolist(),
            fields["crc32"][kept].tolist(),
            starts.tolist(),
            (is_stored & (starts % ALIGNMENT == 0)).tolist(),
            (is_stored | index.are_listed[kept]).tolist(),
            (index.are_listed | _are_one_chunk(fields))[kept].tolist(),
            itertools.repeat(no_attrs, len(shown)),
            itertools.repeat((), len(shown)),
        )
        # `ArrayInfo._make` does the same in twice the time.
        made = map(tuple.__new__, itertools.repeat(ArrayInfo), zip(*columns, strict=True))
        self.infos = dict(zip(shown, made, strict=True))

    def _of_headers(self, name: str, dtype: Any = object) -> np.ndarray[Any, Any]:
        """Return an attribute of each header, for arrays of numbers of headers."""
        column = np.empty(len(self._headers), dtype)
        for number, header in enumerate(self._headers):
            column[number] = 0 if header is None else getattr(header, name)
        return column

    def check_header(self, entry: Entry) -> None:
        """Compare a member's own header with what was said of it, once.

        Raises
        ------
        ZipFormatError
            They differ.
        """
        known = self.find(entry.name)
        if known is None or entry.name in self._proven:
            return
        header, _ = self._reader.header(entry)
        if header != known:
            raise index_disagrees(known, header and f"{header.shape} {header.dtype}")
        self._proven.add(entry.name)

    def check_arrays(self, names: Iterable[str], arrays: Iterable[Any]) -> None:
        """Compare arrays that were read with what was said of them; raises `ZipFormatError`."""
        if self._index is not None:
            for name, array in zip(names, arrays, strict=True):
                _check_array(array, self.find(name))


def _check_array(array: Any, header: NpyHeader | None) -> None:
    """Raise ZipFormatError if an array that was read differs from the index."""
    if header is None:
        return
    if not isinstance(array, np.ndarray):
        raise index_disagrees(header, "no array")
    is_same = array.dtype == header.dtype or (
        # A dtype that NPY cannot name.
        header.dtype.type is np.void and array.dtype.itemsize == header.dtype.itemsize
    )
    if not is_same or array.shape != header.shape:
        raise index_disagrees(header, f"{array.shape} {array.dtype}")


def index_disagrees(header: NpyHeader, found: object) -> ZipFormatError:
    """Return the error for an array that differs from the index."""
    return ZipFormatError(
        "the array index and the array's own header disagree",
        found=found,
        expected=f"{header.shape} {header.dtype}",
        remedy=Advice("npzkit.repack(path)", "npzkit repack FILE") + " writes the index again.",
    )


def read_info(reader: MemberReader, key: str, entry: Entry) -> ArrayInfo:
    """Return what is known of a member by its own headers."""
    header, start = reader.header(entry)
    attrs = parse_attrs(entry.extra)
    is_listed = reader.lists.find(entry, reader.headers_ahead.of(entry)) is not None
    return describe(key, entry, header, start, attrs, is_listed=is_listed)


def _are_one_chunk(fields: Mapping[str, Ints]) -> Bools:
    """Return of many members whether `only_chunk` has a list for them."""
    size, methods = fields["uncompressed_size"], fields["method"]
    is_small = (size > 0) & (size <= CHUNK_SIZE)
    is_known = np.isin(methods, (STORED, *CHUNKED))
    found: Bools = is_small & is_known & (fields["compressed_size"] <= most_compressed(size))
    return found
