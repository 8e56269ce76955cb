"""An archive that is open for reading: its file, its directory, and how a key finds its member.

Owns whether the archive is open, whether the file still holds what was opened,
what closing it releases, and what is added to errors of the layers below, which know
neither keys nor paths. Turning members into arrays is
`npzkit.reading.member`'s.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from npzkit.archive.numpy_attributes import Handles
from npzkit.codecs.checksum import crc32
from npzkit.errors import ChecksumError, NpzkitError, StaleArchiveError, closed_error
from npzkit.files.source import Source
from npzkit.limits import Limits
from npzkit.members.keys import key_of, keys_of, member_of
from npzkit.reading.small_member import SmallReader
from npzkit.zip.directory import read_directory
from npzkit.zip.entries import Entry

if TYPE_CHECKING:
    from npzkit.members.info import ArrayInfo
    from npzkit.reading.indexed_headers import IndexedHeaders
    from npzkit.reading.maps import Maps
    from npzkit.reading.member import MemberReader
    from npzkit.zip.chunks import Chunks
    from npzkit.zip.entry_columns import Columns
    from npzkit.zip.member_stream import MemberStream

MmapMode = Literal["r", "c", "r+"]
NOT_MAPPED = (
    "an archive in a store cannot be mapped into memory",
    "Read parts of an array with npz.lazy(key), or download the file and map the copy.",
)


class OpenedArchive:
    """An archive that is open for reading.

    Parameters
    ----------
    source : Source
        The caller closes it if this fails.
    handles : Handles
    strict : bool
        Raise on oddities that are otherwise read with a warning.
    limits : Limits
    allow_pickle, pickle_kwargs
        As of `npzkit.NpzFile`.

    Attributes
    ----------
    source, handles, limits
    directory : Directory
        As it was opened.
    small : SmallReader
        Reads small stored members.
    is_open : bool
    """

    def __init__(
        self,
        source: Source,
        handles: Handles,
        *,
        strict: bool,
        limits: Limits,
        allow_pickle: bool,
        pickle_kwargs: Mapping[str, Any] | None,
    ) -> None:
        self.source, self.handles, self.limits = source, handles, limits
        # In a file object, an archive may begin at the object's position, after other data.
        self._starts = sorted({0, source.position})
        self.directory = read_directory(source, starts=self._starts, strict=strict, limits=limits)
        self.small = SmallReader(source, limits, allow_pickle=allow_pickle)
        self._pickle: Any = {"allow_pickle": allow_pickle, "pickle_kwargs": pickle_kwargs}
        self._reader: MemberReader | None = None
        # A writer may cut off what follows, or write there.
        source.size = self.directory.end_offset
        self._index: IndexedHeaders | None = None
        self._maps: Maps | None = None
        self._resealed: set[str] = set()
        self._keys: list[str] | None = None
        self.is_open = True

    @property
    def directory_crc32(self) -> int:
        """The CRC-32 of the directory, which holds those of all members."""
        if self._resealed and self.is_open:
            self._read_resealed()
        return crc32(self.directory.data)

    @property
    def is_sealed(self) -> bool:
        """Whether a footer covers the directory and the comment, which fit it if it does."""
        footer = self.directory.footer
        return footer is not None and footer.comment_size == len(self.directory.comment)

    # -- members ------------------------------------------------------------

    @property
    def entries(self) -> dict[str, Entry] | Columns:
        """The directory's entries, with the CRCs that flushes of maps have changed since."""
        if self._resealed and self.is_open:
            self._read_resealed()
        return self.directory.entries

    def _read_resealed(self) -> None:
        from npzkit.reading.flush import resealed

        self._resealed.clear()
        self.directory = resealed(self.directory, self.source)
        self._index = None

    @property
    def reader(self) -> MemberReader:
        """What reads members of every kind, which is imported with the first that is not small."""
        reader = self._reader  # which another thread may take away by `close`
        if reader is None:
            from npzkit.reading.member import MemberReader

            reader = self._reader = MemberReader(
                self.source, self.limits, self.directory, **self._pickle
            )
        return reader

    def read_index(self) -> IndexedHeaders:
        """Return the array index, which is read now unless it was before."""
        from npzkit.reading.indexed_headers import IndexedHeaders

        self.check_open()
        entries, index = self.entries, self._index
        if index is None:
            index = IndexedHeaders(self.reader, self.directory._replace(entries=entries))
            self._index = index
        return index

    def check_header(self, entry: Entry) -> None:
        """Compare a member's own header with what the array index says, if that was read."""
        index = self._index
        if index is not None:
            index.check_header(entry)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """As in `npzkit.NpzFile`."""
        raise NotImplementedError

    @property
    def keys(self) -> list[str]:
        """The key under which each member is listed."""
        if self._keys is None:
            self._keys = keys_of(self.entries.keys())
        return self._keys

    def entry(self, key: str) -> Entry:
        """Return the entry of the member that a key means.

        Raises
        ------
        MemberNotFoundError, ClosedArchiveError
            No such key, or the archive is closed.
        """
        if not self.is_open:
            self.check_open()
        entries = self.entries
        name = member_of(key, entries)
        if name is None:
            from npzkit.members.metadata import missing_or_tied

            raise missing_or_tied(key, self.keys, self.path, lambda: self.metadata)
        return entries[name]

    def choose(self, keys: Iterable[str] | None) -> tuple[Sequence[str], Collection[str]]:
        """Return keys, without repetitions, and their members' names; all if `keys` is None."""
        entries = self.entries
        if keys is None:
            return self.keys, entries
        chosen = list(dict.fromkeys(keys))
        # `entry` raises what is wrong with a key.
        return chosen, [member_of(key, entries) or self.entry(key).name for key in chosen]

    def listed_key(self, entry: Entry) -> str:
        """Return the key under which a member is listed, whatever key it was asked for by."""
        return key_of(entry.name, self.entries)

    def chunks(self, key: str, *, verify: bool = True) -> Chunks:
        """Return the bytes of a member, to be read in parts, if the file has not changed."""
        entry = self.entry(key)
        self.check_unchanged()
        # Of some members no CRC-32 is compared, which would show that the file was replaced.
        self.source.check_versioned()
        index = self._index
        checked = index is not None and index.has_checks(entry)
        start = index.data_start(entry) if index is not None and self.source.is_distant else None
        if start is not None:
            check = partial(self.check_header, entry)
            return self.reader.chunks(entry, start, check, verify=verify, checked=checked)
        chunks = self.reader.chunks(entry, verify=verify, checked=checked)
        self.check_header(entry)
        return chunks

    # -- maps ---------------------------------------------------------------

    def map(self, info: ArrayInfo, entry: Entry, mode: str) -> np.memmap[Any, Any]:
        """Map the array of a member into memory; see `npzkit.NpzFile.memmap`."""
        if self._maps is None:
            from npzkit.reading.maps import Maps

            opened = self.directory.directory_offset, self.directory.size
            self._maps = Maps(self.source, self._starts, opened, self._resealed)
        try:
            return self._maps.array(info, entry, mode)
        except NpzkitError:
            raise
        except ValueError as error:
            # The file is shorter than it was.
            try:
                self.check_unchanged()
            except StaleArchiveError as stale:
                raise stale from error
            raise

    @property
    def has_writable_maps(self) -> bool:
        """Whether arrays of mode "r+" still exist."""
        return self._maps is not None and self._maps.has_writable

    def flush(self) -> None:
        """Write what was changed through maps, and its CRC-32."""
        if self._maps is not None:
            self._maps.flush()

    # -- the file -----------------------------------------------------------

    @property
    def path(self) -> str | None:
        """The path, for messages; None for an archive in memory."""
        return self.source.shown_path

    @property
    def state(self) -> tuple[Any, ...] | None:
        """What must be equal when the archive is opened again; None if it cannot be."""
        state = self.source.state
        return None if state is None else (*state, self.directory_crc32)

    def check_open(self) -> None:
        """Raise ClosedArchiveError if the archive is closed."""
        if not self.is_open:
            raise closed_error().locate(path=self.path)

    def check_unchanged(self) -> None:
        """Raise StaleArchiveError if the file no longer holds what was opened."""
        self.source.check_unchanged(lambda: self.directory.is_kept(self.source))

    def check_listed(self, key: str | None) -> None:
        """Raise StaleArchiveError if the file's current directory has another CRC for a key."""
        from npzkit.reading.flush import is_outdated

        name = member_of(key, self.entries)
        if name is not None and is_outdated(
            self.source, self.directory, self._starts, self.entries[name]
        ):
            raise StaleArchiveError(
                "the array was changed through a map since the archive was opened",
                remedy="Open it again.",
            )

    def close(self) -> None:
        """Flush maps and close the file; see `npzkit.NpzFile.close`."""
        if self.is_open:
            try:
                if self._maps is not None:
                    self._maps.flush()
            finally:
                try:
                    self._release()
                finally:
                    # Again, as an interrupt may come at any instant.
                    self.is_open = False
                    self.source.close()

    def _release(self) -> None:
        if self.is_open:
            self.is_open = False
            if self._maps is not None:
                self._maps.forget()
            self._index = self._reader = None
            self.handles.close()
            self.source.close()


