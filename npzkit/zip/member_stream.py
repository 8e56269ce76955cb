"""A member's uncompressed bytes, one piece at a time, and the check of their end.

Guarantees that the bytes are all that the member has, and no more. In a stream, where
the sizes of a member may follow its data, it ends where the compressed stream says.
Knows no NPY, and nothing of headers but the entry it is given.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any, cast

from npzkit.codecs.checksum import crc32
from npzkit.codecs.coding import LZMA, MAX_RATIOS, STORED, method_name
from npzkit.codecs.decompressors import CopyableInflate, Decompressor, decompressor
from npzkit.errors import NoDataError, UnsupportedError, ZipFormatError
from npzkit.files.forward_source import ForwardSource
from npzkit.files.source import Source
from npzkit.zip.entries import UNKNOWN_SIZE, Entry
from npzkit.zip.local_header import check_crc32, check_entry

_INPUT_SIZES = 1 << 12, 1 << 18
"""Compressed bytes fed at a time: as many as bytes are wanted, within bounds. A
header takes few, and threads do not wait for each other's small pieces: two
inflate 525 MB/s by 256 KiB in and out, 437 MB/s by 64 KiB in."""
_COPYABLE_INPUT_SIZE = 1 << 16
"""A copied state may keep its last input in memory."""
_OUTPUT_SIZE = 1 << 18
"""Bytes read at a time, so that they are in the cache for their CRC."""
_LARGEST_BYTES = sys.maxsize
"""Bytes that a Python object can have."""
_REST_SIZE = 1 << 22
"""Bytes allocated at a time if the member's size is only claimed."""


