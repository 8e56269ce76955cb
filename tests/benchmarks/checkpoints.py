"""How fast checkpoints are saved and loaded: npzkit against other libraries, in one run.

It needs torch, safetensors and ml_dtypes; orbax takes part if it is installed with jax, and
the row of S3 needs moto's server and s3fs::

    python tests/benchmarks/checkpoints.py [--rounds 7] [--only save] [--json results.json]
    python tests/benchmarks/checkpoints.py --reuse    # would it pay to link what did not change?

The options are those of `bench`, and so is the way to measure: the libraries take
turns, caches and memory are warm, and medians are compared. Each save makes new files, and no
file waits for the disk unless the row says so. ``bare`` is the system calls alone. npzkit
compares every CRC-32 when it loads. Other libraries compare none.

A run that resumes loads once: rows "in a new process" begin one for each load, which has
loaded a small checkpoint before the clock counts. Rows "again" load many times in one process,
where allocators give out memory that was used before.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import bench
import npzkit
import numpy as np
from libraries import MISSING, Library, libraries, state_of, warm_memory, zeros
from npzkit.checkpoint import CheckpointStore
from report import Suite
from rows import Aim, Row, ahead, seconds, time_over
from works import Place, Work

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from s3 import HAS_S3, counted_uploads, s3_server

STEP_COUNT = 1000
LEAF_COUNT = 100_000
PEERS = {
    "torch": ("torch.save", "#ee6677"), "safetensors": ("safetensors", "#228833"),
    "DCP": ("torch DCP", "#ccbb44"), "orbax": ("orbax", "#66ccee"),
    "everything": ("npzkit, everything", "#aa3377"), "bare": ("bare", "#bbbbbb"),
}  # fmt: skip
STATES = {
    "large": "4 x 64 MiB", "real": "400 tensors of a transformer and AdamW",
    "frozen": "1 GiB frozen and 16 MiB trained",
}  # fmt: skip
S3_STATE = "64 MiB frozen and 4 MiB trained"
APART = "16 MiB and a CRC-32"
"""A save of what is trained, and the CRC-32s of what is frozen."""


def works(kind: str, name: str, place: Place, *, is_new: bool = False) -> Iterator[Work]:
    """Yield one piece of work, by all libraries that can do it; in new processes on request."""
    found = [library for library in libraries(place, kind) if hasattr(library, name)]
    for library in found:
        if name.startswith(("load", "map")):
            library.save()  # type: ignore[attr-defined]
        if name == "load_into":
            library.into = state_of(zeros(library.into.tensors))
        if is_new:
            library.unlock()
    make = partial(NewProcess, kind=kind, divisor=place.divisor) if is_new else contender
    contenders = {library.name: make(library, name) for library in found}
    if name == "load_part":
        contenders["everything"] = make(found[0], "load_everything")
    yield Work(STATES[kind], contenders)
    for library in found:
        library.close()


_RESUME = """
import gc, sys, tempfile, time
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
import libraries
folder, kind, name, state_kind, divisor = sys.argv[2:]
def there(folder, state):
    return getattr(libraries, kind)(Path(folder), state)
with tempfile.TemporaryDirectory() as small:
    first = there(small, libraries.state(state_kind, int(divisor) * libraries.SMALL))
    first.save()
    getattr(first, name)()
    first.unlock()
