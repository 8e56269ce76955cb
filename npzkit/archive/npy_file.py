"""A .npy file as an archive of the arrays that `numpy.save` wrote to it.

Owns what takes the place of a directory and of local headers: each array is a stored member, whose
bytes lie in the file as they are. No checksum of them is known, so none is compared, and none is
shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.opened_archive import OpenedArchive
from npzkit.codecs.coding import STORED
from npzkit.errors import DAMAGED, SAVE_PARTIAL, Advice, NotMappableError, NpzkitError
from npzkit.files.source import Source, SourceFile
from npzkit.format.array import read_header
from npzkit.format.header import CUT_HEADER_REMEDY, MAGIC_PREFIX, NpyHeader
from npzkit.limits import Limits
from npzkit.members.keys import SUFFIX
from npzkit.reading.member import MemberReader
from npzkit.reading.member_headers import BYTES_FOLLOW
from npzkit.zip.chunks import Chunks, open_chunks
from npzkit.zip.directory import Directory, check_member_count
from npzkit.zip.entries import Entry, Rows
from npzkit.zip.local_header import check_entry
from npzkit.zip.member_stream import MemberStream
from npzkit.zip.records import FLAG_DESCRIPTOR

if TYPE_CHECKING:
    from npzkit.maintenance.findings import VerifyReport
    from npzkit.members.array_info import ArrayInfo
    from npzkit.typing import MmapMode, Progress

_ARRAY_COUNT = 10_000
"""Arrays of a file that are looked for, one after the other: each takes 50 microseconds."""
_NO_NAME = "arr_0"
"""The key of an array in a file without a path, as in `numpy.savez`."""
_NO_CHECKSUM = (
    "a .npy file has no checksum: its header and its size were checked, but its data cannot be"
)
_LEAVE_OUT = "Save the array without them: " + SAVE_PARTIAL + "."
_TO_HAVE_ONE = "Archives have them: " + Advice("npzkit.pack", "npzkit pack NEW.npz FILE") + "."


class NpyFile(NpzFile):
    """An open .npy file. Its `info` has None as `crc32`."""

    @staticmethod
    def _open_archive(
        file: Any, own_fid: bool, options: dict[str, Any], storage_options: Mapping[str, Any] | None
    ) -> OpenedArchive:
        return NpyContents(file, own_fid, options, storage_options)


class NpyContents(OpenedArchive):
    """The arrays of a .npy file, in the place of those of an archive."""

    has_checksums = False

    def _read_directory(self, source: Source, *, strict: bool, limits: Limits) -> Directory:
        """Return a directory that is in no file, with a member for each array."""
        most = min(limits.member_count or _ARRAY_COUNT, _ARRAY_COUNT)
        begins = list(islice(_begins(source, limits.header_size), most + 1))
        check_member_count(len(begins), Limits(member_count=most))
        stem = _NO_NAME if source.path is None else os.path.basename(source.path)
        entries = Rows()
        for number, (begin, end) in enumerate(pairwise([*begins, source.size])):
            key = os.path.splitext(stem)[0] + f".{number}" * (len(begins) > 1)
            fields = FLAG_DESCRIPTOR, STORED, 0, end - begin, end - begin, begin, 0, b"", end
            entries[key + SUFFIX] = Entry(key + SUFFIX, os.fsencode(key + SUFFIX), *fields)
        return Directory(entries, b"", source.size, source.size, b"", begins, 0)

    def rename(self, key: str) -> None:
        """Give the only array another key, before it is read."""
        name, (entry,) = key + SUFFIX, self.directory.entries.values()
        entries = Rows({name: entry._replace(name=name)})
        self.directory = self.directory._replace(entries=entries)

    def _kind_of_reader(self) -> type[MemberReader]:
        return NpyReader

    def check_unchanged(self) -> None:
        # No directory says that the arrays are the same in a file with another time.
        self.source.check_unchanged()

    def read_info(self, key: str) -> ArrayInfo:
        unknown: Any = None
        return super().read_info(key)._replace(crc32=unknown, checked_parts=False)

    def memmap(self, key: str, mode: MmapMode) -> np.memmap[Any, Any]:
        if mode == "r+":
            # A flush would write CRC-32s into the file.
            raise NotMappableError("a .npy file cannot be changed", path=self.path, key=key)
        return super().memmap(key, mode)

    def verify(
        self, keys: list[str] | None, progress: Progress | None, threads: int
    ) -> VerifyReport:
        from npzkit.files.progress import Meter
        from npzkit.maintenance.findings import Finding, VerifyReport
        from npzkit.maintenance.verify_rules import member_findings

        meter = Meter(progress, self.nbytes)
        found: list[Finding] = []
        wanted = self.keys if keys is None else keys
        for key in wanted:
            entry, index = self.entry(key), self.read_index()
            remedy = self._remedy(key)
            for row in member_findings(self.reader, key, entry, index, threads, meter):
                found.append(row._replace(remedy=remedy) if row.severity == "error" else row)
        meter.finish()
        is_bad = any(row.severity == "error" for row in found)
        rows = [Finding(None, "warning", _NO_CHECKSUM, remedy=None if is_bad else _TO_HAVE_ONE)]
        rows += found
        return VerifyReport(self.path, tuple(rows), 0, 0, unchecked_count=len(self))

    def _remedy(self, key: str) -> str | None:
        """Return what to do about an array that cannot be read."""
        try:
            self.info(key)
        except NpzkitError as error:
            return self.explain(error, key).remedy
        return None

    def explain(self, error: NpzkitError, key: str | None) -> NpzkitError:
        # Unlike of a member, its rows can be saved.
        is_cut = error.remedy == DAMAGED and error.what.startswith("EOF")
        if is_cut or error.what == BYTES_FOLLOW:
            header = _header_at(self.source, error.offset or 0, self.reader.header_limit)
            if is_cut:
                error.remedy = header.cut_remedy if header else CUT_HEADER_REMEDY
            elif header and header.row_size:
                error.remedy = _LEAVE_OUT
        return super().explain(error, key)


class NpyReader(MemberReader):
    """Reads members without local headers.

    Their flag says that nothing before the data describes it, so that fast ways leave them to
    these calls.
    """

    has_checksums = False

    def open_stream(self, entry: Entry, *, verify: bool = True) -> MemberStream:
        check_entry(entry, self.size_limit)
        source = self.ahead([entry], at_once=False).source
        return MemberStream(source, entry, entry.header_offset, verify=False)

    def _open_chunks(self, entry: Entry, verify: bool, checked: bool) -> Chunks:
        return open_chunks(self.source, entry, entry.header_offset, verify=False)


def _begins(source: Source, limit: int | None) -> Iterator[int]:
    """Yield where each array begins; behind the last one that can be told, the rest is its own."""
    begin: int | None = 0
    while begin is not None:
        yield begin
        begin = _end_before_another(source, begin, limit)


def _end_before_another(source: Source, begin: int, limit: int | None) -> int | None:
    """Return where an array ends if another one follows it; None if that is not known."""
    header = _header_at(source, begin, limit)
    if header is None:
        # Who reads the array gets the error.
        return None
    end = begin + header.data_offset + header.nbytes
    is_followed = source.read_within(end, len(MAGIC_PREFIX)) == MAGIC_PREFIX
    return end if is_followed and not header.dtype.hasobject else None


def _header_at(source: Source, begin: int, limit: int | None) -> NpyHeader | None:
    """Return the header of the array that begins somewhere; None if it cannot be read."""
    stream = SourceFile(source, source.size)
    stream.seek(begin)
    try:
        return read_header(stream, limit)
    except NpzkitError:
        return None