class MemberStream(io.RawIOBase):
    """The uncompressed bytes of one member, forward only, in bounded memory.

    Parameters
    ----------
    source : Source
        Read at explicit offsets: any number of streams may share it.
    entry : Entry
    data_start : int
        From `data_offset`.
    verify : bool, default True
        Compare the CRC at the end.
    copyable : bool, default False
        Inflate by a library whose state `copy` can copy; for deflated members.

    Attributes
    ----------
    start : int
        `data_start`.

    Notes
    -----
    At the end of the data the stream checks that the compressed stream ends
    there as well, that nothing follows it, and the CRC.
    """

    def __init__(
        self,
        source: Source,
        entry: Entry,
        data_start: int,
        *,
        verify: bool = True,
        copyable: bool = False,
    ) -> None:
        self._source = source
        self._entry = entry
        self.start = data_start
        self._verify = verify
        self._fed = 0
        self._done = 0
        self._crc = 0
        self._checked = False
        self._decoder: Decompressor | None = None
        self._input_limit = _COPYABLE_INPUT_SIZE if copyable else 0
        if copyable:
            self._decoder = CopyableInflate()
        elif entry.method != STORED:
            sizes = entry.compressed_size, entry.uncompressed_size
            self._decoder = decompressor(entry.method, *sizes)

    def copy(self) -> MemberStream:
        """Return another stream at the same position as this `copyable` one."""
        other = MemberStream.__new__(MemberStream)
        other.__dict__.update(self.__dict__)
        decoder = cast(CopyableInflate, self._decoder)
        # Bytes that are fed but not yet inflated are read again, not kept in memory.
        other._fed -= decoder.pending_size
        other._decoder = decoder.copy()
        return other

    @property
    def is_backed(self) -> bool:
        """Whether the bytes in the file bound the size that the member claims."""
        return self._entry.method in (STORED, *MAX_RATIOS)

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        """Uncompressed bytes read so far."""
        return self._done

    def readinto(self, buffer: Any) -> int:
        """Read up to ``len(buffer)`` bytes; 0 at the end, which is checked."""
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._entry.uncompressed_size - self._done)
        if wanted <= 0:
            if len(view):
                self.finish()
            return 0
        count = self._fill(view[:wanted])
        if self._verify:
            self._crc = crc32(view[:count], self._crc)
        self._done += count
        if self._done == self._entry.uncompressed_size:
            self.finish()
        return count

    def read_some(self, view: memoryview) -> int:
        """Read some bytes into `view`, and return the count; 0 at the end of the member."""
        return self.readinto(view[:_OUTPUT_SIZE])

    def read_exactly(self, view: memoryview) -> None:
        """Fill `view`, which the member is known to have bytes for."""
        while len(view):
            count = self.read_some(view)
            if not count:
                raise self._ends_early()
            view = view[count:]

    @property
    def pending_size(self) -> int:
        """Compressed bytes that a copy of this `copyable` stream keeps in memory."""
        return cast(CopyableInflate, self._decoder).pending_size

    def skip_to(self, offset: int) -> None:
        """Read on up to `offset`, which is within the size that the member
        claims. Only for a compressed member that is not verified. The bytes are
        dropped.
        """
        while self._done < offset:
            self._done += len(self._inflate(min(_OUTPUT_SIZE, offset - self._done)))

    def read_up_to(self, size: int) -> bytes:
        """Return `size` bytes, fewer only if the member ends before."""
        size = min(size, self._entry.uncompressed_size - self._done)
        _check_addressable(size)
        if size > _REST_SIZE:
            steps = (min(_REST_SIZE, size - start) for start in range(0, size, _REST_SIZE))
            return b"".join([self.read_up_to(step) for step in steps])
        data = bytearray(size)
        self.read_exactly(memoryview(data))
        return bytes(data)

    def readall(self) -> bytes:
        """Return all bytes that are left."""
        if self._entry.uncompressed_size != UNKNOWN_SIZE:
            _check_addressable(self._entry.uncompressed_size - self._done)
        return super().readall()

    def read_rest(self) -> bytes:
        """Return all bytes that are left, and check the end.

        The buffer grows with what is decoded, never ahead of it.
        """
        data = self.read_up_to(self._entry.uncompressed_size)
        self.finish()
        return data

    def drain(self, advance: Callable[[int], object] = lambda size: None) -> None:
        """Read on to the end, and check it; `advance` is called with the bytes of each read."""
        buffer = bytearray(min(_OUTPUT_SIZE, self._entry.uncompressed_size - self._done) or 1)
        while count := self.readinto(buffer):
            advance(count)

    def finish(self) -> None:
        """Check the end of the member, after all bytes were read. Idempotent.

        Raises
        ------
        ZipFormatError
            Bytes are left: uncompressed, compressed, or behind the stream.
        ChecksumError
            The CRC differs.
        """
        if self._checked:
            return
        if self._done < self._entry.uncompressed_size:
            raise ZipFormatError(
                "bytes follow the array in its member",
                offset=self.start,
                found=f"{self._entry.uncompressed_size} bytes",
                expected=f"{self._done} bytes",
            )
        if self._decoder is not None:
            self._check_stream_end(self._decoder)
        if self._verify:
            self._check_crc32()
        self._checked = True

    def _check_crc32(self) -> None:
        check_crc32(self._crc, self._entry, self.start)

    def _fill(self, view: memoryview) -> int:
        if self._decoder is None:
            self._source.readinto_at(self.start + self._done, view)
            return len(view)
        out = self._inflate(len(view))
        view[: len(out)] = out
        return len(out)

    def _inflate(self, wanted: int) -> bytes:
        """Return at least one byte, or raise if there is none left."""
        decoder = cast(Decompressor, self._decoder)
        while not decoder.eof:
            out = self._decode(decoder, wanted)
            if out:
                return out
            if self._is_starved(decoder):
                break
        raise self._ends_early()

    def _is_starved(self, decoder: Decompressor) -> bool:
        return decoder.needs_input and self._fed == self._entry.compressed_size

    def _decode(self, decoder: Decompressor, wanted: int) -> bytes:
        """Feed the decoder once, unless it still has output."""
        data = b""
        if decoder.needs_input and not decoder.eof:
            least, most = _INPUT_SIZES
            most = min(self._input_limit or most, self._entry.compressed_size - self._fed)
            size = min(max(wanted, least), most)
            data = self._source.read_at(self.start + self._fed, size)
            self._fed += size
        return self._decoded(decoder, data, wanted)

    def _decoded(self, decoder: Decompressor, data: bytes, wanted: int) -> bytes:
        try:
            return decoder.decompress(data, wanted)
        except ZipFormatError as error:
            error.offset = self.start
            raise

    def _check_stream_end(self, decoder: Decompressor) -> None:
        while not decoder.eof and not self._is_starved(decoder):
            if self._decode(decoder, 1):
                raise ZipFormatError(
                    "the compressed stream is longer than the declared size",
                    offset=self.start,
                    found="more bytes",
                    expected=f"{self._entry.uncompressed_size} bytes",
                )
        if not self._entry.compressed_size:
            # No bytes mean no data, even without an end mark: zipfile reads it too.
            return
        left = decoder.unused_size + self._entry.compressed_size - self._fed
        if left or (decoder.ends and not decoder.eof):
            raise ZipFormatError(
                "the compressed stream does not end where the member does",
                offset=self.start + self._entry.compressed_size - left,
                found=f"{left} bytes left" if left else "no end mark",
            )

    def _ends_early(self) -> ZipFormatError:
        size = self._entry.uncompressed_size
        return ZipFormatError(
            f"the {method_name(self._entry.method)} stream ends early",
            offset=self.start,
            found=f"{self._done} bytes",
            expected=None if size == UNKNOWN_SIZE else f"{size} bytes",
        )