library = there(folder, libraries.example(state_kind, int(divisor)))
libraries.warm_memory(2 * library.state.size)
gc.collect()
begin = time.perf_counter()
loaded = getattr(library, name)()
print(time.perf_counter() - begin)
"""


class NewProcess:
    """A library's load in a process of its own, which tells how long it took.

    Attributes
    ----------
    seconds : float
        Of the last call.
    """

    def __init__(self, library: Library, name: str, kind: str, divisor: int) -> None:
        self._arguments = library.path.parent, type(library).__name__, name, kind, divisor

    def __call__(self) -> None:
        self.seconds = printed_by(_RESUME, *self._arguments)


def printed_by(code: str, *arguments: object) -> float:
    """Run code in a process of its own, and return the number that it prints last."""
    given = map(str, (Path(__file__).parent, *arguments))
    command = [sys.executable, "-W", "ignore", "-c", code, *given]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(found.stdout.split()[-1])


def contender(library: Library, name: str) -> Callable[[], object]:
    """Return a method of a library, which saves where nothing is."""
    method = getattr(library, name)

    def run() -> object:
        return method()

    def before() -> None:
        if not name.startswith(("load", "map")):
            library.clear()
        warm_memory(2 * library.state.size)

    run.before = before  # type: ignore[attr-defined]
    if name == "begin":
        run.after = library.wait  # type: ignore[attr-defined]
    return run


def steps(place: Place) -> Iterator[Work]:
    folder = place.folder / "many"
    folder.mkdir()
    store = CheckpointStore(folder)
    for step in range(place.part(STEP_COUNT)):
        Path(store.path(step)).touch()
    yield Work("steps", {"npzkit": lambda: store.steps})


def part_of_many(place: Place) -> Iterator[Work]:
    """Yield a part of a structure of many arrays and many values."""
    kinds = {
        "values": lambda i: {"lr": i, "name": str(i), "decay": [i, None]},
        "arrays": lambda i: {name: np.full(2, i) for name in ("w", "b", "m", "v")},
    }
    for name, layer in kinds.items():
        store = CheckpointStore(place.folder / name, durable=False)
        count = place.part(LEAF_COUNT) // 4
        store.save(1, {"net": {f"layer{i}": layer(i) for i in range(count)}})
        yield Work(
            f"{place.part(LEAF_COUNT):,} {name}",
            {
                "npzkit": lambda store=store: store.load(only="net/layer1/*").tree,
                "everything": lambda store=store: store.load() and None,
            },
        )
        store.close()


def frozen(place: Place, name: str) -> Iterator[Work]:
    """Yield the save of a step of which most is frozen. Other libraries save all of it."""
    found = list(libraries(place, "frozen"))
    ours: Any = found[0]
    ours.save_next(step=0)
    before = disk_usage(ours.path)
    ours.save_next()
    # The folder grows by what is not frozen.
    assert disk_usage(ours.path) - before < ours.state.tree["head"].nbytes + (1 << 16)
    contenders = {library.name: contender(library, "save") for library in found}
    contenders["npzkit"] = contender(ours, name)
    contenders["everything"] = contender(ours, "save")
    contenders[APART] = contender(ours, "save_apart")
    yield Work(STATES["frozen"], contenders)
    for library in found:
        library.close()


def frozen_on_s3(place: Place) -> Iterator[Work]:
    """Yield the same on S3, by npzkit alone, and say what is sent. The server is of Python."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    backbone = {f"layer{i}": np.ones(place.part(1 << 22), "f4") for i in range(4)}
    state = {"backbone": backbone, "head": np.ones(place.part(1 << 20), "f4")}
    with (
        s3_server() as options,
        counted_uploads() as sent,
        CheckpointStore("s3://data/measured", storage_options=options) as store,
    ):

        def save(step: int, frozen: str | None) -> int:
            sent.clear()
            store.save(step, state, frozen=frozen)
            return sum(sent)

        complete, change = (save(step, "backbone/*") for step in range(2))
        # A step sends what is not frozen.
        assert change < state["head"].nbytes + (1 << 16)
        print(f"{change / 2**20:.3f} MiB are sent, of a step of {complete / 2**20:.3f} MiB")
        contenders = {
            "npzkit": partial(save, 1, "backbone/*"),
            "everything": partial(save, 1, None),
        }
        yield Work(S3_STATE, contenders)


def disk_usage(folder: Path) -> int:
    """Return the bytes of the files in a folder, each once."""
    found = {path.stat().st_ino: path.stat().st_size for path in folder.rglob("*")}
    return sum(found.values())


def row(title: str, kind: str, name: str, *aims: Aim, is_new: bool = False) -> Row:
    return Row(f"{title}, {STATES[kind]}", partial(works, kind, name, is_new=is_new), aims)


LOADING = ahead("torch", 1.5), ahead("safetensors", 1)


