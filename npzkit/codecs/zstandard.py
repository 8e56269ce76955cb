"""Zstandard (RFC 8878): the frame that npzkit writes, and the headers of those of others.

Owns what a chunk is, and what a frame may ask for. A member is one frame, because zipfile reads
no more than the first one. Its chunks need nothing of each other: the library compresses each as
a job of its own, without the bytes, the tables and the offsets of those before. So a chunk is
decoded as a frame of its own: with a header before it, and `LAST_BLOCK` after it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from npzkit.codecs.checksum import exported_functions, zstandard_library
from npzkit.codecs.coding import ZSTANDARD_LEVEL
from npzkit.errors import Advice, LimitExceededError, UnsupportedError, two_sizes

_BACKPORT = "backports.zstd._zstd"
MAX_WINDOW_SIZE = 1 << 27
"""Bytes of memory that a frame may ask for: as many as the command zstd allows by default."""
_LEAST_WINDOW_BITS = 17
"""With them, a block has up to 128 KiB, which is the most of any frame."""
MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE_MAGICS = range(0x184D2A50, 0x184D2A60)
MAX_HEADER_SIZE = 18
"""Of a frame."""
_HEADER_SIZE = 6
"""Of a frame without content size, dictionary and checksum."""
NO_MEMORY = "not enough memory", "Unable to create"
"""What the library's errors say if there is too little."""
LAST_BLOCK = b"\x01\x00\x00"
"""An empty raw block that ends its frame."""


# -- writing ------------------------------------------------------------------


class ZstandardEncoder(NamedTuple):
    """Compresses chunks into one frame.

    Attributes
    ----------
    level : int or None
        The library's, which takes 0 for 3; None is `ZSTANDARD_LEVEL`.
    chunk_size : int
        Uncompressed bytes of the largest chunk.
    """

    level: int | None
    chunk_size: int

    def lead(self, size: int) -> bytes:
        """Return the start of a stream, up to `size` bytes that are in it as they are."""
        exponent = self._window_bits - 10
        block = (size << 3).to_bytes(3, "little") if size else b""
        return MAGIC + bytes((0, exponent << 3)) + block

    def chunks(
        self,
        pieces: Sequence[memoryview | bytes],
        spare: dict[Any, list[Any]],
        *,
        first: bool,
        final: bool,
    ) -> list[bytes]:
        """Return neighbouring chunks, compressed; `lead` comes before the first one.

        Releases the GIL. The same chunk always gives the same bytes. Compressors are kept in
        `spare`; a process that forks must not keep them longer than a call, because each has a
        thread.
        """
        is_whole = first and final and len(pieces) == 1
        kept, compressor = spare.setdefault((self, is_whole), []), None
        try:
            with contextlib.suppress(IndexError):
                compressor = kept.pop()
            compressor = compressor or self._compressor(is_whole)
            mode = compressor.FLUSH_FRAME if is_whole else compressor.FLUSH_BLOCK
            chunks = [compressor.compress(piece, mode) for piece in pieces]
        except zstandard_library().ZstdError as error:
            if any(sign in str(error) for sign in NO_MEMORY):
                raise MemoryError(str(error)) from None
            raise
        kept.append(compressor)
        if is_whole:
            return [chunks[0][_HEADER_SIZE:]]
        if final:
            chunks[-1] += LAST_BLOCK
        return chunks

    def _compressor(self, is_whole: bool) -> Any:
        """Return what compresses complete streams, or chunks."""
        parameter = zstandard_library().CompressionParameter
        options = {
            parameter.compression_level: ZSTANDARD_LEVEL if self.level is None else self.level,
            parameter.window_log: self._window_bits,
            parameter.content_size_flag: 0,
        }
        if is_whole:
            # Without jobs, which need a thread.
            return zstandard_library().ZstdCompressor(options=options)
        # A thread of the library, because it makes jobs only for threads. They overlap by 0 bytes.
        if not parameter.nb_workers.bounds()[1]:
            raise UnsupportedError(
                "this Python's library of Zstandard was built without threads, which chunks need",
                remedy="Use "
                + Advice("compression='deflated'", "--compression deflated")
                + ", or another build of Python.",
            )
        options |= {parameter.nb_workers: 1, parameter.overlap_log: 1}
        compressor = zstandard_library().ZstdCompressor(options=options)
        # Only a job that is not the first one does without the offsets that a frame begins with.
        compressor.compress(b"\0", compressor.FLUSH_BLOCK)
        return compressor

    @property
    def _window_bits(self) -> int:
        return max(_LEAST_WINDOW_BITS, (self.chunk_size - 1).bit_length())


