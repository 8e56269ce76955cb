"""The pieces of work that `bench` measures: files and contenders."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import h5py
import npzkit
import numpy as np
import safetensors
import safetensors.numpy
import zarr
from data import KEYS, KIB, KINDS, MIB, Arrays, keyed, kind, mixed, noise, real, small_arrays
from npzkit.files.append import AppendedFile
from npzkit.zip.commit import FAR_COMMENT


class Work(NamedTuple):
    """One piece of work, and who does it; `size` is npzkit's file over the peer's, if it matters."""

    title: str
    contenders: dict[str, Callable[[], object]]
    size: float | None = None


class Place(NamedTuple):
    """The folder of the files, and by what the sizes and counts of a full run are divided."""

    folder: Path
    divisor: int = 1

    def part(self, number: int) -> int:
        return max(number // self.divisor, 8)

    def paths(self, *names: str) -> Iterator[Path]:
        return (self.folder / name for name in names)


# -- contenders --------------------------------------------------------------


def load_numpy(path: Path) -> Arrays:
    with np.load(path) as npz:
        return {key: npz[key] for key in npz.files}


def load_npzkit(path: Path) -> Arrays:
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


def save_h5py(path: Path, arrays: Arrays) -> None:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key] = array


def load_h5py(path: Path) -> Arrays:
    with h5py.File(path) as file:
        return {key: file[key][...] for key in file}


def save_zarr(path: Path, arrays: Arrays) -> None:
    group = zarr.open_group(path, mode="w")
    for key, array in arrays.items():
        group.create_array(key, data=array, chunks=(MIB,), compressors=None)


def load_zarr(path: Path) -> Arrays:
    group = zarr.open_group(path, mode="r")
    return {key: array[...] for key, array in group.arrays()}


def bare_read(path: Path, offsets: list[tuple[int, np.ndarray]]) -> Arrays:
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


def bare_write(path: Path, arrays: Arrays) -> None:
    """Room reserved and filled, and nothing else: what no writer can beat."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    size = sum(array.nbytes for array in arrays.values())
    if size:
        os.posix_fallocate(descriptor, 0, size)
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


def append_npzkit(path: Path, array: np.ndarray, durable: bool = False) -> None:
    with npzkit.NpzWriter(path, mode="a", auto_repack=False, durable=durable) as w:
        w["new"] = array


def append_zipfile(path: Path, array: np.ndarray) -> None:
    with zipfile.ZipFile(path, "a") as archive, archive.open("new.npy", "w") as member:
        np.lib.format.write_array(member, array)


