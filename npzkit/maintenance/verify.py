"""Checking an archive against every rule, and reporting what is wrong.

Owns the list of checks, their severities, and the report. The rules themselves
are in the modules that read archives: `npzkit.zip` and `npzkit.reading.member`
raise errors, which become rows here. Nothing is unpickled, and only some
megabytes of an array are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from npzkit.codecs.checksum import crc32_combine
from npzkit.codecs.methods import DEFLATED, STORED
from npzkit.errors import (
    ChecksumError,
    ClosedArchiveError,
    FormatError,
    NpyFormatError,
    NpzkitError,
    StaleArchiveError,
    UnsafeNameError,
    printable,
    shown_key,
)
from npzkit.files.block_reading import BLOCK_SIZE, crc32_at
from npzkit.files.progress import Advance, Meter, Report
from npzkit.files.source import UNNAMED, SeekingSource, Source, is_archive, open_source
from npzkit.files.threads import Pipeline, run, thread_count
from npzkit.limits import Limits
from npzkit.members.amounts import format_count
from npzkit.members.info import describe
from npzkit.members.keys import (
    SUFFIX,
    check_key,
    check_several,
    find_collisions,
    keys_of,
    member_of,
    missing,
)
from npzkit.members.metadata import parse_attrs
from npzkit.reading.indexed_headers import IndexedHeaders, index_disagrees, read_indexed_headers
from npzkit.reading.member import MemberReader
from npzkit.zip.chunks import Chunks
from npzkit.zip.crc_update import find_unsealed
from npzkit.zip.dead_bytes import dead_size
from npzkit.zip.directory import Directory, read_directory
from npzkit.zip.entries import BAD_NAME, Entry, accepting_name, name_error
from npzkit.zip.entry_records import repeated_names
from npzkit.zip.layout import ALIGNMENT
from npzkit.zip.member_checks import check_crc32, check_entry, data_offset
from npzkit.zip.member_stream import MemberStream
from npzkit.zip.sozip import SeekIndex, find_index, has_index_member

__all__ = [
    "Finding",
    "VerifyReport",
    "has_wrong_index",
    "member_error",
    "read_size",
    "verify",
    "verify_source",
]

_STEP_SIZE = 1 << 18
_PEEK_SIZE = 1 << 20
"""Smallest member for which progress takes into account whether it is read twice."""


class Finding(NamedTuple):
    """One row of a report.

    Attributes
    ----------
    key : str or None
        The array key; None if the row is about the archive.
    severity : {"error", "warning", "note"}
        An error means that data cannot be read or trusted. A warning is about
        something that ``strict=True`` refuses, or that may confuse other
        programs. A note is about speed, space, or an option to read the array.
    what : str
        The finding, in one sentence without a full stop.
    where : int or None
        Bytes from the start of the file.
    """

    key: str | None
    severity: str
    what: str
    where: int | None = None


class VerifyReport(NamedTuple):
    """The report of `verify`.

    Attributes
    ----------
    path : str or None
    rows : tuple of Finding
        The findings about the archive, then those about the members in order.
    member_count : int
        Members that were checked.
    size : int
        Their uncompressed bytes.
    torn_size : int
        Bytes after the last commit, such as an unfinished append. 0 if only
        some members were checked.
    """

    path: str | None
    rows: tuple[Finding, ...]
    member_count: int
    size: int
    torn_size: int = 0

    @property
    def ok(self) -> bool:
        """Whether the archive has no error, so that all data can be read and trusted.

        An unfinished append is not an error, see `torn_size`.
        """
        return not any(row.severity == "error" for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict that JSON can represent."""
        return {
            "path": self.path,
            "ok": self.ok,
            "member_count": self.member_count,
            "size": self.size,
            "torn_size": self.torn_size,
            "rows": [row._asdict() for row in self.rows],
        }

    def to_json(self, **options: Any) -> str:
        """Return the report as JSON; `options` are those of `json.dumps`."""
        import json

        return json.dumps(self.as_dict(), **options)

    def __str__(self) -> str:
        """Return the rows as a table, followed by the verdict."""
        table = [
            (
                row.severity,
                "-" if row.key is None else shown_key(row.key),
                "" if row.where is None else str(row.where),
                printable(row.what),
            )
            for row in self.rows
        ]
        lines = []
        if table:
            table.insert(0, ("severity", "key", "at byte", "what"))
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            lines = [
                f"{severity:<{widths[0]}}  {key:<{widths[1]}}  {where:>{widths[2]}}  {what}"
                for severity, key, where, what in table
            ]
        lines.append(f"{printable(self.path or 'archive')}: {self.verdict}")
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """The result in one line: whether the archive is sound, and counts of findings."""
        counts = {name: sum(row.severity == name for row in self.rows) for name in _SEVERITIES}
        parts = [format_count(self.member_count, "member")]
        parts += [format_count(count, name) for name, count in counts.items() if count]
        state = "NOT sound" if not self.ok else "torn" if self.torn_size else "sound"
        return f"{state}, {', '.join(parts)}"


