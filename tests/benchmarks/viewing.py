"""How soon the page of `npzkit view` shows something, and how much memory its server takes.

``python tests/benchmarks/viewing.py`` runs it; ``--markdown`` prints a table for a page. It
needs what ``npzkit[view]`` installs, selenium, and Chromium with its driver.

Each archive is opened in a process of its own, three times, and medians are printed:

- until the command has printed its address
- from there until a browser shows the first picture
- from a click on a slider until the browser shows another plane
- the most memory that the process has had, without that of the files in the page cache
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import npzkit
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from browsing import Browser, browser, why_no_browser


class Result(NamedTuple):
    """Seconds, and bytes."""

    started: float
    shown: float
    moved: float
    memory: int


def stored(path: Path, gigabytes: float) -> None:
    """Write one array of images, without compression."""
    count = max(int(gigabytes * 1024), 2)
    with npzkit.NpzWriter(path) as w, w.create("frames", (count, 512, 512), "f4") as frames:
        frame = np.random.default_rng(0).random((512, 512), "f4")
        for place in range(count):
            frames[place] = frame


def compressed(path: Path, gigabytes: float) -> None:
    """Write one array of images in chunks that can be read alone."""
    count = max(int(gigabytes * 1024), 2)
    frame = np.random.default_rng(0).integers(0, 9, (1, 512, 512)).astype("f4")
    with (
        npzkit.NpzWriter(path) as w,
        w.create("frames", (None, 512, 512), "f4", compression="deflated") as frames,
    ):
        for _ in range(count):
            frames.append(frame)


def many(path: Path, count: int) -> None:
    """Write small arrays in folders of ten."""
    value = np.arange(12.0).reshape(3, 4)
    npzkit.save(path, {f"layer{i // 10}/part{i % 10}": value for i in range(count)})


def memory_of(process: int) -> int:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{process}/status")
    if not status.exists():
        return 0
    return int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1]) * 1024


def measure(page: Browser, path: Path) -> Result:
    """Open an archive in a new process, and look at it."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "npzkit", "view", "--no-browser", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()
            started = time.perf_counter()
            page.driver.get(url)
            page.until(lambda: page.run(_IS_SHOWN), 120)
            shown = time.perf_counter()
            moved = shown
            if page.value("number0", "value") is not None:
                before = page.run(_PLACE)
                moved = time.perf_counter()
                page.run("Bokeh.documents[0].get_model_by_name('number0').value = 1")
                page.until(lambda: page.run(_PLACE) != before, 60)
            end = time.perf_counter()
            memory = memory_of(process.pid)
            page.driver.get("about:blank")
        finally:
            process.terminate()
    return Result(started - begin, shown - started, end - moved if moved != shown else 0, memory)


_IS_SHOWN = """
const page = window.Bokeh?.documents?.[0]
const panes = page?.get_model_by_name("panes")
return panes?.children?.some((child) => child.children?.length) && \
  page.get_model_by_name("status").text === ""
"""
_PLACE = "return new URLSearchParams(location.search).get('at')"


def cases(folder: Path, gigabytes: float, count: int) -> Iterator[tuple[str, Path]]:
    """Yield archives with their names."""
    size = f"{gigabytes:g} GiB"
    makers: list[tuple[str, Callable[[Path], None]]] = [
        (f"one array of {size}, stored", lambda path: stored(path, gigabytes)),
        (f"one array of {size}, deflated by npzkit", lambda path: compressed(path, gigabytes)),
        (f"{count:,} arrays in folders", lambda path: many(path, count)),
    ]
    for name, make in makers:
        path = folder / "archive.npz"
        make(path)
        yield name, path
        path.unlink()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args(arguments)
    missing = why_no_browser()
    if missing is not None:
        parser.error(missing)
    heads = ("archive", "command starts", "first picture", "next plane", "memory")
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, browser() as page:
        for name, path in cases(Path(folder), options.gigabytes, options.count):
            found = [measure(page, path) for _ in range(options.rounds)]
            rows.append((name, *_texts(found)))
    _print(heads, rows, is_markdown=options.markdown)


def _texts(found: list[Result]) -> list[str]:
    median = [statistics.median(column) for column in zip(*found, strict=True)]
    times = [f"{seconds:.1f} s" if seconds else "-" for seconds in median[:3]]
    return [*times, f"{median[3] / 2**20:.0f} MiB" if median[3] else "-"]


def _print(heads: tuple[str, ...], rows: list[tuple[str, ...]], *, is_markdown: bool) -> None:
    if is_markdown:
        lines = [heads, ("---", *["---:"] * (len(heads) - 1)), *rows]
        print("\n".join(f"| {' | '.join(line)} |" for line in lines))
        return
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    main()