def restored(
    path: Path, append: Callable[[], object], tail_size: int = 20 * MIB
) -> Callable[[], object]:
    """Append to a file that is as it was before: writing its last bytes again is not timed.

    The default size empties the processor's caches.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - tail_size, 0))
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


# -- loading -----------------------------------------------------------------


def _stored(place: Place, title: str, arrays: Arrays) -> Work:
    """Save the arrays with npzkit, NumPy and safetensors; loading them is the work."""
    ours, theirs, tensors = place.paths("k.npz", "n.npz", "s.st")
    npzkit.save(ours, arrays)
    np.savez(theirs, **arrays)
    safetensors.numpy.save_file(arrays, tensors)
    return Work(
        title,
        {
            "npzkit": lambda: load_npzkit(ours),
            "numpy": lambda: load_numpy(theirs),
            "safetensors": lambda: safetensors.numpy.load_file(tensors),
        },
    )


def _bare(path: Path, arrays: Arrays) -> Callable[[], object]:
    with npzkit.open(path) as npz:
        places = [(npz.info(key).data_offset, arrays[key]) for key in npz]
    return lambda: bare_read(path, places)


def load_large(place: Place) -> Iterator[Work]:
    arrays = noise(4, place.part(64 * MIB))
    work = _stored(place, "4 x 64 MiB", arrays)
    ours, h5, z = place.paths("k.npz", "a.h5", "a.zarr")
    save_h5py(h5, arrays)
    save_zarr(z, arrays)
    others = {"h5py": lambda: load_h5py(h5), "zarr": lambda: load_zarr(z)}
    yield work._replace(contenders=work.contenders | others | {"bare": _bare(ours, arrays)})


def load_layers(place: Place) -> Iterator[Work]:
    (ours,) = place.paths("k.npz")
    arrays = noise(64, place.part(4 * MIB))
    work = _stored(place, "64 x 4 MiB", arrays)
    yield work._replace(contenders=work.contenders | {"bare": _bare(ours, arrays)})


def load_huge(place: Place) -> Iterator[Work]:
    (ours,) = place.paths("k.npz")
    arrays = noise(4, place.part(256 * MIB))
    npzkit.save(ours, arrays)
    yield Work("4 x 256 MiB", {"npzkit": lambda: load_npzkit(ours), "bare": _bare(ours, arrays)})


def load_memory(place: Place) -> Iterator[Work]:
    """Open samples that a data loader has fetched, as they come: no file, and no copy."""
    rng = np.random.default_rng(0)
    samples = []
    for number in range(place.part(300)):
        stream = io.BytesIO()
        image = rng.integers(0, 255, (224, 224, 3)).astype("u1")
        np.savez(stream, image=image, label=np.array(number), boxes=rng.random((8, 4)))
        samples.append(stream.getvalue())

    def views(data: bytes) -> Arrays:
        with npzkit.open(data, mmap_mode="r") as npz:
            return {key: npz[key] for key in npz}

    loads: dict[str, Callable[[bytes], object]] = {
        "npzkit": views,
        "copies": lambda data: npzkit.open(data).load_all(),
        "numpy": lambda data: load_numpy(io.BytesIO(data)),
    }
    if importlib.util.find_spec("spdl") is not None:
        import spdl.io

        loads["spdl"] = spdl.io.load_npz
    yield Work(
        "300 x 3 arrays", {name: partial(_each, load, samples) for name, load in loads.items()}
    )


def _each(load: Callable[[bytes], object], samples: list[bytes]) -> None:
    for data in samples:
        load(data)


def load_into(place: Place) -> Iterator[Work]:
    """Fill arrays that exist, as a run that resumes does."""
    arrays = noise(32, place.part(8 * MIB))
    work = _stored(place, "32 x 8 MiB", arrays)
    (ours,) = place.paths("k.npz")
    example = {key: np.ones_like(array) for key, array in arrays.items()}

    def copied(load: Callable[[], object]) -> Callable[[], object]:
        own = {key: np.ones_like(array) for key, array in arrays.items()}

        def run() -> Arrays:
            for key, array in load().items():
                np.copyto(own[key], array)
            return own

        return run

    others = {name: copied(load) for name, load in work.contenders.items() if name != "npzkit"}
    npzkit_into = {"npzkit": lambda: npzkit.load_tree(ours, into=example)}
    yield work._replace(contenders=npzkit_into | others)


def load_tensors(place: Place) -> Iterator[Work]:
    """Fill tensors that exist. safetensors maps its file, compares nothing, and copies once."""
    if importlib.util.find_spec("torch") is None:
        return
    import safetensors.torch
    import torch

    arrays = noise(32, place.part(8 * MIB))
    ours, theirs = place.paths("t.npz", "t.safetensors")
    tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
    npzkit.save(ours, tensors)
    safetensors.torch.save_file(tensors, theirs)
    own, other, unchecked = (
        {key: torch.ones_like(tensor) for key, tensor in tensors.items()} for _ in range(3)
    )

    def copy() -> None:
        for key, tensor in safetensors.torch.load_file(theirs).items():
            other[key].copy_(tensor)

    contenders = {
        "npzkit": lambda: npzkit.load_tree(ours, into=own),
        "unchecked": lambda: npzkit.load_tree(ours, into=unchecked, verify=False),
        "safetensors": copy,
    }
    yield Work("32 x 8 MiB", contenders)


def load_small(place: Place) -> Iterator[Work]:
    yield _stored(place, "10,000 x 1 KiB", small_arrays(place.part(10_000)))


def load_keys(place: Place) -> Iterator[Work]:
    arrays = small_arrays(place.part(10_000))
    for framework in KEYS:
        yield _stored(place, framework, keyed(framework, arrays))


def load_few(place: Place) -> Iterator[Work]:
    yield _stored(place, "3 x 80 B", noise(3, 80))


def load_ten(place: Place) -> Iterator[Work]:
    yield _stored(place, "10 x 64 KB", noise(10, place.part(64_000)))


def load_real(place: Place) -> Iterator[Work]:
    for title, arrays in real(place.divisor == 1).items():
        yield _stored(place, title, arrays)


class _Pipe(io.RawIOBase):
    """A file that cannot seek: zipfile then writes descriptors after the data."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        return self.file.write(data)

    def close(self) -> None:
        self.file.close()
        super().close()


