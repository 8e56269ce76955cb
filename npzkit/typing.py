"""Names for annotations: what functions of npzkit take as files."""

# Nothing of npzkit imports them when it runs.

from __future__ import annotations

import os
import zipfile
from typing import Any, Protocol, TypeAlias

__all__ = [
    "ArchiveLike", "OpenArchive", "PathLike", "Readable", "SupportsRead", "SupportsWrite",
    "Writable",
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
