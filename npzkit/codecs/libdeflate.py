"""libdeflate's own functions, which inflate into memory that the caller provides.

Owns how they are called in the extension module of the package deflate. The package's
own function returns new memory in pages of 4 KiB. Getting these pages takes 20 of 130 ms
for 48 MiB of weights, and 17 of 26 ms for sparse data. If the functions cannot be
called, as on Windows, the package's function is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from npzkit.codecs.checksum import exported_functions


def can_inflate_into() -> bool:
    """Return whether `inflate_into` has the functions that it calls."""
    return _inflate_function() is not None


def inflate_into(data: memoryview, memory: memoryview) -> bool | None:
    """Inflate a raw deflate stream that fills `memory` exactly.

    Releases the GIL.

    Parameters
    ----------
    data, memory : memoryview
        The stream, and where its bytes go. Both must be writable and not empty. Bytes
        that follow the stream are ignored. Unless the result is True, `memory` may
        contain anything.

    Returns
    -------
    bool or None
        False if the stream is damaged or has another size. None if the functions
        cannot be called here.
    """
    inflate = _inflate_function()
    return None if inflate is None else inflate(data, memory)


@functools.cache
def _inflate_function() -> Callable[[memoryview, memoryview], bool] | None:
    """Return what `inflate_into` calls; None if this installation lacks it."""
    names = "alloc_decompressor", "deflate_decompress", "free_decompressor"
    functions = exported_functions("deflate._deflate", *(f"libdeflate_{name}" for name in names))
    if functions is None:
        return None
    import ctypes

    begin, decompress, end = functions
    address, size = ctypes.c_void_p, ctypes.c_size_t
    begin.argtypes, begin.restype = (), address
    decompress.argtypes = (address, address, size, address, size, address)
    decompress.restype = ctypes.c_int
    end.argtypes, end.restype = (address,), None
    place = ctypes.c_char.from_buffer

    def inflate(data: memoryview, memory: memoryview) -> bool:
        source, target = ctypes.byref(place(data)), ctypes.byref(place(memory))
        decoder = begin()
        if not decoder:
            raise MemoryError
        try:
            # Without a place for the size, a stream that is shorter than the target fails too.
            result: int = decompress(decoder, source, len(data), target, len(memory), None)
        finally:
            end(decoder)
        return result == 0

    return inflate