_SEVERITIES = ("error", "warning", "note")


def verify(
    file: Any,
    keys: Sequence[str] | None = None,
    progress: Report | None = None,
    *,
    threads: int | None = None,
    limits: Limits | None = None,
) -> VerifyReport:
    """Check an archive against every rule, without stopping at the first fault.

    These are checked:

    - the end records and the directory
    - overlaps and gaps between members
    - each local header against its directory entry
    - the header of each array against the size of the member
    - all data against its CRC-32
    - seek indexes, by reading with them
    - names that cannot be extracted safely
    - alignment, and which members contain Python objects

    Parameters
    ----------
    file : path, bytes-like, file object or NpzFile
    keys : sequence of str, optional
        Members to check; all by default.
    progress : callable, optional
        Called with the uncompressed bytes done and the total, in this thread,
        every few megabytes and at the end.
    threads : int, optional
        Number of threads; None uses all processors.
    limits : Limits, optional
        Limits to check the archive against. The default is those of an
        `NpzFile`, or ``Limits()``.

    Returns
    -------
    VerifyReport
        If the file is not an archive, the report has one row that says so.

    Raises
    ------
    OSError
        The file cannot be read.
    MemberNotFoundError
        One of `keys` is not found.
    TypeError
        `keys` is a string.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"w": np.arange(1000.0), "b": np.zeros(3)})
    >>> npzkit.verify(stream).ok
    True
    >>> data = bytearray(stream.getvalue())
    >>> data[5000] ^= 1
    >>> print(npzkit.verify(data))  # doctest: +ELLIPSIS
    severity  key  at byte  what
    error     w         64  the data is damaged: its CRC-32 differs: found ...
    archive: NOT sound, 2 members, 1 error
    """
    if limits is None and is_archive(file):
        report: VerifyReport = file.verify(keys, progress, threads=threads)
        return report
    check_several(keys)
    bounds = Limits() if limits is None else limits
    count = thread_count(threads)
    source = open_source(file)
    name = None if source.name == UNNAMED else source.name
    try:
        starts = sorted({0, source.position})
        try:
            directory = read_directory(source, starts=starts, silent=True, limits=bounds)
        except NpzkitError as error:
            # The directory has member names instead of keys.
            key = None if error.key is None else error.key.removesuffix(SUFFIX)
            return VerifyReport(name, (_finding(key, error),), 0, 0)
        return verify_source(source, directory, bounds, keys, progress, count)
    finally:
        if isinstance(source, SeekingSource):
            # The archive may begin at this position, where the next reader looks for it.
            source.file.seek(source.position)
        source.close()


def verify_source(
    source: Source,
    directory: Directory,
    limits: Limits,
    keys: Sequence[str] | None,
    progress: Report | None,
    threads: int,
) -> VerifyReport:
    """Check the members of an open archive against every rule; see `verify`."""
    path = None if source.name == UNNAMED else source.name
    listed = dict(zip(keys_of(directory.entries.keys()), directory.entries.values(), strict=True))
    wanted: Mapping[str, Entry] = listed
    if keys is not None:
        wanted = {key: _entry_of(key, listed, directory, path) for key in keys}
    reader = MemberReader(source, limits, allow_pickle=False, pickle_kwargs=None)
    rows = list(_archive_findings(source, directory, listed)) if keys is None else []
    indexed = read_indexed_headers(source, directory, limits.header_size, None)
    total = sum(entry.uncompressed_size for entry in wanted.values())
    meter = Meter(progress, total)
    with Pipeline(threads, None if progress is None else meter.report) as pipeline:
        for key, entry in wanted.items():
            if entry.compressed_size > BLOCK_SIZE:
                # Its blocks or chunks are divided among the threads.
                pipeline.drain()
                rows += _member_findings(reader, key, entry, indexed, threads, meter)
            else:
                task = partial(_member_findings, reader, key, entry, indexed, 1, meter)
                pipeline.submit(task, rows.extend)
    meter.finish()
    torn_size = max(source.file_size - directory.end_offset, 0) if keys is None else 0
    return VerifyReport(path, tuple(rows), len(wanted), total, torn_size)


