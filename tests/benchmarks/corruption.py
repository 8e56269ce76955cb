"""How much damage is read in silence: one byte of a file is changed, and all of it is read.

Run it in a checkout with the extra `dev` installed::

    python tests/benchmarks/corruption.py [--flips 10000] [--only npzkit] [--seed 0]

Each format saves the same arrays: weights, a grid that is compressed if the format can, and a step
of a run. Then one byte, at a random place of all these files, gets another random value. The
damaged file is read in each way that the format has, and what is read is compared with the arrays
that were saved. The byte is put back, and the next one is changed. The outcomes:

- right: the damage is not in what was read, or does not matter;
- error: any exception, or the end of the process, or no result within ten seconds;
- older: the step before the damaged one is read, with a warning;
- wrong: other arrays are read than were saved, and no error says so.

Nearly all bytes of a file are data. The second table has changes of others alone, a fifth as
many: headers, names, directories, indexes, checksums.

torch, ml_dtypes, safetensors, orbax-checkpoint, jax, zarr, h5py, dask and xarray take part if they
are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import multiprocessing
import os
import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
from corruption_formats import FORMATS, NEEDED_BY, OLDER, UNCHECKED, Piece, datasets
from data import Arrays
from npzkit.errors import NpzkitError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

SECONDS = 10
"""How long one way may take to read one file."""
RECORDS_PART = 5
"""By what the count of changes is divided in the second table."""
NOTE_COUNT = 5
OUTCOMES = ("right", "error", "older", "wrong")
PEERS = ("npzkit", "numpy", "torch", "safetensors", "orbax-checkpoint", "zarr", "h5py")
ANYWHERE, RECORDS = "any byte of the files", "only bytes that are no data of arrays"


class Place(NamedTuple):
    """A byte that is changed: the data set and the file that it is in, and by what."""

    dataset: str
    path: Path
    offset: int
    change: int

    @contextlib.contextmanager
    def flipped(self) -> Iterator[None]:
        sound = self._exchange(None)
        self._exchange(sound ^ self.change)
        try:
            yield
        finally:
            self._exchange(sound)

    def _exchange(self, value: int | None) -> int:
        """Write a value, or none; return the one that was there."""
        with open(self.path, "r+b", buffering=0) as file:
            file.seek(self.offset)
            former = file.read(1)[0]
            if value is not None:
                file.seek(self.offset)
                file.write(bytes([value]))
        return former


# -- one outcome -------------------------------------------------------------


def is_right(pieces: list[Piece], arrays: Arrays) -> bool:
    """Whether all pieces are parts of these arrays."""
    for key, index, found in pieces:
        if key not in arrays:
            return False
        values, expected = np.asarray(found), arrays[key][index]
        if (values.dtype, values.shape) != (expected.dtype, expected.shape):
            return False
        if values.tobytes() != expected.tobytes():
            return False
    return True


def outcome(format_name: str, way: str, dataset: str, path: Path) -> tuple[str, str]:
    """Read a file in one way; return one of `OUTCOMES`, and of an error how it begins."""
    arrays, pieces, error = datasets()[dataset], [], None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for piece in FORMATS[format_name].ways[way](path, arrays):
                pieces.append(piece)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as raised:  # Such is the error of torch.distributed.checkpoint.
            error = raised
        # What was read before an error was wrong in silence, if it was wrong.
        if error is not None:
            return ("error", _described(error)) if is_right(pieces, arrays) else ("wrong", "")
    if {key for key, _, _ in pieces} == arrays.keys():
        if is_right(pieces, arrays):
            return "right", ""
        if caught and is_right(pieces, datasets(OLDER)[dataset]):
            return "older", ""
    return "wrong", ""


def _described(error: BaseException) -> str:
    """Return how an error begins, unless it is npzkit's."""
    causes = [each for each, _ in getattr(error, "failures", {}).values()] or [error]
    if all(isinstance(each, NpzkitError) for each in causes):
        return ""
    return f"{type(causes[0]).__name__}: {causes[0]}"[:60]


# -- processes, which a damaged file may end ---------------------------------


class Here:
    """Reads in this process."""

    def __init__(self, format_name: str) -> None:
        self.format_name = format_name

    def outcome(self, way: str, dataset: str, path: Path) -> tuple[str, str]:
        return outcome(self.format_name, way, dataset, path)

    def close(self) -> None:
        pass


class Child(Here):
    """Reads in a process of its own, and begins another if that ends or hangs."""

    process: multiprocessing.process.BaseProcess | None = None

    def outcome(self, way: str, dataset: str, path: Path) -> tuple[str, str]:
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.connection, theirs = context.Pipe()
            self.process = context.Process(target=_serve, args=(theirs, self.format_name))
            self.process.start()
            theirs.close()
            # Imports take as long as they take.
            self.connection.recv()
        detail = "no result in time"
        try:
            self.connection.send((way, dataset, path))
            if self.connection.poll(SECONDS):
                return self.connection.recv()
        except (EOFError, ConnectionError):
            detail = "the process ended"
        self.close()
        return "error", detail

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.process = None


def _serve(connection: Connection, format_name: str) -> None:
    # What libraries write about damaged files.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for name in FORMATS[format_name].needs:
        importlib.import_module(name)
    connection.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            connection.send(outcome(format_name, *connection.recv()))


# -- where bytes are changed -------------------------------------------------


