"""The data of a member in a stream that is read from front to back.

Owns where the data of a member ends whose sizes follow it: where its compressed
stream says. Knows no NPY.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npzkit.codecs.decompressors import Decompressor, decompressor
from npzkit.codecs.methods import LZMA, STORED, method_name
from npzkit.errors import NoDataError, UnsupportedError, ZipFormatError
from npzkit.files.forward_source import ForwardSource
from npzkit.zip.entries import UNKNOWN_SIZE, Entry
from npzkit.zip.member_checks import check_entry
from npzkit.zip.member_stream import MemberStream

_LZMA_END_MARK = 1 << 1
"""The flag that says that a stream of LZMA has an end mark (section 4.4.4)."""
_DICTIONARY_SIZE = 1 << 26
"""The largest dictionary of LZMA in a stream of unknown size: its largest preset has it."""
_INPUT_SIZES = 1 << 12, 1 << 16
"""Compressed bytes fed at a time: those after the end are decoded by nobody."""
_DRAIN_SIZE = 1 << 16
_PIECE_SIZE = 1 << 18


def _ends_itself(entry: Entry) -> bool:
    """Whether the data of a member shows where it ends."""
    if entry.method == LZMA:
        return bool(entry.flags & _LZMA_END_MARK)
    return entry.method != STORED


class ArrivingStream(MemberStream):
    """The bytes of a member whose sizes a stream claims before it has them."""

    @property
    def is_backed(self) -> bool:
        return False

    def drain(self) -> None:
        """Read on to the end of the data."""
        buffer = bytearray(_DRAIN_SIZE)
        while self.readinto(buffer):
            pass


class LateStream(ArrivingStream):
    """The bytes of a member whose CRC follows its data, and is compared by the caller."""

    @property
    def found(self) -> Entry:
        """The entry, with the CRC that the data was found to have."""
        return self._entry._replace(crc32=self._crc)

    def _check_crc32(self) -> None:
        pass


class UndescribedStream(LateStream):
    """The bytes of a member whose sizes and CRC follow its data.

    Parameters
    ----------
    source : ForwardSource
    entry : Entry
        With sizes of `UNKNOWN_SIZE`.
    data_start : int
        The place of the source's next byte.
    size_limit : int or None
        Most bytes that the member may have.

    Raises
    ------
    UnsupportedError
        The data does not show where it ends.
    """

    def __init__(
        self, source: ForwardSource, entry: Entry, data_start: int, size_limit: int | None
    ) -> None:
        if not _ends_itself(entry):
            raise UnsupportedError(
                f"the member is {method_name(entry.method)}, and its size follows its data: "
                "in a stream, nothing shows where it ends",
                offset=entry.header_offset,
                remedy="Save the stream to a file, and open that.",
            )
        super().__init__(source, entry._replace(method=STORED), data_start)
        self._entry = entry
        self._stream = source
        self._decoder: Decompressor = decompressor(entry.method, 0, _DICTIONARY_SIZE)
        self._size_limit = size_limit

    @property
    def found(self) -> Entry:
        """The entry, with the sizes and the CRC that the data was found to have."""
        return self._entry._replace(
            crc32=self._crc, compressed_size=self._fed, uncompressed_size=self._done
        )

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        if self._size_limit is not None and self._done > self._size_limit:
            check_entry(self.found, self._size_limit)
        return count

    def read_up_to(self, size: int) -> bytes:
        return b"".join(self._pieces(size))

    def read_rest(self) -> bytes:
        data = b"".join(self._pieces(UNKNOWN_SIZE))
        self.finish()
        return data

    def _pieces(self, size: int) -> Iterator[bytes]:
        while size > 0 and (piece := self.read(min(size, _PIECE_SIZE))):
            yield piece
            size -= len(piece)

    def finish(self) -> None:
        """Check that all of the data was read.

        Raises
        ------
        ZipFormatError
            More follows.
        """
        if not self._checked:
            if self._inflate_some(1):
                raise ZipFormatError(
                    "bytes follow the array in its member",
                    offset=self.start,
                    expected=f"{self._done} bytes",
                )
            self._checked = True

    def _ends_early(self) -> ZipFormatError:
        return ZipFormatError(
            f"the {method_name(self._entry.method)} stream ends early",
            offset=self.start,
            found=f"{self._done} bytes",
        )

    def _fill(self, view: memoryview) -> int:
        out = self._inflate_some(len(view))
        view[: len(out)] = out
        return len(out)

    def _inflate_some(self, wanted: int) -> bytes:
        """Return some bytes; none at the end of the data."""
        while not self._decoder.eof:
            out = self._decode(self._decoder, wanted)
            if out:
                return out
        return b""

    def _decode(self, decoder: Decompressor, wanted: int) -> bytes:
        data = b""
        if decoder.needs_input:
            least, most = _INPUT_SIZES
            data = self._stream.take_some(min(max(wanted, least), most))
            if not data:
                raise NoDataError("the stream ends early", offset=self._stream.offset)
            self._fed += len(data)
        out = self._decoded(decoder, data, wanted)
        if decoder.eof:
            unused_size, self._decoder = decoder.unused_size, _ENDED
            self._stream.give_back(unused_size)
            self._fed -= unused_size
        return out


class _Ended:
    """In the place of a decoder that is at its end."""

    eof, needs_input, unused_size, ends = True, False, 0, True

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return b""


_ENDED = _Ended()
