"""A stream that is read once, from front to back, as the source of an archive.

Owns how many bytes are asked of the stream at a time, and which of those that
went by are kept. Knows nothing about zip or NPY.
"""

from __future__ import annotations

import bisect
import io
from typing import Any

from npzkit.errors import NoDataError
from npzkit.files.disk import check_binary
from npzkit.files.file_objects import can_read, name_of, patiently
from npzkit.files.source import Source, overlay

_AHEAD_SIZE = 1 << 18
"""Bytes asked for at a time of streams that return what has arrived."""
_ASKED_SIZE = 1 << 20
"""Most bytes asked for at a time of other objects, which return a new object."""
_UNKNOWN = b"\xff"
"""Read in the place of bytes that were not kept: no record and no hole has it."""


class ForwardSource(Source):
    """The bytes of a stream: those at `offset` can be read, earlier ones if they were kept.

    Parameters
    ----------
    stream : object with ``read``
        Is never asked to seek, and not closed.
    tail_size : int
        Of the stream's last bytes, as many are kept at least.

    Attributes
    ----------
    offset : int
        The place of the next byte.
    size : int
        Bytes that have arrived. At the end, those of the stream.

    Raises
    ------
    TypeError
        The object has no ``read``, or is a stream of text.
    """

    def __init__(self, stream: Any, tail_size: int) -> None:
        if not can_read(stream):
            raise TypeError(
                f"the stream must be a file object, not {type(stream).__name__}; "
                'for a file, pass open(path, "rb")'
            )
        check_binary(stream, "rb")
        self.file = self.handle = stream
        self.name = name_of(stream)
        self.offset = self.size = 0
        # A subclass may change only `read`.
        is_plain = type(stream) in (io.BufferedReader, io.BytesIO, io.FileIO)
        self._readinto: Any = stream.readinto if is_plain else None
        self._read: Any = getattr(stream, "read1", None)
        self._ahead_size = _AHEAD_SIZE
        if not callable(self._read):
            # An object that has only `read` may wait until all bytes are there.
            self._read = stream.read
            self._ahead_size = _AHEAD_SIZE if isinstance(stream, io.RawIOBase) else 0
        self._buffer, self._begin = b"", 0
        self._tail, self._tail_size = bytearray(), tail_size
        self._places: list[int] = []
        self._kept: list[bytearray] = []
        self._piece_start = 0

    # -- front to back --------------------------------------------------------

    def peek(self, size: int) -> bytes:
        """Return the next bytes without moving on; fewer only at the end of the stream."""
        missing = size - (len(self._buffer) - self._begin)
        if missing > 0:
            self._fetch(missing, missing)
        return self._buffer[self._begin : self._begin + size]

    def take(self, size: int) -> bytes:
        """Return the next bytes and move on; fewer only at the end of the stream."""
        data = self.peek(size)
        self._begin += len(data)
        self.offset += len(data)
        return data

    def take_some(self, size: int) -> bytes:
        """Return up to `size` bytes of those that arrive first; none at the end of the stream."""
        if self._begin == len(self._buffer):
            self._fetch(1, size)
        return self.take(min(size, len(self._buffer) - self._begin))

    def give_back(self, size: int) -> None:
        """Move back by some of the bytes that `take_some` returned last."""
        self._begin -= size
        self.offset -= size

    def keep(self, size: int) -> bytes:
        """Return the next bytes as `take` does, and keep them."""
        place, data = self.offset, self.peek(size)
        end = self._places[-1] + len(self._kept[-1]) if self._kept else -1
        if place <= end and self._places[-1] >= self._piece_start:
            # The first of them may have been kept before.
            self._kept[-1] += data[end - place :]
        elif data:
            self._places.append(place)
            self._kept.append(bytearray(data))
        return self.take(len(data))

    def begin_piece(self) -> int:
        """Keep the next bytes apart from those before, and return their place for `drop_piece`."""
        self._piece_start = self.offset
        return self.offset

    def drop_piece(self, place: int) -> None:
        """Forget the piece that was begun at `place`."""
        number = bisect.bisect_left(self._places, place)
        if self._places[number : number + 1] == [place]:
            del self._places[number], self._kept[number]

    def skip_to(self, offset: int) -> None:
        """Move on to `offset`, or to the end of the stream."""
        while self.offset < offset and self.take_some(min(offset - self.offset, _ASKED_SIZE)):
            pass

    def _fetch(self, missing: int, wanted: int) -> None:
        """Have at least `missing` more bytes in the buffer, unless the stream ends.

        Objects that may wait until all bytes are there are asked for `wanted` bytes.
        """
        pieces = [self._buffer[self._begin :]] if self._begin < len(self._buffer) else []
        while missing > 0:
            piece = self._some(max(wanted, self._ahead_size))
            if not piece:
                break
            pieces.append(piece)
            missing -= len(piece)
            wanted = missing
        self._buffer, self._begin = pieces[0] if len(pieces) == 1 else b"".join(pieces), 0

    def _some(self, size: int) -> bytes:
        """Return some bytes of the stream; none at its end."""
        data = patiently(self._read, min(size, _ASKED_SIZE))
        if not data and self._ahead_size:
            # `read1` also returns nothing if nothing has arrived yet.
            data = patiently(self.file.read, 1)
        if isinstance(data, str):
            kind = type(self.file).__name__
            raise TypeError(f"the stream has text, not bytes: {kind}.read gave a str")
        self._note(data)
        return bytes(data)

    def _note(self, data: Any) -> None:
        """Count bytes that have arrived, and keep the last ones."""
        self.size += len(data)
        if len(data) >= self._tail_size:
            self._tail = bytearray(data[-self._tail_size :])
            return
        self._tail += data
        if len(self._tail) > 4 * self._tail_size:
            del self._tail[: -self._tail_size]

    # -- as a source ----------------------------------------------------------

    def readinto_at(self, offset: int, view: memoryview) -> None:
        """Fill `view` with the next bytes, or with earlier ones.

        Raises
        ------
        NoDataError
            The stream ends before.
        """
        if offset < self.offset:
            self._read_kept(offset, view)
            return
        ready = self.take(min(len(view), len(self._buffer) - self._begin))
        done = len(ready)
        view[:done] = ready
        while done < len(view):
            count = self._read_directly(view[done:])
            if not count:
                raise NoDataError(
                    "the stream ends early",
                    offset=self.offset,
                    found=f"{done} bytes",
                    expected=f"{len(view)} bytes",
                )
            done += count

    def _read_directly(self, view: memoryview) -> int:
        if self._readinto is None:
            data = self.take_some(len(view))
            view[: len(data)] = data
            return len(data)
        count: int = patiently(self._readinto, view)
        self._note(view[:count])
        self.offset += count
        return count

    def _read_kept(self, offset: int, view: memoryview) -> None:
        view[:] = _UNKNOWN * len(view)
        first = max(bisect.bisect_right(self._places, offset) - 1, 0)
        last = bisect.bisect_left(self._places, offset + len(view))
        for place, data in zip(self._places[first:last], self._kept[first:last], strict=True):
            overlay(view, offset, place, data)
        overlay(view, offset, self.size - len(self._tail), self._tail)