def spans(name: str, folder: Path, *, records: bool) -> list[tuple[str, Path, range]]:
    """Return which bytes of a format's files may be changed: all, or those that are no data."""
    found = []
    for dataset, arrays in datasets().items():
        for path in FORMATS[name].files(saved(folder, dataset)):
            start = 0
            if records:
                for data in sorted(FORMATS[name].data(path, arrays), key=lambda each: each.start):
                    found.append((dataset, path, range(start, data.start)))
                    start = data.stop
            found.append((dataset, path, range(start, path.stat().st_size)))
    return found


def saved(folder: Path, dataset: str) -> Path:
    return folder / dataset / "saved.npz"


def places(where: list[tuple[str, Path, range]], count: int, seed: str) -> Iterator[Place]:
    rng = random.Random(seed)
    sizes = [len(offsets) for _, _, offsets in where]
    for dataset, path, offsets in rng.choices(where, sizes, k=count):
        yield Place(dataset, path, rng.choice(offsets), rng.randrange(1, 256))


# -- a format's files, damaged and read --------------------------------------


class Counts(NamedTuple):
    """What came of the changes, by the way to read; and errors and places that need a look."""

    format_name: str
    records: bool
    ways: dict[str, Counter[str]]
    notes: Counter[str]


def ways_of(name: str) -> list[str]:
    return [way for way in FORMATS[name].ways if not missing(NEEDED_BY.get(way, ()))]


def missing(modules: Iterable[str]) -> list[str]:
    return [name for name in modules if not _is_installed(name)]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # The package that it is in.
        return False


def damage(name: str, reader: Here, folder: Path, flips: int, seed: int) -> Iterator[Counts]:
    """Change bytes of a format's files one at a time; yield the counts of both tables."""
    ways = ways_of(name)
    for dataset, arrays in datasets().items():
        path = saved(folder, dataset)
        path.parent.mkdir(parents=True)
        FORMATS[name].save(path, arrays)
        for way in ways:
            found = reader.outcome(way, dataset, path)
            assert found == ("right", ""), f"{name}, {way}, {dataset}: {found} without damage"
    for records in (False, True) if FORMATS[name].data else (False,):
        counts = Counts(name, records, {way: Counter() for way in ways}, Counter())
        where = spans(name, folder, records=records)
        count = max(flips // RECORDS_PART, 1) if records else flips
        for place in places(where, count, f"{seed} {name} {records}"):
            with place.flipped():
                for way in ways:
                    kind, detail = reader.outcome(way, place.dataset, saved(folder, place.dataset))
                    counts.ways[way][kind] += 1
                    if detail:
                        counts.notes[f"{name}, {way}: {detail}"] += 1
                    if kind == "wrong" and way not in UNCHECKED:
                        shown = f"byte {place.offset} ^ {place.change} of {place.path.name}"
                        counts.notes[f"{name}, {way}: wrong {place.dataset}, {shown}"] += 1
        yield counts


def measure(name: str, flips: int, seed: int, *, here: bool) -> list[Counts]:
    reader = Here(name) if here else Child(name)
    begin = time.monotonic()
    with contextlib.closing(reader), tempfile.TemporaryDirectory() as folder:
        found = list(damage(name, reader, Path(folder), flips, seed))
    Console(stderr=True).print(f"{time.monotonic() - begin:5.0f} s  {name}")
    return found


# -- tables ------------------------------------------------------------------


def rows(found: list[Counts]) -> Iterator[list[str]]:
    for counts in found:
        for number, (way, outcomes) in enumerate(counts.ways.items()):
            title = "" if number else counts.format_name
            yield [title, way, *(f"{outcomes[kind]:,}" for kind in OUTCOMES)]


def table(found: list[Counts], title: str) -> Table:
    made = Table("format", "read by", *OUTCOMES, title=title)
    for row in rows(found):
        made.add_row(*map(escape, row))
    return made


def markdown(found: list[Counts], title: str) -> Iterator[str]:
    titles = ["format", "read by", *OUTCOMES]
    yield f"{title}:\n"
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    for row in rows(found):
        yield f"| {' | '.join(row)} |"


def versions() -> str:
    found = []
    for name in PEERS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(found)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="how much damage is read in silence")
    parser.add_argument("--flips", type=int, default=10_000, help="bytes to change, one at a time")
    parser.add_argument("--only", action="append", metavar="FORMAT", help="or its first words")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="formats at a time")
    parser.add_argument(
        "--here", action="store_true", help="read in this process: for tests, and for debuggers"
    )
    parser.add_argument(
        "--notes", action="store_true", help="print what needs a look, of all formats"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    options = parser.parse_args(arguments)
    wanted = tuple(options.only or [""])
    names = [name for name in FORMATS if name.startswith(wanted)]
    if not names:
        parser.error(f"no such format; formats: {', '.join(FORMATS)}")
    console = Console(width=120)
    for name in list(names):
        if lacking := missing(FORMATS[name].needs):
            console.print(f"{name} is left out; not installed: {', '.join(lacking)}")
            names.remove(name)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # In one process, warnings are recorded by one thread at a time.
    with ThreadPoolExecutor(1 if options.here else options.jobs) as pool:
        run = partial(measure, flips=options.flips, seed=options.seed, here=options.here)
        found = [counts for group in pool.map(run, names) for counts in group]
    for records, title in ((False, ANYWHERE), (True, RECORDS)):
        part = [counts for counts in found if counts.records == records]
        title = f"one byte changed: {title}"
        if options.markdown:
            print("\n".join(markdown(part, title)))
        else:
            console.print(table(part, title))
        for counts in part:
            if options.notes or counts.format_name.startswith("npzkit"):
                for note, count in counts.notes.most_common(NOTE_COUNT):
                    console.print(f"{count} x {note}", style="dim", markup=False, highlight=False)
    console.print(versions())


if __name__ == "__main__":
    main()
