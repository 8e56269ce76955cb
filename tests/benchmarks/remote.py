"""How fast arrays are read over a network, by npzkit and by others, in one run.

Run it in a checkout with the extra `dev` installed::

    python tests/benchmarks/remote.py [--rounds 5] [--size 64] [--latency 0 5 20 100]
    python tests/benchmarks/remote.py --json results.json --chart remote.png --markdown
    python tests/benchmarks/remote.py --upload

A server on this machine waits before each answer. Each work begins with the URL: files are
opened again in each round. The contenders take turns, and medians are compared. npzkit
compares every CRC-32, and so does np.load; the others check nothing.

safetensors' own library reads only local files. Here its header is read with two requests and
its arrays by ranges, all at once with fsspec. zarr reads a folder by its own concurrency.

``bare`` is the requests alone, made by Python's http.client on a connection of its own: that of
a file's end, and another one for the bytes. npzkit makes and closes connections for each archive
too. fsspec keeps its own from file to file.

The server counts requests. They are those of one round, and do not depend on the latency.
`upload` measures the other direction.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import http.client
import json
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import h5py
import npzkit
import numpy as np
import safetensors.numpy
import zarr
from report import PEERS, Suite, draw
from rich.console import Console
from rich.table import Table
from rows import Result, Row
from serving import serving
from zarr.storage import FsspecStore

MANY, LARGE = "many", "large"
ROW_LENGTH = 2048
Work = Callable[[], object]


def make_files(folder: Path, size: int) -> None:
    """Write 200 arrays of 256 KiB, and one large array, in each format."""
    rng = np.random.default_rng(0)
    many = {f"layer{i}": rng.random((128, 256)) for i in range(200)}
    large = {
        "frames": rng.random((size * 64, ROW_LENGTH)),
        "a": np.ones(1),
        "b": np.ones(1),
        "c": np.ones(1),
    }
    for name, arrays in ((MANY, many), (LARGE, large)):
        npzkit.save(folder / f"{name}.npz", arrays)
        np.savez(folder / f"{name}-numpy.npz", **arrays)
        safetensors.numpy.save_file(arrays, folder / f"{name}.safetensors")
        with h5py.File(folder / f"{name}.h5", "w") as file:
            for key, array in arrays.items():
                file[key] = array
        group = zarr.open_group(folder / f"{name}.zarr", mode="w")
        for key, array in arrays.items():
            group.create_array(key, data=array, compressors=None)


# -- the contenders ----------------------------------------------------------


class Npzkit:
    """npzkit itself."""

    def __init__(self, address: str) -> None:
        self._address = address

    def list(self, name: str) -> object:
        with npzkit.open(f"{self._address}/{name}.npz") as npz:
            return [(key, npz.info(key).shape) for key in npz]

    def one(self, name: str, key: str) -> object:
        with npzkit.open(f"{self._address}/{name}.npz") as npz:
            return npz[key]

    def part(self, name: str, key: str, rows: slice) -> object:
        with npzkit.open(f"{self._address}/{name}.npz") as npz:
            return npz.lazy(key)[rows]

    def all(self, name: str) -> object:
        with npzkit.open(f"{self._address}/{name}.npz") as npz:
            return npz.load_all()


class Numpy:
    """np.load of a file object of fsspec. It reads an array completely for a part of it."""

    suffix = "-numpy.npz"

    def __init__(self, address: str) -> None:
        self._fs = fsspec.filesystem("http")
        self._address = address

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[Any]:
        with self._fs.open(f"{self._address}/{name}{self.suffix}") as file, np.load(file) as npz:
            yield npz

    def list(self, name: str) -> object:
        with self._open(name) as npz:
            return [(key, npz[key].shape) for key in npz]

    def one(self, name: str, key: str) -> object:
        with self._open(name) as npz:
            return npz[key]

    def part(self, name: str, key: str, rows: slice) -> object:
        with self._open(name) as npz:
            return npz[key][rows]

    def all(self, name: str) -> object:
        with self._open(name) as npz:
            return dict(npz)


class H5py(Numpy):
    """h5py with a file object of fsspec."""

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[Any]:
        url = f"{self._address}/{name}.h5"
        with self._fs.open(url) as file, h5py.File(file, "r") as found:
            yield found

    def list(self, name: str) -> object:
        with self._open(name) as file:
            return [(key, file[key].shape) for key in file]

    def one(self, name: str, key: str) -> object:
        with self._open(name) as file:
            return file[key][:]

    def all(self, name: str) -> object:
        with self._open(name) as file:
            return {key: file[key][:] for key in file}


class Safetensors:
    """The ranges that a safetensors header names."""

    def __init__(self, address: str) -> None:
        self._fs = fsspec.filesystem("http")
        self._address = address

    def _header(self, name: str) -> tuple[str, int, dict[str, Any]]:
        url = f"{self._address}/{name}.safetensors"
        size = int.from_bytes(self._fs.cat_file(url, start=0, end=8), "little")
        header = json.loads(self._fs.cat_file(url, start=8, end=8 + size))
        return url, 8 + size, header

    def list(self, name: str) -> object:
        _, _, header = self._header(name)
        return [(key, found["shape"]) for key, found in header.items()]

    def one(self, name: str, key: str) -> object:
        url, base, header = self._header(name)
        begin, end = header[key]["data_offsets"]
        data = self._fs.cat_file(url, start=base + begin, end=base + end)
        return np.frombuffer(data).reshape(header[key]["shape"])

    def part(self, name: str, key: str, rows: slice) -> object:
        url, base, header = self._header(name)
        begin, width = base + header[key]["data_offsets"][0], header[key]["shape"][1]
        first, last = (begin + 8 * width * row for row in (rows.start, rows.stop))
        return np.frombuffer(self._fs.cat_file(url, start=first, end=last)).reshape(-1, width)

    def all(self, name: str) -> object:
        url, base, header = self._header(name)
        spans = [(base + begin, base + end) for begin, end in
                 (found["data_offsets"] for found in header.values())]  # fmt: skip
        starts, ends = zip(*spans, strict=True)
        parts = self._fs.cat_ranges([url] * len(spans), starts, ends, batch_size=10)
        return {
            key: np.frombuffer(part).reshape(found["shape"])
            for (key, found), part in zip(header.items(), parts, strict=True)
        }


class Zarr:
    """zarr on a folder, whose pages list what is in it."""

    def __init__(self, address: str) -> None:
        self._address = address

    def _group(self, name: str) -> Any:
        return zarr.open_group(FsspecStore.from_url(f"{self._address}/{name}.zarr"), mode="r")

    def list(self, name: str) -> object:
        return [(key, array.shape) for key, array in self._group(name).arrays()]

    def one(self, name: str, key: str) -> object:
        return self._group(name)[key][:]

    def part(self, name: str, key: str, rows: slice) -> object:
        return self._group(name)[key][rows]

    def all(self, name: str) -> object:
        return {key: array[:] for key, array in self._group(name).arrays()}


class Bare:
    """The requests alone: of a file's end, and of as many bytes as are wanted."""

    _TAIL = "-65536"

    def __init__(self, address: str) -> None:
        self._address = address.removeprefix("http://")

    def _ask(self, name: str, *ranges: str) -> None:
        connection = http.client.HTTPConnection(self._address)
        for asked in ranges:
            connection.request("GET", f"/{name}.npz", headers={"Range": f"bytes={asked}"})
            connection.getresponse().read()
        connection.close()

    def list(self, name: str) -> None:
        self._ask(name, self._TAIL)

    def one(self, name: str, key: str) -> None:
        self._ask(name, self._TAIL, f"0-{(1 << 18) - 1}")

    def part(self, name: str, key: str, rows: slice) -> None:
        begin, end = (row * ROW_LENGTH * 8 for row in (rows.start, rows.stop))
        self._ask(name, self._TAIL, f"{begin}-{end - 1}")

    def all(self, name: str) -> None:
        self._ask(name, self._TAIL, "0-")


