"""Deflated members that are much larger than the array that their header describes."""

from __future__ import annotations

import functools
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator

import pytest
from deep import extent
from forge import Member, archive, header
from range_server import RangeServer

MIB = 1 << 20
SIZE = extent(96, 512) * MIB

MEASURE = """
import io, os, sys
from pathlib import Path
import npzkit, numpy as np
npzkit.iter_arrays, npzkit.load_tree  # imported once, before any child
class Loaded:
    def __init__(self, file):
        self.read = file.read
def peak():
    # Not ru_maxrss, which begins with that of the process that started this one.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
def measure(place, use):
    npz = npzkit.open(place, **({"allow_pickle": True} if use == "pickle" else {}))
    data = io.BytesIO() if "://" in place else open(place, "rb")
    works = {
        "key": lambda: npz["x"],
        "unverified": lambda: npz.read("x", verify=False),
        "pickle": lambda: npz["x"],
        "out": lambda: npz.read("x", out=np.empty(3, "u1")),
        "load_all": lambda: npz.load_all(),
        "tree": lambda: npzkit.load_tree(place),
        "stream": lambda: list(npzkit.iter_arrays(Loaded(data))),
    }
    before = peak()
    try:
        works[use]()
        outcome = "accepted"
    except (npzkit.NpzkitError, ValueError) as error:
        outcome = type(error).__name__
    print(outcome, peak() - before, flush=True)
for line in sys.stdin:
    # A child has read nothing before, and the memory of nothing.
    child = os.fork()
    if not child:
        try:
            measure(*line.split())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""

HEADS = {
    "of 24 bytes": header("{'descr': '|u1', 'fortran_order': False, 'shape': (24,)}"),
    "with a header of 4 GiB": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1),
    "without a header": b"",
}


def deflated_zeros(head: bytes, size: int) -> tuple[bytes, int]:
    """Return a deflated stream of `head` and zeros, and the CRC-32 of what it holds."""
    stream, crc, zeros = zlib.compressobj(6, zlib.DEFLATED, -15), zlib.crc32(head), bytes(MIB)
    pieces = [stream.compress(head), stream.flush(zlib.Z_FULL_FLUSH)]
    # What follows a full flush refers to nothing before it, so it may be repeated.
    repeated = stream.compress(zeros) + stream.flush(zlib.Z_FULL_FLUSH)
    count, rest = divmod(size, MIB)
    for _ in range(count):
        crc = zlib.crc32(zeros, crc)
    crc = zlib.crc32(zeros[:rest], crc)
    return b"".join([*pieces, repeated * count, stream.compress(zeros[:rest]), stream.flush()]), crc


@functools.cache
def bomb(kind: str, size: int = SIZE, count: int = 1) -> bytes:
    """Return an archive of members "x", "x1", ... which go on with zeros behind their header."""
    head = HEADS[kind]
    raw, crc = deflated_zeros(head, size)
    fields = {"crc": crc, "usize": len(head) + size}
    names = ["x.npy", *[f"x{number}.npy" for number in range(1, count)]]
    return archive(
        *[Member(name, b"", method=8, raw=raw, local=fields, central=fields) for name in names]
    )


@pytest.fixture(scope="module")
def measure() -> Iterator[Callable[[object, str], tuple[str, int]]]:
    """Call with a path or URL, and a way of reading; returns how that ended in a new process,
    and the MiB of memory that it took."""
    with subprocess.Popen(
        [sys.executable, "-c", MEASURE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def call(place: object, use: str) -> tuple[str, int]:
            print(place, use, file=process.stdin, flush=True)
            outcome, peak = process.stdout.readline().split()
            return outcome, int(peak) >> 10

        yield call


pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="Linux says how much memory a process took"
)


@pytest.mark.slow
@pytest.mark.parametrize("use", ["key", "unverified", "out", "load_all", "tree", "stream"])
@pytest.mark.parametrize("kind", HEADS)
def test_a_member_is_not_inflated_before_its_header_is_compared(kind, use, measure, tmp_path):
    """Zeros behind a short array, a header of 4 GiB or none take no memory."""
    path = tmp_path / "a.npz"
    path.write_bytes(bomb(kind))
    outcome, peak = measure(path, use)
    assert outcome.endswith("Error")
    assert peak < 32


def test_a_header_that_its_member_cannot_hold_is_not_read(measure, tmp_path):
    """A header of 4 GiB in a shorter member is refused by its length, without a limit too."""
    path = tmp_path / "a.npz"
    path.write_bytes(bomb("with a header of 4 GiB"))
    outcome, peak = measure(path, "pickle")
    assert outcome == "NpyFormatError"
    assert peak < 32


@pytest.mark.parametrize("use", ["load_all", "stream"])
@pytest.mark.parametrize("size", [MIB - 4096, 48 * MIB])
def test_many_members_with_bytes_behind_their_arrays(size, use, measure, tmp_path):
    """Many small members that claim too much take no more memory than one of them."""
    path = tmp_path / "a.npz"
    path.write_bytes(bomb("of 24 bytes", size, 100))
    outcome, peak = measure(path, use)
    assert outcome == "NpyFormatError"
    assert peak < 32


@pytest.mark.slow
@pytest.mark.parametrize("use", ["key", "load_all"])
def test_a_distant_member_is_not_inflated_before_its_header_is_compared(use, measure):
    """The same over HTTP."""
    with RangeServer().running() as server:
        outcome, peak = measure(server.put(bomb("of 24 bytes")), use)
    assert outcome == "NpyFormatError"
    assert peak < 32
