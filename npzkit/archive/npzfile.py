"""Reading archives: what users can do with one.

Owns `NpzFile`: what its calls take, return and promise. Each call hands its
work on: to `npzkit.archive.opened_archive`, which finds members, and to
`npzkit.reading`, which makes arrays of them.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

import numpy as np

from npzkit.archive.numpy_attributes import ArrayAttributes, Handles, file_of
from npzkit.archive.opened_archive import (
    Explained,
    LocatedStream,
    MmapMode,
    OpenedArchive,
    check_mmap_mode,
    explain,
    path_of,
)
from npzkit.archive.summary import archive_info, format_archive, member_info, read_info
from npzkit.errors import NpzkitError, UnsupportedError, shown_key
from npzkit.files.file_objects import can_read
from npzkit.files.locations import open_anywhere
from npzkit.files.source import Source
from npzkit.files.threads import thread_count
from npzkit.files.urls import check_local
from npzkit.limits import DEFAULT_HEADER_SIZE, Limits, check_limits
from npzkit.members.info import ArchiveInfo, ArrayInfo
from npzkit.members.keys import check_several, member_of
from npzkit.members.metadata import parse_attrs, parse_metadata
from npzkit.reading.member import Options, check_out

if TYPE_CHECKING:
    from npzkit.archive.lazyarray import LazyArray
    from npzkit.maintenance.findings import VerifyReport

NOT_MAPPED = (
    "an archive in a store cannot be mapped into memory",
    "Read parts of an array with npz.lazy(key), or download the file and map the copy.",
)
_REPR_COUNT = 5
"""Keys shown by ``repr``, as by NumPy's."""


