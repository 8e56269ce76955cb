"""Mutations of an index of a sharded archive: of its values, and of its bytes."""

from __future__ import annotations

import bisect
import contextlib
import copy
import itertools
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
        if rng.random() < 0.4:
            with contextlib.suppress(
                LookupError, TypeError, ValueError, AttributeError, OverflowError
            ):
                _exchange(value, rng)
        else:
            _change(*rng.choice(places), rng)
    return json.dumps(value).encode()


def _exchange(index: Any, rng: random.Random) -> None:
    """Exchange what the index says of two parts, or of two arrays; it mostly stays valid.

    Raises what Python raises if earlier changes left no columns.
    """
    rng.choice(
        (_exchange_parts, _exchange_parts, _exchange_keys, _exchange_arrays, _exchange_boxes)
    )(index, rng)


def _swap(column: Any, one: int, other: int) -> None:
    column[one], column[other] = column[other], column[one]


def _pair(count: int, rng: random.Random) -> list[int]:
    return rng.sample(range(count), 2)


def _exchange_parts(index: Any, rng: random.Random) -> None:
    """Exchange some of the columns of two parts, such as their shards, or all of them."""
    parts = index["parts"]
    one, other = _pair(len(parts["shard"]), rng)
    names = ["shard", "size", "crc32", "method"]
    for name in rng.choice((names, *([name] for name in names), rng.sample(names, 2))):
        _swap(parts[name], one, other)
    if rng.random() < 0.5:
        _exchange_two_keys(index, one, other)


def _exchange_keys(index: Any, rng: random.Random) -> None:
    _exchange_two_keys(index, *_pair(len(index["parts"]["shard"]), rng))


def _exchange_two_keys(index: Any, one: int, other: int) -> None:
    """Exchange the keys that two parts have in their shards, also those of their arrays."""
    arrays, keys = index["arrays"], index["parts"]["key"]
    # Counts may be as large as numbers can be.
    ends = list(itertools.accumulate(arrays["parts"]))
    found = [
        keys.get(str(part), arrays["key"][bisect.bisect_right(ends, part)]) for part in (one, other)
    ]
    keys[str(one)], keys[str(other)] = found[1], found[0]


def _exchange_arrays(index: Any, rng: random.Random) -> None:
    """Exchange the keys, the dtypes or the shapes of two arrays, or their shards without items."""
    arrays = index["arrays"]
    one, other = _pair(len(arrays["key"]), rng)
    kind = rng.choice(("key", "dtype", "shape", "empty", "all"))
    if kind in ("key", "dtype"):
        _swap(arrays[kind], one, other)
    elif kind == "empty":
        _swap(arrays["empty"], *rng.sample(sorted(arrays["empty"]), 2))
    else:
        ends = [sum(arrays["ndim"][: number + 1]) for number in range(len(arrays["ndim"]))]
        shapes = [
            arrays["shape"][end - ndim : end]
            for end, ndim in zip(ends, arrays["ndim"], strict=True)
        ]
        for column in (shapes, arrays["ndim"], *([arrays["dtype"]] if kind == "all" else [])):
            _swap(column, one, other)
        arrays["shape"] = [length for shape in shapes for length in shape]


def _exchange_boxes(index: Any, rng: random.Random) -> None:
    """Exchange where two parts of an array are."""
    arrays, parts = index["arrays"], index["parts"]
    counts = list(zip(arrays["parts"], arrays["ndim"], strict=True))
    several = [number for number, (count, ndim) in enumerate(counts) if count > 1 and ndim]
    number = rng.choice(several)
    start = sum(count * ndim for count, ndim in counts[:number] if count > 1)
    count, ndim = counts[number]
    one, other = (start + ndim * at for at in _pair(count, rng))
    for name in rng.choice((["offset"], ["offset", "shape"])):
        column = parts[name]
        first, second = column[one : one + ndim], column[other : other + ndim]
        column[one : one + ndim], column[other : other + ndim] = second, first


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
