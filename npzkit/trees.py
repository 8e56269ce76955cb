"""Nested data: dicts, lists and tuples of arrays, as keys with ``/`` and a note.

Owns how a tree becomes a flat mapping of arrays, and how an archive becomes a
tree again. What keys cannot say (lists, tuples, None, numbers and strings) is a note
in the archive's metadata; np.load sees the arrays alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any

import numpy as np

from npzkit.errors import LimitExceededError, NpzkitError, ZipFormatError
from npzkit.limits import Limits, is_backed
from npzkit.metadata import is_deeper
from npzkit.npzfile import NpzFile, open

__all__ = ["TREE_KEY", "flatten", "is_nested", "load_tree", "unflatten"]

TREE_KEY = "npzkit.tree"
"""The note's key in the metadata."""
_MAX_DEPTH = 200
"""Of a tree."""

_MISSING: Any = object()
_PLAIN = (bool, int, float, str)
"""What JSON gives back as it was."""


def is_nested(arrays: Mapping[str, Any]) -> bool:
    """Whether a value is more than an array: a mapping, None, or a list that holds such."""
    kinds = {type(array) for array in arrays.values()}
    if kinds == {np.ndarray} or not kinds:
        return False
    if any(issubclass(kind, (Mapping, NoneType)) for kind in kinds):
        return True
    if not any(issubclass(kind, (list, tuple)) for kind in kinds):
        return False
    return any(_holds_more(array) for array in arrays.values() if isinstance(array, (list, tuple)))


def _holds_more(items: Iterable[Any], depth: int = 0) -> bool:
    """Whether a list holds something else than numbers and strings, at any depth."""
    if depth > _MAX_DEPTH:
        return True
    return any(
        _holds_more(item, depth + 1)
        if isinstance(item, (list, tuple))
        else not isinstance(item, (*_PLAIN, complex, np.generic, bytes))
        for item in items
    )


