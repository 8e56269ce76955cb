"""Trees: nested dicts, lists, tuples and other containers, and how they become arrays.

Owns which values are containers (mappings, lists, tuples, namedtuples, dataclasses, JAX's
pytrees, scipy's sparse matrices) and what is inside one; how a leaf is stored, as an array,
as an entry of the note, or both; and the conversion of a tree to arrays by their keys and a
note. The note, of `npzkit.trees.notes`, has what keys cannot express.
`npzkit.trees.restoring` makes a tree again. Knows nothing about archives, and runs no code
from a file: every name of a namedtuple is checked to be an identifier. Which values need no
array is `npzkit.trees.values`'s.
"""

from __future__ import annotations

import copy
import functools
import io
import re
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from itertools import chain
from types import NoneType
from typing import Any, cast

import numpy as np

from npzkit.errors import (
    IndexFormatError,
    KeyExistsError,
    NpyFormatError,
    NpzkitError,
    UnsupportedError,
)
from npzkit.imported import imported
from npzkit.limits import is_backed
from npzkit.members.keys import MAX_PARTS, child_key, is_within
from npzkit.members.metadata import TREE_KEY
from npzkit.members.refused_values import check_unlabelled
from npzkit.members.tensors import (
    identity,
    is_jax_array,
    is_tensor,
    is_tensor_type,
    special_dtype,
    to_array,
    without_pickle,
)
from npzkit.trees.sparse import is_sparse, parts_of
from npzkit.trees.values import is_noted, note_of, value_of

MAX_DEPTH = MAX_PARTS
"""Largest depth of a tree."""
MAX_FIELDS = 1000
"""Most fields of a namedtuple, and most different namedtuples in a tree."""
INT = re.compile(r"0|-?[1-9][0-9]{0,600}")
"""The text of an int that Python can always parse."""
KINDS = ("as", "value")
"""What the entry of a leaf begins with."""
MISSING: Any = object()
"""The place of an array, or of a value, that is not there."""

_ARRAYS_OF = ("value", "list", "tuple", "scalar", "bytes", "stream")
"""What an array may have been, besides a tensor."""
PYTHON = (bool, int, float, str, complex, bytes)
"""Types of Python's values of which NumPy makes arrays."""
_SINGLE_KEY = "arr_0"
"""The key of an array that is a tree, which `numpy.savez` gives it too."""
_MAX_TYPES = 1000
"""Namedtuples that are kept, because making one takes a tenth of a millisecond."""
_KNOWN = {dict, NoneType, OrderedDict, defaultdict}


# -- containers -----------------------------------------------------------


def children_of(node: Any) -> dict[Any, Any] | None:
    """Return the items of a container by name or index, or None for a leaf.

    The fields of a record are in order. Those of a class that is registered with JAX are its
    children as a pytree, by the names or numbers that the class gives.

    Examples
    --------
    >>> children_of(["a", "b"])
    {0: 'a', 1: 'b'}
    """
    if type(node) is np.ndarray or is_tensor(node):
        # Most leaves.
        return None
    if is_sparse(node):
        return parts_of(node)
    if is_pytree(node):
        return {_name_in(path[0]): item for path, item in _one_level(node)[0]}
    if isinstance(node, Mapping):
        return dict(node)
    if is_namedtuple(node):
        return dict(zip(node._fields, node, strict=True))
    if isinstance(node, (list, tuple)):
        return dict(enumerate(node))
    if is_dataclass(type(node)):
        return {field.name: getattr(node, field.name) for field in fields(node)}
    return None


def items_in(node: Any, key: str) -> Iterator[tuple[str, Any, bool]]:
    """Yield a node and all that is in it, each with its key, and whether it is a leaf."""
    children = children_of(node)
    yield key, node, children is None
    for name, child in (children or {}).items():
        yield from items_in(child, child_key(key, name))


