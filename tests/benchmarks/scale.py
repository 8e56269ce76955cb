"""What one step of a checkpoint costs at a given number of workers, by calculation.

    python tests/benchmarks/scale.py --workers 1000 --tensors 400 --size 100e9

Each worker saves its part of every tensor into one shard of a store. The index of these
parts is really made and parsed; requests are counted from the rules of uploads.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
from npzkit.datasets.index import ArrayRow, PartRow
from npzkit.datasets.index_format import format_index, parse_index
from npzkit.datasets.shard_names import ShardRecord, shard_name
from npzkit.stores.upload_sink import GROWTH, PART_SIZE

_LISTED_COUNT = 1000
"""Objects in one page of a listing of S3."""


def upload_requests(size: int) -> int:
    """Return the requests that upload one object: one, or begin, parts and completion."""
    if size < PART_SIZE:
        return 1
    parts, part = 0, PART_SIZE
    while size > 0:
        count = min(GROWTH, math.ceil(size / part))
        parts += count
        size -= count * part
        part *= 2
    return 2 + parts


def index_of(workers: int, tensors: int, size: int) -> bytes:
    """Return the index of float32 matrices that are cut into a part of rows per worker."""
    columns = 1024
    rows = max(size // (4 * columns * tensors * workers), 1)
    shards = [
        ShardRecord(shard_name("attempt", f"{worker:08x}", 0), tensors * rows * columns * 4, worker)
        for worker in range(workers)
    ]
    arrays = [
        ArrayRow(
            f"model.layers.{tensor}.weight", (rows * workers, columns), np.dtype("<f4"), None, False, {},
            tuple(
                PartRow(
                    worker, f"model.layers.{tensor}.weight", (rows * worker, 0), (rows, columns),
                    4 * rows * columns, 0x9E3779B9 * (worker + tensor) % (1 << 32), 0,
                )
                for worker in range(workers)
            ),
        )
        for tensor in range(tensors)
    ]  # fmt: skip
    return format_index("attempt", {}, shards, arrays)


def report(workers: int, tensors: int, size: int) -> list[tuple[str, str]]:
    """Return what a step costs: names and values."""
    began = time.perf_counter()
    index = index_of(workers, tensors, size)
    formatted = time.perf_counter()
    parse_index(index)
    parsed = time.perf_counter()
    shard = size // workers
    requests = upload_requests(shard)
    commit = math.ceil((workers + 1) / _LISTED_COUNT) + 3 + upload_requests(len(index))
    return [
        ("objects", f"{workers + 1:,}"),
        ("bytes of a worker's shard", f"{shard:,}"),
        ("requests of a worker to save", f"{requests:,}"),
        ("requests of all workers to save", f"{workers * requests:,}"),
        ("requests of the commit", f"{commit:,}"),
        ("requests to remove the step before", f"{workers:,}"),
        ("bytes of the index", f"{len(index):,}"),
        ("bytes of the index for each part", f"{len(index) / (workers * tensors):.1f}"),
        ("seconds to make the index", f"{formatted - began:.1f}"),
        ("seconds to parse the index", f"{parsed - formatted:.1f}"),
    ]


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--tensors", type=int, default=400)
    parser.add_argument("--size", type=float, default=100e9, help="bytes of all tensors")
    options = parser.parse_args()
    for name, value in report(options.workers, options.tensors, int(options.size)):
        print(f"{name:36} {value:>16}")


if __name__ == "__main__":
    main()
