"""The JSON of values that need no array, and back: in trees, and in checkpoints of PyTorch.

Owns which values JSON keeps with their types, and their notes. The kinds are a fixed list: a
file cannot name another class. Knows neither arrays nor trees. Imports PyTorch for a value of
PyTorch alone.

A note is one of these:

- None, a bool, an int, a float or a string: the value itself. A float may be NaN or infinite;
- ``[kind, note, ...]`` with the parts of the value: the items of a ``"list"``, ``"tuple"``,
  ``"set"``, ``"frozenset"`` or ``"torch.Size"``, and tuples of a key and a value of a ``"dict"`` or
  ``"collections.OrderedDict"``; both parts of a ``"complex"``; the text of a ``"datetime.date"``,
  ``"datetime.time"``, ``"datetime.datetime"``, ``"torch.dtype"`` or ``"torch.device"``; the days,
  seconds and microseconds of a ``"datetime.timedelta"``; the ``descr`` of a ``"numpy.dtype"``, and
  its name if ml_dtypes has it;
- the same with a kind of the caller's, as `npzkit.trees.containers` has some.
"""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from enum import Enum
from types import MappingProxyType, NoneType
from typing import Any

import numpy as np

from npzkit.errors import NpzkitError, UnsupportedError
from npzkit.members.tensors import described, dtype_of, package, without_pickle

_PLAIN = (NoneType, bool, int, float, str)
"""Types that are their own notes."""
_MAX_DEPTH = 100
"""Largest depth of a note. With a tree around it, Python's stack is deep enough."""
_MAX_BITS = 8192
"""Of the largest int. Python does not read longer ones from JSON."""


def _text(value: Any) -> tuple[str]:
    return (str(value),)


def _by_torch(name: str, given: Any) -> Any:
    """Return a value of PyTorch; without PyTorch, its text or a tuple."""
    if (torch := package("torch", f"{given!r} is not read as a torch.{name}")) is None:
        return given
    made = vars(torch)[given.removeprefix("torch.")] if name == "dtype" else None
    return made if isinstance(made, torch.dtype) else getattr(torch, name)(given)


_KINDS: dict[str, tuple[Callable[[Any], Iterable[Any]], Callable[[list[Any]], Any]]] = {
    "list": (iter, list), "tuple": (iter, tuple),
    "set": (iter, set), "frozenset": (iter, frozenset),
    "dict": (dict.items, dict), "collections.OrderedDict": (dict.items, OrderedDict),
    "complex": (lambda value: (value.real, value.imag), lambda parts: complex(*parts)),
    "datetime.date": (_text, lambda parts: date.fromisoformat(*parts)),
    "datetime.time": (_text, lambda parts: time.fromisoformat(*parts)),
    "datetime.datetime": (_text, lambda parts: datetime.fromisoformat(*parts)),
    "datetime.timedelta":
        (lambda value: (value.days, value.seconds, value.microseconds), lambda p: timedelta(*p)),
    "numpy.dtype": (described, lambda parts: dtype_of(*parts)),
    "torch.Size": (iter, lambda parts: _by_torch("Size", tuple(parts))),
    "torch.device": (_text, lambda parts: _by_torch("device", *parts)),
    "torch.dtype": (_text, lambda parts: _by_torch("dtype", *parts)),
}  # fmt: skip
"""How a value is taken apart, and how it is made of a list of its parts."""


@functools.lru_cache(256)
def _name_of(kind: Any) -> str:
    kind = np.dtype if issubclass(kind, np.dtype) else kind
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def is_noted(kind: Any) -> bool:
    """Return whether values of a class have a note.

    Examples
    --------
    >>> is_noted(set), is_noted(type(np.dtype("f4"))), is_noted(object)
    (True, True, False)
    """
    is_plain = issubclass(kind, _PLAIN) and not issubclass(kind, np.generic)
    return is_plain or _name_of(kind) in _KINDS


def note_of(value: Any, keep: Callable[[Any, int], Any] | None = None, depth: int = 0) -> Any:
    """Return the note of a value.

    Parameters
    ----------
    value : object
        Of a subclass of a number or a string, the number or string is kept.
    keep : callable, optional
        Called with a part that has no note, and its depth. Returns a note for it.

    Raises
    ------
    UnsupportedError, PickleRefusedError
        The value cannot be kept.

    Examples
    --------
    >>> note_of({3, 1, (2, 1j)})
    ['set', 1, 3, ['tuple', 2, ['complex', 0.0, 1.0]]]
    """
    if depth > _MAX_DEPTH:
        raise _refused("a value that is nested too deeply", "Keep less of it.")
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise _refused("an int of thousands of digits", "Save it as a string.")
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Enum):
        raise without_pickle(value)
    kind: Any = type(value)
    if not is_noted(kind):
        if keep is None:
            raise _refused(f"a set with a value of type {kind.__name__}", "Save list(value).")
        return keep(value, depth)
    if isinstance(value, _PLAIN):
        return value
    name = _name_of(kind)
    notes = [note_of(part, keep, depth + 1) for part in _parts(value, *_KINDS[name])]
    # The order of a set is another one in each process.
    return [name, *(sorted(notes, key=repr) if isinstance(value, (set, frozenset)) else notes)]


def _parts(value: Any, parts_of: Callable[[Any], Any], made: Callable[[Any], Any]) -> Any:
    """Return the parts of a value, or refuse one that differs from what is made of them."""
    with contextlib.suppress(ValueError):
        if isinstance(value, Iterable) or repr(made(parts_of(value))) == repr(value):
            return parts_of(value)
    raise without_pickle(value)


def _refused(what: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(f"{what} cannot be saved", remedy=remedy)


def value_of(note: Any, more: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return the value of a note.

    Parameters
    ----------
    note : object
        From a file, so it may be anything that JSON can hold.
    more : mapping of str to callable, optional
        Called with the parts of values of further kinds.

    Raises
    ------
    ValueError
        The note is not valid.

    Examples
    --------
    >>> value_of(["tuple", 1, ["datetime.date", "2026-01-31"]])
    (1, datetime.date(2026, 1, 31))
    """
    try:
        return _made(note, more, 0)
    except (NpzkitError, RecursionError):
        raise
    except (TypeError, LookupError, RuntimeError, AttributeError, OverflowError) as error:
        # Also what PyTorch says of a device, and Python of a set of lists.
        raise ValueError(str(error)) from error


def _made(note: Any, more: Mapping[str, Any], depth: int) -> Any:
    if type(note) in _PLAIN:
        return note
    if not isinstance(note, list) or depth > _MAX_DEPTH:
        raise ValueError(f"found {type(note).__name__}, {depth} deep")
    kind, *parts = note
    made = _KINDS[kind][1] if kind in _KINDS else more[kind]
    return made([_made(part, more, depth + 1) for part in parts])