def rebuilt(node: Any, items: dict[Any, Any]) -> Any:
    """Return a container of the same type with other items."""
    if type(node) is dict:
        return items
    if is_sparse(node):
        return node
    if is_pytree(node):
        return _one_level(node)[1].unflatten(items.values())
    if isinstance(node, (dict, list)) or is_dataclass(type(node)):
        new = copy.copy(node)
        if not is_dataclass(type(node)):
            new.clear()
        return update(new, items)
    if isinstance(node, Mapping):
        return type(node)(items)  # type: ignore[call-arg]
    if is_namedtuple(node):
        return type(node)._make(items.values())
    return type(node)(items.values())


def is_changeable(node: Any) -> bool:
    """Return whether the items of a container can be replaced by others."""
    params: Any = getattr(type(node), "__dataclass_params__", None)
    if params is not None and params.frozen:
        return False
    can_change = isinstance(node, (MutableMapping, list)) or params is not None
    return can_change and not is_pytree(node)


def update(node: Any, items: dict[Any, Any]) -> Any:
    """Put items into a container, and return it, or a new one if it cannot be changed."""
    if isinstance(node, MutableMapping):
        node.update(items)
    elif isinstance(node, list):
        node[:] = items.values()
    elif is_dataclass(type(node)):
        for name, value in items.items():
            # Also for a class that is frozen: `rebuilt` has made a copy.
            object.__setattr__(node, name, value)
    return node


def is_namedtuple(value: object) -> bool:
    """Return whether a value is a namedtuple.

    Examples
    --------
    >>> is_namedtuple(named("Point", ("x", "y"))(1, 2)), is_namedtuple((1, 2))
    (True, False)
    """
    return isinstance(value, tuple) and isinstance(getattr(value, "_fields", None), tuple)


def is_record(value: object) -> bool:
    """Return whether a value has fields, which its class fixes."""
    return is_namedtuple(value) or is_dataclass(type(value)) or is_pytree(value)


def type_of(items: Any, types: set[Any], key: str | None = None) -> tuple[str, list[str]]:
    """Return the name and the fields of a namedtuple's class, from which it can be made.

    Parameters
    ----------
    items : namedtuple
    types : set
        The classes so far, to which this one is added.
    key : str, optional
        For the error.

    Raises
    ------
    UnsupportedError
        There are too many, or Python would make no class of them.
    """
    name, names = type(items).__name__, items._fields
    types.add((name, names))
    what = f"namedtuples of more than {MAX_FIELDS} fields or classes cannot be kept"
    try:
        if max(len(names), len(types)) <= MAX_FIELDS and named(name, names):
            return name, list(names)
    except (ValueError, TypeError):
        what = "this namedtuple has names that Python does not allow"
    raise UnsupportedError(what, key=key, found=name, remedy="Save value._asdict().")


@functools.lru_cache(_MAX_TYPES)
def named(name: str, names: tuple[str, ...]) -> type[Any]:
    """Return a namedtuple class; the same one for the same names.

    Its instances can be pickled and copied.

    Raises
    ------
    ValueError
        A name is not an identifier, or occurs twice.

    Examples
    --------
    >>> import copy
    >>> copy.deepcopy(named("Point", ("x", "y"))(1, 2))
    Point(x=1, y=2)
    """
    new: Any = namedtuple
    try:
        made = new(name, names)
    except SyntaxError:
        # Python takes two names for one if they differ only in their form in Unicode.
        raise ValueError(f"a field of {name} occurs twice") from None
    # Pickle would look for the class in this module.
    made.__reduce__ = lambda value: (_make, (name, names, *value))
    return cast("type[Any]", made)


def _make(name: str, names: tuple[str, ...], *values: Any) -> Any:
    """Return a namedtuple that was pickled."""
    return named(name, names)(*values)


def is_pytree(value: object) -> bool:
    """Return whether a value is of a class that its author has registered with JAX.

    JAX knows Python's own containers and None without that.
    """
    jax = imported("jax")
    if jax is None or isinstance(value, (list, tuple)) or type(value) in _KNOWN:
        return False
    return not jax.tree_util.all_leaves((value,))


def _one_level(value: Any) -> tuple[Any, Any]:
    """Return the items of a pytree with their paths, and its structure, one level deep."""
    flatten = imported("jax").tree_util.tree_flatten_with_path
    return flatten(value, is_leaf=lambda node: node is not value)  # type: ignore[no-any-return]


