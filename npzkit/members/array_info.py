"""Descriptions of an archive and its members, without reading array data.

Owns `ArrayInfo` and `ArchiveInfo`, and how they are shown as text and in a notebook.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.coding import CHUNK_SIZE, CHUNKED, METHOD_NAMES, STORED, method_name
from npzkit.errors import REPACK, format_count, format_dtype, format_ratio, format_size, shown_key
from npzkit.format.header import NpyHeader
from npzkit.members.metadata import PARTS_ATTRIBUTE, other_suffixes, user_attrs
from npzkit.members.tensors import restored_dtype
from npzkit.zip.chunk_list import only_chunk
from npzkit.zip.entries import Entry
from npzkit.zip.written_header import ALIGNMENT


class ArchiveInfo(NamedTuple):
    """The layout of an archive. Offsets are bytes from the start of the file.

    Attributes
    ----------
    path : str or None
        None if the archive was not opened from a path or a file with a name.
    size : int
        Bytes of the complete file.
    member_count : int
    start_offset : int
        The start of the archive. Other data may come before it.
    directory_offset : int
        The start of the central directory.
    directory_size : int
        Bytes of the directory's entries.
    end_offset : int
        The end of the archive, after the end record and its comment.
    dead_size : int
        Unused bytes, left by arrays that were replaced or removed.
    torn_size : int
        Bytes after the end of the archive, such as an unfinished append.
    comment : bytes
        The archive's comment. It has the metadata as JSON, if there is any.
    compressed_size : int
        Bytes of the data of all members in the file.
    uncompressed_size : int
        Uncompressed bytes of all members, including NPY headers.
    """

    path: str | None
    size: int
    member_count: int
    start_offset: int
    directory_offset: int
    directory_size: int
    end_offset: int
    dead_size: int
    torn_size: int
    comment: bytes
    compressed_size: int
    uncompressed_size: int

    def _repr_html_(self) -> str:
        from npzkit.tables import facts_html

        facts = [
            ("size", format_size(self.size)),
            ("members", f"{self.member_count:,}"),
            ("data", format_size(self.uncompressed_size)),
            ("in the file", _share(self.compressed_size, self.uncompressed_size)),
            ("dead space", format_size(self.dead_size)),
            ("after the end", format_size(self.torn_size)),
        ]
        return facts_html(f"ArchiveInfo {self.path or 'archive'}", facts)


def _share(compressed_size: int, size: int) -> str:
    return f"{format_size(compressed_size)}, {format_ratio(compressed_size, size)}"


class ArrayInfo(NamedTuple):
    """The description of one member of an archive, from its headers.

    Attributes
    ----------
    key : str
        The array key.
    member : str
        The member's name in the zip.
    shape : tuple of int or None
        None if the member is not an array.
    dtype : numpy.dtype or None
    fortran_order : bool or None
    nbytes : int
        Bytes of the array in memory. If the member is a pickle or not an array,
        its uncompressed size.
    compressed_size : int
        Bytes of the member in the file, without headers.
    method : str
        ``"stored"``, ``"deflated"``, ...
    crc32 : int
        CRC-32 of the uncompressed bytes, including the NPY header.
    data_offset : int
        Bytes from the start of the file to the first byte of the array if it is
        stored, or to the compressed data.
    aligned : bool
        Whether it is stored with its first byte at a multiple of 64.
    seekable : bool
        Whether a part can be read without the data before it: the member is
        stored, or compressed with a seek index. `NpzFile.lazy` reads parts of
        other members too.
    checked_parts : bool
        Whether parts are compared with CRC-32s: of chunks, which npzkit writes, or of all of
        the member, if it has at most 256 KiB.
    attrs : mapping of str to object
        The attributes that the array was saved with.
    split_into : tuple of str
        The keys of the other arrays, such as the mask, if `NpzFile.join` returns the array.
    is_masked : bool
        Whether it was a masked array; `split_into` has the key of its mask then.
    why_not_mappable : str or None
        Why the member cannot be mapped, or None if it can.
    has_cheap_parts : bool or None
        Whether a part is read without much else, or None if no part can be read.
    repack_adds : str or None
        What `npzkit.repack` adds to the array: ``"a seek index"``, ``"alignment"`` or None.
    """

    key: str
    member: str
    shape: tuple[int, ...] | None
    dtype: np.dtype[Any] | None
    fortran_order: bool | None
    nbytes: int
    compressed_size: int
    method: str
    crc32: int
    data_offset: int
    aligned: bool
    seekable: bool
    checked_parts: bool
    attrs: Mapping[str, Any]
    split_into: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        from npzkit.tables import facts_html, short_texts

        facts = [
            ("shape", "" if self.shape is None else str(self.shape)),
            ("dtype", format_dtype(self.dtype)),
            ("size", format_size(self.nbytes)),
            ("in the file", _share(self.compressed_size, self.nbytes)),
            ("method", self.method),
            ("split", self.split_text()),
            ("parts", self.parts_text()),
            ("mappable", self.why_not_mappable or "yes"),
        ]
        return facts_html(f"ArrayInfo {shown_key(self.key)}", [*facts, *short_texts(self.attrs)])

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayInfo, tuple(self._replace(attrs=dict(self.attrs)))

    @property
    def is_masked(self) -> bool:
        """Whether it was a masked array; `split_into` has the key of its mask then."""
        return self.split_into == (f"{self.key}.mask",)

    @property
    def why_not_mappable(self) -> str | None:
        """Why `NpzFile.memmap` cannot map the member, or None if it can."""
        if self.dtype is None:
            return "it is not an array"
        if self.dtype.hasobject:
            return "it contains Python objects"
        return None if self.method == METHOD_NAMES[STORED] else f"it is {self.method}"

    @property
    def has_cheap_parts(self) -> bool | None:
        """Whether a part is read without much else, or None if no part can be read.

        The array is seekable, or so small that all of it is read at once: up to 256 KiB, a chunk.
        The files of a sharded archive are taken to have seek indexes, as npzkit writes them.
        """
        if self.seekable:
            return True
        if self.dtype is None or self.dtype.hasobject:
            return None
        return self.nbytes <= CHUNK_SIZE or self._is_sharded

    @property
    def repack_adds(self) -> str | None:
        """What `npzkit.repack` adds to the array: ``"a seek index"``, ``"alignment"`` or None.

        A seek index makes parts of an array cheap that is deflated or compressed with zstd.
        Other methods have none: parts of such arrays become cheap if ``compression="deflated"``
        or ``"stored"`` is passed as well.
        """
        if self._is_sharded or not self.nbytes:
            return None
        if self.method == METHOD_NAMES[STORED]:
            return None if self.aligned or not self.seekable else "alignment"
        is_chunked = self.method in map(METHOD_NAMES.get, CHUNKED)
        return "a seek index" if is_chunked and self.has_cheap_parts is False else None

    @property
    def _is_sharded(self) -> bool:
        # Data in a file comes after a header.
        return self.data_offset == 0

    def split_text(self) -> str:
        """Return what the array was before it was split, and where the rest is; empty if not."""
        kind = "masked" if self.is_masked else "strings"
        return f"{kind}, see {', '.join(map(shown_key, self.split_into))}" * bool(self.split_into)

    def parts_text(self) -> str:
        """Return in a few words whether parts are cheap to read, and if not, what to do.

        Examples
        --------
        >>> import io, npzkit, numpy as np
        >>> stream = io.BytesIO()
        >>> np.savez_compressed(stream, small=np.zeros(10), large=np.zeros(100_000))
        >>> with npzkit.open(stream) as npz:
        ...     print(npz.info("small").parts_text())
        ...     print(npz.info("large").parts_text())
        cheap to read
        everything before a part is read first; npzkit.repack adds a seek index
        """
        if self.has_cheap_parts is None:
            return "not read"
        if self.has_cheap_parts:
            return "cheap to read"
        adds = self.repack_adds
        return "everything before a part is read first" + (
            "; " + REPACK + f" adds {adds}" if adds else ""
        )


def describe(
    key: str,
    entry: Entry,
    header: NpyHeader | None,
    start: int,
    attrs: dict[str, Any],
    *,
    is_listed: bool = False,
) -> ArrayInfo:
    """Return the description of a member from its entry and NPY header.

    Parameters
    ----------
    key : str
    entry : Entry
    header : NpyHeader or None
        None if the member is not an array.
    start : int
        The offset of the member's data in the file.
    attrs : dict
        Its attributes, including npzkit's own.
    is_listed : bool
        Whether the record has a list of the member's chunks.
    """
    is_stored = entry.method == STORED
    has_data = header is not None and not header.dtype.hasobject
    offset = start + header.data_offset if header is not None and is_stored else start
    dtype = None if header is None else restored_dtype(header.fresh().dtype, attrs)
    return ArrayInfo(
        key=key,
        member=entry.name,
        shape=None if header is None else header.shape,
        dtype=dtype,
        fortran_order=None if header is None else header.fortran_order,
        nbytes=header.nbytes if header is not None and has_data else entry.uncompressed_size,
        compressed_size=entry.compressed_size,
        method=method_name(entry.method),
        crc32=entry.crc32,
        data_offset=offset,
        aligned=is_stored and has_data and offset % ALIGNMENT == 0,
        seekable=(is_stored or is_listed) and has_data,
        checked_parts=(is_listed or only_chunk(entry) is not None) and has_data,
        attrs=MappingProxyType(user_attrs(attrs)),
        split_into=_split_into(key, attrs) if PARTS_ATTRIBUTE in attrs else (),
    )


def _split_into(key: str, attrs: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(key + suffix for suffix in other_suffixes(attrs))


def _summary_columns(infos: Sequence[ArrayInfo]) -> list[list[str]]:
    """Return the columns of a table of members, each with its heading."""
    return [
        [heading, *map(cell, map(attrgetter(field), infos))]
        for heading, cell, field in (
            ("key", shown_key, "key"),
            # Thousands of arrays have few shapes, dtypes and sizes.
            ("shape", cache(lambda shape: "-" if shape is None else str(shape)), "shape"),
            ("dtype", cache(format_dtype), "dtype"),
            ("size", cache(format_size), "nbytes"),
            ("method", str, "method"),
        )
    ]


def format_summary(title: str, infos: Iterable[ArrayInfo]) -> str:
    """Return a table of the members, with a line of totals."""
    infos = list(infos)
    columns = _summary_columns(infos)
    key, shape, dtype, size, method = (max(map(len, column)) for column in columns)
    form = f"%-{key}s  %-{shape}s  %-{dtype}s  %{size}s  %-{method}s"
    lines = [(form % row).rstrip() for row in zip(*columns, strict=True)]
    nbytes, stored = (
        format_size(sum(map(attrgetter(field), infos))) for field in ("nbytes", "compressed_size")
    )
    count = f"{len(infos)} member{'' if len(infos) == 1 else 's'}"
    total = f"{count}, {nbytes}, {stored} in the file"
    return "\n".join([title, *lines, total])


def summary_html(
    title: str, infos: Iterable[ArrayInfo], count: int, size: int, metadata: Mapping[str, Any]
) -> str:
    """Return a table of the first members, and the totals of all, as HTML."""
    from npzkit.tables import block, line, short_texts, table

    heads, *rows = zip(*_summary_columns(list(infos)), strict=True)
    total = f"{format_count(count, 'member')}, {format_size(size)}"
    if count > len(rows):
        total += f"; the first {len(rows)} are shown"
    notes = [line(f"{key}: {value}") for key, value in short_texts(metadata)]
    return block([line(title), table(heads, rows, right=heads.index("size")), line(total), *notes])
