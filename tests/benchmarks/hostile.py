"""What the worst inputs cost: seconds and peak memory of each, accepted or refused.

    python tests/benchmarks/hostile.py

Each input, but for an index, is made without npzkit, then opened (or read, verified, repaired) in
a process of its own, on Linux. The base line is that process after
a small archive.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
from forge import Member, archive, header, npy, with_metadata
from npzkit.datasets.index import ArrayRow, PartRow
from npzkit.datasets.index_format import format_index
from npzkit.datasets.shard_names import ShardRecord

MIB = 1 << 20

MEASURE = """
import importlib, io, sys, time, warnings
from pathlib import Path
import npzkit, numpy
stream = io.BytesIO()
npzkit.save(stream, {"x": numpy.zeros(3)}, compression="deflated")
npzkit.open(stream).load_all()
def peak():
    # Not ru_maxrss, which begins with that of the process that started this one.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
path, output = sys.argv[1:]
warnings.simplefilter("ignore")
before = peak()
begin = time.perf_counter()
try:
    outcome = f"accepted: {eval(WORK)}"
except npzkit.NpzkitError as error:
    outcome = f"{type(error).__name__}: {error.what[:70]}"
seconds = time.perf_counter() - begin
print(f"{seconds:.3f}|{peak() - before:.1f}|{outcome}")
"""

OPEN = "f'{len(npzkit.open(path))} members'"
READ = "f'{sum(a.nbytes for a in npzkit.open(path).load_all().values()) >> 20} MiB'"
INFO = "npzkit.open(path).info('x').dtype.itemsize"
VERIFY = "f'ok is {npzkit.verify(path).ok}'"
REPAIR = "f'{len(npzkit.repair(path, output, overwrite=True).kept)} kept'"


PARSE = (
    'f\'{len(importlib.import_module("npzkit.datasets.index_format")'
    ".parse_index(path)[0].keys)} arrays'"
)


METADATA = "len(npzkit.open(path).metadata)"


def bomb(size: int, length: int | None = None) -> bytes:
    """An array of zeros, deflated as far as deflate goes: 1 to 1029. Its header says `length`."""
    length = size if length is None else length
    start = header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({length},), }}")
    crc, stream = zlib.crc32(start), zlib.compressobj(9, zlib.DEFLATED, -15)
    raw, zeros = [stream.compress(start)], bytes(MIB)
    for _ in range(size // MIB):
        crc = zlib.crc32(zeros, crc)
        raw.append(stream.compress(zeros))
    raw.append(stream.flush())
    sizes = {"crc": crc, "usize": len(start) + size}
    return archive(Member("x.npy", b"", method=8, raw=b"".join(raw), central=sizes, local=sizes))


def many(count: int) -> bytes:
    """Members without a byte, as many as asked for."""
    local = b"".join(
        struct.pack("<4sHHHHHLLLHH", b"PK\x03\x04", 20, 0, 0, 0, 33, 0, 0, 0, 7, 0) + b"%07d" % i
        for i in range(count)
    )
    central = b"".join(
        struct.pack(
            "<4sHHHHHHLLLHHHHHLL", b"PK\x01\x02", 20, 20, 0, 0, 0, 33, 0, 0, 0, 7, 0, 0, 0, 0, 0,
            37 * i,
        )
        + b"%07d" % i
        for i in range(count)
    )  # fmt: skip
    end = struct.pack(
        "<4sQHHLLQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(central), len(local)
    )
    end += struct.pack("<4sLQL", b"PK\x06\x07", 0, len(local) + len(central), 1)
    end += struct.pack("<4sHHHHLLH", b"PK\x05\x06", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    return local + central + end


def quoted(descr: str) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (), }}"
    return archive(Member("x.npy", header(text)))


def overlapping(count: int) -> bytes:
    """Many members that all stand for the same compressed bytes."""
    kernel = Member("x.npy", npy(np.zeros(MIB, "u1")), method=8)
    start = kernel.local_bytes()
    central = b"".join(kernel.central_bytes(0) for _ in range(count))
    end = struct.pack("<4sHHHHLLH", b"PK\x05\x06", 0, 0, count, count, len(central), len(start), 0)
    return start + central + end


def index(divided: int, single: int) -> bytes:
    """The index of a sharded archive: arrays of five parts, and arrays of one, in 100 shards."""
    shards = [ShardRecord(f"s{number}.npz", 1 << 30, 0) for number in range(100)]
    counts, arrays, number = [5] * divided + [1] * single, [], 0
    for at, count in enumerate(counts):
        key = f"layers/{at}/attention/weight"
        parts = []
        for part in range(count):
            crc = number * 2654435761 % 2**32
            parts.append(PartRow(number % 100, key, (2 * part, 0), (2, 64), 512, crc, 0))
            number += 1
        shape = 2 * count, 64
        arrays.append(ArrayRow(key, shape, np.dtype("<f4"), None, False, {}, tuple(parts)))
    return format_index("a1", {}, shards, arrays)


def fields(count: int) -> str:
    return "[" + ", ".join(f"('f{i}', '|i1')" for i in range(count)) + "]"


def inputs() -> Iterator[tuple[str, bytes, list[tuple[str, str]]]]:
    """Yield what each is, its bytes, and the works to be tried on it."""
    limited = "npzkit.open(path, limits=npzkit.Limits({}))"
    yield (
        "a bomb: 1 GiB of zeros", bomb(1 << 30),
        [("read", READ), ("read, member_size=2**28", limited.format("member_size=2**28") + "['x'].nbytes"),
         ("verify", VERIFY)],
    )  # fmt: skip
    yield (
        "24 bytes of array, and 1 GiB of zeros behind", bomb(1 << 30, 24),
        [("read", "npzkit.open(path)['x'].nbytes"), ("load_all", READ)],
    )  # fmt: skip
    yield "60,000 members of the same bytes, overlapping", overlapping(60_000), [("open", OPEN)]
    yield (
        "a million members", many(1_000_000),
        [("open", OPEN), ("open, member_count=100_000", limited.format("member_count=100_000"))],
    )  # fmt: skip
    small = archive(Member("x.npy", npy(np.zeros(3))), zip64={"count": 2**40, "total": 2**40})
    yield "2**40 members claimed by 200 bytes", small, [("open", OPEN)]
    huge = npy(np.zeros(0)).replace(b"(0,)", b"(2**50,)".replace(b"2**50", b"1125899906842624"))
    yield "an array of 9 PB claimed by 128 bytes", archive(Member("x.npy", huge)), [("read", READ)]
    yield "a header at the limit: 570 fields", quoted(fields(570)), [("info", INFO)]
    yield "a header of 60,000 bytes", quoted(fields(3_500)), [("info", INFO)]
    yield "nested 4,000 deep", quoted("[" * 4000 + "]" * 4000), [("info", INFO)]
    yield "9,000 quotes in a header", quoted(repr("'" * 4500)), [("info", INFO)]
    ends = (
        b"PK\x03\x04" + struct.pack("<4sHHHHLLH", b"PK\x05\x06", 0, 0, 1, 1, 46, 0, 0) * 3_000_000
    )
    yield "3 million end records, none of which fits", ends + b"x", [("open", OPEN)]
    names = archive(*[Member(b"%05d" % i + b"n" * 65_000, b"") for i in range(400)])
    yield "400 names of 65,005 bytes", names, [("open", OPEN)]
    claim = {"csize": 16 * MIB, "usize": 16 * MIB}
    nested = Member("x.npy", b"", local=claim, central=claim).local_bytes()
    yield (
        "a local header every 35 bytes, each claiming 16 MiB", nested * (16 * MIB // len(nested)) * 2,
        [("repair", REPAIR)],
    )  # fmt: skip
    yield "an index of 60,000 arrays in 140,000 parts", index(20_000, 40_000), [("parse", PARSE)]
    for size in (9, 95):
        text = b'{"a":[' + b"[]," * (size * MIB // 3) + b"0]}"
        yield f"metadata of {size} MiB of empty lists", with_metadata(text), [("open", METADATA)]


def main() -> None:
    table = Table("input", "file", "work", "seconds", "MiB more", "outcome", title="worst inputs")
    with tempfile.TemporaryDirectory() as folder:
        path, output = Path(folder, "a.npz"), Path(folder, "b.npz")
        for title, data, works in inputs():
            path.write_bytes(data)
            size = f"{len(data) / MIB:.1f} MiB" if len(data) > MIB else f"{len(data)} B"
            del data
            for name, work in works:
                command = [
                    sys.executable,
                    "-c",
                    f"WORK = {work!r}{MEASURE}",
                    str(path),
                    str(output),
                ]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                seconds, peak, outcome = done.stdout.strip().split("|", 2)
                table.add_row(title, size, name, seconds, peak, outcome)
                title = size = ""
    Console(width=None if sys.stdout.isatty() else 180).print(table)


if __name__ == "__main__":
    main()
