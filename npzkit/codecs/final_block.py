"""The last block of a complete deflate stream, changed so that more blocks can follow.

Owns the search for that block. libdeflate compresses what it gets as one stream, and
marks the last block as the final one (RFC 1951, section 3.2.3). Only a decoder finds
the bit with that mark. zlib-ng's decoder stops after each block, and takes an eighth of
the time of compressing.
"""

from __future__ import annotations

import ctypes
import functools
import zlib
from collections.abc import Callable

from npzkit.codecs.extension_functions import exported_functions

_FLUSH_BLOCK = 5
_BEHIND_BLOCK, _IN_LAST_BLOCK, _UNUSED_BITS = 128, 64, 7
"""Parts of `data_type` after a call: documented in zlib.h for ``Z_BLOCK``."""
_EMPTY_BLOCK_SIZE = 3
"""Bits of the header of a stored block."""
_LENGTHS = b"\x00\x00\xff\xff"
"""The length of an empty stored block, and its complement."""


class _Stream(ctypes.Structure):
    """zlib-ng's ``zng_stream``."""

    _fields_ = (
        ("next_in", ctypes.c_void_p), ("avail_in", ctypes.c_uint32), ("total_in", ctypes.c_size_t),
        ("next_out", ctypes.c_void_p), ("avail_out", ctypes.c_uint32),
        ("total_out", ctypes.c_size_t), ("msg", ctypes.c_char_p), ("state", ctypes.c_void_p),
        ("zalloc", ctypes.c_void_p), ("zfree", ctypes.c_void_p), ("opaque", ctypes.c_void_p),
        ("data_type", ctypes.c_int), ("adler", ctypes.c_uint32), ("reserved", ctypes.c_ulong),
    )  # fmt: skip


def continuable(stream: bytearray, size: int) -> bytearray:
    """Return a complete deflate stream as the beginning of a longer one.

    Releases the GIL.

    Parameters
    ----------
    stream : bytearray
        Raw deflate data, which is changed.
    size : int
        Bytes that it inflates to.

    Returns
    -------
    bytearray
        `stream`, no block of which is final. It ends with an empty stored block,
        so that the next block begins with a whole byte.

    Raises
    ------
    ImportError
        `can_continue` is false.

    Examples
    --------
    >>> if can_continue():
    ...     begin = continuable(bytearray(zlib.compress(b"to be ", wbits=-15)), 6)
    ...     print(zlib.decompress(begin + zlib.compress(b"or not", wbits=-15), wbits=-15))
    ... else:
    ...     print(b"to be or not")
    b'to be or not'
    """
    find = _finder()
    if find is None:
        raise ImportError("zlib-ng is missing")
    start, end = find(stream, size)
    stream[start >> 3] &= ~(1 << (start & 7))
    # The bits after the end are zero, as is the header of a stored block.
    del stream[(end + 7) >> 3 :]
    stream += bytes(((end + _EMPTY_BLOCK_SIZE + 7) >> 3) - len(stream)) + _LENGTHS
    return stream


@functools.cache
def can_continue() -> bool:
    """Return whether this installation has a decoder that stops after each block."""
    find = _finder()
    if find is None:
        return False
    encoder = zlib.compressobj(6, zlib.DEFLATED, -15)
    begin = encoder.compress(b"to be ") + encoder.flush(zlib.Z_SYNC_FLUSH)
    # A block of "or not" in the fixed code: 3 bits, 6 letters and the end of the block.
    stream = begin + encoder.compress(b"or not") + encoder.flush()
    try:
        return find(bytearray(stream), 12) == (8 * len(begin), 8 * len(begin) + 3 + 6 * 8 + 7)
    except ValueError:
        return False


@functools.cache
def _finder() -> Callable[[bytearray, int], tuple[int, int]] | None:
    """Return a function that finds the first and the last bit of a stream's last block."""
    functions = exported_functions(
        "zlib_ng.zlib_ng", "zng_inflateInit2", "zng_inflate", "zng_inflateEnd"
    )
    if functions is None:
        return None
    begin, step, end = functions
    pointer = ctypes.POINTER(_Stream)
    begin.argtypes = step.argtypes = (pointer, ctypes.c_int)
    end.argtypes = (pointer,)

    def find(stream: bytearray, size: int) -> tuple[int, int]:
        state = _Stream()
        memory = bytearray(size or 1)
        source = ctypes.c_char.from_buffer(stream)
        target = ctypes.c_char.from_buffer(memory)
        state.next_in, state.avail_in = ctypes.addressof(source), len(stream)
        state.next_out, state.avail_out = ctypes.addressof(target), len(memory)
        if begin(state, -15):
            raise MemoryError
        start = 0
        try:
            while step(state, _FLUSH_BLOCK) == 0:
                kind = state.data_type
                if kind & _BEHIND_BLOCK:
                    position = 8 * state.total_in - (kind & _UNUSED_BITS)
                    if kind & _IN_LAST_BLOCK:
                        return start, position
                    start = position
        finally:
            end(state)
        raise ValueError("the stream has no last block")

    return find
