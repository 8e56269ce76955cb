"""What must hold of any input whatever: `check` raises `Violation` where it does not.

An `NpzkitError` or data, never another exception and no warning but those that
are documented; the data np.load gives, or a row of `differences.DIFFERENCES`;
and all of npzkit's own ways to a member agree. Nothing takes long, or much
memory.
"""

from __future__ import annotations

from calls import Violation, recorded_warnings, spent
from check_append import check_append
from check_archive import check_archive
from check_end import check_end
from check_http import check_http
from check_npy import check_npy
from check_stream import check_stream
from check_zstd import check_zstd

try:
    import resource
except ImportError:  # Windows
    resource = None

__all__ = ["TARGETS", "Violation", "check", "recorded_warnings"]

TARGETS = {
    "npy": check_npy, "archive": check_archive, "append": check_append, "stream": check_stream,
    "end": check_end, "http": check_http, "zstd": check_zstd,
}  # fmt: skip
_MAX_SECONDS = 1.0
"""For a small input."""
_TRIES = 4
"""A busy machine may be slow now and then, but not each time."""
_MAX_GROWTH = 500 << 20
"""Bytes that one input may cost in memory."""


def check(target: str, data: bytes, *, thorough: bool = False) -> list[str]:
    """Hold one input against everything; return what came of it, in a few words each.

    Parameters
    ----------
    target : {"npy", "archive", "append", "stream", "end", "http", "zstd"}
    data : bytes
    thorough : bool
        Take every way to a member, those through the disk too, and look at
        the memory; else, the input's CRC decides which ways.

    Raises
    ------
    Violation
        Something does not hold.
    """
    before = _peak() if thorough else 0
    for _ in range(_TRIES):
        spent[0] = 0.0
        labels = TARGETS[target](bytes(data), thorough)
        if spent[0] <= _MAX_SECONDS * max(len(data) / 65_536, 1):
            break
    else:
        raise Violation(f"too slow: {spent[0]:.1f} s for {len(data)} bytes")
    # To ask the system of each input would take as long as a small one.
    if thorough and _peak() - before > _MAX_GROWTH:
        raise Violation(f"too large: {_peak() - before} bytes of memory for {len(data)} bytes")
    return labels


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if resource else 0
