"""What is known of one member without reading its array: a record and a table.

Owns `ArrayInfo` and `ArchiveInfo`, and how they are shown as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.methods import METHOD_NAMES, STORED, method_name
from npzkit.errors import shown_key
from npzkit.format.header import NpyHeader
from npzkit.members.extension_dtypes import restored_dtype
from npzkit.members.metadata import user_attrs
from npzkit.zip.entries import Entry
from npzkit.zip.layout import ALIGNMENT

__all__ = [
    "ArchiveInfo",
    "ArrayInfo",
    "describe",
    "format_count",
    "format_size",
    "format_summary",
    "short_dtype",
]


class ArchiveInfo(NamedTuple):
    """An archive as a file: where its parts lie, in bytes from the file's start.

    Attributes
    ----------
    path : str or None
        None where it was not opened by a path or a named file.
    size : int
        Bytes of the whole file.
    member_count : int
    start_offset : int
        Where the archive begins: behind other data, maybe.
    directory_offset : int
        Where its central directory begins.
    directory_size : int
        Bytes of the directory's entries.
    end_offset : int
        Where it ends, behind the end record and its comment.
    dead_size : int
        Bytes of nothing that is listed: replaced and removed arrays.
    torn_size : int
        Bytes behind the end: an append that was not finished, or something else.
    comment : bytes
        The archive's comment, which is the metadata's JSON where there is any.
    compressed_size : int
        Bytes that the data of all members takes in the file.
    uncompressed_size : int
        Bytes of all members uncompressed, NPY headers included.
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


class ArrayInfo(NamedTuple):
    """One member of an archive, from its headers alone.

    Attributes
    ----------
    key : str
        The key it is listed under.
    member : str
        The member's name in the zip.
    shape : tuple of int or None
        None where the member is not an array.
    dtype : numpy.dtype or None
    fortran_order : bool or None
    nbytes : int
        Bytes of the array in memory; of a member that is no array, or that
        holds a pickle, bytes uncompressed.
    compressed_size : int
        Bytes the member takes in the file, headers aside.
    method : str
        ``"stored"``, ``"deflated"``, ...
    crc32 : int
        Of the member's uncompressed bytes, NPY header included.
    data_offset : int
        Bytes from the start of the file to the array's first byte, where the
        member is stored; else to the compressed data.
    aligned : bool
        Stored, with its first byte at a multiple of 64.
    seekable : bool
        Whether a part can be read without what comes before it: stored, or
        deflated with a seek index. `NpzFile.lazy` reads parts of others too.
    attrs : mapping of str to object
        The attributes it was saved with.
    why_not_mappable : str or None
        What keeps a file's member from being mapped.
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
    attrs: Mapping[str, Any]

    @property
    def why_not_mappable(self) -> str | None:
        """What keeps `NpzFile.memmap` from mapping it; None where the file can be mapped."""
        if self.dtype is None:
            return "it is not an array"
        if self.dtype.hasobject:
            return "it holds Python objects"
        return None if self.method == METHOD_NAMES[STORED] else f"it is {self.method}"


def describe(
    key: str,
    entry: Entry,
    header: NpyHeader | None,
    start: int,
    attrs: dict[str, Any],
    *,
    indexed: bool = False,
) -> ArrayInfo:
    """Put together what a member's entry and its NPY header say.

    Parameters
    ----------
    key : str
    entry : Entry
    header : NpyHeader or None
        None for a member that is no array.
    start : int
        Where the member's data begins in the file.
    attrs : dict
        Its attributes, npzkit's own among them.
    indexed : bool
        Whether a seek index lies behind it.
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
        seekable=(is_stored or indexed) and has_data,
        attrs=MappingProxyType(user_attrs(attrs)),
    )


def format_summary(title: str, infos: Iterable[ArrayInfo]) -> str:
    """Lay the members out as a table with a line of totals."""
    rows = [("key", "shape", "dtype", "size", "method")]
    size = compressed_size = 0
    for info in infos:
        shape = "-" if info.shape is None else str(info.shape)
        dtype = "-" if info.dtype is None else short_dtype(info.dtype)
        rows.append((shown_key(info.key), shape, dtype, format_size(info.nbytes), info.method))
        size += info.nbytes
        compressed_size += info.compressed_size
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if index == 3 else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    count = f"{len(rows) - 1} member{'' if len(rows) == 2 else 's'}"
    total = f"{count}, {format_size(size)}, {format_size(compressed_size)} in the file"
    return "\n".join([title, *lines, total])


def format_count(count: int, noun: str) -> str:
    """Format how many there are of something: ``1 member``, ``2,000 members``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def short_dtype(dtype: np.dtype[Any]) -> str:
    """Name a dtype in at most 40 characters."""
    try:
        text = dtype.name if dtype.names is None else str(dtype)
    except RecursionError:
        return "structure"
    return text if len(text) <= 40 else text[:37] + "..."


def format_size(size: int) -> str:
    """Format bytes with three digits: ``64.0 MiB``."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
