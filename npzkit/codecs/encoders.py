"""Deflate encoders: the choice of one for a section of data, and deflating one chunk.

Owns the candidates and the choice among them. Knows nothing about zip, NPY or
threads. Figures in comments are MB/s on one x86-64 core, and sizes relative to
zlib level 6 for the whole array. tests/benchmarks/encoders.py measures more.

To add an encoder, enter it in `CANDIDATES` in the order of speed.
"""

from __future__ import annotations

import functools
import itertools
import operator
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from npzkit.codecs.checksum import library

_MEMORY_LEVELS = {"isal": 2, "zlib-ng": 8, "zlib": 8}
"""Memory levels: how much data shares one table of codes.

At level 9, the blocks of ISA-L are much longer than those of zlib, and adapt
less to data that change slowly: a noisy picture has size 1.16, and 1.09 at
level 2. A short sample then also underestimates the size by up to 8 %, which
leads to the wrong choice. The price is speed: weights reach 560 instead of
820 MB/s.
"""

_ISAL_START = 4
"""Bytes of a stream that isal gets in a call of their own.

Levels 1 and 2 of ISA-L (2.31) compute the hash of a stream's third byte from a register
that holds an address, in ``.write_first_byte`` of igzip_icf_body_h1_gr_bt.asm. So one
stream in thousands had other bytes, depending on where the compressor lay. Input that
is flushed at once takes another way, on which four bytes are the fewest that are hashed.
The price is about 10 bytes per chunk.
"""

_FAST_SIZE = 32 << 10
"""Bytes of the smallest chunks that isal deflates at level 1. For smaller ones, it takes
longer than zlib-ng, and its results are larger."""

_MARK = b"\x00\x00\x00\xff\xff"
"""The end of every chunk but the last: an empty stored block, as in SOZip."""


class Encoder(NamedTuple):
    """A deflate library with its settings.

    Attributes
    ----------
    library : str
        ``"isal"``, ``"zlib-ng"``, ``"zlib"`` or ``"libdeflate"``. The last one makes
        complete streams only.
    level : int
        The library's level: 0 to 3 for isal, 0 to 12 for libdeflate, 0 to 9 for
        the others.
    strategy : int
        One of zlib's ``Z_`` constants.
    window_bits : int
        Base-two logarithm of the window size, the largest distance of a match.
    """

    library: str
    level: int
    strategy: int = zlib.Z_DEFAULT_STRATEGY
    window_bits: int = 15

    @staticmethod
    def lead(size: int) -> bytes:
        """Return the start of a block of `size` bytes that are in it as they are."""
        return b"\0" + size.to_bytes(2, "little") + (size ^ 0xFFFF).to_bytes(2, "little")

    def chunks(
        self, pieces: Sequence[memoryview | bytes], spare: Any, *, first: bool, final: bool
    ) -> list[bytes]:
        """Return neighbouring chunks, deflated; if `final`, the last one ends the stream."""
        last = len(pieces) - 1
        return [
            deflate_chunk(self, piece, final=final and number == last)
            for number, piece in enumerate(pieces)
        ]


STORED_BLOCKS = Encoder("zlib", 0)
"""Deflate without compression, for data that cannot be compressed."""

_SMALL = Encoder("libdeflate", 6)
_REFERENCE = Encoder("zlib", 6)
"""The encoder of np.savez_compressed. No choice may make much larger files."""

CANDIDATES = (
    # Floating-point weights 560, running sums 560. Matches of 4 bytes or more.
    Encoder("isal", 1),
    # Small int32 260, where level 1 is 1.06.
    Encoder("isal", 2),
    # Uniform uint8 labels 310: matches cost more than they save, 0.93.
    Encoder("zlib-ng", 6, zlib.Z_HUFFMAN_ONLY),
    # Mostly zeros 1500, with size 0.98 instead of 1.07 by isal.
    Encoder("zlib-ng", 6, zlib.Z_RLE),
    # Numbers repeat over short distances, and a small window fits in the cache: up
    # to twice the speed of 32 KiB. Level 3 is for running sums without isal.
    Encoder("zlib-ng", 3, window_bits=12),
    # Counts 130 and int64 below 100 160, 0.97 and 0.92; strings 130.
    Encoder("zlib-ng", 5, window_bits=12),
    # Masks 70, and 50 with a window of 32 KiB.
    Encoder("zlib-ng", 6, window_bits=10),
    # Smooth float64 97 (zlib 36): the only level of zlib-ng with matches of 3
    # bytes. Without them the size is 1.08. With a window of 32 KiB: 38.
    Encoder("zlib-ng", 9, window_bits=10),
    # Small int32 without isal 105; matches over long distances.
    Encoder("zlib-ng", 2),
    Encoder("zlib-ng", 5),
    # Matches of 3 bytes over long distances: a noisy picture 55, 0.94.
    Encoder("zlib", 1),
    Encoder("zlib-ng", 6),
    Encoder("zlib", 4),
    _REFERENCE,
)
"""The encoders that `choose_encoder` tries, fastest first."""

