"""The arrays of an archive that is read from front to back.

Owns the key of a member before all members are known, and what the directory,
at the end, says of the arrays that came before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from npzkit.errors import LimitExceededError, NpzkitError, ZipFormatError
from npzkit.limits import Limits
from npzkit.members.keys import key_of, keys_of
from npzkit.members.metadata import parse_attrs
from npzkit.members.tensors import DTYPE_ATTRIBUTE
from npzkit.reading.member import CHUNKED_SIZE, MemberReader, Result
from npzkit.reading.small_member import SMALL_SIZE, Options
from npzkit.zip.directory import Directory
from npzkit.zip.entries import Entry
from npzkit.zip.forward_archive import ForwardArchive, ForwardMember


class Comparison(NamedTuple):
    """What the directory says of the arrays that were read before it.

    Attributes
    ----------
    outdated : tuple of str
        Keys whose last array is not the one that the directory lists: it was
        removed, renamed, or never committed.
    unread : tuple of str
        Other keys that the directory lists, and under which nothing was read.
    replaced : tuple of str
        Other keys under which several arrays were read. The last one is current.
    """

    outdated: tuple[str, ...]
    unread: tuple[str, ...]
    replaced: tuple[str, ...]


class StreamedArchive(ForwardArchive):
    """An archive that is read from front to back, once.

    Parameters
    ----------
    stream : object with ``read``
    limits : Limits
    allow_pickle, pickle_kwargs
        As of `MemberReader`.

    Attributes
    ----------
    path : str or None
        The stream's name, for messages.
    """

    def __init__(
        self,
        stream: Any,
        limits: Limits,
        *,
        allow_pickle: bool,
        pickle_kwargs: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(stream, limits)
        self.path = self.source.shown_path
        self._reader = MemberReader(
            self.source, limits, allow_pickle=allow_pickle, pickle_kwargs=pickle_kwargs
        )
        self._names: set[str] = set()
        # By offset, under which key a member was read, and the dtype that its attributes name.
        self._read: dict[int, tuple[str, Any]] = {}
        self._failed: dict[int, NpzkitError] = {}

    def __iter__(self) -> Iterator[tuple[str, ForwardMember]]:
        """Yield the members with their keys."""
        for member in self.members():
            name = member.entry.name
            self._names.add(name)
            yield key_of(name, self._names), member

    def read(self, key: str, member: ForwardMember) -> Result:
        """Return the array of the member that was yielded last, or its bytes if it is none.

        Raises
        ------
        NoDataError
            The stream ends early; `compare` says what that means.
        NpzkitError
            As `npzkit.NpzFile.read`.
        """
        is_small = member.entry.uncompressed_size < CHUNKED_SIZE
        data = member.held(SMALL_SIZE) if is_small else None
        found: Result | None = None if data is None else self._reader.read_held(data, member.entry)
        if found is None:
            found = self._reader.read_stream(member.open(), member.entry, Options())
        self.end(member)
        self._read[member.entry.header_offset] = key, _dtype_name(member.entry)
        return found

    def pass_over(self, member: ForwardMember, error: NpzkitError) -> bool:
        """Note that the member that was yielded last cannot be read; return whether to go on.

        In an archive that was appended to, it may be part of an append that was
        not finished, as `compare` then says. It raises `error` otherwise.
        """
        entry = member.entry
        # What was given up while it was being created has no CRC-32.
        is_given_up = not (entry.crc32 or member.is_described_late)
        if (self.has_commit or is_given_up) and not isinstance(error, LimitExceededError):
            self._failed[entry.header_offset] = error
            return True
        return False

    def compare(self, *, strict: bool = False) -> Comparison:
        """Compare what was read with the directory at the end of the stream.

        Raises
        ------
        ZipFormatError, AmbiguousArchiveError, UnsupportedError, LimitExceededError
            As `npzkit.open` raises them for a file with the stream's bytes. Or a
            local header and its entry disagree.
        NpzkitError
            A listed member was passed over.

        Warns
        -----
        TornArchiveWarning, AmbiguousArchiveWarning
            As `npzkit.open`.
        """
        keys = entries_by_key(self.read_directory(strict=strict))
        last = {key: offset for offset, (key, _) in self._read.items()}
        current = {key: self._find(key, entry) for key, entry in keys.items()}
        outdated = {key for key, offset in last.items() if current.get(key) != offset}
        counts = Counter(key for key, _ in self._read.values())
        return Comparison(
            tuple(key for key in last if key in outdated),
            tuple(key for key in keys if key not in last),
            tuple(key for key in last if counts[key] > 1 and key not in outdated),
        )

    def _find(self, key: str, entry: Entry) -> int | None:
        """Return where a listed member came in the stream; None if it was read as another one.

        Its data was compared with its headers when it was read, and these are
        compared with its entry now.
        """
        offset = entry.header_offset
        if offset in self._failed:
            raise self._failed[offset]
        try:
            self.check(entry)
        except NpzkitError as error:
            raise error.locate(key=key, offset=offset) from error.__cause__
        read = self._read.get(offset)
        return offset if read is None or read == (key, _dtype_name(entry)) else None


def entries_by_key(directory: Directory) -> dict[str, Entry]:
    """Return what a directory lists, by key."""
    entries = directory.entries
    return dict(zip(keys_of(entries.keys()), entries.values(), strict=True))


def _dtype_name(entry: Entry) -> Any:
    """Return the dtype that an array's attributes name, as either header has them."""
    if not entry.extra:
        return None
    try:
        return parse_attrs(entry.extra).get(DTYPE_ATTRIBUTE)
    except ZipFormatError:
        # Only arrays of bytes need them, and reading one of those has raised this.
        return None
