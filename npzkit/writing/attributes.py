"""Attributes of arrays that are already written, changed in the directory's entries.

Owns which attributes were handed out to be changed, and the entries that result.
Knows nothing of the rest of an archive.
"""

from __future__ import annotations

from typing import Any

from npzkit.members.metadata import check_attrs, format_attrs, own_attrs, parse_attrs, user_attrs
from npzkit.zip.extra_fields import CHANGED_NAME, KEY_VALUE_PAIRS_ID
from npzkit.zip.records import parse_central_entry
from npzkit.zip.written_records import with_block


class EditedAttributes:
    """The attributes of an archive's members, by member name, as dicts to be changed."""

    def __init__(self) -> None:
        self._attrs: dict[str, dict[str, Any]] = {}

    def of(self, name: str, record: bytes) -> dict[str, Any]:
        """Return a member's attributes: the same dict each time."""
        if name not in self._attrs:
            attrs = parse_attrs(parse_central_entry(record).extra)
            self._attrs[name] = user_attrs(attrs)
        return self._attrs[name]

    def forget(self, name: str) -> None:
        """Ignore further changes: the member was removed or replaced."""
        self._attrs.pop(name, None)

    def changed(self, listed: dict[str, bytes]) -> dict[str, bytes]:
        """Return the new entries of members whose attributes were changed.

        Raises
        ------
        LimitExceededError, ValueError, TypeError
            Attributes that are too long, or that JSON cannot express.
        """
        changed = {}
        for name, attrs in self._attrs.items():
            record = listed[name]
            before = parse_attrs(parse_central_entry(record).extra)
            if attrs != user_attrs(before):
                check_attrs(attrs)
                block = format_attrs({**attrs, **own_attrs(before), CHANGED_NAME: ""})
                changed[name] = with_block(record, KEY_VALUE_PAIRS_ID, block)
        return changed
