"""Checking an archive that is read from front to back.

Owns the order: each member's data when it comes, everything else once the
directory is known. The checks are those of `npzkit.maintenance.verify`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from npzkit.errors import NoDataError, NpzkitError
from npzkit.files.progress import Report
from npzkit.format.header import NpyHeader
from npzkit.limits import Limits
from npzkit.maintenance.findings import (
    Finding,
    VerifyReport,
    archive_findings,
    finding,
    header_findings,
    unused_index,
    wanted_entries,
)
from npzkit.members.keys import SUFFIX
from npzkit.reading.indexed_headers import IndexedHeaders, read_indexed_headers
from npzkit.reading.member_headers import check_nbytes
from npzkit.reading.streaming import StreamedArchive, entries_by_key
from npzkit.zip.entries import Entry, accepting_name, name_error
from npzkit.zip.forward import ForwardMember
from npzkit.zip.member_checks import data_offset
from npzkit.zip.records import FLAG_DESCRIPTOR


class _Checked(NamedTuple):
    """What was found of a member when its data came."""

    header: NpyHeader | None
    error: NpzkitError | None


def verify_stream(
    stream: Any, limits: Limits, keys: Sequence[str] | None, progress: Report | None
) -> VerifyReport:
    """Check an archive in a stream, which is read to its end; see `npzkit.verify`."""
    archive = StreamedArchive(stream, limits, keeps_hidden=True)
    checked: dict[int, _Checked] = {}
    try:
        for _, member in archive:
            found = _check(archive, member)
            if isinstance(found.error, NoDataError):
                break
            checked[member.entry.header_offset] = found
            _tell(progress, archive)
        directory = archive.read_directory(silent=True)
    except NpzkitError as error:
        key = None if error.key is None else error.key.removesuffix(SUFFIX)
        return VerifyReport(archive.path, (finding(key, error),), 0, 0)
    listed = entries_by_key(directory)
    wanted = wanted_entries(keys, listed, directory, archive.path)
    source = archive.source
    rows = (
        list(archive_findings(source, directory, listed, limits.metadata_size))
        if keys is None
        else []
    )
    indexed = read_indexed_headers(source, directory, limits.header_size, None)
    for key, entry in wanted.items():
        rows += _member_findings(archive, key, entry, checked.get(entry.header_offset), indexed)
    _tell(progress, archive)
    size = sum(entry.uncompressed_size for entry in wanted.values())
    torn_size = source.size - directory.end_offset if keys is None else 0
    return VerifyReport(archive.path, tuple(rows), len(wanted), size, torn_size)


def _tell(progress: Report | None, archive: StreamedArchive) -> None:
    if progress is not None:
        progress(archive.source.offset, archive.source.offset)


def _check(archive: StreamedArchive, member: ForwardMember) -> _Checked:
    """Read all data of the member that comes next."""
    header = None
    try:
        header = archive.read_header(member)
        archive.check_rest(member)
    except NpzkitError as error:
        return _Checked(header, error)
    return _Checked(header, None)


def _member_findings(
    archive: StreamedArchive,
    key: str,
    entry: Entry,
    checked: _Checked | None,
    indexed: IndexedHeaders | None,
) -> Iterator[Finding]:
    """Return all findings on a listed member."""
    bad_name = name_error(entry)
    if bad_name is not None:
        yield finding(key, bad_name)
        entry = accepting_name(entry)
    header, error = checked or _Checked(None, None)
    try:
        if error is None:
            archive.check(entry)
        # What follows damaged data was not compared.
        if error is None or not entry.flags & FLAG_DESCRIPTOR:
            yield from _header_findings(archive, key, entry, header, indexed)
    except NpzkitError as fault:
        yield finding(key, fault, entry.header_offset)
    if error is not None:
        yield finding(key, error, entry.header_offset)


def _header_findings(
    archive: StreamedArchive,
    key: str,
    entry: Entry,
    header: NpyHeader | None,
    indexed: IndexedHeaders | None,
) -> Iterator[Finding]:
    """Check the size of a member's array, and return what its headers say."""
    if header is not None:
        check_nbytes(header, entry)
    start = data_offset(archive.source, entry)
    yield from header_findings(archive.source, key, entry, header, start, indexed)
    yield from unused_index(archive.source, key, entry, start)
