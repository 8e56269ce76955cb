"""Nested data: converting a tree to keys with ``/`` and a note, and back.

Owns the conversion of a tree of dicts, lists and tuples to a flat mapping of
arrays, and back. The note has what keys cannot express: lists, tuples, None,
numbers, strings, int keys, and the positions of values that are not arrays. It
is stored as JSON. Knows nothing about archives.

A note is one of these:

- None: an array, or a mapping of arrays, as the keys describe it;
- ``{name: note}``: a mapping, with the items that need notes;
- ``["ints", {name: note}]``: a mapping whose names are ints if they look like
  ints, except for the names in an optional third item, ``[name, ...]``;
- ``["list", note, ...]`` and ``["tuple", note, ...]``, with a note per item;
- ``["value", value]``: None, a number or a string;
- ``["as", kind]``: an array that was a Python number, string, list or tuple.

In the note of a mapping, a name without arrays follows the name that came
before it, if that one has arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

import numpy as np

from npzkit.errors import LimitExceededError, UnsupportedError, ZipFormatError
from npzkit.limits import is_backed
from npzkit.members.metadata import format_metadata, is_deeper

__all__ = [
    "MISSING",
    "TREE_KEY",
    "flatten",
    "has_note",
    "is_nested",
    "is_within",
    "replace_note",
    "unflatten",
    "with_note",
]

TREE_KEY = "npzkit.tree"
"""The key of the note in the metadata."""
MISSING: Any = object()
"""The result of `unflatten` for a prefix without arrays."""

_MAX_DEPTH = 200
"""Largest depth of a tree."""
_PLAIN = (bool, int, float, str)
"""Types that JSON keeps."""
_INT = r"0|-?[1-9][0-9]{0,600}"
"""The text of an int that Python can always parse."""


def is_nested(arrays: Mapping[Any, Any]) -> bool:
    """Return whether a value is not an array: a mapping, None, or a list with one of these."""
    kinds = {type(array) for array in arrays.values()}
    if int in set(map(type, arrays)):
        return True
    if kinds == {np.ndarray} or not kinds:
        return False
    if any(issubclass(kind, (Mapping, NoneType)) for kind in kinds):
        return True
    if not any(issubclass(kind, (list, tuple)) for kind in kinds):
        return False
    return any(_holds_more(array) for array in arrays.values() if isinstance(array, (list, tuple)))


def _holds_more(items: Iterable[Any], depth: int = 0) -> bool:
    """Return whether a list has other items than numbers and strings, at any depth."""
    if depth > _MAX_DEPTH:
        return True
    return any(
        _holds_more(item, depth + 1)
        if isinstance(item, (list, tuple))
        else not isinstance(item, (*_PLAIN, complex, np.generic, bytes))
        for item in items
    )


# -- to keys ---------------------------------------------------------------


def flatten(tree: Mapping[Any, Any]) -> tuple[dict[str, Any], Any]:
    """Return the arrays of a tree by their keys, and the note.

    Parameters
    ----------
    tree : mapping of str or int to object

    Returns
    -------
    arrays : dict of str to array-like
    note : object
        What the keys cannot express, or None.

    Raises
    ------
    TypeError
        A key is neither a string nor an int.
    ValueError
        The tree contains itself, is nested too deeply, or has a duplicate key.
    UnsupportedError
        The tree has a namedtuple.

    Examples
    --------
    >>> arrays, note = flatten({"layer": {"w": 1.5}, "rest": [None, (np.int8(1),)]})
    >>> arrays
    {'rest/1/0': np.int8(1)}
    >>> note
    {'layer': {'w': ['value', 1.5]}, 'rest': ['list', ['value', None], ['tuple', None]]}
    """
    arrays: dict[str, Any] = {}
    return arrays, _Flattening(arrays).mapping(tree, "", ())


class _Flattening:
    """Collect the arrays of a tree by their keys, and return notes."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self._arrays = arrays

    def mapping(self, tree: Mapping[Any, Any], prefix: str, around: tuple[int, ...]) -> Any:
        around = _within(tree, around, prefix)
        notes: dict[str, Any] = {}
        names: set[str] = set()
        # The last name with arrays. Names without arrays follow it in the note.
        last = None
        grouped = _grouped(tree, prefix)
        for key, value in grouped.items():
            name = _name_of(key, prefix)
            if name in names:
                raise _duplicate_key(prefix + name)
            names.add(name)
            count = len(self._arrays)
            note = self._value(value, prefix + name, around)
            if len(self._arrays) > count:
                last = name
            elif last is not None:
                notes.setdefault(last, None)
            if note is not None:
                notes[name] = note
        if any(type(key) is int for key in grouped):
            strings = [k for k in grouped if isinstance(k, str) and re.fullmatch(_INT, k)]
            return ["ints", notes, strings] if strings else ["ints", notes]
        return notes if notes or (prefix and not tree) else None

    def _value(self, value: Any, key: str, around: tuple[int, ...]) -> Any:
        if isinstance(value, Mapping):
            return self.mapping(value, key + "/", around)
        is_top = len(around) == 1
        if isinstance(value, (list, tuple)):
            return self._items(value, key, around, is_top=is_top)
        if value is None:
            return ["value", None]
        if isinstance(value, _PLAIN) and not isinstance(value, np.generic):
            if is_top and (array := _exact_array(value)) is not None:
                return self._array(array, key, ["as", "value"])
            return ["value", value]
        return self._array(value, key, None)

    def _items(self, items: Any, key: str, around: tuple[int, ...], *, is_top: bool) -> Any:
        if isinstance(items, tuple) and hasattr(items, "_fields"):
            raise UnsupportedError(
                "a namedtuple would come back as a tuple",
                key=key,
                found=type(items).__name__,
                remedy="Save value._asdict(), and make the namedtuple from the dict after loading.",
            )
        kind = "tuple" if isinstance(items, tuple) else "list"
        if is_top and (array := _exact_array(items)) is not None:
            return self._array(array, key, ["as", kind])
        around = _within(items, around, key)
        return [kind, *[self._value(item, f"{key}/{i}", around) for i, item in enumerate(items)]]

    def _array(self, array: Any, key: str, note: Any) -> Any:
        if key in self._arrays:
            raise _duplicate_key(key)
        self._arrays[key] = array
        return note


