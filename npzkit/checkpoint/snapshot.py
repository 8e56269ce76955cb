"""Copies of arrays that may change while they are written in the background.

Owns which arrays are copied, and copying on several threads. An array is not copied if
neither it nor what it is a view of can be written to: read-only arrays that own their
data, and read-only views of bytes or of a read-only map.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from npzkit.files.block_reading import BLOCK_SIZE
from npzkit.files.threads import run, thread_count
from npzkit.writing.prepared_array import as_array

__all__ = ["Snapshot", "is_changeable"]

_SMALL_SIZE = 1 << 16
"""Arrays up to this size are copied at once: that takes less time than to hand them on."""


def is_changeable(array: Any) -> bool:
    """Return whether anything can write to an array."""
    owner: Any = array
    while isinstance(owner, (np.ndarray, memoryview)):
        if isinstance(owner, memoryview):
            owner = owner.obj
        elif owner.flags.writeable:
            return True
        elif owner.base is None:
            return False
        else:
            owner = owner.base
    if isinstance(owner, mmap.mmap):
        with memoryview(owner) as view:
            return not view.readonly
    return not isinstance(owner, bytes)


class Snapshot:
    """The arrays of a tree, of which those that may change are still to be copied.

    Attributes
    ----------
    size : int
        Bytes to copy.
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = {key: as_array(value, key) for key, value in arrays.items()}
        self._changeable = [
            key for key, value in arrays.items()
            if _may_be_shared(value) and is_changeable(self._arrays[key])
        ]  # fmt: skip
        self.size = sum(self._arrays[key].nbytes for key in self._changeable)

    def take(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the arrays that nobody else can write to."""
        taken = dict(self._arrays)
        tasks: list[Callable[[], object]] = []
        for key in self._changeable:
            taken[key] = _begin_copy(self._arrays[key], tasks)
        run(tasks, thread_count(None))
        return taken


def _may_be_shared(value: Any) -> bool:
    """Return whether an array made of a value may use the value's memory."""
    return not isinstance(value, (bool, int, float, complex, str, bytes, list, tuple, np.generic))


def _begin_copy(
    array: np.ndarray[Any, Any], tasks: list[Callable[[], object]]
) -> np.ndarray[Any, Any]:
    """Return a copy of an array, and add what is left to do for it to `tasks`."""
    if array.nbytes <= _SMALL_SIZE or type(array) is not np.ndarray:
        return array.copy(order="K")
    copy = np.empty_like(array)
    try:
        source, target = (one.ravel(order="K").view(np.uint8) for one in (array, copy))
    except TypeError:
        # Objects, and strings of any length: their bytes are elsewhere.
        return array.copy(order="K")
    if not (np.shares_memory(source, array) and np.shares_memory(target, copy)):
        # The array is not contiguous, and no bytes of it lie together.
        tasks.append(partial(np.copyto, copy, array))
        return copy
    for start in range(0, len(source), BLOCK_SIZE):
        block = slice(start, start + BLOCK_SIZE)
        tasks.append(partial(np.copyto, target[block], source[block]))
    return copy