def _name_in(entry: Any) -> Any:
    """Return the name in an entry of a path: of an attribute, an index or a key."""
    names = (getattr(entry, kind, None) for kind in ("name", "idx", "key"))
    return next((name for name in names if isinstance(name, (str, int))), str(entry))


# -- leaves ---------------------------------------------------------------


def encode(value: Any, *, is_top: bool = False) -> tuple[Any, Any]:
    r"""Return the array of a leaf, or `MISSING`, and its entry in the note, or None.

    Parameters
    ----------
    value : object
    is_top : bool, default False
        Prefer an array, as `numpy.savez` does.

    Raises
    ------
    UnsupportedError
        The value cannot be kept in an array.

    Examples
    --------
    >>> encode(2.5) == (MISSING, ["value", 2.5])
    True
    >>> encode(b"a\0")
    (array([97,  0], dtype=uint8), ['as', 'bytes'])
    """
    if type(value) is np.ndarray:
        return value, None
    if is_tensor(value):
        return to_array(value), ["as", "tensor", *special_dtype(value)]
    if isinstance(value, np.generic):
        return _scalar_array(value), ["as", "scalar"]
    if is_top and isinstance(value, PYTHON) and (array := exact_array(value)) is not None:
        return array, ["as", "value"]
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8), ["as", "bytes"]
    if type(value) is io.BytesIO:
        return np.frombuffer(value.getvalue(), np.uint8), ["as", "stream"]
    if is_noted(type(value)):
        return MISSING, ["value", note_of(value)]
    if _is_sequence(value) and not (is_top and isinstance(_of_items(value), np.ndarray)):
        what = "nested data cannot keep a sequence of this type"
        raise UnsupportedError(what, found=type(value).__name__, remedy="Save list(value).")
    return value, None


def _is_sequence(value: Any) -> bool:
    """Return whether NumPy would make an array of the items, as of a list, a deque or a range."""
    if isinstance(value, str) or not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        return False
    if any(hasattr(value, f"__array{end}__") for end in ("", "_interface", "_struct")):
        return False
    try:
        memoryview(value)
    except TypeError:
        return True
    return False


def _scalar_array(value: np.generic) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if isinstance(value, (str, bytes)) and array[()] != value:
        raise UnsupportedError(
            "NumPy drops the zeros at the end of this text",
            found=repr(value),
            remedy="Save ''.join(value) or bytes(value), which keep them.",
        )
    return array