# -- reading ------------------------------------------------------------------


def decompress_into(frames: bytes, memory: memoryview) -> bool | None:
    """Decompress frames that fill `memory` exactly; releases the GIL.

    1.2 to 2 times as fast as the library's Python functions, which copy the data three times.

    Returns
    -------
    bool or None
        False if they are damaged, have another size, or need a dictionary. None if the library's
        C function cannot be called here.
    """
    decompress = _decompress_function()
    return None if decompress is None else decompress(frames, memory)


@functools.cache
def _decompress_function() -> Callable[[bytes, memoryview], bool] | None:
    """Return what `decompress_into` calls; None if this installation lacks it."""
    module = "_zstd" if zstandard_library().__name__.startswith("compression") else _BACKPORT
    names = "createDCtx", "decompressDCtx", "freeDCtx"
    functions = exported_functions(module, *(f"ZSTD_{name}" for name in names))
    if functions is None:
        return None
    import ctypes

    begin, decompress, end = functions
    address, size = ctypes.c_void_p, ctypes.c_size_t
    begin.argtypes, begin.restype = (), address
    decompress.argtypes = address, address, size, ctypes.c_char_p, size
    decompress.restype = size
    end.argtypes = (address,)
    place, local = ctypes.c_char.from_buffer, threading.local()

    class Decoder:
        """One for each thread, which ends with it: to make one takes as long as 10 KB of data."""

        address = None

        def __init__(self) -> None:
            self.address = begin()
            if not self.address:
                raise MemoryError

        def __del__(self) -> None:
            end(self.address)

    def decompressed(frames: bytes, memory: memoryview) -> bool:
        try:
            decoder = local.decoder
        except AttributeError:
            decoder = local.decoder = Decoder()
        target = ctypes.byref(place(memory))
        found = decompress(decoder.address, target, len(memory), frames, len(frames))
        return bool(found == len(memory))

    return decompressed


def is_frame(data: bytes | memoryview) -> bool:
    """Whether bytes begin as a frame or a skippable frame does."""
    return data[:4] == MAGIC or int.from_bytes(data[:4], "little") in _SKIPPABLE_MAGICS


def header_size(data: bytes) -> int:
    """Return the bytes of the header of a frame, or those needed to know them."""
    if len(data) <= len(MAGIC):
        return len(MAGIC) + 1
    if not data.startswith(MAGIC):
        return 8 if is_frame(data) else 0
    _, window, dictionary, content = _fields(data[4])
    return 5 + window + dictionary + content


def _fields(descriptor: int) -> tuple[bool, int, int, int]:
    """Return whether a frame is one segment, and the sizes of its header's optional fields."""
    is_single = bool(descriptor & 0x20)
    content = 1 << (descriptor >> 6) if descriptor >> 6 else int(is_single)
    return is_single, int(not is_single), (0, 1, 2, 4)[descriptor & 3], content


def check_frame(data: bytes) -> None:
    """Check what a frame needs, by its complete header."""
    is_single, window, dictionary, content = _fields(data[4])
    end = 5 + window + dictionary
    number = int.from_bytes(data[5 + window : end], "little")
    if number:
        raise UnsupportedError(
            "the member is compressed with a dictionary of Zstandard, which is not in the archive",
            found=f"dictionary {number}",
            remedy="Extract it with the program that made it, and save it again.",
            is_damage=True,
        )
    if is_single:
        # A field of two bytes counts from 256.
        size = int.from_bytes(data[end : end + content], "little") + 256 * (content == 2)
    else:
        base = 1 << 10 + (data[5] >> 3)
        size = base + (base >> 3) * (data[5] & 7)
    if size > MAX_WINDOW_SIZE:
        found, most = two_sizes(size, MAX_WINDOW_SIZE)
        raise LimitExceededError(
            "the window of a Zstandard frame takes too much memory",
            found=found,
            expected=f"at most {most}",
            remedy="Extract it with the program that made it, and save it again.",
        )
