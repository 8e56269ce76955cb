"""Names for annotations: what functions of npzkit take as files and options."""

# Nothing of npzkit imports them when it runs.

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

__all__ = [
    "ArchiveLike", "Compression", "MmapMode", "OnParts", "OpenArchive", "Partial", "PathLike",
    "Progress", "Readable", "SupportsRead", "SupportsWrite", "Writable",
]  # fmt: skip


class SupportsRead(Protocol):
    """A stream of bytes that is read from."""

    def read(self, size: int = ..., /) -> bytes | None:
        """Return at most so many bytes."""


class SupportsWrite(Protocol):
    """A stream of bytes that is written to."""

    def write(self, data: Any, /) -> object:
        """Write bytes."""


class OpenArchive(Protocol):
    """An open `npzkit.NpzFile`."""

    def _lend_source(self) -> Any: ...


class Placed(Protocol):
    """A URL with the options of its store, as npzkit passes it on."""

    @property
    def url(self) -> str: ...
    @property
    def options(self) -> Any: ...


PathLike: TypeAlias = str | os.PathLike[str] | Placed
"""A path, or a URL."""
Readable: TypeAlias = PathLike | SupportsRead | bytes | bytearray | memoryview | zipfile.ZipFile
"""What `npzkit.open` takes."""
ArchiveLike: TypeAlias = Readable | OpenArchive
"""What functions take that read an archive, whether it is open or not."""
Writable: TypeAlias = PathLike | SupportsWrite
"""What `npzkit.save` takes."""

Compression: TypeAlias = Literal["stored", "deflated", "zstd"] | int | None
"""How an array is compressed: a word, or one of zipfile's constants."""
MmapMode: TypeAlias = Literal["r", "c", "r+"]
"""How an array is mapped; see `npzkit.NpzFile.memmap`."""
OnParts: TypeAlias = Literal["refuse", "split"]
"""How masked arrays and strings are saved; see `npzkit.NpzWriter`."""
Partial: TypeAlias = Literal["mask", "drop"] | None
"""What is kept of a damaged array; see `npzkit.repair`."""
Progress: TypeAlias = Callable[[int, int], object]
"""A function of what is done so far and the total, mostly in bytes."""