def exact_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the array of a number, a string or a list of them, if it converts back exactly."""
    if isinstance(value, (list, tuple)) and holds_more(value):
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


def holds_more(items: Iterable[Any], depth: int = 0) -> bool:
    """Return whether a list has other items than numbers and strings, at any depth."""
    if depth > MAX_DEPTH:
        return True
    return any(
        holds_more(item, depth + 1)
        if isinstance(item, (list, tuple))
        else not isinstance(item, (*PYTHON, np.generic))
        for item in items
    )


def decode(found: Any, entry: list[Any], as_tensor: Callable[..., Any] | None = None) -> Any:
    """Return the value of a leaf, or `MISSING` if it was removed.

    Parameters
    ----------
    found : object
        The array, another value that took its place, or `MISSING`.
    entry : list
        From `encode`.
    as_tensor : callable, optional
        Makes a tensor of an array and the name of its dtype, if that is not the
        array's. By default tensors come back as arrays.

    Raises
    ------
    ValueError
        The entry is not valid.
    NpyFormatError
        The array has text that is no text.

    Examples
    --------
    >>> decode(MISSING, ["value", ["complex", 1, -1.5]])
    (1-1.5j)
    """
    kind, *rest = entry
    if kind == "as" and rest[:1] == ["tensor"] and len(rest) <= 2:
        is_array = isinstance(found, np.ndarray) and as_tensor is not None
        return as_tensor(found, *rest[1:]) if is_array and as_tensor is not None else found
    if kind == "as" and len(rest) == 1 and rest[0] in _ARRAYS_OF:
        return _as_python(found, rest[0])
    if kind == "value" and len(rest) == 1:
        return value_of(rest[0]) if found is MISSING else found
    raise ValueError


def _as_python(array: Any, kind: str) -> Any:
    """Return the value that an array was made from."""
    if not isinstance(array, np.ndarray):
        return array
    if kind in ("bytes", "stream"):
        if array.ndim != 1 or array.dtype != np.uint8:
            return array
        return array.tobytes() if kind == "bytes" else io.BytesIO(array.tobytes())
    if (array.ndim == 0) is not (kind in ("value", "scalar")):
        return array
    if kind == "scalar":
        return array[()]
    if not is_backed(array.shape, array.nbytes):
        return array
    try:
        value = array.tolist()
    except SystemError as error:
        # So NumPy says that a string has a number that is no character's.
        raise NpyFormatError(
            "the array has text with characters that do not exist",
            remedy="npz[key] returns the array as it is.",
        ) from error
    return tuple(value) if kind == "tuple" else value


# -- a value beside a tree, to arrays and a note, and back -----------------


def encode_value(value: Any, key: str) -> tuple[Any, dict[str, Any]]:
    """Return the note of a value that is in no tree, and its arrays by their keys.

    The note is one of `npzkit.trees.values`, or ``["array", key, ...]`` with the entry of a
    leaf, or ``["named", type, ["list", field, ...], note, ...]``: a namedtuple.

    Parameters
    ----------
    value : object
    key : str
        Of the value. Its arrays get keys that begin with it.

    Raises
    ------
    UnsupportedError, PickleRefusedError
        The value cannot be kept.

    Examples
    --------
    >>> encode_value({"betas": (0.9, 0.999), 1: None}, "options")
    (['dict', ['tuple', 'betas', ['tuple', 0.9, 0.999]], ['tuple', 1, None]], {})
    >>> encode_value(b"ab", "raw")
    (['array', 'raw', 'as', 'bytes'], {'raw': array([97, 98], dtype=uint8)})
    """
    arrays: dict[str, Any] = {}

    def keep(part: Any, depth: int) -> Any:
        if is_namedtuple(part):
            name, fields = type_of(part, set())
            return ["named", name, ["list", *fields], *[note_of(i, keep, depth + 1) for i in part]]
        array, entry = encode(part)
        if type(array) is not np.ndarray or array.dtype.kind == "O":
            raise without_pickle(part)
        own_key = f"{key}/{len(arrays)}" if depth else key
        arrays[own_key] = array
        return ["array", own_key, *(entry or ())]

    return note_of(value, keep), arrays


def decode_value(
    note: Any, read: Callable[[str], Any], as_tensor: Callable[..., Any] | None = None
) -> Any:
    """Return the value of a note from `encode_value`.

    Parameters
    ----------
    note : object
        From a file, so it may be anything that JSON can hold.
    read : callable
        Returns the array with a key, or raises LookupError.
    as_tensor : callable, optional
        As of `decode`.

    Raises
    ------
    IndexFormatError
        The note is not valid.
    """

    def of_array(parts: list[Any]) -> Any:
        array, entry = read(parts[0]), parts[1:]
        return decode(array, entry, as_tensor) if entry else array

    def of_fields(parts: list[Any]) -> Any:
        return named(parts[0], tuple(parts[1]))._make(parts[2:])

    try:
        return value_of(note, {"array": of_array, "named": of_fields})
    except NpzkitError:
        raise
    except ValueError as error:
        raise IndexFormatError("the note of a value is not valid", found=str(error)) from error


# -- a tree to arrays and a note ------------------------------------------


def is_nested(arrays: Mapping[Any, Any]) -> bool:
    """Return whether a value is no array: a mapping, tensor, None, set, or a list with one."""
    kinds = set(map(type, arrays.values()))
    if int in set(map(type, arrays)):
        return True
    if kinds <= {np.ndarray}:
        return False
    return (
        any(
            issubclass(kind, (Mapping, io.BytesIO))
            or is_dataclass(kind)
            or is_tensor_type(kind)
            or (is_noted(kind) and not issubclass(kind, (*PYTHON, list, tuple)))
            for kind in kinds
        )
        or any(is_pytree(one) or is_sparse(one) for one in arrays.values())
        or any(isinstance(one, (list, tuple)) and holds_more(one) for one in arrays.values())
    )


def is_tree(value: Any) -> bool:
    """Return whether a value is saved as several arrays."""
    may_be = isinstance(value, (Mapping, list, tuple)) or is_record(value) or is_sparse(value)
    return may_be and is_nested({"": value})


def with_numbers(arrays: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the arrays of a mapping that is not nested, and the note of its numbers, or None.

    Strings and bytes count as numbers. Lists and NumPy scalars are arrays, as for `numpy.savez`.
    A number that no array can hold is in the note alone, and so are lists whose arrays would
    have other values.

    Examples
    --------
    >>> with_numbers({"x": [1, 2], "lr": 0.1})
    ({'x': array([1, 2]), 'lr': array(0.1)}, {'lr': ['as', 'value']})
    """
    found = dict(arrays)
    for key in [key for key, value in arrays.items() if _is_sequence(value)]:
        if (array := _of_items(arrays[key])) is MISSING:
            return flatten({key: _as_numpy_does(value) for key, value in arrays.items()})
        found[key] = array
    notes: dict[str, Any] = {}
    for key in [key for key, value in arrays.items() if type(value) in PYTHON]:
        array, notes[key] = encode(arrays[key], is_top=True)
        if array is MISSING:
            del found[key]
        else:
            found[key] = array
    if len(found) < len(arrays):
        # What has no array follows, in the note, what comes before it.
        notes = {key: notes.get(key) for key in arrays}
    elif notes:
        notes |= {key: None for key in arrays if "/" in str(key) and key not in notes}
    return found, notes or None