_TOLERANCE = 1.02
"""Largest accepted size, relative to zlib level 6."""
_DOUBT = 1.03
"""An encoder that exceeds `_TOLERANCE` by this factor at the first places of a sample
is not tried at the others. This halves the time to choose for smooth float64."""
_STORED_RATIO = 0.999
"""If zlib level 6 leaves at least this much of the size, nothing is compressed."""
_PLACE_COUNT = 8
_PLACE_SIZE = 12 << 10
"""A sample has 96 KiB of up to 8 MiB. Fewer, longer places miss changes along the data."""
_PLACE_DISTANCE = 320 << 10
"""Shorter sections have fewer places, at most one per this many bytes. One per 256 KiB
took as long as the work itself for 1 MiB of float32 weights. With one place only, half
of the arrays of mixed data exceeded the tolerance."""
_PLACE_SLACK = 4
"""Bytes per place that are ignored: in so little data, tables of codes take a larger
share than in the whole. This matters only for data that compress to almost nothing."""
_LONG_PLACE_SIZE = 24 << 10
"""Places of data that compress to less than a tenth. In 12 KiB, the tables of codes are
so large a share that sparse data seemed to need a slower encoder, in three times the time.
What comes before hardly matters to so few symbols, and is left out."""
_HISTORY_SIZE = 32 << 10
_SMALLEST_SAMPLED = 64 << 10
"""For less data, trying encoders takes longer than the best of them saves."""


def _available(encoder: Encoder) -> Encoder | None:
    """Return the encoder, or zlib in place of zlib-ng, or None if there is none in its place."""
    if library(encoder.library) is not None:
        return encoder
    return encoder._replace(library="zlib") if encoder.library == "zlib-ng" else None


@functools.cache
def _candidates() -> tuple[Encoder, ...]:
    """Return the candidates that this installation has, in order and without duplicates."""
    found = (_available(encoder) for encoder in CANDIDATES)
    return tuple(dict.fromkeys(encoder for encoder in found if encoder is not None))


def _compressor(encoder: Encoder, history: bytes = b"") -> Any:
    name, level, strategy, window_bits = encoder
    memory_level = _MEMORY_LEVELS[name]
    settings = (level, zlib.DEFLATED, -window_bits, memory_level, strategy)
    return library(name).compressobj(*settings, *((history,) if history else ()))


def deflate_chunk(encoder: Encoder, view: memoryview | bytes, *, final: bool) -> bytes:
    """Return one chunk as raw deflate data that does not depend on other chunks.

    Releases the GIL. The same chunk always gives the same bytes.

    Parameters
    ----------
    encoder : Encoder
        From `choose_encoder` or `encoder_for_level`.
    view : buffer
        The chunk, contiguous.
    final : bool
        Whether the stream ends here. If not, the chunk is flushed to a whole
        byte and followed by an empty stored block, so that more can be appended.

    Returns
    -------
    bytes
        Part of a deflate stream.

    Examples
    --------
    >>> encoder = encoder_for_level(6)
    >>> stream = deflate_chunk(encoder, b"to be ", final=False)
    >>> stream += deflate_chunk(encoder, b"or not", final=True)
    >>> zlib.decompress(stream, wbits=-15)
    b'to be or not'
    """
    if final and encoder.library == "libdeflate":
        return bytes(library("libdeflate").deflate_compress(view, encoder.level))
    # The mark is appended here because a second flush by ISA-L gives other bytes.
    flush_mode, mark = (zlib.Z_FINISH, b"") if final else (zlib.Z_SYNC_FLUSH, _MARK)
    return b"".join((*_deflated(encoder, view, flush_mode), mark))


def _deflated(
    encoder: Encoder, view: memoryview | bytes, flush_mode: int, history: bytes = b""
) -> Iterator[bytes]:
    """Yield parts of a deflate stream."""
    compressor = _compressor(encoder, history)
    if encoder.library == "isal" and not history:
        view = memoryview(view).cast("B")
        yield compressor.compress(view[:_ISAL_START])
        yield compressor.flush(zlib.Z_SYNC_FLUSH)
        view = view[_ISAL_START:]
    yield compressor.compress(view)
    yield compressor.flush(flush_mode)