def _name_of(key: object, prefix: str) -> str:
    """Return a string key itself, or an int key as text."""
    if isinstance(key, str):
        return key
    if type(key) is int and re.fullmatch(_INT, text := str(key)):
        return text
    raise TypeError(
        f"a key must be a string or an int, not {type(key).__name__}"
        + (f", in {prefix[:-1]!r}" if prefix else "")
    )


def _grouped(tree: Mapping[Any, Any], prefix: str) -> Mapping[Any, Any]:
    """Return a mapping without slashes in names: ``{"a/b": x}`` is ``{"a": {"b": x}}``.

    A name is kept if its first part is the name of an array.
    """
    if not any(isinstance(name, str) and "/" in name for name in tree):
        return tree
    grouped: dict[Any, Any] = {}
    for name, value in tree.items():
        first, slash, rest = name.partition("/") if isinstance(name, str) else (name, "", "")
        if slash and isinstance(tree.get(first, {}), Mapping):
            _merge(grouped, first, {rest: value}, prefix)
        else:
            _merge(grouped, name, value, prefix)
    return grouped


def _merge(into: dict[Any, Any], name: Any, value: Any, prefix: str) -> None:
    """Put a value into a mapping, and merge two mappings with the same name."""
    if name not in into:
        into[name] = value
        return
    there = into[name]
    if not (isinstance(there, Mapping) and isinstance(value, Mapping)):
        raise _duplicate_key(f"{prefix}{name}")
    into[name] = merged = dict(there)
    for inner_name, inner in value.items():
        _merge(merged, inner_name, inner, f"{prefix}{name}/")


def _duplicate_key(key: str) -> ValueError:
    return ValueError(f"two arrays in the tree have the key {key!r}")


def _within(node: object, around: tuple[int, ...], where: str) -> tuple[int, ...]:
    """Return the ids of the nodes around the children of `node`."""
    where = where.rstrip("/")
    if id(node) in around:
        raise ValueError(f"the tree contains itself, at {where!r}")
    if len(around) > _MAX_DEPTH:
        raise ValueError(f"the tree is nested more than {_MAX_DEPTH} deep, at {where[:80]!r}")
    return (*around, id(node))


