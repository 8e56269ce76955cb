"""Nested data: converting a tree to keys with ``/`` and a note, and back.

Owns the conversion of a tree of dicts, lists and tuples to a flat mapping of
arrays, and back. The note has what keys cannot express: lists, tuples, int keys,
and values that are not arrays. It is stored as JSON. Knows nothing about
archives.

A note is one of these:

- None: an array, or a mapping of arrays, as the keys describe it;
- ``{name: note}``: a mapping, with the items that need notes;
- ``["ints", {name: note}]``: a mapping whose names are ints if they look like
  ints, except for the names in an optional third item, ``[name, ...]``;
- ``["list", note, ...]`` and ``["tuple", note, ...]``, with a note per item;
- ``["named", type, [field, ...], note, ...]``: a namedtuple, with a note per field;
- ``["same", key]``: a tensor with the memory of the one that was saved under
  another key, with a third item as in the entry of a tensor;
- the entry of a leaf, see `npzkit.members.leaves`.

In the note of a mapping, a name without arrays follows the name that came
before it, if that one has arrays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import chain
from types import NoneType
from typing import Any

import numpy as np

from npzkit.errors import LimitExceededError, NpzkitError, UnsupportedError, ZipFormatError
from npzkit.members.containers import child_key, is_within
from npzkit.members.jax_arrays import is_pytree
from npzkit.members.labels import check_unlabelled
from npzkit.members.leaves import KINDS, MISSING, decode, encode, exact_array, holds_more
from npzkit.members.metadata import TREE_KEY, format_metadata
from npzkit.members.records import fields_of, is_dataclass, is_namedtuple, is_record, named
from npzkit.members.selection import UNREAD, Selection
from npzkit.members.tensors import identity, is_tensor, is_tensor_type, special_dtype

__all__ = [
    "MISSING",
    "TREE_KEY",
    "flatten",
    "has_note",
    "is_nested",
    "links",
    "relinked",
    "replace_note",
    "unflatten",
    "with_note",
]

_MAX_DEPTH = 200
"""Largest depth of a tree."""
_MAX_FIELDS = 1000
"""Most fields of a namedtuple, and most different namedtuples in a tree."""
_INT = r"0|-?[1-9][0-9]{0,600}"
"""The text of an int that Python can always parse."""


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


# -- to keys ---------------------------------------------------------------


def flatten(tree: Any) -> tuple[dict[str, Any], Any]:
    """Return the arrays of a tree by their keys, and the note.

    Parameters
    ----------
    tree : mapping of str or int to object, namedtuple or dataclass
        The fields of a namedtuple or a dataclass are a mapping.

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
    return arrays, _Flattening(arrays).mapping(
        tree if isinstance(tree, Mapping) else fields_of(tree), "", ()
    )