class NpzFile(Mapping[str, Any]):
    """An open ``.npz`` archive: ``npz[key]`` reads one array.

    Opening reads only the archive's directory. Each access reads the array
    again, checks its CRC-32 and returns a new, writable array; only headers
    are cached.

    Threads may share an archive. One that was opened from a path, a URL, an
    ordinary file or bytes can be used in forked processes. One that was opened
    from a path or a URL can be pickled, and is opened again when it is
    unpickled. The pickle of a URL contains its `storage_options`, also secret
    ones.

    Parameters
    ----------
    file : path, URL, bytes-like, file object or zipfile.ZipFile
        Bytes are the contents of an archive. A file object must be able to
        read and seek, and is left open by `close`. The archive begins at the
        start of the file or at the object's position.
    own_fid : bool, default False
        Close the file object with the archive.
    allow_pickle : bool, default False
        Whether arrays of Python objects may be read. Unpickling can run code
        from the file.
    pickle_kwargs : dict, optional
        Passed to `pickle.loads`: ``encoding``, ``fix_imports``.
    max_header_size : int, default 10_000
        Same as ``limits=Limits(header_size=...)``. Ignored if `allow_pickle` is
        true.
    mmap_mode : {None, "r", "c", "r+"}, optional
        If given, ``npz[key]`` maps the array instead of reading it; see
        `memmap`.
    strict : bool, default False
        Raise an error for oddities that otherwise only cause a warning: an
        interrupted append or a repeated name. Also raise an error for a name
        that cannot be used; otherwise only that member is refused.
    limits : Limits, optional
        Upper bounds on sizes and counts. The default is those of an archive
        that is given, or ``Limits()``.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Attributes
    ----------
    files : list of str
        The keys, in the archive's order.
    f : object
        The arrays as attributes: ``npz.f.weights``.
    metadata : mapping of str to object
        The metadata that the archive was saved with, read-only. Empty for
        archives of other programs.
    zip : zipfile.ZipFile
        The same archive as a ZipFile, made on first use.
    fid : file object or None
        The file, if the archive opened or owns it.
    allow_pickle, pickle_kwargs, max_header_size
        As given.
    thumbnails : bool, default False
        Whether a notebook's table of the archive has small pictures of the first 20
        arrays, and that of a lazy array has one. Set it to True: ``npz.thumbnails =
        True``. Each time the table is shown, parts of these arrays are read, a
        megabyte of each or less.

    Raises
    ------
    OSError
        The path cannot be opened.
    ZipFormatError
        The file is not a zip archive, or is damaged.
    AmbiguousArchiveError
        The archive could be read in two ways.
    UnsupportedError
        The archive is split over several files, or the file cannot seek.
    LimitExceededError
        The archive exceeds `limits`.

    Warns
    -----
    TornArchiveWarning
        Bytes follow the archive's end. The last complete state is read.
    AmbiguousArchiveWarning
        A member name is repeated. The last one is read.

    Notes
    -----
    Differences from `numpy.lib.npyio.NpzFile`: every read is checked; a
    ``.npy`` member that is not an array is an error, not bytes; `mmap_mode`
    has an effect.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"weights": np.eye(2), "bias": np.zeros(2)}, metadata={"step": 7})
    >>> with npzkit.open(stream) as npz:
    ...     print(list(npz), npz["bias"], npz.metadata["step"])
    ['weights', 'bias'] [0. 0.] 7
    """

    thumbnails: bool = False

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
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if mmap_mode is not None:
            check_mmap_mode(mmap_mode)
            check_local(file, *NOT_MAPPED)
        given_zip = None
        if isinstance(file, zipfile.ZipFile):
            given_zip, file, own_fid = file, file_of(file), False
        limits = check_limits(limits, max_header_size, file)
        self.allow_pickle = allow_pickle
        self.pickle_kwargs = pickle_kwargs
        self.max_header_size = limits.header_size
        self.mmap_mode = mmap_mode
        self._closes_silently = False
        self._read_comment: bytes | None = None
        self._metadata: Mapping[str, Any] | None = None
        given: dict[str, Any] = {
            "strict": strict, "limits": limits,
            "allow_pickle": allow_pickle, "pickle_kwargs": pickle_kwargs,
        }  # fmt: skip
        self._options = {"mmap_mode": mmap_mode, **given}
        is_owner = own_fid and can_read(file)
        source = open_anywhere(file, owned=own_fid, storage_options=storage_options)
        try:
            handles = Handles(source, given_zip, source.handle if is_owner else None)
            self._archive = OpenedArchive(source, handles, **given)
        except BaseException as error:
            source.close()
            if isinstance(error, NpzkitError):
                error.locate(path=path_of(source))
            raise

    # -- the mapping --------------------------------------------------------

    @property
    def files(self) -> list[str]:
        return self._archive.keys

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self._archive.entries)

    def __contains__(self, key: object) -> bool:
        return member_of(key, self._archive.entries) is not None

    def __getitem__(self, key: str) -> Any:
        if self.mmap_mode is not None:
            return self.memmap(key, self.mmap_mode)
        return self.read(key)

    def get(self, key: str, default: Any = None, /) -> Any:
        """Return the array with this key, or `default` if there is none."""
        return self[key] if key in self else default  # noqa: SIM401 - this is get

    def __repr__(self) -> str:
        keys = ", ".join(map(shown_key, self.files[:_REPR_COUNT]))
        if len(self.files) > _REPR_COUNT:
            keys += "..."
        return f"NpzFile {self._archive.source.name!r} with keys: {keys}"

    def _repr_html_(self) -> str:
        from npzkit.archive.notebook import archive_html, drawing

        return archive_html(self._archive, drawing(self.lazy) if self.thumbnails else None)

    def _ipython_key_completions_(self) -> list[str]:
        return self.files

    @property
    def f(self) -> ArrayAttributes:
        return ArrayAttributes(self)

    @property
    def metadata(self) -> Mapping[str, Any]:
        if self._metadata is None:
            comment = self._comment
            with Explained(self._archive, None):
                self._metadata = parse_metadata(comment, self._archive.limits.metadata_size)
        return self._metadata

    @property
    def _comment(self) -> bytes:
        """The text of the metadata."""
        if self._read_comment is None:
            with Explained(self._archive, None):
                archive = self._archive
                self._read_comment = archive.directory.read_comment(
                    archive.source, archive.limits.metadata_size
                )
        return self._read_comment

    # -- arrays -------------------------------------------------------------

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
            Filled and returned instead of a new array. It must have the
            array's shape and dtype. If its memory layout is the same too, data
            is read directly into it.
        verify : bool, default True
            Check the CRC-32. False returns damaged data as it is.
        threads : int, optional
            Number of threads that read a large stored array in blocks, or
            decompress the chunks of a deflated array with a seek index; by
            default one per processor.

        Returns
        -------
        numpy.ndarray or bytes
            A new, writable array. Bytes if the member is not an array, as in
            NumPy.

        Raises
        ------
        MemberNotFoundError
            The key does not exist.
        ChecksumError
            The data is damaged.
        ZipFormatError, NpyFormatError
            The member does not match its headers.
        PickleRefusedError
            The array holds Python objects, and the archive was not opened with
            ``allow_pickle=True``.
        UnsupportedError
            The member is encrypted, or its compression method is not available.
        LimitExceededError
            The header or the member exceeds the limits.
        StaleArchiveError
            The file changed since it was opened.
        ClosedArchiveError
            The archive is closed.
        """
        archive = self._archive
        entry = archive.entry(key)
        if out is not None:
            check_out(out)
        if threads is not None:
            threads = thread_count(threads)
        try:
            found = archive.reader.read(entry, Options(out, threads, verify))
            if archive.index.is_read:
                archive.index.check_arrays((entry.name,), (found,))
            return found
        except NpzkitError as error:
            # As `Explained`, which would add to the time of each small array.
            raise explain(archive, error, key) from error.__cause__
        except ValueError:
            # If the member's own header is damaged, `out` may be what the array is.
            if out is not None:
                self.read(key, verify=verify)
            raise

    def load_all(
        self,
        keys: Iterable[str] | None = None,
        threads: int | None = None,
        *,
        verify: bool = True,
    ) -> dict[str, Any]:
        """Read many arrays at once, which is faster than one by one.

        Parameters
        ----------
        keys : iterable of str, optional
            The arrays to read; by default all.
        threads : int, optional
            Number of threads; by default one per processor.
        verify : bool, default True
            Check each CRC-32.

        Returns
        -------
        dict of str to numpy.ndarray
            In the order of `keys`, or of the archive. Arrays are new and
            writable even if `mmap_mode` was given. Arrays of less than 16 MiB may
            share up to 32 MiB of memory: to keep only a few of them, copy those.

        Raises
        ------
        NpzkitError
            As `read`, for the first array that fails.
        TypeError
            `keys` is a string.
        ValueError
            `threads` is not a positive number.
        """
        from npzkit.reading.load_all import read_many

        archive = self._archive
        archive.check_open()
        check_several(keys)
        chosen, names = archive.choose(keys)
        count = thread_count(threads)
        with Explained(archive, None):
            reader, entries = archive.reader, archive.entries
            found = read_many(reader, entries, chosen, names, count, verify=verify)
            archive.index.check_arrays(names, found.values())
            return found

    def join(self, key: str) -> Any:
        """Read one array, and put it together if it was split into several.

        Parameters
        ----------
        key : str
            Key of the first part.

        Returns
        -------
        numpy.ndarray, numpy.ma.MaskedArray or bytes
            A masked array that was saved with ``masked="split"``, or an array
            of `numpy.dtypes.StringDType` that was saved with
            ``strings="split"``. Other arrays are returned as by `read`.

        Raises
        ------
        NpyFormatError
            The parts do not match each other.
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
        """Put an array together from parts that `read` returns."""
        from npzkit.members.multipart import join

        with Explained(self._archive, key):
            entry = self._archive.entry(key)
            return join(read, self._archive.listed_key(entry), parse_attrs(entry.extra))

    def _split_keys(self, keys: Iterable[str]) -> list[str]:
        """Return those of some keys that `_join` may put together."""
        from npzkit.members.multipart import PARTS_ATTRIBUTE

        return self._archive.keys_with(PARTS_ATTRIBUTE.encode(), keys)

    def _saved_attrs(self, key: str) -> Mapping[str, Any]:
        """Return the attributes of an array, also those that npzkit keeps for itself."""
        return parse_attrs(self._archive.entry(key).extra)

    def lazy(self, key: str) -> LazyArray:
        """Return an array that reads only the parts that are indexed.

        Only the array's header is read now.

        Parameters
        ----------
        key : str
            With or without ``.npy``.

        Returns
        -------
        LazyArray
            Can be indexed while the archive is open.

        Raises
        ------
        NpyFormatError
            The member is not an array.
        UnsupportedError
            The array holds Python objects, or its compression method is not
            available.
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
        entry = self._archive.entry(key)
        with Explained(self._archive, key):
            from npzkit.archive.lazyarray import LazyArray

            known = self._archive.read_index().find(entry.name)
            header = self._archive.reader.header(entry)[0] if known is None else known
            lazy = LazyArray(self, self._archive.listed_key(entry), header, entry.extra)
            if known is None:
                # An array that cannot be read in parts raises its error now.
                self._archive.random_access(key)
            return lazy

    def memmap(self, key: str, mode: MmapMode = "r") -> np.memmap[Any, Any]:
        """Map a stored array into memory without reading it.

        Parameters
        ----------
        key : str
            With or without ``.npy``.
        mode : {"r", "c", "r+"}, default "r"
            "r" is read-only. "c" is copy-on-write: changes stay in memory.
            "r+" is read-write: changes go to the file.

        Returns
        -------
        numpy.memmap
            Remains valid after the archive is closed and after the file at the
            path is replaced. Its CRC-32 is not checked. Access is slower if
            another program did not align the data; see `ArrayInfo.aligned`.

        Raises
        ------
        NotMappableError
            The member is compressed or holds objects, or the archive is not a
            file on disk. For "r+", also if its CRC is stored after its data.
        StaleArchiveError
            The file changed since it was opened. For "r+", also if the path
            leads to another file now.
        UnsupportedError
            The archive is in a store.
        NpzkitError
            As `info`.
        ArchiveLockedError
            For "r+", the file has holes that must be filled, and a writer has
            it.
        OSError
            For "r+", the file cannot be opened for writing, or has holes and
            the disk is full.
        ValueError
            The mode is not known.

        Notes
        -----
        With "r+", the CRC-32 is updated by ``array.flush()``, by `flush` and
        `close` of the archive, and when the last array on the map is deleted.

        Several maps, threads and processes may change the same array. Its
        CRC-32 is right once each of them has flushed. Before that, and after a
        crash, reading the array raises ChecksumError; `npzkit.repair` completes
        an interrupted flush.

        A flush computes the CRC-32 of the data as it is then, including
        earlier damage. Call `verify` first to rule that out.
        """
        check_mmap_mode(mode)
        if self._archive.source.is_distant:
            what, remedy = NOT_MAPPED
            raise UnsupportedError(what, path=self._archive.path, key=key, remedy=remedy)
        info = read_info(self._archive, key)
        with Explained(self._archive, key):
            return self._archive.map(info, self._archive.entry(key), mode)

    def flush(self) -> None:
        """Write changes made through maps of mode "r+" to the file, and update the CRC-32."""
        self._archive.flush()

    def stream(self, key: str) -> BinaryIO:
        """Open a member as a readable binary stream of its uncompressed bytes.

        The stream includes the NPY header, as `numpy.lib.format.read_array`
        expects. It can only be read forward and uses a bounded amount of memory
        for any compression method. At its end the size and the CRC-32 are
        checked.

        Parameters
        ----------
        key : str
            With or without ``.npy``.

        Returns
        -------
        file object
            Can be read while the archive is open.

        Raises
        ------
        NpzkitError
            As `read`. Format errors may be raised by the stream's ``read``.
        """
        entry = self._archive.entry(key)
        with Explained(self._archive, key):
            self._archive.index.check_header(entry)
            stream = self._archive.reader.open_stream(entry)
        located = LocatedStream(stream, lambda error: explain(self._archive, error, key))
        return cast(BinaryIO, io.BufferedReader(located, 1 << 18))

    def _streams(self, key: str) -> Iterator[BinaryIO]:
        """Yield streams that together have all bytes of an array, each checked at its end."""
        yield self.stream(key)

    # -- what is known of them ----------------------------------------------

    def info(self, key: str) -> ArrayInfo:
        """Return details of an array without reading its data.

        Parameters
        ----------
        key : str
            With or without ``.npy``.

        Returns
        -------
        ArrayInfo
            Shape, dtype, sizes, compression method, position and attributes.

        Raises
        ------
        NpzkitError
            As `read`, except for errors in the data.

        Examples
        --------
        >>> import io, npzkit, numpy as np
        >>> stream = io.BytesIO()
        >>> npzkit.save(stream, {"w": np.zeros((3, 4), "f4")})
        >>> info = npzkit.open(stream).info("w")
        >>> info.shape, str(info.dtype), info.nbytes, info.method, info.aligned
        ((3, 4), 'float32', 48, 'stored', True)
        """
        return self._archive.known_info(key) or member_info(self._archive, key)

    @property
    def file_size(self) -> int:
        """Bytes of the file, or of all files of a sharded archive."""
        self._archive.check_open()
        return self._archive.source.file_size

    def archive_info(self) -> ArchiveInfo:
        """Return details of the archive as a file, including its unused space.

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
        return archive_info(self._archive)

    def summary(self) -> str:
        """Return a table of the members: key, shape, dtype, size and method.

        Reads the header of every member. A member that cannot be read is
        listed without shape and dtype.
        """
        return format_archive(self._archive)

    def verify(
        self,
        keys: Iterable[str] | None = None,
        progress: Callable[[int, int], object] | None = None,
        *,
        threads: int | None = None,
    ) -> VerifyReport:
        """Check the archive for damage; see `npzkit.verify`.

        Parameters
        ----------
        keys : iterable of str, optional
            The members to check; by default all.
        progress : callable, optional
            Called with the number of uncompressed bytes checked so far and in
            total.
        threads : int, optional
            Number of threads; by default one per processor.

        Returns
        -------
        VerifyReport
            ``ok``, and one row per problem or oddity found.

        Raises
        ------
        MemberNotFoundError
            One of `keys` does not exist.
        ClosedArchiveError
            The archive is closed.

        Examples
        --------
        >>> import io, npzkit, numpy as np
        >>> stream = io.BytesIO()
        >>> npzkit.save(stream, {"w": np.zeros(3)})
        >>> npzkit.open(stream).verify().ok
        True
        """
        archive = self._archive
        archive.check_open()
        check_several(keys)
        from npzkit.maintenance.verify import verify_source

        directory = archive.directory._replace(entries=archive.entries)
        wanted = None if keys is None else list(keys)
        limits, count = self._limits, thread_count(threads)
        with Explained(archive, None):
            return verify_source(archive.source, directory, limits, wanted, progress, count)

    # -- the archive as a file ----------------------------------------------

    @property
    def fid(self) -> Any:
        return self._archive.handles.file(is_open=self._archive.is_open)

    @property
    def zip(self) -> zipfile.ZipFile:
        self._archive.check_open()
        return self._archive.handles.zip(self._archive.directory.end_offset)

    def close(self) -> None:
        """Close what the archive opened, but not a file object it was given.

        Closing it again does nothing. Reads that other threads have begun are
        completed, and the file is closed when the last of them ends. Later
        reads raise ClosedArchiveError.
        """
        archive = getattr(self, "_archive", None)
        if archive is not None:
            archive.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        archive = getattr(self, "_archive", None)
        if archive is None or not archive.is_open:
            return
        source = archive.source
        try:
            if not self._closes_silently and source.path is not None and not source.file.closed:
                warnings.warn(
                    f"unclosed archive {source.name!r}; use it in a with statement",
                    ResourceWarning,
                    stacklevel=2,
                    source=self,
                )
        finally:
            # The warning may be an error.
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        from npzkit.archive.reopening import reduced

        return reduced(self._archive, NpzFile, self._options)

    @property
    def _limits(self) -> Limits:
        """The limits that all readers of the archive use: pickles are for trusted files only."""
        archive = self._archive
        return archive.limits._replace(header_size=archive.reader.header_limit)

    def _lend_source(self) -> Source:
        """Return the archive's bytes for `npzkit.files.source.open_source`; both go on reading."""
        self._archive.check_open()
        return self._archive.source
