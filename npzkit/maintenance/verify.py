"""Checking an archive against every rule, and reporting what is wrong.

Owns the list of checks, their severities, and the report. The rules themselves
are in the modules that read archives: `npzkit.zip` and `npzkit.reading.member`
raise errors, which become rows here. Nothing is unpickled, and only some
megabytes of an array are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from npzkit.codecs.checksum import crc32_combine
from npzkit.codecs.methods import DEFLATED, STORED
from npzkit.errors import (
    ChecksumError,
    FormatError,
    NpzkitError,
    StaleArchiveError,
)
from npzkit.files.block_reading import TASK_SIZE, crc32_at
from npzkit.files.file_objects import UNNAMED, cannot_seek, is_archive
from npzkit.files.locations import open_anywhere
from npzkit.files.progress import Advance, Meter, Report
from npzkit.files.source import SeekingSource, Source
from npzkit.files.threads import Pipeline, run, thread_count
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
from npzkit.maintenance.verify_stream import verify_stream
from npzkit.members.keys import (
    SUFFIX,
    check_several,
)
from npzkit.reading.indexed_headers import IndexedHeaders, read_indexed_headers
from npzkit.reading.load_all import fetch_groups
from npzkit.reading.member import MemberReader
from npzkit.reading.streaming import entries_by_key
from npzkit.zip.chunks import Chunks
from npzkit.zip.crc_update import find_unsealed
from npzkit.zip.directory import Directory, read_directory
from npzkit.zip.entries import Entry, accepting_name, name_error
from npzkit.zip.member_checks import check_crc32, check_entry, data_offset
from npzkit.zip.member_stream import MemberStream
from npzkit.zip.sozip import SeekIndex, find_index

_STEP_SIZE = 1 << 18
_PEEK_SIZE = 1 << 20
"""Smallest member for which progress takes into account whether it is read twice."""


def verify(
    file: Any,
    keys: Sequence[str] | None = None,
    progress: Report | None = None,
    *,
    threads: int | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Check an archive in one file; the parameters are those of `npzkit.verify`."""
    if limits is None and is_archive(file):
        report: VerifyReport = file.verify(keys, progress, threads=threads)
        return report
    check_several(keys)
    bounds = Limits() if limits is None else limits
    count = thread_count(threads)
    if cannot_seek(file):
        return verify_stream(file, bounds, keys, progress)
    source = open_anywhere(file, storage_options=storage_options)
    name = None if source.name == UNNAMED else source.name
    try:
        starts = sorted({0, source.position})
        try:
            directory = read_directory(source, starts=starts, silent=True, limits=bounds)
        except NpzkitError as error:
            # The directory has member names instead of keys.
            key = None if error.key is None else error.key.removesuffix(SUFFIX)
            return VerifyReport(name, (finding(key, error),), 0, 0)
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
    listed = entries_by_key(directory)
    wanted = wanted_entries(keys, listed, directory, path)
    total = sum(entry.uncompressed_size for entry in wanted.values())
    meter = Meter(progress, total)
    # It may stop here: what follows takes seconds for a million members.
    meter.begin()
    reader = MemberReader(source, limits, allow_pickle=False, pickle_kwargs=None)
    rows = []
    if keys is None:
        bound = limits.metadata_size
        rows = list(archive_findings(source, directory, listed, bound, meter.begin))
    indexed = read_indexed_headers(source, directory, limits.header_size, None)
    with Pipeline(threads, None if progress is None else meter.report) as pipeline:

        def check(near: MemberReader, items: Iterable[tuple[str, Entry]]) -> None:
            for key, entry in items:
                if entry.compressed_size > TASK_SIZE:
                    # Its blocks or chunks are divided among the threads.
                    pipeline.drain()
                    rows.extend(_member_findings(near, key, entry, indexed, threads, meter))
                else:
                    task = partial(_member_findings, near, key, entry, indexed, 1, meter)
                    pipeline.submit(task, rows.extend)

        if source.is_distant:
            fetch_groups(reader, wanted.items(), check)
        else:
            check(reader, wanted.items())
    meter.finish()
    torn_size = max(source.file_size - directory.end_offset, 0) if keys is None else 0
    return VerifyReport(path, tuple(rows), len(wanted), total, torn_size)


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
        rows.append(finding(key, bad_name))
        entry = accepting_name(entry)
    part = meter.part(entry.uncompressed_size, read_size(reader.source, entry))
    try:
        header, start = reader.find_header(entry)
        rows.extend(header_findings(reader.source, key, entry, header, start, indexed))
    except NpzkitError as error:
        rows.append(finding(key, error, entry.header_offset))
        if isinstance(error, StaleArchiveError):
            part.end()
            return rows
    try:
        check_entry(entry, reader.size_limit)
        start = data_offset(reader.source, entry)
        _check_data(reader.source, entry, start, threads, part.add)
        rows.extend(_index_findings(reader.source, key, entry, start, threads, part.add))
    except NpzkitError as error:
        found = finding(key, error, entry.header_offset)
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
        return finding(None, error).what
    return None


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
    else:
        yield from unused_index(source, key, entry, start)


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