def _zip_with_descriptors(path: Path, arrays: Arrays, method: int) -> None:
    with _Pipe(path) as pipe, zipfile.ZipFile(pipe, "w", method) as archive:
        for key, array in arrays.items():
            with archive.open(f"{key}.npy", "w") as member:
                np.lib.format.write_array(member, array)


FOREIGN: dict[str, Callable[[Path, Arrays], None]] = {
    "np.savez": lambda path, arrays: np.savez(path, **arrays),
    "np.savez_compressed": lambda path, arrays: np.savez_compressed(path, **arrays),
    "zipfile with descriptors": lambda path, arrays: _zip_with_descriptors(path, arrays, 0),
    "zipfile with descriptors and deflate": lambda path, arrays: _zip_with_descriptors(
        path, arrays, 8
    ),
}
"""Who else writes archives of arrays."""


def _foreign(place: Place, arrays: Arrays, writers: tuple[str, ...] = ()) -> Iterator[Work]:
    """Both load the same file, of each other program."""
    (path,) = place.paths("foreign.npz")
    for name in writers or FOREIGN:
        FOREIGN[name](path, arrays)
        yield Work(name, {"npzkit": lambda: load_npzkit(path), "numpy": lambda: load_numpy(path)})


def load_large_foreign(place: Place) -> Iterator[Work]:
    return _foreign(place, noise(4, place.part(64 * MIB)), ("np.savez", "zipfile with descriptors"))


def load_small_foreign(place: Place) -> Iterator[Work]:
    return _foreign(place, small_arrays(place.part(10_000)))


def load_mixed_foreign(place: Place) -> Iterator[Work]:
    return _foreign(place, mixed(place.part(2_000)))


# -- opening -----------------------------------------------------------------


