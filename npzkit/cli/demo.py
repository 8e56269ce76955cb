"""The command that shows what npzkit does, step by step, on real data."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

import npzkit
from npzkit.cli.output import print_table, print_text

_FILES = "digits.npz", "photographs.npz"
_SHADES = " .:-=+*#%@"


@click.command()
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False))
def demo(folder: str | None) -> None:
    """Run a demo of npzkit on real data.

    FOLDER must have digits.npz and photographs.npz. The default is the folder
    fixtures of a checkout.

    Example: npzkit demo fixtures
    """
    arrays = _read_what_numpy_wrote(find_data(folder))
    with tempfile.TemporaryDirectory(prefix="npzkit-demo-") as name:
        path = Path(name) / "bundle.npz"
        _bundle(arrays, path)
        _open_lazily(path, arrays)
        _read_a_part(path.with_name("frames.npz"), arrays["china"])
        _survive_a_crash(path)
        _notice_damage(path)
    click.echo("\nEnd of the demo. The README shows the code for each step.")


def find_data(folder: str | None = None) -> Path:
    """Return the folder with the demo's data."""
    fixtures = Path(__file__).parents[2] / "fixtures", Path.cwd() / "fixtures"
    places = [Path(folder)] if folder else fixtures
    for place in places:
        if all((place / name).is_file() for name in _FILES):
            return place
    raise click.UsageError(
        f"no {' and '.join(_FILES)} in {' or '.join(map(str, places))}; run the demo in a "
        "checkout of npzkit, or pass the folder that has them: npzkit demo FOLDER"
    )


def _heading(text: str) -> None:
    click.echo()
    print_text(text)


def _say(text: str) -> None:
    print_text(f"   {text}")


def _confirmed(value: bool) -> str:
    """Return "yes", or raise an error if the demo read wrong data."""
    if not value:
        raise RuntimeError("the demo read other data than it wrote; please report this")
    return "yes"


def _read_what_numpy_wrote(data: Path) -> dict[str, Any]:
    _heading("1. Read what NumPy wrote: handwritten digits and two photographs")
    arrays: dict[str, Any] = {}
    for name in _FILES:
        with npzkit.open(data / name) as npz:
            arrays |= npz.load_all()
            _say(f"{name}: {', '.join(npz)}")
    for row in arrays["images"][0]:
        click.echo("      " + "".join(2 * _SHADES[int(value) * 9 // 16] for value in row))
    _say(f"... the first image, labelled {arrays['labels'][0]}.")
    return arrays


def _bundle(arrays: Mapping[str, Any], path: Path) -> None:
    _heading("2. Save them in one .npz, each array with its own compression")
    with npzkit.NpzWriter(path, metadata={"about": "npzkit's demo", "step": 1}) as writer:
        for key, array in arrays.items():
            # Floats compress badly, and stored arrays can be mapped.
            method: Any = "stored" if array.dtype.kind == "f" else "deflated"
            writer.add(key, array, compression=method, attrs={"mean": float(array.mean())})
    with npzkit.open(path) as npz:
        rows = [
            [info.key, str(info.shape), str(info.dtype), f"{info.nbytes:,}",
             f"{info.compressed_size:,}", info.method, f"{info.attrs['mean']:.2f}"]
            for info in map(npz.info, npz)
        ]  # fmt: skip
    print_table(["key", "shape", "dtype", "bytes", "in file", "method", "mean"], rows)
    theirs = _load_by_numpy(path)
    agree = all((theirs[key] == array).all() for key, array in arrays.items())
    _say(f"Plain np.load reads it: {_confirmed(agree)}")


def _open_lazily(path: Path, arrays: Mapping[str, Any]) -> None:
    _heading("3. Open it lazily: only the arrays that are used are read")
    with npzkit.open(path) as npz:
        _say(f'npz["labels"][:10] = {npz["labels"][:10]}')
        mapped = npz.memmap("means")
        same = _confirmed((mapped == arrays["means"]).all())
        _say(f'npz.memmap("means") shares {mapped.nbytes:,} bytes with the file: {same}')
        _say(f"npz.metadata = {dict(npz.metadata)}")


def _read_a_part(path: Path, photograph: Any) -> None:
    _heading("4. Create a compressed array frame by frame, and read a part of it")
    shape = (None, *photograph.shape)
    with (
        npzkit.NpzWriter(path, compression="deflated") as writer,
        writer.create("frames", shape, photograph.dtype) as frames,
    ):
        for shift in range(50):
            frames.append(photograph + shift)
    with npzkit.open(path) as npz:
        part = npz.lazy("frames")[30, 100:110, ::5]
    same = _confirmed((part == photograph[100:110, ::5] + 30).all())
    _say(f"frames[30, 100:110, ::5] has shape {part.shape}: {same}")


def _survive_a_crash(path: Path) -> None:
    _heading("5. Crash while saving to the same path: the old file stays complete")
    try:
        with npzkit.NpzWriter(path) as writer:
            writer["half"] = [0.5] * 1000
            raise RuntimeError("the power went out")
    except RuntimeError as error:
        with npzkit.open(path) as npz:
            _say(f"{error}; the file still has: {', '.join(npz)}")


def _notice_damage(path: Path) -> None:
    _heading("6. Damage one byte: npzkit reports it, and where it is")
    damaged = bytearray(path.read_bytes())
    with npzkit.open(path) as npz:
        damaged[npz.info("means").data_offset + 5] ^= 1
    try:
        npzkit.open(bytes(damaged))["means"]
    except npzkit.NpzkitError as error:
        _say(f"{type(error).__name__}: {error}")


def _load_by_numpy(path: Path) -> dict[str, Any]:
    import numpy as np

    with np.load(path) as npz:
        return dict(npz)