def flatten(tree: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return a tree's arrays by their keys, and the note of what keys cannot say.

    Parameters
    ----------
    tree : mapping of str to object

    Returns
    -------
    arrays : dict of str to array-like
    note : object
        For JSON: ``{name: note}`` of a mapping, ``["list", ...]``,
        ``["tuple", ...]`` with a note for each item, ``["value", value]``,
        ``["as", kind]`` of an array that was a Python number, string, list or
        tuple; None where keys say all.

    Raises
    ------
    TypeError
        A key is no string.
    ValueError
        The tree contains itself, or is nested too deeply.

    Examples
    --------
    >>> flatten({"layer": {"w": 1.5}, "rest": [None, (np.int8(1),)]})
    ({'rest/1/0': np.int8(1)}, {'layer': {'w': ['value', 1.5]}, 'rest': ['list', ['value', None], ['tuple', None]]})
    """  # noqa: E501 - one value
    arrays: dict[str, Any] = {}
    return arrays, _Flattening(arrays).mapping(tree, "", ())


class _Flattening:
    """Puts arrays where their keys say, and returns notes."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self._arrays = arrays

    def mapping(self, tree: Mapping[str, Any], prefix: str, around: tuple[int, ...]) -> Any:
        around = _within(tree, around, prefix)
        notes: dict[str, Any] = {}
        for name, value in tree.items():
            if not isinstance(name, str):
                raise TypeError(
                    f"a key must be a string, not {type(name).__name__}"
                    + (f", in {prefix[:-1]!r}" if prefix else "")
                )
            note = self._value(value, prefix + name, around)
            if note is not None:
                _add_note(notes, name, note)
        return notes if notes or (prefix and not tree) else None

    def _value(self, value: Any, key: str, around: tuple[int, ...]) -> Any:
        if isinstance(value, Mapping):
            return self.mapping(value, key + "/", around)
        is_top = len(around) == 1
        if isinstance(value, (list, tuple)):
            kind = "tuple" if isinstance(value, tuple) else "list"
            if is_top and (array := _exact_array(value)) is not None:
                return self._array(array, key, ["as", kind])
            around = _within(value, around, key)
            items = [self._value(item, f"{key}/{i}", around) for i, item in enumerate(value)]
            return [kind, *items]
        if value is None:
            return ["value", None]
        if isinstance(value, _PLAIN) and not isinstance(value, np.generic):
            if is_top and (array := _exact_array(value)) is not None:
                return self._array(array, key, ["as", "value"])
            return ["value", value]
        return self._array(value, key, None)

    def _array(self, array: Any, key: str, note: Any) -> Any:
        if key in self._arrays:
            raise ValueError(f"two arrays of the tree have the key {key!r}")
        self._arrays[key] = array
        return note


def _add_note(notes: dict[str, Any], name: str, note: Any) -> None:
    """Put a note where arrays of this name are found: a slash in it parts it."""
    first, _, rest = name.partition("/")
    inner = notes.setdefault(first, {})
    if not rest:
        is_more = isinstance(inner, dict) and isinstance(note, dict)
        notes[first] = inner | note if is_more else note
    elif isinstance(inner, dict):
        _add_note(inner, rest, note)


def _within(node: object, around: tuple[int, ...], where: str) -> tuple[int, ...]:
    """Go one deeper."""
    where = where.rstrip("/")
    if id(node) in around:
        raise ValueError(f"the tree contains itself, under {where!r}")
    if len(around) > _MAX_DEPTH:
        raise ValueError(f"the tree is nested more than {_MAX_DEPTH} deep, under {where[:80]!r}")
    return (*around, id(node))


def _exact_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return NumPy's array of a number, a string or a list of them, where it gives that back."""
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
    # repr tells -0.0 from 0.0, and takes nan for itself.
    return repr(one) == repr(other)


def unflatten(arrays: Mapping[str, Any], note: Any) -> dict[str, Any]:
    """Return the tree of arrays by their keys, and a note of `flatten`.

    Arrays that the note does not fit, in an archive that was edited since, are
    under the parts of their keys.

    Raises
    ------
    ZipFormatError
        The note is none of `flatten`.
    LimitExceededError
        A key has more than 200 parts.

    Examples
    --------
    >>> unflatten({"a/b": 1, "a/c/0": 2}, {"a": {"c": ["tuple", None, ["value", "x"]]}})
    {'a': {'b': 1, 'c': (2, 'x')}}
    """
    tree = _Branch()
    ends = _ends_of(arrays)
    for key, array in arrays.items():
        _place(tree, key, array, ends)
    if is_deeper(note, _MAX_DEPTH + 2):
        raise _damaged("too deep")
    try:
        restored = _restore(tree, note)
    except RecursionError:
        # The caller's own stack was nearly full.
        raise _damaged("too deep") from None
    if not isinstance(restored, dict):
        raise _damaged(note)
    return restored


def load_tree(
    file: Any,
    *,
    allow_pickle: bool = False,
    limits: Limits | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Read a whole archive as what was saved: nested dicts, lists and tuples of arrays.

    Parameters
    ----------
    file : path, bytes-like, file object or NpzFile
        Any archive: where nothing says otherwise, keys are split at ``/``.
    allow_pickle, limits
        As in `npzkit.open`; not for an `NpzFile`.
    threads : int, optional
        None takes the processors there are.

    Returns
    -------
    dict of str to object
        Arrays fresh and writable; masked arrays and arrays of strings that
        were split are joined. An array whose key is also the beginning of
        others' stays beside them: ``{"a": ..., "a/b": ...}``.

    Raises
    ------
    OSError, NpzkitError
        As `npzkit.open` and `NpzFile.load_all`.

    Notes
    -----
    Lists, tuples, None, numbers and strings are told from arrays by a note that
    `npzkit.save` puts into the archive's metadata. Where arrays were removed or
    added since, what no longer fits it is a dict.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"layer": {"w": np.eye(2), "name": "dense"}, "steps": [None, (1, 2.5)]})
    >>> npzkit.load_tree(stream)
    {'layer': {'w': array([[1., 0.],
           [0., 1.]]), 'name': 'dense'}, 'steps': [None, (1, 2.5)]}
    """
    if isinstance(file, NpzFile):
        return _tree_of(file, threads)
    with open(file, allow_pickle=allow_pickle, limits=limits) as npz:
        return _tree_of(npz, threads)


def _tree_of(npz: NpzFile, threads: int | None) -> dict[str, Any]:
    arrays = npz.load_all(threads=threads)
    parts: set[str] = set()
    for key in npz.files:
        taken: list[str] = []

        def read(part: str, taken: list[str] = taken) -> Any:
            taken.append(part)
            return arrays[part] if part in arrays else npz.read(part)

        array = npz._join(key, read)
        if len(taken) > 1:
            arrays[key] = array
            parts.update(part for part in taken if part != key)
    try:
        return unflatten(
            {key: array for key, array in arrays.items() if key not in parts},
            npz.metadata.get(TREE_KEY),
        )
    except NpzkitError as error:
        raise error.locate(path=npz._path) from None


class _Branch(dict[str, Any]):
    """A mapping that keys made, rather than one that is a leaf."""


def _ends_of(keys: Iterable[str]) -> dict[Any, Any]:
    """Return keys as nested dicts by their parts; where one ends, None is in the dict."""
    ends: dict[Any, Any] = {}
    for key in keys:
        parts = key.split("/")
        if len(parts) > _MAX_DEPTH:
            raise LimitExceededError(
                "the key has too many parts for a tree",
                key=key,
                found=str(len(parts)),
                expected=f"at most {_MAX_DEPTH}",
                remedy="Read it with npzkit.open.",
            )
        inner = ends
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[None] = True
    return ends


def _place(tree: dict[str, Any], key: str, array: Any, ends: dict[Any, Any]) -> None:
    """Put an array under its key's parts; beside an array whose key is the beginning of its."""
    *parts, name = key.split("/")
    for index, part in enumerate(parts):
        ends = ends[part]
        if None in ends:
            name = "/".join([*parts[index:], name])
            break
        tree = tree.setdefault(part, _Branch())
    tree[name] = array