class _Flattening:
    """Collect the arrays of a tree by their keys, and return notes."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self._arrays = arrays
        self._types: set[Any] = set()
        # The tensors are kept alive, so that no other one gets their memory.
        self._tensors: dict[Any, tuple[str, Any]] = {}

    def mapping(self, tree: Mapping[Any, Any], prefix: str, around: tuple[int, ...]) -> Any:
        if type(tree) is not dict:
            check_unlabelled(tree, prefix[:-1] or None)
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
        self._check_slashes(names, notes, prefix)
        if any(type(key) is int for key in grouped):
            strings = [k for k in grouped if isinstance(k, str) and re.fullmatch(_INT, k)]
            return ["ints", notes, strings] if strings else ["ints", notes]
        return notes if notes or (prefix and not tree) else None

    def _check_slashes(self, names: Iterable[str], notes: Mapping[str, Any], prefix: str) -> None:
        """Check that arrays under a name with a slash come back under that name.

        They do so beside an array whose key is the name's first part.
        """
        for name in names:
            if "/" not in name:
                continue
            key, first = prefix + name, prefix + name.partition("/")[0]
            is_beside = first in self._arrays and (key in self._arrays or notes.get(name) is None)
            if not is_beside and any(is_within(other, key) for other in self._arrays):
                raise UnsupportedError(
                    f"what is under this key cannot be kept beside {first!r}",
                    key=key,
                    remedy="Choose another name, without a slash.",
                )

    def _value(self, value: Any, key: str, around: tuple[int, ...]) -> Any:
        if type(value) is np.ndarray:
            return self._array(value, key, None)
        is_leaf = is_tensor(value)
        if not is_leaf:
            if isinstance(value, Mapping):
                return self.mapping(value, key + "/", around)
            if isinstance(value, (list, tuple)):
                return self._items(value, key, around)
            if is_record(value):
                return self.mapping(fields_of(value), key + "/", _within(value, around, key))
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
            notes = [self._value(value, f"{key}/{name}", around) for name, value in fields.items()]
            return ["named", *self._type_of(items, key), *notes]
        kind = "tuple" if isinstance(items, tuple) else "list"
        if is_top and (array := exact_array(items)) is not None:
            return self._array(array, key, ["as", kind])
        return [kind, *[self._value(item, f"{key}/{i}", around) for i, item in enumerate(items)]]

    def _type_of(self, items: Any, key: str) -> tuple[str, list[str]]:
        """Return the name and the fields of a namedtuple's class, from which it can be made."""
        name, fields = type(items).__name__, items._fields
        self._types.add((name, fields))
        if len(fields) > _MAX_FIELDS or len(self._types) > _MAX_FIELDS:
            raise UnsupportedError(
                f"namedtuples of more than {_MAX_FIELDS} fields or classes cannot be kept",
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
    """Return the notes of the items by name, for a mapping, list, tuple or namedtuple."""
    if isinstance(note, Mapping):
        return dict(note)
    if isinstance(note, list) and note and note[0] in ("list", "tuple"):
        return {str(index): inner for index, inner in enumerate(note[1:])}
    if _is_named(note):
        return dict(zip(note[2], note[3:], strict=True))
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


def _is_named(note: Any) -> bool:
    return (
        isinstance(note, list)
        and len(note) >= 3
        and note[0] == "named"
        and isinstance(note[1], str)
        and isinstance(note[2], list)
        and all(isinstance(field, str) for field in note[2])
        and len(note) - 3 == len(note[2]) <= _MAX_FIELDS
    )


def _is_link(note: Any) -> bool:
    return (
        isinstance(note, list)
        and 2 <= len(note) <= 3
        and note[0] == "same"
        and isinstance(note[1], str)
    )


def links(note: Any, selection: Selection | None = None) -> dict[str, str]:
    """Return the keys of tensors that are the memory of another one, and that one's key.

    With a selection, those of the nodes where something can be wanted.

    Examples
    --------
    >>> links({"a": ["list", ["same", "w"], ["value", 1]]})
    {'a/0': 'w'}
    """
    found: dict[str, str] = {}
    stack = [("", note)]
    while stack:
        key, note = stack.pop()
        if _is_link(note):
            found[key] = note[1]
        inner = _items_of(note)
        wanted = None if selection is None else selection.names_in(key)
        stack += [
            (child_key(key, name), inner[name])
            for name in reversed(inner)
            if (wanted is None or name in wanted or "/" in name) and not _is_leaf(inner[name])
        ]
    return found


def _is_leaf(note: Any) -> bool:
    """Return whether a note is the entry of a leaf, or None."""
    return note is None or (type(note) is list and bool(note) and note[0] in KINDS)


def relinked(note: Any, old: str, new: str, key: str = "") -> Any:
    """Return a note for an array that has moved from one key to another.

    Parameters
    ----------
    note : object
    old, new : str
        If the tensor `new` was linked to `old`, it has the array now.
    key : str, optional
        Of `note` itself.
    """
    if _is_link(note):
        if note[1] != old:
            return note
        return ["as", "tensor", *note[2:]] if key == new else ["same", new, *note[2:]]
    items = {
        name: relinked(inner, old, new, child_key(key, name))
        for name, inner in _items_of(note).items()
    }
    if isinstance(note, Mapping) or _has_ints(note):
        return _like(note, items)
    if _is_named(note) or (items and note[0] in ("list", "tuple")):
        return [*note[: 3 if _is_named(note) else 1], *items.values()]
    return note


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


def unflatten(
    arrays: Mapping[str, Any],
    note: Any,
    prefix: str = "",
    *,
    keys: Iterable[str] | None = None,
    linked: Mapping[str, Any] | None = None,
    selection: Selection | None = None,
    as_tensor: Callable[..., Any] | None = None,
) -> Any:
    """Return the tree of arrays by their keys, with a note from `flatten`.

    If the archive was edited since and an array does not match the note, it is
    placed by the parts of its key.

    Parameters
    ----------
    arrays : mapping of str to object
    note : object
    prefix : str, optional
        The key of a subtree to return. By default the complete tree is returned.
    keys : iterable of str, optional
        Keys of all arrays, if `arrays` has only some of them; by default its own.
    linked : mapping of str to object, optional
        The arrays for tensors that were saved under another key; by default `arrays`.
    selection : Selection, optional
        What of the tree to return, for which `arrays` has the arrays. A list, tuple
        or namedtuple that loses items becomes a dict by index or name.
    as_tensor : callable, optional
        As in `npzkit.members.leaves.decode`.

    Returns
    -------
    dict or object
        `MISSING` if the tree has nothing at `prefix`, `UNREAD` if nothing there is wanted.

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
    keys = list(arrays if keys is None else keys)
    _check_depth(keys)
    found: Any = _Branch(keys, 0, arrays)
    if prefix:
        found, note = _descend(found, note, prefix.split("/"))
    restoring = _Restoring(arrays if linked is None else linked, as_tensor, selection)
    try:
        restored = restoring.value(found, note, 0, None if selection is None else prefix)
    except RecursionError:
        # The note is too deep to be shown, or the caller's stack was nearly full.
        raise _damaged("too deep") from None
    if not prefix and not isinstance(restored, dict) and restored is not UNREAD:
        raise _damaged(note)
    return restored


class _Branch:
    """A mapping made from keys, as opposed to one that is a leaf.

    Parameters
    ----------
    keys : list of str
    start : int
        Where the names in it begin in its keys.
    arrays : mapping of str to object
        The arrays that were read.
    """

    __slots__ = ("_arrays", "_keys", "_start")

    def __init__(self, keys: list[str], start: int, arrays: Mapping[str, Any]) -> None:
        self._keys, self._start, self._arrays = keys, start, arrays

    def items(self, wanted: Set[str] | None = None, only: str = "") -> dict[str, Any]:
        """Return arrays and branches by name, in the order of the keys.

        An array whose key begins with the key of another is beside that one. All branches
        but those that are `wanted` are only said to be there. Other names than `only` may
        be left out.
        """
        start, arrays, keys = self._start, self._arrays, self._keys
        if only and keys:
            key = keys[0][:start] + only
            inside = [other for other in keys if other.startswith(key + "/")]
            if inside and key not in keys:
                return {only: _Branch(inside, start + len(only) + 1, arrays)}
            keys = [other for other in keys if is_within(other, key)]
        names = [key[start:] for key in keys]
        ends = {name for name in names if "/" not in name}
        items: dict[str, Any] = {}
        # Most keys follow others of the same branch.
        last, branch = "", None
        for key, name in zip(keys, names, strict=True):
            if not (last and name.startswith(last)):
                first, slash, _ = name.partition("/")
                if not slash or first in ends:
                    items[name], last = arrays.get(key, UNREAD), ""
                    continue
                last, branch = first + "/", items.get(first)
                if branch is None and (wanted is None or first in wanted):
                    branch = _Branch([], start + len(last), arrays)
                items[first] = UNREAD if branch is None else branch
            if isinstance(branch, _Branch):
                branch._keys.append(key)
        return items


def _check_depth(keys: Sequence[str]) -> None:
    if max(map(len, keys), default=0) <= _MAX_DEPTH:
        return
    for key in keys:
        if len(key) > _MAX_DEPTH and key.count("/") >= _MAX_DEPTH:
            raise LimitExceededError(
                "the key has too many parts for a tree",
                key=key,
                found=str(key.count("/") + 1),
                expected=f"at most {_MAX_DEPTH}",
                remedy="Read the array with npzkit.open.",
            )


def _descend(found: Any, note: Any, parts: Sequence[str]) -> tuple[Any, Any]:
    """Return the subtree at a key, and its note."""
    for index, part in enumerate(parts):
        left = "/".join(parts[index:])
        items = found.items({part}) if isinstance(found, _Branch) else {}
        if left in items:
            # It may be beside an array whose key is a prefix of its key.
            return items[left], _items_of(note).get(left)
        found, note = items.get(part, MISSING), _items_of(note).get(part)
    return found, note


class _Restoring:
    """Make a tree of what keys and a note describe.

    The key of a node is passed along as long as it matters: until all that is below it
    is wanted. It is None from there on, and everywhere if no part is selected.
    """

    def __init__(
        self,
        linked: Mapping[str, Any],
        as_tensor: Callable[..., Any] | None,
        selection: Selection | None,
    ) -> None:
        self._linked = linked
        self._as_tensor = as_tensor
        self._selection: Any = selection
        # By the identity of their arrays, which are kept alive.
        self._tensors: dict[int, Any] = {}
        self._types: set[Any] = set()

    def value(self, found: Any, note: Any, depth: int, key: str | None) -> Any:
        """Return the original value of a node.

        It is `MISSING` if the node was removed, and `UNREAD` if nothing of it is wanted.
        """
        if key is not None and self._selection.has_all_in(key):
            value = self._value(found, note, depth, None)
            return value if value is MISSING or self._is_wanted(key) else UNREAD
        return self._value(found, note, depth, key)

    def _value(self, found: Any, note: Any, depth: int, key: str | None) -> Any:
        if note is None:
            return self._plain(found, key)
        if depth > _MAX_DEPTH + 1:
            raise _damaged("too deep")
        if _is_leaf(note):
            return self._leaf(found, note, key)
        if isinstance(note, Mapping):
            return self._mapping(found, note, depth, key)
        if not (isinstance(note, list) and note):
            raise _damaged(note)
        if note[0] in ("list", "tuple"):
            items = self._items(found, note, depth, key)
            return tuple(items) if note[0] == "tuple" and isinstance(items, list) else items
        if _is_named(note):
            items = self._items(found, note, depth, key)
            return self._named(note)._make(items) if isinstance(items, list) else items
        if _has_ints(note):
            return _with_ints(self._mapping(found, note[1], depth, key), found, note[2:], note)
        if _is_link(note):
            return self._leaf(found, ["as", "tensor", *note[2:]], key, note[1])
        raise _damaged(note)

    def _is_wanted(self, key: str | None) -> bool:
        return key is None or key in self._selection

    def _plain(self, found: Any, key: str | None) -> Any:
        """Return what the keys alone say."""
        return self._mapping(found, {}, 0, key) if isinstance(found, _Branch) else found

    def _leaf(self, found: Any, note: Any, key: str | None, first_key: str | None = None) -> Any:
        """Return a value, or the tensor that was saved under another key."""
        is_array = found is not MISSING
        if first_key is not None and not is_array:
            found = self._linked.get(first_key, MISSING)
        try:
            value = decode(self._plain(found, key), note, self._as_tensor and self._tensor)
        except ValueError:
            raise _damaged(note) from None
        return value if value is MISSING or is_array or self._is_wanted(key) else UNREAD

    def _tensor(self, array: Any, *special: Any) -> Any:
        """Return the tensor of an array, the same one each time."""
        if id(array) not in self._tensors and self._as_tensor is not None:
            self._tensors[id(array)] = array, self._as_tensor(array, *special)
        return self._tensors[id(array)][1]

    def _mapping(self, found: Any, notes: Mapping[str, Any], depth: int, key: str | None) -> Any:
        if found is not MISSING and not isinstance(found, _Branch):
            return found
        wanted = self._names_in(key)
        items = {} if found is MISSING else found.items(wanted, _only(wanted))
        restored = {
            name: self.value(
                items.get(name, MISSING), notes.get(name), depth + 1, _below(key, name)
            )
            for name in _names(items, notes, wanted)
        }  # fmt: skip
        kept = {name: value for name, value in restored.items() if value is not MISSING}
        return self._wanted(kept, key)

    def _names_in(self, key: str | None) -> Set[str] | None:
        """Return the names in a node that can lead to what is wanted; None for all."""
        found: Set[str] | None = None if key is None else self._selection.names_in(key)
        return found

    def _wanted(self, items: dict[str, Any], key: str | None) -> dict[str, Any]:
        """Return the items of a node that are wanted, or `UNREAD` if there are none."""
        if key is None:
            return items
        kept = {name: value for name, value in items.items() if value is not UNREAD}
        return kept if kept or (not items and self._is_wanted(key)) else UNREAD

    def _items(self, found: Any, note: Any, depth: int, key: str | None) -> Any:
        """Return the list of items, or a dict if it is not one any more, or loses some."""
        if found is not MISSING and not isinstance(found, _Branch):
            return found
        wanted = self._names_in(key)
        children = {} if found is MISSING else found.items(wanted)
        notes = _items_of(note)
        items = {
            name: self.value(children.get(name, MISSING), inner, depth + 1, _below(key, name))
            if wanted is None or name in wanted
            else self._passed_over(children.get(name, MISSING), inner)
            for name, inner in notes.items()
        }
        is_whole = all(item is not MISSING for item in items.values())
        if not is_whole or children.keys() - notes.keys():
            # An item was removed or added since.
            return self._plain(found, key)
        kept = self._wanted(items, key)
        if kept is UNREAD or len(kept) == len(items):
            return kept if kept is UNREAD else list(kept.values())
        return kept if _is_named(note) else {int(name): item for name, item in kept.items()}

    def _passed_over(self, found: Any, note: Any) -> Any:
        """Return `UNREAD` if a node is there, or `MISSING`."""
        is_there = True
        if found is not MISSING:
            pass
        elif note is None or _is_leaf(note):
            is_there = note is not None and note[0] != "as"
        elif not (isinstance(note, Mapping) or _has_ints(note) or _is_link(note)):
            items = note[3:] if _is_named(note) else note[1:]
            is_there = all(self._passed_over(MISSING, item) is UNREAD for item in items)
        return UNREAD if is_there else MISSING

    def _named(self, note: Any) -> Any:
        """Return the class of a namedtuple."""
        kind = note[1], tuple(note[2])
        self._types.add(kind)
        if len(self._types) > _MAX_FIELDS:
            raise _damaged(note)
        try:
            return named(*kind)
        except ValueError:
            raise _damaged(note) from None


def _names(
    found: Mapping[str, Any], notes: Mapping[str, Any], wanted: Set[str] | None
) -> Iterable[str]:
    """Return the names of items, or those that are wanted, in their order."""
    if wanted is not None:
        # A name with a slash is beside the array with the key that it begins with.
        wanted = {name for name in chain(found, notes) if name in wanted or "/" in name}
        if len(wanted) < 2:
            return wanted
    names = found if notes.keys() <= found.keys() else _in_order(found, notes)
    return names if wanted is None else [name for name in names if name in wanted]


def _only(wanted: Set[str] | None) -> str:
    """Return the name that is wanted if it is one; all names follow each other otherwise."""
    return next(iter(wanted)) if wanted is not None and len(wanted) == 1 else ""


def _in_order(found: Mapping[str, Any], notes: Mapping[str, Any]) -> list[str]:
    """Return all names: one without arrays follows the name that is before it in the note."""
    followers: dict[str | None, list[str]] = {None: []}
    last = None
    for name in notes:
        if name in found:
            last = name
        followers.setdefault(last, []).append(name)
    names = [name for name in followers[None] if name not in found]
    for name in found:
        names += [name, *(other for other in followers.get(name, ()) if other not in found)]
    return names


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


def _below(key: str | None, name: str) -> str | None:
    return None if key is None else child_key(key, name)


def _damaged(note: Any) -> ZipFormatError:
    text = repr(note)
    return ZipFormatError(
        "the structure of the nested data is damaged",
        found=text if len(text) <= 60 else text[:57] + "...",
        remedy="Read the arrays with npzkit.open.",
    )
