"""Reading archives: what users can do with one.

Owns `NpzFile`: what its calls take, return and promise. Each call checks what it was
given, and hands its work on to the open archive: `npzkit.archive.opened_archive`, or the
sharded one that takes its place.
"""

from __future__ import annotations

import contextlib
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

import numpy as np

from npzkit.archive.numpy_attributes import ArrayAttributes
from npzkit.archive.opened_archive import NOT_MAPPED, OpenedArchive, check_mmap_mode
from npzkit.errors import NpzkitError, quiet_at_exit, quoted, shown_key
from npzkit.files.file_objects import UNNAMED
from npzkit.files.source import Source
from npzkit.files.urls import check_local
from npzkit.limits import DEFAULT_HEADER_SIZE, Limits, check_limits, thread_count
from npzkit.members.keys import check_several
from npzkit.reading.small_member import check_form, check_out

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npzkit.archive.lazyarray import LazyArray
    from npzkit.maintenance.findings import VerifyReport
    from npzkit.members.array_info import ArchiveInfo, ArrayInfo
    from npzkit.typing import MmapMode, Progress, Readable

_REPR_COUNT = 5
"""Keys shown by ``repr``, as by NumPy's."""
_OTHER_NAMES = {"attrs": ": notes about the file are npz.metadata, of an array npz.info(key).attrs"}
"""What h5py and zarr call things, and where they are here."""
_ATTRIBUTES = {
    "_archive", "_closes_silently", "_verify", "allow_pickle", "max_header_size", "mmap_mode",
    "pickle_kwargs",
}  # fmt: skip
"""What an open archive has of its own."""

READ_ONCE_SIZE = 1 << 23
"""Fewer bytes are read once, into memory of their own, before they fill a user's arrays: it takes
less time than to read them twice."""


