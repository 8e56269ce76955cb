"""The rules that an archive and its members are checked against, each stated once.

Owns the list of checks and their severities. The rules themselves are in the modules
that read archives: `npzkit.zip` and `npzkit.reading.member` raise errors, which become
rows here. Nothing is unpickled, and only some megabytes of an array are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from npzkit.codecs.checksum import crc32_combine
from npzkit.codecs.coding import CHUNK_SIZE, CHUNKED, STORED
from npzkit.errors import (
    READ_DIFFERENTLY,
    REPACK,
    REPAIR,
    REST_SAVED,
    AmbiguousArchiveError,
    ChecksumError,
    FormatError,
    NpzkitError,
    StaleArchiveError,
    UnsafeNameError,
    UnsupportedError,
    format_count,
    may_be_damage,
    shown_key,
)
from npzkit.files.block_reading import crc32_at
from npzkit.files.progress import Advance, Meter
from npzkit.files.source import Source
from npzkit.files.threads import run
from npzkit.format.descr import OTHER_LONG_DOUBLE
from npzkit.maintenance.damaged_rows import find_damage
from npzkit.maintenance.findings import (
    HAS_OBJECTS,
    NO_RECORD,
    NOT_AN_ARRAY,
    NOT_SAFE,
    Finding,
    with_arrays,
)
from npzkit.members.array_info import describe
from npzkit.members.keys import SUFFIX, are_plain, as_utf8, check_key, find_collisions
from npzkit.members.metadata import check_metadata_size, parse_attrs
from npzkit.members.tensors import check_long_double
from npzkit.reading.known_arrays import KnownArrays, index_disagrees
from npzkit.reading.map_flush import find_unflushed
from npzkit.reading.member import MemberReader
from npzkit.zip.array_index import has_damaged_index
from npzkit.zip.chunks import Chunks
from npzkit.zip.commit import MARK_OFFSET, parse_mark
from npzkit.zip.dead_space import dead_size
from npzkit.zip.directory import Directory, check_last, comment_of, read_intent
from npzkit.zip.entries import BAD_NAME, Entry, accepting_name, name_error
from npzkit.zip.local_header import check_crc32, check_entry, data_offset
from npzkit.zip.member_stream import MemberStream
from npzkit.zip.records import FLAG_UTF8

_PROCEED_COUNT = 10_000
"""Members whose names are checked between two chances to stop."""


# -- the archive -----------------------------------------------------------


def archive_findings(
    source: Source,
    directory: Directory,
    listed: Mapping[str, Entry],
    limit: int | None,
    proceed: Callable[[], object],
    torn_size: int,
    uncommitted: Sequence[str],
) -> Iterator[Finding]:
    """Yield what is wrong with an archive beside its members; `limit` is ``metadata_size``.

    `proceed` is called often, and may raise to stop it. Behind the last commit are `torn_size`
    bytes, in which the arrays `uncommitted` are complete.
    """
    try:
        check_last(directory, source)
    except AmbiguousArchiveError as error:
        yield Finding._of(None, error)
    if torn_size:
        what = f"{format_count(torn_size, 'byte')} after the last commit: an unfinished append, or "
        remedy = "Remove them: " + REPAIR + "."
        if uncommitted:
            remedy = "To save the arrays, see npzkit help append. " + REPAIR + " removes them."
        what += f"other data{with_arrays(uncommitted)}"
        yield Finding(None, "warning", what, directory.end_offset, remedy=remedy)
    yield from _intent_findings(source, directory)
    if has_damaged_index(source, directory):
        what = (
            "its array index is damaged: the arrays are read without it; " + REPACK + " writes it"
        )
        yield Finding(None, "error", what, directory.directory_offset)
    try:
        check_metadata_size(comment_of(directory, source, limit), limit)
    except NpzkitError as error:
        yield Finding._of(None, error)
    if directory.footer is None and any(map(_could_have_chunks, listed.values())):
        yield Finding(
            None, "note", NO_RECORD + ", so parts of its large arrays are not compared with "
            "checksums of their own; " + REPACK + " writes one",
        )  # fmt: skip
    dead = dead_size(source, directory)
    if dead:
        what = f"{format_count(dead, 'byte')} of dead space, which no member uses"
        yield Finding(None, "note", what)
    yield from _names_findings(directory, listed, proceed)


def _names_findings(
    directory: Directory, listed: Mapping[str, Entry], proceed: Callable[[], object]
) -> Iterator[Finding]:
    """Yield what is wrong with the names of an archive's members, by themselves and together."""
    repeated = directory.repeated_names()
    proceed()
    collisions = dict(find_collisions(entry.name for entry in listed.values()))
    if not (repeated or collisions) and are_plain(list(listed)):
        return
    for number, (key, entry) in enumerate(listed.items()):
        if number % _PROCEED_COUNT == 0:
            proceed()
        if entry.name in repeated:
            what = f"{repeated[entry.name]} entries have this name; the last one is used"
            yield Finding(key, "warning", what, entry.header_offset)
        yield from _name_findings(key, entry, collisions.get(entry.name))


