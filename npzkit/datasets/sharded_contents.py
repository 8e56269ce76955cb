"""The arrays of a sharded archive, and what is known of them by its index alone.

Owns what each call of a `ShardedFile` does, as `npzkit.archive.opened_archive` does for one file.
That a part is what the index says is `npzkit.datasets.shards`'s.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from npzkit.archive.lazyarray import LazyArray
from npzkit.archive.npzfile import NpzFile
from npzkit.archive.opened_archive import Join, OpenedArchive
from npzkit.codecs.coding import STORED, method_name
from npzkit.datasets.part_checks import Seen, prove_part, verify_shards
from npzkit.datasets.parted_array import Piece, as_index
from npzkit.datasets.shard_names import attempt_of
from npzkit.datasets.sharded_array import ShardedArray
from npzkit.datasets.shards import OpenShards
from npzkit.display.blocks import PIECE_SIZE
from npzkit.errors import IndexFormatError, UnsupportedError, format_count, some_of
from npzkit.files.threads import run
from npzkit.files.urls import Location
from npzkit.limits import Limits, thread_count
from npzkit.maintenance.findings import Finding, VerifyReport
from npzkit.members.array_info import ArchiveInfo, ArrayInfo
from npzkit.members.keys import SUFFIX
from npzkit.members.metadata import PARTS_ATTRIBUTE, format_metadata, missing_or_tied, user_attrs
from npzkit.reading.indexing import Box

if TYPE_CHECKING:
    from npzkit.typing import MmapMode, Progress


_Place = tuple[int, int, np.ndarray[Any, Any]]
"""The number of an array, that of one of its parts, and where the part belongs."""


class ShardedContents(OpenShards):
    """A sharded archive, in the place of an `OpenedArchive`."""

    has_open_file = False
    has_checksums = True
    own_file = None
    is_sealed = True
    """The index has a checksum, and those of all directories."""
    seen: Seen | None = None
    """What `verify` has found of the files of other archives, which may be shards of this one."""

    def one_file(self) -> OpenedArchive:
        raise UnsupportedError(
            "a sharded archive is not one file", path=self.path,
            remedy="Open one of its shards, or convert it: npzkit.convert(folder, 'all.npz').",
        )  # fmt: skip

    # -- the archive --------------------------------------------------------

    @property
    def reopening(self) -> tuple[str, dict[str, Any]]:
        options = {name: self._options[name] for name in ("strict", "limits")}
        folder = self._place.location
        if isinstance(folder, Location):
            return folder.url, {**options, "storage_options": folder.options}
        return folder, options

    @property
    def reading_limits(self) -> Limits:
        limits: Limits = self._options["limits"]
        return limits

    @property
    def keys(self) -> list[str]:
        return list(self.index.keys)

    @property
    def nbytes(self) -> int:
        return sum(self.index.nbytes)

    @property
    def file_size(self) -> int:
        return sum(shard.size for shard in self.index.shards) + self.state[0]

    @property
    def comment(self) -> bytes:
        return format_metadata(dict(self.metadata))

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.index.metadata

    def archive_info(self) -> ArchiveInfo:
        """Return the sizes of all shards together, with the index as the directory."""
        size = self.file_size
        return ArchiveInfo(
            path=self.path, size=size, member_count=len(self), start_offset=0, directory_offset=0,
            directory_size=self.state[0], end_offset=size, dead_size=0, torn_size=0, comment=b"",
            compressed_size=self.index.compressed_size, uncompressed_size=self.nbytes,
        )  # fmt: skip

    def verify(
        self, keys: list[str] | None, progress: Progress | None, threads: int
    ) -> VerifyReport:
        numbers = range(len(self)) if keys is None else [self.find(key) for key in keys]
        rows, size = verify_shards(
            self.index, self.shard, numbers, progress, threads, self.seen,
            is_complete=keys is None,
        )  # fmt: skip
        if keys is None and self._place.is_local:
            rows += tuple(self._orphans())
        unchecked = len(self) - len(numbers)
        return VerifyReport(self.path, rows, len(numbers), size, unchecked_count=unchecked)

    def _orphans(self) -> Iterator[Finding]:
        """Yield a note if the folder has shards that the index does not list."""
        listed = {row.name for row in self.index.shards}
        others = [name for name in self._place.listed() if attempt_of(name) and name not in listed]
        if others:
            what = f"{format_count(len(others), 'shard')} of an unfinished write, which the index "
            yield Finding(None, "note", f"{what}does not list: {some_of(sorted(others))}")

    def flush(self) -> None:
        """Do nothing: no map of a sharded archive can be changed."""

    # -- arrays -------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.index.keys)

    def __contains__(self, key: object) -> bool:
        return self.index.number(key) is not None

    def find(self, key: str) -> int:
        """Return the number of the array that a key means."""
        self.check_open()
        number = self.index.number(key)
        if number is None:
            raise missing_or_tied(key, self.index.keys, self.path, lambda: self.metadata)
        return number

    def read(self, key: str, verify: bool, threads: int | None) -> Any:
        number = self.find(key)
        parts = self.index.part_numbers(number)
        if len(parts) == 1:
            lazy = self.part(number, parts[0])
            return lazy._npz.read(lazy._key, verify=verify, threads=threads)
        out = self.allocate(number, self.index.shape(number), parts)
        self.fill({key: out}, thread_count(threads), verify)
        return out

    def load_all(self, keys: Iterable[str] | None, threads: int, verify: bool) -> dict[str, Any]:
        chosen = self.keys if keys is None else list(dict.fromkeys(keys))
        numbers = [self.find(key) for key in chosen]
        if not self._place.is_local:
            self.check_backed(part for n in numbers for part in self.index.part_numbers(n))
        results: dict[str, Any] = dict.fromkeys(chosen)
        together: dict[int, list[tuple[str, int]]] = {}
        tasks: list[Any] = []
        for key, number in zip(chosen, numbers, strict=True):
            parts = self.index.part_numbers(number)
            if len(parts) == 1:
                together.setdefault(self.index.shard_of(parts[0]), []).append((key, number))
            else:
                results[key] = self.allocate(number, self.index.shape(number), parts)
                tasks += self._filling({key: results[key]}, 1, verify=verify)
        # Threads share shards, or the arrays in one.
        inner = threads if len(together) < threads else 1
        tasks += [
            partial(self._load_shard, shard, wanted, results, inner, verify)
            for shard, wanted in together.items()
        ]
        run(tasks, self.threads_for(len(tasks), threads))
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
        index = self.index
        npz = self.shard(shard)
        stored = []
        for _, number in wanted:
            part = index.part_numbers(number).start
            prove_part(index, number, part, npz, self.path)
            stored.append(index.stored_key(number, part))
        found = npz.load_all(stored, threads=threads, verify=verify)
        for (key, number), name in zip(wanted, stored, strict=True):
            results[key] = array = found[name]
            if not isinstance(array, np.ndarray):
                raise IndexFormatError("a part is not an array", path=self.path, key=key)
            self.check_form(number, index.shape(number), array.shape, array.dtype)

    @property
    def can_be_read_twice(self) -> bool:
        return bool(self._place.is_local)

    def fill(
        self, outs: Mapping[str, Any], threads: int, verify: bool, *, is_trial: bool = False
    ) -> None:
        tasks = self._filling(outs, threads, verify=verify, is_trial=is_trial)
        run(tasks, self.threads_for(len(tasks), threads))

    def _filling(
        self, outs: Mapping[str, Any], threads: int, *, verify: bool, is_trial: bool = False
    ) -> list[Callable[[], None]]:
        """Return tasks that each read the parts in one shard."""
        places: list[_Place] = []
        for key, out in outs.items():
            number = self.find(key)
            self.prove_empty(number, verify=verify)
            boxes = zip(*(column.tolist() for column in self.index.boxes(number)), strict=True)
            for part, box in zip(self.index.part_numbers(number), boxes, strict=True):
                ranges = (slice(begin, begin + n) for begin, n in zip(*box, strict=True))
                # With the Ellipsis, a view also of an array without dimensions.
                places.append((number, part, out[(..., *ranges)]))
        return self._filling_parts(places, threads, verify=verify, is_trial=is_trial)

    def _filling_parts(
        self, places: Iterable[_Place], threads: int, *, verify: bool, is_trial: bool = False
    ) -> list[Callable[[], None]]:
        """Return tasks that each read the parts in one shard to where they belong."""
        by_shard: dict[int, list[_Place]] = {}
        for place in places:
            by_shard.setdefault(self.index.shard_of(place[1]), []).append(place)
        inner = threads if len(by_shard) < threads else 1

        def fill_from(shard: int, wanted: list[_Place]) -> None:
            npz = self.shard(shard)
            outs = {self.part(number, part)._key: out for number, part, out in wanted}
            npz._archive.fill(outs, inner, verify, is_trial=is_trial)

        return [partial(fill_from, *each) for each in by_shard.items()]

    def read_boxes(
        self, boxes: Mapping[str, Iterable[Box]], threads: int, verify: bool
    ) -> dict[str, dict[Box, np.ndarray[Any, Any]]]:
        index = self.index
        needed: dict[str, tuple[ShardedArray, dict[Box, list[Piece]]]] = {}
        places: dict[int, _Place] = {}
        for key, wanted in boxes.items():
            lazy = self.lazy(key, None)
            if len(lazy._part_numbers) > 1:
                needs = {box: list(lazy._pieces(lazy._positions(box))) for box in wanted}
                needed[key] = lazy, needs
                number = lazy._number
                for part in {part for pieces in needs.values() for part, _, _ in pieces}:
                    memory = self.allocate(number, index.part(number, part).shape, [part])
                    places[part] = number, part, memory
        tasks = self._filling_parts(places.values(), threads, verify=verify)
        run(tasks, self.threads_for(len(tasks), threads))
        parts = {part: memory for _, part, memory in places.values()}
        return {
            key: {box: self._joined(lazy, box, pieces, parts) for box, pieces in needs.items()}
            for key, (lazy, needs) in needed.items()
        }

    def _joined(
        self,
        lazy: ShardedArray,
        box: Box,
        pieces: list[Piece],
        parts: Mapping[int, np.ndarray[Any, Any]],
    ) -> np.ndarray[Any, Any]:
        """Return a box of an array, of parts that were read."""
        blocks: list[np.ndarray[Any, Any]] = [
            parts[part][as_index(local)] for part, local, _ in pieces
        ]
        if len(pieces) == 1:
            return blocks[0]
        shape = tuple(map(len, lazy._positions(box)))
        block = self.allocate(lazy._number, shape, [])
        for (_, _, at), found in zip(pieces, blocks, strict=True):
            block[at] = found
        return block

    def join(self, key: str, join: Join) -> Any:
        number = self.find(key)
        return join(self.index.keys[number], self.index.attrs(number))

    def split_keys(self, keys: Iterable[str]) -> list[str]:
        return [key for key in keys if PARTS_ATTRIBUTE in self.saved_attrs(key)]

    def saved_attrs(self, key: str) -> Mapping[str, Any]:
        return self.index.attrs(self.find(key))

    def lazy(self, key: str, npz: NpzFile | None, *, verify: bool = True) -> ShardedArray:
        return ShardedArray(npz, self, self.find(key), verify=verify)

    def memmap(self, key: str, mode: MmapMode) -> np.memmap[Any, Any]:
        number = self.find(key)
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
        mapped: np.memmap[Any, Any] = stored._npz.memmap(stored._key, mode)
        return mapped

    def _stored_complete(self, number: int) -> LazyArray | None:
        """Return an array as the shard that has all of it does; None if several shards do."""
        index, parts = self.index, self.index.part_numbers(number)
        if parts:
            return self.part(number, parts[0]) if len(parts) == 1 else None
        self.prove_empty(number)
        lazy = self.shard(index.home(number)).lazy(index.stored_key(number, None))
        is_all = lazy.shape == index.shape(number) and lazy.dtype == index.dtype(number)
        return lazy if is_all else None

    def stream(self, key: str, *, verify: bool = True) -> BinaryIO:
        if len(self.index.part_numbers(self.find(key))) == 1:
            return next(self.streams(key, verify=verify))
        pieces = PartsStream(self._pieces(key, verify))
        return cast(BinaryIO, io.BufferedReader(pieces, 1 << 18))

    def _pieces(self, key: str, verify: bool) -> Iterator[memoryview]:
        """Yield the bytes of an array as an .npy file, after all its parts were checked."""
        for opened in self.streams(key) if verify else ():
            with opened as stream:
                while stream.read(PIECE_SIZE):
                    pass
        self.prove_empty(self.find(key))
        yield from self.lazy(key, None, verify=verify)._npy_pieces()

    def streams(self, key: str, *, verify: bool = True) -> Iterator[BinaryIO]:
        number = self.find(key)
        for part in self.index.part_numbers(number):
            lazy = self.part(number, part)
            yield lazy._npz.stream(lazy._key, verify=verify)

    # -- what is known of them ----------------------------------------------

    def info(self, key: str) -> ArrayInfo:
        return self._info(self.find(key))

    def infos(self, most: int | None = None) -> Iterator[ArrayInfo]:
        return map(self._info, range(len(self))[:most])

    def _info(self, number: int) -> ArrayInfo:
        index = self.index
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
            crc32=parts[0].crc32 if len(parts) == 1 else zlib.crc32(crc),
            data_offset=0,
            aligned=False,
            seekable=len(parts) == 1 and parts[0].method == STORED,
            # As npzkit writes them.
            checked_parts=True,
            attrs=MappingProxyType(user_attrs(index.attrs(number))),
        )


class PartsStream(io.RawIOBase):
    """A stream that can be read forward, of pieces that an iterator has.

    Once that has failed, each read raises its error.
    """

    def __init__(self, pieces: Iterator[memoryview]) -> None:
        self._pieces, self._left = pieces, memoryview(b"")
        self._error: Exception | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the beginning of a buffer."""
        while not self._left:
            if self._error is not None:
                raise self._error
            try:
                piece = next(self._pieces, None)
            except Exception as error:
                self._error = error
                raise
            if piece is None:
                return 0
            self._left = piece
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._left))
        view[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