ROWS = {
    "save-large": row("save", "large", "save", ahead("torch", 2), ahead("safetensors", 1)),
    "save-real": row("save", "real", "save", ahead("torch", 2), ahead("safetensors", 1)),
    "frozen": Row(
        f"save, {STATES['frozen']}", partial(frozen, name="save_next"), (time_over(APART, 1.3),)
    ),
    "frozen-unchecked": Row(
        f"save with check=False, {STATES['frozen']}", partial(frozen, name="save_next_unchecked"),
        (time_over(APART, 1),),
    ),
    "durable-large": row("save and wait for the disk", "large", "save_durably"),
    "durable-real": row("save and wait for the disk", "real", "save_durably"),
    "begin-large": row("begin to save in the background", "large", "begin", time_over("torch", 1 / 3)),
    "begin-real": row("begin to save in the background", "real", "begin", time_over("torch", 1 / 3)),
    "load-large": row("load in a new process", "large", "load", *LOADING, is_new=True),
    "load-real": row("load in a new process", "real", "load", *LOADING, is_new=True),
    "again-large": row("load again", "large", "load", *LOADING),
    "again-real": row("load again", "real", "load", *LOADING),
    "into-large": row("load into tensors", "large", "load_into"),
    "into-real": row("load into tensors", "real", "load_into"),
    "map-large": row("map", "large", "map"),
    "map-real": row("map", "real", "map"),
    "part": row(
        "load 1 % in a new process", "real", "load_part", time_over("everything", 0.05), is_new=True
    ),
    "part-again": row("load 1 % again", "real", "load_part", time_over("everything", 0.05)),
    "part-many": Row(
        f"load one layer of {LEAF_COUNT:,} leaves", part_of_many, (time_over("everything", 0.75),)
    ),
    "steps": Row(f"list {STEP_COUNT:,} steps", steps, (seconds(0.005),)),
}  # fmt: skip

if HAS_S3:
    ROWS["frozen-s3"] = Row(f"save to a server of S3, {S3_STATE}", frozen_on_s3)


# -- memory ------------------------------------------------------------------

_PEAK = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from libraries import Npzkit, state
folder, name, divisor = sys.argv[2:]
def kilobytes(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))
there = Npzkit(Path(folder), state("large", int(divisor)))
Path("/proc/self/clear_refs").write_text("5")
before = kilobytes("VmRSS")
result = getattr(there, name)()
if name == "begin":
    there.wait()
print((kilobytes("VmHWM") - before) * 1024 / there.state.size)
"""


def memory(place: Place) -> Iterator[tuple[str, str, str]]:
    """Yield npzkit's largest memory beside the tensors, in processes of their own."""
    titles = {
        "save": "save", "begin": "save in the background", "load": "load by an example",
        "load_into": "load into tensors",
    }  # fmt: skip
    library = next(libraries(place, "large"))
    library.save()  # type: ignore[attr-defined]
    library.unlock()
    for name, title in titles.items():
        peak = printed_by(_PEAK, library.path.parent, name, place.divisor)
        yield (
            f"peak memory to {title}, beside the tensors that are there",
            f"{peak:.2f} of their size",
            "1.02",
        )
    library.close()


# -- reuse -------------------------------------------------------------------

REUSED_COUNT, REUSED_SIZE = 8, 32 << 20


def reuse(place: Place, rounds: int) -> dict[str, float]:
    """Return how many times the time of saving it takes to find that nothing has changed.

    A step that links to the former one needs a proof that they are equal: the bytes, or a
    hash of 128 bits, which the former step would have kept.
    """
    size = place.part(REUSED_SIZE)
    rng = np.random.default_rng(0)
    arrays = {f"w{i}": rng.integers(0, 256, size, np.uint8) for i in range(REUSED_COUNT)}
    former, new = place.paths("former.npz", "new.npz")
    npzkit.save(former, arrays)

    def save() -> None:
        npzkit.save(new, arrays)

    def compare_with_map() -> None:
        with npzkit.open(former) as npz:
            assert all(np.array_equal(npz.memmap(key), array) for key, array in arrays.items())

    def compare_with_read() -> None:
        with npzkit.open(former) as npz:
            assert all(np.array_equal(npz.read(key), array) for key, array in arrays.items())

    def digest() -> None:
        for array in arrays.values():
            hashlib.blake2b(array, digest_size=16).digest()

    ways = {
        "save": save, "compare through a map": compare_with_map,
        "read and compare": compare_with_read, "hash to 128 bits": digest,
    }  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            new.unlink(missing_ok=True)
            warm_memory(2 * REUSED_COUNT * size)
            seconds[name].append(bench.timed(way)[0])
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    return {name: found / medians["save"] for name, found in medians.items()}


def show_reuse(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--reuse", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), bench.QUICK if options.quick else 1)
        for name, ratio in reuse(place, options.rounds).items():
            print(f"{name:24} {ratio:6.2f} times the time of a save")


CHECKPOINTS = Suite(ROWS, PEERS, memory)


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--reuse" in arguments:
        show_reuse(arguments)
        return
    if MISSING:
        raise SystemExit(f"this needs more packages: python -m pip install {' '.join(MISSING)}")
    if not HAS_S3:
        print("no row of S3: python -m pip install 'moto[server]' s3fs")
    bench.main(arguments, CHECKPOINTS)


if __name__ == "__main__":
    main()
