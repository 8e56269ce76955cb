"""What npzkit does, step by step, on real data: ``python tests/tour.py`` in a checkout."""

from __future__ import annotations

import tempfile
from pathlib import Path

import npzkit
import numpy as np

FIXTURES = Path(__file__).parents[1] / "fixtures"
SHADES = " .:-=+*#%@"


def main() -> None:
    arrays = read_what_numpy_wrote()
    with tempfile.TemporaryDirectory(prefix="npzkit-tour-") as name:
        path = Path(name) / "bundle.npz"
        bundle(arrays, path)
        open_lazily(path, arrays)
        read_a_part(path.with_name("frames.npz"), arrays["china"])
        survive_a_crash(path)
        notice_damage(path)
    print("\nEnd of the tour. The guide shows the code for each step: npzkit help")


def heading(text: str) -> None:
    print(f"\n{text}")


def say(text: str) -> None:
    print(f"   {text}")


def confirmed(value: bool) -> str:
    """Return "yes", or raise an error if the tour read wrong data."""
    if not value:
        raise RuntimeError("the tour read other data than it wrote; please report this")
    return "yes"


def read_what_numpy_wrote() -> dict[str, np.ndarray]:
    heading("1. Read what NumPy wrote: handwritten digits and two photographs")
    arrays = {}
    for name in ("digits.npz", "photographs.npz"):
        with npzkit.open(FIXTURES / name) as npz:
            arrays |= npz.load_all()
            say(f"{name}: {', '.join(npz)}")
    for row in arrays["images"][0]:
        say("   " + "".join(2 * SHADES[int(value) * 9 // 16] for value in row))
    say(f"... the first image, labelled {arrays['labels'][0]}.")
    return arrays


def bundle(arrays: dict[str, np.ndarray], path: Path) -> None:
    heading("2. Save them in one .npz, each array with its own compression")
    with npzkit.NpzWriter(path, metadata={"about": "npzkit's tour", "step": 1}) as writer:
        for key, array in arrays.items():
            # Floats compress badly, and stored arrays can be mapped.
            method = "stored" if array.dtype.kind == "f" else "deflated"
            writer.add(key, array, compression=method, attrs={"mean": float(array.mean())})
    with npzkit.open(path) as npz:
        for info in map(npz.info, npz):
            text = f"{info.key:10}{info.shape!s:16}{info.dtype!s:9}{info.nbytes:>9,} bytes, "
            text += f"{info.compressed_size:>9,} in the file, {info.method:9}"
            say(f"{text}mean {info.attrs['mean']:.2f}")
    with np.load(path) as theirs:
        agree = all((theirs[key] == array).all() for key, array in arrays.items())
    say(f"Plain np.load reads it: {confirmed(agree)}")


def open_lazily(path: Path, arrays: dict[str, np.ndarray]) -> None:
    heading("3. Open it lazily: only the arrays that are used are read")
    with npzkit.open(path) as npz:
        say(f'npz["labels"][:10] = {npz["labels"][:10]}')
        mapped = npz.memmap("means")
        same = confirmed((mapped == arrays["means"]).all())
        say(f'npz.memmap("means") shares {mapped.nbytes:,} bytes with the file: {same}')
        say(f"npz.metadata = {dict(npz.metadata)}")


def read_a_part(path: Path, photograph: np.ndarray) -> None:
    heading("4. Create a compressed array frame by frame, and read a part of it")
    shape = (None, *photograph.shape)
    with (
        npzkit.NpzWriter(path, compression="deflated") as writer,
        writer.create("frames", shape, photograph.dtype) as frames,
    ):
        for shift in range(50):
            frames.append(photograph + shift)
    with npzkit.open(path) as npz:
        part = npz.lazy("frames")[30, 100:110, ::5]
    same = confirmed((part == photograph[100:110, ::5] + 30).all())
    say(f"frames[30, 100:110, ::5] has shape {part.shape}: {same}")


def survive_a_crash(path: Path) -> None:
    heading("5. Crash while saving to the same path: the old file stays complete")
    try:
        with npzkit.NpzWriter(path) as writer:
            writer["half"] = [0.5] * 1000
            raise RuntimeError("the power went out")
    except RuntimeError as error:
        with npzkit.open(path) as npz:
            say(f"{error}; the file still has: {', '.join(npz)}")


def notice_damage(path: Path) -> None:
    heading("6. Damage one byte: npzkit reports it, and where it is")
    damaged = bytearray(path.read_bytes())
    with npzkit.open(path) as npz:
        damaged[npz.info("means").data_offset + 5] ^= 1
    try:
        npzkit.open(bytes(damaged))["means"]
    except npzkit.NpzkitError as error:
        say(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