def _as_numpy_does(value: Any) -> Any:
    """Return the array of a NumPy scalar, or of a list if that has the same values."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    array = _of_items(value) if isinstance(value, (list, tuple)) else value
    return value if array is MISSING else array


def _of_items(items: Any) -> Any:
    """Return the array of a list, `MISSING` if its values differ, or the list if it has none."""
    try:
        array = np.asarray(items)
    except (ValueError, TypeError, OverflowError):
        return items
    if array.dtype.kind in "OV":
        return items
    flat = items
    for _ in range(array.ndim - 1):
        flat = chain.from_iterable(flat)
    given = [one.item() if isinstance(one, np.generic) else one for one in flat]
    found = array.ravel().tolist()
    # NaN is equal to NaN by its repr.
    is_same = found == given or all(
        one == other or repr(one) == repr(other) for one, other in zip(found, given, strict=True)
    )
    return array if is_same else MISSING


def as_saved(arrays: Any, metadata: Mapping[str, Any] | None) -> tuple[Any, Any, bool]:
    """Return arrays and metadata as they are saved, and whether the arrays were a tree."""
    check_tree(arrays)
    plain, has_note = without_note(metadata or {})
    if isinstance(arrays, Mapping) and not is_nested(arrays):
        # A copy of an archive may come with the note of that one, which knows its numbers.
        arrays, note = (arrays, None) if has_note else with_numbers(arrays)
        if note is None:
            return arrays, metadata, False
    else:
        arrays, note = flatten(arrays)
    return arrays, plain if note is None else {**plain, TREE_KEY: note}, True


def without_note(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return metadata without the note about nested data, and whether it was there."""
    others = dict(metadata)
    is_tree = others.pop(TREE_KEY, None) is not None
    return others, is_tree


def check_tree(value: Any) -> None:
    """Raise TypeError for what is neither a container nor an array of NumPy, PyTorch or JAX."""
    is_array = isinstance(value, np.ndarray) or is_tensor(value) or is_jax_array(value)
    if not is_array and children_of(value) is None:
        raise TypeError(
            "a tree must be a mapping, such as {'x': x}, a list, a tuple, a dataclass, a pytree or "
            f"an array, not {type(value).__name__}"
        )