class NpzFile(Mapping[str, "NDArray[Any]"]):
    """An open ``.npz`` archive: ``npz[key]`` reads one array.

    Opening reads only the archive's directory. Each access reads the array
    again, checks its CRC-32 and returns a new, writable array; only headers
    are cached.

    Threads may share an archive. One that was opened from a path, a URL, an
    ordinary file or bytes can be used in forked processes. One that was opened
    from a path or a URL can be pickled, and is opened again when it is
    unpickled; each use raises the error if that fails, and it need not be closed.
    The pickle of a URL contains its `storage_options`, also secret ones. The attributes of a
    subclass are pickled, and its ``__init__`` is not called again.

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
    verify : bool, default True
        Compare what is read with CRC-32s, where a call does not say otherwise; see
        `npzkit.open`.
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
        The metadata that the archive was saved with, read-only: ``dict(npz.metadata)``
        can be changed and pickled. Empty for archives of other programs.
    zip : zipfile.ZipFile
        The same archive as a ZipFile, made on first use.
    fid : file object or None
        The file, if the archive opened or owns it.
    allow_pickle, pickle_kwargs, max_header_size
        As given.

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
    has an effect; an archive equals only itself, and can be hashed.

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
        file: Readable,
        own_fid: bool = False,
        allow_pickle: bool = False,
        pickle_kwargs: Mapping[str, Any] | None = None,
        *,
        max_header_size: int = DEFAULT_HEADER_SIZE,
        mmap_mode: MmapMode | None = None,
        verify: bool = True,
        strict: bool = False,
        limits: Limits | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if mmap_mode is not None:
            check_mmap_mode(mmap_mode)
            check_local(file, *NOT_MAPPED)
        options: dict[str, Any] = {
            "strict": strict, "limits": check_limits(limits, max_header_size, file),
            "allow_pickle": allow_pickle, "pickle_kwargs": pickle_kwargs,
        }  # fmt: skip
        self.allow_pickle = allow_pickle
        self.pickle_kwargs = pickle_kwargs
        self.max_header_size = options["limits"].header_size
        self.mmap_mode = mmap_mode
        self._verify = verify
        self._closes_silently = False
        self._archive: OpenedArchive = self._open_archive(file, own_fid, options, storage_options)

    @staticmethod
    def _open_archive(
        file: Any,
        own_fid: bool,
        options: dict[str, Any],
        storage_options: Mapping[str, Any] | None,
    ) -> Any:
        """Open what the archive has inside."""
        return OpenedArchive(file, own_fid, options, storage_options)

    # -- the mapping --------------------------------------------------------

    @property
    def files(self) -> list[str]:
        return self._archive.keys

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self._archive)

    def __contains__(self, key: object) -> bool:
        return key in self._archive

    def __getitem__(self, key: str) -> NDArray[Any]:
        if self.mmap_mode is not None:
            return self._archive.memmap(key, self.mmap_mode)
        found: NDArray[Any] = self._archive.read(key, self._verify, None)
        return found

    # As of a file: a comparison of two mappings would read all arrays, and fail.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def get(self, key: str, default: Any = None, /) -> Any:
        """Return the array with this key, or `default` if there is none."""
        return self[key] if key in self else default  # noqa: SIM401 - this is get

    def __repr__(self) -> str:
        keys = ", ".join(map(shown_key, self.files[:_REPR_COUNT]))
        if len(self.files) > _REPR_COUNT:
            keys += "..."
        return f"{self._title} with keys: {keys}"

    @property
    def _title(self) -> str:
        return f"{type(self).__name__} {self._archive.path or UNNAMED!r}"

    def _repr_html_(self) -> str:
        from npzkit.members.array_info import summary_html
        from npzkit.tables import SHOWN_COUNT

        archive, metadata = self._archive, {}
        if not archive.is_open:
            return summary_html(f"{self._title}, closed", (), len(self), 0, {})
        with contextlib.suppress(NpzkitError):
            metadata = dict(archive.metadata)
        infos = archive.infos(SHOWN_COUNT)
        return summary_html(self._title, infos, len(self), archive.nbytes, metadata)

    def _ipython_key_completions_(self) -> list[str]:
        return self.files

    @property
    def f(self) -> ArrayAttributes:
        return ArrayAttributes(self)

    if not TYPE_CHECKING:  # Checkers would take every name for an attribute.

        def __getattr__(self, name: str) -> Any:
            what = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(what + _OTHER_NAMES.get(name, ""), name=name, obj=self)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the archive, read-only. Names that begin with npzkit are its own."""
        return self._archive.metadata

    # -- arrays -------------------------------------------------------------

    def read(
        self,
        key: str,
        out: np.ndarray[Any, Any] | None = None,
        *,
        verify: bool | None = None,
        threads: int | None = None,
    ) -> NDArray[Any]:
        """Read one array.

        Parameters
        ----------
        key : str
            With or without ``.npy``.
        out : numpy.ndarray, optional
            Filled and returned instead of a new array, as by `load_all`. It must
            have the array's shape and dtype. It is not changed unless the array is
            sound, or another program writes to the file during the call.
        verify : bool, optional
            Check the CRC-32, by default unless the archive was opened with
            ``verify=False``. False returns damaged data as it is.
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
        if threads is not None:
            threads = thread_count(threads)
        if verify is None:
            verify = self._verify
        if out is None:
            found: NDArray[Any] = self._archive.read(key, verify, threads)
            return found
        self._fill({key: check_out(out)}, "out".format, threads, verify)
        return out

    def load_all(
        self,
        keys: Iterable[str] | None = None,
        *,
        threads: int | None = None,
        verify: bool | None = None,
        out: Mapping[str, NDArray[Any]] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Read many arrays at once, which is faster than one by one.

        Parameters
        ----------
        keys : iterable of str, optional
            The arrays to read; by default all, or those of `out`.
        threads : int, optional
            Number of threads; by default one per processor.
        verify : bool, optional
            Check each CRC-32, by default unless the archive was opened with
            ``verify=False``.
        out : mapping of str to numpy.ndarray, optional
            Arrays by key, which are filled and returned instead of new ones. Each
            must have the shape and dtype of the array with its key. None of them is
            changed unless all arrays are sound, or another program writes to the file
            during the call.

        Returns
        -------
        dict of str to numpy.ndarray
            In the order of `keys`, or of the archive. What is no array is bytes. Arrays are new and
            writable even if `mmap_mode` was given. Arrays of less than 16 MiB may
            share up to 32 MiB of memory: to keep only a few of them, copy those.

        Raises
        ------
        NpzkitError
            As `read`, for the first array that fails.
        TypeError
            `keys` is a string, or something in `out` is not an array.
        ValueError
            `threads` is not a positive number; or an array in `out` is read-only, or has
            another shape or dtype.
        KeyError
            `out` has no array for one of `keys`.

        Notes
        -----
        With `out`, less than 8 MiB is first read into memory. More is read twice:
        first to compare the CRC-32s, which keeps no data, and then into the arrays. What
        is compressed is decompressed twice. Only an array in another memory order than
        that of `out` is read into memory of its own, one at a time for each thread. If
        another program overwrites the file between the two, StaleArchiveError says so,
        and nothing was filled. If it does so while arrays are filled, StaleArchiveError
        or ChecksumError says so, and some of them were changed. From URLs, and from file
        objects that are not files on a disk, all arrays are first read into memory, once.
        """
        self._archive.check_open()
        check_several(keys)
        verify = self._verify if verify is None else verify
        if out is None:
            return self._archive.load_all(keys, thread_count(threads), verify)
        filled = {key: out[key] for key in (out if keys is None else keys)}
        name = "out[{!r}]".format
        outs = {key: check_out(array, name(key)) for key, array in filled.items()}
        self._fill(outs, name, threads, verify)
        return filled

    def _fill(
        self,
        outs: Mapping[str, NDArray[Any]],
        name: Callable[[str], str],
        threads: int | None,
        verify: bool,
    ) -> None:
        """Fill arrays that users have, all of them or none; see `load_all`."""
        archive, count = self._archive, thread_count(threads)
        for key, array in outs.items():
            info = self.info(key)
            check_form(array, info.shape, info.dtype, name(key))
        if self._is_read_twice(sum(array.nbytes for array in outs.values())):
            if verify:
                archive.fill(outs, count, verify, is_trial=True)
            archive.fill(outs, count, verify)
            return
        found = {key: np.ndarray(array.shape, array.dtype) for key, array in outs.items()}
        archive.fill(found, count, verify)
        for key, array in outs.items():
            array[...] = found[key]

    def _is_read_twice(self, nbytes: int) -> bool:
        """Whether so many bytes are checked first, and then read to where they belong."""
        return nbytes >= READ_ONCE_SIZE and self._archive.can_be_read_twice

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
            ``strings="split"``. So is a masked array of `key` and ``key.mask``, if these
            arrays have one shape, and the second one is of bools, whoever saved them. Other
            arrays are returned as by `read`.

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
        joined, mask = self._join(key, self.read), f"{key}.mask"
        if type(joined) is np.ndarray and mask in self:
            info = self.info(mask)
            if info.dtype == bool and info.shape == joined.shape:
                return np.ma.MaskedArray(joined, self.read(mask))
        return joined

    def _join(self, key: str, read: Callable[[str], Any]) -> Any:
        from npzkit.members.multipart import join

        return self._archive.join(key, partial(join, read))

    def lazy(self, key: str, *, verify: bool | None = None) -> LazyArray:
        """Return an array that reads only the parts that are indexed.

        Only the array's header is read now.

        Parameters
        ----------
        key : str
            With or without ``.npy``.
        verify : bool, optional
            Check each chunk of which a part is read, if its CRC-32 is known: see
            `LazyArray`. By default as the archive was opened.

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
        verify = self._verify if verify is None else verify
        return self._archive.lazy(key, self, verify=verify)

    def memmap(self, key: str, mode: MmapMode = "r") -> np.memmap[Any, np.dtype[Any]]:
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
            path is replaced. Of an archive in bytes, a read-only array over that
            memory. Its CRC-32 is not checked. Access is slower if another program did
            not align the data; see `ArrayInfo.aligned`.

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
        return self._archive.memmap(key, mode)

    def flush(self) -> None:
        """Write changes made through maps of mode "r+" to the file, and update the CRC-32."""
        self._archive.flush()

    def stream(self, key: str, *, verify: bool | None = None) -> BinaryIO:
        """Open a member as a readable binary stream of its uncompressed bytes.

        The stream includes the NPY header, as `numpy.lib.format.read_array`
        expects. It can only be read forward and uses a bounded amount of memory
        for any compression method. At its end the size and the CRC-32 are
        checked.

        Parameters
        ----------
        key : str
            With or without ``.npy``.
        verify : bool, optional
            Compare the CRC-32 at the end. By default True, unless the archive was opened with
            ``verify=False``.

        Returns
        -------
        file object
            Can be read while the archive is open.

        Raises
        ------
        NpzkitError
            As `read`. Format errors may be raised by the stream's ``read``.
        """
        verify = self._verify if verify is None else verify
        stream: Any = self._archive.stream(key, verify=verify)
        # The archive, and a shard of it, is open as long as somebody has what it returned.
        stream.kept_open = self, getattr(stream, "kept_open", None)
        return cast(BinaryIO, stream)

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
        return self._archive.info(key)

    @property
    def file_size(self) -> int:
        """Bytes of the file, or of all files of a sharded archive."""
        self._archive.check_open()
        return self._archive.file_size

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
        self._archive.check_open()
        return self._archive.archive_info()

    def summary(self) -> str:
        """Return a table of the members: key, shape, dtype, size and method.

        Reads the header of every member. A member that cannot be read is
        listed without shape and dtype.
        """
        from npzkit.members.array_info import format_summary

        return format_summary(self._title, self._archive.infos())

    def verify(
        self,
        keys: Iterable[str] | None = None,
        *,
        progress: Progress | None = None,
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
        StaleArchiveError
            The file was written over since it was opened.
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
        self._archive.check_open()
        check_several(keys)
        wanted = None if keys is None else list(keys)
        return self._archive.verify(wanted, progress, thread_count(threads))

    # -- the archive as a file ----------------------------------------------

    @property
    def fid(self) -> Any:
        return self._archive.own_file

    @property
    def zip(self) -> zipfile.ZipFile:
        archive = self._opened_file()
        return archive.handles.zip(archive.directory.end_offset)

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

    @quiet_at_exit
    def __del__(self) -> None:
        archive = getattr(self, "_archive", None)
        if archive is None or not archive.is_open:
            return
        try:
            if archive.has_open_file and not self._closes_silently:
                warnings.warn(
                    f"unclosed archive {quoted(archive.path)}; use it in a with statement",
                    ResourceWarning,
                    stacklevel=3,
                    source=archive,
                )
        finally:
            # The warning may be an error.
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        from npzkit.archive.reopening import reduced

        options = {"mmap_mode": self.mmap_mode, "verify": self._verify}
        return *reduced(self._archive, type(self), options), self.__getstate__() or None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that a subclass or a user has set."""
        return {name: value for name, value in vars(self).items() if name not in _ATTRIBUTES}

    def _open_again(self, path: Any, **options: Any) -> None:
        """Open a pickled archive. The attributes of a subclass come from the pickle."""
        NpzFile.__init__(self, path, **options)

    @property
    def _limits(self) -> Limits:
        """The limits that all readers of the archive use."""
        return self._archive.reading_limits

    def _opened_file(self) -> OpenedArchive:
        """Return the archive as one file that is open; UnsupportedError if it is in several."""
        self._archive.check_open()
        return self._archive.one_file()

    def _lend_source(self) -> Source:
        """Return the archive's bytes for `npzkit.files.source.open_source`; both go on reading."""
        return self._opened_file().source


# Programs ask `isinstance(npz, np.lib.npyio.NpzFile)`.
np.lib.npyio.NpzFile.register(NpzFile)
