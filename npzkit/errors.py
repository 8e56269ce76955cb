"""The error tree: one class for each way a file or a call can be wrong.

========================== =============================== =======================
class                      raised when                     is also a
========================== =============================== =======================
`NpzkitError`              any of the errors below         ``Exception``
`FormatError`              bytes do not follow the format  ``ValueError``
`NpyFormatError`           ... in an NPY header or array   ``ValueError``
`ZipFormatError`           ... in the zip container        ``zipfile.BadZipFile``
`NotAnArchiveError`        the file is of another kind     ``zipfile.BadZipFile``
`IndexFormatError`         ... in the index of many files  ``ValueError``
`ChecksumError`            a CRC-32 differs                ``zipfile.BadZipFile``
`AmbiguousArchiveError`    programs would disagree on it   ``ValueError``
`UnsupportedError`         valid, but not supported        ``NotImplementedError``
`LimitExceededError`       larger than `npzkit.Limits`     ``ValueError``
`PickleRefusedError`       pickle needed, not allowed      ``ValueError``
`UnsafeNameError`          a key is not safe to write      ``ValueError``
`KeyExistsError`           a key already exists            ``ValueError``
`NotAnArrayError`          NumPy cannot make it an array   ``TypeError``
`ConversionError`          the format cannot store it      ``ValueError``
`NoDataError`              nothing is left to read         ``EOFError``
`MemberNotFoundError`      no member has this key          ``KeyError``
`MissingShardError`        a file of an index is missing   ``FileNotFoundError``
`ClosedArchiveError`       used after ``close()``          ``ValueError``
`StaleArchiveError`        the file changed while open     ``ValueError``
`OutdatedArraysError`      a stream had arrays too many    ``ValueError``
`NotMappableError`         cannot be memory-mapped         ``ValueError``
`ArchiveLockedError`       another writer has it open      ``BlockingIOError``
`NoCheckpointError`        no such step in a store         ``KeyError``
`DamagedCheckpointError`   a step cannot be trusted        ``ValueError``
`DifferentFilesError`      files do not fit each other     ``ValueError``
`TreeMismatchError`        it does not fit an example      ``ValueError``
`TornArchiveWarning`       an append was not finished      ``UserWarning``
`AmbiguousArchiveWarning`  a name occurs more than once    ``UserWarning``
`DamagedCheckpointWarning` a damaged step was skipped      ``UserWarning``
`TreeMismatchWarning`      ... with ``strict=False``       ``UserWarning``
`MadeUpDimensionsWarning`  dimensions have no names        ``UserWarning``
`UnversionedFileWarning`   a replacement would not show    ``UserWarning``
========================== =============================== =======================

``OSError`` is never wrapped: a missing file is ``FileNotFoundError``.

Whether an error means damage is its property `NpzkitError.is_damage`.
"""

# Owns the classes, the form of their messages, what their advice is called at a prompt, and
# how names, counts and sizes are shown. Imports nothing from npzkit and never opens a file.
# A layer raises with what it knows (an offset, what was found). The layers above add what they
# know (the key, the path) with `NpzkitError.locate`, so that no path is passed down. Whether an
# error means damage is set by its class or by the place that raises it.

from __future__ import annotations

import _thread
import errno
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType, MappingProxyType, TracebackType
from typing import Any, Self

__all__ = [
    "AmbiguousArchiveError", "AmbiguousArchiveWarning", "ArchiveLockedError", "ChecksumError",
    "ClosedArchiveError", "ConversionError", "DamagedCheckpointError", "DamagedCheckpointWarning",
    "DifferentFilesError", "FormatError", "IndexFormatError", "KeyExistsError",
    "LimitExceededError", "MadeUpDimensionsWarning", "MemberNotFoundError", "MissingShardError",
    "NoCheckpointError", "NoDataError", "NotAnArchiveError", "NotAnArrayError", "NotMappableError",
    "NpyFormatError", "NpzkitError", "OutdatedArraysError", "PickleRefusedError",
    "StaleArchiveError", "TornArchiveWarning", "TreeMismatchError", "TreeMismatchWarning",
    "UnsafeNameError", "UnsupportedError", "UnversionedFileWarning", "ZipFormatError",
]  # fmt: skip


