"""The pieces of work that `bench` measures: data, files and contenders."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import h5py
import npzkit
import numpy as np
import safetensors
import safetensors.numpy
import zarr

MIB = 1 << 20
LARGE = "4 x 64 MiB"
SMALL = "10,000 x 1 KiB"


class Work(NamedTuple):
    """One row: who does it, and by how much npzkit is to be ahead of whom.

    Of the works of one group the chart shows the mean.
    """

    title: str
    contenders: dict[str, Callable[[], object]]
    goals: dict[str, float] = {}  # noqa: RUF012 - never changed
    group: str = ""


def large_arrays() -> dict[str, np.ndarray]:
    """Four arrays of 64 MiB."""
    rng = np.random.default_rng(0)
    return {f"a{i}": rng.random(8 * MIB) for i in range(4)}


def small_arrays(count: int = 10_000, size: int = 128) -> dict[str, np.ndarray]:
    """Many arrays, of 1 KiB by default."""
    rng = np.random.default_rng(0)
    return {f"layer{i}/weight": rng.random(size) for i in range(count)}


def weights(size: int) -> np.ndarray:
    """Real float32 weights: noise around zero."""
    return (np.random.default_rng(0).standard_normal(size // 4) * 0.02).astype("f4")


def compressible(size: int) -> dict[str, np.ndarray]:
    """Six kinds of array as people compress them, of `size` bytes each."""
    rng = np.random.default_rng(0)
    return {
        "float32 weights": weights(size),
        "int32": rng.integers(0, 5000, size // 4).astype("i4"),
        "running sums": np.cumsum(rng.integers(0, 100, size // 8)),
        "sparse": np.where(rng.random(size // 8) < 0.05, rng.standard_normal(size // 8), 0),
        "labels": rng.integers(0, 10, size).astype("u1"),
        "smooth float64": np.sin(np.arange(size // 8) / 1e4),
    }


# -- contenders --------------------------------------------------------------


def load_numpy(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as npz:
        return {key: npz[key] for key in npz.files}


def load_npzkit(path: Path) -> dict[str, np.ndarray]:
    with npzkit.open(path) as npz:
        return npz.load_all()


def first_numpy(path: Path, key: str) -> np.ndarray:
    with np.load(path) as npz:
        return npz[key]


def first_npzkit(path: Path, key: str) -> np.ndarray:
    with npzkit.open(path) as npz:
        return npz[key]


def first_safetensors(path: Path, key: str) -> np.ndarray:
    with safetensors.safe_open(path, "numpy") as file:
        return file.get_tensor(key)


def save_h5py(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key] = array


def load_h5py(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {key: file[key][...] for key in file}


def save_zarr(path: Path, arrays: dict[str, np.ndarray]) -> None:
    group = zarr.open_group(path, mode="w")
    for key, array in arrays.items():
        group.create_array(key, data=array, chunks=(MIB,), compressors=None)


def load_zarr(path: Path) -> dict[str, np.ndarray]:
    group = zarr.open_group(path, mode="r")
    return {key: array[...] for key, array in group.arrays()}


def bare_read(path: Path, offsets: list[tuple[int, np.ndarray]]) -> dict[str, np.ndarray]:
    """Parallel preadv into fresh arrays, and nothing else: what no reader can beat."""
    from concurrent.futures import ThreadPoolExecutor

    arrays = {f"a{i}": np.empty_like(like) for i, (_, like) in enumerate(offsets)}
    descriptor = os.open(path, os.O_RDONLY)

    def read(place: tuple[memoryview, int]) -> None:
        view, offset = place
        for start in range(0, len(view), MIB):
            os.preadv(descriptor, [view[start : start + MIB]], offset + start)

    places = [
        (array.view("u1").data[start : start + 16 * MIB], offset + start)
        for (offset, _), array in zip(offsets, arrays.values(), strict=True)
        for start in range(0, array.nbytes, 16 * MIB)
    ]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        list(executor.map(read, places))
    os.close(descriptor)
    return arrays


def bare_write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Room reserved and filled, and nothing else: what no writer can beat."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.posix_fallocate(descriptor, 0, sum(array.nbytes for array in arrays.values()))
    offset = 0
    for array in arrays.values():
        offset += os.pwrite(descriptor, array.data.cast("B"), offset)
    os.close(descriptor)


def fresh(path: Path, save: Callable[[], object]) -> Callable[[], object]:
    """Save to a path where nothing is: the old file's removal is not timed."""

    def run() -> object:
        return save()

    def before() -> None:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    run.before = before  # type: ignore[attr-defined]
    return run


# -- works -------------------------------------------------------------------


