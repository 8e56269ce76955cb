"""The lazy archive: a read-only mapping from keys to arrays.

Owns keys, opening, closing and pickling. Knows nothing of bytes: finding
members is `npzkit.zip`'s, turning them into arrays `npzkit.reading.member`'s.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

import numpy as np

from npzkit.errors import (
    ChecksumError,
    ClosedArchiveError,
    FormatError,
    NpyFormatError,
    NpzkitError,
    StaleArchiveError,
    shown_key,
)
from npzkit.files.parallel import thread_count
from npzkit.files.source import UNNAMED, FileSource, Source, SourceFile, duplicate, open_source
from npzkit.limits import DEFAULT_HEADER_SIZE, Limits
from npzkit.members.info import ArchiveInfo, ArrayInfo, describe, format_summary
from npzkit.members.keys import key_of, keys_of, member_of, missing
from npzkit.members.metadata import parse_attrs, parse_metadata
from npzkit.reading.many import read_many
from npzkit.reading.member import MemberReader, Options
from npzkit.reading.stream import LocatedStream
from npzkit.zip.directory import read_directory
from npzkit.zip.entries import Entry
from npzkit.zip.sozip import find_index

if TYPE_CHECKING:
    from npzkit.archive.lazyarray import LazyArray
    from npzkit.maintenance.verify import VerifyReport
    from npzkit.reading.maps import Maps
    from npzkit.zip.random_access import RandomAccess

__all__ = ["NpzFile", "open"]

MmapMode = Literal["r", "c", "r+"]

_REPR_COUNT = 5
"""Keys shown by ``repr``, as by numpy's."""


