"""A guided tour of npzkit on real data.

Owns the steps. Knows only the public API and rich. Each step is a function that
works on real files and prints the result.
"""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import npzkit

_BOXED_WIDTH = 80
_DIGITS, _PHOTOGRAPHS = "digits.npz", "photographs.npz"


def find_data(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder with the demo's data.

    Parameters
    ----------
    folder : path, optional
        The folder to check. By default ``fixtures`` beside the package and in
        the working directory.

    Raises
    ------
    FileNotFoundError
        No folder has the data.
    """
    places = [Path(folder)] if folder else [
        Path(__file__).parents[2] / "fixtures", Path.cwd() / "fixtures"
    ]  # fmt: skip
    for place in places:
        if (place / _DIGITS).is_file() and (place / _PHOTOGRAPHS).is_file():
            return place
    raise FileNotFoundError(
        f"no {_DIGITS} and {_PHOTOGRAPHS} in {' or '.join(map(str, places))}; "
        "run the demo in a checkout of npzkit, or pass the folder that has them: npzkit demo FOLDER"
    )


def run(data: Path, console: Console) -> None:
    """Run the tour on the data in a folder."""
    arrays = _read_what_numpy_wrote(data, console)
    with tempfile.TemporaryDirectory(prefix="npzkit-demo-") as folder:
        path = Path(folder) / "bundle.npz"
        _bundle(arrays, path, console)
        _open_lazily(path, arrays, console)
        _read_a_part(Path(folder) / "frames.npz", arrays["china"], console)
        _survive_a_crash(path, console)
        _notice_damage(path, console)
        _compare_speed(arrays, Path(folder), console)
    console.print("\nEnd of the demo. The README shows the code for each step.", style="bold")


def _heading(console: Console, number: int, text: str) -> None:
    console.print(f"\n[bold cyan]{number}.[/] [bold]{text}[/]")


def _table(console: Console, *columns: str) -> Table:
    """Return a table, without lines on a narrow terminal."""
    if console.width >= _BOXED_WIDTH:
        return Table(*columns)
    return Table(*columns, box=None, pad_edge=False, collapse_padding=True)


def _read_what_numpy_wrote(data: Path, console: Console) -> dict[str, Any]:
    _heading(console, 1, "Read what NumPy wrote: handwritten digits and two photographs")
    arrays: dict[str, Any] = {}
    for name in (_DIGITS, _PHOTOGRAPHS):
        with npzkit.open(data / name) as npz:
            arrays |= npz.load_all()
            console.print(f"   {name}: {', '.join(npz)}")
    _show_digit(arrays["images"][0], arrays["labels"][0], console)
    return arrays


def _show_digit(image: np.ndarray[Any, Any], label: int, console: Console) -> None:
    shades = " .:-=+*#%@"
    for row in image:
        line = "".join(shades[int(value) * (len(shades) - 1) // 16] * 2 for value in row)
        console.print("      " + line, style="green", markup=False, highlight=False)
    console.print(f"   ... the first image, labelled {label}.")


def _bundle(arrays: Mapping[str, Any], path: Path, console: Console) -> None:
    _heading(console, 2, "Save them in one .npz, each array with its own compression")
    with npzkit.NpzWriter(path, metadata={"about": "npzkit's demo", "step": 1}) as writer:
        for key, array in arrays.items():
            # Floats compress badly, and stored arrays can be mapped.
            writer.add(
                key,
                array,
                compression="stored" if array.dtype == np.float32 else "deflated",
                attrs={"mean": float(array.mean())},
            )
    table = _table(console, "key", "shape", "dtype", "bytes", "in file", "method", "mean")
    with npzkit.open(path) as npz:
        for info in map(npz.info, npz):
            table.add_row(
                info.key, str(info.shape), str(info.dtype), f"{info.nbytes:,}",
                f"{info.compressed_size:,}", info.method, f"{info.attrs['mean']:.2f}",
            )  # fmt: skip
    console.print(table)
    with np.load(path) as theirs:
        agree = all(np.array_equal(theirs[key], array) for key, array in arrays.items())
    console.print(f"   Plain np.load reads it: [bold]{_confirmed(agree)}[/]")


def _open_lazily(path: Path, arrays: Mapping[str, Any], console: Console) -> None:
    _heading(console, 3, "Open it lazily: only the arrays that are used are read")
    with npzkit.open(path) as npz:
        console.print(f'   npz["labels"][:10] = {npz["labels"][:10]}', highlight=False)
        mapped = npz.memmap("means")
        same = np.array_equal(mapped, arrays["means"])
        share = f'npz.memmap("means") shares {mapped.nbytes:,} bytes with the file'
        console.print(f"   {share}: {_confirmed(same)}")
        console.print(f"   npz.metadata = {dict(npz.metadata)}", highlight=False)


def _read_a_part(path: Path, photograph: np.ndarray[Any, Any], console: Console) -> None:
    _heading(console, 4, "Create a compressed array frame by frame, and read a part of it")
    with npzkit.NpzWriter(path, compression="deflated") as writer:
        shape = (None, *photograph.shape)
        with writer.create("frames", shape, photograph.dtype) as frames:
            for shift in range(50):
                frames.append(np.roll(photograph, shift, axis=1))
    with npzkit.open(path) as npz:
        lazy = npz.lazy("frames")
        part = lazy[30, 100:110, ::5]
        same = np.array_equal(part, np.roll(photograph, 30, axis=1)[100:110, ::5])
        console.print(f"   {lazy!r}", highlight=False, markup=False)
        console.print(f"   frames[30, 100:110, ::5] has shape {part.shape}: {_confirmed(same)}")


def _survive_a_crash(path: Path, console: Console) -> None:
    _heading(console, 5, "Crash while saving to the same path: the old file stays complete")
    try:
        with npzkit.NpzWriter(path) as writer:
            writer["half"] = np.zeros(1000)
            raise RuntimeError("the power went out")
    except RuntimeError as error:
        with npzkit.open(path) as npz:
            console.print(f"   {error}; the file still has: {', '.join(npz)}")


def _notice_damage(path: Path, console: Console) -> None:
    _heading(console, 6, "Damage one byte: npzkit reports it, and where it is")
    damaged = bytearray(path.read_bytes())
    with npzkit.open(path) as npz:
        damaged[npz.info("means").data_offset + 5] ^= 1
    try:
        npzkit.open(bytes(damaged))["means"]
    except npzkit.NpzkitError as error:
        console.print(f"   {type(error).__name__}: {error}", style="yellow", markup=False)


def _compare_speed(arrays: Mapping[str, Any], folder: Path, console: Console) -> None:
    _heading(console, 7, "Compare the speed on this machine (median of 5, warm cache)")
    many = {f"digit_{i}": image for i, image in enumerate(arrays["images"])}
    large = {"photographs": np.tile(arrays["china"], (100, 1, 1, 1))}
    table = _table(console, "work", "NumPy", "npzkit", "ratio")
    for title, work in ((f"load {len(many):,} small arrays", many), ("load 20 MB stored", large)):
        path = folder / "speed.npz"
        np.savez(path, **work)
        _add_row(
            table,
            title,
            functools.partial(_load_numpy, path),
            functools.partial(_load_npzkit, path),
        )
    _add_row(
        table, "save the photographs deflated",
        lambda: np.savez_compressed(folder / "a.npz", **arrays),
        lambda: npzkit.savez_compressed(folder / "b.npz", **arrays),
    )  # fmt: skip
    console.print(table)


def _load_numpy(path: Path) -> dict[str, Any]:
    with np.load(path) as npz:
        return {key: npz[key] for key in npz.files}


def _load_npzkit(path: Path) -> dict[str, Any]:
    with npzkit.open(path) as npz:
        return npz.load_all()


def _add_row(
    table: Table, title: str, theirs: Callable[[], object], ours: Callable[[], object]
) -> None:
    """Time both alternately, and add the medians."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(5):
        for function, found in zip((theirs, ours), times, strict=True):
            begin = time.perf_counter()
            function()
            found.append(time.perf_counter() - begin)
    numpy_time, npzkit_time = map(statistics.median, times)
    table.add_row(
        title, f"{numpy_time * 1e3:.1f} ms", f"{npzkit_time * 1e3:.1f} ms",
        f"{numpy_time / npzkit_time:.1f} x",
    )  # fmt: skip


def _confirmed(value: bool) -> str:
    """Return "yes", or raise an error if the demo read wrong data."""
    if not value:
        raise RuntimeError("the demo read other data than it wrote; please report this")
    return "yes"