def load_works(folder: Path) -> Iterator[Work]:
    """All arrays of a stored archive, CRC checked by npzkit and NumPy."""
    ours, theirs, tensors = folder / "k.npz", folder / "n.npz", folder / "s.st"
    for title, arrays, goals in (
        (LARGE, large_arrays(), {"numpy": 4, "safetensors": 3, "bare": 1 / 1.15}),
        (SMALL, small_arrays(), {"numpy": 20, "safetensors": 1.5}),
    ):
        npzkit.save(ours, arrays)
        np.savez(theirs, **arrays)
        safetensors.numpy.save_file(arrays, tensors)
        contenders = {
            "npzkit": lambda: load_npzkit(ours),
            "numpy": lambda: load_numpy(theirs),
            "safetensors": lambda: safetensors.numpy.load_file(tensors),
        }
        if title == LARGE:  # h5py and zarr take seconds for thousands
            save_h5py(folder / "a.h5", arrays)
            save_zarr(folder / "a.zarr", arrays)
            contenders["h5py"] = lambda: load_h5py(folder / "a.h5")
            contenders["zarr"] = lambda: load_zarr(folder / "a.zarr")
            with npzkit.open(ours) as npz:
                places = [(npz.info(key).data_offset, arrays[key]) for key in npz]
            contenders["bare"] = lambda places=places: bare_read(ours, places)
        yield Work(f"load all, {title}", contenders, goals)
        foreign = {name: contenders[name] for name in ("npzkit", "numpy")}
        foreign["npzkit"] = lambda: load_npzkit(theirs)
        yield Work(f"load all, {title}, np.savez's file", foreign)