class NpzFile(Mapping[str, Any]):
    """An open ``.npz`` archive: ``npz[key]`` reads one array, now.

    Opening reads the archive's directory and nothing else. Each access reads
    its member again and returns a fresh, writable array whose CRC-32 was
    compared; only headers are cached. An archive may be shared by threads. From
    a path, an ordinary file or bytes it may be used in forked processes, and
    from a path pickled: it is opened again there.

    Parameters
    ----------
    file : path, bytes-like, file object or zipfile.ZipFile
        Bytes are contents. A file object must be able to read and seek; it is
        left open on `close`. The archive begins at the file's start, or where
        the object stands.
    own_fid : bool, default False
        Close the file object with the archive.
    allow_pickle : bool, default False
        Whether arrays of Python objects may be read. Unpickling runs code
        from the file.
    pickle_kwargs : dict, optional
        Passed on to `pickle.loads`: ``encoding``, ``fix_imports``.
    max_header_size : int, default 10_000
        Short for ``limits=Limits(header_size=...)``. Without effect under
        `allow_pickle`.
    mmap_mode : {None, "r", "c", "r+"}, optional
        ``npz[key]`` maps the member instead of reading it; see `memmap`.
    strict : bool, default False
        Raise on oddities that are otherwise read with a warning, a torn end or
        a repeated name; and on a name that cannot be used, whose member alone
        is otherwise refused.
    limits : Limits, optional
        Upper bounds on sizes and counts.

    Attributes
    ----------
    files : list of str
        The keys, in the archive's order.
    f : object
        The arrays as attributes: ``npz.f.weights``.
    metadata : mapping of str to object
        What the archive was saved with, read-only; empty for other writers'.
    zip : zipfile.ZipFile
        Onto the same archive, made on first use.
    fid : file object or None
        The file, where the archive opened or owns it.
    allow_pickle, pickle_kwargs, max_header_size
        As given.

    Raises
    ------
    OSError
        The path cannot be opened.
    ZipFormatError
        Not a zip archive, or a damaged one.
    AmbiguousArchiveError
        The archive could be read in two ways.
    UnsupportedError
        It is split over several files, or the file cannot seek.
    LimitExceededError
        It is larger than `limits` allow.

    Warns
    -----
    TornArchiveWarning
        Bytes follow the archive's end; what was complete is read.
    AmbiguousArchiveWarning
        A member's name is repeated; the last one is read.

    Notes
    -----
    Differences from `numpy.lib.npyio.NpzFile`: every read is checked; a
    ``.npy`` member that is no array is an error, not bytes; `mmap_mode` is
    honoured.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"weights": np.eye(2), "bias": np.zeros(2)}, metadata={"step": 7})
    >>> with npzkit.open(stream) as npz:
    ...     print(list(npz), npz["bias"], npz.metadata["step"])
    ['weights', 'bias'] [0. 0.] 7
    """

    def __init__(
        self,
        file: Any,
        own_fid: bool = False,
        allow_pickle: bool = False,
        pickle_kwargs: Mapping[str, Any] | None = None,
        *,
        max_header_size: int = DEFAULT_HEADER_SIZE,
        mmap_mode: MmapMode | None = None,
        strict: bool = False,
        limits: Limits | None = None,
    ) -> None:
        if mmap_mode is not None:
            _check_mmap_mode(mmap_mode)
        self._zip: zipfile.ZipFile | None = None
        self._zip_stream: io.BufferedReader | None = None
        self._maps: Maps | None = None
        self._closes_silently = False
        self._fid: Any = None
        if isinstance(file, zipfile.ZipFile):
            self._zip, file, own_fid = file, _file_of(file), False
        if limits is None:
            limits = Limits(header_size=max_header_size)
        elif max_header_size != DEFAULT_HEADER_SIZE:
            raise ValueError("give max_header_size or limits=Limits(header_size=...), not both")
        elif not isinstance(limits, Limits):
            raise TypeError(f"limits must be an npzkit.Limits, not {type(limits).__name__}")
        self.allow_pickle = allow_pickle
        self.pickle_kwargs = pickle_kwargs
        self._limits = limits
        self.max_header_size = limits.header_size
        self.mmap_mode = mmap_mode
        self._options = {
            "allow_pickle": allow_pickle, "pickle_kwargs": pickle_kwargs,
            "mmap_mode": mmap_mode, "strict": strict, "limits": limits,
        }  # fmt: skip
        is_owner = own_fid and hasattr(file, "read")
        self._source: Source = open_source(file, owned=own_fid)
        self._is_open = True
        self._fid = self._source.handle if is_owner else None
        try:
            # Behind other data in a file object, an archive may begin where that stands.
            self._starts = sorted({0, self._source.position})
            directory = read_directory(
                self._source, starts=self._starts, strict=strict, limits=limits
            )
            self._reader = MemberReader(
                self._source, limits,
                allow_pickle=allow_pickle, pickle_kwargs=pickle_kwargs,
            )  # fmt: skip
        except BaseException as error:
            self.close()
            if isinstance(error, NpzkitError):
                error.locate(path=self._path)
            raise
        self._directory = directory
        self._resealed: set[str] = set()
        self._comment = directory.comment
        # What lies behind may be cut off by a writer, or be written by one.
        self._source.size = self._end_offset = directory.end_offset
        self._files: list[str] | None = None

    # -- the mapping --------------------------------------------------------

    @property
    def files(self) -> list[str]:
        if self._files is None:
            self._files = keys_of(self._entries.keys())
        return self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return member_of(key, self._entries) is not None

    def __getitem__(self, key: str) -> Any:
        if self.mmap_mode is not None:
            return self.memmap(key, self.mmap_mode)
        return self.read(key)

    def get(self, key: str, default: Any = None, /) -> Any:
        """Return the array under `key`, or `default` where there is none."""
        return self[key] if key in self else default  # noqa: SIM401 - this is get

    def __repr__(self) -> str:
        keys = ", ".join(map(shown_key, self.files[:_REPR_COUNT]))
        if len(self.files) > _REPR_COUNT:
            keys += "..."
        return f"NpzFile {self._source.name!r} with keys: {keys}"

    def _repr_html_(self) -> str:
        from npzkit.archive.notebook import SHOWN_COUNT, archive_html

        title = f"NpzFile {self._source.name!r}"
        if not self._is_open:
            return archive_html(f"{title}, closed", (), len(self), 0, {})
        infos = (self._info_or_blank(key) for key in self.files[:SHOWN_COUNT])
        size = sum(entry.uncompressed_size for entry in self._entries.values())
        return archive_html(title, infos, len(self), size, self.metadata)

    def _ipython_key_completions_(self) -> list[str]:
        return self.files

    @property
    def f(self) -> _Attributes:
        return _Attributes(self)

    @property
    def metadata(self) -> Mapping[str, Any]:
        return parse_metadata(self._comment)

    # -- reading ------------------------------------------------------------

    def read(
        self,
        key: str,
        out: np.ndarray[Any, Any] | None = None,
        verify: bool = True,
        *,
        threads: int | None = None,
    ) -> Any:
        """Read one array.

        Parameters
        ----------
        key : str
            With or without ``.npy``.
        out : numpy.ndarray, optional
            Filled and returned instead of a new array. Needs the member's
            shape and dtype; memory in the member's order is read into
            directly.
        verify : bool, default True
            Compare the CRC-32; False reads damaged data as it is.
        threads : int, optional
            How many read the blocks of a large stored array, or inflate the
            chunks of a deflated one with a seek index; None takes the
            processors there are.

        Returns
        -------
        numpy.ndarray or bytes
            Fresh and writable. Bytes for a member that is not an array, as
            numpy returns.

        Raises
        ------
        MemberNotFoundError
            No such key.
        ChecksumError
            The data is damaged.
        ZipFormatError, NpyFormatError
            The member is not what its headers say.
        PickleRefusedError
            An array of objects, and the archive was opened without
            ``allow_pickle=True``.
        UnsupportedError
            Encrypted, or in a compression method that is missing here.
        LimitExceededError
            Header or member are larger than the limits.
        StaleArchiveError
            The file changed since it was opened.
        ClosedArchiveError
            After `close`.
        """
        entry = self._entry(key)
        if out is not None:
            _check_out(out)
        try:
            return self._reader.read(entry, Options(out, thread_count(threads), verify))
        except NpzkitError as error:
            raise self._explain(error, key) from error.__cause__

    def load_all(
        self,
        keys: Iterable[str] | None = None,
        threads: int | None = None,
        *,
        verify: bool = True,
    ) -> dict[str, Any]:
        """Read many arrays at once, faster than one by one.

        Parameters
        ----------
        keys : iterable of str, optional
            Which ones; all by default.
        threads : int, optional
            None takes the processors there are.
        verify : bool, default True
            Compare each CRC-32.

        Returns
        -------
        dict of str to numpy.ndarray
            In the order of `keys`, or of the archive. Fresh and writable, also
            under `mmap_mode`; small neighbours may share up to 1 MiB of memory.

        Raises
        ------
        NpzkitError
            As `read`, for the first member that fails.
        TypeError
            `keys` is a string.
        ValueError
            `threads` is not a positive number.
        """
        self._check_open()
        if isinstance(keys, str):
            raise TypeError(f"keys must be several keys, not one string: [{keys!r}]")
        if keys is None:
            wanted: Sequence[str] = self.files
            names: Collection[str] = self._entries
        else:
            wanted = list(dict.fromkeys(keys))
            names = [self._member(key) for key in wanted]
        count = thread_count(threads)
        try:
            return read_many(self._reader, self._entries, wanted, names, count, verify=verify)
        except NpzkitError as error:
            raise self._explain(error, None) from error.__cause__

    def join(self, key: str) -> Any:
        """Read one array, and put it together where it was split into several.

        Parameters
        ----------
        key : str

        Returns
        -------
        numpy.ndarray, numpy.ma.MaskedArray or bytes
            A masked array that was saved with ``masked="split"``, an array of
            `numpy.dtypes.StringDType` saved with ``strings="split"``; all else
            as `read`.

        Raises
        ------
        NpyFormatError
            The parts do not fit each other.
        NpzkitError
            As `read`, for each part.

        Examples
        --------
        >>> import io, npzkit, numpy as np
        >>> stream = io.BytesIO()
        >>> npzkit.save(stream, {"t": np.ma.array([1, 2], mask=[0, 1])}, masked="split")
        >>> npz = npzkit.open(stream)
        >>> npz["t"], npz["t.mask"], npz.join("t")
        (array([1, 2]), array([False,  True]), masked_array(data=[1, --],
                     mask=[False,  True],
               fill_value=999999))
        """
        return self._join(key, self.read)

    def _join(self, key: str, read: Callable[[str], Any]) -> Any:
        from npzkit.members.multipart import join

        try:
            entry = self._entry(key)
            return join(read, self._listed(entry), parse_attrs(entry.extra))
        except NpzkitError as error:
            raise self._explain(error, key) from error.__cause__

    def info(self, key: str) -> ArrayInfo:
        """Return what is known of a member without reading its data.

        Raises
        ------
        NpzkitError
            As `read`, but for the data itself.

        Examples
        --------
        >>> import io, npzkit, numpy as np
        >>> stream = io.BytesIO()
        >>> npzkit.save(stream, {"w": np.zeros((3, 4), "f4")})
        >>> info = npzkit.open(stream).info("w")
        >>> info.shape, str(info.dtype), info.nbytes, info.method, info.aligned
        ((3, 4), 'float32', 48, 'stored', True)
        """
        entry = self._entry(key)
        try:
            header, start = self._reader.header(entry)
            attrs = parse_attrs(entry.extra)
            indexed = find_index(self._source, entry, start) is not None
        except NpzkitError as error:
            raise self._explain(error, key) from error.__cause__
        return describe(self._listed(entry), entry, header, start, attrs, indexed=indexed)

    def archive_info(self) -> ArchiveInfo:
        """Return what is known of the archive as a file, dead space included.

        Raises
        ------
        NpzkitError
            The file changed, or the archive is closed.

        Examples
        --------
        >>> import io, npzkit, numpy as np
        >>> stream = io.BytesIO()
        >>> npzkit.save(stream, {"w": np.zeros(3)})
        >>> info = npzkit.open(stream).archive_info()
        >>> info.member_count, info.size == info.end_offset, info.dead_size
        (1, True, 0)
        """
        self._check_open()
        from npzkit.zip.raw_entries import dead_size

        directory = self._directory
        try:
            dead = dead_size(self._source, directory)
        except NpzkitError as error:
            raise self._explain(error, None) from error.__cause__
        return ArchiveInfo(
            path=self._path,
            size=self._source.file_size,
            member_count=len(directory.entries),
            start_offset=directory.start_offset,
            directory_offset=directory.directory_offset,
            directory_size=directory.size,
            end_offset=directory.end_offset,
            dead_size=dead,
            torn_size=max(self._source.file_size - directory.end_offset, 0),
            comment=directory.comment,
            compressed_size=sum(entry.compressed_size for entry in directory.entries.values()),
            uncompressed_size=sum(entry.uncompressed_size for entry in directory.entries.values()),
        )

    def summary(self) -> str:
        """Return a table of the members: key, shape, dtype, size, method.

        Reads every member's header. A member that cannot be read is listed
        without shape and dtype.
        """
        title = f"NpzFile {self._source.name!r}"
        return format_summary(title, (self._info_or_blank(key) for key in self.files))

    def _info_or_blank(self, key: str) -> ArrayInfo:
        try:
            return self.info(key)
        except (StaleArchiveError, ClosedArchiveError):
            raise
        except NpzkitError:
            entry = self._entry(key)
            return describe(key, entry, None, entry.header_offset, {})

    def verify(
        self,
        keys: Iterable[str] | None = None,
        progress: Callable[[int, int], object] | None = None,
        *,
        threads: int | None = None,
    ) -> VerifyReport:
        """Hold the archive against every rule; see `npzkit.verify`.

        Parameters
        ----------
        keys : iterable of str, optional
            Members to look at; all by default.
        progress : callable, optional
            Called with the uncompressed bytes done and those there are.
        threads : int, optional
            None takes the processors there are.

        Returns
        -------
        VerifyReport
            ``ok``, and a row for each thing that is to be said.

        Raises
        ------
        MemberNotFoundError
            One of `keys` is not there.
        ClosedArchiveError
            After `close`.

        Examples
        --------
        >>> import io, npzkit, numpy as np
        >>> stream = io.BytesIO()
        >>> npzkit.save(stream, {"w": np.zeros(3)})
        >>> npzkit.open(stream).verify().ok
        True
        """
        self._check_open()
        from npzkit.maintenance.verify import check_wanted, verify_source

        check_wanted(keys)
        directory = self._directory._replace(entries=self._entries)
        wanted = None if keys is None else list(keys)
        limits, count = self._limits, thread_count(threads)
        try:
            return verify_source(self._source, directory, limits, wanted, progress, count)
        except NpzkitError as error:
            raise self._explain(error, None) from error.__cause__

    def lazy(self, key: str) -> LazyArray:
        """Return an array of which parts can be read; reads its header only.

        Parameters
        ----------
        key : str

        Returns
        -------
        LazyArray
            To be indexed while the archive is open.

        Raises
        ------
        NpyFormatError
            The member is not an array.
        UnsupportedError
            It holds Python objects, or its compression method is missing here.
        NpzkitError
            As `info`.

        Examples
        --------
        >>> import io, npzkit, numpy as np
        >>> stream = io.BytesIO()
        >>> npzkit.save(stream, {"w": np.arange(1_000_000)}, compression="deflated")
        >>> npz = npzkit.open(stream)
        >>> npz.lazy("w")[500_000:500_003]
        array([500000, 500001, 500002])
        """
        entry = self._entry(key)
        try:
            from npzkit.archive.lazyarray import LazyArray

            header, _ = self._reader.header(entry)
            if header is None:
                raise NpyFormatError(
                    "the member is not an array", remedy="Read it with npz.stream(key)."
                )
            return LazyArray(self, self._listed(entry), header, parse_attrs(entry.extra))
        except NpzkitError as error:
            raise self._explain(error, key) from error.__cause__

    def _access(self, key: str) -> RandomAccess:
        """For `LazyArray`: the member's bytes, from a file that has not changed."""
        entry = self._entry(key)
        try:
            self._check_unchanged()
            return self._reader.random_access(entry)
        except NpzkitError as error:
            raise self._explain(error, key) from error.__cause__

    def stream(self, key: str) -> BinaryIO:
        """Open a member as a readable stream of its uncompressed bytes.

        NPY header included, as `numpy.lib.format.read_array` takes it. Forward
        only, in bounded memory, whatever the method. The end of the stream is
        checked, CRC included.

        Raises
        ------
        NpzkitError
            As `read`; format errors may come from the stream's own ``read``.
        """
        entry = self._entry(key)
        try:
            stream = self._reader.open_stream(entry)
        except NpzkitError as error:
            raise self._explain(error, key) from error.__cause__
        located = LocatedStream(stream, lambda error: self._explain(error, key))
        return cast(BinaryIO, io.BufferedReader(located, 1 << 18))

    def memmap(self, key: str, mode: MmapMode = "r") -> np.memmap[Any, Any]:
        """Map a stored member's array into memory, without reading it.

        Parameters
        ----------
        key : str
        mode : {"r", "c", "r+"}, default "r"
            Read-only; copy-on-write, where changes stay in memory; or
            read and write, where they go to the file.

        Returns
        -------
        numpy.memmap
            Valid after the archive is closed, and after the path's file is
            replaced. Its CRC is not compared. Data at an odd place, as other
            programs put it, makes it slower: see `ArrayInfo.aligned`.

        Notes
        -----
        Under "r+" the member's CRC-32 is rewritten by ``array.flush()``, by
        `flush` and `close` of the archive, and when the last array over the
        map is dropped. Several maps, threads and processes may change one array:
        the CRC-32 is right once each has flushed. In between, and after a crash,
        it is not that of the data: reading then raises ChecksumError. It becomes
        that of all that lies there, damage from before included: `verify` the
        member first if that matters. `npzkit.repair` completes a flush that was
        interrupted.

        Raises
        ------
        NotMappableError
            The member is compressed, holds objects, or the archive is not a
            file on disk; for "r+", its CRC stands behind its data.
        StaleArchiveError
            The file changed since it was opened; for "r+", also where the path
            leads to another file by now.
        NpzkitError
            As `info`.
        ArchiveLockedError
            For "r+", the file has holes to be filled, and a writer has it.
        OSError
            For "r+", the file cannot be opened for writing, or has holes and
            the disk is full.
        ValueError
            Another mode.
        """
        _check_mmap_mode(mode)
        info, entry = self.info(key), self._entry(key)
        if self._maps is None:
            from npzkit.reading.maps import Maps

            opened = self._directory.directory_offset, self._directory.size
            self._maps = Maps(self._source, self._starts, opened, self._resealed)
        try:
            return self._maps.array(info, entry, mode)
        except NpzkitError as error:
            raise self._explain(error, key) from error.__cause__
        except ValueError as error:
            try:
                self._check_unchanged()
            except StaleArchiveError as stale:
                raise self._explain(stale, key) from error
            raise

    def flush(self) -> None:
        """Write what was changed through maps of mode "r+", and the CRC-32 of it."""
        if self._maps is not None:
            self._maps.flush()

    # -- the archive as a file ----------------------------------------------

    @property
    def fid(self) -> Any:
        # Of its own, as the archive's is open for as long as a read is under way.
        if self._fid is None and self._source.path is not None and self._is_open:
            self._fid = duplicate(self._source)
        return self._fid

    @property
    def zip(self) -> zipfile.ZipFile:
        self._check_open()
        if self._zip is None:
            self._zip_stream = io.BufferedReader(SourceFile(self._source, self._end_offset))
            self._zip = zipfile.ZipFile(self._zip_stream)
        return self._zip

    def close(self) -> None:
        """Close what the archive opened, never a caller's file. Idempotent.

        Other threads may be reading: what they read by then is right, and the
        file is closed when the last of these reads ends. Later ones raise
        ClosedArchiveError.
        """
        if getattr(self, "_is_open", False):
            try:
                self.flush()
            finally:
                try:
                    self._release()
                finally:
                    # Once more, as an interrupt may come at any instant.
                    self._is_open = False
                    self._source.close()

    def _release(self) -> None:
        """Close what the archive opened."""
        if self._is_open:
            self._is_open = False
            if self._maps is not None:
                self._maps.forget()
            if hasattr(self, "_reader"):
                self._reader.forget()
            if self._zip is not None and self._zip_stream is not None:
                self._zip.close()
                self._zip_stream.close()
            if self._fid is not None and self._source.path is not None:
                self._fid.close()
            self._source.close()

    def __enter__(self) -> NpzFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        is_open = getattr(self, "_is_open", False)
        try:
            if (
                is_open
                and not self._closes_silently
                and self._source.path is not None
                and not self._source.file.closed
            ):
                warnings.warn(
                    f"unclosed archive {self._source.name!r}; use it in a with statement",
                    ResourceWarning,
                    stacklevel=2,
                    source=self,
                )
        finally:
            # The warning may be an error.
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        source = self._source
        if not isinstance(source, FileSource) or source.path is None:
            raise TypeError(
                "only an archive opened from a path can be pickled; "
                "this one was opened from an object"
            )
        self._check_open()
        return _reopen, (source.path, source.file_size, source.modified_ns, self._options)

    # -- shared by the above ------------------------------------------------

    @property
    def _entries(self) -> Mapping[str, Entry]:
        """The directory as it was read, except for CRCs that flushes of maps have changed."""
        if self._resealed and self._is_open:
            from npzkit.zip.crc_update import current_entries

            self._resealed.clear()
            entries = current_entries(self._directory, self._source)
            self._directory = self._directory.resealed(entries, self._source)
        return self._directory.entries

    def _entry(self, key: str) -> Entry:
        return self._entries[self._member(key)]

    def _listed(self, entry: Entry) -> str:
        """Return the key under which a member is listed, whichever one it was asked for by."""
        return key_of(entry.name, self._entries)

    def _member(self, key: str) -> str:
        self._check_open()
        name = member_of(key, self._entries)
        if name is None:
            raise missing(key, self.files, self._path)
        return name

    def _lend_source(self) -> Source:
        """For `npzkit.files.source.open_source`: the archive's bytes, which it goes on reading."""
        self._check_open()
        return self._source

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClosedArchiveError(
                "the archive is closed", path=self._path, remedy="Open it again."
            )

    def _check_unchanged(self) -> None:
        """Raise StaleArchiveError where the file no longer holds what was opened."""
        self._source.check_unchanged(lambda: self._directory.is_kept(self._source))

    def _check_listed(self, key: str | None) -> None:
        """Raise StaleArchiveError if the directory that counts by now has another CRC for a key."""
        from npzkit.reading.flush import is_outdated

        name = member_of(key, self._entries)
        if name is not None and is_outdated(
            self._source, self._directory, self._starts, self._entries[name]
        ):
            raise StaleArchiveError(
                "the array was changed through a map since the archive was opened",
                remedy="Open it again.",
            )

    def _explain(self, error: NpzkitError, key: str | None) -> NpzkitError:
        """Say where it happened; a file that changed is named as the cause."""
        has_maps = self._maps is not None and self._maps.has_writable
        if isinstance(error, ChecksumError) and has_maps:
            error.remedy = (
                'The archive has maps of mode "r+": where the member was changed through one, '
                "call npz.flush() first."
            )
        if isinstance(error, (FormatError, zipfile.BadZipFile)) and self._is_open:
            try:
                self._check_unchanged()
                if isinstance(error, ChecksumError):
                    self._check_listed(error.key or key)
            except StaleArchiveError as stale:
                error = stale
        error.locate(path=self._path, key=key)
        name = member_of(error.key, self._entries)
        if name is not None:
            error.key = key_of(name, self._entries)
            if not isinstance(error, StaleArchiveError):
                error.locate(offset=self._entries[name].header_offset)
        return error

    @property
    def _path(self) -> str | None:
        """The name for messages; what lies in memory has none."""
        return None if self._source.name == UNNAMED else self._source.name