def encoder_for_level(level: int, chunk_size: int = _FAST_SIZE) -> Encoder:
    """Return the encoder for a level from 0 to 9 that the caller chose.

    Level 1 is isal's: 1.4 to 5 times as fast as that of zlib-ng, and smaller. The others,
    and chunks below `_FAST_SIZE`, are zlib-ng's, two to nine times as fast as zlib. If a
    library is missing, the next one of isal, zlib-ng and zlib is used.

    Examples
    --------
    >>> encoder_for_level(0)
    Encoder(library='zlib', level=0, strategy=0, window_bits=15)
    """
    if level == 0:
        return STORED_BLOCKS
    fast = _available(Encoder("isal", 1)) if level == 1 and chunk_size >= _FAST_SIZE else None
    return fast or _available(Encoder("zlib-ng", level)) or Encoder("zlib", level)


def encoder_for_small(level: int | None) -> Encoder:
    """Return the encoder for streams that are too short to sample.

    libdeflate needs half the time of zlib-ng, and its output is not larger than
    that of zlib: 10 KB of integers take 123 microseconds, and 554 with zlib.
    """
    if level is not None:
        return encoder_for_level(level, chunk_size=0)
    return _SMALL if library("libdeflate") is not None else encoder_for_level(6)


def choose_encoder(section: memoryview | bytes) -> Encoder:
    """Return the fastest encoder whose output is about as small as that of zlib level 6.

    The encoders compress a sample from several places. The choice stays within
    2 % of the size of level 6. It depends on the bytes and on the installed
    libraries.

    Parameters
    ----------
    section : buffer
        Consecutive data, contiguous, ideally some megabytes.

    Returns
    -------
    Encoder
        The encoder for every chunk of the section.

    Examples
    --------
    >>> choose_encoder(bytes(range(256)) * 4096)  # doctest: +SKIP
    Encoder(library='isal', level=1, strategy=0, window_bits=15)
    """
    view = memoryview(section)
    if view.nbytes < _SMALLEST_SAMPLED:
        return encoder_for_level(6)
    view = view.cast("B")
    places = _find_places(view)
    sample_size = sum(len(data) for _, data in places)
    reference_sizes = list(itertools.accumulate(_sizes(_REFERENCE, places)))
    if reference_sizes[-1] >= sample_size * _STORED_RATIO:
        return STORED_BLOCKS
    slack = _PLACE_SLACK * len(places)
    limits = [int(size * _TOLERANCE * _DOUBT) + slack for size in reference_sizes]
    limits[-1] = int(reference_sizes[-1] * _TOLERANCE) + slack
    if len(places) == _PLACE_COUNT:
        # The stream of zlib continues from chunk to chunk, but a candidate starts
        # without history every 256 KiB, and an eighth of that is one window. So one of
        # the eight places has no history either. Otherwise candidates look 1 to 2 %
        # too good for int32.
        middle = _PLACE_COUNT // 2
        places[middle] = (b"", places[middle][1])
    for encoder in _candidates():
        sizes = itertools.accumulate(_sizes(encoder, places))
        if encoder == _REFERENCE or all(map(operator.le, sizes, limits)):
            return encoder
    return _REFERENCE


def _find_places(view: memoryview) -> list[tuple[bytes, memoryview]]:
    """Return a sample: pieces at even distances, each with the window before it.

    With this history, a short piece compresses like the middle of a long stream.
    Without it, encoders with a large window look up to 6 % worse than they are.
    """
    count = min(_PLACE_COUNT, max(1, len(view) // _PLACE_DISTANCE))
    places = []
    for index in range(count):
        start = (len(view) - _PLACE_SIZE) * (2 * index + 1) // (2 * count)
        data = view[start : start + _PLACE_SIZE]
        if 10 * len(deflate_chunk(_candidates()[0], data, final=True)) < _PLACE_SIZE:
            places.append((b"", view[start : start + _LONG_PLACE_SIZE]))
        else:
            places.append((bytes(view[max(0, start - _HISTORY_SIZE) : start]), data))
    return places


def _sizes(encoder: Encoder, places: Iterable[tuple[bytes, memoryview]]) -> Iterator[int]:
    """Yield the compressed size of each place."""
    for history, data in places:
        # The other strategies look at no more than the byte before.
        is_matching = encoder.strategy == zlib.Z_DEFAULT_STRATEGY
        parts = _deflated(encoder, data, zlib.Z_FINISH, history if is_matching else b"")
        yield sum(map(len, parts))
