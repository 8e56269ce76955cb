"""How the data of an array is encoded: by which method, at which level, in which chunks.

Owns the methods by number and name, what users may pass as a compression, level and size of
chunks, and that an array takes what it is not given from its writer. Encoders are in
`npzkit.codecs.encoders`, decoders in `npzkit.codecs.decompressors`; what the first do with a
`Coding` is `npzkit.zip.member_writer`'s.
"""

# Without `from __future__ import annotations`: see "The first call" in CONTRIBUTING.
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from npzkit.typing import Compression


STORED = 0
DEFLATED = 8
DEFLATED64 = 9
BZIP2 = 12
LZMA = 14
ZSTANDARD = 93

METHOD_NAMES = {
    STORED: "stored",
    DEFLATED: "deflated",
    DEFLATED64: "deflate64",
    BZIP2: "bzip2",
    LZMA: "lzma",
    ZSTANDARD: "zstd",
}
"""The methods that npzkit can read (APPNOTE section 4.4.5)."""
LEVELS = {STORED: (0, 9), DEFLATED: (0, 9), ZSTANDARD: (-7, 19)}
"""The methods that npzkit can write, and their levels. The level of a writer whose arrays are
stored is for those that it deflates."""
ZSTANDARD_LEVEL = 1
"""The default."""
CHUNKED = frozenset((DEFLATED, ZSTANDARD))
"""The methods whose members are written in chunks, so that parts of them are cheap to read."""
MAX_RATIOS = {DEFLATED: 1032, DEFLATED64: 29_128, ZSTANDARD: 32_768}
"""The most bytes that one compressed byte can become: a match of 258 bytes takes 2
bits, one of 65,538 in Deflate64 takes 18, and 4 bytes of Zstandard repeat one 131,072 times."""
CHUNK_SIZE = 1 << 18
"""Uncompressed bytes of a chunk: 32 KiB cost two to four times the speed."""
CHECKED_SIZE = 1 << 16
"""Bytes of a stored member that have a CRC-32 of their own, if it has more than `CHUNK_SIZE`."""
CHUNK_SIZE_LIMITS = 1 << 12, 1 << 26
"""Bytes a chunk may have when it is written: the specification advises 4096
and more. A reader has whole chunks in memory, so it refuses larger ones."""


class Coding(NamedTuple):
    """How a member's bytes are written.

    Attributes
    ----------
    method : int
        One of `LEVELS`.
    level : int or None
        As `LEVELS` says. None chooses the encoder of deflated data by a sample, and 1 for zstd.
    chunk_size : int
        Uncompressed bytes of the chunks that are compressed on their own.
    is_seekable : bool
        Whether the record gets a list of the chunks of a member that has several, which users
        know as its seek index.
    """

    method: int = STORED
    level: int | None = None
    chunk_size: int = CHUNK_SIZE
    is_seekable: bool = True


def method_name(method: int) -> str:
    """Return the name of a method: ``"stored"``, ``"deflated"``, ..., ``"method 97"``."""
    return METHOD_NAMES.get(method, f"method {method}")


def method_number(compression: str | int | None) -> int:
    """Return the method number of a compression that npzkit can write.

    None means no compression, as in h5py.

    Raises
    ------
    ValueError
        `compression` is not ``"stored"``, ``"deflated"``, ``"zstd"`` or the number
        that zipfile has for one of them.
    UnsupportedError
        The library for it is not installed.

    Examples
    --------
    >>> method_number("deflated")
    8
    """
    if compression is None:
        return STORED
    for number in LEVELS:
        if isinstance(compression, bool):
            break
        if compression == number or compression == METHOD_NAMES[number]:
            if number == ZSTANDARD:
                from npzkit.codecs.checksum import zstandard_library

                zstandard_library()
            return number
    raise ValueError(
        f"compression must be 'stored', 'deflated' or 'zstd' (or zipfile.ZIP_STORED, "
        f"zipfile.ZIP_DEFLATED, zipfile.ZIP_ZSTANDARD), not {compression!r}"
    )


def check_level(level: Any, method: int = STORED) -> int | None:
    """Return `level` as an int that the method has, or None, or raise ValueError."""
    if level is None:
        return None
    least, most = LEVELS[method]
    if isinstance(level, bool) or not hasattr(level, "__index__") or not least <= level <= most:
        raise ValueError(f"level must be an integer from {least} to {most}, or None, not {level!r}")
    return operator.index(level)


def check_chunk_size(size: Any) -> int:
    """Return a chunk size, or raise ValueError for one that is not sensible."""
    smallest, largest = CHUNK_SIZE_LIMITS
    if isinstance(size, bool) or not hasattr(size, "__index__") or not smallest <= size <= largest:
        raise ValueError(f"chunk_size must be {smallest} to {largest} bytes, not {size!r}")
    return operator.index(size)


_DEFAULT = Coding(STORED, None, CHUNK_SIZE, True)
"""Of most writers, which check nothing then."""


def check_coding(
    compression: "Compression", level: int | None, chunk_size: int, seekable: bool
) -> Coding:
    """Return the coding of a writer, for arrays that do not say otherwise.

    Raises
    ------
    ValueError, TypeError
        A bad compression, level or chunk size.
    """
    if chunk_size is CHUNK_SIZE and seekable is True and (compression, level) == ("stored", None):
        return _DEFAULT
    method = method_number(compression)
    return Coding(method, check_level(level, method), check_chunk_size(chunk_size), seekable)


def coding_for(
    default: Coding,
    compression: "Compression",
    level: int | None,
    chunk_size: int | None,
    seekable: bool | None,
) -> Coding:
    """Return the coding of one array; each None means the writer's.

    Raises
    ------
    ValueError, TypeError
        A bad compression, level or chunk size, or a level for a stored array.
    """
    if compression is level is chunk_size is seekable is None:
        return default
    method = default.method if compression is None else method_number(compression)
    level = level_for(method, level)
    if level is None and default.method in (method, STORED):
        level = default.level
    return Coding(
        method,
        level,
        default.chunk_size if chunk_size is None else check_chunk_size(chunk_size),
        default.is_seekable if seekable is None else seekable,
    )


def checked_method(compression: "Compression", level: int | None) -> int:
    """Return the number of a compression; raises ValueError for a bad compression or level."""
    method = method_number(compression)
    level_for(method, level)
    return method


def level_for(method: int, level: int | None) -> int | None:
    """Check a level, and that it was not given for a stored array."""
    level = check_level(level, method)
    if level is not None and method == STORED:
        from npzkit.errors import Advice

        raise ValueError(
            "level is for "
            + Advice(
                "compression='deflated' and compression='zstd'",
                "--compression deflated and --compression zstd",
            )
            + "; stored arrays have none"
        )
    return level