CONTENDERS = {
    "npzkit": Npzkit, "numpy": Numpy, "zarr": Zarr, "safetensors": Safetensors, "h5py": H5py,
    "bare": Bare,
}  # fmt: skip


def works(size: int) -> dict[str, Callable[[Any], object]]:
    """Return each work, as a function of a contender."""
    middle = size * 32
    rows = slice(middle, middle + max(size * 64 // 100, 1))
    return {
        "open, list 200 arrays": lambda one: one.list(MANY),
        "one array of 256 KiB": lambda one: one.one(MANY, "layer77"),
        f"1 % of {size} MiB": lambda one: one.part(LARGE, "frames", rows),
        "everything, 52 MB": lambda one: one.all(MANY),
    }


class Found(NamedTuple):
    """What was measured of one work.

    Attributes
    ----------
    latency : float
        Milliseconds.
    work : str
    seconds, requests : dict of str to float or int
        By contender.
    """

    latency: float
    work: str
    seconds: dict[str, float]
    requests: dict[str, int]


def measure(
    work: Callable[[Any], object], contenders: dict[str, Any], rounds: int, address: str
) -> tuple[dict[str, float], dict[str, int]]:
    """Return the median seconds of each contender, and its requests.

    Requests are counted in the first round, whose time does not count.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    requests = {}
    for number in range(rounds + 1):
        for name, one in contenders.items():
            # What fsspec remembers of folders would save requests.
            fsspec.filesystem("http").invalidate_cache()
            gc.collect()
            told(f"{address}/count")
            begin = time.perf_counter()
            work(one)
            taken[name].append(time.perf_counter() - begin)
            if not number:
                requests[name] = told(f"{address}/count")
    return {name: statistics.median(found[1:]) for name, found in taken.items()}, requests


def told(url: str) -> int:
    """Return the number in the server's answer, 0 if there is none."""
    with urllib.request.urlopen(url) as answer:
        return int(answer.read() or 0)


def measured(options: argparse.Namespace, known: list[Found]) -> Iterator[Found]:
    """Yield what was measured of each work, with each latency; what is known is not repeated."""
    by_name = {(found.latency, found.work): found for found in known}
    with tempfile.TemporaryDirectory() as place:
        make_files(Path(place), options.size)
        with serving("latency_server.py", place) as address:
            contenders = {name: kind(address) for name, kind in CONTENDERS.items()}
            for latency in options.latency:
                told(f"{address}/latency/{latency}")
                for title, work in works(options.size).items():
                    found = by_name.get((latency, title))
                    if found is None:
                        result = measure(work, contenders, options.rounds, address)
                        found = Found(latency, title, *result)
                    yield found


# -- tables and the chart ----------------------------------------------------

PEER_NAMES = list(CONTENDERS)[1:]


def markdown(rows: list[Found]) -> Iterator[str]:
    """Yield the lines of the guide's two tables: times, and requests."""
    titles = [PEERS[name][0] for name in PEER_NAMES]
    yield f"| latency | work | npzkit | {' | '.join(titles)} |"
    yield "|---" * (len(titles) + 3) + "|"
    for row in rows:
        ours = row.seconds["npzkit"]
        cells = [f"{ours * 1000:.1f} ms"]
        cells += [f"{row.seconds[name] / ours:.1f} x" for name in PEER_NAMES]
        yield f"| {row.latency:g} ms | {row.work} | {' | '.join(cells)} |"
    yield ""
    yield f"| requests | npzkit | {' | '.join(titles)} |"
    yield "|---" * (len(titles) + 2) + "|"
    for row in {row.work: row for row in rows}.values():
        yield f"| {row.work} | {' | '.join(str(row.requests[name]) for name in CONTENDERS)} |"


def table(rows: list[Found]) -> Table:
    """Return times, ratios and requests, for a terminal."""
    found = Table("latency", "work", *CONTENDERS, title="ms; x = times npzkit's; r = requests")
    for row in rows:
        ours = row.seconds["npzkit"]
        cells = [
            f"{row.seconds[name] * 1000:.1f}, {row.seconds[name] / ours:.1f} x, {row.requests[name]} r"
            for name in CONTENDERS
        ]
        found.add_row(f"{row.latency:g} ms", row.work, *cells)
    return found


def draw_chart(rows: list[Found], path: str) -> None:
    """Draw how many times npzkit's time each peer took, a group of bars per work and latency."""
    titles = {f"{row.latency:g} {row.work}": f"{row.latency:g} ms: {row.work}" for row in rows}
    results = [[Result(row.work, row.seconds)] for row in rows]
    suite = Suite(
        {name: Row(title, lambda place: iter(())) for name, title in titles.items()},
        {name: PEERS[name] for name in PEER_NAMES},
        lambda place: iter(()),
    )
    draw(dict(zip(titles, results, strict=True)), path, suite)


def main(arguments: list[str] | None = None) -> None:
    """Print a table, and with --markdown the guide's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, help="MiB of the large array, or of an upload")
    parser.add_argument("--latency", type=float, nargs="+", default=[0, 5, 20, 100], help="ms")
    parser.add_argument("--markdown", action="store_true", help="print the guide's tables")
    parser.add_argument("--json", help="keep results here; rows already there are not repeated")
    parser.add_argument("--chart", help="PNG to draw")
    parser.add_argument("--upload", action="store_true", help="measure uploads instead")
    parser.add_argument(
        "--gigabytes", type=float, default=5, help="of the upload whose memory is measured"
    )
    options = parser.parse_args(arguments)
    if options.upload:
        import upload

        upload.main(options.latency, options.size or 512, options.rounds, options.gigabytes)
        return
    options.size = options.size or 64
    kept = Path(options.json) if options.json else None
    known = json.loads(kept.read_text("utf-8")) if kept is not None and kept.exists() else []
    rows = []
    for row in measured(options, [Found(**found) for found in known]):
        rows.append(row)
        if kept is not None:
            text = json.dumps([found._asdict() for found in rows], indent=1)
            kept.write_text(text, encoding="utf-8")
    if options.markdown:
        print(*markdown(rows), sep="\n")
    else:
        Console(width=150).print(table(rows))
    if options.chart:
        draw_chart(rows, options.chart)


if __name__ == "__main__":
    main()
