"""The note of a tree: what the keys of its arrays do not say.

Owns the kinds of notes, what is in one by name, and which name in a container a key
leads to. It is stored as JSON. Knows nothing about archives.

A note is one of these:

- None: an array, or a mapping of arrays, as the keys describe it;
- ``{name: note}``: a mapping, with the items that need notes, and all names that
  contain slashes;
- ``["ints", {name: note}]``: a mapping whose names are ints if they look like
  ints, except for the names in an optional third item, ``[name, ...]``;
- ``["list", note, ...]`` and ``["tuple", note, ...]``, with a note per item;
- ``["named", type, [field, ...], note, ...]``: a namedtuple, with a note per field;
- ``["sparse", class]``: a sparse matrix or array of scipy, of whose parts the keys have the names;
- ``["same", key]``: a tensor with the memory of the one that was saved under
  another key, with a third item as in the entry of a tensor;
- ``["single", name, note]``: a tree that is one array, whose key is that name;
- ``["flat"]``, for a tree alone: a mapping of arrays whose names are the keys, also those
  that contain slashes;
- ``["version", number, ...]``, for a tree alone: what a newer npzkit writes if this one could
  not read it;
- the entry of a leaf: ``["value", note]`` with a note of `npzkit.trees.values`; ``["as",
  kind]`` for an array that was a Python value (``"value"``), a list or a tuple of values, a NumPy
  scalar (``"scalar"``), bytes (``"bytes"``), an `io.BytesIO` (``"stream"``) or a tensor of
  PyTorch (``"tensor"``, with the name of its dtype if neither NumPy nor ml_dtypes has it).

In the note of a mapping, a name without arrays follows the name that came
before it, if that one has arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Set
from typing import Any

from npzkit.members.keys import child_key, is_within
from npzkit.members.metadata import FLAT
from npzkit.trees.containers import KINDS, MAX_FIELDS
from npzkit.trees.sparse import PARTS


def kind_of(note: Any) -> str | None:
    """Return what a note is: "array" or "leaf", "mapping", or its first item; None if invalid.

    Examples
    --------
    >>> kind_of(None), kind_of({}), kind_of(["value", 1]), kind_of(["list"]), kind_of(["same"])
    ('array', 'mapping', 'leaf', 'list', None)
    """
    if note is None:
        return "array"
    if not isinstance(note, list):
        return "mapping" if isinstance(note, Mapping) else None
    kind, size = note[0] if note else None, len(note)
    if kind in KINDS:
        return "leaf"
    if kind in ("list", "tuple"):
        return str(kind)
    is_valid = (
        (kind == "ints" and 2 <= size <= 3 and isinstance(note[1], Mapping))
        or (kind == "same" and 2 <= size <= 3 and isinstance(note[1], str))
        or (kind == "single" and size == 3 and isinstance(note[1], str))
        or (kind == "named" and size >= 3 and _is_named(note))
        or (kind == "sparse" and size == 2 and isinstance(note[1], str) and note[1] in PARTS)
    )
    return str(kind) if is_valid else None


def _is_named(note: list[Any]) -> bool:
    _, name, fields, *notes = note
    return (
        isinstance(name, str)
        and isinstance(fields, list)
        and all(isinstance(field, str) for field in fields)
        and len(notes) == len(fields) <= MAX_FIELDS
    )


def items_of(note: Any) -> dict[str, Any]:
    """Return the notes of the items of a container by name.

    Examples
    --------
    >>> items_of(["list", None, ["value", 1]])
    {'0': None, '1': ['value', 1]}
    """
    kind = kind_of(note)
    if kind == "mapping":
        return dict(note)
    if kind in ("list", "tuple"):
        return {str(index): inner for index, inner in enumerate(note[1:])}
    if kind == "named":
        return dict(zip(note[2], note[3:], strict=True))
    if kind == "single":
        return {note[1]: note[2]}
    if kind == "sparse":
        return dict.fromkeys(PARTS[note[1]])
    return dict(note[1]) if kind == "ints" else {}


def listed(note: Any, keys: Iterable[str]) -> Any:
    """Return the note of a tree with the names that contain slashes, if `FLAT` stands for them.

    Examples
    --------
    >>> listed(["flat"], ["a", "b/c"])
    {'b/c': None}
    """
    return {key: None for key in keys if "/" in key} if note == FLAT else note


def links(
    note: Any, names_in: Callable[[str], Set[str] | None] | None = None, key: str = ""
) -> dict[str, str]:
    """Return the keys of tensors that are the memory of another one, and that one's key.

    The arguments are those of `nodes_of`.

    Examples
    --------
    >>> links({"a": ["list", ["same", "w"], ["value", 1]]})
    {'a/0': 'w'}
    """
    nodes = nodes_of(note, names_in, key)
    return {key: one[1] for key, one in nodes if not is_leaf(one) and kind_of(one) == "same"}


def tied_to(key: str, note: Any) -> str | None:
    """Return the key that has the array of a tied tensor; None if the key is of no such tensor."""
    return links(note, towards(key)).get(key)


def towards(key: str) -> Callable[[str], Set[str] | None]:
    """Return what `nodes_of` takes to look at what is at and below a key, and little else."""
    return lambda folder: (
        None if is_within(folder, key) else {key[len(folder) :].lstrip("/").partition("/")[0]}
    )


def is_leaf(note: Any) -> bool:
    """Return whether a note is the entry of a leaf, or None."""
    return note is None or (type(note) is list and bool(note) and note[0] in KINDS)


def is_value(note: Any) -> bool:
    """Return whether a note is that of a leaf that needs no array."""
    return isinstance(note, list) and bool(note) and note[0] in ("value", "same")


def needs_no_array(note: Any) -> bool:
    """Return whether a note is that of a value, or of a container that was saved empty.

    Examples
    --------
    >>> [needs_no_array(note) for note in (["value", 1], {}, ["list"], None, {"w": None})]
    [True, True, True, False, False]
    """
    is_empty = kind_of(note) in ("mapping", "list", "tuple", "named") and not items_of(note)
    return is_value(note) or is_empty


def is_of(note: Any, keys: Collection[str]) -> bool:
    """Return whether a note is of a tree with some of these arrays, or names no arrays.

    Examples
    --------
    >>> is_of({"w": None, "lr": ["value", 0.1]}, ["w"]), is_of({"w": None}, ["x"])
    (True, False)
    """
    arrays = [key for key, found in nodes_of(note) if is_leaf(found) and not is_value(found)]
    return not arrays or any(key in keys for key in arrays)


def values_of(note: Any, key: str = "") -> dict[str, Any]:
    """Return the notes of all in a node that needs no array, tied tensors too, by their keys.

    Examples
    --------
    >>> values_of({"w": None, "run": {"lr": ["value", 0.1]}, "tied": ["same", "w"]})
    {'run/lr': ['value', 0.1], 'tied': ['same', 'w']}
    """
    return {key: found for key, found in nodes_of(note, key=key) if is_value(found)}


def name_in(rest: str, own: Container[str], is_end: Callable[[str], bool]) -> str:
    """Return the name in a container that a key leads to.

    Parameters
    ----------
    rest : str
        The key, without that of the container.
    own : container of str
        Names with slashes in the container. The longest that fits is taken, and the key's
        first part if none does.
    is_end : callable
        Returns whether a name is that of an array or a value. What is below the key of
        one is beside it, under its complete name.

    Examples
    --------
    >>> name_in("a/b/c", [], "x".__eq__), name_in("a/b/c", ["a/b"], "x".__eq__)
    ('a', 'a/b')
    >>> name_in("a/b/c", [], "a".__eq__)
    'a/b/c'
    """
    if not own:
        name = rest.partition("/")[0]
    else:
        name = rest
        while "/" in name and name not in own:
            name = name.rpartition("/")[0]
    return rest if is_end(name) else name


def nodes_of(
    note: Any, names_in: Callable[[str], Set[str] | None] | None = None, key: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a node and of all nodes below it, and their notes, in their order.

    Parameters
    ----------
    note : object
    names_in : callable, optional
        Returns the names that are looked at in the container with a key; None means all of
        them. Names that contain slashes are looked at always.
    key : str, optional
        Of the node.
    """
    stack = [(key, note)]
    while stack:
        key, note = stack.pop()
        yield key, note
        if not is_leaf(note):
            inner = items_of(note)
            wanted = None if names_in is None else names_in(key)
            stack += [
                (child_key(key, name), inner[name])
                for name in reversed(inner)
                if wanted is None or name in wanted or "/" in name
            ]