def __dir__() -> list[str]:
    """Return the errors and warnings alone: the functions here are for npzkit."""
    return list(__all__)


_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


class Advice(str):
    """A text in the terms of Python, which carries the same in those of the command line.

    Text that is added with ``+`` comes before or after both.

    Attributes
    ----------
    command : str
        With options and commands, in which the file that an error is about is called FILE.

    Examples
    --------
    >>> text = "Pass " + Advice("allow_pickle=True", "--allow-pickle") + "."
    >>> text, text.command
    ('Pass allow_pickle=True.', 'Pass --allow-pickle.')
    """

    command: str

    def __new__(cls, text: str, command: str = "") -> Advice:
        made = super().__new__(cls, text)
        made.command = command
        return made

    def __add__(self, after: str) -> Advice:
        return Advice(super().__add__(after), self.command + at_prompt(after))

    def __radd__(self, before: str) -> Advice:
        return Advice(f"{before}{self}", at_prompt(before) + self.command)


def at_prompt(text: str | BaseException) -> str:
    """Return a text, or that of an error or a warning, in the terms of the command line."""
    if isinstance(text, BaseException):
        advice = [one for one in text.args[:1] if isinstance(one, Advice)]
        return advice[0].command if advice else str(text)
    return text.command if isinstance(text, Advice) else text


ALLOW_PICKLE = Advice("allow_pickle=True", "--allow-pickle")
SKIP = Advice("skip=True", "--skip")
REPLACE = (
    "Pass " + Advice("overwrite=True to add()", "--overwrite")
    + " to replace it and its attributes, or use another key."
)  # fmt: skip
REMOVE_FIRST = (
    "Remove it first" + Advice(" with del", ": npzkit rm FILE KEY") + ", or use another key."
)
REPACK = Advice("npzkit.repack", "npzkit repack FILE")
REPAIR = Advice("npzkit.repair(path)", "npzkit repair FILE")
SAVE_SOUND = Advice("npzkit.repair(path, output)", "npzkit repair FILE -o OTHER")
SAVE_PARTIAL = Advice(
    "npzkit.repair(path, output, keep_partial='mask')",
    "npzkit repair FILE -o OTHER --keep-partial mask",
)
REST_SAVED = SAVE_PARTIAL + " saves the other values"
GET_AGAIN = "Download it, create it again or restore a backup"
DAMAGED = f"The file is damaged, or a faulty program wrote it. {GET_AGAIN}."
DAMAGED_END = f"{DAMAGED} " + SAVE_SOUND + " saves the members that are sound."
"""The remedy if an archive cannot be opened, but has members that can be read."""
READ_DIFFERENTLY = (
    "Programs would read different data from this file. Create it again, or use "
    + SAVE_SOUND + ", which saves the members that are sound."
)  # fmt: skip
COPIED_AS_TEXT = (
    "The file was copied as text: each line feed became CR LF. Copy it again, in binary mode."
)
"""The remedy for what FTP's ASCII mode or git's autocrlf did to a file."""
TO_UNDO = f"{COPIED_AS_TEXT} Or undo that: " + SAVE_SOUND + "."
"""For an archive, whose CRC-32s show that it is as it was."""
TO_CONVERT = "Convert it: " + Advice(
    'npzkit.convert(path, "new.npz").', "npzkit convert FILE NEW.npz."
)
"""The remedy for a file of another format that npzkit reads."""
TORCH_TO_CONVERT = TO_CONVERT + " This needs PyTorch."
AS_MATLAB_7 = (
    "Load it in MATLAB, and save it by the command save new.mat -v7. Or give it a name that ends "
    "in .h5, convert that, and transpose the arrays: HDF5 has MATLAB's axes in reverse order."
)
"""The remedy for a file of version 7.3 of MATLAB's format."""
_SHOWN_LENGTH = 120
"""Characters of a quoted value. A hostile header may be megabytes long."""
_KEY_LENGTH = 80
"""Characters of a key in a table, because every row is as wide as the longest key."""


