"""What `verify` and `repair` report: rows, texts and verdicts.

Owns the severities and the sentences of the reports. Knows no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from npzkit.errors import (
    ALLOW_PICKLE,
    Advice,
    ClosedArchiveError,
    LimitExceededError,
    NpzkitError,
    format_count,
    printable,
    shown_key,
    some_of,
    values_text,
)
from npzkit.zip.local_header import IS_ENCRYPTED

Severity = Literal["error", "warning", "note"]
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
_HEADS = ("severity", "key", "at byte", "what")
_SHOWN_COUNT = 10
"""Most uncertain keys that the printed report lists."""

HAS_OBJECTS = "it contains Python objects: reading it needs " + ALLOW_PICKLE
NOT_AN_ARRAY = "it is no array: " + Advice(
    "npz[key] returns its bytes", "npzkit extract writes its bytes"
)
NOT_SAFE = "is not safe to extract"
DATA_KEPT = "its data is kept"
KEPT_AS = DATA_KEPT + " as "
NO_RECORD = "the archive has no record of npzkit's"
_TO_KNOW = (
    (HAS_OBJECTS, "array is a pickle ({}): loading it can run code",
     "arrays are pickles ({}): loading them can run code"),
    (NOT_AN_ARRAY, "member that is no array", "members that are no arrays"),
    (NOT_SAFE, "name that is not safe to extract", "names that are not safe to extract"),
)  # fmt: skip
"""What to know before a stranger's archive is loaded: in a row, and of one or of many keys."""
_NAMED_COUNT = 3
"""Keys that are named there."""

