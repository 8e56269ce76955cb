"""The array index of an archive that is open: read once, when somebody lists the archive.

Owns when it is read, and that what it says is compared with each array that is
read. `npzkit.reading.indexed_headers` decides what of it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from npzkit.codecs.methods import STORED
from npzkit.format.header import NpyHeader
from npzkit.members.info import ArrayInfo
from npzkit.reading.indexed_headers import IndexedHeaders, index_disagrees, read_indexed_headers
from npzkit.reading.member import MemberReader
from npzkit.zip.directory import Directory
from npzkit.zip.entries import Entry

_ASKED_COUNT = 8
"""The most members that are described one by one before all are described at once."""
_PRICE = 50
"""How many are described at once in the time of one."""
_FEW_COUNT = 10
"""Members whose headers are fetched together when the first one is described: no more
requests than may be under way at once, so the others cost no time."""


class OpenedIndex:
    """What the array index says of the members of an archive.

    Parameters
    ----------
    reader : MemberReader

    Attributes
    ----------
    is_read : bool
        Nothing is known before `read` was called.
    infos : dict of str to ArrayInfo
        By key; empty until many members were asked for.
    """

    def __init__(self, reader: MemberReader) -> None:
        self._reader = reader
        self.is_read = False
        self._headers: IndexedHeaders | None = None
        self._entries: Mapping[str, Entry] = {}
        self._asked = 0
        # Members whose own headers were found to be what the index says.
        self._proven: set[str] = set()
        self.infos: dict[str, ArrayInfo] = {}

    def read(self, directory: Directory) -> None:
        """Read the index in front of a directory, unless there is none that can be believed."""
        reader = self._reader
        self._headers = read_indexed_headers(
            reader.source, directory, reader.header_limit, reader.size_limit
        )
        self._entries = directory.entries
        self.is_read = True

    def forget(self) -> None:
        """Drop what was read: the archive is closed, or its directory changed."""
        self.is_read, self._headers, self.infos = False, None, {}

    def find(self, entry: Entry) -> NpyHeader | None:
        """Return the NPY header of a member; None if its own has to be read."""
        return None if self._headers is None else self._headers.find(entry.name)

    def data_start(self, entry: Entry) -> int | None:
        """Return where a stored member's data begins in the file; None if that is not known."""
        header = self.find(entry)
        if header is None or self._headers is None or entry.method != STORED:
            return None
        info = self._headers.describe(entry.name, entry)
        start = 0 if info is None else info.data_offset - header.data_offset
        return start if 0 < start <= entry.end_offset - entry.compressed_size else None

    def describe(self, key: str, entry: Entry, keys: list[str]) -> ArrayInfo | None:
        """Return what is known of a member; None if its own headers have to be read.

        Parameters
        ----------
        key : str
            Under which the member is listed.
        entry : Entry
        keys : list of str
            Of all members.
        """
        self._asked += 1
        if self._headers is None:
            is_few = len(self._entries) <= _FEW_COUNT
            if self._asked == (1 if is_few else _ASKED_COUNT + 1):
                self._reader.foresee(self._entries.values())
            return None
        if self._asked > min(_ASKED_COUNT, 1 + len(keys) // _PRICE):
            self.describe_all(keys)
        return self._headers.describe(key, entry)

    def describe_all(self, keys: list[str]) -> None:
        """Fill `infos`: whoever asks for many members asks for all."""
        if self._headers is not None and not self.infos:
            self.infos = self._headers.describe_all(keys)

    def check_header(self, entry: Entry) -> None:
        """Compare a member's own header with what was said of it, once.

        Raises
        ------
        ZipFormatError
            They differ.
        """
        known = None if self._headers is None else self._headers.find(entry.name)
        if known is None or entry.name in self._proven:
            return
        header, _ = self._reader.header(entry)
        if header != known:
            raise index_disagrees(known, header and f"{header.shape} {header.dtype}")
        self._proven.add(entry.name)

    def check_arrays(self, names: Iterable[str], arrays: Iterable[Any]) -> None:
        """Compare arrays that were read with what was said of them; raises `ZipFormatError`."""
        if self._headers is not None:
            for name, array in zip(names, arrays, strict=True):
                self._headers.check(name, array)
