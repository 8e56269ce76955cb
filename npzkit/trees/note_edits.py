"""The note of a tree whose arrays are added, renamed and removed one by one.

Owns what each edit does to the note, so that the tree changes as its arrays do:

- An array that is added is placed by its key: in the container whose key is the longest
  beginning of it, and beside an array or a value whose key it begins with.
- An array that is removed takes its entry along. A rename carries it to the new key.
  A name with slashes stays known, so that an array may come back under it.
- A list, tuple or namedtuple to which something is added is a mapping from then on. One
  that lacks an item is read as a mapping, until the item is there again.
- Nothing else changes. What is in a container stays when an array gets the container's
  key: under its complete keys, beside the array.

Reads no archive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from npzkit.errors import UnsafeNameError
from npzkit.members.keys import check_key, child_key, is_within
from npzkit.members.metadata import TREE_KEY, as_read
from npzkit.trees.containers import INT
from npzkit.trees.notes import (
    is_leaf,
    is_value,
    items_of,
    kind_of,
    links,
    name_in,
    needs_no_array,
    nodes_of,
    towards,
)


class EditedNote:
    """The note of one archive's tree.

    Parameters
    ----------
    note : object
        It is copied.
    is_array : callable
        Returns whether the archive has an array with a key.

    Attributes
    ----------
    note : object
        Changed in place.
    tied : dict of str to list of str
        The keys of tensors that are, or were, tied to each key; see `tied_to`.
    """

    def __init__(self, note: Any, is_array: Callable[[str], bool]) -> None:
        self.note = as_read({TREE_KEY: note}).get(TREE_KEY, {})
        self._is_array = is_array
        self.tied: dict[str, list[str]] = {}
        self._tie("", self.note)

    def tied_to(self, key: str) -> dict[str, Any]:
        """Return the notes of the tensors that have the array of a key, by their own keys."""
        notes = {other: _get(*self._path(other)[-1]) for other in self.tied.get(key, ())}
        return {
            other: note for other, note in notes.items()
            if kind_of(note) == "same" and note[1] == key
        }  # fmt: skip

    def items_in(self, key: str) -> Iterator[tuple[str, Any]]:
        """Yield the keys and notes of leaves and empty containers at a key and below it."""
        for at, note in nodes_of(self.note, towards(key)):
            if is_within(at, key) and _is_item(note):
                yield at, note

    def has(self, key: str) -> bool:
        """Return whether the note has a value, or an empty container, at a key or below it."""
        return any(True for _ in self.items_in(key))

    def has_value(self, key: str) -> bool:
        """Return whether the note has a value at a key."""
        return is_value(_get(*self._path(key)[-1]))

    # -- edits --------------------------------------------------------------

    def put(self, key: str, new: Any = None, *, is_first: bool = False) -> None:
        """Place an array with its entry, if it has one, or a tree with its note.

        If the array is the first under its key, the entry that is already there is its own:
        the note was copied from another archive before the arrays.
        """
        node, start = self.note, 0
        while True:
            name = self._name(node, key, start)
            if _is_positional(node) and not _has_place(node, name):
                _make_mapping(node)
            start += len(name) + 1
            if start > len(key):
                break
            child = _get(node, name)
            if is_leaf(child) or child == {}:
                if new is None:
                    # The keys of its arrays say what this is from now on.
                    _set(node, name, child or None)
                    return
                child = {}
                _set(node, name, child)
            node = child
        entry = _get(node, name)
        if not (is_first and is_leaf(entry) and not is_value(entry)):
            _replace(node, name, new)

    def take(self, key: str) -> Any:
        """Remove the entry of an array, or an empty container, and return it; None if neither."""
        path = self._path(key)
        node, name = path[-1]
        entry = _get(node, name)
        if not (is_leaf(entry) or needs_no_array(entry)):
            return None
        _vacate(node, name)
        for (outer, name), (node, _) in zip(path[-2::-1], path[:0:-1], strict=True):
            if node != {}:
                break
            _vacate(outer, name)
        return entry if kind_of(entry) != "same" else None

    def move(self, old: str, new: str, entry: Any) -> None:
        """Place an array that was under another key, with the entry that it had there.

        If the tensor `new` was tied to `old`, it has the array now.
        """
        tied = self.tied_to(old)
        if new in tied:
            entry = ["as", "tensor", *tied.pop(new)[2:]]
        self.put(new, entry)
        for key, link in tied.items():
            link[1] = new
            self.tied.setdefault(new, []).append(key)
        self.tied.pop(old, None)

    def clear(self, key: str) -> None:
        """Remove everything at a key and below it."""
        self._clear(self.note, "", key)

    def _clear(self, node: Any, at: str, key: str) -> None:
        for name, inner in items_of(node).items():
            below = child_key(at, name)
            if is_within(key, below) and key != below:
                self._clear(inner, below, key)
            if is_within(below, key) or (inner == {} and is_within(key, below)):
                _remove(node, name)

    def put_tree(self, key: str, note: Any, last: str | None) -> None:
        """Place a tree; if `last` is the key of an array, its name is to follow that one's."""
        items = _mapping_of(self.note)
        if last is not None and items is not None:
            items.setdefault(self._name(self.note, last, 0), None)
        self.put(key, note)
        self._tie(key, note)

    def put_items(self, items: Mapping[str, Any]) -> None:
        """Place items of the root, of which it has none."""
        if _mapping_of(self.note) is None:
            _make_mapping(self.note)
        _mapping_of(self.note).update(items)
        for name, item in items.items():
            self._tie(name, item)

    # -- places -------------------------------------------------------------

    def _tie(self, key: str, note: Any) -> None:
        """Note which tensors in the tree at a key are tied."""
        for other, target in links(note, key=key).items():
            # Any text may be in a file's note.
            with suppress(UnsafeNameError):
                check_key(other)
                self.tied.setdefault(target, []).append(other)

    def _path(self, key: str) -> list[tuple[Any, str]]:
        """Return the nodes that lead to a key, each with the name that is followed in it."""
        path, node, start = [], self.note, 0
        while start <= len(key):
            name = self._name(node, key, start)
            path.append((node, name))
            node, start = _get(node, name), start + len(name) + 1
        return path

    def _name(self, node: Any, key: str, start: int) -> str:
        """Return the name in a node to which a key leads, from a place in the key on."""

        def is_end(name: str) -> bool:
            return is_value(_get(node, name)) or self._is_array(key[: start + len(name)])

        return name_in(key[start:], _mapping_of(node) or (), is_end)


