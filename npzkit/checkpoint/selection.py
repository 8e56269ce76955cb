"""Parts of a tree, by patterns of keys.

Owns what a pattern means: a key, everything below a key, or a shell pattern, whose
``*`` matches slashes too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from typing import Any

from npzkit.members.keys import missing
from npzkit.members.nesting import MISSING, is_within

__all__ = ["UNREAD", "Selection"]

UNREAD: Any = object()
"""What stands in a tree for an array that is not wanted, until the tree is pruned."""


class Selection:
    """What of a tree is wanted.

    Parameters
    ----------
    patterns : str or iterable of str

    Raises
    ------
    TypeError, ValueError
        A pattern is not a string, or there is none.
    """

    def __init__(self, patterns: str | Iterable[str]) -> None:
        self._patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        if not self._patterns:
            raise ValueError("only must have at least one pattern")
        for pattern in self._patterns:
            if not isinstance(pattern, str):
                raise TypeError(f"only must be patterns of keys, not {pattern!r}")
        self._expressions = [re.compile(translate(pattern)) for pattern in self._patterns]
        self._used: set[str] = set()

    def __contains__(self, key: str) -> bool:
        found = False
        for pattern, expression in zip(self._patterns, self._expressions, strict=True):
            if is_within(key, pattern.rstrip("/")) or expression.match(key):
                self._used.add(pattern)
                found = True
        return found

    def keys(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that are wanted."""
        self._used.clear()
        return [key for key in keys if key in self]

    def prune(self, tree: Any, keys: Sequence[str], path: str | None) -> Any:
        """Return a tree without what is not wanted: `UNREAD`, numbers, strings, empty parts.

        A list or tuple that loses items becomes a dict by position.

        Raises
        ------
        MemberNotFoundError
            A pattern matches nothing; `keys` and `path` are for its message.
        """
        pruned = self._pruned(tree, "")
        for pattern in self._patterns:
            if pattern not in self._used:
                raise missing(pattern, keys, path)
        return {} if pruned is MISSING else pruned

    def _pruned(self, node: Any, key: str) -> Any:
        items: Mapping[Any, Any]
        if isinstance(node, Mapping):
            items = node
        elif isinstance(node, (list, tuple)):
            items = dict(enumerate(node))
        else:
            items = {}
        if not items:
            # The root has no key.
            is_wanted = node is not UNREAD and (not key or key in self)
            return node if is_wanted else MISSING
        prefix = f"{key}/" if key else ""
        pruned = {name: self._pruned(item, f"{prefix}{name}") for name, item in items.items()}
        kept = {name: item for name, item in pruned.items() if item is not MISSING}
        if not kept:
            return MISSING
        if isinstance(node, Mapping):
            return kept
        if len(kept) == len(items):
            return node if all(kept[n] is items[n] for n in items) else _like(node, kept)
        return {str(name): item for name, item in kept.items()}


def _like(node: Any, items: Mapping[int, Any]) -> Any:
    return tuple(items.values()) if isinstance(node, tuple) else list(items.values())
