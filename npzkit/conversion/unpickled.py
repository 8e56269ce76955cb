"""Arrays of Python objects as plain arrays and nested data, for an archive that one trusts.

Owns what becomes of objects: an array of them is one of numbers or texts if that keeps each, and
else a list; what is in one goes on as in any tree (`npzkit.trees.containers`), which says what has
no place. Reading a pickle runs the code that it names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from npzkit.archive.npzfile import NpzFile
from npzkit.conversion.arrays import Array, Contents, Say, array_of
from npzkit.conversion.npz import listed_arrays
from npzkit.conversion.refusals import Claims
from npzkit.datasets.opening import open_any
from npzkit.errors import Advice, NpzkitError
from npzkit.members.metadata import TREE_KEY
from npzkit.members.tensors import as_unlabelled
from npzkit.trees.containers import children_of, exact_array, flatten, is_namedtuple
from npzkit.trees.note_edits import EditedNote
from npzkit.trees.sparse import is_sparse

_TEXT_RATIO = 8
_FREE_SIZE = 1 << 20
"""An array has room for its longest text in each place: at most this much, or so many times as
much as the texts together."""


@contextlib.contextmanager
def read(path: str, say: Say, claims: Claims, encoding: str) -> Iterator[Contents]:
    """Open an archive whose objects are unpickled."""
    pickled: dict[str, Any] = {"allow_pickle": True, "pickle_kwargs": {"encoding": encoding}}
    with open_any(path, limits=claims.limits, **pickled) as npz:
        arrays: list[Array] = []
        notes: dict[str, Any] = {}
        for array in listed_arrays(npz, say):
            # What has no array follows, in the note, what comes before it.
            notes[array.key] = None
            arrays += _plain_arrays(npz, array, notes) if array.dtype.hasobject else [array]
        yield Contents(_with_notes(npz.metadata, notes), arrays)


def _plain_arrays(npz: NpzFile, array: Array, notes: dict[str, Any]) -> list[Array]:
    """Return the arrays of what an array of objects holds; itself, with the reason, if of none."""
    key = array.key
    try:
        arrays, note = flatten(_plain(npz.read(key)), key)
        found = [array_of(name, as_unlabelled(part, name)) for name, part in arrays.items()]
    except NpzkitError as error:
        return [array._replace(problem=f"{error.key}: {error.what}" if error.key else error.what)]
    except UnicodeError:
        option = Advice("encoding='latin1'", "--encoding latin1")
        return [array._replace(problem="Python 2 may have written it: pass " + option)]
    except Exception as error:
        text = f"its pickle cannot be read: {type(error).__name__}: {error}"
        return [array._replace(problem=text)]
    notes[key] = note
    return found


def _plain(value: Any) -> Any:
    """Return a value without arrays of objects in it."""
    if isinstance(value, np.ndarray):
        if not value.dtype.hasobject or value.dtype.names:
            return value
        if not value.size:
            return np.empty(value.shape)
        items = value.tolist()
        return _plain_items(items) if value.ndim else _plain(items)
    if isinstance(value, np.generic) or is_sparse(value):
        return value
    if is_namedtuple(value):
        return type(value)._make(map(_plain, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    children = children_of(value)
    return value if children is None else {name: _plain(one) for name, one in children.items()}


def _plain_items(items: list[Any]) -> Any:
    """Return the array of numbers or texts that some items are, or a list of them."""
    kinds = set(map(type, items))
    if kinds == {str}:
        size = 4 * len(items) * max(map(len, items))
        if size > max(_FREE_SIZE, _TEXT_RATIO * sum(map(len, items))):
            return items
    if len(kinds) == 1 and issubclass(next(iter(kinds)), np.generic):
        array = np.array(items)
    else:
        found = exact_array(items)
        array = found if found is not None else np.array(None)
    return list(map(_plain, items)) if array.dtype.hasobject else array


def _with_notes(metadata: Mapping[str, Any], notes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata whose note about nested data has those of all keys, if there are any."""
    if not any(note is not None for note in notes.values()):
        return metadata
    known = metadata.get(TREE_KEY)
    tree = EditedNote(known if isinstance(known, Mapping) else {}, notes.__contains__)
    last = None
    for key, note in notes.items():
        if note is not None:
            tree.put_tree(key, note, last)
        last = key
    return {**metadata, TREE_KEY: tree.note}
