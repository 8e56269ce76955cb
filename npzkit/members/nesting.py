"""Nested data: converting a tree to keys with ``/`` and a note.

Owns the conversion of a tree of dicts, lists and tuples to a flat mapping of
arrays. The note, of `npzkit.members.notes`, has what keys cannot express: lists,
tuples, int keys, names with slashes, and values that are not arrays. The way back is
`npzkit.members.restoring`'s. Knows nothing about archives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

import numpy as np

from npzkit.errors import NpzkitError, UnsupportedError
from npzkit.members import jax_arrays
from npzkit.members.containers import child_key, children_of, is_within
from npzkit.members.jax_arrays import is_pytree
from npzkit.members.labels import check_unlabelled
from npzkit.members.leaves import MISSING, encode, exact_array, holds_more
from npzkit.members.notes import INT, MAX_DEPTH, MAX_FIELDS
from npzkit.members.records import fields_of, is_dataclass, is_namedtuple, is_record, named
from npzkit.members.tensors import identity, is_tensor, is_tensor_type, special_dtype

_SINGLE_KEY = "arr_0"
"""The key of an array that is a tree, which `numpy.savez` gives it too."""


def is_nested(arrays: Mapping[Any, Any]) -> bool:
    """Return whether a value is not an array: a mapping, a tensor, None, or a list with one."""
    kinds = {type(array) for array in arrays.values()}
    if int in set(map(type, arrays)):
        return True
    if kinds == {np.ndarray} or not kinds:
        return False
    if any(
        issubclass(kind, (Mapping, NoneType)) or is_dataclass(kind) or is_tensor_type(kind)
        for kind in kinds
    ):
        return True
    if any(map(is_pytree, arrays.values())):
        return True
    if not any(issubclass(kind, (list, tuple)) for kind in kinds):
        return False
    return any(holds_more(array) for array in arrays.values() if isinstance(array, (list, tuple)))


def check_tree(value: Any) -> None:
    """Raise TypeError for what is neither a container nor an array of NumPy, PyTorch or JAX."""
    is_tree = (
        isinstance(value, (Mapping, list, tuple, np.ndarray))
        or is_tensor(value)
        or jax_arrays.is_array(value)
        or is_record(value)
    )
    if not is_tree:
        raise TypeError(
            "a tree must be a mapping, such as {'x': x}, a list, a tuple, a dataclass, a pytree or "
            f"an array, not {type(value).__name__}"
        )


def flatten(tree: Any, key: str = "") -> tuple[dict[str, Any], Any]:
    """Return the arrays of a tree by their keys, and the note.

    Parameters
    ----------
    tree : mapping of str or int to object, list, tuple, namedtuple, dataclass or array
        The fields of a namedtuple or a dataclass are a mapping.
    key : str, optional
        Under which the tree is saved.

    Returns
    -------
    arrays : dict of str to array-like
    note : object
        What the keys cannot express, or None.

    Raises
    ------
    TypeError
        A key is neither a string nor an int, or the tree is neither container nor array.
    ValueError
        The tree contains itself, is nested too deeply, or has a duplicate key.
    UnsupportedError
        A value cannot be kept.

    Notes
    -----
    An instance of a dataclass is a mapping of its fields, and one of a class that is
    registered with JAX a mapping of its children as a pytree. Arrays of tensors on
    the CPU share their memory. Tensors that are the same memory have one array.

    Examples
    --------
    >>> arrays, note = flatten({"layer": {"w": 1.5}, "rest": [None, (np.eye(1),)]})
    >>> arrays
    {'rest/1/0': array([[1.]])}
    >>> note
    {'layer': {'w': ['value', 1.5]}, 'rest': ['list', ['value', None], ['tuple', None]]}
    """
    arrays: dict[str, Any] = {}
    flattening = _Flattening(arrays)
    if key:
        # What is inside is not at the top: numbers are entries of the note.
        return arrays, flattening.value(tree, key, (0,))
    check_unlabelled(tree)
    check_tree(tree)
    if children_of(tree) is None:
        return arrays, ["single", _SINGLE_KEY, flattening.value(tree, _SINGLE_KEY, (0,))]
    if is_record(tree) and not is_namedtuple(tree):
        tree = fields_of(tree)
    return arrays, flattening.value(tree, "", ())


class _Flattening:
    """Collect the arrays of a tree by their keys, and return notes."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self._arrays = arrays
        self._types: set[Any] = set()
        # The tensors are kept alive, so that no other one gets their memory.
        self._tensors: dict[Any, tuple[str, Any]] = {}

    def _mapping(self, tree: Mapping[Any, Any], key: str, around: tuple[int, ...]) -> Any:
        if type(tree) is not dict:
            check_unlabelled(tree, key or None)
        around = _within(tree, around, key)
        notes: dict[str, Any] = {}
        names: set[str] = set()
        # The last name with arrays. Names without arrays follow it in the note.
        last = None
        for given, value in tree.items():
            name = _name_of(given, key)
            below = child_key(key, name)
            if name in names:
                raise _duplicate_key(below)
            names.add(name)
            count = len(self._arrays)
            note = self.value(value, below, around)
            if len(self._arrays) > count:
                last = name
            elif last is not None:
                notes.setdefault(last, None)
            if note is not None or "/" in name:
                notes[name] = note
        _check_slashes(tree, key)
        if any(type(name) is int for name in tree):
            strings = [name for name in tree if isinstance(name, str) and INT.fullmatch(name)]
            return ["ints", notes, strings] if strings else ["ints", notes]
        return notes if notes or (key and not tree) else None

    def value(self, value: Any, key: str, around: tuple[int, ...]) -> Any:
        """Collect the arrays of a node, and return its note."""
        if type(value) is np.ndarray:
            return self._array(value, key, None)
        is_leaf = is_tensor(value)
        if not is_leaf:
            if isinstance(value, Mapping):
                return self._mapping(value, key, around)
            if isinstance(value, (list, tuple)):
                return self._items(value, key, around)
            if is_record(value):
                return self._mapping(fields_of(value), key, _within(value, around, key))
        try:
            first = self._first_key(value, key) if is_leaf else key
            if first != key:
                return ["same", first, *special_dtype(value)]
            array, note = encode(value, is_top=len(around) == 1)
        except NpzkitError as error:
            raise error.locate(key=key) from None
        return note if array is MISSING else self._array(array, key, note)

    def _items(self, items: Any, key: str, around: tuple[int, ...]) -> Any:
        is_top = len(around) == 1
        around = _within(items, around, key)
        if is_namedtuple(items):
            fields = fields_of(items)
            notes = [
                self.value(item, child_key(key, name), around) for name, item in fields.items()
            ]
            return ["named", *self._type_of(items, key), *notes]
        kind = "tuple" if isinstance(items, tuple) else "list"
        if is_top and (array := exact_array(items)) is not None:
            return self._array(array, key, ["as", kind])
        return [
            kind,
            *[self.value(item, child_key(key, i), around) for i, item in enumerate(items)],
        ]

    def _type_of(self, items: Any, key: str) -> tuple[str, list[str]]:
        """Return the name and the fields of a namedtuple's class, from which it can be made."""
        name, fields = type(items).__name__, items._fields
        self._types.add((name, fields))
        if len(fields) > MAX_FIELDS or len(self._types) > MAX_FIELDS:
            raise UnsupportedError(
                f"namedtuples of more than {MAX_FIELDS} fields or classes cannot be kept",
                key=key,
                found=name,
                remedy="Save value._asdict().",
            )
        try:
            named(name, fields)
        except (ValueError, TypeError):
            raise UnsupportedError(
                "this namedtuple has names that Python does not allow",
                key=key,
                found=name,
                remedy="Save value._asdict().",
            ) from None
        return name, list(fields)

    def _first_key(self, tensor: Any, key: str) -> str:
        """Return the first key under which the memory of a tensor is saved."""
        shared = identity(tensor)
        return key if shared is None else self._tensors.setdefault(shared, (key, tensor))[0]

    def _array(self, array: Any, key: str, note: Any) -> Any:
        if key in self._arrays:
            raise _duplicate_key(key)
        self._arrays[key] = array
        return note


