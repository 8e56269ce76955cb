"""Decompressors: a decoder for one member, chosen by its zip method number.

Owns the choice of library for each method, and converts the exceptions of each
library to `ZipFormatError`. All decompressors have the same interface. None
returns more than it is asked for, so that a few hostile bytes cannot take
gigabytes of memory.

To add a method, write a class with the attributes of `Decompressor` and enter
it in `DECOMPRESSORS`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import struct
import zlib
from collections.abc import Callable
from typing import Any

from npzkit.codecs.checksum import inflater, library, zstandard_library
from npzkit.codecs.coding import (
    BZIP2,
    DEFLATED,
    DEFLATED64,
    LZMA,
    MAX_RATIOS,
    METHOD_NAMES,
    ZSTANDARD,
)
from npzkit.codecs.libdeflate import can_inflate_into, inflate_into
from npzkit.codecs.zstandard import (
    LAST_BLOCK,
    MAGIC,
    MAX_HEADER_SIZE,
    NO_MEMORY,
    check_frame,
    decompress_into,
    header_size,
    is_frame,
)
from npzkit.errors import UnsupportedError, ZipFormatError


class Decompressor:
    """A decoder by a library with the interface of `bz2.BZ2Decompressor`, and what all have.

    Attributes
    ----------
    eof : bool
        Whether the end of the stream was reached.
    needs_input : bool
        Whether the next call needs more compressed bytes; if not, pass ``b""``.
    unused_size : int
        Compressed bytes that were passed but follow the end of the stream.
    ends : bool
        Whether the method marks its end, so that `eof` must be reached.
    """

    ends = True

    def __init__(self, name: str, stream: Any, errors: tuple[type[Exception], ...]) -> None:
        self._name = name
        self._stream = stream
        self._errors = errors

    @property
    def eof(self) -> bool:
        return bool(self._stream.eof)

    @property
    def needs_input(self) -> bool:
        return bool(self._stream.needs_input)

    @property
    def unused_size(self) -> int:
        return len(self._stream.unused_data)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        try:
            return bytes(self._stream.decompress(data, max_length))
        except self._errors as error:
            raise _damaged(self._name, error) from error


class _Inflate(Decompressor):
    """Deflate (RFC 1951) by `isal`, or by zlib if isal is missing."""

    needs_input = True

    def __init__(self, compressed_size: int, uncompressed_size: int) -> None:
        self._start(inflater())

    def _start(self, module: Any) -> None:
        self._errors = module.error, zlib.error
        self._stream = module.decompressobj(-15)
        self._pending = b""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        try:
            out: bytes = self._stream.decompress(self._pending + data, max_length)
        except self._errors as error:
            raise _damaged("deflate", error) from error
        self._pending = self._stream.unconsumed_tail
        # If the output is full, more may follow without more input.
        self.needs_input = not self._pending and len(out) < max_length
        return out


class CopyableInflate(_Inflate):
    """Deflate by zlib-ng or zlib, whose state can be copied. That of isal cannot."""

    def __init__(self) -> None:
        self._start(library("zlib-ng") or zlib)

    @property
    def pending_size(self) -> int:
        """The number of bytes that were passed but not decoded yet."""
        return len(self._pending)

    def copy(self) -> CopyableInflate:
        """Return a decoder in the same state, whose input continues at the pending bytes."""
        other = type(self).__new__(type(self))
        other._errors = self._errors
        other._stream = self._stream.copy()
        other._pending = b""
        return other


class _LzmaAlone(Decompressor):
    """LZMA as stored in zip (APPNOTE section 5.8): properties, then raw data.

    The end marker is optional, so `eof` is not required. The dictionary is
    never larger than the output, even if the properties claim more.
    """

    ends = False
    unused_size = 0

    def __init__(self, compressed_size: int, uncompressed_size: int) -> None:
        self._size = uncompressed_size
        self._head = b""
        self._stream: Any = None

    @property
    def eof(self) -> bool:
        return self._stream is not None and bool(self._stream.eof)

    @property
    def needs_input(self) -> bool:
        return self._stream is None or bool(self._stream.needs_input)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        import lzma

        try:
            if self._stream is None:
                self._head += data
                if len(self._head) < 9:
                    return b""
                self._stream, data = self._start(lzma), self._head[9:]
            out: bytes = self._stream.decompress(data, max_length)
        except (lzma.LZMAError, EOFError) as error:
            raise _damaged("lzma", error) from error
        if self._stream.eof:
            self.unused_size = len(self._stream.unused_data)
        return out

    def _start(self, lzma: Any) -> Any:
        properties_size, coded, dictionary_size = struct.unpack_from("<2xHBI", self._head)
        if properties_size != 5 or coded >= 9 * 5 * 5:
            raise ZipFormatError(
                "the LZMA properties are not valid", found=self._head[2:9], expected="5 bytes"
            )
        model = {
            "id": lzma.FILTER_LZMA1,
            "lc": coded % 9,
            "lp": coded // 9 % 5,
            "pb": coded // 45,
            "dict_size": max(4096, min(dictionary_size, self._size)),
        }
        return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[model])


class _Deflate64(Decompressor):
    """Deflate64 by zipfile-deflate64 or inflate64.

    Neither library limits its output or reports where its input ended. So a
    decoder gets a few bytes at a time, and its surplus output is kept here. The
    last bytes are passed one by one, so that the end of a valid stream is exact.
    If a stream ends early, up to 63 bytes after it are not counted as unused.
    """

    _STEP = 1 << 6
    """Compressed bytes to pass at a time, which give at most 2 MB of output."""
    _SINGLY = 16

    def __init__(self, compressed_size: int, uncompressed_size: int) -> None:
        decoder, method = _import_deflate64()
        self._stream = decoder()
        self._inflate = getattr(self._stream, method)
        self._unfed_size = compressed_size
        self._input = b""
        self._output = memoryview(b"")

    @property
    def eof(self) -> bool:
        return bool(self._stream.eof) and not self._output

    @property
    def needs_input(self) -> bool:
        return not self._input and not self._output

    @property
    def unused_size(self) -> int:
        return len(self._input) if self._stream.eof else 0

    def decompress(self, data: bytes, max_length: int) -> bytes:
        self._input += data
        while self._input and not self._output and not self._stream.eof:
            ahead = self._unfed_size - self._SINGLY
            size = min(self._STEP, ahead) if ahead > 0 else 1
            piece, self._input = self._input[:size], self._input[size:]
            self._unfed_size -= len(piece)
            try:
                self._output = memoryview(self._inflate(piece))
            except (MemoryError, RecursionError):
                raise
            except Exception as error:
                # The libraries document no error class. They raise ValueError and
                # RuntimeError for damaged input.
                raise _damaged("deflate64", error) from error
        out, self._output = self._output[:max_length], self._output[max_length:]
        return bytes(out)


@functools.cache
def _import_deflate64() -> tuple[Any, str]:
    """Return the class of a Deflate64 decoder, and the name of its decoding method."""
    module = _import_zipfile_deflate64()
    if module is not None:
        return module.Deflate64, "decompress"
    with contextlib.suppress(ImportError):
        return importlib.import_module("inflate64").Inflater, "inflate"
    raise UnsupportedError(
        "reading Deflate64 needs the package inflate64 or zipfile-deflate64",
        remedy="Install one of them: python -m pip install inflate64; "
        'or, with a C compiler, python -m pip install "npzkit[deflate64]".',
    )


def _import_zipfile_deflate64() -> Any:
    """Return the extension module of zipfile-deflate64, without importing the package.

    The package patches private functions of `zipfile` for the whole process,
    which newer versions of Python move. The decoder does not need them.
    """
    package = importlib.util.find_spec("zipfile_deflate64")
    spec = package and importlib.machinery.PathFinder.find_spec(
        "zipfile_deflate64.deflate64", package.submodule_search_locations
    )
    if not spec or not spec.loader:
        return None
    with contextlib.suppress(ImportError):
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return None


def _bzip2(compressed_size: int, uncompressed_size: int) -> Decompressor:
    import bz2

    return Decompressor("bzip2", bz2.BZ2Decompressor(), (OSError, ValueError, EOFError))


class _Zstandard(Decompressor):
    """Decodes frames of Zstandard that follow each other.

    Parameters
    ----------
    compressed_size : int
        Bytes of all frames; 0 if that is not known. Then they end where no frame follows.
    uncompressed_size : int
    """

    _FIRST_STEP = 1 << 12
    """Bytes that a new frame gets first: what follows its end is copied, and frames may be tiny."""

    def __init__(self, compressed_size: int, uncompressed_size: int) -> None:
        self._library = zstandard_library()
        self._unfed_size = compressed_size or None
        self._stream: Any = None
        self._input, self._position = b"", 0
        self._skip_size = self._step = 0
        self._has_begun = False

    @property
    def eof(self) -> bool:
        if self._stream is not None or self._skip_size or not self._has_begun:
            return False
        if self.unused_size < len(MAGIC):
            return self._unfed_size == 0
        return not is_frame(self._head)

    @property
    def needs_input(self) -> bool:
        if self._stream is not None:
            return not self.unused_size and bool(self._stream.needs_input)
        return bool(self._skip_size) or self.unused_size < header_size(self._head)

    @property
    def unused_size(self) -> int:
        return len(self._input) - self._position

    @property
    def _head(self) -> bytes:
        return self._input[self._position : self._position + MAX_HEADER_SIZE]

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if self._unfed_size is not None:
            self._unfed_size -= len(data)
        self._input, self._position = self._input[self._position :] + data, 0
        try:
            while self._stream is not None or self._begin():
                out = self._decode(max_length)
                if out or self.needs_input:
                    return out
        except (self._library.ZstdError, EOFError) as error:
            raise _damaged("zstd", error) from error
        return b""

    def _decode(self, max_length: int) -> bytes:
        stream, begin = self._stream, self._position
        end = begin + self._step
        self._position = min(end, len(self._input))
        self._step = len(self._input)
        out: bytes = stream.decompress(self._input[begin:end], max_length)
        if stream.eof:
            unused, self._stream = stream.unused_data, None
            self._position -= len(unused)
            if self._position < 0:
                # Some of it came with earlier input.
                self._input = unused + self._input[self._position + len(unused) :]
                self._position = 0
        return out

    def _begin(self) -> bool:
        """Begin with the next frame, if all of its header is there; skip those without data."""
        while True:
            skipped = min(self._skip_size, self.unused_size)
            self._position += skipped
            self._skip_size -= skipped
            if self.eof or self.needs_input:
                return False
            head, self._has_begun = self._head, True
            if head.startswith(MAGIC):
                check_frame(head)
                self._stream, self._step = self._library.ZstdDecompressor(), self._FIRST_STEP
                return True
            if not is_frame(head):
                raise _damaged("zstd", ValueError("it does not begin with a frame"))
            self._skip_size = 8 + int.from_bytes(head[4:8], "little")


DECOMPRESSORS: dict[int, Callable[[int, int], Decompressor]] = {
    DEFLATED: _Inflate,
    DEFLATED64: _Deflate64,
    BZIP2: _bzip2,
    LZMA: _LzmaAlone,
    ZSTANDARD: _Zstandard,
}
"""For each method number, a function of the compressed and the uncompressed size."""


def decompressor(method: int, compressed_size: int, uncompressed_size: int) -> Decompressor:
    """Return a decoder for one member with these sizes in bytes.

    Raises
    ------
    UnsupportedError
        npzkit does not support the method, or its library is missing.
    """
    factory = DECOMPRESSORS.get(method)
    if factory is None:
        raise UnsupportedError(
            "the compression method is not supported",
            found=method,
            expected=", ".join(f"{number} ({name})" for number, name in METHOD_NAMES.items()),
            remedy="Extract it with the program that made it, and save it again.",
            is_damage=True,
        )
    return factory(compressed_size, uncompressed_size)


def decode_start(method: int, data: Any, size: int) -> bytes:
    """Decode the first `size` bytes of a stream, fewer if `data` holds no more.

    Raises
    ------
    ZipFormatError
        It is damaged.
    """
    if method != DEFLATED:
        return decompressor(method, 0, size).decompress(data, size)
    return _inflated(data, size)[1]


def _inflated(data: Any, size: int) -> tuple[Any, bytes]:
    """Return a decoder that inflated at most `size` bytes, and these bytes."""
    stream = inflater().decompressobj(-15)
    try:
        return stream, stream.decompress(data, size)
    except (inflater().error, zlib.error) as error:
        raise _damaged("deflate", error) from error


def decode_chunk(
    method: int, data: Any, size: int, *, final: bool, memory: memoryview | None = None
) -> bytes | bytearray | memoryview:
    """Decode one chunk of a member, which does not depend on earlier chunks.

    Parameters
    ----------
    method : int
        One of `CHUNKED`.
    data : bytes-like
        If the memory is writable, it may be changed.
    size : int
        Expected uncompressed bytes.
    final : bool
        Whether the chunk ends the stream.
    memory : memoryview, optional
        Writable, of `size` bytes. If it can be filled, it is returned; it may contain anything
        if an error is raised.

    Raises
    ------
    ZipFormatError
        The chunk is damaged or has another size.
    """
    decode = inflate_chunk if method == DEFLATED else _decompress_chunk
    return decode(data, size, final=final, memory=memory)


def inflate_chunk(
    data: Any, size: int, *, final: bool, memory: memoryview | None = None
) -> bytes | bytearray | memoryview:
    """Decode one chunk as `decode_chunk` does. All but the final one end with an empty block."""
    # A size of 0 means "unknown" to libdeflate.
    if not 0 < size <= MAX_RATIOS[DEFLATED] * len(data):
        raise _wrong_chunk(f"{len(data)} compressed bytes", size)
    libdeflate = library("libdeflate")
    if libdeflate is None or final:
        # libdeflate does not report bytes after the end of a stream. One more byte than there
        # should be, so that a longer stream shows.
        stream, out = _inflated(data if final else _ended(data), size + 1)
        if not stream.eof or stream.unused_data:
            raise _wrong_chunk("no end mark, or bytes after it", size)
    else:
        data = _ended(data)
        if memory is not None and not memoryview(data).readonly and inflate_into(data, memory):
            return memory
        try:
            out = libdeflate.deflate_decompress(data, size)
        except libdeflate.DeflateError as error:
            raise _damaged("deflate", error) from error
    if len(out) != size:
        raise _wrong_chunk(f"{len(out)} bytes", size)
    return out


def _decompress_chunk(
    data: Any, size: int, *, final: bool, memory: memoryview | None = None
) -> bytes | bytearray | memoryview:
    """Decompress one chunk as `decode_chunk` does: all frames, if it is the first and `final`."""
    # No block begins as a frame does: it would be larger than a block may be.
    start = b"" if is_frame(data) else MAGIC + b"\xa0" + size.to_bytes(4, "little")
    frame = b"".join((start, data, b"" if final else LAST_BLOCK))
    if not 0 < size <= MAX_RATIOS[ZSTANDARD] * len(frame):
        raise _wrong_chunk(f"{len(data)} compressed bytes", size)
    memory = memoryview(bytearray(size)) if memory is None else memory
    if decompress_into(frame, memory):
        return memory
    # Here errors have their causes.
    stream = _Zstandard(len(frame), size)
    # One more byte than there should be, so that a longer stream shows.
    out = stream.decompress(frame, size + 1)
    while not stream.eof and not stream.needs_input and len(out) <= size:
        out += stream.decompress(b"", size + 1 - len(out))
    if len(out) != size or not stream.eof or stream.unused_size:
        raise _wrong_chunk(f"{len(out)} bytes", size)
    return out


def inflate_whole(
    data: memoryview, size: int, memory_of: Callable[[int], memoryview]
) -> memoryview | bytearray | None:
    """Inflate a stream of `size` bytes in one call, by libdeflate.

    1.2 to 4 times as fast as isal, for which data and result have to be in memory.

    Parameters
    ----------
    data : memoryview
        Writable. Bytes that follow the stream are not noticed.
    size : int
    memory_of : callable
        Returns writable memory of a size. It is called if libdeflate can fill that.

    Returns
    -------
    memoryview, bytearray or None
        The memory, or libdeflate's own. None if libdeflate is missing, or the stream is
        anything else.
    """
    libdeflate = library("libdeflate")
    if libdeflate is None or not 0 < size <= MAX_RATIOS[DEFLATED] * len(data):
        return None
    if can_inflate_into():
        memory = memory_of(size)
        return memory if inflate_into(data, memory) else None
    try:
        out: bytearray = libdeflate.deflate_decompress(data, size)
    except libdeflate.DeflateError:
        return None
    return out if len(out) == size else None


def _ended(data: Any) -> Any:
    """Return a chunk that is not the last as a complete stream, which libdeflate needs.

    The empty block at its end becomes a final one. If the memory is writable,
    this changes one bit. Otherwise it copies, which takes 5 % of the time to inflate.
    """
    view = memoryview(data)
    if not view.readonly and view[-len(_EMPTY_BLOCK) :] == _EMPTY_BLOCK:
        view[-len(_EMPTY_BLOCK)] = 1
        return data
    return b"".join((data, _EMPTY_FINAL_BLOCK))


_NO_MEMORY = *NO_MEMORY, "Error -4 "
"""What errors of Zstandard and of zlib say if there is too little memory."""
_EMPTY_BLOCK = b"\x00\x00\x00\xff\xff"
_EMPTY_FINAL_BLOCK = b"\x03\x00"


def _wrong_chunk(found: str, size: int) -> ZipFormatError:
    return ZipFormatError("a chunk is not as it was listed", found=found, expected=f"{size} bytes")


def _damaged(method: str, error: Exception) -> ZipFormatError | MemoryError:
    """Return the error for what a library says of a stream."""
    text = str(error)
    if any(sign in text for sign in _NO_MEMORY):
        return MemoryError(text)
    return ZipFormatError(
        f"the {method} stream is damaged ({text})",
        remedy="Download the file again, or read the other members one by one.",
    )
