"""The error tree: every way a file or a call can be wrong, one class each.

Owns the classes, how their messages read, and how a name from a file is
shown. Imports nothing of npzkit and never touches a file. A layer raises with
what it knows (an offset, what was found); the layers above add what they know
(the key, the path) with `NpzkitError.locate` on the way out, so that nobody
has to pass a path down.

========================= =============================== =======================
class                     raised when                     is also a
========================= =============================== =======================
`NpzkitError`             anything below                  ``Exception``
`FormatError`             bytes are not what they claim   ``ValueError``
`NpyFormatError`          ... in an NPY header or array   ``ValueError``
`ZipFormatError`          ... in the zip container        ``zipfile.BadZipFile``
`ChecksumError`           a CRC-32 differs                ``zipfile.BadZipFile``
`AmbiguousArchiveError`   two readings are possible       ``ValueError``
`UnsupportedError`        valid, but not readable here    ``NotImplementedError``
`LimitExceededError`      larger than `npzkit.Limits`     ``ValueError``
`PickleRefusedError`      pickle needed, not allowed      ``ValueError``
`UnsafeNameError`         a key that would not be safe    ``ValueError``
`KeyExistsError`          a key that is already taken     ``ValueError``
`NotAnArrayError`         NumPy makes no array of it      ``TypeError``
`ConversionError`         a format has no place for it    ``ValueError``
`NoDataError`             nothing is left to read         ``EOFError``
`MemberNotFoundError`     no member has this key          ``KeyError``
`ClosedArchiveError`      used after ``close()``          ``ValueError``
`StaleArchiveError`       the file changed underneath     ``ValueError``
`NotMappableError`        cannot be memory-mapped         ``ValueError``
`ArchiveLockedError`      another writer has it           ``BlockingIOError``
`TornArchiveWarning`      an append was cut short; read   ``UserWarning``
`AmbiguousArchiveWarning` a name comes twice; last read   ``UserWarning``
========================= =============================== =======================

``OSError`` is never wrapped: a missing file is ``FileNotFoundError``.
"""

from __future__ import annotations

import os
import sys
import warnings
import zipfile
from typing import Any

__all__ = [
    "AmbiguousArchiveError",
    "AmbiguousArchiveWarning",
    "ArchiveLockedError",
    "ChecksumError",
    "ClosedArchiveError",
    "ConversionError",
    "FormatError",
    "KeyExistsError",
    "LimitExceededError",
    "MemberNotFoundError",
    "NoDataError",
    "NotAnArrayError",
    "NotMappableError",
    "NpyFormatError",
    "NpzkitError",
    "PickleRefusedError",
    "StaleArchiveError",
    "TornArchiveWarning",
    "UnsafeNameError",
    "UnsupportedError",
    "ZipFormatError",
    "printable",
    "shown_key",
    "warn",
]

_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")

_SHOWN_LENGTH = 120
"""A hostile header may be megabytes long: messages quote this much of it."""
_KEY_LENGTH = 80
"""Characters of a key that a table shows: every row is as wide as the longest."""