def _restore(found: Any, note: Any) -> Any:
    """Return what was at a place; `_MISSING` where that is gone."""
    if note is None:
        return _plain(found)
    if isinstance(note, Mapping):
        return _restore_mapping(found, note)
    if not (isinstance(note, list) and note):
        raise _damaged(note)
    kind, *rest = note
    if kind in ("list", "tuple"):
        return _restore_items(found, kind, rest)
    if kind == "value" and len(rest) == 1 and isinstance(rest[0], (*_PLAIN, NoneType)):
        return rest[0] if found is _MISSING else _plain(found)
    if kind == "as" and rest in (["value"], ["list"], ["tuple"]):
        return _as_python(found, rest[0])
    raise _damaged(note)


def _restore_mapping(found: Any, notes: Mapping[str, Any]) -> Any:
    if found is _MISSING:
        found = {}
    elif not isinstance(found, dict):
        return found
    restored = {
        name: _plain(value) if name not in notes else _restore(value, notes[name])
        for name, value in found.items()
    }
    restored.update({n: _restore(_MISSING, note) for n, note in notes.items() if n not in found})
    return {name: value for name, value in restored.items() if value is not _MISSING}


def _restore_items(found: Any, kind: str, notes: list[Any]) -> Any:
    if found is not _MISSING and not isinstance(found, _Branch):
        return found
    children = {} if found is _MISSING else found
    items = [_restore(children.get(str(i), _MISSING), note) for i, note in enumerate(notes)]
    is_whole = all(item is not _MISSING for item in items)
    if not is_whole or children.keys() - {str(i) for i in range(len(notes))}:
        # Something was removed since, or added.
        return _plain(found)
    return tuple(items) if kind == "tuple" else items


def _as_python(array: Any, kind: str) -> Any:
    """Return the Python value that an array was made of."""
    if not isinstance(array, np.ndarray) or (array.ndim == 0) is not (kind == "value"):
        return _plain(array)
    if not is_backed(array.shape, array.nbytes):
        return array
    value = array.tolist()
    return tuple(value) if kind == "tuple" else value


def _plain(found: Any) -> Any:
    """Make branches dicts, which users expect."""
    if isinstance(found, _Branch):
        return {name: _plain(value) for name, value in found.items()}
    return found


def _damaged(note: Any) -> ZipFormatError:
    text = repr(note)
    return ZipFormatError(
        "the note of what is nested how is damaged",
        found=text if len(text) <= 60 else text[:57] + "...",
        remedy="Read the arrays with npzkit.open.",
    )