def open_works(folder: Path) -> Iterator[Work]:
    """One array of many."""
    ours, theirs, tensors = folder / "k.npz", folder / "n.npz", folder / "s.st"
    for title, arrays, ahead in (
        ("10,000 x 1 KiB", small_arrays(), 5),
        ("100,000 x 64 B", small_arrays(100_000, 8), 4.5),
    ):
        npzkit.save(ours, arrays)
        np.savez(theirs, **arrays)
        safetensors.numpy.save_file(arrays, tensors)
        key = list(arrays)[len(arrays) // 2]
        yield Work(
            f"open and read one of {title}",
            {
                "npzkit": lambda key=key: first_npzkit(ours, key),
                "numpy": lambda key=key: first_numpy(theirs, key),
                "safetensors": lambda key=key: first_safetensors(tensors, key),
            },
            {"numpy": ahead, "safetensors": 1.5},
        )


def save_works(folder: Path) -> Iterator[Work]:
    """Stored, to a path where nothing is."""
    k, n, s, h5, z, b = (folder / name for name in ("k.npz", "n.npz", "s.st", "s.h5", "s.z", "b"))
    for title, arrays, goals in (
        (LARGE, large_arrays(), {"numpy": 3, "safetensors": 1, "bare": 1 / 1.2}),
        (SMALL, small_arrays(), {"numpy": 10}),
    ):
        contenders = {
            "npzkit": fresh(k, lambda a=arrays: npzkit.save(k, a)),
            "numpy": fresh(n, lambda a=arrays: np.savez(n, **a)),
            "safetensors": fresh(s, lambda a=arrays: safetensors.numpy.save_file(a, s)),
        }
        if title == LARGE:
            contenders["h5py"] = fresh(h5, lambda a=arrays: save_h5py(h5, a))
            contenders["zarr"] = fresh(z, lambda a=arrays: save_zarr(z, a))
            contenders["bare"] = fresh(b, lambda a=arrays: bare_write(b, a))
        yield Work(f"save, fresh file, {title}", contenders, goals)


def append_npzkit(path: Path, array: np.ndarray, durable: bool = False) -> None:
    with npzkit.NpzWriter(path, mode="a", auto_repack=False, durable=durable) as w:
        w["new"] = array


def append_zipfile(path: Path, array: np.ndarray) -> None:
    with zipfile.ZipFile(path, "a") as archive, archive.open("new.npy", "w") as member:
        np.lib.format.write_array(member, array)


def restored(path: Path, append: Callable[[], object]) -> Callable[[], object]:
    """Append to a file that is as it was before: cutting it back is not timed."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - 20 * MIB, 0))
        start, tail = file.tell(), file.read()

    def before() -> None:
        with path.open("r+b") as file:
            file.seek(start)
            file.write(tail)
            file.truncate()

    def run() -> object:
        return append()

    run.before = before  # type: ignore[attr-defined]
    return run


def append_works(folder: Path) -> Iterator[Work]:
    """One array more in an archive that is there; the title says what is written for it."""
    ours, theirs = folder / "k.npz", folder / "z.npz"
    for title, arrays, added in (
        ("1 MiB to 300 MiB", {f"a{i}": np.ones(MIB // 8 * 10) for i in range(30)}, MIB // 8),
        ("1 KiB to 10,000 x 1 KiB", small_arrays(), 128),
        ("1 KiB to 100,000 x 64 B", small_arrays(100_000, 8), 128),
    ):
        npzkit.save(ours, arrays)
        shutil.copy(ours, theirs)
        array, size = np.ones(added), ours.stat().st_size
        contenders = {
            "npzkit": restored(ours, lambda a=array: append_npzkit(ours, a)),
            "zipfile": restored(theirs, lambda a=array: append_zipfile(theirs, a)),
        }
        contenders["npzkit"]()
        written = ours.stat().st_size - size
        contenders["npzkit"].before()
        yield Work(f"append {title}, {written / MIB:.2f} MiB written", contenders, {"zipfile": 1})


def deflate_works(folder: Path) -> Iterator[Work]:
    """Saving deflated: speed, and size against np.savez_compressed's."""
    ours, theirs = folder / "k.npz", folder / "n.npz"
    for size in (1, 16, 128):
        for title, array in compressible(size * MIB).items():
            if size == 128 and title not in ("float32 weights", "sparse"):
                continue  # NumPy takes a minute for the six
            npzkit.savez_compressed(ours, a=array)
            np.savez_compressed(theirs, a=array)
            ratio = ours.stat().st_size / theirs.stat().st_size
            yield Work(
                f"save deflated, {size} MiB {title}, {ratio:.3f} of the size",
                {
                    "npzkit": fresh(ours, lambda a=array: npzkit.savez_compressed(ours, a=a)),
                    "numpy": fresh(theirs, lambda a=array: np.savez_compressed(theirs, a=a)),
                },
                {"numpy": 3},
                f"save deflated, {size} MiB, {'two' if size == 128 else 'six'} kinds",
            )


def inflate_works(folder: Path) -> Iterator[Work]:
    """Loading deflated: npzkit's own file, np.savez_compressed's of four members and of one."""
    own, four, one = folder / "own.npz", folder / "four.npz", folder / "one.npz"
    for kind in ("float32 weights", "int32", "running sums"):
        array = compressible(16 * MIB)[kind]
        arrays = {f"a{i}": np.roll(array, i) for i in range(4)}
        npzkit.savez_compressed(own, **arrays)
        np.savez_compressed(four, **arrays)
        np.savez_compressed(one, a=array)
        for title, ours, theirs, ahead in (
            ("own file of four", own, four, 3.2),
            ("np.savez_compressed's of four", four, four, 2.5),
            ("np.savez_compressed's of one", one, one, 1.4),
        ):
            yield Work(
                f"load deflated {kind}, {title}",
                {
                    "npzkit": lambda ours=ours: load_npzkit(ours),
                    "numpy": lambda theirs=theirs: load_numpy(theirs),
                },
                {"numpy": ahead},
                f"load deflated, 16 MiB each, {title}",
            )
    small = small_arrays()
    npzkit.savez_compressed(own, **small)
    np.savez_compressed(four, **small)
    yield Work(
        f"load deflated {SMALL}",
        {"npzkit": lambda: load_npzkit(own), "numpy": lambda: load_numpy(four)},
    )


def slice_works(folder: Path) -> Iterator[Work]:
    """One per cent of 128 MiB, compressed: opened, and again from an open archive."""
    array = weights(128 * MIB)
    size = len(array) // 100
    starts = itertools.cycle(range(len(array) // 20, len(array) - size, len(array) // 7))
    own, foreign, h5, z = (folder / name for name in ("k.npz", "n.npz", "slice.h5", "slice.zarr"))
    npzkit.savez_compressed(own, a=array)
    np.savez_compressed(foreign, a=array)
    with h5py.File(h5, "w") as file:
        file.create_dataset("a", data=array, chunks=(MIB // 4,), compression="gzip")
    zarr.create_array(z, data=array, chunks=(MIB // 4,))

    def slice_npzkit(part: slice) -> np.ndarray:
        with npzkit.open(own) as npz:
            return npz.lazy("a")[part]

    def slice_h5py(part: slice) -> np.ndarray:
        with h5py.File(h5) as file:
            return file["a"][part]

    def turns(read: Callable[[slice], np.ndarray], first: bool = False) -> Callable[[], object]:
        """Have all contenders of a round read the same part, another each round."""

        def run() -> np.ndarray:
            if first:
                turn[0] = slice(start := next(starts), start + size)
            return read(turn[0])

        return run

    turn = [slice(0, size)]
    yield Work(
        "slice 1 % of 128 MiB deflated float32",
        {
            "npzkit": turns(slice_npzkit, first=True),
            "numpy": turns(lambda part: first_numpy(foreign, "a")[part]),
            "h5py": turns(slice_h5py),
            "zarr": turns(lambda part: zarr.open_array(z, mode="r")[part]),
        },
        {"numpy": 200, "h5py": 4, "zarr": 1.3},
    )
    npz = npzkit.open(foreign)
    npz.lazy("a")[-1]
    yield Work(
        "the same of np.savez_compressed's file, second slice",
        {
            "npzkit": turns(lambda part: npz.lazy("a")[part], first=True),
            "numpy": turns(lambda part: first_numpy(foreign, "a")[part]),
        },
        {"numpy": 50},
    )
    npz.close()


_NUMPY_STATISTICS = "import numpy as np; a = np.load({path!r})['a']; print({wanted})"
_WANTED = {"mean": "a.mean()", "min, max, mean, std": "a.min(), a.max(), a.mean(), a.std()"}


def statistics_works(folder: Path) -> Iterator[Work]:
    """``npzkit show --stats``, a histogram included, against np.load and what it computes."""
    rng = np.random.default_rng(0)
    path = folder / "s.npz"

    def shell(*command: str) -> Callable[[], None]:
        return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL) and None

    for title, array, save in (
        ("512 MiB float32", rng.standard_normal(128 * MIB, "f4"), np.savez),
        ("512 MiB float64", rng.standard_normal(64 * MIB), np.savez),
        ("512 MiB uint8", rng.integers(0, 255, 512 * MIB, "u1"), np.savez),
        ("128 MiB int32 deflated", compressible(128 * MIB)["int32"], np.savez_compressed),
        ("128 MiB int32 deflated, own file", compressible(128 * MIB)["int32"],
         npzkit.savez_compressed),
    ):  # fmt: skip
        save(path, a=array)
        for name, wanted in _WANTED.items():
            code = _NUMPY_STATISTICS.format(path=str(path), wanted=wanted)
            yield Work(
                f"show --stats of {title}, against np.load and {name}",
                {
                    "npzkit": shell(sys.executable, "-m", "npzkit", "show", str(path), "--stats"),
                    "numpy": shell(sys.executable, "-c", code),
                },
                {"numpy": 1},
                f"show --stats, against np.load and {name}",
            )


def import_works(folder: Path) -> Iterator[Work]:
    """What the first line of a program costs."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": ""}

    def start(module: str) -> object:
        return subprocess.run(
            [sys.executable, "-c", f"import {module}"], check=True, env=environment
        )

    yield Work(
        "start Python and import",
        {"npzkit": lambda: start("npzkit"), "numpy": lambda: start("numpy")},
        {"numpy": 1 / 1.3},
    )


_KILOBYTES = """
import sys
import numpy as np, npzkit
def kilobytes(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))
"""
_PEAK = """
npz = npzkit.open(sys.argv[1])
npz[npz.files[0]]
before = kilobytes("VmRSS")
arrays = npz.load_all()
print((kilobytes("VmHWM") - before) * 1024 / sum(array.nbytes for array in arrays.values()))
"""
_CREATED = """
path, row_count = sys.argv[1], int(sys.argv[2]) << 20
part = np.random.default_rng(0).random((1000, 128))
with npzkit.NpzWriter(path) as w:
    with w.create("x", (row_count, 128), "f8") as dst:
        for start in range(0, row_count, 1000):
            dst[start : start + 1000] = part[: row_count - start]
print(kilobytes("VmHWM"))
"""


def memory_rows(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield what is held, measured in processes of their own, and what is allowed."""

    def run(script: str, *arguments: object) -> float:
        command = [sys.executable, "-c", _KILOBYTES + script, *map(str, arguments)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    path = folder / "m.npz"
    rng = np.random.default_rng(0)
    arrays = {"first": np.zeros(3), **{f"a{i}": rng.random(8 * MIB) for i in range(2)}}
    npzkit.save(path, arrays)
    yield "load 128 MiB stored", f"{run(_PEAK, path):.3f} of the arrays", "1.02"
    arrays = {"first": np.zeros(3), "a": weights(128 * MIB)}
    npzkit.savez_compressed(path, **arrays)
    yield "load 128 MiB deflated", f"{run(_PEAK, path):.3f} of the array", "1.05"
    path.unlink()
    for gibibytes in (1, 5):
        if shutil.disk_usage(folder).free > (gibibytes + 1) << 30:
            held = run(_CREATED, path, gibibytes) / 1024
            yield f"create {gibibytes} GiB, the process in all", f"{held:.0f} MiB", "100 MiB"
            path.unlink()


WORKS = {
    "load": load_works,
    "open": open_works,
    "save": save_works,
    "append": append_works,
    "deflate": deflate_works,
    "inflate": inflate_works,
    "slice": slice_works,
    "statistics": statistics_works,
    "import": import_works,
}


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