def check_mmap_mode(mode: object) -> None:
    """Raise ValueError unless this is a mode of `npzkit.NpzFile.memmap`."""
    if mode not in ("r", "c", "r+"):
        raise ValueError(f"mmap_mode must be 'r', 'c', 'r+' or None, not {mode!r}")


class Explained:
    """A block of code that reads from an archive, and whose errors say where.

    Parameters
    ----------
    archive : OpenedArchive
    key : str or None
        The array that is read; None for the archive itself.
    """

    __slots__ = ("_archive", "_key")

    def __init__(self, archive: OpenedArchive, key: str | None) -> None:
        self._archive, self._key = archive, key

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        if isinstance(error, NpzkitError):
            explained = explain(self._archive, error, self._key)
            if explained is not error:
                raise explained from error.__cause__
            # How the layers below came to it is no use to whoever reads the message.
            error.__suppress_context__ = True


def explain(archive: OpenedArchive, error: NpzkitError, key: str | None) -> NpzkitError:
    """Return an error that says where it happened, and whether the file changed.

    Parameters
    ----------
    archive : OpenedArchive
    error : NpzkitError
        Is completed and returned, unless the file changed.
    key : str or None
        The array that was read, if `error` does not say.

    Returns
    -------
    NpzkitError
        To be raised ``from error.__cause__``.
    """
    if isinstance(error, ChecksumError) and archive.has_writable_maps:
        error.remedy = (
            'The archive has maps of mode "r+". If the array was changed through one, '
            "call npz.flush() first."
        )
    if error.is_damage and archive.is_open:
        error = _stale(archive, error, key) or error
    error.locate(path=archive.path, key=key)
    name = member_of(error.key, archive.entries)
    if name is not None:
        error.key = key_of(name, archive.entries)
        if not isinstance(error, StaleArchiveError):
            error = _in_chunk(archive, error, archive.entries[name])
    return error


