"""An archive's metadata while the archive is written.

Owns which comment the next commit writes. A comment that is not npzkit's is
kept as it is until the metadata changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npzkit.members.metadata import format_metadata, parse_metadata


class EditedMetadata:
    """The metadata of one archive, as a dict to be changed.

    Parameters
    ----------
    comment : bytes
        Of the last commit.
    added : mapping
        Values to add to what the comment holds.

    Attributes
    ----------
    values : dict
    comment : bytes
        Of the last commit.
    formatted : bytes or None
        The comment to write in place of what the values say, if a caller has formatted it.
    """

    def __init__(self, comment: bytes, added: Mapping[str, Any]) -> None:
        self.comment = comment
        self.formatted: bytes | None = None
        self.values = dict(parse_metadata(comment))
        self._committed = format_metadata(self.values)
        self.values.update(added)

    def changed(self) -> bytes | None:
        """Return the comment for values that were changed; None if they are as committed.

        Raises
        ------
        LimitExceededError, ValueError, TypeError
            The values are too long, or JSON cannot express them.
        """
        comment = format_metadata(self.values) if self.formatted is None else self.formatted
        return comment if comment != self._committed else None

    def take(self, changed: bytes) -> None:
        """Note that a comment from `changed` was committed."""
        self.comment = self._committed = changed