def printable(text: str) -> str:
    r"""Return text with everything escaped that could control a terminal or a page.

    Control characters (C1 too), marks that change the direction of text, line
    and paragraph separators, and halves of surrogate pairs.

    Examples
    --------
    >>> print(printable("a\u202eb"))
    a\u202eb
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown_key(key: str) -> str:
    r"""Return a key or a path as tables and messages show it: short, and quoted if escaped.

    Examples
    --------
    >>> print(shown_key("layer/w"), shown_key("a\x9b31m"))
    layer/w 'a\x9b31m'
    """
    if len(key) > _KEY_LENGTH:
        key = key[: _KEY_LENGTH - 3] + "..."
    return key if key.isprintable() else repr(key)


class NpzkitError(Exception):
    """Base of every error npzkit raises for bad input or a call it refuses.

    Parameters
    ----------
    what : str
        What went wrong, in one sentence without a full stop.
    path : str or path-like, optional
        The archive.
    key : str, optional
        The array's key.
    offset : int, optional
        Bytes from the start of the file: to the fault, or to the member that
        has it.
    found, expected : object, optional
        The value that was there, and what should have been.
    remedy : str, optional
        What to do about it, a full sentence; that of its class by default.

    Notes
    -----
    All parameters are attributes too.

    Examples
    --------
    >>> error = NpzkitError("the header is too long", key="w", found=70000, expected=10000)
    >>> str(error)
    "the header is too long (key 'w'): found 70000, expected 10000"
    >>> error.found
    70000
    """

    _usual_remedy: str | None = None

    def __init__(
        self,
        what: str = "",
        *,
        path: str | os.PathLike[str] | None = None,
        key: str | None = None,
        offset: int | None = None,
        found: Any = None,
        expected: Any = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.path = path
        self.key = key
        self.offset = offset
        self.found = found
        self.expected = expected
        self.remedy = self._usual_remedy if remedy is None else remedy

    def locate(
        self,
        *,
        path: str | os.PathLike[str] | None = None,
        key: str | None = None,
        offset: int | None = None,
    ) -> NpzkitError:
        """Fill in where it happened, unless a lower layer already said."""
        if self.path is None:
            self.path = path
        if self.key is None:
            self.key = key
        if self.offset is None:
            self.offset = offset
        return self

    @staticmethod
    def shown(value: object) -> str:
        """Return a value taken from a file as messages quote it: cut to a readable length."""
        return _shown(value)

    def __str__(self) -> str:
        where = []
        if self.path is not None:
            where.append(f"in {os.fspath(self.path)!r}")
        if self.key is not None:
            where.append(f"key {_shown(self.key)}")
        if self.offset is not None:
            where.append(f"at byte {self.offset}")
        text = self.what + (f" ({', '.join(where)})" if where else "")
        values = []
        if self.found is not None:
            values.append(f"found {_shown(self.found)}")
        if self.expected is not None:
            values.append(f"expected {_shown(self.expected)}")
        if values:
            text += ": " + ", ".join(values)
        return printable(f"{text}. {self.remedy}" if self.remedy else text)


def _shown(value: object) -> str:
    """Quote a value taken from a file, cut to a readable length."""
    if isinstance(value, (str, bytes)):
        value = value[: _SHOWN_LENGTH + 1]
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__}, nested deeply"
    return text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + "..."


class FormatError(NpzkitError, ValueError):
    """The bytes are not what the format says they should be."""


class NpyFormatError(FormatError):
    """An array's header or data is not valid NPY."""


class ZipFormatError(FormatError, zipfile.BadZipFile):
    """The container is not a valid zip archive."""

    _usual_remedy = "The file is damaged, or was made by a faulty program: fetch or make it again."


class ChecksumError(NpzkitError, ValueError, zipfile.BadZipFile):
    """The CRC-32 of the data differs from the recorded one."""


class AmbiguousArchiveError(NpzkitError, ValueError):
    """The archive can be read in two ways, and programs would disagree."""


class UnsupportedError(NpzkitError, NotImplementedError):
    """The member is valid but npzkit, or this Python, cannot read it."""


class LimitExceededError(NpzkitError, ValueError):
    """Something is larger than the archive's limits, or than a zip has room for."""


class PickleRefusedError(NpzkitError, ValueError):
    """The array needs pickle, and pickle was not allowed."""


class UnsafeNameError(NpzkitError, ValueError):
    """A key that would be dangerous or ambiguous as a member name."""


class KeyExistsError(UnsafeNameError):
    """The archive already has this key, or one that would hide it."""


class NotAnArrayError(NpzkitError, ValueError, TypeError):
    """An object that NumPy cannot make an array of."""


class ConversionError(NpzkitError, ValueError):
    """A file or an array that cannot be converted, packed or extracted as asked."""


class NoDataError(NpzkitError, EOFError):
    """The file is empty, or the stream is at its end."""


class MemberNotFoundError(NpzkitError, KeyError):
    """No member of the archive has this key."""


class ClosedArchiveError(NpzkitError, ValueError):
    """The archive was used after it was closed."""


class StaleArchiveError(NpzkitError, ValueError):
    """The file changed since the archive was opened."""


class NotMappableError(NpzkitError, ValueError):
    """The member cannot be memory-mapped."""


class ArchiveLockedError(NpzkitError, BlockingIOError):
    """Another writer has the archive."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn in the name of the first caller outside npzkit.

    ``skip_file_prefixes`` of `warnings.warn` does the same from Python 3.12 on.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(printable(message), category, stacklevel=level)


class TornArchiveWarning(UserWarning):
    """Bytes follow the last complete end record: an append was cut short."""


class AmbiguousArchiveWarning(UserWarning):
    """A member name occurs more than once; the last one is used."""