END = "the end of the file"
"""What reports call the list of arrays and the metadata, if they are missing."""
BESIDE_ARRAYS = (
    "what a tree has beside arrays: values such as learning rates, tied keys, lists and integer "
    "keys"
)
"""What the metadata of nested data says."""


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
        Bytes from the start of the file: to the member's local header if that is
        damaged, and otherwise to its data, or to its first damaged chunk if that is
        known. Errors of reads have the same `offset`.
    remedy : str or None
        What to do about an unfinished append, a file that is not an archive, an array whose
        CRC-32 or whose two headers differ, or one that npzkit cannot read, or that
        exceeds a limit, as a full sentence.
    """

    key: str | None
    severity: Severity
    what: str
    where: int | None = None
    remedy: str | None = None

    @classmethod
    def _of(cls, key: str | None, error: NpzkitError, header_offset: int | None = None) -> Finding:
        """Return an error as a row. The row has its own columns for key and offset."""
        if isinstance(error, ClosedArchiveError):
            # This is not about the file.
            raise error
        where = header_offset if error.offset is None else error.offset
        # Bytes of a file help nobody.
        values = "" if isinstance(error.found, bytes) else values_text(error)
        remedy = error.remedy if isinstance(error, LimitExceededError) else None
        return cls(key, "error", error.what + values, where, remedy)


class VerifyReport(NamedTuple):
    """The report of `verify`.

    Attributes
    ----------
    path : str or None
    rows : tuple of Finding
        The findings about the archive, then those about the members in order.
    member_count : int
        Members that were checked.
    nbytes : int
        Their uncompressed bytes.
    torn_size : int
        Bytes after the last commit, such as an unfinished append. 0 if a writer
        is at work, and if only some members were checked.
    unchecked_count : int
        Members that were not checked, because only some keys were asked for.
    """

    path: str | None
    rows: tuple[Finding, ...]
    member_count: int
    nbytes: int
    torn_size: int = 0
    unchecked_count: int = 0

    def __bool__(self) -> bool:
        """Whether it is `ok`."""
        return self.ok

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
            "nbytes": self.nbytes,
            "torn_size": self.torn_size,
            "unchecked_count": self.unchecked_count,
            "safety": self.safety,
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
        lines.append(f"{printable(self.path or 'archive')}: {self._closing(self.rows)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from npzkit.tables import SHOWN_COUNT, block, line, table

        # Errors first, because not all rows of a long report are shown.
        rows = sorted(self.rows, key=lambda row: _SEVERITIES.index(row.severity))
        parts = [line(f"VerifyReport {self.path or 'archive'}: {self._closing(self.rows)}")]
        if rows:
            parts.append(table(_HEADS, self._table(rows[:SHOWN_COUNT]), right=2))
        if len(rows) > SHOWN_COUNT:
            parts.append(line(f"{len(rows):,} rows; the first {SHOWN_COUNT} are shown"))
        return block(parts)

    @staticmethod
    def _table(rows: Sequence[Finding]) -> list[tuple[str, str, str, str]]:
        return [
            (
                row.severity,
                "-" if row.key is None else shown_key(row.key),
                "" if row.where is None else str(row.where),
                printable(row.what if row.remedy is None else f"{row.what}. {row.remedy}"),
            )
            for row in rows
        ]

    @property
    def verdict(self) -> str:
        """The result in one line: whether the archive is sound, and counts of findings."""
        counts = {name: sum(row.severity == name for row in self.rows) for name in _SEVERITIES}
        parts = [self._counted]
        parts += [format_count(count, name) for name, count in counts.items() if count]
        return f"{self._state}, {', '.join(parts)}"

    @property
    def _state(self) -> str:
        """The first word of the verdict; only what was checked is called sound."""
        if not self.ok:
            errors = [row.what for row in self.rows if row.severity == "error"]
            return "encrypted" if all(IS_ENCRYPTED in what for what in errors) else "NOT sound"
        is_unchecked = self.unchecked_count and not self.member_count
        return "torn" if self.torn_size else "unchecked" if is_unchecked else "sound"

    @property
    def safety(self) -> str:
        """Whether a stranger's archive is safe to load, in one line, if that is known.

        Arrays of Python objects are loaded by pickle, which can run code; it is off by default.
        """
        told = []
        for what, one, many in _TO_KNOW:
            keys = [row.key or "" for row in self.rows if what in row.what]
            text = (one if len(keys) == 1 else many).format(some_of(keys, shown_key, _NAMED_COUNT))
            told += [f"{len(keys):,} {text}"] if keys else []
        return ", ".join(told) or (_SAFE if self.ok else _NOT_KNOWN)

    def _closing(self, rows: tuple[Finding, ...]) -> str:
        """The verdict, with counts of these rows, and of a sound archive, whether it is safe."""
        is_whole = self._state == "unchecked" or (
            self._state == "sound" and not self.unchecked_count
        )
        return self._replace(rows=rows).verdict + (f"; {self.safety}" if is_whole else "")

    @property
    def _notes(self) -> tuple[Finding, ...]:
        """The notes without those that `safety` counts, and without what another writer lacks."""
        usual = HAS_OBJECTS, NOT_AN_ARRAY, NO_RECORD
        notes = [row for row in self.rows if row.severity == "note"]
        return tuple(row for row in notes if not any(what in row.what for what in usual))

    @property
    def _is_safe(self) -> bool:
        return self.safety == _SAFE

    @property
    def _counted(self) -> str:
        """How many members were checked, of how many."""
        if self.unchecked_count:
            whole = format_count(self.member_count + self.unchecked_count, "member")
            return f"{self.member_count:,} of {whole} checked"
        if self.ok or self.member_count:
            return format_count(self.member_count, "member")
        return "no member could be checked"


class ForeignReport(VerifyReport):
    """The report on a file of another format, which may be sound."""

    @property
    def _state(self) -> str:
        return "of another format"


def with_arrays(uncommitted: Sequence[str]) -> str:
    """Return what follows words on an unfinished append in which arrays are complete."""
    return f"; complete arrays there: {some_of(uncommitted, shown_key)}" if uncommitted else ""


_SAVED_BEFORE = ". npzkit help append says how to save such arrays before they are removed"
_SAFE = "no Python objects, and no unsafe names"
_NOT_KNOWN = "not known: not everything could be read"


class Lost(NamedTuple):
    """A member that was found but could not be saved, or not completely.

    Attributes
    ----------
    key : str
        Of the metadata, "npzkit.metadata"; of what came after the last array that was found,
        "the end of the file".
    what : str
        What is wrong with it.
    where : int
        Bytes from the start of the damaged file.
    rows : sequence of (int, int)
        The ranges of rows that are lost, each as start and stop, if the other rows of the
        array are kept.
    """

    key: str
    what: str
    where: int
    rows: Sequence[tuple[int, int]] = ()

    @property
    def _kind(self) -> str:
        """The first words of its line."""
        if KEPT_AS in self.what:
            return "kept under another name"
        return "partly lost" if self.rows or DATA_KEPT in self.what else "lost"


class RepairReport(NamedTuple):
    """The report of `repair`.

    Attributes
    ----------
    output : str
        The path of the repaired archive.
    kept : tuple of str
        The keys in the repaired archive.
    lost : tuple of Lost
        Members that are missing in it, or not complete.
    cut_size : int
        Bytes of an unfinished append, or other data after the last commit, which were removed,
        or left out of `output`.
    is_rebuilt : bool
        Whether the newest directory was damaged, so that members were searched
        for by their own headers.
    uncertain : tuple of str
        Kept keys of which no complete directory says that they are current. The
        arrays are sound, but may have been removed or renamed, or replaced by newer
        ones, and their attributes may be older.
        Also keys of arrays whose data matches only one of their two CRC-32s, after
        an interrupted flush, or if a copy of another version over the file broke off.
    sealed : tuple of str
        Keys of arrays with an interrupted flush of a map, which was completed:
        their CRC-32 now matches their data. They are uncertain too.
    is_completed : bool
        Whether the last commit lacked its last few bytes, which were written.
    uncommitted : tuple of str
        Keys of the arrays that were complete in the unfinished append.
    """

    output: str
    kept: tuple[str, ...]
    lost: tuple[Lost, ...] = ()
    cut_size: int = 0
    is_rebuilt: bool = False
    uncertain: tuple[str, ...] = ()
    sealed: tuple[str, ...] = ()
    is_completed: bool = False
    uncommitted: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict that JSON can represent."""
        lost = [{**row._asdict(), "rows": list(map(list, row.rows))} for row in self.lost]
        lists = {name: list(one) for name, one in self._asdict().items() if isinstance(one, tuple)}
        return {**self._asdict(), **lists, "lost": lost}

    def to_json(self, **options: Any) -> str:
        """Return the report as JSON; `options` are those of `json.dumps`."""
        import json

        return json.dumps(self.as_dict(), **options)

    def __str__(self) -> str:
        lines = [f"{printable(self.output)}: {format_count(len(self.kept), 'member')} kept"]
        if self.is_rebuilt and not self.uncertain:
            lines.append("the list at the end of the file was damaged, and is restored")
        lines += self._uncertain_lines()
        if self.cut_size:
            told = f"{format_count(self.cut_size, 'byte')} after the last commit {self._cut()}"
            how = _SAVED_BEFORE if self.uncommitted else ""
            lines.append(told + with_arrays(self.uncommitted) + how)
        if self.is_completed:
            lines.append("the last commit was completed")
        lines += [f"interrupted flush completed: {shown_key(key)}" for key in self.sealed]
        lines += [
            f"{lost._kind}: {shown_key(lost.key)} (at byte {lost.where}): {printable(lost.what)}"
            for lost in self.lost
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from npzkit.tables import lines_html

        return lines_html(f"RepairReport {self}")

    def _cut(self) -> str:
        """Return what was done with the bytes of an unfinished append."""
        return "left out"

    def _uncertain_lines(self) -> list[str]:
        text = "may be old: removed, renamed or changed since"
        if not self.uncertain:
            return []
        if self.uncertain == self.kept:
            return [
                "the list at the end of the file is missing or damaged: if the file was ever "
                "changed in place, old arrays may be among these"
                if self.is_rebuilt
                else f"uncertain: any of these arrays {text}"
            ]
        lines = [f"uncertain: {format_count(len(self.uncertain), 'array')} {text}:"]
        lines += [f"  {shown_key(key)}" for key in self.uncertain[:_SHOWN_COUNT]]
        if len(self.uncertain) > _SHOWN_COUNT:
            lines.append(f"  and {len(self.uncertain) - _SHOWN_COUNT} more")
        return lines


class EndReport(RepairReport):
    """The report of `repair` without `output`, which checks no arrays."""

    def _cut(self) -> str:
        return "removed"

    def __str__(self) -> str:
        first, *others = super().__str__().split("\n")
        told = f"{first}; its arrays were not checked: npzkit.verify checks them"
        return "\n".join([told, *others])
