"""An array that grows for ten minutes, while its writer is killed, the disk is full, and two read.

    python tests/benchmarks/growing.py FOLDER [--seconds 600] [--base 10] [--kills 20]
    python tests/benchmarks/growing.py FOLDER --speed     # rows per second, beside zarr's append

A process appends 1 MiB of rows a second to an array of 10 GiB, which is deflated zeros. It is
killed and started again twenty times, at any moment. Once, a file fills FOLDER's disk for some
seconds, so name a folder on a disk of its own, such as a tmpfs of 3 GB. Two processes read the
newest rows, and old ones, all the time. Each row has its own number in all columns: so nothing may
be lost that was committed, nothing may be there twice, and no reader may ever see anything else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import npzkit
import numpy as np

ROW_SIZE, ROWS = 1 << 10, 1 << 10
"""Bytes of a row, and rows of an append."""
COLUMNS = ROW_SIZE // 8
PART = 1 << 20
"""Rows of a part of what is there at first."""
SPEED_APPENDS = 60


def rows_from(first: int, count: int = ROWS) -> np.ndarray:
    """Return rows that have their number in each column."""
    return np.repeat(np.arange(first, first + count), COLUMNS).reshape(count, COLUMNS)


def begin(folder: Path, size: int) -> int:
    """Write the array as it is at first, and return its rows."""
    count = size // ROW_SIZE
    zeros = np.zeros((min(PART, count), COLUMNS), np.int64)
    with npzkit.ShardedWriter(folder, compression="deflated", level=1) as writer:
        for start in range(0, count, len(zeros)):
            part = zeros[: count - start]
            writer.add("log", part, (start, 0), (count, COLUMNS))
        writer.commit()
    return count


def write(folder: Path, log: Path, interval: float) -> None:
    """Append until killed; a line of `log` for each commit and each failure."""
    with log.open("ab", buffering=0) as told:
        due = time.monotonic()
        while True:
            try:
                with npzkit.ShardedWriter(folder, mode="a") as writer:
                    count = npzkit.open(folder).lazy("log").shape[0]
                    writer.append("log", rows_from(count))
                    writer.commit()
                told.write(b"%d\n" % (count + ROWS))
            except OSError as error:
                told.write(b"failed: %s\n" % str(error).encode())
            due += interval
            time.sleep(max(due - time.monotonic(), 0))


def read(folder: Path, base: int) -> None:
    """Read the newest rows and old ones until killed, and print each fault."""
    longest, count = base, 0
    while os.getppid() != 1:
        try:
            with npzkit.open(folder) as npz:
                lazy = npz.lazy("log")
                length = lazy.shape[0]
                if length < longest:
                    print(f"fault: {length} rows after {longest}", flush=True)
                longest = max(longest, length)
                for start in (max(length - ROWS, base), random.randrange(length)):
                    found = lazy[start : start + 10]
                    expected = rows_from(start, len(found))
                    expected[: max(base - start, 0)] = 0
                    if not np.array_equal(found, expected):
                        print(f"fault: rows from {start} are wrong", flush=True)
        except npzkit.errors.StaleArchiveError:
            # A commit came between; the next loop opens it again.
            pass
        except Exception as error:  # what no reader may see
            print(f"fault: {error!r}", flush=True)
        count += 1
        if count % 100 == 0:
            print(f"{count} reads", flush=True)


def started(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Fill the disk, except for some bytes, until the block ends."""
    filler = folder.parent / "filler"
    try:
        with filler.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        yield
    finally:
        filler.unlink()