class _Attributes:
    """The arrays of an archive as attributes."""

    def __init__(self, npz: NpzFile) -> None:
        self._npz = npz

    def __getattribute__(self, name: str) -> Any:
        npz = object.__getattribute__(self, "_npz")
        try:
            return npz[name]
        except KeyError as error:
            raise AttributeError(str(error)) from None

    def __dir__(self) -> list[str]:
        npz: NpzFile = object.__getattribute__(self, "_npz")
        return list(npz.files)


def _check_mmap_mode(mode: object) -> None:
    if mode not in ("r", "c", "r+"):
        raise ValueError(f"mmap_mode must be 'r', 'c', 'r+' or None, not {mode!r}")


def _check_out(out: object) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy array, not {type(out).__name__}")
    if not out.flags.writeable:
        raise ValueError("out must be writable")


def _file_of(archive: zipfile.ZipFile) -> Any:
    if archive.fp is None:
        raise ClosedArchiveError("the zipfile.ZipFile is closed", remedy="Open it again.")
    if archive.mode != "r":
        raise ValueError(f"the zipfile.ZipFile must be open for reading, not in mode "
                         f"{archive.mode!r}")  # fmt: skip
    return archive.fp


def _reopen(path: str, size: int, modified_ns: int, options: dict[str, Any]) -> NpzFile:
    """Open a pickled archive again, refusing a file that has changed."""
    npz = NpzFile(path, **options)
    source = npz._source
    found = getattr(source, "file_size", None), getattr(source, "modified_ns", None)
    if found != (size, modified_ns):
        npz.close()
        raise StaleArchiveError(
            "the file changed since the archive was pickled",
            path=path,
            found=f"{found[0]} bytes, modified at {found[1]} ns",
            expected=f"{size} bytes, modified at {modified_ns} ns",
            remedy="Open it again by its path.",
        )
    return npz