def moved(note: Any, prefix: str) -> Any:
    """Return a note with a prefix before the keys to which tensors are tied."""
    note = as_read({TREE_KEY: note})[TREE_KEY]
    for _, one in nodes_of(note):
        if kind_of(one) == "same":
            one[1] = prefix + one[1]
    return note


def _replace(node: Any, name: str, new: Any) -> None:
    """Replace a note. The items of the old one stay beside the new one."""
    below = nodes_of(_get(node, name), key=name)
    beside = {at: note for at, note in below if at != name and _is_item(note)}
    if beside and _is_positional(node):
        _make_mapping(node)
    for at, note in beside.items():
        _set(node, at, note)
    _set(node, name, new)


def _is_positional(node: Any) -> bool:
    """Return whether the names of a container's items are fixed."""
    return kind_of(node) in ("list", "tuple", "named", "single", "sparse")


def _has_place(node: Any, name: str) -> bool:
    """Return whether a container with fixed names has an item of this name."""
    # The parts of a sparse matrix have no notes.
    return name in items_of(node) if node[0] == "sparse" else _index(node, name) is not None


def _is_item(note: Any) -> bool:
    """Return whether a note is that of a leaf, or of a container that was saved empty."""
    return note is not None and not items_of(note) and kind_of(note) != "ints"


def _mapping_of(node: Any) -> Any:
    """Return the notes of a mapping's items, to be changed, or None."""
    if type(node) is dict or isinstance(node, Mapping):
        return node
    return node[1] if kind_of(node) == "ints" else None


def _make_mapping(node: Any) -> None:
    """Make the note of a list, tuple, namedtuple or single array that of a mapping."""
    node[:] = ["ints", items_of(node)]


def _index(node: Any, name: str) -> int | None:
    """Return the place of an item's note in that of a container with fixed names, or None."""
    kind = kind_of(node)
    if kind in ("list", "tuple"):
        index = int(name) if INT.fullmatch(name) else -1
        return index + 1 if 0 <= index < len(node) - 1 else None
    if kind == "named":
        return 3 + node[2].index(name) if name in node[2] else None
    return 2 if kind == "single" and name == node[1] else None


def _get(node: Any, name: str) -> Any:
    items = _mapping_of(node)
    if items is not None:
        return items.get(name)
    index = _index(node, name)
    return None if index is None else node[index]


def _set(node: Any, name: str, note: Any) -> None:
    """Set the note of an item. A mapping lists an item without a note if it already did."""
    items = _mapping_of(node)
    if items is None:
        if (index := _index(node, name)) is not None:
            node[index] = note
    elif note is not None or name in items:
        items[name] = note


def _vacate(node: Any, name: str) -> None:
    """Remove the note of an item. Its place stays, and so does a name with slashes."""
    _set(node, name, None)
    if "/" not in name:
        _remove(node, name)


def _remove(node: Any, name: str) -> None:
    """Remove the note of an item, and its name if the container is a mapping."""
    items = _mapping_of(node)
    if items is None:
        _set(node, name, None)
    else:
        items.pop(name, None)
