"""The zip records of a file of torch.save, checked before PyTorch takes them.

Owns what PyTorch does not compare: how a record is stored, its size, its CRC-32. It reads the
pickle to know the sizes, and makes nothing of what that describes. Knows no tensors.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, Self

from npzkit.conversion.refusals import Claims
from npzkit.errors import GET_AGAIN, ChecksumError, FormatError, UnsupportedError

_LOCAL_HEADER = struct.Struct("<26xHH")
_PIECE_SIZE = 1 << 20
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_WIDTHS = {
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2,
    "LongStorage": 8, "IntStorage": 4, "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1,
    "BoolStorage": 1, "ComplexDoubleStorage": 16, "ComplexFloatStorage": 8,
    "QUInt8Storage": 1, "QInt8Storage": 1, "QInt32Storage": 4, "QUInt4x2Storage": 1,
    "QUInt2x4Storage": 1, "UntypedStorage": 1,
}  # fmt: skip
"""Bytes of a value in a storage, by the name of its class."""
_REMEDY = f"{GET_AGAIN}."


def check_records(path: str, claims: Claims) -> bool:
    """Check the records of a file, and return whether all are stored, so that it can be mapped.

    Files of versions before 1.6 are no zip, and have none.

    Raises
    ------
    FormatError
        Records are missing, repeated, encrypted, or shorter than the tensors.
    UnsupportedError
        The file is a program.
    ChecksumError
    LimitExceededError
    """
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            if file.read(4) == b"PK\3\4":
                raise FormatError("the file is cut off or damaged", remedy=_REMEDY)
        return False
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        records = archive.infolist()
        if not records:
            raise FormatError("the file has no records", remedy=_REMEDY)
        by_name = {record.filename: record for record in records}
        if any(name.endswith("/constants.pkl") for name in by_name):
            raise UnsupportedError(
                "the file is a program of TorchScript",
                remedy="Load it with torch.jit.load, and save its state dict.",
            )
        if len(by_name) < len(records):
            raise FormatError("the file has two records of one name", remedy=_REMEDY)
        if min(record.header_offset for record in records):
            # Each program would count places from another byte.
            raise FormatError("the file has bytes before its first record", remedy=_REMEDY)
        claims.check_total(sum(record.file_size for record in records))
        for record in records:
            _check(archive, file, record)
        pickled = [name for name in by_name if name.endswith("/data.pkl")]
        if len(pickled) != 1:
            raise FormatError("the file has no record data.pkl, or several", remedy=_REMEDY)
        folder = pickled[0].removesuffix("data.pkl")
        for name, size in _storages(archive.read(pickled[0])):
            _check_size(by_name.get(f"{folder}data/{name}"), f"{folder}data/{name}", size)
        return all(record.compress_type == _STORED for record in records)


def _check(archive: zipfile.ZipFile, file: Any, record: zipfile.ZipInfo) -> None:
    """Compare the checksum of a record."""
    if record.flag_bits & 1 or record.compress_type not in (_STORED, _DEFLATED):
        raise FormatError(
            "a record of the file is encrypted, or compressed by a method of others",
            key=record.filename, found=record.compress_type, remedy=_REMEDY,
        )  # fmt: skip
    # Checks the local header.
    with archive.open(record):
        crc, size = 0, 0
    for piece in _pieces(file, record):
        crc, size = zlib.crc32(piece, crc), size + len(piece)
        if size > record.file_size:
            break
    if size != record.file_size:
        raise FormatError(
            "a record of the file has another size", key=record.filename, found=size,
            expected=record.file_size, remedy=_REMEDY,
        )  # fmt: skip
    if crc != record.CRC:
        raise ChecksumError(
            "the CRC-32 of a record differs", key=record.filename, offset=record.header_offset,
            found=f"{crc:08x}", expected=f"{record.CRC:08x}", remedy=_REMEDY,
        )  # fmt: skip


def _pieces(file: Any, record: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the bytes of a record, from where PyTorch maps them."""
    file.seek(record.header_offset)
    name_size, extra_size = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    file.seek(name_size + extra_size, os.SEEK_CUR)
    left, inflating = record.compress_size, zlib.decompressobj(-zlib.MAX_WBITS)
    while left and (piece := file.read(min(left, _PIECE_SIZE))):
        left -= len(piece)
        if record.compress_type == _STORED:
            yield piece
            continue
        while piece:
            yield inflating.decompress(piece, _PIECE_SIZE)
            piece = inflating.unconsumed_tail


def _check_size(record: zipfile.ZipInfo | None, name: str, size: int) -> None:
    if record is None or record.file_size < size:
        raise FormatError(
            "the file has fewer bytes of a tensor than its pickle says", key=name,
            found=0 if record is None else record.file_size, expected=size, remedy=_REMEDY,
        )  # fmt: skip


def _storages(pickled: bytes) -> list[tuple[str, int]]:
    """Return the name of each storage in a pickle, and how many bytes it is said to have."""
    reader = _Reader(io.BytesIO(pickled), encoding="utf-8")
    reader.load()
    return reader.found


class _Reader(pickle.Unpickler):
    """Read a pickle whose classes and functions are nothing, to know its storages."""

    def __init__(self, file: Any, **options: Any) -> None:
        super().__init__(file, **options)
        self.found: list[tuple[str, int]] = []

    def find_class(self, module: str, name: str) -> Any:
        return _STORAGES.get(name, Nothing)

    def persistent_load(self, pid: Any) -> Any:
        match pid:
            case ("storage", type() as kind, str(name), _, int(count)) if kind is not Nothing:
                self.found.append((name, count * _WIDTHS[kind.__name__]))
                return Nothing()
        raise FormatError("the pickle of the file describes a tensor that npzkit does not know")


class Nothing:
    """Takes all that a pickle does with a class, a function or an object, and keeps nothing."""

    def __new__(cls, *_: Any) -> Self:
        return super().__new__(cls)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Keep nothing."""

    def __setstate__(self, state: Any) -> None:
        """Keep nothing."""

    def extend(self, values: Any) -> None:
        """Keep nothing."""

    append = add = extend


_STORAGES = {name: type(name, (Nothing,), {}) for name in _WIDTHS}
