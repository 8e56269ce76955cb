"""Damage to one place of an archive, what npzkit reads then, and whether that is right."""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import npzkit
from commits import BLOCK_SIZES, Part
from deep import DEEP, amount
from grown_archives import CASES, Case
from history import Commit, held_as
from npzkit.errors import (
    ChecksumError,
    LimitExceededError,
    NpyFormatError,
    NpzkitError,
    TornArchiveWarning,
    ZipFormatError,
)
from npzkit.members.metadata import LOST_KEY

__all__ = [
    "ITS_OWN", "Campaign", "Damage", "Found", "byte_damage", "differences", "folder_in_memory", "is_error",
    "keys_of", "read", "sampled_damage", "sector_damage",
]  # fmt: skip

STATE_COUNT = amount(700, 100_000)
"""Of all archives together."""
_BULKY = 16 if not DEEP else 4 if DEEP < 10 else 1
THINNED = {"dead": _BULKY, "data": _BULKY, "seek index": _BULKY, "metadata": 64}
"""One of so many bytes is damaged of what no rule but its own CRC-32 concerns."""
OPEN_ERRORS = ZipFormatError, ChecksumError
READ_ERRORS = *OPEN_ERRORS, NpyFormatError, LimitExceededError
"""A damaged NPY header may claim to be longer than any that is read."""


class Damage(NamedTuple):
    """Bytes from `start` on that become others."""

    start: int
    data: bytes

    def of(self, data: bytes) -> bytes:
        return data[: self.start] + self.data + data[self.start + len(self.data) :]


def byte_damage(case: Case) -> Iterator[Damage]:
    """Yield each flipped bit, and each byte that becomes 0 or 255; of data a part of it."""
    for place, byte in enumerate(case.data):
        part = case.labels[place]
        kind = "dead" if part is None else part.what
        if place % THINNED.get(kind, 1):
            continue
        for value in sorted({byte ^ 1 << bit for bit in range(8)} | {0, 255} - {byte}):
            yield Damage(place, bytes([value]))


def sector_damage(case: Case) -> Iterator[Damage]:
    """Yield each sector that becomes zeros; both sizes may be the same damage."""
    size = len(case.data)
    sectors = {
        (start, min(start + block, size))
        for block in BLOCK_SIZES
        for start in range(0, size, block)
    }
    for start, stop in sorted(sectors):
        if case.data[start:stop].strip(b"\0"):
            yield Damage(start, bytes(stop - start))


