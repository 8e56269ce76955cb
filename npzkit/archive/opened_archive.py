"""An archive in one file that is open for reading.

Owns what each call of an `NpzFile` does then: how a key finds its member, whether the file still
holds what was opened, what closing releases; and what is added to errors of the layers below, which
know neither keys nor paths. Making arrays of members is `npzkit.reading`'s. What users may pass is
checked before, and documented, in `npzkit.archive.npzfile`. The shards of a folder have the same
calls: `npzkit.datasets.sharded_contents`.
"""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from npzkit.archive.located_errors import Explained, LocatedStream
from npzkit.archive.numpy_attributes import Handles, file_of
from npzkit.codecs.checksum import crc32
from npzkit.codecs.coding import STORED
from npzkit.errors import (
    ChecksumError,
    ClosedArchiveError,
    NpzkitError,
    StaleArchiveError,
    UnsupportedError,
    closed_error,
    may_be_damage,
)
from npzkit.files.any_source import open_any_source
from npzkit.files.file_objects import can_read
from npzkit.files.source import BufferSource, SeekingSource, Source
from npzkit.limits import Limits
from npzkit.members.keys import key_of, keys_of, member_of
from npzkit.reading.small_member import SMALL_SIZE, Options, SmallReader
from npzkit.zip.directory import Directory, read_directory
from npzkit.zip.entries import Entry, Rows

if TYPE_CHECKING:
    from npzkit.archive.lazyarray import LazyArray
    from npzkit.maintenance.findings import VerifyReport
    from npzkit.members.array_info import ArchiveInfo, ArrayInfo
    from npzkit.reading.indexing import Box
    from npzkit.reading.known_arrays import KnownArrays
    from npzkit.reading.maps import Maps
    from npzkit.reading.member import MemberReader
    from npzkit.typing import MmapMode, Progress
    from npzkit.zip.chunks import Chunks
    from npzkit.zip.entry_columns import Columns

Join = Callable[[str, Mapping[str, Any]], Any]
"""Puts an array together, by its key and its attributes."""
NOT_MAPPED = (
    "an archive in a store cannot be mapped into memory",
    "Read parts of an array with npz.lazy(key), or download the file and map the copy.",
)
_FEW_COUNT = 16
"""Most small arrays that `load_all` reads one by one."""