def flatten(tree: Any, key: str = "", *, keep_refused: bool = False) -> tuple[dict[str, Any], Any]:
    """Return the arrays of a tree by their keys, and the note.

    Parameters
    ----------
    tree : mapping of str or int to object, list, tuple, namedtuple, dataclass or array
        The fields of a namedtuple or a dataclass are a mapping.
    key : str, optional
        Under which the tree is saved.
    keep_refused : bool, default False
        Whether the error of a value that cannot be kept takes its place among the arrays.

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
        A value cannot be kept, and not `keep_refused`.

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
    flattening = _Flattening(arrays, keep_refused=keep_refused)
    if key:
        # What is inside is not at the top: numbers are entries of the note.
        return arrays, flattening.value(tree, key, (0,))
    check_unlabelled(tree)
    check_tree(tree)
    if children_of(tree) is None:
        return arrays, ["single", _SINGLE_KEY, flattening.value(tree, _SINGLE_KEY, (0,))]
    if is_record(tree) and not is_namedtuple(tree):
        tree = children_of(tree)
    return arrays, flattening.value(tree, "", ())


class _Flattening:
    """Collect the arrays of a tree by their keys, and return notes."""

    def __init__(self, arrays: dict[str, Any], *, keep_refused: bool) -> None:
        self._arrays, self._keep_refused = arrays, keep_refused
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
            if is_sparse(value):
                # One of its formats is a mapping.
                return self._sparse(value, key)
            if isinstance(value, Mapping):
                return self._mapping(value, key, around)
            if isinstance(value, (list, tuple)):
                return self._items(value, key, around)
            if is_record(value):
                return self._mapping(children_of(value) or {}, key, _within(value, around, key))
        try:
            shared = identity(value) if is_leaf else None
            # The first key under which the memory of a tensor is saved.
            first, _ = self._tensors.setdefault(shared, (key, value)) if shared else (key, None)
            if first != key:
                return ["same", first, *special_dtype(value)]
            array, note = encode(value, is_top=len(around) == 1)
        except NpzkitError as error:
            if not self._keep_refused:
                raise error.locate(key=key) from None
            array, note = error, None
        return note if array is MISSING else self._array(array, key, note)

    def _items(self, items: Any, key: str, around: tuple[int, ...]) -> Any:
        is_top = len(around) == 1
        around = _within(items, around, key)
        if is_namedtuple(items):
            notes = [
                self.value(item, child_key(key, name), around)
                for name, item in zip(items._fields, items, strict=True)
            ]
            return ["named", *type_of(items, self._types, key), *notes]
        kind = "tuple" if isinstance(items, tuple) else "list"
        if is_top and (array := exact_array(items)) is not None:
            return self._array(array, key, ["as", kind])
        return [
            kind,
            *[self.value(item, child_key(key, i), around) for i, item in enumerate(items)],
        ]

    def _sparse(self, value: Any, key: str) -> Any:
        try:
            parts = parts_of(value)
        except NpzkitError as error:
            raise error.locate(key=key) from None
        for name, part in parts.items():
            self._array(part, child_key(key, name), None)
        return ["sparse", type(value).__name__]

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
            inner = items_in(tree[names[first]], first) if first in names else ()
            if any(is_within(below, name) for below, *_ in inner):
                raise UnsupportedError(
                    f"two items of the tree have this key: the name {name!r}, and what is in "
                    f"{first!r}",
                    key=child_key(key, name),
                    remedy="Choose another name, without a slash.",
                )
            first += slash + name[len(first) + 1 :].partition("/")[0]


def _duplicate_key(key: str) -> KeyExistsError:
    return KeyExistsError(
        "two items of the tree have this key", key=key, remedy="Rename one of the two."
    )


def _within(node: object, around: tuple[int, ...], where: str) -> tuple[int, ...]:
    """Return the ids of the nodes around the children of `node`."""
    if id(node) in around:
        raise ValueError(f"the tree contains itself, at {where!r}")
    if len(around) > MAX_DEPTH:
        raise ValueError(f"the tree is nested more than {MAX_DEPTH} deep, at {where[:80]!r}")
    return (*around, id(node))
