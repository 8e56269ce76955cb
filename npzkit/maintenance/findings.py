"""What checking an archive finds: the rows of a report, and those that need no data.

Owns the severities, the report, and the checks of what the directory and the
headers say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from npzkit.codecs.methods import STORED
from npzkit.errors import (
    AmbiguousArchiveError,
    ClosedArchiveError,
    NpyFormatError,
    NpzkitError,
    UnsafeNameError,
    printable,
    shown_key,
)
from npzkit.files.source import Source
from npzkit.format.header import NpyHeader
from npzkit.members.amounts import format_count
from npzkit.members.info import describe
from npzkit.members.keys import SUFFIX, check_key, find_collisions, member_of, missing
from npzkit.members.metadata import check_metadata_size, parse_attrs
from npzkit.reading.indexed_headers import IndexedHeaders, index_disagrees
from npzkit.zip.array_index import has_damaged_index
from npzkit.zip.dead_bytes import dead_size
from npzkit.zip.directory import Directory
from npzkit.zip.entries import BAD_NAME, Entry
from npzkit.zip.entry_records import repeated_names
from npzkit.zip.intent import MARK_OFFSET, is_damaged
from npzkit.zip.layout import ALIGNMENT
from npzkit.zip.records import END_SIGNATURE
from npzkit.zip.sozip import find_index, has_index_member


class Finding(NamedTuple):
    """One row of a report.

    Attributes
    ----------
    key : str or None
        The array key; None if the row is about the archive.
    severity : {"error", "warning", "note"}
        An error means that data cannot be read or trusted, or that something
        that protects the archive is damaged. A warning is about something that
        ``strict=True`` refuses, or that may confuse other programs. A note is
        about speed, space, or an option to read the array.
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

        If only the array index or the mark of the last commit is damaged, all data can still
        be read, but the next damage may cost some: that is an error. An unfinished append is
        not, see `torn_size`.
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
        table = self._table(self.rows)
        lines = []
        if table:
            table.insert(0, _HEADS)
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            lines = [
                f"{severity:<{widths[0]}}  {key:<{widths[1]}}  {where:>{widths[2]}}  {what}"
                for severity, key, where, what in table
            ]
        lines.append(f"{printable(self.path or 'archive')}: {self.verdict}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from npzkit.display.tables import SHOWN_COUNT, block, line, table

        # Errors first, because not all rows of a long report are shown.
        rows = sorted(self.rows, key=lambda row: _SEVERITIES.index(row.severity))
        parts = [line(f"VerifyReport {self.path or 'archive'}: {self.verdict}")]
        if rows:
            parts.append(table(_HEADS, self._table(rows[:SHOWN_COUNT]), right=2))
        if len(rows) > SHOWN_COUNT:
            parts.append(line(f"{len(rows):,} rows; the first {SHOWN_COUNT} are shown"))
        return block(parts)

    @staticmethod
    def _table(rows: Sequence[Finding]) -> list[tuple[str, str, str, str]]:
        """Return rows as the text of cells."""
        return [
            (
                row.severity,
                "-" if row.key is None else shown_key(row.key),
                "" if row.where is None else str(row.where),
                printable(row.what),
            )
            for row in rows
        ]

    @property
    def verdict(self) -> str:
        """The result in one line: whether the archive is sound, and counts of findings."""
        counts = {name: sum(row.severity == name for row in self.rows) for name in _SEVERITIES}
        parts = [format_count(self.member_count, "member")]
        parts += [format_count(count, name) for name, count in counts.items() if count]
        state = "NOT sound" if not self.ok else "torn" if self.torn_size else "sound"
        return f"{state}, {', '.join(parts)}"


_PROCEED_COUNT = 10_000
"""Members whose names are checked between two chances to stop."""
_SEVERITIES = ("error", "warning", "note")
_HEADS = ("severity", "key", "at byte", "what")


def finding(key: str | None, error: NpzkitError, header_offset: int | None = None) -> Finding:
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


def wanted_entries(
    keys: Sequence[str] | None, listed: Mapping[str, Entry], directory: Directory, path: str | None
) -> Mapping[str, Entry]:
    """Return the entries of `keys`, or all that are listed.

    Raises
    ------
    MemberNotFoundError
        A key is not found.
    """
    if keys is None:
        return listed
    found = {}
    for key in keys:
        name = member_of(key, directory.entries)
        if name is None:
            raise missing(key, list(listed), path)
        found[key] = directory.entries[name]
    return found


# -- the archive -----------------------------------------------------------


def archive_findings(
    source: Source,
    directory: Directory,
    listed: Mapping[str, Entry],
    limit: int | None,
    proceed: Callable[[], object] = lambda: None,
) -> Iterator[Finding]:
    """Yield what is wrong with an archive beside its members; `limit` is ``metadata_size``.

    `proceed` is called often, and may stop it.
    """
    torn = source.file_size - directory.end_offset
    try:
        directory.check_alone(source)
    except AmbiguousArchiveError as error:
        yield finding(None, error)
    if torn > 0:
        yield Finding(
            None, "warning", f"{format_count(torn, 'byte')} after the last commit: an unfinished "
            "append, or other data", directory.end_offset,
        )  # fmt: skip
    yield from _commit_findings(source, directory)
    try:
        check_metadata_size(directory.read_comment(source, limit), limit)
    except NpzkitError as error:
        yield finding(None, error)
    dead = dead_size(source, directory)
    if dead:
        what = f"{format_count(dead, 'byte')} of dead space, which no member uses"
        yield Finding(None, "note", what)
    repeated = repeated_names(directory)
    proceed()
    collisions = dict(find_collisions(entry.name for entry in listed.values()))
    for number, (key, entry) in enumerate(listed.items()):
        if number % _PROCEED_COUNT == 0:
            proceed()
        if entry.name in repeated:
            what = f"{repeated[entry.name]} entries have this name; the last one is used"
            yield Finding(key, "warning", what, entry.header_offset)
        yield from _name_findings(key, entry, collisions.get(entry.name))


def _commit_findings(source: Source, directory: Directory) -> Iterator[Finding]:
    """Yield what the last commit lacks, though all of its members are listed."""
    for offset in directory.unsealed:
        found = source.read_at(offset, len(END_SIGNATURE))
        # A crash may leave a part of it.
        is_torn = all(byte in (0, right) for byte, right in zip(found, END_SIGNATURE, strict=True))
        severity, what = ("warning", "has no signature") if is_torn else ("error", "is damaged")
        what = f"the last end record {what}; npzkit.repair and the next writer write it"
        yield Finding(None, severity, what, offset)
    yield from _intent_findings(source, directory)
    if has_damaged_index(source, directory):
        what = "its array index is damaged: the arrays are read without it; npzkit.repack writes it"
        yield Finding(None, "error", what, directory.directory_offset)


def _intent_findings(source: Source, directory: Directory) -> Iterator[Finding]:
    """Yield what is wrong with the intent of the last commit."""
    found = directory.read_intent(source)
    if found is None:
        return
    offset, intent = found
    lacking = dict(directory.completion(source))
    mark = lacking.get(offset + MARK_OFFSET, intent[MARK_OFFSET:])
    if is_damaged(intent, mark):
        what = (
            "the record that marks the last commit as complete does not fit it: one of them is "
            "damaged; npzkit.repack writes both"
        )
        yield Finding(None, "error", what, offset)
    elif offset + MARK_OFFSET in lacking:
        what = "the last commit is not marked as complete; the next writer adds the mark"
        yield Finding(None, "note", what, offset + MARK_OFFSET)


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


def header_findings(
    source: Source,
    key: str,
    entry: Entry,
    header: NpyHeader | None,
    start: int,
    indexed: IndexedHeaders | None,
) -> Iterator[Finding]:
    """Check what the headers of a member and its array say, and the attributes.

    Raises
    ------
    ZipFormatError
        The attributes are damaged.
    """
    known = None if indexed is None else indexed.describe(key, entry)
    if known is not None and indexed is not None and header is None:
        expected = indexed.find(entry.name)
        if expected is not None:
            yield finding(key, index_disagrees(expected, "no array"), entry.header_offset)
    elif known is not None and header is not None:
        has_index = find_index(source, entry, start) is not None
        found = describe(key, entry, header, start, parse_attrs(entry.extra), indexed=has_index)
        if found != known or (indexed is not None and header != indexed.find(entry.name)):
            disagrees = index_disagrees(header, f"{known.shape} {known.dtype}")
            yield finding(key, disagrees, entry.header_offset)
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


def unused_index(source: Source, key: str, entry: Entry, start: int) -> Iterator[Finding]:
    """Report a seek index that does not match its member."""
    if find_index(source, entry, start) is None and has_index_member(source, entry, start):
        what = "its seek index does not match it and is not used"
        yield Finding(key, "warning", what, start + entry.compressed_size)