def _could_have_chunks(entry: Entry) -> bool:
    return entry.uncompressed_size > CHUNK_SIZE and entry.method in (STORED, *CHUNKED)


def _intent_findings(source: Source, directory: Directory) -> Iterator[Finding]:
    """Yield what is wrong with the intent of the last commit."""
    found = read_intent(directory, source)
    if found is None:
        return
    offset, intent = found
    mark, end = parse_mark(intent), directory.end_offset - directory.start_offset
    footer = directory.footer
    if mark == 0:
        what = "the last commit is not marked as complete; the next writer adds the mark"
        yield Finding(None, "note", what, offset + MARK_OFFSET)
    # Another program that changes the comment moves the end.
    elif mark != end and footer is not None and footer.comment_size == len(directory.comment):
        what = (
            "the record that marks the last commit as complete does not fit it: one of them is "
            "damaged; " + REPACK + " writes both"
        )
        yield Finding(None, "error", what, offset)


def _name_findings(key: str, entry: Entry, other: str | None) -> Iterator[Finding]:
    try:
        if not entry.flags & BAD_NAME:
            check_key(key.removesuffix(SUFFIX).removesuffix("/"))
    except UnsafeNameError as error:
        what = error.what.replace("cannot be saved", NOT_SAFE)
        yield Finding(key, "warning", what, entry.header_offset)
    meant = None if entry.flags & FLAG_UTF8 else as_utf8(key)
    if meant is not None:
        what = f"its name is not marked as UTF-8; in UTF-8 it is {shown_key(meant)}"
        yield Finding(key, "note", what, entry.header_offset)
    if other is not None:
        what = (
            f"it conflicts with {shown_key(other)} when extracted: both are the same file on "
            "some systems, or one is a folder in the path of the other"
        )
        yield Finding(key, "warning", what, entry.header_offset)


# -- a member --------------------------------------------------------------


def member_findings(
    reader: MemberReader,
    key: str,
    entry: Entry,
    indexed: KnownArrays,
    threads: int,
    meter: Meter,
) -> list[Finding]:
    """Return what is wrong with a member: its name, and what the checks find or raise."""
    rows: list[Finding] = []
    part = meter.part(entry.uncompressed_size)
    bad_name = name_error(entry)
    if bad_name is not None:
        rows.append(Finding._of(key, bad_name))
        entry = accepting_name(entry)
    checks = [_header_findings(reader, key, entry, indexed)]
    if reader.has_checksums:
        checks.append(_data_findings(reader, key, entry, indexed, threads, part.add))
    for findings in checks:
        try:
            rows.extend(findings)
        except StaleArchiveError:
            # This says nothing about the file.
            raise
        except NpzkitError as error:
            found = Finding._of(key, error, entry.header_offset)
            if error.what == OTHER_LONG_DOUBLE:
                found = found._replace(severity="note")
            elif (
                isinstance(error, (ChecksumError, UnsupportedError))
                or error.remedy == READ_DIFFERENTLY
            ):
                found = found._replace(remedy=error.remedy)
            if found not in rows:
                rows.append(found)
    part.end()
    return rows