def _one_of(place: Place, arrays: Arrays) -> Iterator[Work]:
    _stored(place, "", arrays)
    ours, theirs, tensors = place.paths("k.npz", "n.npz", "s.st")
    key = list(arrays)[len(arrays) // 2]
    yield Work(
        "one array",
        {
            "npzkit": lambda: first_npzkit(ours, key),
            "numpy": lambda: first_numpy(theirs, key),
            "safetensors": lambda: first_safetensors(tensors, key),
        },
    )


def open_small(place: Place) -> Iterator[Work]:
    return _one_of(place, small_arrays(place.part(10_000)))


def open_tiny(place: Place) -> Iterator[Work]:
    return _one_of(place, small_arrays(place.part(100_000), 8))


def opened(
    open_file: Callable[[], contextlib.AbstractContextManager], work: Callable
) -> Callable[[], object]:
    """Do the work with a file that was just opened: opening is not timed."""
    stack = contextlib.ExitStack()
    files: list[object] = []

    def before() -> None:
        stack.close()
        files[:] = [stack.enter_context(open_file())]

    def run() -> object:
        return work(files[0])

    run.before, run.after = before, stack.close  # type: ignore[attr-defined]
    return run


def shapes_npzkit(npz: npzkit.NpzFile) -> dict[str, object]:
    infos = {key: npz.info(key) for key in npz}
    return {key: (info.shape, info.dtype)[0] for key, info in infos.items()}


def shapes_safetensors(file: object) -> dict[str, object]:
    found = {}
    for key in file.keys():  # noqa: SIM118 - it is no dict
        part = file.get_slice(key)
        found[key] = (part.get_shape(), part.get_dtype())[0]
    return found


def shapes(place: Place) -> Iterator[Work]:
    _stored(place, "", small_arrays(place.part(10_000)))
    ours, tensors = place.paths("k.npz", "s.st")
    yield Work(
        "10,000 x 1 KiB",
        {
            "npzkit": opened(lambda: npzkit.open(ours), shapes_npzkit),
            "safetensors": opened(
                lambda: safetensors.safe_open(tensors, "numpy"), shapes_safetensors
            ),
        },
    )


# -- saving stored -----------------------------------------------------------


def saving(place: Place, title: str, arrays: Arrays) -> Work:
    """Return the saving of arrays, stored, by npzkit, NumPy and safetensors."""
    ours, theirs, tensors = place.paths("k.npz", "n.npz", "s.st")
    return Work(
        title,
        {
            "npzkit": fresh(ours, lambda: npzkit.save(ours, arrays)),
            "numpy": fresh(theirs, lambda: np.savez(theirs, **arrays)),
            "safetensors": fresh(tensors, lambda: safetensors.numpy.save_file(arrays, tensors)),
        },
    )


def save_large(place: Place) -> Iterator[Work]:
    arrays = noise(4, place.part(64 * MIB))
    h5, z, bare = place.paths("s.h5", "s.z", "bare")
    work = saving(place, "4 x 64 MiB", arrays)
    others = {
        "h5py": fresh(h5, lambda: save_h5py(h5, arrays)),
        "zarr": fresh(z, lambda: save_zarr(z, arrays)),
        "bare": fresh(bare, lambda: bare_write(bare, arrays)),
    }
    yield work._replace(contenders=work.contenders | others)


def save_huge(place: Place) -> Iterator[Work]:
    yield saving(place, "4 x 256 MiB", noise(4, place.part(256 * MIB)))


def save_small(place: Place) -> Iterator[Work]:
    yield saving(place, "10,000 x 1 KiB", small_arrays(place.part(10_000)))


def save_keys(place: Place) -> Iterator[Work]:
    arrays = small_arrays(place.part(10_000))
    for framework in KEYS:
        yield saving(place, framework, keyed(framework, arrays))


def save_mixed(place: Place) -> Iterator[Work]:
    work = saving(place, "2,000 mixed arrays", mixed(place.part(2_000)))
    del work.contenders["safetensors"]  # it has no strings
    yield work


def save_new(place: Place) -> Iterator[Work]:
    yield saving(place, "80 B", noise(1, 80))


def save_few(place: Place) -> Iterator[Work]:
    yield saving(place, "3 x 80 B", noise(3, 80))


def save_ten(place: Place) -> Iterator[Work]:
    yield saving(place, "10 x 64 KB", noise(10, place.part(64_000)))


def save_real(place: Place) -> Iterator[Work]:
    for title, arrays in real(place.divisor == 1).items():
        yield saving(place, title, arrays)


def save_over_tiny(place: Place) -> Iterator[Work]:
    yield _over(place, "80 B", noise(1, 80))


def save_over_1(place: Place) -> Iterator[Work]:
    yield _over(place, "1 MiB", noise(1, place.part(MIB)))


def save_over_8(place: Place) -> Iterator[Work]:
    yield _over(place, "8 MiB", noise(1, place.part(8 * MIB)))


def save_over_large(place: Place) -> Iterator[Work]:
    yield _over(place, "4 x 64 MiB", noise(4, place.part(64 * MIB)))


def _over(place: Place, title: str, arrays: Arrays) -> Work:
    """As a program saves that runs again: the files of the last time are there."""
    ours, theirs, tensors, safe, temporary = place.paths(
        "over.npz", "n.npz", "s.st", "safe.npz", "temporary.npz"
    )

    def save_safely() -> None:
        """Save what is there after a crash, too, as npzkit promises."""
        with temporary.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, safe)

    return Work(
        title,
        {
            "npzkit": lambda: npzkit.save(ours, arrays),
            "numpy": lambda: np.savez(theirs, **arrays),
            "np.savez, fsync and os.replace": save_safely,
            "safetensors": lambda: safetensors.numpy.save_file(arrays, tensors),
        },
    )


# -- appending ---------------------------------------------------------------


