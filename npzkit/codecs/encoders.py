"""Which encoder deflates a stretch of data, and how one chunk is deflated.

Owns the candidates and the choice among them. Knows neither zip nor NPY nor
threads. Figures in comments are MB/s of one
x86-64 core, and sizes relative to zlib level 6's over the whole array; run
tests/benchmarks/encoders.py for more of them.

To add an encoder, enter it in `CANDIDATES` where its speed puts it.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import operator
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

__all__ = [
    "CANDIDATES",
    "STORED_BLOCKS",
    "Encoder",
    "choose_encoder",
    "deflate_chunk",
    "encoder_for_level",
    "encoder_for_small",
]

_MODULES = {
    "isal": "isal.isal_zlib",
    "zlib-ng": "zlib_ng.zlib_ng",
    "zlib": "zlib",
    "libdeflate": "deflate",
}

_MEMORY_LEVELS = {"isal": 2, "zlib-ng": 8, "zlib": 8}
"""How much data shares one table of codes.

ISA-L at 9 makes blocks far longer than zlib's, which adapt less to data that
drift: a noisy picture is 1.16, at 2 it is 1.09. Then a short sample also
flatters it, by up to 8 %, and the choice goes wrong. Weights pay for it with
560 instead of 820 MB/s.
"""

_STRATEGY_NAMES = {zlib.Z_HUFFMAN_ONLY: "Huffman only", zlib.Z_RLE: "runs only"}

_MARK = b"\x00\x00\x00\xff\xff"
"""Ends a chunk that others follow: an empty stored block, as SOZip has it."""


class Encoder(NamedTuple):
    """A library and how to call it.

    Attributes
    ----------
    library : str
        ``"isal"``, ``"zlib-ng"`` or ``"zlib"``; ``"libdeflate"`` for whole
        streams alone.
    level : int
        The library's level: 0 to 3 for isal, else 0 to 9.
    strategy : int
        What to look for, one of zlib's ``Z_`` constants.
    window_bits : int
        How far back matches may lie, as a power of two.

    Examples
    --------
    >>> print(Encoder("zlib-ng", 9, window_bits=10))
    zlib-ng 9, 1 KiB window
    """

    library: str
    level: int
    strategy: int = zlib.Z_DEFAULT_STRATEGY
    window_bits: int = 15

    def __str__(self) -> str:
        name = f"{self.library} {self.level}"
        if self.strategy:
            name += f", {_STRATEGY_NAMES.get(self.strategy, f'strategy {self.strategy}')}"
        if self.window_bits < 15:
            name += f", {(1 << self.window_bits) / 1024:g} KiB window"
        return name


STORED_BLOCKS = Encoder("zlib", 0)
"""Deflate without compression, for what cannot be compressed."""

_SMALL = Encoder("libdeflate", 6)
_REFERENCE = Encoder("zlib", 6)
"""What np.savez_compressed writes; no choice is to be much larger."""

CANDIDATES = (
    # Floating-point weights 560, running sums 560; shortest match 4 bytes.
    Encoder("isal", 1),
    # Small int32 260, where level 1 is 1.06.
    Encoder("isal", 2),
    # Uniform uint8 labels 310: matches cost more than they save, 0.93.
    Encoder("zlib-ng", 6, zlib.Z_HUFFMAN_ONLY),
    # Mostly zeros 1500, at 0.98 where isal is 1.07.
    Encoder("zlib-ng", 6, zlib.Z_RLE),
    # Numbers repeat what is near, and a small window lives in the cache: up
    # to twice the speed of 32 KiB. Level 3 is for running sums without isal.
    Encoder("zlib-ng", 3, window_bits=12),
    # Counts 130 and int64 below 100 160, 0.97 and 0.92; strings 130.
    Encoder("zlib-ng", 5, window_bits=12),
    # Small int32 without isal 105; matches from far away.
    Encoder("zlib-ng", 2),
    Encoder("zlib-ng", 5),
    # Masks 70, where a window of 32 KiB does 50.
    Encoder("zlib-ng", 6, window_bits=10),
    # Smooth float64 87 (zlib 36): the one level of zlib-ng with matches of 3
    # bytes, without which they are 1.08. With 32 KiB it does 38.
    Encoder("zlib-ng", 9, window_bits=10),
    # Matches of 3 bytes from far away: a noisy picture 55, 0.94.
    Encoder("zlib", 1),
    Encoder("zlib-ng", 6),
    Encoder("zlib", 4),
    _REFERENCE,
)
"""What `choose_encoder` tries, fastest first."""

_TOLERANCE = 1.02
"""The size that is allowed, relative to zlib level 6's."""
_DOUBT = 1.03
"""How far over it the first places of a sample may be: who is further is not
tried on the others. Half of the time that choosing takes for smooth float64."""
_STORED_RATIO = 0.999
"""Where zlib level 6 saves less than this leaves, nothing is compressed."""
_PLACE_COUNT = 8
_PLACE_SIZE = 12 << 10
"""96 KiB of up to 8 MiB are tried. Fewer, longer places miss changes along the data."""
_PLACE_DISTANCE = 256 << 10
"""Shorter sections are sampled at fewer places, at no more than one in this many bytes."""
_PLACE_SLACK = 4
"""Bytes of a place that do not count: in so little data, tables of codes weigh
more than they will. Matters only where the data nearly vanish."""
_HISTORY_SIZE = 32 << 10
_SMALLEST_SAMPLED = 64 << 10
"""Below this, trying encoders would cost more than the best of them saves."""


