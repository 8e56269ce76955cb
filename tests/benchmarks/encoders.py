"""What `npzkit.codecs.encoders` chooses for kinds of data, and what that is worth.

Run as ``python tests/benchmarks/encoders.py [megabytes]``. Speeds are of one
thread's processor time, the choice included. Sizes are of chunks, each on its
own, relative to one stream of zlib level 6, as np.savez_compressed writes it.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
import zlib
from collections import Counter
from pathlib import Path

from npzkit.codecs.encoders import choose_encoder, deflate_chunk
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from kinds import GOALS, KINDS, make_kind

CHUNK_SIZE = 256 << 10
SECTION_SIZE = 8 << 20
ROUNDS = 3


def by_zlib(view):
    encoder = zlib.compressobj(6, zlib.DEFLATED, -15)
    return len(encoder.compress(view)) + len(encoder.flush())


def by_choice(view, chosen, seconds):
    """Deflate section by section, and note what was chosen and the time that took."""
    size = 0
    for start in range(0, len(view), SECTION_SIZE):
        section = view[start : start + SECTION_SIZE]
        begun = time.thread_time()
        encoder = choose_encoder(section)
        seconds.append(time.thread_time() - begun)
        chosen[str(encoder)] += 1
        for offset in range(0, len(section), CHUNK_SIZE):
            last = start + offset + CHUNK_SIZE >= len(view)
            chunk = section[offset : offset + CHUNK_SIZE]
            size += len(deflate_chunk(encoder, chunk, final=last))
    return size


def measure(function, *arguments):
    begun = time.thread_time()
    size = function(*arguments)
    return time.thread_time() - begun, size


def main(megabytes=16):
    table = Table(title=f"{megabytes} MB of each kind, one core")
    for title in ("kind", "encoder"):
        table.add_column(title)
    for title in ("zlib 6 size", "size to it", "zlib 6 MB/s", "MB/s", "times", "choosing"):
        table.add_column(title, justify="right")
    times = {}
    for kind in KINDS:
        view = memoryview(make_kind(kind, megabytes << 20)).cast("B")
        reference, size, ours = by_zlib(view), 0, []
        chosen, choosing, theirs = Counter(), [], []
        # zlib takes most of the minute, so an eighth of the data gives its speed.
        part = len(view) // 8
        for round_ in range(ROUNDS):
            place = (len(view) - part) * round_ // (ROUNDS - 1)
            theirs.append(measure(by_zlib, view[place : place + part])[0] * 8)
            chosen.clear()
            seconds, size = measure(by_choice, view, chosen, choosing)
            ours.append(seconds)
        # Places differ where the data do: their mean is the whole's time.
        their_time, our_time = statistics.fmean(theirs), statistics.median(ours)
        times[kind] = their_time / our_time
        table.add_row(
            kind,
            "; ".join(f"{name} (x{count})" for name, count in chosen.items()),
            f"{reference / len(view):.3f}",
            f"{size / reference:.3f}",
            f"{len(view) / their_time / 1e6:.0f}",
            f"{len(view) / our_time / 1e6:.0f}",
            f"{times[kind]:.1f}",
            f"{sum(choosing) / ROUNDS / our_time:.0%}",
        )
    console = Console(width=140)
    console.print(table)
    mean = math.exp(statistics.fmean(math.log(times[kind]) for kind in GOALS))
    console.print(f"geometric mean of {', '.join(GOALS)}: {mean:.1f} times zlib 6 on one core")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