def _append(place: Place, title: str, arrays: Arrays, added: int) -> Work:
    """One array more in an archive that is there; the title says what is written for it."""
    ours, theirs = place.paths("k.npz", "z.npz")
    npzkit.save(ours, arrays)
    shutil.copy(ours, theirs)
    array, size = np.ones(added // 8), ours.stat().st_size
    contenders = {
        "npzkit": restored(ours, lambda: append_npzkit(ours, array)),
        "zipfile": restored(theirs, lambda: append_zipfile(theirs, array)),
    }
    contenders["npzkit"]()
    written = ours.stat().st_size - size
    contenders["npzkit"].before()
    return Work(f"{title}, {written / MIB:.2f} MiB written", contenders)


def append_one(place: Place) -> Iterator[Work]:
    yield _append(place, "to 1 MB", noise(1, place.part(1_000_000)), place.part(1_000_000))


def append_large(place: Place) -> Iterator[Work]:
    for title, size in (("256 MiB", 256 * MIB), ("1 GiB", 1024 * MIB)):
        yield _append(place, f"to {title}", noise(32, place.part(size // 32)), 1_000_000)


def append_small(place: Place) -> Iterator[Work]:
    yield _append(place, "to 10,000 x 1 KiB", small_arrays(place.part(10_000)), 1024)


def append_tiny(place: Place) -> Iterator[Work]:
    yield _append(place, "to 100,000 x 64 B", small_arrays(place.part(100_000), 8), 1024)


# -- saving deflated ---------------------------------------------------------


def deflate(place: Place, title: str, arrays: Arrays) -> Work:
    ours, theirs = place.paths("k.npz", "n.npz")
    npzkit.savez_compressed(ours, **arrays)
    np.savez_compressed(theirs, **arrays)
    return Work(
        title,
        {
            "npzkit": fresh(ours, lambda: npzkit.savez_compressed(ours, **arrays)),
            "numpy": fresh(theirs, lambda: np.savez_compressed(theirs, **arrays)),
        },
        ours.stat().st_size / theirs.stat().st_size,
    )


def deflate_1(place: Place) -> Iterator[Work]:
    return (deflate(place, name, {"a": kind(name, place.part(1_000_000))}) for name in KINDS)


def deflate_48(place: Place) -> Iterator[Work]:
    return (deflate(place, name, {"a": kind(name, place.part(48 * MIB))}) for name in KINDS)


def deflate_small(place: Place) -> Iterator[Work]:
    yield deflate(place, "10,000 x 1 KiB", small_arrays(place.part(10_000)))


def deflate_mixed(place: Place) -> Iterator[Work]:
    yield deflate(place, "2,000 mixed arrays", mixed(place.part(2_000)))


def deflate_real(place: Place) -> Iterator[Work]:
    return (deflate(place, title, arrays) for title, arrays in real(place.divisor == 1).items())


# -- loading deflated --------------------------------------------------------


def _inflate(place: Place, title: str, arrays: Arrays, own: bool = False) -> Work:
    """NumPy loads np.savez_compressed's file; npzkit loads the same, or its own."""
    ours, theirs = place.paths("own.npz", "foreign.npz")
    np.savez_compressed(theirs, **arrays)
    if own:
        npzkit.savez_compressed(ours, **arrays)
    path = ours if own else theirs
    return Work(title, {"npzkit": lambda: load_npzkit(path), "numpy": lambda: load_numpy(theirs)})


def inflate_one(place: Place) -> Iterator[Work]:
    return (_inflate(place, name, {"a": kind(name, place.part(48 * MIB))}) for name in KINDS)


def inflate_four(place: Place) -> Iterator[Work]:
    for name in KINDS:
        yield _inflate(place, name, dict.fromkeys("abcd", kind(name, place.part(48 * MIB))))


def inflate_own(place: Place) -> Iterator[Work]:
    for name in KINDS:
        arrays = dict.fromkeys("abcd", kind(name, place.part(16 * MIB)))
        yield _inflate(place, name, arrays, own=True)


def zstd_save(place: Place) -> Iterator[Work]:
    """Yield the saving of each data set with Zstandard, and deflated at level 1."""
    ours, other = place.paths("z.npz", "d.npz")
    for name in KINDS:
        arrays = dict.fromkeys("abcd", kind(name, place.part(16 * MIB)))
        saves = {
            path: partial(npzkit.save, path, arrays, compression=method, level=1)
            for path, method in ((ours, "zstd"), (other, "deflated"))
        }
        for save in saves.values():
            save()
        size = ours.stat().st_size / other.stat().st_size
        contenders = {"npzkit": fresh(ours, saves[ours]), "deflated": fresh(other, saves[other])}
        yield Work(name, contenders, size)


def zstd_load(place: Place) -> Iterator[Work]:
    """Yield the loading of each data set compressed with Zstandard, and deflated by npzkit."""
    ours, other = place.paths("z.npz", "d.npz")
    for name in KINDS:
        arrays = dict.fromkeys("abcd", kind(name, place.part(16 * MIB)))
        npzkit.save(ours, arrays, compression="zstd")
        npzkit.save(other, arrays, compression="deflated")
        yield Work(
            name,
            {"npzkit": lambda: load_npzkit(ours), "deflated": lambda: load_npzkit(other)},
        )


def inflate_small(place: Place) -> Iterator[Work]:
    yield _inflate(place, "10,000 x 1 KiB", small_arrays(place.part(10_000)), own=True)


def inflate_real(place: Place) -> Iterator[Work]:
    return (_inflate(place, title, arrays) for title, arrays in real(place.divisor == 1).items())


# -- slices ------------------------------------------------------------------


class _Turns:
    """Have all contenders of a round read the same part, and another part each round."""

    def __init__(self, length: int) -> None:
        self.size = max(length // 100, 1)
        self.starts = itertools.cycle(range(length // 20, length - self.size, length // 7))
        self.part = slice(0, self.size)

    def first(self, read: Callable[[slice], np.ndarray]) -> Callable[[], object]:
        def run() -> np.ndarray:
            self.part = slice(start := next(self.starts), start + self.size)
            return read(self.part)

        return run

    def next(self, read: Callable[[slice], np.ndarray]) -> Callable[[], object]:
        return lambda: read(self.part)


def slice_own(place: Place) -> Iterator[Work]:
    array = kind("float32 weights", place.part(128 * MIB))
    own, foreign, h5, z = place.paths("k.npz", "n.npz", "slice.h5", "slice.zarr")
    npzkit.savez_compressed(own, a=array)
    np.savez_compressed(foreign, a=array)
    with h5py.File(h5, "w") as file:
        file.create_dataset(
            "a", data=array, chunks=(min(MIB // 4, len(array)),), compression="gzip"
        )
    zarr.create_array(z, data=array, chunks=(MIB // 4,), overwrite=True)
    turns = _Turns(len(array))

    def slice_npzkit(part: slice) -> np.ndarray:
        with npzkit.open(own) as npz:
            return npz.lazy("a")[part]

    def slice_h5py(part: slice) -> np.ndarray:
        with h5py.File(h5) as file:
            return file["a"][part]

    yield Work(
        "float32 weights",
        {
            "npzkit": turns.first(slice_npzkit),
            "numpy": turns.next(lambda part: first_numpy(foreign, "a")[part]),
            "h5py": turns.next(slice_h5py),
            "zarr": turns.next(lambda part: zarr.open_array(z, mode="r")[part]),
        },
    )


def slice_foreign(place: Place) -> Iterator[Work]:
    array = kind("float32 weights", place.part(128 * MIB))
    (foreign,) = place.paths("n.npz")
    np.savez_compressed(foreign, a=array)
    turns = _Turns(len(array))
    with npzkit.open(foreign) as npz:
        npz.lazy("a")[-1]
        yield Work(
            "float32 weights",
            {
                "npzkit": turns.first(lambda part: npz.lazy("a")[part]),
                "numpy": turns.next(lambda part: first_numpy(foreign, "a")[part]),
            },
        )


def map_rows(place: Place) -> Iterator[Work]:
    """Map an array and read 1,000 of its rows, as a data loader does first."""
    count = place.part(1 << 18)
    array = np.random.default_rng(0).random((count, 64)).astype("f4")
    own, plain = place.paths("map.npz", "map.npy")
    npzkit.save(own, {"a": array})
    np.save(plain, array)
    rows = np.random.default_rng(1).integers(0, count, 1000)

    def map_npzkit() -> np.ndarray:
        with npzkit.open(own) as npz:
            return npz.memmap("a")[rows]

    yield Work(
        "64 MiB",
        {"npzkit": map_npzkit, "numpy": lambda: np.load(plain, mmap_mode="r")[rows]},
    )


def slice_stored(place: Place) -> Iterator[Work]:
    array = kind("float32 weights", place.part(128 * MIB))
    own, tensors, h5, z = place.paths("k.npz", "s.st", "slice.h5", "slice.zarr")
    npzkit.save(own, {"a": array})
    safetensors.numpy.save_file({"a": array}, tensors)
    save_h5py(h5, {"a": array})
    zarr.create_array(z, data=array, chunks=(MIB // 4,), compressors=None, overwrite=True)
    turns = _Turns(len(array))

    def slice_npzkit(part: slice, *, verify: bool = True) -> np.ndarray:
        with npzkit.open(own) as npz:
            return npz.lazy("a", verify=verify)[part]

    def slice_safetensors(part: slice) -> np.ndarray:
        with safetensors.safe_open(tensors, "np") as file:
            return file.get_slice("a")[part]

    def slice_h5py(part: slice) -> np.ndarray:
        with h5py.File(h5) as file:
            return file["a"][part]

    yield Work(
        "float32 weights",
        {
            "npzkit": turns.first(slice_npzkit),
            "verify=False": turns.next(lambda part: slice_npzkit(part, verify=False)),
            "safetensors": turns.next(slice_safetensors),
            "h5py": turns.next(slice_h5py),
            "zarr": turns.next(lambda part: zarr.open_array(z, mode="r")[part]),
        },
    )


def slice_again(place: Place) -> Iterator[Work]:
    """Yield slices of an array that is open, long ones and short ones."""
    array = kind("float32 weights", place.part(128 * MIB))
    (own,) = place.paths("k.npz")
    npzkit.save(own, {"a": array})
    with npzkit.open(own) as npz:
        checked, unchecked = npz.lazy("a"), npz.lazy("a", verify=False)
        turns = _Turns(len(array))
        yield Work(
            "1 %",
            {
                "npzkit": turns.first(checked.__getitem__),
                "verify=False": turns.next(unchecked.__getitem__),
            },
        )
        starts = range(0, len(array) - KIB, len(array) // 100)
        yield Work(
            "100 of 4 KiB",
            {
                "npzkit": lambda: [checked[start : start + KIB] for start in starts],
                "verify=False": lambda: [unchecked[start : start + KIB] for start in starts],
            },
        )


def save_chunks(place: Place) -> Iterator[Work]:
    """Yield the saving of arrays with and without the CRC-32s of their chunks."""
    for count, size in ((4, 64), (128, 1)):
        arrays = noise(count, place.part(size * MIB))
        ours, without = place.paths("k.npz", "without.npz")
        save = partial(npzkit.save, without, arrays, seekable=False)
        yield Work(
            f"{count} x {size} MiB",
            {
                "npzkit": fresh(ours, partial(npzkit.save, ours, arrays)),
                "seekable=False": fresh(without, save),
            },
        )


def open_chunks(place: Place) -> Iterator[Work]:
    """Yield the opening of an archive, and one of its arrays, with and without such CRC-32s."""
    arrays = noise(place.part(300), place.part(300 << 10))
    ours, without = place.paths("k.npz", "without.npz")
    npzkit.save(ours, arrays)
    npzkit.save(without, arrays, seekable=False)
    yield Work(
        "300 x 300 KiB",
        {
            "npzkit": lambda: first_npzkit(ours, "a4"),
            "seekable=False": lambda: first_npzkit(without, "a4"),
        },
    )


# -- processes ---------------------------------------------------------------

_ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": ""}


def python(*arguments: object) -> Callable[[], None]:
    """Start Python with these arguments, and wait until it ends."""
    command = [sys.executable, *map(str, arguments)]

    def run() -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=_ENVIRONMENT)

    return run


_NUMPY_STATISTICS = "import numpy as np; a = np.load({path!r})['a']; print({wanted})"


def _statistics(place: Place, wanted: str) -> Iterator[Work]:
    """``npzkit show --stats``, a histogram included, against np.load and what it computes."""
    rng = np.random.default_rng(0)
    (path,) = place.paths("s.npz")
    size = place.part(512 * MIB)
    for title, make, save in (
        ("512 MiB float32", lambda: rng.standard_normal(size // 4, "f4"), np.savez),
        ("512 MiB float64", lambda: rng.standard_normal(size // 8), np.savez),
        ("512 MiB uint8", lambda: rng.integers(0, 255, size, "u1"), np.savez),
        ("128 MiB int32 deflated", lambda: kind("int32", size // 4), np.savez_compressed),
        ("128 MiB int32 deflated, own file", lambda: kind("int32", size // 4),
         npzkit.savez_compressed),
    ):  # fmt: skip
        save(path, a=make())
        code = _NUMPY_STATISTICS.format(path=str(path), wanted=wanted)
        yield Work(
            title,
            {
                "npzkit": python("-m", "npzkit", "show", path, "--stats"),
                "numpy": python("-c", code),
            },
        )


def statistics_mean(place: Place) -> Iterator[Work]:
    return _statistics(place, "a.mean()")


def statistics_four(place: Place) -> Iterator[Work]:
    return _statistics(place, "a.min(), a.max(), a.mean(), a.std()")


def import_npzkit(_: Place) -> Iterator[Work]:
    yield Work(
        "start Python and import",
        {"npzkit": python("-c", "import npzkit"), "numpy": python("-c", "import numpy")},
    )


_FIRST_CALLS = {
    "load": (
        "import npzkit; npzkit.load({path!r})['a']",
        "import numpy; numpy.load({path!r})['a']",
    ),
    "save": (
        "import numpy, npzkit; npzkit.save({path!r}, dict(a=numpy.arange(10)))",
        "import numpy; numpy.savez({path!r}, a=numpy.arange(10))",
    ),
}


def first_call(place: Place) -> Iterator[Work]:
    """A new Python loads one array of 80 bytes, or saves it where no file is."""
    (path,) = place.paths("first.npz")
    for title, codes in _FIRST_CALLS.items():
        np.savez(path, a=np.arange(10))
        ours, theirs = (python("-c", code.format(path=str(path))) for code in codes)
        if title == "save":
            ours, theirs = fresh(path, ours), fresh(path, theirs)
        yield Work(title, {"npzkit": ours, "numpy": theirs})


def command_ls(place: Place) -> Iterator[Work]:
    (path,) = place.paths("k.npz")
    npzkit.save(path, small_arrays(place.part(100_000), 8))
    yield Work("ls of 100,000", {"npzkit": python("-m", "npzkit", "ls", path)})


def command_start(place: Place) -> Iterator[Work]:
    (path,) = place.paths("k.npz")
    npzkit.save(path, small_arrays(8))
    yield Work("--version", {"npzkit": python("-m", "npzkit", "--version")})
    yield Work("ls of a small file", {"npzkit": python("-m", "npzkit", "ls", path)})


# -- memory ------------------------------------------------------------------

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
path, row_count = sys.argv[1], int(sys.argv[2])
part = np.random.default_rng(0).random((1000, 128))
with npzkit.NpzWriter(path) as w:
    with w.create("x", (row_count, 128), "f8") as dst:
        for start in range(0, row_count, 1000):
            dst[start : start + 1000] = part[: row_count - start]
print(kilobytes("VmHWM"))
"""


def memory_rows(place: Place) -> Iterator[tuple[str, str, str]]:
    """Yield what is held, measured in processes of their own, and what is allowed; and moments."""

    def run(script: str, *arguments: object) -> float:
        command = [sys.executable, "-c", _KILOBYTES + script, *map(str, arguments)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    (path,) = place.paths("m.npz")
    npzkit.save(path, {"first": np.zeros(3)} | noise(2, place.part(64 * MIB)))
    yield "peak memory to load 128 MiB stored", f"{run(_PEAK, path):.3f} of the arrays", "1.02"
    array = kind("float32 weights", place.part(128 * MIB))
    npzkit.savez_compressed(path, first=np.zeros(3), a=array)
    yield "peak memory to load 128 MiB deflated", f"{run(_PEAK, path):.3f} of the array", "1.05"
    path.unlink()
    for gibibytes in (1, 5):
        if shutil.disk_usage(place.folder).free > (gibibytes + 1) << 30:
            held = run(_CREATED, path, place.part(gibibytes << 20)) / 1024
            title = f"peak memory to create {gibibytes} GiB, the process in all"
            yield title, f"{held:.0f} MiB", "100 MiB"
            path.unlink()
    found = [f"{1e6 * window(path, place.part(count)):.0f}" for count in (100, 1000, 10_000)]
    title = "moment without an end for np.load, as 1 MiB is appended to 100, 1,000, 10,000 arrays"
    yield title, f"{', '.join(found)} µs", ""


def window(path: Path, count: int) -> float:
    """Return the median seconds in which the directory is copied behind an append's room.

    Until all of a copy of more than a page is there, np.load finds no end of the archive.
    """
    taken: list[float] = []
    put = AppendedFile._put_down

    def timed(file: AppendedFile, offset: int, data: bytes) -> None:
        begin = time.perf_counter()
        put(file, offset, data)
        if bytes(data).endswith(FAR_COMMENT):
            taken.append(time.perf_counter() - begin)

    array = np.zeros(MIB, "u1")
    with mock.patch.object(AppendedFile, "_put_down", timed):
        for _ in range(9):
            npzkit.save(path, small_arrays(count))
            with npzkit.NpzWriter(path, "a") as w:
                w["a"] = array
    path.unlink()
    return statistics.median(taken)
