"""The report of a repair: what was kept and lost, as text and as JSON.

Owns its sentences. Knows no file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from npzkit.errors import printable, shown_key
from npzkit.members.amounts import format_count

_SHOWN_COUNT = 10
"""Most uncertain keys that the printed report lists."""


class Lost(NamedTuple):
    """A member that was found but could not be saved, or not completely.

    Attributes
    ----------
    key : str
    what : str
        What is wrong with the member.
    where : int
        Bytes from the start of the damaged file.
    """

    key: str
    what: str
    where: int


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
        Bytes of an unfinished append, which were removed.
    is_rebuilt : bool
        Whether the newest directory was damaged, so that members were searched
        for by their own headers.
    uncertain : tuple of str
        Kept keys of which the readable part of the newest directory does not say
        that they are current. The arrays are sound, but may have been removed or
        renamed, or replaced by newer ones, and their attributes may be older.
    sealed : tuple of str
        Keys of arrays with an interrupted flush of a map, which was completed:
        their CRC-32 now matches their data.
    is_completed : bool
        Whether the last commit lacked its last few bytes, which were written.
    """

    output: str
    kept: tuple[str, ...]
    lost: tuple[Lost, ...] = ()
    cut_size: int = 0
    is_rebuilt: bool = False
    uncertain: tuple[str, ...] = ()
    sealed: tuple[str, ...] = ()
    is_completed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict that JSON can represent."""
        lost = [row._asdict() for row in self.lost]
        lists = {name: list(getattr(self, name)) for name in ("kept", "uncertain", "sealed")}
        return {**self._asdict(), **lists, "lost": lost}

    def to_json(self, **options: Any) -> str:
        """Return the report as JSON; `options` are those of `json.dumps`."""
        import json

        return json.dumps(self.as_dict(), **options)

    def __str__(self) -> str:
        lines = [f"{printable(self.output)}: {format_count(len(self.kept), 'member')} kept"]
        if self.is_rebuilt:
            lines.append(
                "the directory was lost: members were found by their own headers"
                if self.uncertain
                else "the directory was damaged: it was restored from the members' own headers"
            )
        lines += self._uncertain_lines()
        if self.cut_size:
            lines.append(f"{self.cut_size:,} bytes of an unfinished append removed")
        if self.is_completed:
            lines.append("the last commit was completed")
        lines += [f"interrupted flush completed: {shown_key(key)}" for key in self.sealed]
        lines += [
            f"lost: {shown_key(lost.key)} (at byte {lost.where}): {printable(lost.what)}"
            for lost in self.lost
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from npzkit.display.tables import lines_html

        return lines_html(f"RepairReport {self}")

    def _uncertain_lines(self) -> list[str]:
        """Return the lines about uncertain keys."""
        text = "may have been removed, renamed or changed; the record of it is lost"
        if not self.uncertain:
            return []
        if self.uncertain == self.kept:
            return [f"uncertain: any of these arrays {text}"]
        lines = [f"uncertain: {format_count(len(self.uncertain), 'array')} {text}:"]
        lines += [f"  {shown_key(key)}" for key in self.uncertain[:_SHOWN_COUNT]]
        if len(self.uncertain) > _SHOWN_COUNT:
            lines.append(f"  and {len(self.uncertain) - _SHOWN_COUNT} more")
        return lines
