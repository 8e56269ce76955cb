"""Opening a source wherever the archive is: a path, a URL, memory, a file object.

Owns the choice between them. Other files are opened as streams.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from npzkit.files.source import Source, SourceFile, open_source
from npzkit.files.urls import Location, find_location

if TYPE_CHECKING:
    from npzkit.files.stores import Store


def open_anywhere(
    file: Any, *, owned: bool = False, storage_options: Mapping[str, Any] | None = None
) -> Source:
    """Return a source for a URL, or for anything else that `open_source` takes.

    Parameters
    ----------
    file : str, path-like, bytes-like, file object or NpzFile
    owned : bool, default False
        As of `open_source`.
    storage_options : mapping, optional
        For the store of a URL.

    Raises
    ------
    OSError, UnsupportedError
        As `open_source`, and as `npzkit.files.stores.Store.open`.
    """
    found = find_location(file, storage_options)
    if isinstance(found, Location):
        from npzkit.files.remote import RemoteSource

        return RemoteSource(found, _store_of(found))
    return open_source(found, owned=owned)


def open_stream(file: str | os.PathLike[str] | Location) -> BinaryIO:
    """Open a file of any kind, to be read from front to back.

    Raises
    ------
    OSError, UnsupportedError
        As `open_anywhere`.
    """
    if not isinstance(file, Location):
        return builtins.open(file, "rb")
    source = open_anywhere(file.url, storage_options=file.options)
    ahead = source.ahead([(0, source.size)])
    return cast(BinaryIO, io.BufferedReader(SourceFile(ahead, source.size, source)))


def _store_of(location: Location) -> Store:
    """Return the store that a URL names. Makes no request."""
    if location.is_web:
        from npzkit.files.http_store import HttpStore

        return HttpStore(location.url, location.options)
    from npzkit.files.fsspec_store import FsspecStore

    return FsspecStore(location.url, location.options)