def _check_addressable(size: int) -> None:
    """Raise UnsupportedError for bytes that this system cannot hold together."""
    if size > _LARGEST_BYTES:
        raise UnsupportedError(
            "the bytes are too many for this 32-bit system",
            found=f"{size} bytes",
            expected=f"at most {_LARGEST_BYTES} bytes",
            remedy="Use a 64-bit Python, or read them in parts: npz.stream(key).read(size).",
        )


# -- in a stream that is read from front to back ------------------------------

_LZMA_END_MARK = 1 << 1
"""The flag that says that a stream of LZMA has an end mark (section 4.4.4)."""
_DICTIONARY_SIZE = 1 << 26
"""The largest dictionary of LZMA in a stream of unknown size: its largest preset has it."""
_ARRIVING_SIZES = 1 << 12, 1 << 16
"""Compressed bytes fed at a time: those after the end are decoded by nobody."""
_PIECE_SIZE = 1 << 18


class ArrivingStream(MemberStream):
    """The bytes of a member whose sizes a stream claims before it has them."""

    @property
    def is_backed(self) -> bool:
        return False


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
        if entry.method == STORED or (entry.method == LZMA and not entry.flags & _LZMA_END_MARK):
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
        self._ended = False
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
        pieces = []
        while size > 0 and (piece := self.read(min(size, _PIECE_SIZE))):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def finish(self) -> None:
        """Check that all of the data was read.

        Raises
        ------
        ZipFormatError
            More follows.
        """
        if not self._checked:
            if self._fill(memoryview(bytearray(1))):
                raise ZipFormatError(
                    "bytes follow the array in its member",
                    offset=self.start,
                    expected=f"{self._done} bytes",
                )
            self._checked = True

    def _fill(self, view: memoryview) -> int:
        """Fill `view` with some bytes; none at the end of the data."""
        out = b""
        while not out and not self._ended:
            out = self._decode(self._decoder, len(view))
        view[: len(out)] = out
        return len(out)

    def _decode(self, decoder: Decompressor, wanted: int) -> bytes:
        data = b""
        if decoder.needs_input:
            least, most = _ARRIVING_SIZES
            data = self._stream.take_some(min(max(wanted, least), most))
            if not data:
                raise NoDataError("the stream ends early", offset=self._stream.offset)
            self._fed += len(data)
        out = self._decoded(decoder, data, wanted)
        if decoder.eof:
            self._stream.give_back(decoder.unused_size)
            self._fed -= decoder.unused_size
            self._ended = True
        return out