@functools.cache
def _library(name: str) -> Any:
    """Import a library by its name in `Encoder`, or return None."""
    try:
        return importlib.import_module(_MODULES[name])
    except ImportError:
        return None


def _available(encoder: Encoder) -> Encoder | None:
    """Return what stands in for an encoder here; for isal's levels, nothing does."""
    if _library(encoder.library) is not None:
        return encoder
    return None if encoder.library == "isal" else encoder._replace(library="zlib")


@functools.cache
def _candidates() -> tuple[Encoder, ...]:
    """Return the candidates this installation has, each once and in order."""
    found = (_available(encoder) for encoder in CANDIDATES)
    return tuple(dict.fromkeys(encoder for encoder in found if encoder is not None))


def _compressor(encoder: Encoder, history: bytes = b"") -> Any:
    library, level, strategy, window_bits = encoder
    memory_level = _MEMORY_LEVELS[library]
    settings = (level, zlib.DEFLATED, -window_bits, memory_level, strategy)
    if history:
        return _library(library).compressobj(*settings, history)
    return _library(library).compressobj(*settings)


def deflate_chunk(encoder: Encoder, view: memoryview | bytes, *, final: bool) -> bytes:
    """Deflate one chunk on its own, raw.

    The GIL is released meanwhile. The same chunk gives the same bytes.

    Parameters
    ----------
    encoder : Encoder
        As from `choose_encoder` or `encoder_for_level`.
    view : buffer
        The chunk, contiguous.
    final : bool
        Whether the stream ends here. Otherwise the chunk is flushed to a whole
        byte, and an empty stored block follows: more chunks can be appended.

    Returns
    -------
    bytes
        Part of a deflate stream that needs nothing from before it.

    Examples
    --------
    >>> encoder = encoder_for_level(6)
    >>> stream = deflate_chunk(encoder, b"to be ", final=False)
    >>> stream += deflate_chunk(encoder, b"or not", final=True)
    >>> zlib.decompress(stream, wbits=-15)
    b'to be or not'
    """
    if encoder.library == "libdeflate":
        whole: bytes = _library("libdeflate").deflate_compress(view, encoder.level)
        return whole
    compressor = _compressor(encoder)
    compressed: bytes = compressor.compress(view)
    if final:
        return b"".join((compressed, compressor.flush()))
    # The mark is written here, as ISA-L's second flush gives other bytes.
    return b"".join((compressed, compressor.flush(zlib.Z_SYNC_FLUSH), _MARK))


def encoder_for_level(level: int) -> Encoder:
    """Return the encoder for a level from 0 to 9 that was asked for.

    zlib-ng, two to nine times as fast as zlib; zlib where it is missing.

    Examples
    --------
    >>> encoder_for_level(0)
    Encoder(library='zlib', level=0, strategy=0, window_bits=15)
    """
    if level == 0:
        return STORED_BLOCKS
    return _available(Encoder("zlib-ng", level)) or Encoder("zlib", level)


def encoder_for_small(level: int | None) -> Encoder:
    """Return the encoder of streams that are too short for a choice.

    libdeflate makes them whole, in half of zlib-ng's time, and not larger than
    zlib: 123 microseconds for 10 KB of integers, where zlib takes 554.
    """
    if level is not None:
        return encoder_for_level(level)
    return _SMALL if _library("libdeflate") is not None else encoder_for_level(6)


def choose_encoder(section: memoryview | bytes) -> Encoder:
    """Return the fastest encoder that keeps to the size of zlib level 6.

    By a sample from several places: within 2 % of what level 6 makes of it.
    The choice depends on the bytes and on which libraries there are.

    Parameters
    ----------
    section : buffer
        Consecutive data, contiguous; some megabytes are what suits.

    Returns
    -------
    Encoder
        For every chunk of the section.

    Examples
    --------
    >>> print(choose_encoder(bytes(range(256)) * 4096))  # doctest: +SKIP
    isal 1
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
        # zlib's stream goes on from chunk to chunk, but a candidate starts
        # every 256 KiB without history, and an eighth of that is one window's
        # length. So is one place of eight: without, int32 is judged 1 to 2 %
        # too well.
        middle = _PLACE_COUNT // 2
        places[middle] = (b"", places[middle][1])
    for encoder in _candidates():
        sizes = itertools.accumulate(_sizes(encoder, places))
        if encoder == _REFERENCE or all(map(operator.le, sizes, limits)):
            return encoder
    return _REFERENCE


def _find_places(view: memoryview) -> list[tuple[bytes, memoryview]]:
    """Cut a sample: pieces spread evenly, each with the window before it.

    With their history, short pieces are compressed like the middle of a long
    stream. Without, whatever looks far back is underrated, by up to 6 %.
    """
    count = min(_PLACE_COUNT, max(1, len(view) // _PLACE_DISTANCE))
    places = []
    for index in range(count):
        start = (len(view) - _PLACE_SIZE) * (2 * index + 1) // (2 * count)
        history = bytes(view[max(0, start - _HISTORY_SIZE) : start])
        places.append((history, view[start : start + _PLACE_SIZE]))
    return places


def _sizes(encoder: Encoder, places: Iterable[tuple[bytes, memoryview]]) -> Iterator[int]:
    """Yield the compressed size of each place."""
    for history, data in places:
        compressor = _compressor(encoder, history)
        yield len(compressor.compress(data)) + len(compressor.flush())