def trial(parent: Path, seconds: float, size: int, kills: int) -> None:
    """Run all, and print what was found."""
    folder, log = parent / "data", parent.parent / "trial.log"
    log.unlink(missing_ok=True)
    folder.mkdir()
    base = begin(folder, size)
    readers = [started("--read", folder, "--base-rows", base) for _ in range(2)]
    writer = started("--write", folder, "--log", log, "--interval", 1)
    begun, filled = time.monotonic(), False
    for number in range(kills + 1):
        time.sleep(
            max(begun + seconds * (number + random.random()) / (kills + 1) - time.monotonic(), 0)
        )
        if number == kills // 2:
            with full_disk(folder):
                time.sleep(8)
            filled = True
        if number < kills:
            writer.kill()
            writer.wait()
            writer = started("--write", folder, "--log", log, "--interval", 1)
    time.sleep(max(begun + seconds - time.monotonic(), 0))
    for process in (writer, *readers):
        process.kill()
    lines = [line for reader in readers for line in reader.communicate()[0].splitlines()]
    report(folder, log, base, lines, filled=filled)


def report(folder: Path, log: Path, base: int, lines: list[str], *, filled: bool) -> None:
    told = log.read_text().splitlines()
    committed = [int(line) for line in told if line.isdecimal()]
    failures = [line for line in told if line.startswith("failed")]
    with npzkit.open(folder) as npz:
        lazy = npz.lazy("log")
        length = lazy.shape[0]
        right = all(
            np.array_equal(lazy[start : start + ROWS], rows_from(start))
            for start in range(base, length, ROWS)
        )
        is_sound = npz.verify().ok
    reasons = {line.partition("]")[2].partition(":")[0].strip() for line in failures}
    print(f"{len(committed)} commits, {len(failures)} failed: {', '.join(reasons)}")
    print(f"disk was full: {filled}; rows: {length - base}, last told: {committed[-1] - base}")
    print(f"nothing lost: {length >= committed[-1]}; all right: {right}; sound: {is_sound}")
    reads = [int(line.split()[0]) for line in lines if line.endswith(" reads")]
    print(f"each reader read {max(reads, default=0)} times or about so")
    print("faults:", [line for line in lines if "fault" in line])


# -- beside zarr --------------------------------------------------------------


def speed(parent: Path, size: int) -> None:
    """Print rows per second of appends of 1 MiB, each durable to readers, by turns."""
    import zarr

    count = begin(parent / "npzkit", size)
    array = zarr.create_array(
        parent / "zarr", shape=(count, COLUMNS), chunks=(ROWS, COLUMNS), dtype="i8", compressors=None
    )  # fmt: skip

    def by_npzkit(number: int) -> None:
        with npzkit.ShardedWriter(parent / "npzkit", mode="a") as writer:
            writer.append("log", rows_from(number * ROWS))
            writer.commit()

    def by_zarr(number: int) -> None:
        zarr.open_array(parent / "zarr", mode="r+").append(rows_from(number * ROWS))

    times: dict[str, list[float]] = {"npzkit": [], "zarr": []}
    for number in range(SPEED_APPENDS):
        for name, append in (("npzkit", by_npzkit), ("zarr", by_zarr)):
            times[name].append(seconds(append, number))
    assert array.shape[0] == count
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, median in medians.items():
        print(f"{name}: {ROWS / median:,.0f} rows per second, {median * 1e3:.1f} ms for an append")
    print(f"ratio: {medians['zarr'] / medians['npzkit']:.2f}")


def seconds(append: Callable[[int], None], number: int) -> float:
    begun = time.perf_counter()
    append(number)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--base", type=float, default=10, help="GiB of the array at first")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--speed", action="store_true")
    for name, kind in (
        ("read", Path),
        ("write", Path),
        ("log", Path),
        ("interval", float),
        ("base-rows", int),
    ):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read(options.read, options.base_rows)
    elif options.write:
        write(options.write, options.log, options.interval)
    else:
        parent = options.folder / "growing"
        parent.mkdir()
        try:
            size = int(options.base * (1 << 30))
            if options.speed:
                speed(parent, size)
            else:
                trial(parent, options.seconds, size, options.kills)
        finally:
            shutil.rmtree(parent)


if __name__ == "__main__":
    main()