def _exact_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the array of a number, a string or a list of them, if it converts back exactly."""
    if isinstance(value, (list, tuple)) and _holds_more(value):
        return None
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        return None
    if array.dtype == object:
        return None
    found = array.tolist()
    return array if _is_same(tuple(found) if isinstance(value, tuple) else found, value) else None


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    # By repr, -0.0 differs from 0.0, and nan equals itself.
    return repr(one) == repr(other)


# -- notes in the metadata -------------------------------------------------


def with_note(metadata: Mapping[str, Any] | None, note: Any) -> dict[str, Any]:
    """Return metadata with the note of a tree, which replaces an old one.

    Raises
    ------
    TypeError, ValueError
        As `npzkit.members.metadata.format_metadata`.
    """
    plain = {name: value for name, value in (metadata or {}).items() if name != TREE_KEY}
    noted = plain if note is None else {**plain, TREE_KEY: note}
    format_metadata(noted)
    return noted


def has_note(note: Any, key: str) -> bool:
    """Return whether a note has an entry for a key."""
    return _child(note, key.split("/")) is not None


def replace_note(note: Any, key: str, new: Any, last: str | None) -> Any:
    """Return a note with the entry of one key replaced.

    Parameters
    ----------
    note : object
        The old note, or None.
    key : str
    new : object
        From `flatten` of a tree with only this key.
    last : str or None
        The name that the key follows, if it has no arrays.
    """
    note = _merged(_without(note, key.split("/")), {last: None} if last is not None else None)
    return _merged(note, new) or None


def _items_of(note: Any) -> dict[str, Any]:
    """Return the notes of the items by name, for a mapping, list or tuple."""
    if isinstance(note, Mapping):
        return dict(note)
    if isinstance(note, list) and note and note[0] in ("list", "tuple"):
        return {str(index): inner for index, inner in enumerate(note[1:])}
    return dict(note[1]) if _has_ints(note) else {}


def _like(note: Any, items: dict[str, Any]) -> Any:
    """Return a note with these items, whose names are ints if those of `note` are."""
    return ["ints", items, *note[2:]] if _has_ints(note) else items


def _has_ints(note: Any) -> bool:
    return (
        isinstance(note, list)
        and 2 <= len(note) <= 3
        and note[0] == "ints"
        and isinstance(note[1], Mapping)
    )


def _without(note: Any, parts: Sequence[str]) -> Any:
    first, *rest = parts
    items = _items_of(note)
    if first not in items:
        return note
    if rest:
        items[first] = _without(items[first], rest)
    else:
        del items[first]
    return _like(note, items)


def _merged(note: Any, other: Any) -> Any:
    if other is None:
        return note
    if note is None or not isinstance(other, Mapping):
        return other
    items = _items_of(note)
    for name, inner in other.items():
        items[name] = _merged(items.get(name), inner)
    return _like(note, items)


def _child(note: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        note = _items_of(note).get(part)
    return note


# -- from keys -------------------------------------------------------------


def unflatten(arrays: Mapping[str, Any], note: Any, prefix: str = "") -> Any:
    """Return the tree of arrays by their keys, with a note from `flatten`.

    If the archive was edited since and an array does not match the note, it is
    placed by the parts of its key.

    Parameters
    ----------
    arrays : mapping of str to object
    note : object
    prefix : str, optional
        The key of a subtree to return. By default the complete tree is returned.

    Returns
    -------
    dict or object
        `MISSING` if the tree has nothing at `prefix`.

    Raises
    ------
    ZipFormatError
        The note is not valid.
    LimitExceededError
        A key has more than 200 parts.

    Examples
    --------
    >>> unflatten({"a/b": 1, "a/c/0": 2}, {"a": {"c": ["tuple", None, ["value", "x"]]}})
    {'a': {'b': 1, 'c': (2, 'x')}}
    >>> unflatten({"a/c/0": 2}, {"a": {"c": ["tuple", None, ["value", "x"]]}}, "a/c")
    (2, 'x')
    """
    tree = _Branch()
    ends = _ends_of(arrays)
    for key, array in arrays.items():
        _place(tree, key, array, ends)
    if is_deeper(note, _MAX_DEPTH + 2):
        raise _damaged("too deep")
    found: Any = tree
    if prefix:
        found, note = _descend(tree, note, prefix.split("/"))
    try:
        restored = _restore(found, note)
    except RecursionError:
        # The caller's stack was nearly full.
        raise _damaged("too deep") from None
    if not prefix and not isinstance(restored, dict):
        raise _damaged(note)
    return restored


def is_within(key: str, prefix: str) -> bool:
    """Return whether a key is `prefix`, or is inside it."""
    return key == prefix or key.startswith(prefix + "/")


class _Branch(dict[Any, Any]):
    """A mapping made from keys, as opposed to one that is a leaf."""


def _ends_of(keys: Iterable[str]) -> dict[Any, Any]:
    """Return keys as nested dicts by their parts. A dict has None if a key ends there."""
    ends: dict[Any, Any] = {}
    for key in keys:
        parts = key.split("/")
        if len(parts) > _MAX_DEPTH:
            raise LimitExceededError(
                "the key has too many parts for a tree",
                key=key,
                found=str(len(parts)),
                expected=f"at most {_MAX_DEPTH}",
                remedy="Read the array with npzkit.open.",
            )
        inner = ends
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[None] = True
    return ends


def _place(tree: dict[str, Any], key: str, array: Any, ends: dict[Any, Any]) -> None:
    """Put an array at the parts of its key, or beside an array whose key is a prefix of it."""
    *parts, name = key.split("/")
    for index, part in enumerate(parts):
        ends = ends[part]
        if None in ends:
            name = "/".join([*parts[index:], name])
            break
        tree = tree.setdefault(part, _Branch())
    tree[name] = array


def _descend(found: Any, note: Any, parts: Sequence[str]) -> tuple[Any, Any]:
    """Return the subtree at a key, and its note."""
    for index, part in enumerate(parts):
        left = "/".join(parts[index:])
        if isinstance(found, _Branch) and left in found:
            # It may be beside an array whose key is a prefix of its key.
            return found[left], _items_of(note).get(left)
        found = found.get(part, MISSING) if isinstance(found, _Branch) else MISSING
        note = _items_of(note).get(part)
    return found, note


def _restore(found: Any, note: Any) -> Any:
    """Return the original value of a node, or `MISSING` if it was removed."""
    if note is None:
        return _plain(found)
    if isinstance(note, Mapping):
        return _restore_mapping(found, note)
    if not (isinstance(note, list) and note):
        raise _damaged(note)
    kind, *rest = note
    if kind in ("list", "tuple"):
        return _restore_items(found, kind, rest)
    if _has_ints(note):
        return _with_ints(_restore_mapping(found, rest[0]), found, rest[1:], note)
    if kind == "value" and len(rest) == 1 and isinstance(rest[0], (*_PLAIN, NoneType)):
        return rest[0] if found is MISSING else _plain(found)
    if kind == "as" and rest in (["value"], ["list"], ["tuple"]):
        return _as_python(found, rest[0])
    raise _damaged(note)


def _restore_mapping(found: Any, notes: Mapping[str, Any]) -> Any:
    if found is MISSING:
        found = {}
    elif not isinstance(found, dict):
        return found
    # A name without arrays follows the name that is before it in the note.
    followers: dict[str | None, list[str]] = {None: []}
    last = None
    for name in notes:
        if name in found:
            last = name
        followers.setdefault(last, []).append(name)
    names = [name for name in followers[None] if name not in found]
    for name in found:
        names += [name, *(other for other in followers.get(name, ()) if other not in found)]
    restored = {name: _restore(found.get(name, MISSING), notes.get(name)) for name in names}
    return {name: value for name, value in restored.items() if value is not MISSING}


def _with_ints(restored: Any, found: Any, strings: list[Any], note: Any) -> Any:
    """Return a mapping with int keys for names that look like ints, except `strings`."""
    if strings and not isinstance(strings[0], list):
        raise _damaged(note)
    if not isinstance(restored, dict) or not (found is MISSING or isinstance(found, _Branch)):
        return restored
    kept = set(map(str, strings[0])) if strings else set()
    return {
        int(name) if name not in kept and re.fullmatch(_INT, name) else name: value
        for name, value in restored.items()
    }


def _restore_items(found: Any, kind: str, notes: list[Any]) -> Any:
    if found is not MISSING and not isinstance(found, _Branch):
        return found
    children = {} if found is MISSING else found
    items = [_restore(children.get(str(i), MISSING), note) for i, note in enumerate(notes)]
    is_whole = all(item is not MISSING for item in items)
    if not is_whole or children.keys() - {str(i) for i in range(len(notes))}:
        # An item was removed or added since.
        return _plain(found)
    return tuple(items) if kind == "tuple" else items


def _as_python(array: Any, kind: str) -> Any:
    """Return the Python value that an array was made from."""
    if not isinstance(array, np.ndarray) or (array.ndim == 0) is not (kind == "value"):
        return _plain(array)
    if not is_backed(array.shape, array.nbytes):
        return array
    value = array.tolist()
    return tuple(value) if kind == "tuple" else value


def _plain(found: Any) -> Any:
    """Return `found` with plain dicts instead of branches."""
    if isinstance(found, _Branch):
        return {name: _plain(value) for name, value in found.items()}
    return found


def _damaged(note: Any) -> ZipFormatError:
    text = repr(note)
    return ZipFormatError(
        "the structure of the nested data is damaged",
        found=text if len(text) <= 60 else text[:57] + "...",
        remedy="Read the arrays with npzkit.open.",
    )
