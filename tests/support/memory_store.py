"""A store in memory: counts requests, and can cut or replace the object in the middle of them."""

from __future__ import annotations

from npzkit.files.urls import Location
from npzkit.stores.remote_source import Opened, RemoteSource, Store
from npzkit.stores.retries import TransientError
from npzkit.stores.versions import Version

__all__ = ["InStore", "MemoryStore"]


class MemoryStore(Store):
    """One object.

    Attributes
    ----------
    spans : list of (int, int)
        What was asked for, after the first request.
    cut : int
        Each so many requests an answer ends early; 0 for never.
    is_replaced : bool
        Whether another object took its place.
    """

    name = "store://bucket/a.npz"

    def __init__(self, data: bytes, cut: int = 0) -> None:
        self._data = data
        self.spans: list[tuple[int, int]] = []
        self.cut = cut
        self.is_replaced = False

    def open(self, tail_size: int) -> Opened:
        tail = self._data[-tail_size:] if tail_size else b""
        return Opened(tail, Version(len(self._data), "one"))

    def readinto(self, offset: int, view: memoryview, version: Version) -> None:
        assert 0 <= offset <= offset + len(view) <= len(self._data), "out of the object's bounds"
        assert len(view), "an empty range"
        if self.is_replaced:
            raise version.changed()
        self.spans.append((offset, offset + len(view)))
        if self.cut and not len(self.spans) % self.cut:
            raise TransientError("cut")
        view[:] = self._data[offset : offset + len(view)]


class InStore:
    """What `npzkit.open` takes to read from a store: it asks an open archive for its source."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def _lend_source(self) -> RemoteSource:
        return RemoteSource(Location(self._store.name, {}), self._store)
