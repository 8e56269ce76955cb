"""Checking an archive against every rule, and reporting what is wrong.

Owns the order of the checks, which `npzkit.maintenance.verify_rules` has. A stream that cannot
seek is copied to a temporary file first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from npzkit.errors import NpzkitError, StaleArchiveError
from npzkit.files.any_source import open_any_source
from npzkit.files.block_reading import TASK_SIZE
from npzkit.files.file_objects import cannot_seek, is_archive, known_name, seekable
from npzkit.files.progress import Meter
from npzkit.files.source import SeekingSource, Source
from npzkit.files.threads import Pipeline
from npzkit.limits import DEFAULT_LIMITS, Limits, thread_count
from npzkit.maintenance.findings import Finding, ForeignReport, VerifyReport
from npzkit.maintenance.salvage import find_uncommitted
from npzkit.maintenance.sound_members import find_sound
from npzkit.maintenance.verify_rules import archive_findings, member_findings
from npzkit.members.keys import (
    SUFFIX,
    check_not_foreign,
    check_several,
    keys_of,
    member_of,
    missing,
)
from npzkit.reading.known_arrays import KnownArrays
from npzkit.reading.load_all import fetch_groups
from npzkit.reading.member import MemberReader
from npzkit.reading.stream import entries_by_key
from npzkit.zip.directory import Directory, read_directory
from npzkit.zip.entries import Entry

if TYPE_CHECKING:
    from npzkit.typing import Progress


def verify(
    file: Any,
    keys: Sequence[str] | None = None,
    progress: Progress | None = None,
    *,
    threads: int | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Check an archive in one file; the parameters are those of `npzkit.verify`."""
    if limits is None and is_archive(file):
        return cast(VerifyReport, file.verify(keys, progress=progress, threads=threads))
    check_several(keys)
    bounds = DEFAULT_LIMITS if limits is None else limits
    count = thread_count(threads)
    if cannot_seek(file):
        with seekable(file, bounds.total_size) as copy:
            report = verify(copy, keys, progress, threads=threads, limits=limits)
        return report._replace(path=known_name(file))
    source = open_any_source(file, storage_options=storage_options)
    try:
        report = _verify(source, bounds, keys, progress, count)
        if is_archive(file) and not report.ok:
            # What was opened may have been written over since.
            source.check_unchanged()
        return report
    finally:
        if isinstance(source, SeekingSource):
            # The archive may begin at this position, where the next reader looks for it.
            source.file.seek(source.position)
        source.close()


def _verify(
    source: Source,
    limits: Limits,
    keys: Sequence[str] | None,
    progress: Progress | None,
    threads: int,
) -> VerifyReport:
    """Check an archive, also one whose directory is damaged."""
    starts = sorted({0, source.position})
    try:
        directory = read_directory(source, starts=starts, silent=True, limits=limits)
        check_not_foreign(directory.entries, None)
    except StaleArchiveError:
        raise
    except NpzkitError as error:
        # The directory has member names instead of keys.
        key = None if error.key is None else error.key.removesuffix(SUFFIX)
        found = Finding._of(key, error)._replace(remedy=error.remedy)
        kind = ForeignReport if error._is_foreign else VerifyReport
        return kind(source.shown_path, (found,), 0, 0)
    return verify_source(source, directory, limits, keys, progress, threads)


def verify_source(
    source: Source,
    directory: Directory,
    limits: Limits,
    keys: Sequence[str] | None,
    progress: Progress | None,
    threads: int,
) -> VerifyReport:
    """Check the members of an open archive against every rule; see `verify`."""
    path = source.shown_path
    wanted = _wanted_entries(keys, directory, path)
    total = sum(entry.uncompressed_size for entry in wanted.values())
    meter = Meter(progress, total)
    # It may stop here: what follows takes seconds for a million members.
    meter.begin()
    reader = MemberReader(source, limits, directory, allow_pickle=False, pickle_kwargs=None)
    rows: list[Finding] = []
    torn_size = 0
    if keys is None:
        if not source.is_being_written():
            torn_size = max(source.file_size - directory.end_offset, 0)
        left = find_uncommitted(
            source, limits, directory.end_offset, directory.end_offset + torn_size
        )
        rows += archive_findings(
            source, directory, wanted, limits.metadata_size, meter.begin, torn_size, left
        )
    rows += _members_findings(reader, directory, wanted, threads, meter)
    meter.finish()
    unchecked = len(directory.entries) - len(wanted)
    return VerifyReport(path, tuple(rows), len(wanted), total, torn_size, unchecked)


def _members_findings(
    reader: MemberReader,
    directory: Directory,
    wanted: Mapping[str, Entry],
    threads: int,
    meter: Meter,
) -> list[Finding]:
    """Return what is wrong with members, which are checked on several threads."""
    rows: list[Finding] = []
    indexed = KnownArrays(reader, directory)
    with Pipeline(threads, meter.report) as pipeline:

        def check(near: MemberReader, items: Iterable[tuple[str, Entry]]) -> None:
            for key, entry in items:
                if entry.compressed_size > TASK_SIZE:
                    # Its blocks or chunks are divided among the threads.
                    pipeline.drain()
                    rows.extend(member_findings(near, key, entry, indexed, threads, meter))
                else:
                    task = partial(member_findings, near, key, entry, indexed, 1, meter)
                    pipeline.submit(task, rows.extend)

        if reader.source.is_distant:
            fetch_groups(reader, wanted.items(), check)
        else:
            sound: set[str] = set()
            if directory.entries.columns is not None:
                sound = find_sound(reader, directory.entries.columns, wanted, meter.add)
            check(reader, (item for item in wanted.items() if item[0] not in sound))
    return rows


def _wanted_entries(
    keys: Sequence[str] | None, directory: Directory, path: str | None
) -> Mapping[str, Entry]:
    """Return the entries of `keys`, or all that are listed.

    Raises
    ------
    MemberNotFoundError
        A key is not found.
    """
    if keys is None:
        return entries_by_key(directory)
    found = {}
    for key in keys:
        name = member_of(key, directory.entries)
        if name is None:
            raise missing(key, keys_of(directory.entries.keys()), path)
        found[key] = directory.entries[name]
    return found