def open(
    file: Any,
    *,
    mmap_mode: MmapMode | None = None,
    allow_pickle: bool = False,
    pickle_kwargs: Mapping[str, Any] | None = None,
    strict: bool = False,
    limits: Limits | None = None,
) -> NpzFile:
    """Open an archive for reading.

    Parameters
    ----------
    file : path, bytes-like, file object or zipfile.ZipFile
        Bytes are contents, never a path.
    mmap_mode : {None, "r", "c", "r+"}, optional
        ``npz[key]`` maps instead of reading; see `NpzFile.memmap`.
    allow_pickle : bool, default False
        Whether arrays of Python objects may be read.
    pickle_kwargs : dict, optional
        Passed on to `pickle.loads`.
    strict : bool, default False
        Raise on oddities that are otherwise read with a warning.
    limits : Limits, optional
        Upper bounds on sizes and counts.

    Returns
    -------
    NpzFile
        To be closed, best by a ``with`` statement.

    Raises
    ------
    OSError, NpzkitError
        As `NpzFile`.

    Examples
    --------
    >>> import npzkit
    >>> with npzkit.open("fixtures/numpy_savez.npz") as npz:
    ...     print(npz.files)
    ['x', 'y', 'scalar']
    """
    return NpzFile(
        file,
        mmap_mode=mmap_mode,
        allow_pickle=allow_pickle,
        pickle_kwargs=pickle_kwargs,
        strict=strict,
        limits=limits,
    )
