"""How fast arrays are uploaded to S3, by npzkit and by what else there is, and in how much memory.

``python tests/benchmarks/remote.py --upload`` runs it. A server on this machine takes the
bytes and drops them. The contenders take turns, and medians are compared:

- npzkit.save(url, arrays)
- np.savez into a file object of fsspec, ``fs.open(url, "wb")``
- s3fs's own ``fs.put(path, url)`` of an archive that was saved before: it makes none

The memory is that of a child process that uploads an archive of `gigabytes`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import npzkit
import numpy as np
from rich.console import Console
from rich.table import Table
from serving import serving

_URL = "s3://bucket/a.npz"
_ARRAY_SIZE = 64
"""MiB of one array."""

_MEMORY = """
import re, resource, sys, time
from pathlib import Path
import numpy as np, npzkit

def peak():
    # The most bytes of memory so far of this program. On Linux, getrusage also counts the one that started it.
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\\s*(\\d+)", status.read_text())[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

url, endpoint, count, size = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
array = np.random.default_rng(0).random(size << 17)
npzkit.save(url, {"a": array[:1000]}, storage_options=options)
before = peak()
begin = time.perf_counter()
with npzkit.NpzWriter(url, storage_options=options) as writer:
    for number in range(count):
        writer[f"layer{number}"] = array
print(time.perf_counter() - begin, peak() - before)
"""


def contenders(
    arrays: dict[str, Any], path: Path, options: dict[str, Any]
) -> dict[str, Callable[[], object]]:
    """Return what uploads the arrays, by name."""
    fs = fsspec.filesystem("s3", skip_instance_cache=True, **options)

    def through_fsspec() -> None:
        with fs.open(_URL, "wb") as file:
            np.savez(file, **arrays)

    return {
        "npzkit.save": lambda: npzkit.save(_URL, arrays, storage_options=options),
        "np.savez, fsspec": through_fsspec,
        "s3fs put of a file": lambda: fs.put(str(path), _URL),
    }


def seconds_of(latency: float, size: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of each contender; the first round is not counted."""
    rng = np.random.default_rng(0)
    arrays = {f"layer{i}": rng.random(_ARRAY_SIZE << 17) for i in range(size // _ARRAY_SIZE)}
    with tempfile.TemporaryDirectory() as folder, serving("store_server.py", latency) as address:
        path = Path(folder) / "a.npz"
        npzkit.save(path, arrays)
        options = {"key": "k", "secret": "s", "endpoint_url": address}
        works = contenders(arrays, path, options)
        taken: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(rounds + 1):
            for name, work in works.items():
                begin = time.perf_counter()
                work()
                taken[name].append(time.perf_counter() - begin)
                came = int(urllib.request.urlopen(f"{address}/bytes").read())
                assert came >= size << 20, f"{name} uploaded {came} bytes"
    return {name: statistics.median(found[1:]) for name, found in taken.items()}


def memory_of(gigabytes: float) -> tuple[int, float, int]:
    """Upload an archive; return its bytes, seconds, and the bytes of memory that it took."""
    with serving("store_server.py", 0) as address:
        count = round(gigabytes * 1024 / _ARRAY_SIZE)
        command = [sys.executable, "-c", _MEMORY, _URL, address, str(count), str(_ARRAY_SIZE)]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        came = int(urllib.request.urlopen(f"{address}/bytes").read())
    seconds, peak = found.split()
    return came, float(seconds), int(peak)


def main(latencies: list[float], size: int, rounds: int, gigabytes: float) -> None:
    """Print a table of speed, and a line about memory."""
    table = Table("latency", "npzkit.save", "np.savez, fsspec", "s3fs put of a file",
                  title=f"{size} MiB; x = times npzkit's")  # fmt: skip
    for latency in latencies:
        found = seconds_of(latency, size, rounds)
        ours = found["npzkit.save"]
        cells = [f"{one:.2f} s, {one / ours:.2f} x" for one in list(found.values())[1:]]
        table.add_row(f"{latency:g} ms", f"{ours:.2f} s, {size / ours:.0f} MiB/s", *cells)
    console = Console(width=120)
    console.print(table)
    if gigabytes:
        came, seconds, peak = memory_of(gigabytes)
        console.print(
            f"{came / 2**30:.2f} GiB in one archive: {seconds:.0f} s, "
            f"and {peak / 1e6:.0f} MB of memory beside the arrays"
        )
