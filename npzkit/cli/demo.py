"""The command that writes sample files: those that the guide and the examples of commands use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

import npzkit
from npzkit.checkpoint import CheckpointStore
from npzkit.cli.output import print_table
from npzkit.errors import printable

TO_TRY = [
    ("npzkit tree model.npz", "the weights of a network, nested"),
    ("npzkit diff model.npz other.npz", "the same weights one step later"),
    ("npzkit show run.npz losses --stats", "results: a curve and an image"),
    ('npzkit show big.npz frames "50, 0, :3"', "100 frames of a film"),
    ("npzkit repack maps.npz", "maps that NumPy compressed"),
    ("npzkit show strange.npz depth --stats", "one odd value, names and dates"),
    ("npzkit verify broken.npz", "model.npz with one wrong bit"),
    ("npzkit pack new.npz weights.npy bias.npy", "single arrays"),
    ("npzkit ckpt ls run", "checkpoints of a training run"),
]
"""A command to try with each file, and what the file is."""


@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
def demo(folder: str) -> None:
    """Write sample files to FOLDER, and say what to try with them.

    FOLDER is new, or empty. The files have 4 MB. They are those that the commands
    in the guide, and the examples in the --help of commands, use.

    Example: npzkit demo samples
    """
    path = Path(folder)
    if path.is_dir() and any(path.iterdir()):
        raise click.UsageError(f"{printable(folder)} is not empty. Name a new folder.")
    path.mkdir(parents=True, exist_ok=True)
    write_samples(path)
    click.echo(f"Sample files are in {printable(folder)}. Go there with cd, and try:\n")
    print_table(["command", "its file"], TO_TRY)
    click.echo("\nnpzkit help shell shows more commands.")


def write_samples(folder: Path) -> None:
    """Write the files to an empty folder: the same in each run."""
    _write_weights(folder, np.random.default_rng(0))
    _write_results(folder, np.random.default_rng(1))
    _write_checkpoints(folder / "run", np.random.default_rng(2))


def _write_weights(folder: Path, rng: np.random.Generator) -> None:
    layers = {"weights": _normal(rng, 300, 200), "bias": np.linspace(-0.1, 0.1, 200, dtype="f4")}
    hidden = {"weights": _normal(rng, 64, 300), "bias": _normal(rng, 300)}
    model: dict[str, Any] = {**layers, "hidden": hidden}
    npzkit.save(folder / "model.npz", model, metadata={"step": 300})
    model["bias"] = layers["bias"] + np.float32(1e-3) * _normal(rng, 200)
    npzkit.save(folder / "other.npz", model, metadata={"step": 301})
    for key, array in layers.items():
        np.save(folder / f"{key}.npy", array)
    data = bytearray((folder / "model.npz").read_bytes())
    with npzkit.open(folder / "model.npz") as npz:
        data[npz.info("weights").data_offset + 1000] ^= 1
    (folder / "broken.npz").write_bytes(data)


def _write_results(folder: Path, rng: np.random.Generator) -> None:
    steps = np.arange(1000)
    with npzkit.NpzWriter(folder / "run.npz", "x", compression="deflated") as w:
        w["losses"] = 2 * np.exp(-steps / 200) + 0.1 + 0.02 * rng.random(len(steps))
        w.add("image", 280 + 5 * _smooth(rng, 64, 64), attrs={"unit": "K"})
    with (
        npzkit.NpzWriter(folder / "big.npz", "x") as w,
        w.create("frames", (100, 64, 64), "u2") as dst,
    ):
        rows, columns = np.ogrid[:64, :64]
        for number in range(len(dst)):
            spot = np.hypot(rows - 32, columns - number % 64) / 6
            dst[number] = 40_000 * np.exp(-spot * spot) + rng.integers(900, 1100, (64, 64))
    np.savez_compressed(folder / "maps.npz", maps=_smooth(rng, 40, 100, 100))
    depth = 3000 + 400 * _smooth(rng, 200, 64)
    depth[17, 33] = np.nan
    days = np.arange("2026-01-01", 200, dtype="datetime64[D]")
    stations = np.array([f"buoy {number}" for number in range(64)])
    npzkit.save(folder / "strange.npz", {"depth": depth, "days": days, "stations": stations})


def _write_checkpoints(path: Path, rng: np.random.Generator) -> None:
    weights, momentum = _normal(rng, 64, 32), np.zeros((64, 32), "f4")
    with CheckpointStore(path, durable=False) as store:
        for step, loss in ((100, 0.9), (200, 0.4), (300, 0.5)):
            momentum += 0.1 * _normal(rng, 64, 32)
            weights += momentum
            tree = {
                "model": {"layers.0.weight": weights, "layers.0.bias": weights[0]},
                "optimizer": {"lr": 1e-3, "momentum": momentum},
            }
            store.save(step, tree, metrics={"loss": loss})


def _normal(rng: np.random.Generator, *shape: int) -> Any:
    """Return numbers as they are in the weights of a layer."""
    return rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0]))


def _smooth(rng: np.random.Generator, *shape: int) -> Any:
    """Return a field of a few waves, between -2 and 2."""
    field = np.zeros(shape, "f4")
    for start in range(4):
        phase = np.full(shape, start, "f4")
        for place in np.ogrid[tuple(map(slice, shape))]:
            phase += place * np.float32(rng.normal(0, 6 / place.size))
        field += np.sin(phase) / 2
    return field
