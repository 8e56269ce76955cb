"""What must hold of any stream of Zstandard: read whole, in pieces, as one chunk, by the library."""

from __future__ import annotations

import random
import zlib

from calls import Violation, attempt, shown
from npzkit.codecs.checksum import zstandard_library
from npzkit.codecs.decompressors import decode_chunk, decompressor
from npzkit.codecs.zstandard import ZstandardEncoder
from npzkit.errors import NpzkitError, ZipFormatError

__all__ = ["check_zstd", "zstd_seeds"]

_MOST = 1 << 20
"""Bytes that are decoded: a few can become gigabytes."""
_DATA = bytes(range(256)) * 8 + bytes(5000)


def zstd_seeds() -> list[bytes]:
    """Return frames of all kinds, alone and several, with skippable ones between them."""
    zstd = zstandard_library()
    parameter = zstd.CompressionParameter
    encoder = ZstandardEncoder(None, 4096)
    pieces = [_DATA[:4096], _DATA[4096:]]
    own = encoder.lead(9) + bytes(9) + b"".join(encoder.chunks(pieces, {}, first=False, final=True))
    stream = zstd.ZstdCompressor(options={parameter.checksum_flag: 1})
    skipped = b"\x5a\x2a\x4d\x18\5\0\0\0hello"
    frames = [
        zstd.compress(_DATA),
        zstd.compress(b""),
        stream.compress(_DATA[:99]) + stream.flush(),
    ]
    dictionary = zstd.train_dict([_DATA[n : n + 99] * 9 for n in range(0, 2000, 20)], 300)
    return [
        own, *frames, skipped.join(frames), skipped + frames[0] + skipped,
        zstd.compress(_DATA[:99], zstd_dict=dictionary),
    ]  # fmt: skip


def _decoded(data: bytes, sizes: list[int]) -> bytes | None:
    """Return what npzkit decodes from pieces of these sizes; None if that is too much."""
    decoder, fed, out = decompressor(93, len(data), 0), 0, b""
    for size in sizes:
        while not decoder.eof and not decoder.needs_input:
            out += decoder.decompress(b"", _MOST)
            if len(out) > _MOST:
                return None
        if decoder.eof or fed == len(data):
            break
        out += decoder.decompress(data[fed : fed + size], _MOST)
        fed += size
    if not decoder.eof or decoder.unused_size or fed < len(data):
        raise ZipFormatError("the stream does not end where its bytes do")
    return out


def check_zstd(data: bytes, thorough: bool) -> list[str]:
    """Compare npzkit's decoder with itself and with the library's."""
    rng = random.Random(zlib.crc32(data))
    found = attempt("whole", _decoded, data, [len(data), 1])
    if found.error is None and found.value is None:
        return ["too large"]
    least = rng.choice((1, 3, 100))
    sizes = [rng.randrange(1, 2 * least) for _ in range(len(data) + 1)]
    again = attempt("in pieces", _decoded, data, sizes)
    library = zstandard_library()
    try:
        theirs = library.decompress(data)
    except library.ZstdError:
        theirs = None
    if type(again.error) is not type(found.error) or again.value != found.value:
        if found.error is not None and theirs is None and again.error is None:
            return ["refused: the library compares the size of a frame only if it has all of it"]
        raise Violation(f"whole: {shown(found.outcome)}; in pieces: {shown(again.outcome)}")
    if found.error is None and found.value != theirs:
        raise Violation(f"npzkit: {shown(found.value)}; the library: {shown(theirs)}")
    if theirs and type(found.error) is ZipFormatError:
        raise Violation(f"npzkit: {shown(found.outcome)}; the library: {shown(theirs)}")
    if found.error is not None:
        return [f"refused: {str(found.error)[:40]}"]
    if found.value:
        _check_chunk(data, found.value)
    return ["read, without data" if not found.value else "read, with data"]


def _check_chunk(data: bytes, value: bytes) -> None:
    for memory in (None, memoryview(bytearray(len(value)))):
        chunk = decode_chunk(93, data, len(value), final=True, memory=memory)
        if chunk != value:
            raise Violation(f"as a stream: {shown(value)}; as a chunk: {shown(bytes(chunk))}")
    for size in (len(value) - 1, len(value) + 1):
        try:
            decode_chunk(93, data, size, final=True)
        except NpzkitError:
            continue
        raise Violation(f"a chunk of {len(value)} bytes is one of {size}")
