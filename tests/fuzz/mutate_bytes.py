"""Mutations that know nothing of a format: bits, bytes, ranges, numbers."""

from __future__ import annotations

import random

__all__ = ["INTERESTING", "interesting", "mutate_bytes"]

INTERESTING = (
    0, 1, 2, 3, 4, 7, 8, 16, 22, 30, 46, 63, 64, 65, 127, 128, 255, 256, 1000, 4096, 10_000,
    0x7FFF, 0x8000, 0xFFFE, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF,
    0x100000000, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip


def interesting(rng: random.Random, old: int, bits: int) -> int:
    """Return a number that breaks things, of at most `bits` bits."""
    kind = rng.randrange(8)
    if kind < 2:
        value = old + rng.choice((-64, -16, -8, -4, -2, -1, 1, 2, 4, 8, 16, 64))
    elif kind == 2:
        value = old ^ (1 << rng.randrange(bits))
    elif kind == 3:
        value = rng.getrandbits(bits)
    else:
        value = rng.choice(INTERESTING)
    return value & ((1 << bits) - 1)


def mutate_bytes(data: bytes, rng: random.Random, others: tuple[bytes, ...] = ()) -> bytes:
    """Change a few bytes anywhere, or a range; now and then splice another input in."""
    out = bytearray(data)
    if not out:
        return rng.randbytes(rng.randrange(1, 40))
    kind = rng.randrange(11)
    at = rng.randrange(len(out))
    if kind < 3:
        out[at] ^= 1 << rng.randrange(8)
    elif kind == 3:
        out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif kind == 4:
        size = rng.choice((2, 4, 8))
        old = int.from_bytes(out[at : at + size], "little")
        out[at : at + size] = interesting(rng, old, 8 * size).to_bytes(size, "little")
    elif kind == 5:
        out[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 30)))
    elif kind == 6:
        del out[at : at + rng.choice((1, 2, 4, 8, 30, 200))]
    elif kind == 7:
        del out[at:]
    elif kind == 8:
        piece = out[at : at + rng.choice((1, 4, 16, 64, 256))]
        to = rng.randrange(len(out))
        out[to : to + (len(piece) if rng.random() < 0.5 else 0)] = piece
    elif kind == 9 and others:
        other = rng.choice(others)
        begin = rng.randrange(len(other) + 1)
        out[at:] = other[begin:]
    else:
        size = rng.choice((4, 16, 64))
        out[at : at + size] = bytes(len(out[at : at + size]))
    return bytes(out)
