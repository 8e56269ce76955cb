"""Reading sharded archives: what users can do with one.

Owns `ShardedFile`: what its calls take, return and promise. The index says which parts an
array has, and `npzkit.archive.npzfile` reads a part.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import numpy as np

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.opened_archive import MmapMode, check_mmap_mode
from npzkit.codecs.checksum import crc32
from npzkit.codecs.methods import STORED, method_name
from npzkit.datasets.index_format import parse_index
from npzkit.datasets.part_checks import prove_part
from npzkit.datasets.sharded_array import ShardedArray
from npzkit.datasets.sharding import place_of, read_index
from npzkit.datasets.shards import OpenShards
from npzkit.errors import (
    IndexFormatError,
    NpyFormatError,
    NpzkitError,
    StaleArchiveError,
    UnsupportedError,
    shown_key,
)
from npzkit.files.ahead import REQUEST_COUNT
from npzkit.files.source import Source
from npzkit.files.threads import run, thread_count
from npzkit.files.urls import Location
from npzkit.limits import Limits
from npzkit.members.info import ArchiveInfo, ArrayInfo, format_summary
from npzkit.members.keys import SUFFIX, check_several, missing
from npzkit.members.metadata import format_metadata, user_attrs
from npzkit.reading.blocks import check_array
from npzkit.reading.member import check_out

if TYPE_CHECKING:
    from npzkit.archive.lazyarray import LazyArray
    from npzkit.maintenance.findings import VerifyReport

_REPR_COUNT = 5
_UNPROVEN_SIZE = 1 << 24
"""Bytes that an index may claim before its shards are looked at."""


class PartInfo(NamedTuple):
    """A part of an array of a sharded archive, from the index.

    Attributes
    ----------
    shard : str
        Name of the file.
    key : str
        Key of the part in its shard.
    offset, shape : tuple of int
        Where the part is in the array.
    compressed_size : int
        Bytes of the part in the shard, without headers.
    crc32 : int
        CRC-32 of its uncompressed bytes, including the NPY header.
    method : str
        ``"stored"``, ``"deflated"``, ...
    """

    shard: str
    key: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    compressed_size: int
    crc32: int
    method: str


class ShardedFile(NpzFile):
    """An open sharded archive: ``npz[key]`` reads one array, whatever shards it is in.

    Returned by `npzkit.open` for a folder with an ``index.json``. Opening reads
    the index. A shard is opened when it is needed, and is checked to be the one
    that the index names.

    Threads and forked processes may share it. It can be pickled, and is opened
    again when it is unpickled. The pickle of a URL contains its
    `storage_options`, also secret ones.

    Parameters
    ----------
    folder : path or URL
        Of the folder, or of its ``index.json``.
    mmap_mode : {None, "r", "c", "r+"}, optional
        If given, ``npz[key]`` maps the array instead of reading it; see
        `memmap`.
    strict : bool, default False
        As of `NpzFile`, for each shard.
    limits : Limits, optional
        For the archive, and for each shard. ``member_count`` counts arrays.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Attributes
    ----------
    files : list of str
        The keys, in the archive's order.
    f : object
        The arrays as attributes: ``npz.f.weights``.
    metadata : mapping of str to object
        The metadata that the archive was saved with, read-only.
    path : str
        The folder, or its URL without secrets.
    thumbnails : bool
        As of `NpzFile`.

    Raises
    ------
    OSError
        There is no index, or it cannot be read.
    IndexFormatError
        The index is damaged.
    UnsafeNameError
        The index names a file that is not in its folder.
    LimitExceededError
        The archive exceeds `limits`.

    Examples
    --------
    >>> import npzkit, numpy as np
    >>> with npzkit.ShardedWriter("memory://doctest/file") as w:
    ...     w.add("x", np.zeros((2, 3)), offset=(0, 0), global_shape=(4, 3))
    ...     w.add("x", np.ones((2, 3)), offset=(2, 0), global_shape=(4, 3))
    ...     w.commit()
    >>> npz = npzkit.open("memory://doctest/file")
    >>> npz["x"].shape, npz.lazy("x")[1:3, 0]
    ((4, 3), array([0., 1.]))
    """

    def __init__(
        self,
        folder: Any,
        *,
        mmap_mode: MmapMode | None = None,
        strict: bool = False,
        limits: Limits | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if mmap_mode is not None:
            check_mmap_mode(mmap_mode)
        self.mmap_mode = mmap_mode
        self.allow_pickle, self.pickle_kwargs = False, None
        self._bounds = limits or Limits()
        self.max_header_size = self._bounds.header_size
        self._place = place_of(folder, storage_options)
        self._options = {"mmap_mode": mmap_mode, "strict": strict, "limits": limits}
        data = read_index(self._place)
        try:
            self._index = parse_index(data, limits)
        except NpzkitError as error:
            error.locate(path=self._place.name)
            raise
        self._version = len(data), crc32(data)
        options = {"strict": strict, "limits": limits}
        self._archive: Any = OpenShards(self._place, self._index, data, options)
        # By part, whether its shard was found to say the same.
        self._proven = bytearray(self._index.part_count)

    # -- the mapping --------------------------------------------------------

    @property
    def path(self) -> str:
        return self._place.name

    @property
    def files(self) -> list[str]:
        return list(self._index.keys)

    def __len__(self) -> int:
        return len(self._index.keys)

    def __contains__(self, key: object) -> bool:
        return self._index.number(key) is not None

    def __repr__(self) -> str:
        keys = ", ".join(map(shown_key, self._index.keys[:_REPR_COUNT]))
        if len(self) > _REPR_COUNT:
            keys += "..."
        return f"ShardedFile {self.path!r} with keys: {keys}"

    def _repr_html_(self) -> str:
        from npzkit.archive.notebook import (
            drawing,
            members_html,
        )
        from npzkit.display.tables import SHOWN_COUNT

        title = repr(f"{self.path}")
        is_open = self._archive.is_open
        draw = drawing(self.lazy) if is_open and self.thumbnails else None
        infos = map(self._info, range(min(len(self), SHOWN_COUNT)))
        size = sum(self._index.nbytes)
        title += "" if is_open else ", closed"
        return members_html(
            f"ShardedFile {title}", infos, len(self), size, self.metadata, draw
        )  # fmt: skip

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._index.metadata

    @property
    def _comment(self) -> bytes:
        return format_metadata(dict(self.metadata))

    def _find(self, key: str) -> int:
        """Return the number of the array that a key means."""
        self._archive.check_open()
        number = self._index.number(key)
        if number is None:
            raise missing(key, self._index.keys, self.path)
        return number

    # -- parts --------------------------------------------------------------

    def _part(self, number: int, part: int) -> LazyArray:
        """Return a part of an array as a `LazyArray`, checked to be what the index says."""
        return self._stored(number, part)[2]

    def _stored(self, number: int, part: int) -> tuple[NpzFile, str, LazyArray]:
        """Return the shard of a part, its key there, and the part, which was checked."""
        index = self._index
        shard = self._archive.get(index.shard_of(part))
        stored_key = index.stored_key(number, part)
        self._prove(number, part, shard)
        lazy = shard.lazy(stored_key)
        at = part - index.part_numbers(number).start
        shape = tuple(index.boxes(number)[1][at].tolist())
        self._check_form(number, shape, lazy.shape, lazy.dtype)
        return shard, stored_key, lazy

    def _prove(self, number: int, part: int, shard: NpzFile) -> None:
        """Check, once, that a shard has the part that the index means."""
        if not self._proven[part]:
            prove_part(self._index, number, part, shard, self.path)
            self._proven[part] = 1

    def _prove_empty(self, number: int, *, verify: bool = False) -> None:
        """Check that an array without items is as its shard has it; others have parts.

        `verify` compares its CRC-32 too, which is that of its header.
        """
        if not self._index.part_numbers(number):
            shard = self._archive.get(self._index.home(number))
            prove_part(self._index, number, None, shard, self.path)
            if verify:
                shard.read(self._index.stored_key(number, None))

    def _check_form(
        self, number: int, shape: tuple[int, ...], found: Any, dtype: np.dtype[Any]
    ) -> None:
        """Check that a part has the shape and the dtype that the index says."""
        expected = self._index.dtype(number)
        if found != shape or dtype != expected:
            raise IndexFormatError(
                "a part is not what the index says", path=self.path, key=self._index.keys[number],
                found=f"{dtype} {found}", expected=f"{expected} {shape}",
                remedy="Write the archive again.",
            )  # fmt: skip

    def _check_backed(self, parts: Iterable[int]) -> None:
        """Check that the shards of parts exist, as large as the index says."""
        shards = sorted({self._index.shard_of(part) for part in parts})
        self._archive.prove(shards)

    def _allocate(
        self, number: int, shape: tuple[int, ...], parts: Sequence[int]
    ) -> np.ndarray[Any, Any]:
        """Return a new array for what is read of parts, which have enough bytes for it."""
        dtype = self._index.dtype(number)
        order: Any = "F" if self._index.fortran_order(number) else "C"
        size = dtype.itemsize
        for length in shape:
            size *= length
        if size > _UNPROVEN_SIZE or not self._place.is_local:
            # Each distant shard is opened once, before threads ask for it.
            self._check_backed(parts)
        try:
            return np.ndarray(shape, dtype, order=order)
        except ValueError as error:
            raise NpyFormatError(
                f"NumPy cannot create an array of this shape ({error})", path=self.path,
                key=self._index.keys[number], found=shape,
            ) from error  # fmt: skip

    def _threads_for(self, count: int, threads: int | None = None) -> int:
        """Return the threads for a number of tasks."""
        usual = thread_count(threads)
        return usual if self._place.is_local else max(usual, min(count, REQUEST_COUNT))

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
            array's shape and dtype.
        verify : bool, default True
            Check the CRC-32 of each part. False returns damaged data as it is.
        threads : int, optional
            Number of threads; by default one per processor.

        Returns
        -------
        numpy.ndarray
            A new, writable array.

        Raises
        ------
        MemberNotFoundError
            The key does not exist.
        MissingShardError
            A shard does not exist.
        StaleArchiveError
            The archive was replaced since it was opened, or a shard was.
        IndexFormatError
            A part is not what the index says.
        ChecksumError, ZipFormatError, NpyFormatError, UnsupportedError, LimitExceededError
            As `NpzFile.read`, for a part.
        ClosedArchiveError
            The archive is closed.
        """
        number = self._find(key)
        if out is not None:
            check_out(out)
            self._check_out(number, out)
        array, tasks = self._reading(number, out, verify, threads)
        run(tasks, self._threads_for(len(tasks), threads))
        return array

    def _check_out(self, number: int, out: np.ndarray[Any, Any]) -> None:
        shape, dtype = self._index.shape(number), self._index.dtype(number)
        if out.shape != shape or out.dtype != dtype:
            raise ValueError(
                f"out must have the shape {shape} and the dtype {dtype}, not {out.shape} and "
                f"{out.dtype}"
            )

    def _reading(
        self, number: int, out: np.ndarray[Any, Any] | None, verify: bool, threads: int | None
    ) -> tuple[np.ndarray[Any, Any], list[Any]]:
        """Return the memory of an array, and tasks that each read a part into it."""
        index = self._index
        parts = index.part_numbers(number)
        array = self._allocate(number, index.shape(number), parts) if out is None else out
        # Parts are shared out among threads, which need no more for one part.
        inner = threads if len(parts) == 1 else 1

        def read(part: int, offset: list[int], shape: list[int]) -> None:
            place = array[tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))]
            shard, key, _ = self._stored(number, part)
            shard.read(key, place if array.ndim else array, verify, threads=inner)

        boxes = zip(*(column.tolist() for column in index.boxes(number)), strict=True)
        tasks: list[Any] = [
            lambda part=part, box=box: read(part, *box)
            for part, box in zip(parts, boxes, strict=True)
        ]
        return array, tasks or [lambda: self._prove_empty(number, verify=verify)]

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
            writable. Small ones may share memory, as of `NpzFile.load_all`.

        Raises
        ------
        NpzkitError
            As `read`.
        TypeError
            `keys` is a string.
        """
        check_several(keys)
        self._archive.check_open()
        chosen = self.files if keys is None else list(dict.fromkeys(keys))
        numbers = [self._find(key) for key in chosen]
        count = thread_count(threads)
        if not self._place.is_local:
            index = self._index
            self._check_backed(part for number in numbers for part in index.part_numbers(number))
        results: dict[str, Any] = dict.fromkeys(chosen)
        together: dict[int, list[tuple[str, int]]] = {}
        tasks: list[Any] = []
        for key, number in zip(chosen, numbers, strict=True):
            parts = self._index.part_numbers(number)
            if len(parts) == 1:
                together.setdefault(self._index.shard_of(parts[0]), []).append((key, number))
            else:
                results[key], reading = self._reading(number, None, verify, threads)
                tasks += reading
        # Threads share shards, or the arrays in one.
        inner = count if len(together) < count else 1
        tasks += [
            lambda shard=shard, wanted=wanted: self._load_shard(
                shard, wanted, results, inner, verify
            )
            for shard, wanted in together.items()
        ]
        run(tasks, self._threads_for(len(tasks), threads))
        return results

    def _load_shard(
        self,
        shard: int,
        wanted: list[tuple[str, int]],
        results: dict[str, Any],
        threads: int,
        verify: bool,
    ) -> None:
        """Read the arrays that are complete in one shard."""
        index = self._index
        npz = self._archive.get(shard)
        for _, number in wanted:
            self._prove(number, index.part_numbers(number).start, npz)
        stored = [
            index.stored_key(number, index.part_numbers(number).start) for _, number in wanted
        ]
        found = npz.load_all(stored, threads, verify=verify)
        for (key, number), name in zip(wanted, stored, strict=True):
            results[key] = array = found[name]
            if not isinstance(array, np.ndarray):
                raise IndexFormatError("a part is not an array", path=self.path, key=key)
            shape = index.shape(number)
            if array.shape != shape or array.dtype != index.dtype(number):
                self._check_form(number, shape, array.shape, array.dtype)

    def lazy(self, key: str) -> ShardedArray:
        """Return an array that reads only the parts that are indexed.

        No shard is opened now.

        Parameters
        ----------
        key : str
            With or without ``.npy``.

        Returns
        -------
        LazyArray
            Can be indexed while the archive is open.
        """
        return ShardedArray(self, self._find(key))

    def memmap(self, key: str, mode: MmapMode = "r") -> np.memmap[Any, Any]:
        """Map an array into memory without reading it, if it is stored in one part.

        Parameters
        ----------
        key : str
            With or without ``.npy``.
        mode : {"r", "c"}, default "r"
            As of `NpzFile.memmap`. A map of mode "r+" would change a shard.

        Raises
        ------
        UnsupportedError
            The array has several parts, or the archive is in a store, or the
            mode is "r+".
        NotMappableError
            The part is compressed.
        """
        check_mmap_mode(mode)
        number = self._find(key)
        stored = None if mode == "r+" else self._stored_complete(number)
        if stored is None:
            what = (
                "an array of a sharded archive cannot be changed in place" if mode == "r+"
                else "an array of several parts cannot be mapped into memory"
            )  # fmt: skip
            raise UnsupportedError(
                what, path=self.path, key=key,
                remedy="Read it, or parts of it with npz.lazy(key).",
            )  # fmt: skip
        shard, part_key = stored
        array: np.memmap[Any, Any] = shard.memmap(part_key, mode)
        return array

    def _stored_complete(self, number: int) -> tuple[NpzFile, str] | None:
        """Return the shard of an array that one has, and its key there; None if several do."""
        index, parts = self._index, self._index.part_numbers(number)
        if parts:
            return self._stored(number, parts[0])[:2] if len(parts) == 1 else None
        self._prove_empty(number)
        shard, key = self._archive.get(index.home(number)), index.stored_key(number, None)
        return (shard, key) if shard.lazy(key).shape == index.shape(number) else None

    def stream(self, key: str) -> BinaryIO:
        """Open an array as a readable binary stream of the bytes of an .npy file.

        Of an array of several parts, all parts are checked before the first
        byte is returned, so that they are read twice.

        Parameters
        ----------
        key : str
            With or without ``.npy``.

        Returns
        -------
        file object
            Can be read while the archive is open.
        """
        number = self._find(key)
        parts = self._index.part_numbers(number)
        if len(parts) == 1:
            return self._stream_of(number, parts[0])
        from npzkit.datasets.sharded_array import PartsStream

        stream = PartsStream(self.lazy(key), lambda: check_array(self, key, lambda size: None))
        return cast(BinaryIO, io.BufferedReader(stream, 1 << 18))

    def _streams(self, key: str) -> Iterator[BinaryIO]:
        number = self._find(key)
        for part in self._index.part_numbers(number):
            yield self._stream_of(number, part)

    def _stream_of(self, number: int, part: int) -> BinaryIO:
        """Open a part, which was checked to be what the index says."""
        shard, part_key, _ = self._stored(number, part)
        return shard.stream(part_key)

    # -- what is known of them ----------------------------------------------

    def info(self, key: str) -> ArrayInfo:
        """Return details of an array by the index alone. No shard is opened.

        Parameters
        ----------
        key : str
            With or without ``.npy``.

        Returns
        -------
        ArrayInfo
            Of an array of several parts, `method` also has their number,
            `compressed_size` is the sum, and `crc32` is that of the parts'
            CRC-32s, four bytes each, in the order of `parts`. `data_offset` and
            `aligned` are of a place in a shard, which the index does not have: 0
            and False.
        """
        return self._info(self._find(key))

    def parts(self, key: str) -> tuple[PartInfo, ...]:
        """Return the parts of an array by the index alone. No shard is opened.

        Parameters
        ----------
        key : str
            With or without ``.npy``.

        Returns
        -------
        tuple of PartInfo
            They tile the array. Empty if the array has no items.
        """
        index = self._index
        return tuple(
            PartInfo(
                index.shards[part.shard].name, part.key, part.offset, part.shape,
                part.compressed_size, part.crc32, method_name(part.method),
            )
            for part in index.parts(self._find(key))
        )  # fmt: skip

    def _info(self, number: int) -> ArrayInfo:
        index = self._index
        key, parts = index.keys[number], list(index.parts(number))
        methods = sorted({part.method for part in parts} or {STORED})
        method = " and ".join(map(method_name, methods))
        crc = b"".join(part.crc32.to_bytes(4, "little") for part in parts)
        return ArrayInfo(
            key=key,
            member=key + SUFFIX,
            shape=index.shape(number),
            dtype=index.dtype(number),
            fortran_order=index.fortran_order(number),
            nbytes=index.nbytes[number],
            compressed_size=sum(part.compressed_size for part in parts),
            method=method if len(parts) < 2 else f"{method} in {len(parts)} parts",
            crc32=parts[0].crc32 if len(parts) == 1 else crc32(crc),
            data_offset=0,
            aligned=False,
            seekable=len(parts) == 1 and parts[0].method == STORED,
            attrs=MappingProxyType(user_attrs(index.attrs(number))),
        )

    @property
    def file_size(self) -> int:
        return self.archive_info().size

    def archive_info(self) -> ArchiveInfo:
        """Return the sizes of the archive: of all shards, and of the index as its directory."""
        self._archive.check_open()
        index, index_size = self._index, self._version[0]
        size = sum(shard.size for shard in index.shards) + index_size
        return ArchiveInfo(
            path=self.path, size=size, member_count=len(self), start_offset=0, directory_offset=0,
            directory_size=index_size, end_offset=size, dead_size=0, torn_size=0, comment=b"",
            compressed_size=index.compressed_size, uncompressed_size=sum(index.nbytes),
        )  # fmt: skip

    def _saved_attrs(self, key: str) -> Mapping[str, Any]:
        return self._index.attrs(self._find(key))

    def _split_keys(self, keys: Iterable[str]) -> list[str]:
        from npzkit.members.multipart import PARTS_ATTRIBUTE

        return [key for key in keys if PARTS_ATTRIBUTE in self._saved_attrs(key)]

    def _join(self, key: str, read: Callable[[str], Any]) -> Any:
        from npzkit.members.multipart import join

        number = self._find(key)
        return join(read, self._index.keys[number], dict(self._index.attrs(number)))

    def summary(self) -> str:
        """Return a table of the arrays: key, shape, dtype, size and method."""
        infos = map(self._info, range(len(self)))
        return format_summary(f"ShardedFile {self.path!r}", infos)

    def verify(
        self,
        keys: Iterable[str] | None = None,
        progress: Callable[[int, int], object] | None = None,
        *,
        threads: int | None = None,
    ) -> VerifyReport:
        """Check the index against the shards, and all data; see `npzkit.verify`.

        Parameters
        ----------
        keys : iterable of str, optional
            The arrays to check; by default all, and the shards as archives.
        progress : callable, optional
            Called with the number of uncompressed bytes checked so far and in
            total.
        threads : int, optional
            Number of threads; by default one per processor.

        Returns
        -------
        VerifyReport
            ``ok``, and one row per problem or oddity found. Offsets are those
            in the shard that a row names.

        Raises
        ------
        MemberNotFoundError
            One of `keys` does not exist.
        ClosedArchiveError
            The archive is closed.
        """
        self._archive.check_open()
        check_several(keys)
        from npzkit.datasets.part_checks import verify_shards

        numbers = range(len(self)) if keys is None else [self._find(key) for key in keys]
        return verify_shards(
            self._archive, self._index, numbers, progress, threads, is_complete=keys is None
        )

    # -- the archive --------------------------------------------------------

    def close(self) -> None:
        """Close the shards. Closing it again does nothing. Later reads raise ClosedArchiveError."""
        shards = getattr(self, "_archive", None)
        if shards is not None:
            shards.close()

    def flush(self) -> None:
        """Do nothing: no map of a sharded archive can be changed."""

    @property
    def fid(self) -> Any:
        return None

    @property
    def zip(self) -> zipfile.ZipFile:
        raise _not_one_file(self.path)

    @property
    def _limits(self) -> Limits:
        return self._bounds

    def _lend_source(self) -> Source:
        raise _not_one_file(self.path)

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        self._archive.check_open()
        folder, options = self._place.location, self._options
        if isinstance(folder, Location):
            options = {**options, "storage_options": folder.options}
            folder = folder.url
        return _reopen, (folder, self._version, options)


def _not_one_file(path: str) -> UnsupportedError:
    return UnsupportedError(
        "a sharded archive is not one file", path=path,
        remedy="Open one of its shards, or convert it: npzkit.convert(folder, 'all.npz').",
    )  # fmt: skip


def _reopen(folder: str, version: tuple[int, int], options: Mapping[str, Any]) -> ShardedFile:
    """Open a pickled archive again, refusing one that was replaced."""
    npz = ShardedFile(folder, **options)
    if npz._version != version:
        raise StaleArchiveError(
            "the archive was replaced since it was pickled", path=npz.path,
            remedy="Open it again by its path.",
        )  # fmt: skip
    return npz
