"""Versions of an object: which one was opened, and whether an answer is of the same one.

Owns the rule for all stores: the version is pinned when the object is opened, and every answer
after that is compared with it. A store that takes a strong ETag as a condition gets it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from npzkit.errors import StaleArchiveError

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
_WEAK = "W/"


class Version(NamedTuple):
    """What tells one state of an object from another.

    Attributes
    ----------
    size : int
        Bytes of the whole object.
    tag : str
        The ETag, or another mark that changes with the object; empty if there is none.
    modified : str
        When it was modified, as the store writes it; empty if that is not known.
    """

    size: int
    tag: str = ""
    modified: str = ""

    @property
    def is_known(self) -> bool:
        """Whether anything but the size tells this state from another."""
        return bool(self.tag or self.modified)

    @property
    def strong_tag(self) -> str:
        """The tag if it changes with every byte; empty if it is weak (RFC 9110, 8.8.1)."""
        return "" if self.tag.startswith(_WEAK) else self.tag

    def differs(self, found: Version) -> bool:
        """Return whether another answer is of another state, or does not say of which it is.

        A weak tag may stay when bytes change, so the time is compared too. A server may find
        out later that a weak tag is a strong one, as Apache does for a new file.
        """
        if self.size != found.size:
            return True
        if self.strong_tag:
            return self.tag != found.tag
        if self.tag.removeprefix(_WEAK) != found.tag.removeprefix(_WEAK) and self.tag:
            return True
        return bool(self.modified) and self.modified != found.modified

    def check(self, found: Version) -> None:
        """Raise StaleArchiveError if another answer differs."""
        if self.differs(found):
            raise self.changed(found)

    def changed(self, found: Version | None = None) -> StaleArchiveError:
        """Return the error for an object that was replaced, or that may have been."""
        what = "the object was replaced since it was opened"
        if found is not None and found.size == self.size and not found.is_known:
            what = "the store no longer says whether the object is the one that was opened"
        return StaleArchiveError(
            what,
            found=None if found is None else found._shown(),
            expected=self._shown(),
            remedy="Open it again.",
        )

    def _shown(self) -> str:
        marks = ("version", self.tag), ("modified", self.modified)
        known = [f"{name} {value[:80]}" for name, value in marks if value]
        return ", ".join([f"{self.size} bytes", *known])


def parse_content_range(text: str) -> tuple[int, int, int] | None:
    """Return where the bytes of an answer begin and end, and the object's size; None if invalid.

    Examples
    --------
    >>> parse_content_range("bytes 5-9/10"), parse_content_range("bytes 5-9/*")
    ((5, 10, 10), None)
    """
    found = _CONTENT_RANGE.fullmatch(text)
    begin, last, size = map(int, found.groups()) if found else (0, -1, 0)
    return (begin, last + 1, size) if begin <= last < size else None