class OpenedArchive:
    """An archive in one file.

    Parameters
    ----------
    file, own_fid, storage_options
        As of `npzkit.NpzFile`.
    options : dict
        ``limits``, and ``strict``, ``allow_pickle`` and ``pickle_kwargs`` as of `npzkit.NpzFile`.

    Attributes
    ----------
    source, handles, limits
    directory : Directory
        As it was opened, but for CRC-32s that flushes of maps have changed since.
    small : SmallReader
        Reads small stored members.
    has_checksums : bool
        False of a .npy file, which has none.
    is_open : bool
    """

    has_checksums = True

    def __init__(
        self,
        file: Any,
        own_fid: bool,
        options: dict[str, Any],
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        given_zip = None
        if isinstance(file, zipfile.ZipFile):
            given_zip, file, own_fid = file, file_of(file), False
        self._options = options
        is_owner = own_fid and can_read(file)
        source = open_any_source(file, owned=own_fid, storage_options=storage_options)
        try:
            self.handles = Handles(source, given_zip, source.handle if is_owner else None)
            self._begin(source, **options)
        except BaseException as error:
            source.close()
            if isinstance(error, NpzkitError):
                error.locate(path=source.shown_path)
            raise

    def _begin(
        self,
        source: Source,
        *,
        strict: bool,
        limits: Limits,
        allow_pickle: bool,
        pickle_kwargs: Mapping[str, Any] | None,
    ) -> None:
        """Read the directory."""
        self.source, self.limits = source, limits
        # In a file object, an archive may begin at the object's position, after other data.
        self._starts = sorted({0, source.position})
        self.directory = self._read_directory(source, strict=strict, limits=limits)
        self.small = SmallReader(source, limits, allow_pickle=allow_pickle)
        self._pickle: Any = {"allow_pickle": allow_pickle, "pickle_kwargs": pickle_kwargs}
        self._reader: MemberReader | None = None
        # A writer may cut off what follows, or write there.
        source.size = self.directory.end_offset
        self._index: KnownArrays | None = None
        self._maps: Maps | None = None
        self._flushed: set[str] = set()
        self._keys: list[str] | None = None
        self.is_open = True

    def _read_directory(self, source: Source, *, strict: bool, limits: Limits) -> Directory:
        return read_directory(source, starts=self._starts, strict=strict, limits=limits)

    # -- the archive --------------------------------------------------------

    def one_file(self) -> OpenedArchive:
        """Return the archive; a sharded one raises UnsupportedError."""
        return self

    @property
    def has_open_file(self) -> bool:
        """Whether a file of its own is open, which somebody should close."""
        return self.source.path is not None and not self.source.file.closed

    @property
    def reopening(self) -> tuple[str, dict[str, Any]]:
        """The path or URL, and the options to open it with again."""
        path, own_options = self.source.reopening
        return path, {**self._options, **own_options}

    @property
    def reading_limits(self) -> Limits:
        """Pickles are for trusted files only, and their headers have no limit."""
        return self.limits._replace(header_size=self.small.header_limit)

    @property
    def nbytes(self) -> int:
        return self.directory.entries.sizes()[1]

    @property
    def file_size(self) -> int:
        return self.source.file_size

    @property
    def own_file(self) -> Any:
        return self.handles.file(is_open=self.is_open)

    @cached_property
    def comment(self) -> bytes:
        from npzkit.zip.directory import comment_of

        with self.explained():
            return comment_of(self.directory, self.source, self.limits.metadata_size)

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        from npzkit.members.metadata import parse_metadata

        comment = self.comment
        with self.explained():
            return parse_metadata(comment, self.limits.metadata_size)

    def archive_info(self) -> ArchiveInfo:
        from npzkit.members.array_info import ArchiveInfo
        from npzkit.zip.dead_space import dead_size

        with self.explained():
            directory, source = self.directory, self.source
            compressed_size, uncompressed_size = directory.entries.sizes()
            return ArchiveInfo(
                path=self.path,
                size=source.file_size,
                member_count=len(directory.entries),
                start_offset=directory.start_offset,
                directory_offset=directory.directory_offset,
                directory_size=directory.size,
                end_offset=directory.end_offset,
                dead_size=dead_size(source, directory),
                torn_size=max(source.file_size - directory.end_offset, 0),
                comment=directory.comment,
                compressed_size=compressed_size,
                uncompressed_size=uncompressed_size,
            )

    def verify(
        self,
        keys: list[str] | None,
        progress: Progress | None,
        threads: int,
    ) -> VerifyReport:
        from npzkit.maintenance.verify import verify_source

        self._read_flushed()
        directory, limits = self.directory, self.reading_limits
        with self.explained():
            report = verify_source(self.source, directory, limits, keys, progress, threads)
            if not report.ok:
                # What was opened may have been written over since.
                self.check_unchanged()
                damaged = (row.key for row in report.rows if row.severity == "error")
                self.check_listed(next(filter(None, damaged), None))
            return report

    @property
    def directory_crc32(self) -> int:
        """The CRC-32 of the directory, which holds those of all members."""
        self._read_flushed()
        return crc32(self.directory.data)

    @property
    def is_sealed(self) -> bool:
        """Whether a footer covers the directory and the comment, which fit it if it does."""
        footer = self.directory.footer
        return footer is not None and footer.comment_size == len(self.directory.comment)

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
        from npzkit.reading.map_flush import is_outdated

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

    # -- members ------------------------------------------------------------

    @property
    def entries(self) -> Rows | Columns:
        """The directory's entries, with the CRCs that flushes of maps have changed since."""
        if self._flushed:
            self._read_flushed()
        return self.directory.entries

    def _read_flushed(self) -> None:
        """Read the directory again, if flushes have changed CRCs in it."""
        if self._flushed and self.is_open:
            from npzkit.reading.map_flush import with_flushed_crc32s

            self._flushed.clear()
            self.directory = with_flushed_crc32s(self.directory, self.source)
            self._index = None

    @property
    def reader(self) -> MemberReader:
        """What reads members of every kind, which is imported with the first that is not small."""
        reader = self._reader  # which another thread may take away by `close`
        if reader is None:
            kind = self._kind_of_reader()
            reader = self._reader = kind(self.source, self.limits, self.directory, **self._pickle)
        return reader

    def _kind_of_reader(self) -> type[MemberReader]:
        from npzkit.reading.member import MemberReader

        return MemberReader

    def read_index(self) -> KnownArrays:
        """Return the array index, which is read now unless it was before."""
        from npzkit.reading.known_arrays import KnownArrays

        self.check_open()
        self._read_flushed()
        index = self._index
        if index is None:
            index = self._index = KnownArrays(self.reader, self.directory)
        return index

    def check_header(self, entry: Entry) -> None:
        """Compare a member's own header with what the array index says, if that was read."""
        index = self._index
        if index is not None:
            index.check_header(entry)

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

    # -- arrays -------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, key: object) -> bool:
        return member_of(key, self.entries) is not None

    def read(self, key: str, verify: bool, threads: int | None) -> Any:
        entry = self.entry(key)
        try:
            is_plain = not entry.extra and entry.method == STORED
            found: Any = self.small.read_small(entry, verify) if is_plain else None
            if found is None:
                found = (self._reader or self.reader).read(entry, Options(None, threads, verify))
            if self._index is not None:
                self._index.check_arrays((entry.name,), (found,))
            return found
        except NpzkitError as error:
            # As `explained`, which would add to the time of each small array.
            raise self.explain(error, key) from error.__cause__

    def load_all(self, keys: Iterable[str] | None, threads: int, verify: bool) -> dict[str, Any]:
        chosen, names = self.choose(keys)
        entries = self.entries
        is_few = len(names) == 1 or (
            len(names) <= _FEW_COUNT
            and all(entries[name].uncompressed_size < SMALL_SIZE for name in names)
        )
        if is_few and not self.source.is_distant:
            # Reading them together takes longer than it saves: a process would first import how.
            return {key: self.read(key, verify, threads) for key in chosen}
        from npzkit.reading.load_all import read_many

        with self.explained():
            options = Options(verify=verify)
            found = read_many(self.reader, entries, chosen, names, threads, options)
            if self._index is not None:
                self._index.check_arrays(names, found.values())
            return found

    def read_boxes(
        self, boxes: Mapping[str, Iterable[Box]], threads: int, verify: bool
    ) -> dict[str, dict[Box, np.ndarray[Any, Any]]]:
        """Return boxes of those arrays that lie in several parts, by key: in one file, none."""
        return {}

    @property
    def can_be_read_twice(self) -> bool:
        """Whether arrays may be checked before they are read, because reading is cheap."""
        # A file object may fetch or decompress what is read, unless it is known.
        is_known = (
            not isinstance(self.source, SeekingSource) or type(self.source.file) is io.BytesIO
        )
        return is_known and not self.source.is_distant

    def fill(
        self, outs: Mapping[str, Any], threads: int, verify: bool, *, is_trial: bool = False
    ) -> None:
        from npzkit.reading.load_all import read_many

        keys, names = self.choose(outs)
        options = Options(verify=verify, keeps=not is_trial, warns=False)
        with self.explained():
            self.check_unchanged()
            try:
                read_many(self.reader, self.entries, keys, names, threads, options, outs)
            except NpzkitError:
                raise
            except ValueError:
                # If the member's own header is damaged, an array may be what was saved.
                self.load_all(outs, threads, verify)
                raise

    def join(self, key: str, join: Join) -> Any:
        with self.explained(key):
            return join(self.listed_key(self.entry(key)), self.saved_attrs(key))

    def split_keys(self, keys: Iterable[str]) -> list[str]:
        from npzkit.members.metadata import PARTS_ATTRIBUTE

        text = PARTS_ATTRIBUTE.encode()
        if not self.entries.has_text(text):
            return []
        return [key for key in keys if text in self.entry(key).extra]

    def saved_attrs(self, key: str) -> Mapping[str, Any]:
        from npzkit.members.metadata import parse_attrs

        return parse_attrs(self.entry(key).extra)

    def lazy(self, key: str, npz: Any, *, verify: bool = True) -> LazyArray:
        entry = self.entry(key)
        with self.explained(key):
            from npzkit.archive.lazyarray import LazyArray

            known = self.read_index().find(entry.name)
            header = self.reader.header(entry)[0] if known is None else known
            lazy = LazyArray(npz, self, self.listed_key(entry), header, entry.extra, verify=verify)
            if known is None:
                # An array that cannot be read in parts raises its error now.
                self.chunks(key, verify=verify)
            return lazy

    def memmap(self, key: str, mode: MmapMode) -> np.memmap[Any, Any]:
        if self.source.is_distant:
            what, remedy = NOT_MAPPED
            raise UnsupportedError(what, path=self.path, key=key, remedy=remedy)
        if mode == "r" and isinstance(self.source, BufferSource):
            with self.explained(key):
                found: Any = self.small.array_in_place(self.entry(key), self.source)
            if found is not None:
                return cast("np.memmap[Any, Any]", found)
        info = self.read_info(key)
        with self.explained(key):
            return self.map(info, self.entry(key), mode)

    def stream(self, key: str, *, verify: bool = True) -> BinaryIO:
        entry = self.entry(key)
        with self.explained(key):
            self.check_header(entry)
            stream = self.reader.open_stream(entry, verify=verify)
        located = LocatedStream(stream, self.explained(key))
        return cast(BinaryIO, io.BufferedReader(located, 1 << 18))

    def streams(self, key: str) -> Iterator[BinaryIO]:
        yield self.stream(key)

    # -- what is known of them ----------------------------------------------

    def info(self, key: str) -> ArrayInfo:
        # Whoever asks for many finds out of all at once.
        infos = self._index.infos if self._index is not None else None
        known = infos.get(key) if infos and type(key) is str and not self._flushed else None
        if known is None:
            entry = self.entry(key)
            with self.explained(key):
                known = self.read_index().info(self.listed_key(entry), entry, self.keys)
        return self.read_info(key) if known is None else known

    def read_info(self, key: str) -> ArrayInfo:
        """Return what is known of a member by its own headers."""
        from npzkit.reading.known_arrays import read_info

        entry = self.entry(key)
        with self.explained(key):
            return read_info(self.reader, self.listed_key(entry), entry)

    def infos(self, most: int | None = None) -> Iterator[ArrayInfo]:
        """Yield what is known of members; without shape and dtype of those that cannot be read."""
        from npzkit.members.array_info import describe

        if most is None:
            with self.explained():
                self.read_index().describe_all(self.keys)
        for key in self.keys[:most]:
            try:
                yield self.info(key)
            except (StaleArchiveError, ClosedArchiveError):
                raise
            except NpzkitError:
                entry = self.entry(key)
                yield describe(key, entry, None, entry.header_offset, {})

    # -- maps ---------------------------------------------------------------

    def map(self, info: ArrayInfo, entry: Entry, mode: str) -> np.memmap[Any, Any]:
        """Map the array of a member into memory; see `npzkit.NpzFile.memmap`."""
        if self._maps is None:
            from npzkit.reading.map_flush import MapFlush
            from npzkit.reading.maps import Maps

            begun = self.source, self._starts, self.directory, self._flushed
            self._maps = Maps(self.source, partial(MapFlush, *begun))
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

    # -- errors -------------------------------------------------------------

    def explained(self, key: str | None = None) -> Explained:
        """Return a block of code that reads, from the array with a key, and whose errors say so."""
        return Explained(self.explain, key)

    def explain(self, error: NpzkitError, key: str | None) -> NpzkitError:
        """Return an error that says where it happened, and whether the file changed.

        Parameters
        ----------
        error : NpzkitError
            Is completed and returned, unless the file changed.
        key : str or None
            The array that was read, if `error` does not say.

        Returns
        -------
        NpzkitError
            To be raised ``from error.__cause__``.
        """
        if isinstance(error, ChecksumError) and self.has_writable_maps:
            error.remedy = (
                'The archive has maps of mode "r+". If the array was changed through one, '
                "call npz.flush() first."
            )
        if may_be_damage(error) and self.is_open:
            error = self._stale(error, key) or error
        error.locate(path=self.path, key=key)
        name = member_of(error.key, self.entries)
        if name is not None:
            error.key = key_of(name, self.entries)
            if not isinstance(error, StaleArchiveError):
                error = self._in_chunk(error, self.entries[name])
        return error

    def _in_chunk(self, error: NpzkitError, entry: Entry) -> NpzkitError:
        """Return the error that names the damaged chunk of a member, if its chunks are known."""
        if may_be_damage(error) and self.is_open and not getattr(error, "chunk", None):
            with contextlib.suppress(NpzkitError, OSError):
                chunks = self.reader.checked_chunks(entry)
                for _, damaged in () if chunks is None else chunks.damaged():
                    if self.has_writable_maps:
                        damaged.remedy = error.remedy
                    return damaged.locate(path=error.path, key=error.key)
        return error.locate(offset=entry.header_offset)

    def _stale(self, error: NpzkitError, key: str | None) -> StaleArchiveError | None:
        """Return the error of a file that changed, which is then the cause; None if it did not."""
        try:
            self.check_unchanged()
            if isinstance(error, ChecksumError):
                self.check_listed(error.key or key)
        except StaleArchiveError as stale:
            return stale
        return None


def check_mmap_mode(mode: object) -> None:
    """Raise ValueError unless this is a mode of `npzkit.NpzFile.memmap`."""
    if mode not in ("r", "c", "r+"):
        raise ValueError(f"mmap_mode must be 'r', 'c', 'r+' or None, not {mode!r}")
