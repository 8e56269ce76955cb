"""A little fuzzing of everything that reads strangers' bytes; `tests/fuzz` does more of it."""

from __future__ import annotations

import gc
import struct

import numpy as np
import oracle
import pytest
from deep import DEEP, amount, extent
from forge import Member, archive
from seeds import FINDINGS

from fuzz import Tally, loop
from tables import each_row

FOUND = sorted(path.name for path in FINDINGS.iterdir())
RUNS = {"npy": amount(150, 8000), "archive": amount(20, 800), "append": amount(20, 1500),
        "stream": amount(30, 3000),
        "end": amount(1000, 100_000), "http": amount(200, 10_000), "zstd": amount(300, 30_000)}  # fmt: skip
"""A tenth of a second of each by default, half of one of answers, and two seconds of ends."""


def small(array: np.ndarray) -> bytes:
    """Return an NPY file without padding."""
    text = f"{np.lib.format.header_data_from_array_1_0(array)}\n".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + array.tobytes()


SMALL = archive(
    Member("a.npy", small(np.arange(3, dtype="<i2"))),
    Member("b.npy", small(np.ones(2, "u1")), method=8, descriptor="signed"),
    comment=b'{"n":1}',
)


@pytest.fixture(autouse=True)
def _recorded():
    with oracle.recorded_warnings():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("target", RUNS)
def test_mutated_files(target):
    """Any file is an NpzkitError, or what np.load reads, but for the documented differences."""
    # What other tests left, such as a socket, is not a warning of what is read here.
    gc.collect()
    tally = Tally(target, RUNS[target])
    loop(tally, seed=0)
    assert tally.count == RUNS[target]
    assert len(tally.outcomes) >= 5


@pytest.mark.slow
@each_row("name", FOUND)
def test_what_was_found_once(name):
    """What violated this once does so no more, in any way there is."""
    target = name.partition("-")[0]
    assert oracle.check(target, (FINDINGS / name).read_bytes(), thorough=True)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["archive", "append", "stream", "end"])
def test_cut_at_every_byte(target):
    """Wherever an archive was cut, it is refused, or read, appended to and repaired rightly.

    By default that is every third place.
    """
    for size in range(0, len(SMALL), extent(3, 1)):
        oracle.check(target, SMALL[:size], thorough=size % 16 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["archive", "append", "stream", "end"])
def test_every_bit_flipped(target):
    """Whichever bit of an archive is wrong, it is refused, or read, appended to and repaired rightly.

    By default that is one bit of every seventh byte.
    """
    for position in range(0, len(SMALL), extent(7, 1)):
        for bit in range(8) if DEEP else [position % 8]:
            data = bytearray(SMALL)
            data[position] ^= 1 << bit
            oracle.check(target, bytes(data))