def _entry_of(
    key: str, listed: Mapping[str, Entry], directory: Directory, path: str | None
) -> Entry:
    name = member_of(key, directory.entries)
    if name is None:
        raise missing(key, list(listed), path)
    return directory.entries[name]


def _finding(key: str | None, error: NpzkitError, header_offset: int | None = None) -> Finding:
    """Return an error as a row. The row has its own columns for key and offset."""
    if isinstance(error, ClosedArchiveError):
        # This is not about the file.
        raise error
    where = error.offset
    if where is None or isinstance(error, NpyFormatError):
        # Offsets of NPY errors are relative to the array.
        where = header_offset
    text = error.what
    values = [
        f"{name} {error.shown(value)}"
        for name, value in (("found", error.found), ("expected", error.expected))
        if value is not None
    ]
    if values:
        text += ": " + ", ".join(values)
    return Finding(key, "error", text, where)


# -- the archive -----------------------------------------------------------


def _archive_findings(
    source: Source, directory: Directory, listed: Mapping[str, Entry]
) -> Iterator[Finding]:
    torn = source.file_size - directory.end_offset
    if torn > 0:
        yield Finding(
            None, "warning", f"{format_count(torn, 'byte')} after the last commit: an unfinished "
            "append, or other data", directory.end_offset,
        )  # fmt: skip
    try:
        directory.read_comment(source)
    except NpzkitError as error:
        yield _finding(None, error)
    dead = dead_size(source, directory)
    if dead:
        what = f"{format_count(dead, 'byte')} of dead space, which no member uses"
        yield Finding(None, "note", what)
    repeated = repeated_names(source, directory)
    collisions = dict(find_collisions(entry.name for entry in listed.values()))
    for key, entry in listed.items():
        if entry.name in repeated:
            what = f"{repeated[entry.name]} entries have this name; the last one is used"
            yield Finding(key, "warning", what, entry.header_offset)
        yield from _name_findings(key, entry, collisions.get(entry.name))


def _name_findings(key: str, entry: Entry, other: str | None) -> Iterator[Finding]:
    try:
        if not entry.flags & BAD_NAME:
            check_key(key.removesuffix(SUFFIX).removesuffix("/"))
    except UnsafeNameError as error:
        what = error.what.replace("cannot be saved", "is not safe to extract")
        yield Finding(key, "warning", what, entry.header_offset)
    if other is not None:
        what = (
            f"it conflicts with {shown_key(other)} when extracted: both are the same file on "
            "some systems, or one is a folder in the path of the other"
        )
        yield Finding(key, "warning", what, entry.header_offset)


# -- a member --------------------------------------------------------------


def _member_findings(
    reader: MemberReader,
    key: str,
    entry: Entry,
    indexed: IndexedHeaders | None,
    threads: int,
    meter: Meter,
) -> list[Finding]:
    """Check one member, and return all findings."""
    rows: list[Finding] = []
    bad_name = name_error(entry)
    if bad_name is not None:
        rows.append(_finding(key, bad_name))
        entry = accepting_name(entry)
    part = meter.part(entry.uncompressed_size, read_size(reader.source, entry))
    try:
        rows.extend(_header_findings(reader, key, entry, indexed))
    except NpzkitError as error:
        rows.append(_finding(key, error, entry.header_offset))
        if isinstance(error, StaleArchiveError):
            part.end()
            return rows
    try:
        check_entry(entry, reader.size_limit)
        start = data_offset(reader.source, entry)
        _check_data(reader.source, entry, start, threads, part.add)
        rows.extend(_index_findings(reader.source, key, entry, start, threads, part.add))
    except NpzkitError as error:
        found = _finding(key, error, entry.header_offset)
        unsealed = (
            find_unsealed(reader.source, entry, threads)
            if isinstance(error, ChecksumError)
            else None
        )
        if unsealed is not None:
            found = found._replace(what=f"{found.what}; {unsealed}")
        if found not in rows:
            rows.append(found)
    part.end()
    return rows


def read_size(source: Source, entry: Entry) -> int:
    """Return the uncompressed bytes that checking a member reads.

    A member with a seek index is read twice. This ignores the seek indexes of
    small members.
    """
    size = entry.uncompressed_size
    if entry.method != DEFLATED or size < _PEEK_SIZE:
        return size
    try:
        return size if find_index(source, entry, data_offset(source, entry)) is None else 2 * size
    except NpzkitError:
        return size


