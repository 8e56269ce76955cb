"""Copies of arrays that may change while they are written in the background.

Owns which arrays are copied, and copying on several threads. An array is not copied if
neither it nor what it is a view of can be written to: read-only arrays that own their
data, and read-only views of bytes. A change of a file changes all its maps, read-only ones
too, so maps are always copied. An array of JAX does not say whose memory it uses:
`jax.device_put` may take NumPy's, and `from_dlpack` PyTorch's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from npzkit.files.threads import grouped, run
from npzkit.limits import thread_count
from npzkit.members.tensors import as_unlabelled

_TASK_SIZE = 1 << 22
"""Bytes that a thread copies at a time."""
_ALIGNMENT = 64


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
    return not isinstance(owner, bytes)


class Snapshot:
    """The arrays of a tree, of which those that may change are still to be copied.

    Attributes
    ----------
    size : int
        Bytes to copy.
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = {key: as_unlabelled(value, key) for key, value in arrays.items()}
        self._changeable = [
            key for key, value in arrays.items()
            if _may_be_shared(value) and is_changeable(self._arrays[key])
        ]  # fmt: skip
        self.size = sum(self._arrays[key].nbytes for key in self._changeable)

    def take(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the arrays that nobody else can write to."""
        taken = dict(self._arrays)
        plain = [key for key in self._changeable if _is_plain(taken[key])]
        for key in self._changeable:
            if not _is_plain(taken[key]):
                taken[key] = taken[key].copy(order="K")
        # The system gives out one large piece of memory in fewer steps than many small ones.
        room = np.empty(sum(_room_for(taken[key]) for key in plain), np.uint8)
        pairs, offset = [], 0
        for key in plain:
            array = taken[key]
            order: Any = "F" if array.flags.fnc else "C"
            taken[key] = np.ndarray(array.shape, array.dtype, room, offset, None, order)
            pairs.append((_without_fields(taken[key]), _without_fields(array)))
            offset += _room_for(array)
        pieces = (piece for pair in pairs for piece in _pieces(*pair))
        groups = grouped(pieces, lambda piece: piece[0].nbytes, _TASK_SIZE)
        run([partial(_copy, group) for group in groups], thread_count(None))
        return taken


def _may_be_shared(value: Any) -> bool:
    """Return whether an array made of a value may use the value's memory."""
    return not isinstance(value, (bool, int, float, complex, str, bytes, list, tuple, np.generic))


def _is_plain(array: np.ndarray[Any, Any]) -> bool:
    """Return whether all of an array is in its memory: no objects, no strings of any length."""
    dtype = array.dtype
    return type(array) is np.ndarray and not dtype.hasobject and dtype.kind != "T"


def _without_fields(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view that is copied with the bytes between its fields, which are saved too."""
    if array.dtype.kind != "V" or not array.nbytes:
        return array
    return array.view(np.dtype((np.void, array.itemsize)))


def _room_for(array: np.ndarray[Any, Any]) -> int:
    return -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT


def _pieces(
    target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Yield parts of two arrays of one shape; one that is not contiguous is a part itself."""
    if source.nbytes <= _TASK_SIZE or not source.flags.forc:
        yield target, source
        return
    # The transpose of an array in Fortran's order is contiguous.
    flat = [(one.T if one.flags.fnc else one).reshape(-1) for one in (target, source)]
    step = max(_TASK_SIZE // source.itemsize, 1)
    for start in range(0, source.size, step):
        yield flat[0][start : start + step], flat[1][start : start + step]


def _copy(group: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> None:
    for target, source in group:
        np.copyto(target, source)