def printable(text: str) -> str:
    r"""Return `text` with every character escaped that could control a terminal or a page.

    These are control characters (C1 too), marks that change the direction of
    text, line and paragraph separators, and halves of surrogate pairs.

    Examples
    --------
    >>> print(printable("a\u202eb"))
    a\u202eb
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown_key(key: str) -> str:
    r"""Return a key or a path as tables show it: shortened, and quoted if it has escapes.

    Examples
    --------
    >>> print(shown_key("layer/w"), shown_key("a\x9b31m"))
    layer/w 'a\x9b31m'
    """
    if len(key) > _KEY_LENGTH:
        key = key[: _KEY_LENGTH - 3] + "..."
    return key if key.isprintable() else repr(key)


def quoted(path: str | os.PathLike[str]) -> str:
    r"""Return a path in quotes, with the separators of Windows as they are.

    Examples
    --------
    >>> print(quoted("C:\\data\\a.npz"))
    'C:\data\a.npz'
    """
    return repr(os.fspath(path)).replace("\\\\", "\\")


# Patterns are compiled on first use, because importing this module should take no time.
_SCHEME = "[A-Za-z][A-Za-z0-9+.-]{0,30}://"


def shown_url(text: str) -> str:
    """Return a URL, or a text with URLs in it, without user, password, query and fragment.

    Everything that shows a URL calls this. Where a password could end at two places, the
    longer one is hidden. A query is hidden to the end of the text, because it may have spaces.

    Examples
    --------
    >>> shown_url("s3://bucket/a.npz"), shown_url("zip://b::https://me:secret@host/a?token=1")
    ('s3://bucket/a.npz', 'zip://b::https://host/a?...')
    >>> shown_url("cannot read http://me:se/cret@host/a")
    'cannot read http://...@host/a'
    >>> shown_url("abfs://container@account.dfs.core.windows.net/a.npz")
    'abfs://container@account.dfs.core.windows.net/a.npz'
    """
    found = re.search(_SCHEME, text)
    if found is None:
        return text
    start = found.start()
    return text[:start] + "::".join(map(_shown_link, re.split(f"::(?={_SCHEME})", text[start:])))


def _shown_link(link: str) -> str:
    """Return one URL of a chain as `shown_url` does."""
    scheme, _, rest = link.partition("://")
    before, _, after = rest.rpartition("@")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    if ":" not in before:
        # In abfs://container@account.dfs.core.windows.net/a.npz there is no user.
        if "@" in authority and scheme.lower() not in ("abfs", "abfss"):
            rest = rest[authority.rindex("@") + 1 :]
    elif "@" in authority and authority.rindex("@") == len(before):
        rest = after
    elif "?" in before or "#" in before:
        # The @ is in a query, or the ? in a password.
        rest = "..."
    else:
        # The @ is in a path, or a / in the password.
        rest = f"...@{after}"
    path = re.split("[?#]", rest, maxsplit=1)[0]
    # In s3://bucket/run?.npz the question mark is part of a pattern.
    if path != rest and ("http" in link.lower() or "=" in rest[len(path) :]):
        rest = f"{path}?..."
    return f"{scheme}://{rest}"


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun.

    Examples
    --------
    >>> format_count(1, "member"), format_count(2000, "member")
    ('1 member', '2,000 members')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def some_of(values: Sequence[Any], show: Callable[[Any], str] = str, most: int = 10) -> str:
    """Return the first of some values as text, and how many more there are.

    Examples
    --------
    >>> some_of(["a", "b", "c"], repr, 2), some_of([7])
    ("'a', 'b' and 1 more", '7')
    """
    left = len(values) - most
    return ", ".join(map(show, values[:most])) + (f" and {left:,} more" if left > 0 else "")


def two_sizes(one: int, other: int) -> tuple[str, str]:
    """Return two sizes that differ as texts that differ."""
    texts = format_size(one), format_size(other)
    return texts if texts[0] != texts[1] else (f"{one:,} B", f"{other:,} B")


def format_size(size: int) -> str:
    """Return a number of bytes with a unit.

    Examples
    --------
    >>> format_size(500), format_size(64 << 20)
    ('500 B', '64.0 MiB')
    """
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def format_ratio(compressed_size: int, size: int) -> str:
    """Return a compressed size as a share of the size.

    Examples
    --------
    >>> format_ratio(38, 100), format_ratio(0, 0)
    ('38 %', '-')
    """
    return f"{100 * compressed_size / size:.0f} %" if size else "-"


def format_dtype(dtype: Any, length: int = 40) -> str:
    """Return a NumPy dtype as NumPy prints it, cut to a number of characters; "-" for None.

    Examples
    --------
    >>> import numpy as np
    >>> format_dtype(np.dtype("<f4")), format_dtype(np.dtype("U8")), format_dtype(np.dtype("S8"))
    ('float32', '<U8', '|S8')
    """
    if dtype is None:
        return "-"
    try:
        text = printable(str(dtype))
    except RecursionError:
        return "structure"
    return text if len(text) <= length else text[: length - 3] + "..."


class NpzkitError(Exception):
    """Base class of the errors that npzkit raises for bad input and refused calls.

    Parameters
    ----------
    what : str
        What went wrong, in one sentence without a full stop.
    path : str or path-like, optional
        The archive; of a URL, without secrets.
    key : str, optional
        The array key.
    offset : int, optional
        Bytes from the start of the file to the fault; of a damaged member, to its
        local header if that is damaged, and otherwise to its data, or to its damaged
        chunk.
    found, expected : object, optional
        The value that was found, and the value that was expected.
    remedy : str, optional
        What to do about it, as a full sentence. Some classes have a default.
    is_damage : bool, optional
        Whether the bytes of the file are not what was written. A refused pickle, what
        exceeds a limit, and a file of another format that npzkit knows may be sound. Each class
        has a default.

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
    is_damage: bool = False
    _is_foreign: bool = False
    """Whether the file may be sound, but is none of npzkit's: of another format, or encrypted."""
    _suffix: str = ""
    """That of files of the other format, if `npzkit.convert` reads it."""
    _found_at: str = "at"

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
        is_damage: bool | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.path = _shown_path(path)
        self.key = key
        self.offset = offset
        self.found = found
        self.expected = expected
        self.remedy = self._usual_remedy if remedy is None else remedy
        if is_damage is not None:
            self.is_damage = is_damage

    def _as_foreign(self, suffix: str = "") -> Self:
        self.is_damage, self._is_foreign, self._suffix = False, True, suffix
        return self

    def locate(
        self,
        *,
        path: str | os.PathLike[str] | None = None,
        key: str | None = None,
        offset: int | None = None,
    ) -> NpzkitError:
        """Fill in where the error happened, unless a lower layer has done so."""
        if self.path is None:
            self.path = _shown_path(path)
        if self.key is None:
            self.key = key
        if self.offset is None:
            self.offset = offset
        return self

    def __str__(self) -> str:
        where = []
        if self.path is not None:
            where.append(f"in {quoted(self.path)}")
        if self.key is not None:
            where.append(f"key {shown_value(self.key)}")
        if self.offset is not None:
            where.append(f"{self._found_at} byte {self.offset}")
        text = self.what + (f" ({', '.join(where)})" if where else "") + values_text(self)
        return printable(f"{text}. {self.remedy}" if self.remedy else text)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: without npzkit's frames, until %xmode --show."""
        formatter = sys.modules["IPython"].get_ipython().InteractiveTB
        kept: dict[BaseException, TracebackType | None] = {}
        error: BaseException | None = self
        while error is not None and error not in kept:
            kept[error] = error.__traceback__
            error = error.__cause__ or error.__context__
        try:
            if formatter.skip_hidden:
                for error, traceback in kept.items():
                    error.__traceback__ = _without_own_frames(traceback)
            lines: list[str] = formatter.structured_traceback(type(self), self, self.__traceback__)
            return lines
        finally:
            for error, traceback in kept.items():
                error.__traceback__ = traceback


