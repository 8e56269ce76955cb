"""Files of torch.save: pickles of nested data with tensors, which PyTorch reads.

Owns how they are read without running code from them, and what is said of the others. The
arrays and the note are those of `npzkit.save`. Such files are not written.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
from collections.abc import Iterator
from typing import Any

import torch

from npzkit.conversion.arrays import RUNS_CODE, Array, Contents, Say, array_of, unreadable
from npzkit.conversion.refusals import Claims
from npzkit.conversion.torch_records import Nothing, check_records
from npzkit.errors import (
    SKIP,
    ConversionError,
    FormatError,
    NotAnArrayError,
    NpzkitError,
    PickleRefusedError,
    UnsupportedError,
    printable,
    shown_value,
)
from npzkit.limits import MAX_DEPTH
from npzkit.members.metadata import TREE_KEY
from npzkit.members.tensors import as_unlabelled
from npzkit.trees.containers import flatten

_REFUSED = re.compile(r"\bGLOBAL (\S+)")
"""Finds what PyTorch does not unpickle."""
_REASON = re.compile(r"WeightsUnpickler error: (.*)")
_FREE_VALUES = 1 << 16
"""Values that the file's bytes need not stand for."""
_OTHERS_COUNT = 100
"""Classes that a file may have beside PyTorch's: for each, its pickle is read again."""
_ADVICE = (
    "In the program that made the file, save a state dict: tensors, numbers, strings, and lists "
    "and dicts of them."
)


@contextlib.contextmanager
def read(path: str, say: Say, claims: Claims) -> Iterator[Contents]:
    """Open a file, whose tensors are mapped if its records are stored."""
    tree = _load(path, claims)
    _check_tree(tree, os.path.getsize(path))
    try:
        arrays, note = flatten(tree, keep_refused=True)
    except NpzkitError:
        raise
    except (TypeError, ValueError) as error:
        raise ConversionError(str(error), remedy=_ADVICE) from error
    metadata = {} if note is None else {TREE_KEY: note}
    yield Contents(metadata, [_array(key, value) for key, value in arrays.items()])


def _load(path: str, claims: Claims) -> Any:
    """Return what was saved, on the CPU; `Nothing` takes the place of objects of other classes."""
    can_map = check_records(path, claims)
    others: dict[str, type[Nothing]] = {}
    while True:
        error: Exception | None = None
        # PyTorch may take what is nothing for a class of its own, and fail in any way.
        failures: type[Exception] = Exception if others else pickle.UnpicklingError
        try:
            with torch.serialization.safe_globals([(kind, name) for name, kind in others.items()]):
                tree = torch.load(path, map_location="cpu", weights_only=True, mmap=can_map)
            if not issubclass(_kind_of(tree), Nothing):
                return tree
        except (MemoryError, OSError):
            raise
        except failures as failure:
            error = failure
        # PyTorch's own text says how to load the file by running its code.
        found = _REFUSED.search(str(error))
        name = found[1] if found else ""
        name = name if "." in name else f"builtins.{name}"
        if found and name not in others and len(others) < _OTHERS_COUNT:
            # Of this module, so that nothing takes it for the class whose name it has.
            others[name] = type(printable(name), (Nothing,), {})
            continue
        if others:
            raise PickleRefusedError(
                "the file has other objects than tensors, numbers, strings and containers, and "
                "unpickling them could run code",
                found=list(others)[-1 if error else 0],
                remedy=SKIP + f" cannot leave them out: nothing of the file is read. {_ADVICE}",
            ) from error  # fmt: skip
        reason = _REASON.search(str(error))
        raise FormatError(
            "PyTorch cannot read the file", found=shown_value(reason[1] if reason else error)
        ) from error


def _kind_of(value: Any) -> Any:
    """Return the class of a value, which may be one that took the place of another itself."""
    return value if isinstance(value, type) else type(value)


def _check_tree(tree: Any, size: int) -> None:
    """Check that containers in containers are no more than the file has bytes for."""
    left, found = _FREE_VALUES + size, [iter((tree,))]
    while found:
        value = next(found[-1], found)
        left -= 1
        if left < 0:
            raise ConversionError(
                "the file's lists, tuples and dicts contain each other so often that they have "
                f"more values than the file of {size} bytes", remedy=_ADVICE,
            )  # fmt: skip
        if value is found:
            found.pop()
        elif isinstance(value, (dict, list, tuple, set, frozenset)):
            if len(found) > MAX_DEPTH:
                raise ConversionError(
                    f"the file's containers are nested more than {MAX_DEPTH} deep", remedy=_ADVICE
                )
            found.append(iter(value.values() if isinstance(value, dict) else value))


def _array(key: str, value: Any) -> Array:
    """Return a leaf as an array; with the reason if it is none."""
    kind = _kind_of(value)
    if issubclass(kind, Nothing):
        return unreadable(key, (), f"{RUNS_CODE}: {kind.__name__}")
    try:
        if isinstance(value, UnsupportedError):
            raise value
        return array_of(key, as_unlabelled(value, key))
    except UnsupportedError as error:
        if isinstance(error.__context__, ImportError):
            raise error.locate(key=key) from None
        what = error.what if error.found is None else f"{error.what}: {error.found}"
    except (NotAnArrayError, PickleRefusedError):
        what = f"it is a {kind.__name__}, not a tensor, number, string, list or dict"
    return unreadable(key, (), what)
