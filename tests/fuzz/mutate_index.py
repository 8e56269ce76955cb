"""Mutations of an index of a sharded archive: of its values, and of its bytes."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from mutate_bytes import interesting, mutate_bytes

__all__ = ["mutate_index"]

_OTHERS: tuple[Any, ...] = (
    None, True, False, 0.5, float("nan"), "", "w", "../x.npz", "C:x.npz", "/x.npz", "http://h/x.npz",
    "shard-1.npz", "<f8", "|O", "<V2", "bfloat16", [], {}, [[]], 10**400,
)  # fmt: skip


def mutate_index(data: bytes, rng: random.Random, others: tuple[bytes, ...] = ()) -> bytes:
    """Change a few values of an index; now and then, its bytes."""
    if rng.random() < 0.15:
        return mutate_bytes(data, rng, others)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(data, rng, others)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            break
        _change(*rng.choice(places), rng)
    return json.dumps(value).encode()


def _places(value: Any, depth: int = 0) -> Any:
    """Yield each container of the index with each of its names or positions."""
    if depth > 6:
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, inner in list(items):
        yield value, name
        if isinstance(inner, (dict, list)):
            yield from _places(inner, depth + 1)


def _change(container: Any, name: Any, rng: random.Random) -> None:
    old = container[name]
    kind = rng.randrange(8)
    if kind == 0:
        del container[name]
    elif kind == 1:
        container[name] = copy.deepcopy(rng.choice(_OTHERS))
    elif kind == 2 and isinstance(container, list):
        # A column that is too long, or has two values in each other's places.
        other = rng.randrange(len(container))
        container[name], container[other] = container[other], container[name]
    elif kind == 3 and isinstance(container, list):
        container.insert(rng.randrange(len(container) + 1), copy.deepcopy(old))
    elif kind == 4 and isinstance(container, dict):
        container[rng.choice(("", "0", "1", "5", "99", "x", "-1"))] = copy.deepcopy(old)
    elif type(old) is int:
        container[name] = interesting(rng, old, 64) - rng.choice((0, 0, 0, 1 << 63))
    elif isinstance(container, list) and len(container) > 1:
        container[name] = copy.deepcopy(rng.choice(container))
    else:
        container[name] = copy.deepcopy(rng.choice(_OTHERS))
