"""Opening a source wherever the archive is: a path, a URL, memory, a file object.

Owns the choice between them, and the one place where what opens URLs is named.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from npzkit.files.source import Source, open_source
from npzkit.files.urls import Location, find_location

STORES = "npzkit.stores.store_for_url"
"""The module that opens URLs, which is imported with the first one."""


def stores() -> Any:
    """Return what opens URLs."""
    return importlib.import_module(STORES)


def open_any_source(
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
        As `open_source`, and as of a store.
    """
    found = find_location(file, storage_options)
    if isinstance(found, Location):
        source: Source = stores().open_source(found)
        return source
    return open_source(found, owned=owned)