def _in_chunk(archive: OpenedArchive, error: NpzkitError, entry: Entry) -> NpzkitError:
    """Return the error that names the damaged chunk of a member, if its chunks are known."""
    if error.is_damage and archive.is_open and not getattr(error, "chunk", None):
        with contextlib.suppress(NpzkitError, OSError):
            chunks = archive.reader.checked_chunks(entry)
            for _, damaged in () if chunks is None else chunks.damaged():
                damaged.remedy = error.remedy
                return damaged.locate(path=error.path, key=error.key)
    return error.locate(offset=entry.header_offset)


def _stale(archive: OpenedArchive, error: NpzkitError, key: str | None) -> StaleArchiveError | None:
    """Return the error of a file that changed, which is then the cause; None if it did not."""
    try:
        archive.check_unchanged()
        if isinstance(error, ChecksumError):
            archive.check_listed(error.key or key)
    except StaleArchiveError as stale:
        return stale
    return None


class LocatedStream(io.RawIOBase):
    """A member's stream whose errors say which archive and key it is."""

    def __init__(self, stream: MemberStream, explain: Callable[[NpzkitError], NpzkitError]) -> None:
        self._stream = stream
        self._explain = explain

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return self._stream.readinto(buffer)
        except NpzkitError as error:
            raise self._explain(error) from error.__cause__

    def readall(self) -> bytes:
        try:
            return self._stream.readall()
        except NpzkitError as error:
            raise self._explain(error) from error.__cause__
