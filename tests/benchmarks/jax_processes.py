"""How fast several processes of JAX save and load together: npzkit against orbax.

It needs jax and orbax-checkpoint, and runs by itself::

    python tests/benchmarks/jax_processes.py [--processes 2] [--rounds 5] [--quick]

The processes are on this machine, and their arrays are spread by rows over two devices of
each. The libraries take turns. A time is that of the slowest process, and medians are shown.
Each save makes a new folder, and no file waits for the disk. npzkit compares every CRC-32 when
it loads, orbax none.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

STATES = {"4 x 64 MiB": (4, 1 << 24), "400 x 64 KiB": (400, 1 << 14)}
"""Arrays, and float32 numbers of each."""
QUICK_SIZE = 1 << 10


def measure(
    number: int, count: int, address: str, folder: Path, rounds: int, is_quick: bool
) -> None:
    """Measure in one process of the job; the first one prints the table."""
    import jax
    import numpy as np

    jax.config.update("jax_num_cpu_devices", 2)
    jax.distributed.initialize(address, count, number, cluster_detection_method="deactivate")
    from jax.experimental import multihost_utils

    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))

    def slowest(work: Callable[[], Any]) -> float:
        multihost_utils.sync_global_devices("begin")
        start = time.perf_counter()
        jax.block_until_ready(work())
        own = np.array(time.perf_counter() - start)
        return float(multihost_utils.process_allgather(own).max())

    compared = libraries()
    for title, (arrays, size) in STATES.items():
        size = min(size, QUICK_SIZE) if is_quick else size
        block = np.random.default_rng(0).random((64, size // 64), np.float32)
        tree = {
            f"w{n}": jax.make_array_from_callback(block.shape, rows, block.__getitem__)
            for n in range(arrays)
        }
        form = jax.ShapeDtypeStruct(block.shape, block.dtype, sharding=rows)
        like = dict.fromkeys(tree, form)
        times: dict[tuple[str, str], list[float]] = {}
        for turn in range(rounds + 1):
            for name, (save, load) in compared.items():
                path = folder / f"{name}-{turn}"
                found = slowest(partial(save, path, tree)), slowest(partial(load, path, like))
                for what, seconds in zip(("save", "load"), found, strict=True):
                    # The first turn compiles, and gets memory.
                    times.setdefault((what, name), []).extend([seconds] * (turn > 0))
                if number == 0:
                    shutil.rmtree(path)
        for what in ("save", "load") if number == 0 else ():
            middle = {name: statistics.median(times[what, name]) for name in compared}
            shown = ", ".join(f"{name} {1000 * each:.1f} ms" for name, each in middle.items())
            ratio = middle["orbax"] / middle["npzkit"]
            print(f"{what} {title}: {shown}; {ratio:.2f} times as fast", flush=True)


def libraries() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Return how each library saves and loads."""
    import npzkit
    import orbax.checkpoint

    def save_orbax(path: Path, tree: Any) -> None:
        checkpointer.save(path, tree)
        checkpointer.wait_until_finished()

    checkpointer = orbax.checkpoint.StandardCheckpointer()
    return {
        "npzkit": (npzkit.save, lambda path, like: npzkit.load_tree(path, like=like)),
        "orbax": (save_orbax, checkpointer.restore),
    }


def main(arguments: list[str] | None = None) -> None:
    """Start the processes, and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--job", nargs=3, metavar=("NUMBER", "ADDRESS", "FOLDER"))
    options = parser.parse_args(arguments)
    if options.job:
        number, address, folder = options.job
        measure(
            int(number), options.processes, address, Path(folder), options.rounds, options.quick
        )
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, __file__, *(sys.argv[1:] if arguments is None else arguments)]
    with tempfile.TemporaryDirectory() as folder:
        job = [
            subprocess.Popen([*command, "--job", str(number), address, folder])
            for number in range(options.processes)
        ]
        codes = [process.wait() for process in job]
    assert not any(codes), codes


if __name__ == "__main__":
    main()
