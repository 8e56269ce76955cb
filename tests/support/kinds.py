"""Arrays of the kinds that people save, of any size, the same every time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

WORDS = [b"lorem ", b"ipsum ", b"dolor ", b"sit ", b"amet, ", b"consectetur ", b"elit ", b"sed "]


def _layers(rng, size):
    """He-initialised layers of several scales, each followed by its biases of zero."""
    layers = []
    while sum(layer.nbytes for layer in layers) < size:
        for fan_out, fan_in in [(64, 27), (256, 576), (512, 2304), (1024, 1024)]:
            weights = rng.standard_normal(fan_out * fan_in, dtype="f4")
            layers += [weights * np.float32(np.sqrt(2 / fan_in)), np.zeros(fan_out, "f4")]
    return np.concatenate(layers)[: size // 4]


def _sparse(rng, size):
    values = rng.standard_normal(size // 8)
    values[rng.random(size // 8) < 0.95] = 0
    return values


def _mixed(rng, size):
    text = b"".join(WORDS[index] for index in rng.integers(0, len(WORDS), size // 20))[: size // 4]
    noise = rng.bytes(size - size // 2 - len(text))
    return np.frombuffer(bytes(size // 2) + noise + text, "u1")


def _picture(rng, size):
    x, y = np.arange(size) % 1024, np.arange(size) // 1024
    smooth = 128 + 60 * np.sin(x / 50) + 50 * np.cos(y / 70)
    return (smooth + rng.normal(0, 3, size)).astype("u1")


KINDS: dict[str, Callable] = {
    "float32 weights": lambda rng, size: (rng.standard_normal(size // 4) * 0.02).astype("f4"),
    "float32 layers": _layers,
    "int32 to 5000": lambda rng, size: rng.integers(0, 5000, size // 4).astype("i4"),
    "int32 to 10": lambda rng, size: rng.integers(0, 10, size // 4).astype("i4"),
    "counts": lambda rng, size: rng.poisson(30, size // 8),
    "running sums": lambda rng, size: np.cumsum(rng.integers(0, 100, size // 8)),
    "sparse": _sparse,
    "labels": lambda rng, size: rng.integers(0, 10, size).astype("u1"),
    "smooth float64": lambda rng, size: np.sin(np.arange(size // 8) / 1e4),
    "mixed": _mixed,
    "noise": lambda rng, size: np.frombuffer(rng.bytes(size), "u1"),
    "mask": lambda rng, size: rng.random(size) < 0.1,
    "picture": _picture,
}
"""A name to a function of a random generator and a size in bytes."""

GOALS = ("float32 weights", "int32 to 5000", "running sums", "sparse", "labels", "smooth float64")
"""What the speed of saving deflated is judged by."""


def make_kind(name, size):
    """Return about `size` bytes of a kind."""
    return KINDS[name](np.random.default_rng(0), size)