def member_error(
    reader: MemberReader, entry: Entry, threads: int, advance: Advance | None = None
) -> str | None:
    """Return why a member cannot be read or trusted, or None if it can.

    `advance` is called with the uncompressed bytes of each read.
    """
    try:
        reader.find_header(entry)
        check_entry(entry, reader.size_limit)
        start = data_offset(reader.source, entry)
        _check_data(reader.source, entry, start, threads, advance)
    except NpzkitError as error:
        return _finding(None, error).what
    return None


def _header_findings(
    reader: MemberReader, key: str, entry: Entry, indexed: IndexedHeaders | None
) -> Iterator[Finding]:
    """Check the headers of the member and the array, and the attributes."""
    header, start = reader.find_header(entry)
    known = None if indexed is None else indexed.describe(key, entry)
    if known is not None and header is not None:
        has_index = find_index(reader.source, entry, start) is not None
        found = describe(key, entry, header, start, parse_attrs(entry.extra), indexed=has_index)
        if found != known or (indexed is not None and header != indexed.find(entry.name)):
            disagrees = index_disagrees(header, f"{known.shape} {known.dtype}")
            yield _finding(key, disagrees, entry.header_offset)
    parse_attrs(entry.extra)
    if header is None:
        return
    if header.python2:
        what = "Python 2 wrote its header, which is slow to read and gives a warning; save it again"
        yield Finding(key, "warning", what, start)
    offset = start + header.data_offset
    if header.dtype.hasobject:
        what = "it contains Python objects: reading it needs allow_pickle=True"
        yield Finding(key, "note", what, start)
    elif entry.method == STORED and offset % ALIGNMENT:
        what = f"its data is not aligned to {ALIGNMENT} bytes; npzkit.repack aligns it"
        yield Finding(key, "note", what, offset)


def _check_data(
    source: Source, entry: Entry, start: int, threads: int, advance: Advance | None
) -> None:
    """Read all data of a member, and raise an error if it does not match its entry."""
    if entry.method == STORED:
        crc = crc32_at(source, start, entry.compressed_size, threads, advance)
        check_crc32(crc, entry, start)
        return
    stream = MemberStream(source, entry, start)
    buffer = memoryview(bytearray(min(_STEP_SIZE, entry.uncompressed_size)))
    while stream.tell() < entry.uncompressed_size:
        step = buffer[: entry.uncompressed_size - stream.tell()]
        stream.read_exactly(step)
        if advance is not None:
            advance(len(step))
    stream.finish()


def _index_findings(
    source: Source, key: str, entry: Entry, start: int, threads: int, advance: Advance
) -> Iterator[Finding]:
    """Read a member again with its seek index, if it has one."""
    if entry.method != DEFLATED:
        return
    index = find_index(source, entry, start)
    end = start + entry.compressed_size
    if index is not None:
        if not _is_right(source, entry, start, index, threads, advance):
            what = "its seek index leads to wrong data, so parts of the array may be wrong"
            yield Finding(key, "error", what, end)
    elif has_index_member(source, entry, start):
        yield Finding(key, "warning", "its seek index does not match it and is not used", end)


def _is_right(
    source: Source,
    entry: Entry,
    start: int,
    index: SeekIndex,
    threads: int,
    advance: Advance | None = None,
) -> bool:
    """Return whether the chunks of a seek index have the data of the member."""
    chunks = Chunks(source, start, index)
    crc = 0
    try:
        # The output has no room, so no bytes are kept.
        tasks = chunks.whole_tasks(chunks.size, memoryview(bytearray()), threads)
        if advance is not None:
            tasks = [partial(_counted, task, advance) for task in tasks]
        for found in run(tasks, threads):
            crc = crc32_combine(crc, *found)
    except FormatError:
        return False
    return crc == entry.crc32


def _counted(task: Callable[[], tuple[int, int]], advance: Advance) -> tuple[int, int]:
    crc, size = task()
    advance(size)
    return crc, size


def has_wrong_index(
    source: Source, entry: Entry, threads: int, advance: Advance | None = None
) -> bool:
    """Return whether the seek index of a sound member leads to wrong data."""
    start = data_offset(source, entry)
    index = find_index(source, entry, start)
    return index is not None and not _is_right(source, entry, start, index, threads, advance)
