"""The chunks that an open archive keeps in memory after it decoded them.

Owns how many: one cache for all members together. Points to start from in a stream are kept by
`npzkit.zip.chunks`.
"""

from __future__ import annotations

import threading

_KEPT_SIZE = 1 << 26
"""Bytes of chunks that an open archive keeps."""


class KeptChunks:
    """The chunks of an open archive that were used last, so that neighbouring reads do not
    decode them again. Shared by threads, of which one at a time has a chunk.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: dict[tuple[object, int], bytes | bytearray] = {}
        self._size = 0

    def has(self, owner: object, number: int) -> bool:
        return (owner, number) in self._chunks

    def take(self, owner: object, number: int) -> bytes | bytearray | None:
        """Return a chunk, which is kept no longer; None if it is not there."""
        with self._lock:
            chunk = self._chunks.pop((owner, number), None)
            self._size -= 0 if chunk is None else len(chunk)
        return chunk

    def keep(self, owner: object, number: int, chunk: bytes | bytearray) -> None:
        """Keep a chunk instead of those that were not used for the longest time."""
        with self._lock:
            self._size += len(chunk) - len(self._chunks.pop((owner, number), b""))
            self._chunks[owner, number] = chunk
            while self._size > _KEPT_SIZE and len(self._chunks) > 1:
                self._size -= len(self._chunks.pop(next(iter(self._chunks))))
