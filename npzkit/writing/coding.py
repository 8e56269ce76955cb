"""How the data of an array is to be encoded: stored or deflated, at which level, in which chunks.

Owns the checks of these arguments, and that an array takes what it is not given
from its writer. What an encoder does with them is `npzkit.zip.member_writer`'s.
"""

from __future__ import annotations

from typing import Literal

from npzkit.codecs.methods import DEFLATED, STORED, check_level, method_number
from npzkit.zip.member_writer import Coding
from npzkit.zip.sozip import CHUNK_SIZE, check_chunk_size

Compression = Literal["stored", "deflated"] | int | None
DEFAULT_CHUNK_SIZE = CHUNK_SIZE
"""Of all writers."""


def check_coding(
    compression: Compression, level: int | None, chunk_size: int, seekable: bool
) -> Coding:
    """Return the coding of a writer, for arrays that do not say otherwise.

    Raises
    ------
    ValueError, TypeError
        A bad compression, level or chunk size.
    """
    return Coding(
        method_number(compression), check_level(level), check_chunk_size(chunk_size), seekable
    )


def coding_for(
    default: Coding,
    compression: Compression,
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
    return Coding(
        method,
        default.level if level is None else level,
        default.chunk_size if chunk_size is None else check_chunk_size(chunk_size),
        default.is_seekable if seekable is None else seekable,
    )


def is_deflated(compression: Compression, level: int | None) -> bool:
    """Return whether data is to be deflated; raises ValueError for a bad compression or level."""
    method = method_number(compression)
    level_for(method, level)
    return method == DEFLATED


def level_for(method: int, level: int | None) -> int | None:
    """Check a level, and that it was not given for a stored array."""
    level = check_level(level)
    if level is not None and method == STORED:
        raise ValueError("level is for compression='deflated'; stored arrays have none")
    return level