def sampled_damage(case: Case) -> list[Damage]:
    """Return each lost sector, and an archive's share of the other states, evenly taken."""
    damages = list(byte_damage(case))
    step = max(len(damages) // (STATE_COUNT // len(CASES)), 1)
    return [*sector_damage(case), *damages[sum(map(ord, case.name)) % step :: step]]


# -- what is read ---------------------------------------------------------------------


class Found(NamedTuple):
    """What npzkit reads of a file: each part of it, or the error that reading it raised."""

    keys: list[str]
    arrays: dict[str, Any]
    attrs: dict[str, Any]
    metadata: Any
    is_torn: bool


def attempt(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except NpzkitError as error:
        # A damaged frame of Zstandard may name a dictionary.
        if not (isinstance(error, READ_ERRORS) or error.is_damage):
            raise
        return error


def read(file: bytes | Path) -> Found:
    """Read all of a file; if it cannot be opened, that raises."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with npzkit.open(file) as npz:
            keys = list(npz)
            arrays = {key: attempt(lambda key=key: held_as(npz[key])) for key in keys}
            attrs = {key: attempt(lambda key=key: dict(npz.info(key).attrs)) for key in keys}
            # A copy that repair has made says what it lacks.
            metadata = attempt(lambda: {k: v for k, v in npz.metadata.items() if k != LOST_KEY})
    told = [warning.category for warning in caught]
    assert told in ([], [TornArchiveWarning]), [str(warning.message) for warning in caught]
    return Found(keys, arrays, attrs, metadata, bool(told))


def is_error(found: Any) -> bool:
    return isinstance(found, Exception)


def differences(found: Found, commit: Commit) -> list[str]:
    """Return in what the readable part of a file differs from a commit."""
    if found.keys != list(commit.held):
        return [f"keys {found.keys} for {list(commit.held)}"]
    rows = []
    for key, (array, attrs) in commit.held.items():
        if not is_error(found.arrays[key]) and found.arrays[key] != array:
            rows.append(f"{key}: {found.arrays[key][:3]} for {array[:3]}")
        if not is_error(found.attrs[key]) and found.attrs[key] != attrs:
            rows.append(f"{key}: {found.attrs[key]} for {attrs}")
    if not is_error(found.metadata) and found.metadata != commit.metadata:
        rows.append(f"metadata {str(found.metadata)[:80]} for {str(commit.metadata)[:80]}")
    return rows


def keys_of(parts: list[Part], *kinds: str) -> set[str]:
    """Return the keys of arrays that have a touched part of one of these kinds."""
    return {part.name.decode().removesuffix(".npy") for part in parts if part.what in kinds}


ITS_OWN = "local header", "alignment", "data", "seek index"
"""What one array needs, and no other one."""


def judge(case: Case, damaged: bytes) -> tuple[str, Commit]:
    """Return "new", "error" or "lost", and the commit that counts; any other outcome fails."""
    touched = case.touched(damaged)
    kinds = {part.what for part in touched}
    try:
        found = read(damaged)
    except OPEN_ERRORS as error:
        # Without its first signature no other program reads a file.
        is_own = kinds <= {*ITS_OWN, "metadata"} and damaged[:4] == case.data[:4]
        if is_own:
            raise AssertionError(f"it cannot be opened: {error!r}") from error
        return "error", case.commits[-1]
    for older in case.lost_to(damaged):
        if found.is_torn and not differences(found, older):
            return "lost", older
    rows = differences(found, case.commits[-1])
    assert not rows, "; ".join(rows)
    assert not found.is_torn or kinds & {"end", "zip64", "comment"}, "torn"
    for key in found.keys:
        if key not in keys_of(touched, *ITS_OWN, "entry"):
            assert not is_error(found.arrays[key]), f"{key}: {found.arrays[key]!r}"
            assert not is_error(found.attrs[key]), f"{key}: {found.attrs[key]!r}"
    if is_error(found.metadata):
        assert kinds & {"metadata", "comment", "end", "zip64", "footer"}, f"{found.metadata!r}"
    return "new", case.commits[-1]


# -- many states ---------------------------------------------------------------------


Check = Callable[[Case, Damage, str, Commit, int], None]


class Campaign:
    """States of archives, what was found in each, and what is wrong with them.

    Parameters
    ----------
    check : callable, optional
        Called with the archive, the damage, what was found, the commit that counts, and a number.
    every : int
        It is called for one of so many states.
    """

    def __init__(self, check: Check | None = None, every: int = 1) -> None:
        self.check, self.every = check, every
        self.outcomes: Counter[str] = Counter()
        self.violations: list[str] = []

    def run(self, case: Case, damage: Damage) -> None:
        number = self.outcomes.total()
        try:
            outcome, commit = judge(case, damage.of(case.data))
            if self.check is not None and number % self.every == 0:
                self.check(case, damage, outcome, commit, number // self.every)
        except Exception as error:
            outcome, what = "wrong", str(error).partition("\n")[0]
            self.violations.append(f"{describe(case, damage)}: {type(error).__name__}: {what}")
        self.outcomes[outcome] += 1

    def finish(self) -> None:
        """Fail if anything was wrong."""
        print(dict(self.outcomes))
        count = len(self.violations)
        assert not count, f"{count} of {self.outcomes.total()}:\n" + "\n".join(
            self.violations[:: max(count // 30, 1)]
        )


def describe(case: Case, damage: Damage) -> str:
    part = case.labels[damage.start]
    size, value = len(damage.data), damage.data[0]
    change = f"{case.data[damage.start]:#04x} -> {value:#04x}" if size == 1 else f"{size} zeros"
    where = (
        "dead" if part is None else f"{part.what} {part.name.decode()}+{damage.start - part.start}"
    )
    return f"{case.name}, byte {damage.start} of {len(case.data)} ({where}), {change}"


@contextlib.contextmanager
def folder_in_memory(otherwise: Path) -> Iterator[Path]:
    """Have a folder in memory, if the system has such: each state is a file of its own."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield otherwise
        return
    place = memory / f"npzkit-damage-{os.getpid()}"
    place.mkdir(exist_ok=True)
    yield place
    shutil.rmtree(place)
