"""An archive in one file: its arrays, and what is known of them without reading data.

Owns what each call of an `NpzFile` does then. Finding members, and what errors say, is
`npzkit.archive.opened_archive`'s; making arrays of members is `npzkit.reading`'s.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from npzkit.archive.numpy_attributes import Handles, file_of
from npzkit.archive.opened_archive import (
    NOT_MAPPED,
    Explained,
    LocatedStream,
    MmapMode,
    OpenedArchive,
    explain,
)
from npzkit.codecs.coding import STORED
from npzkit.errors import ClosedArchiveError, NpzkitError, StaleArchiveError, UnsupportedError
from npzkit.files.file_objects import can_read
from npzkit.files.locations import open_anywhere
from npzkit.files.source import SeekingSource
from npzkit.limits import Limits
from npzkit.members.keys import member_of
from npzkit.reading.small_member import SMALL_SIZE, Options

if TYPE_CHECKING:
    from npzkit.archive.contents import Join
    from npzkit.archive.lazyarray import LazyArray
    from npzkit.maintenance.findings import VerifyReport
    from npzkit.members.info import ArchiveInfo, ArrayInfo
    from npzkit.reading.indexing import Box


_FEW_COUNT = 16
"""Most small arrays that `load_all` reads one by one."""


class SingleFile(OpenedArchive):
    """An archive in one file; see `npzkit.archive.contents.ArchiveContents`.

    Parameters
    ----------
    file, own_fid, storage_options
        As of `npzkit.NpzFile`.
    options : dict
        Of `OpenedArchive`.
    """

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
        source = open_anywhere(file, owned=own_fid, storage_options=storage_options)
        try:
            handles = Handles(source, given_zip, source.handle if is_owner else None)
            super().__init__(source, handles, **options)
        except BaseException as error:
            source.close()
            if isinstance(error, NpzkitError):
                error.locate(path=source.shown_path)
            raise

    def one_file(self) -> OpenedArchive:
        return self

    # -- the archive --------------------------------------------------------

    @property
    def has_open_file(self) -> bool:
        return self.source.path is not None and not self.source.file.closed

    @property
    def reopening(self) -> tuple[str, dict[str, Any]]:
        path, own_options = self.source.reopening
        return path, {**self._options, **own_options}

    @property
    def reading_limits(self) -> Limits:
        """Pickles are for trusted files only, and their headers have no limit."""
        return self.limits._replace(header_size=self.small.header_limit)

    @property
    def nbytes(self) -> int:
        return self.directory.sizes()[1]

    @property
    def file_size(self) -> int:
        return self.source.file_size

    @property
    def own_file(self) -> Any:
        return self.handles.file(is_open=self.is_open)

    @cached_property
    def comment(self) -> bytes:
        from npzkit.zip.directory import comment_of

        with Explained(self, None):
            return comment_of(self.directory, self.source, self.limits.metadata_size)

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        from npzkit.members.metadata import parse_metadata

        comment = self.comment
        with Explained(self, None):
            return parse_metadata(comment, self.limits.metadata_size)

    def archive_info(self) -> ArchiveInfo:
        from npzkit.members.info import ArchiveInfo
        from npzkit.zip.dead_space import dead_size

        with Explained(self, None):
            directory, source = self.directory, self.source
            compressed_size, uncompressed_size = directory.sizes()
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
        progress: Callable[[int, int], object] | None,
        threads: int,
    ) -> VerifyReport:
        from npzkit.maintenance.verify import verify_source

        directory = self.directory._replace(entries=self.entries)
        limits = self.reading_limits
        with Explained(self, None):
            report = verify_source(self.source, directory, limits, keys, progress, threads)
            if not report.ok:
                # What was opened may have been written over since.
                self.check_unchanged()
                damaged = (row.key for row in report.rows if row.severity == "error")
                self.check_listed(next(filter(None, damaged), None))
            return report

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
            # As `Explained`, which would add to the time of each small array.
            raise explain(self, error, key) from error.__cause__

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

        with Explained(self, None):
            options = Options(verify=verify)
            found = read_many(self.reader, entries, chosen, names, threads, options)
            if self._index is not None:
                self._index.check_arrays(names, found.values())
            return found

    def read_boxes(
        self, boxes: Mapping[str, Iterable[Box]], threads: int, verify: bool
    ) -> dict[str, dict[Box, np.ndarray[Any, Any]]]:
        return {}

    @property
    def can_be_read_twice(self) -> bool:
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
        with Explained(self, None):
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
        with Explained(self, key):
            return join(self.listed_key(self.entry(key)), self.saved_attrs(key))

    def split_keys(self, keys: Iterable[str]) -> list[str]:
        from npzkit.members.metadata import PARTS_ATTRIBUTE

        entries, text = self.entries, PARTS_ATTRIBUTE.encode()
        if not isinstance(entries, dict) and not entries.has_text(text):
            return []
        return [key for key in keys if text in self.entry(key).extra]

    def saved_attrs(self, key: str) -> Mapping[str, Any]:
        from npzkit.members.metadata import parse_attrs

        return parse_attrs(self.entry(key).extra)

    def lazy(self, key: str, npz: Any, *, verify: bool = True) -> LazyArray:
        entry = self.entry(key)
        with Explained(self, key):
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
        info = self.read_info(key)
        with Explained(self, key):
            return self.map(info, self.entry(key), mode)

    def stream(self, key: str, *, verify: bool = True) -> BinaryIO:
        entry = self.entry(key)
        with Explained(self, key):
            self.check_header(entry)
            stream = self.reader.open_stream(entry, verify=verify)
        located = LocatedStream(stream, lambda error: explain(self, error, key))
        return cast(BinaryIO, io.BufferedReader(located, 1 << 18))

    def streams(self, key: str) -> Iterator[BinaryIO]:
        yield self.stream(key)

    # -- what is known of them ----------------------------------------------

    def info(self, key: str) -> ArrayInfo:
        # Whoever asks for many finds out of all at once.
        infos = self._index.infos if self._index is not None else None
        known = infos.get(key) if infos and type(key) is str and not self._resealed else None
        if known is None:
            entry = self.entry(key)
            with Explained(self, key):
                known = self.read_index().info(self.listed_key(entry), entry, self.keys)
        return self.read_info(key) if known is None else known

    def read_info(self, key: str) -> ArrayInfo:
        """Return what is known of a member by its own headers."""
        from npzkit.reading.indexed_headers import read_info

        entry = self.entry(key)
        with Explained(self, key):
            return read_info(self.reader, self.listed_key(entry), entry)

    def infos(self, most: int | None = None) -> Iterator[ArrayInfo]:
        """Yield what is known of members; without shape and dtype of those that cannot be read."""
        from npzkit.members.info import describe

        if most is None:
            with Explained(self, None):
                self.read_index().describe_all(self.keys)
        for key in self.keys[:most]:
            try:
                yield self.info(key)
            except (StaleArchiveError, ClosedArchiveError):
                raise
            except NpzkitError:
                entry = self.entry(key)
                yield describe(key, entry, None, entry.header_offset, {})