def _without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this package."""
    others = []
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__", "").split(".")[0] != "npzkit":
            others.append(traceback)
        traceback = traceback.tb_next
    found = None
    for other in reversed(others):
        found = TracebackType(found, other.tb_frame, other.tb_lasti, other.tb_lineno)
    return found


def _shown_path(path: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    return shown_url(path) if isinstance(path, str) else path


def values_text(error: NpzkitError) -> str:
    """Return what was found and expected, to be added to a sentence; empty without both."""
    values = [
        f"{name} {shown_value(value)}"
        for name, value in (("found", error.found), ("expected", error.expected))
        if value is not None
    ]
    return ": " + ", ".join(values) if values else ""


def shown_value(value: object) -> str:
    """Return a value from a file as messages quote it, cut to a readable length."""
    if isinstance(value, (str, bytes)):
        value = value[: _SHOWN_LENGTH + 1]
    try:
        text = repr(value)
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"
    return text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + "..."


def is_damage(error: BaseException) -> bool:
    """Return whether an error means that the bytes of a file are not what npzkit wrote.

    Either the error says so, or the file is of another format, or the path is that of a folder.
    If a disk or a network cannot read them now, nothing is known of them.
    """
    if isinstance(error, NpzkitError):
        return error.is_damage or error._is_foreign
    return isinstance(error, OSError) and error.errno == errno.EISDIR


def may_be_damage(error: BaseException) -> bool:
    """Return whether an error is damage, or a damaged byte may be why something is refused."""
    return is_damage(error) or isinstance(error, (LimitExceededError, PickleRefusedError))


def closed_error() -> ClosedArchiveError:
    """Return the error for a read of an archive that was closed."""
    return ClosedArchiveError("the archive is closed", remedy="Open it again.")


def check_limit(
    found: int, limit: int | None, name: str, what: str, offset: int | None = None
) -> None:
    """Raise LimitExceededError if a number exceeds the limit with this name in `npzkit.Limits`."""
    if limit is not None and found > limit:
        are_sizes = name.endswith("_size")
        texts = two_sizes(found, limit) if are_sizes else (f"{found:,}", f"{limit:,}")
        raise LimitExceededError(
            what,
            offset=offset,
            found=texts[0],
            expected=f"at most {texts[1]}",
            remedy=f"Pass limits=npzkit.Limits({name}=...) if the file is trusted.",
        )


class FormatError(NpzkitError, ValueError):
    """The bytes do not follow the format."""

    is_damage = True


class NpyFormatError(FormatError):
    """An array's header or data is not valid NPY."""


