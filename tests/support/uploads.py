"""An upload that is kept in memory, counts, and fails on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from npzkit.stores.upload_sink import Upload, replaced

__all__ = ["RecordedUpload"]


class RecordedUpload(Upload):
    """What an upload was asked for.

    Parameters
    ----------
    fault : callable, optional
        Called with the number of each request, from 1 on, and its name; may raise.
    has_any_order : bool
    older : str or None

    Attributes
    ----------
    name : str
    object : bytes or None
        What is visible.
    calls : list of str
    sizes : dict of int to int
        Of the parts that were sent, by their number.
    parts : dict of int to bytes
        What is in the store and not visible.
    most_under_way : int
    """

    def __init__(
        self,
        fault: Callable[[int, str], Any] = lambda number, name: None,
        *,
        has_any_order: bool = True,
        older: str | None = "",
    ) -> None:
        super().__init__("fake://bucket/a.npz", older)
        self.has_any_order = has_any_order
        self.object: bytes | None = None
        self.calls: list[str] = []
        self.parts: dict[int, bytes] = {}
        self.sizes: dict[int, int] = {}
        self.order: list[int] = []
        self.under_way = self.most_under_way = 0
        self.is_stopped = False
        self._fault = fault
        self._lock = threading.Lock()

    def _call(self, name: str) -> None:
        with self._lock:
            self.calls.append(name)
            number = len(self.calls)
        self._fault(number, name)

    def _make(self, data: bytes) -> None:
        if self.older is None and self.object is not None:
            raise replaced(self.name, self.older)
        self.object = data

    def find_tag(self) -> str | None:
        return None if self.object is None else "tag"

    def put(self, data: bytearray) -> None:
        self._call("put")
        self._make(bytes(data))

    def begin(self) -> None:
        self._call("begin")

    def send(self, number: int, data: bytearray) -> None:
        with self._lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            self._call("send")
            with self._lock:
                self.parts[number] = bytes(data)
                self.sizes[number] = len(data)
                self.order.append(number)
        finally:
            with self._lock:
                self.under_way -= 1

    def complete(self) -> None:
        self._call("complete")
        self._make(b"".join(self.parts[number] for number in sorted(self.parts)))
        self.parts.clear()

    def is_in_place(self) -> bool:
        return self.object is not None

    def stop(self) -> None:
        self.is_stopped = True

    def abort(self) -> None:
        self._call("abort")
        assert not self.under_way
        self.parts.clear()
