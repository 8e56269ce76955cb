"""What an `NpzFile` has inside: one file, or the shards of a folder.

Owns what the two have in common, which is all that an `NpzFile` asks of them. They are
`npzkit.archive.single_file` and `npzkit.datasets.sharded_contents`. What users may pass is
checked before, and documented, in `npzkit.archive.npzfile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np

from npzkit.archive.opened_archive import MmapMode, OpenedArchive
from npzkit.limits import Limits
from npzkit.members.info import ArchiveInfo, ArrayInfo
from npzkit.reading.indexing import Box

if TYPE_CHECKING:
    from npzkit.archive.lazyarray import LazyArray
    from npzkit.maintenance.findings import VerifyReport

Join = Callable[[str, Mapping[str, Any]], Any]
"""Puts an array together, by its key and its attributes."""
Progress = Callable[[int, int], object]


class ArchiveContents(Protocol):
    """An archive that is open for reading.

    Attributes
    ----------
    is_open : bool
    has_open_file : bool
        Whether a file of its own is open, which somebody should close.
    path : str or None
        Of the file or the folder, without secrets; None for an archive in memory.
    state : tuple or None
        What must be equal when the archive is opened again; None if it cannot be.
    reopening : (str, dict)
        The path or URL, and the options to open it with again.
    reading_limits : Limits
        The limits that all readers of the archive use.
    keys : list of str
    nbytes : int
        Uncompressed bytes of all arrays.
    file_size : int
    comment : bytes
        The text of the metadata.
    is_sealed : bool
        Whether the names and attributes of arrays, and the metadata, fit checksums. They do in
        what npzkit has written, unless it has no arrays.
    own_file : file object or None
        See `npzkit.NpzFile.fid`.
    can_be_read_twice : bool
        Whether arrays may be checked before they are read, because reading is cheap.
    """

    is_open: bool

    @property
    def has_open_file(self) -> bool: ...
    @property
    def path(self) -> str | None: ...
    @property
    def state(self) -> tuple[Any, ...] | None: ...
    @property
    def reopening(self) -> tuple[str, dict[str, Any]]: ...
    @property
    def reading_limits(self) -> Limits: ...
    @property
    def keys(self) -> list[str]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def file_size(self) -> int: ...
    @property
    def comment(self) -> bytes: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def is_sealed(self) -> bool: ...
    @property
    def own_file(self) -> Any: ...
    @property
    def can_be_read_twice(self) -> bool: ...

    def __len__(self) -> int: ...
    def __contains__(self, key: object) -> bool: ...
    def read(self, key: str, verify: bool, threads: int | None) -> np.ndarray[Any, Any]: ...
    def load_all(
        self, keys: Iterable[str] | None, threads: int, verify: bool
    ) -> dict[str, Any]: ...
    def fill(
        self, outs: Mapping[str, Any], threads: int, verify: bool, *, is_trial: bool = False
    ) -> None: ...
    def join(self, key: str, join: Join) -> Any: ...
    def split_keys(self, keys: Iterable[str]) -> list[str]: ...
    def saved_attrs(self, key: str) -> Mapping[str, Any]: ...
    def lazy(self, key: str, npz: Any, *, verify: bool = True) -> LazyArray: ...
    def memmap(self, key: str, mode: MmapMode) -> np.memmap[Any, Any]: ...
    def stream(self, key: str, *, verify: bool = True) -> BinaryIO: ...
    def streams(self, key: str) -> Iterator[BinaryIO]: ...
    def info(self, key: str) -> ArrayInfo: ...
    def infos(self, most: int | None = None) -> Iterator[ArrayInfo]: ...
    def archive_info(self) -> ArchiveInfo: ...
    def verify(
        self, keys: list[str] | None, progress: Progress | None, threads: int
    ) -> VerifyReport: ...
    def check_open(self) -> None: ...
    def check_unchanged(self) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...
    def read_boxes(
        self, boxes: Mapping[str, Iterable[Box]], threads: int, verify: bool
    ) -> dict[str, dict[Box, np.ndarray[Any, Any]]]:
        """Return boxes of those arrays that lie in several parts, by key.

        The parts of one file are read together, and each one completely: for small arrays.
        """
        ...

    def one_file(self) -> OpenedArchive:
        """Return the archive if it is one file; else raise UnsupportedError."""
        ...
