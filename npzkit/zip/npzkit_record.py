"""The record: what npzkit adds to an archive, in a form on which no other program stumbles.

Owns the form alone. Everything else sees bytes at offsets. The record consists of *pieces* in front
of a directory. Each looks like an entry of a directory, but no end record counts it: its name
is `.npzkit`, its sizes are 0, and its extra field is one block, 0x5A4E ("NZ"), with at most
65,000 bytes of data. A program that reads from front to back takes a piece for the beginning
of the directory, and stops; one that begins with the end record reads what is behind the pieces.

Bytes that fit a piece are in one. More of them begin a piece of their own, and fill as many as
they need.
"""

# Without `from __future__ import annotations`: see "The first call" in CONTRIBUTING.
from collections.abc import Iterator
from functools import lru_cache

from npzkit.files.source import Source
from npzkit.zip.records import (
    CENTRAL,
    CENTRAL_ENTRY_SIGNATURE,
    CENTRAL_ENTRY_SIZE,
    CREATE_SYSTEM_UNIX,
    DOS_DATE_1980,
    VERSION_DEFAULT,
)

PIECE_SIZE = 65_000
"""The most bytes of data in a piece."""
_NAME = b".npzkit"
_BLOCK_ID = 0x5A4E
_MARK = _NAME + _BLOCK_ID.to_bytes(2, "little")
HEAD_SIZE = CENTRAL_ENTRY_SIZE + len(_MARK) + 2
"""Bytes of a piece before its data."""


def format_piece(data: bytes | bytearray) -> bytes:
    """Format a piece with this data."""
    return b"".join((_format_head(len(data)), data))


@lru_cache(64)
def _format_head(size: int) -> bytes:
    entry = CENTRAL.pack(
        CENTRAL_ENTRY_SIGNATURE, CREATE_SYSTEM_UNIX | VERSION_DEFAULT, VERSION_DEFAULT, 0, 0, 0,
        DOS_DATE_1980, 0, 0, 0, len(_NAME), size + 4, 0, 0, 0, 0, 0,
    )  # fmt: skip
    return b"".join((entry, _MARK, size.to_bytes(2, "little")))


def is_named(data: bytes) -> bool:
    """Return whether bytes have the name of a piece where one has it."""
    return data.startswith(_NAME, CENTRAL_ENTRY_SIZE)


def may_begin_piece(head: bytes) -> bool:
    """Return whether a piece, of which the end may be missing or zeros, begins with these bytes."""
    name = head[CENTRAL_ENTRY_SIZE:][: len(_NAME)].rstrip(b"\0")
    return head.startswith(CENTRAL_ENTRY_SIGNATURE) and _NAME.startswith(name)


def piece_size(head: bytes) -> int:
    """Return the bytes of the piece that begins with these; 0 if they begin none."""
    size = int.from_bytes(head[HEAD_SIZE - 2 : HEAD_SIZE], "little")
    is_piece = size <= PIECE_SIZE and head[:HEAD_SIZE] == _format_head(size)
    return HEAD_SIZE + size if is_piece else 0


class RecordWriter:
    """Pieces that are written one behind the other.

    Parameters
    ----------
    start : int
        Where the first one is put, from the archive's start.
    """

    def __init__(self, start: int) -> None:
        self._pieces: list[bytes] = []
        self._data = bytearray()
        # Where the data of the piece begins that is being filled.
        self._place = start + HEAD_SIZE

    def put(self, data: bytes) -> int:
        """Add bytes, and return where they begin in the archive."""
        if self._data and len(self._data) + len(data) > PIECE_SIZE:
            self._end_piece(len(self._data))
        offset = self._place + len(self._data)
        self._data += data
        while len(self._data) > PIECE_SIZE:
            self._end_piece(PIECE_SIZE)
        return offset

    def _end_piece(self, size: int) -> None:
        self._pieces.append(format_piece(self._data[:size]))
        del self._data[:size]
        self._place += size + HEAD_SIZE

    @property
    def end(self) -> int:
        """Where the last piece ends in the archive."""
        return self._place + len(self._data)

    def format(self) -> bytes:
        """Return the bytes of all pieces."""
        return b"".join([*self._pieces, format_piece(self._data)])


def extent(size: int) -> int:
    """Return the bytes from where some begin in a record to where they end."""
    return size + HEAD_SIZE * max((size - 1) // PIECE_SIZE, 0)


def read_bytes(source: Source, offset: int, size: int) -> bytes:
    """Return bytes that were put in a record at `offset`; not checked."""
    data = source.read_at(offset, extent(size))
    step = PIECE_SIZE + HEAD_SIZE
    if len(data) <= PIECE_SIZE:
        return data
    return b"".join(data[start : start + PIECE_SIZE] for start in range(0, len(data), step))


def places_of(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield where bytes lie that were put in a record at `offset`, and those that lie there."""
    for start in range(0, len(data), PIECE_SIZE):
        yield offset + extent(start + 1) - 1, data[start : start + PIECE_SIZE]


def find_last(data: bytes) -> int:
    """Return where the last piece begins in some bytes, by its head; -1 if none does."""
    place = data.rfind(_MARK)
    return place - CENTRAL_ENTRY_SIZE if place >= CENTRAL_ENTRY_SIZE else -1
