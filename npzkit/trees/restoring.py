"""A tree, or a part of it, from arrays by their keys and a note.

Owns the conversion of a flat mapping of arrays to the tree that
`npzkit.trees.containers` flattened, and what a pattern of keys means: a key, everything
below a key, or a shell pattern whose ``*`` matches slashes too. Only where a pattern can
match is looked at. Where the arrays do not match the note, because the archive was edited,
all arrays and values are kept. Knows nothing about archives.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from fnmatch import translate
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from npzkit.errors import (
    LimitExceededError,
    MemberNotFoundError,
    NpzkitError,
    ZipFormatError,
    shown_value,
    some_of,
)
from npzkit.members.keys import (
    SUFFIX,
    check_depth,
    child_key,
    common_start,
    is_within,
    missing,
    with_folders,
)
from npzkit.members.metadata import check_tree_version
from npzkit.trees.containers import INT, MAX_DEPTH, MAX_FIELDS, MISSING, decode, named
from npzkit.trees.notes import is_value, items_of, kind_of, listed, name_in
from npzkit.trees.sparse import made_of

UNREAD: Any = object()
"""The place of what is there, but was not read."""

_BY_KEYS = "Read the arrays with npzkit.open."
_MODULUS = sys.hash_info.modulus
_MOST_OF_ONE_HASH = 1000
"""Keys of a mapping. The time that a dict takes grows with the square of their number."""
_SPECIAL = re.compile(r"[*?\[]")


class _Rule(NamedTuple):
    """What one pattern means.

    Attributes
    ----------
    pattern : str
    root : str
        The key of the node that contains all that the pattern can match.
    key : str
        The key that the pattern is, if it is one.
    start : str
        What all matching keys start with.
    regex : re.Pattern or None
        None if the pattern has no special characters.
    """

    pattern: str
    root: str
    key: str
    start: str
    regex: re.Pattern[str] | None

    def matches(self, key: str) -> bool:
        return is_within(key, self.key) or (
            self.regex is not None and self.regex.match(key) is not None
        )

    def matching(self, keys: Sequence[str]) -> list[str]:
        """Return those of many keys that match."""
        return [key for key in keys if key.startswith(self.start) and self.matches(key)]


def _rule(pattern: str) -> _Rule:
    key = pattern.rstrip("/")
    special = _SPECIAL.search(pattern)
    if special is None:
        return _Rule(pattern, key, key, key, None)
    start = pattern[: special.start()]
    return _Rule(pattern, start.rpartition("/")[0], key, start, re.compile(translate(pattern)))


class KeySelection:
    """What of a tree is wanted.

    Parameters
    ----------
    patterns : str or iterable of str
    name : str, default "only"
        Of the argument, for messages.

    Raises
    ------
    TypeError, ValueError
        A pattern is not a string, or there is none.

    Examples
    --------
    >>> wanted = KeySelection(["a/1", "b*"])
    >>> wanted.keys(["a/0", "a/1", "a/1/x", "bias"]), "c" in wanted
    (['a/1', 'a/1/x', 'bias'], False)
    """

    def __init__(self, patterns: str | Iterable[str], name: str = "only") -> None:
        patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        if not patterns:
            raise ValueError(f"{name} must have at least one pattern")
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise TypeError(f"{name} must be patterns of keys, not {pattern!r}")
        self._rules = list(map(_rule, patterns))
        self._used: set[str] = set()

    def __contains__(self, key: str) -> bool:
        used = [rule.pattern for rule in self._rules if rule.matches(key)]
        self._used.update(used)
        return bool(used)

    def keys(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that are wanted, in their order."""
        found = {rule.pattern: rule.matching(keys) for rule in self._rules}
        self._used = {pattern for pattern, matching in found.items() if matching}
        if len(found) == 1:
            return next(iter(found.values()))
        wanted = set().union(*found.values())
        return [key for key in keys if key in wanted]

    def names_in(self, key: str) -> Set[str] | None:
        """Return the names in a container that can lead to what is wanted; None for all.

        Names that contain slashes can lead there too.

        Examples
        --------
        >>> wanted = KeySelection(["a/b/c", "a/d*"])
        >>> sorted(wanted.names_in("")), wanted.names_in("a"), wanted.names_in("x")
        (['a'], None, set())
        """
        names: set[str] = set()
        for rule in self._rules:
            if is_within(key, rule.root):
                return None
            if is_within(rule.root, key):
                names.add(rule.root[len(key) + 1 if key else 0 :].partition("/")[0])
        return names

    def has_all_in(self, key: str) -> bool:
        """Return whether everything at and below a key is wanted, as far as keys tell."""
        rules = [r for r in self._rules if is_within(key, r.root) or is_within(r.root, key)]
        return bool(rules) and all(r.regex is None and is_within(key, r.root) for r in rules)

    def check_used(
        self,
        keys: Sequence[str],
        path: str | None,
        *,
        is_empty: bool,
        tied: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Check that each pattern has matched something.

        Parameters
        ----------
        keys : sequence of str
            Those that could match, for the message of the error.
        path : str or None
            Of the archive, for the message.
        is_empty : bool
            Whether nothing at all was found.
        tied : mapping of str to str, optional
            Keys without an array of their own, and whose they have, for the message.

        Raises
        ------
        MemberNotFoundError
            A pattern matches nothing.
        """
        for rule in self._rules:
            if is_empty or rule.pattern not in self._used:
                error = _unmatched(rule, keys, path)
                for key in rule.matching(list(tied))[:1]:
                    named = shown_value(tied[key])
                    error.remedy = f"{shown_value(key)} is tied to {named}: name that one."
                raise error


def named_keys(patterns: Iterable[str], keys: Iterable[str], path: str | None) -> list[str]:
    """Return the keys that arguments name, each once.

    An argument is a key, a folder of keys, or a pattern. A key or a folder that is spelled like
    a pattern wins. What is none of these is returned as it is: who looks it up says so.

    Raises
    ------
    MemberNotFoundError
        A pattern matches nothing.

    Examples
    --------
    >>> named_keys(["b*", "a"], ["a/x", "a/y", "bias", "b*"], None), named_keys(["c"], [], None)
    (['b*', 'a/x', 'a/y'], ['c'])
    """
    listed, found = list(keys), list[str]()
    present = set(listed)
    for pattern in patterns:
        rule = _rule(pattern)
        key = pattern if pattern in present else pattern.removesuffix(SUFFIX)
        if key in present:
            found.append(key)
            continue
        inside = [key for key in listed if rule.key and is_within(key, rule.key)]
        matching = inside or (rule.matching(listed) if rule.regex else [])
        if rule.regex and not matching:
            raise _unmatched(rule, listed, path)
        found += matching or [pattern]
    return list(dict.fromkeys(found))


def missing_part(
    key: str, keys: Sequence[str], path: str | None, argument: str = ""
) -> MemberNotFoundError:
    """Return the error of a key that has nothing in it, though others may begin with it."""
    # A folder that the key names is right, and is more than what was meant.
    error = missing(key, [one for one in with_folders(keys) if not key.startswith(one)], path)
    if any(other.startswith(f"{key}.") for other in keys):
        pattern = f"{argument}{shown_value(f'{key}.*')}"
        error.remedy = f"Keys begin with it: {pattern} matches them."
    return error


def _unmatched(rule: _Rule, keys: Sequence[str], path: str | None) -> MemberNotFoundError:
    """Return the error of a pattern that matches nothing, with keys that begin like it."""
    if rule.regex is None:
        return missing_part(rule.key, keys, path)
    start = max((common_start([rule.start, key]) for key in keys), key=len, default="")
    which = f"Keys that begin with {shown_value(start)}" if start else "Existing keys"
    near = some_of([key for key in keys if key.startswith(start)], shown_value, 3)
    return MemberNotFoundError(
        f"no array matches {shown_value(rule.pattern)}", path=path, remedy=f"{which}: {near}."
    )


def unflatten(
    arrays: Mapping[str, Any],
    note: Any,
    prefix: str = "",
    *,
    keys: Iterable[str] | None = None,
    linked: Mapping[str, Any] | None = None,
    selection: KeySelection | None = None,
    as_tensor: Callable[..., Any] | None = None,
) -> Any:
    """Return the tree of arrays by their keys, with a note from `flatten`.

    An array that the note does not describe is placed by the parts of its key. A
    list, tuple or namedtuple that lacks an item, or has one more, becomes a dict by
    index or name.

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
    selection : KeySelection, optional
        What of the tree to return, for which `arrays` has the arrays. A list, tuple
        or namedtuple that loses items becomes a dict by index or name.
    as_tensor : callable, optional
        As in `npzkit.trees.containers.decode`.

    Returns
    -------
    object
        `MISSING` if the tree has nothing at `prefix`, `UNREAD` if nothing there is wanted.

    Raises
    ------
    ZipFormatError
        The note is not valid.
    UnsupportedError
        A newer version of npzkit wrote the note.
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
    check_tree_version(note)
    note = listed(note, keys)
    check_depth(keys)
    found: Any = _Branch(keys, 0, arrays)
    if prefix:
        found, note = _descend(found, note, prefix)
    elif kind_of(note) in ("leaf", "same"):
        raise _damaged(note)
    restoring = _Restoring(arrays if linked is None else linked, as_tensor, selection)
    restored = restoring.value(found, note, 0, None if selection is None else prefix)
    # An archive without arrays is an empty tree.
    return {} if restored is MISSING and not prefix else restored


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

    @property
    def key(self) -> str | None:
        """The key of the node; None at the top."""
        return self._keys[0][: self._start].rstrip("/") or None

    def items(self, notes: Mapping[str, Any], wanted: Set[str] | None = None) -> dict[str, Any]:
        """Return arrays and branches by name, in the order of the keys.

        Parameters
        ----------
        notes : mapping of str to object
            Those of the items by name.
        wanted : set of str, optional
            All other branches are only said to be there, unless their names have slashes.
            If it is one name, they may be left out.
        """
        start, arrays, keys = self._start, self._arrays, self._keys
        own = {name for name in notes if "/" in name}
        values = {name for name, note in notes.items() if is_value(note)}
        if wanted is not None and len(wanted) == 1 and keys:
            (only,) = wanted
            key = keys[0][:start] + only
            inside = [other for other in keys if other.startswith(key + "/")]
            if inside and key not in keys and not own and only not in values:
                return {only: _Branch(inside, start + len(only) + 1, arrays)}
            keys = [other for other in keys if is_within(other, key)]
        names = [key[start:] for key in keys]
        if "/" not in "".join(names):
            return {name: arrays.get(key, UNREAD) for key, name in zip(keys, names, strict=True)}
        ends = {name for name in names if "/" not in name or name in own} | values
        items: dict[str, Any] = {}
        # Most keys follow others of the same branch.
        last, branch = "", None
        for key, name in zip(keys, names, strict=True):
            if own or not (last and name.startswith(last)):
                first = name if name in ends else name_in(name, own, ends.__contains__)
                if first == name:
                    items[name], last = arrays.get(key, UNREAD), ""
                    continue
                last, branch = first + "/", items.get(first)
                if branch is None and (wanted is None or first in wanted or first in own):
                    branch = _Branch([], start + len(last), arrays)
                items[first] = UNREAD if branch is None else branch
            if isinstance(branch, _Branch):
                branch._keys.append(key)
        return items

    def within(self, name: str) -> _Branch:
        """Return what is below a name, as one branch."""
        start = self._start + len(name) + 1
        inside = [key for key in self._keys if key.startswith(name + "/", self._start)]
        return _Branch(inside, start, self._arrays)


def _descend(found: Any, note: Any, left: str) -> tuple[Any, Any]:
    """Return the subtree at a key, and its note."""
    while left:
        notes = items_of(note)
        items: dict[str, Any] = {}
        if isinstance(found, _Branch):
            items = found.items(notes, {left.partition("/")[0]})
        # It may be beside an array whose key is a prefix of its key.
        name = left if left in items else name_in(left, notes, set[str]().__contains__)
        if name not in items and name not in notes:
            return _beginning(found, notes, left)
        found, note = items.get(name, MISSING), notes.get(name)
        left = left[len(name) + 1 :]
    return found, note


def _beginning(found: Any, notes: Mapping[str, Any], left: str) -> tuple[Any, Any]:
    """Return what is in a container under names with slashes that begin so, as a mapping."""
    below = {
        name[len(left) + 1 :]: note for name, note in notes.items() if name.startswith(left + "/")
    }
    if not below:
        return MISSING, None
    return found.within(left) if isinstance(found, _Branch) else MISSING, below


class _Restoring:
    """Make a tree of what keys and a note describe.

    The key of a node is passed along as long as it matters: until all that is below it
    is wanted. It is None from there on, and everywhere if no part is selected.
    """

    def __init__(
        self,
        linked: Mapping[str, Any],
        as_tensor: Callable[..., Any] | None,
        selection: KeySelection | None,
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
        if depth > MAX_DEPTH + 1:
            raise _damaged("too deep")
        kind = kind_of(note)
        if kind == "leaf":
            return self._leaf(found, note, key)
        if kind == "mapping":
            return self._mapping(found, note, depth, key)
        if kind in ("list", "tuple", "named", "single", "sparse"):
            return self._items(found, note, depth, key)
        if kind == "ints":
            items = self._mapping(found, note[1], depth, key, is_filled=True)
            return _with_ints(items, note[2:], note) if isinstance(items, dict) else items
        if kind == "same":
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
        except ValueError as error:
            if note[0] == "as" and isinstance(error, NpzkitError):
                # The array is at fault, not the note.
                raise error.locate(key=key) from error.__cause__
            raise _damaged(note) from None
        return value if value is MISSING or is_array or self._is_wanted(key) else UNREAD

    def _tensor(self, array: Any, *special: Any) -> Any:
        """Return the tensor of an array, the same one each time."""
        if id(array) not in self._tensors and self._as_tensor is not None:
            self._tensors[id(array)] = array, self._as_tensor(array, *special)
        return self._tensors[id(array)][1]

    def _mapping(
        self,
        found: Any,
        notes: Mapping[str, Any],
        depth: int,
        key: str | None,
        *,
        is_filled: bool = False,
    ) -> Any:
        """Return a mapping, or `MISSING` if there was something in it and nothing is left."""
        if found is not MISSING and not isinstance(found, _Branch):
            return found
        wanted = self._names_in(key)
        items = {} if found is MISSING else found.items(notes, wanted)
        kept = {}
        # A comprehension would be one more call in each level of a deep tree.
        for name in _names(items, notes, wanted):
            below = None if key is None else child_key(key, name)
            value = self.value(items.get(name, MISSING), notes.get(name), depth + 1, below)
            if value is not MISSING:
                kept[name] = value
        if not kept and wanted is None and (notes or is_filled):
            return MISSING
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
        """Return a container of a fixed number of items, or a dict if it lacks one or has more."""
        notes, kind = items_of(note), note[0]
        items = self._mapping(found, notes, depth, key)
        wanted = self._names_in(key)
        if wanted is not None:
            left_out = {name: inner for name, inner in notes.items() if name not in wanted}
            _check_depth(left_out, depth + 1)
        if not isinstance(items, dict):
            return items
        if items.keys() != notes.keys():
            ordered = {name: items[name] for name in chain(notes, items) if name in items}
            return _with_ints(ordered, [], note) if kind in ("list", "tuple") else ordered
        if kind == "sparse":
            return _sparse(found, note[1], items)
        values = [items[name] for name in notes]
        if kind == "named":
            return self._named(note)._make(values)
        return values[0] if kind == "single" else tuple(values) if kind == "tuple" else values

    def _named(self, note: Any) -> Any:
        """Return the class of a namedtuple."""
        kind = note[1], tuple(note[2])
        self._types.add(kind)
        if len(self._types) > MAX_FIELDS:
            raise _damaged(note)
        try:
            return named(*kind)
        except ValueError:
            raise _damaged(note) from None


def _sparse(found: Any, kind: str, items: dict[str, Any]) -> Any:
    try:
        return made_of(kind, items)
    except NpzkitError as error:
        raise error.locate(key=found.key) from error.__cause__


def _check_depth(notes: Mapping[str, Any], depth: int) -> None:
    """Check the notes of items that are not wanted, which nothing else looks at."""
    if notes and depth > MAX_DEPTH + 1:
        raise _damaged("too deep")
    for note in notes.values():
        _check_depth(items_of(note), depth + 1)


def _names(
    found: Mapping[str, Any], notes: Mapping[str, Any], wanted: Set[str] | None
) -> Iterable[str]:
    """Return the names of items, or those that are wanted, in their order."""
    if wanted is not None:
        # Patterns do not say which slashes are in names.
        wanted = {name for name in chain(found, notes) if name in wanted or "/" in name}
        if len(wanted) < 2:
            return wanted
    names = found if notes.keys() <= found.keys() else _in_order(found, notes)
    return names if wanted is None else [name for name in names if name in wanted]


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


def _with_ints(items: dict[Any, Any], strings: list[Any], note: Any) -> dict[Any, Any]:
    """Return a mapping with int keys for names that look like ints, except `strings`."""
    if strings and not isinstance(strings[0], list):
        raise _damaged(note)
    kept = set(map(str, strings[0])) if strings else set()
    names = [int(name) if name not in kept and INT.fullmatch(name) else name for name in items]
    # Python's hash of a smaller int is the int itself.
    large = Counter(hash(name) for name in names if type(name) is int and abs(name) >= _MODULUS)
    if large and max(large.values()) > _MOST_OF_ONE_HASH:
        what = "a mapping has too many numbers as keys that have the same hash"
        raise LimitExceededError(
            what, found=max(large.values()), expected=f"at most {_MOST_OF_ONE_HASH}",
            remedy=_BY_KEYS,
        )  # fmt: skip
    return dict(zip(names, items.values(), strict=True))


def _damaged(note: Any) -> ZipFormatError:
    what = "the structure of the nested data is damaged"
    return ZipFormatError(what, found=note, remedy=_BY_KEYS)
