"""Parts of a tree, by patterns of keys.

Owns what a pattern means (a key, everything below a key, or a shell pattern
whose ``*`` matches slashes too), and what is left of a tree if only some of its
leaves are wanted. Reads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from typing import Any

from npzkit.members.containers import child_key, children_of, rebuilt
from npzkit.members.keys import missing
from npzkit.members.nesting import MISSING, is_within

__all__ = ["UNREAD", "Selection"]

UNREAD: Any = object()
"""The place of an array that was not read."""


class Selection:
    """What of a tree is wanted.

    Parameters
    ----------
    patterns : str or iterable of str

    Raises
    ------
    TypeError, ValueError
        A pattern is not a string, or there is none.

    Examples
    --------
    >>> wanted = Selection(["a/1", "b*"])
    >>> wanted.prune({"a": [1, 2, 3], "b": 4, "c": 5}, ["a", "b"], None)
    {'a': {1: 2}, 'b': 4}
    """

    def __init__(self, patterns: str | Iterable[str]) -> None:
        self._patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        if not self._patterns:
            raise ValueError("only must have at least one pattern")
        for pattern in self._patterns:
            if not isinstance(pattern, str):
                raise TypeError(f"only must be patterns of keys, not {pattern!r}")
        self._rules = [
            (pattern, pattern.rstrip("/"), re.compile(translate(pattern)).match)
            for pattern in self._patterns
        ]
        self._used: set[str] = set()

    def __contains__(self, key: str) -> bool:
        found = False
        for pattern, prefix, matches in self._rules:
            if is_within(key, prefix) or matches(key):
                self._used.add(pattern)
                found = True
        return found

    def keys(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that are wanted."""
        self._used.clear()
        return [key for key in keys if key in self]

    def prune(self, tree: Any, keys: Sequence[str], path: str | None, prefix: str = "") -> Any:
        """Return a tree without what is not wanted, and without `UNREAD`.

        A list, tuple or namedtuple that loses items becomes a dict by index or
        name.

        Parameters
        ----------
        tree : object
        keys : sequence of str
            Those of the archive, for the message of the error.
        path : str or None
            Of the archive, for the message.
        prefix : str, optional
            The key of `tree`.

        Raises
        ------
        MemberNotFoundError
            A pattern matches nothing.
        """
        pruned = self._pruned(tree, prefix)
        for pattern in self._patterns:
            if pattern not in self._used or pruned is MISSING:
                raise missing(pattern, keys, path)
        return pruned

    def _pruned(self, node: Any, key: str) -> Any:
        if node is UNREAD:
            return MISSING
        children = children_of(node)
        if not children:
            return node if key in self else MISSING
        kept = {}
        for name, child in children.items():
            value = self._pruned(child, child_key(key, name))
            if value is not MISSING:
                kept[name] = value
        if not kept:
            return MISSING
        return rebuilt(node, kept) if len(kept) == len(children) else kept