def _name_of(name: object, key: str) -> str:
    """Return a string itself, or an int as text."""
    if isinstance(name, str):
        return name
    if type(name) is int and INT.fullmatch(text := str(name)):
        return text
    raise TypeError(
        f"a key must be a string or an int, not {type(name).__name__}"
        + (f", in {key!r}" if key else "")
    )


def _check_slashes(tree: Mapping[Any, Any], key: str) -> None:
    """Check that nothing in a mapping has a key that is within that of a name with slashes."""
    names = {str(name): name for name in tree}
    for name in names:
        first, slash, _ = name.partition("/")
        while slash and first != name:
            inner = _keys_in(tree[names[first]], first) if first in names else ()
            if any(is_within(below, name) for below in inner):
                raise UnsupportedError(
                    f"two items of the tree have this key: the name {name!r}, and what is in "
                    f"{first!r}",
                    key=child_key(key, name),
                    remedy="Choose another name, without a slash.",
                )
            first += slash + name[len(first) + 1 :].partition("/")[0]


def _keys_in(node: Any, key: str) -> Iterator[str]:
    """Yield the keys of all that is in a node."""
    for name, item in (children_of(node) or {}).items():
        below = child_key(key, name)
        yield below
        yield from _keys_in(item, below)


def _duplicate_key(key: str) -> ValueError:
    return ValueError(f"two arrays in the tree have the key {key!r}")


def _within(node: object, around: tuple[int, ...], where: str) -> tuple[int, ...]:
    """Return the ids of the nodes around the children of `node`."""
    if id(node) in around:
        raise ValueError(f"the tree contains itself, at {where!r}")
    if len(around) > MAX_DEPTH:
        raise ValueError(f"the tree is nested more than {MAX_DEPTH} deep, at {where[:80]!r}")
    return (*around, id(node))