def _header_findings(
    reader: MemberReader, key: str, entry: Entry, indexed: KnownArrays
) -> Iterator[Finding]:
    """Check what the headers of a member and its array say, and the attributes."""
    header, start = reader.find_header(entry)
    expected, known = indexed.find(entry.name), indexed.describe(key, entry)
    if expected is not None and header is None:
        yield Finding._of(key, index_disagrees(expected, "no array"), entry.header_offset)
    elif known is not None and header is not None:
        # A list of chunks that does not fit the member has a row of its own.
        is_listed, attrs = indexed.is_listed(entry), parse_attrs(entry.extra)
        found = describe(key, entry, header, start, attrs, is_listed=is_listed)
        if found != known or header != expected:
            disagrees = index_disagrees(header, f"{known.shape} {known.dtype}")
            yield Finding._of(key, disagrees, entry.header_offset)
    parse_attrs(entry.extra)
    if header is None:
        yield Finding(key, "note", NOT_AN_ARRAY, start)
        return
    if header.python2:
        what = "Python 2 wrote its header, which is slow to read and gives a warning; save it again"
        yield Finding(key, "warning", what, start)
    if header.dtype.hasobject:
        yield Finding(key, "note", HAS_OBJECTS, start)
    check_long_double(header.dtype, parse_attrs(entry.extra))


def member_error(
    reader: MemberReader, entry: Entry, threads: int, advance: Advance = lambda size: None
) -> Finding | None:
    """Return why a member cannot be read or trusted, or None if it can, whatever its name.

    `advance` is called with the uncompressed bytes of each read.
    """
    entry = accepting_name(entry)
    try:
        try:
            reader.find_header(entry)
        except UnsupportedError as error:
            if error.what != OTHER_LONG_DOUBLE:
                raise
        check_data(reader.source, entry, reader.size_limit, threads, advance)
    except NpzkitError as error:
        return Finding._of(None, error, entry.header_offset)
    return None


def check_data(
    source: Source, entry: Entry, size_limit: int | None, threads: int, advance: Advance
) -> int:
    """Check a member's headers and all of its data; return where the data begins.

    Raises
    ------
    NpzkitError
        Anything does not match its entry.
    """
    check_entry(entry, size_limit)
    start = data_offset(source, entry)
    if entry.method == STORED:
        crc = crc32_at(source, start, entry.compressed_size, threads, advance)
        check_crc32(crc, entry, start)
        return start
    MemberStream(source, entry, start).drain(advance)
    return start


def _data_findings(
    reader: MemberReader,
    key: str,
    entry: Entry,
    indexed: KnownArrays,
    threads: int,
    advance: Advance,
) -> Iterator[Finding]:
    """Read a member, and again by its chunks, if it has some."""
    source = reader.source
    try:
        start = check_data(source, entry, reader.size_limit, threads, advance)
    except NpzkitError as error:
        if not may_be_damage(error):
            raise
        is_wrong = isinstance(error, ChecksumError)
        unflushed = find_unflushed(source, entry, threads) if is_wrong else None
        found = Finding._of(key, error, entry.header_offset)
        damage = None if unflushed else find_damage(reader, entry, indexed.find(entry.name))
        if damage is not None:
            remedy = None if damage.header is None else REST_SAVED + "."
            found = found._replace(where=damage.offset, remedy=remedy)
        elif unflushed is None:
            raise
        more = str(unflushed) if damage is None else damage.what
        yield found._replace(what=found.what + "; " + more)
        return
    if indexed.is_listed(entry):
        chunks, span = reader.checked_chunks(entry), reader.lists.span(entry)
        place = start if span is None else span[0]
        if chunks is None:
            yield Finding(
                key, "warning", "the list of its chunks does not match it and is not used; "
                + REPACK + " renews it", place,
            )  # fmt: skip
        elif not _is_right(chunks, entry, threads):
            what = "the list of its chunks leads to wrong data, so parts of the array may be wrong"
            yield Finding(key, "error", what, place)


def _is_right(chunks: Chunks, entry: Entry, threads: int) -> bool:
    """Return whether the chunks that are listed have the data of their member.

    They are read on all threads, in a fraction of the time that the member took before. So
    this does not count as progress.
    """
    crc = 0
    try:
        for found in run(chunks.tasks(0, None, threads), threads):
            crc = crc32_combine(crc, *found)
    except (ChecksumError, FormatError):
        return False
    return crc == entry.crc32


def has_wrong_chunks(reader: MemberReader, entry: Entry, threads: int) -> bool:
    """Return whether the list of a sound member's chunks leads to wrong data."""
    chunks = reader.checked_chunks(entry)
    return chunks is not None and not _is_right(chunks, entry, threads)