class IndexFormatError(FormatError):
    """The index of a sharded archive is not valid, or does not fit the shards."""


class MissingShardError(NpzkitError, FileNotFoundError):
    """A shard that the index of a sharded archive names does not exist."""

    is_damage = True


class ZipFormatError(FormatError, zipfile.BadZipFile):
    """The file is not a valid zip archive."""

    _usual_remedy = DAMAGED


class NotAnArchiveError(ZipFormatError):
    """The file is of another kind; that is damage if it may be what is left of an archive."""


class ChecksumError(NpzkitError, ValueError, zipfile.BadZipFile):
    """The CRC-32 of the data differs from the recorded one.

    Attributes
    ----------
    chunk : int or None
        The number of the damaged chunk, counted from 1, if the archive has a CRC-32 per chunk.
    """

    is_damage = True
    chunk: int | None = None
    _found_at = "in the data from"


class AmbiguousArchiveError(NpzkitError, ValueError):
    """Different programs would read different contents from the archive."""

    is_damage = True


class UnsupportedError(NpzkitError, NotImplementedError):
    """The input is valid, but npzkit or this Python does not support it."""


class LimitExceededError(NpzkitError, ValueError):
    """Something exceeds the limits of the archive, or of the zip format."""


class PickleRefusedError(NpzkitError, ValueError):
    """The array needs pickle, and pickle is not allowed."""


class UnsafeNameError(NpzkitError, ValueError):
    """The key would be dangerous or ambiguous as a member name."""


class KeyExistsError(UnsafeNameError):
    """The archive already has this key, or one that would conflict with it."""


class NotAnArrayError(NpzkitError, ValueError, TypeError):
    """NumPy cannot make an array of the object."""


class ConversionError(NpzkitError, ValueError):
    """A file or an array that cannot be converted, packed or extracted as asked."""


class NoDataError(NpzkitError, EOFError):
    """The file is empty, or the stream is at its end."""

    is_damage = True


class MemberNotFoundError(NpzkitError, KeyError):
    """No member of the archive has this key."""


class ClosedArchiveError(NpzkitError, ValueError):
    """The archive was used after it was closed."""


class StaleArchiveError(NpzkitError, ValueError):
    """The file changed since the archive was opened."""


class OutdatedArraysError(NpzkitError, ValueError):
    """Arrays came in a stream that the archive's directory, at its end, does not list.

    Attributes
    ----------
    keys : tuple of str
        Of the arrays that the archive does not have: they were removed, renamed
        or never committed.
    missing : tuple of str
        Keys that the archive has, and under which no array came.

    Examples
    --------
    >>> print(OutdatedArraysError.of(["old"], []))
    the stream had arrays that the archive does not have: 'old'. Drop them; or save the stream to \
a file, open that, and read only current arrays.
    """

    keys: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, keys: Iterable[str], missing: Iterable[str]) -> OutdatedArraysError:
        """Return the error for these keys, all of which its message names."""
        error = cls(
            remedy="Drop them; or save the stream to a file, open that, and read only current "
            "arrays."
        )
        error.keys, error.missing = tuple(keys), tuple(missing)
        groups = (
            ("the stream had arrays that the archive does not have", error.keys),
            ("the archive has keys under which no array came", error.missing),
        )
        error.what = "; ".join(
            f"{text}: {', '.join(map(shown_value, names))}" for text, names in groups if names
        )
        return error


class NotMappableError(NpzkitError, ValueError):
    """The member cannot be memory-mapped."""


class ArchiveLockedError(NpzkitError, BlockingIOError):
    """Another writer has the archive open."""

    # tblib, which dask.distributed imports, sets what it has read of a system's error.
    errno = property(lambda self: errno.EAGAIN, lambda self, number: None)
    filename = property(lambda self: self.path, lambda self, name: None)


class TreeMismatchError(NpzkitError, ValueError):
    """The archive does not have the structure of the example that was given.

    Attributes
    ----------
    missing : tuple of str
        Keys of the example that are not in the archive.
    left_over : tuple of str
        Keys of the archive that the example does not have.
    differing : dict of str to (str, str)
        By key, what was found and what was expected.

    Examples
    --------
    >>> print(TreeMismatchError.of(["a"], ["b"], {"c": ("float32 (2,)", "int64 ()")}))
    the archive does not fit the example: missing: 'a'; left over: 'b'; differing: 'c' (found \
float32 (2,), expected int64 ()). Pass strict=False to load what fits.
    """

    missing: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()
    differing: Mapping[str, tuple[str, str]] = MappingProxyType({})

    @classmethod
    def of(
        cls,
        missing: Iterable[str],
        left_over: Iterable[str],
        differing: Mapping[str, tuple[str, str]],
        path: str | os.PathLike[str] | None = None,
    ) -> TreeMismatchError:
        """Return the error for these keys, the first of which its message names."""
        error = cls(path=path, remedy="Pass strict=False to load what fits.")
        error.missing, error.left_over = tuple(missing), tuple(left_over)
        error.differing = dict(differing)
        differences = [
            f"{shown_value(key)} (found {found}, expected {expected})"
            for key, (found, expected) in error.differing.items()
        ]
        groups = {
            "missing": some_of(error.missing, shown_value, 5),
            "left over": some_of(error.left_over, shown_value, 5),
            "differing": some_of(differences, most=5),
        }
        texts = [f"{name}: {keys}" for name, keys in groups.items() if keys]
        error.what = f"the archive does not fit the example: {'; '.join(texts)}"
        return error


_BETWEEN = ("contextlib", "xarray")
"""Modules between npzkit and the code that uses it."""


def explain(error: BaseException, text: str) -> None:
    """Add a clause to the message of an error, whose class stays.

    Examples
    --------
    >>> explain(error := OSError(28, "No space left on device"), "step 1 was not saved")
    >>> print(error)
    [Errno 28] No space left on device (step 1 was not saved)
    """
    if isinstance(error, NpzkitError):
        told = f"{text[:1].upper()}{text[1:]}."
        error.remedy = told + " " + error.remedy if error.remedy else told
    elif isinstance(error, OSError) and error.strerror:
        error.strerror = f"{error.strerror} ({text})"
    else:
        error.args = (f"{error} ({text})".lstrip(), *error.args[1:])


_works_for = _thread._local()
"""In a thread that npzkit started: the caller for whom it works."""


def caller() -> tuple[str, int, dict[str, Any]]:
    """Return the line that called npzkit, or what calls it for users: file, number, globals."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE)
        or frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN
    ):
        frame = frame.f_back
    if frame is not None:
        return frame.f_code.co_filename, frame.f_lineno, frame.f_globals
    found: tuple[str, int, dict[str, Any]]
    found = getattr(_works_for, "caller", None) or ("sys", 1, sys.__dict__)
    return found


def work_for(found: tuple[str, int, dict[str, Any]]) -> None:
    """Have warnings of this thread, which npzkit started, point to what `caller` returned."""
    _works_for.caller = found


def warn(message: str | Warning, category: type[Warning]) -> None:
    """Issue a warning that points to the line that called npzkit, also from its threads."""
    filename, line, names = caller()
    text = message if isinstance(message, Warning) else printable(message)
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, category, filename, line, names.get("__name__"), registry)


def quiet_at_exit(
    destroy: Callable[[Any], None], is_finalizing: Callable[[], bool] = sys.is_finalizing
) -> Callable[[Any], None]:
    """Return a destructor without errors at the end of Python, when modules may be cleared."""

    def destructor(owner: Any) -> None:
        try:
            destroy(owner)
        except Exception:
            if not is_finalizing():
                raise

    return destructor


class NoCheckpointError(NpzkitError, KeyError):
    """The store has no such step, or no step at all."""


class DamagedCheckpointError(NpzkitError, ValueError):
    """A step is damaged, or no step of the store is sound."""

    is_damage = True


class DifferentFilesError(NpzkitError, ValueError):
    """Files that are to be joined differ in their keys, shapes or dtypes."""


class TornArchiveWarning(UserWarning):
    """Bytes follow the end of the archive: an append was not finished."""


class AmbiguousArchiveWarning(UserWarning):
    """A member name occurs more than once; the last one is used."""


class TreeMismatchWarning(UserWarning):
    """The archive does not have the structure of the example; what fits was loaded.

    Attributes
    ----------
    mismatch : TreeMismatchError
        What did not fit.
    """

    mismatch: TreeMismatchError


class DamagedCheckpointWarning(UserWarning):
    """A damaged step was skipped; an older one is used."""


class MadeUpDimensionsWarning(UserWarning):
    """The dimensions of arrays have no names in the archive; names were made up."""


class UnversionedFileWarning(UserWarning):
    """A store sends nothing that shows whether the archive is replaced while it is open."""
