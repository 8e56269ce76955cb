"""Parts of a tree, by patterns of keys.

Owns what a pattern means: a key, everything below a key, or a shell pattern
whose ``*`` matches slashes too. It also owns where in a tree a pattern can match, so
that nothing else has to be looked at. Reads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from fnmatch import translate
from typing import Any, NamedTuple

from npzkit.members.containers import is_within
from npzkit.members.keys import missing

UNREAD: Any = object()
"""The place of what is there, but was not read."""

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
    >>> wanted.keys(["a/0", "a/1", "a/1/x", "bias"]), "c" in wanted
    (['a/1', 'a/1/x', 'bias'], False)
    """

    def __init__(self, patterns: str | Iterable[str]) -> None:
        patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        if not patterns:
            raise ValueError("only must have at least one pattern")
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise TypeError(f"only must be patterns of keys, not {pattern!r}")
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
        >>> wanted = Selection(["a/b/c", "a/d*"])
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

    def check_used(self, keys: Sequence[str], path: str | None, *, is_empty: bool) -> None:
        """Check that each pattern has matched something.

        Parameters
        ----------
        keys : sequence of str
            Those of the archive, for the message of the error.
        path : str or None
            Of the archive, for the message.
        is_empty : bool
            Whether nothing at all was found.

        Raises
        ------
        MemberNotFoundError
            A pattern matches nothing.
        """
        for rule in self._rules:
            if is_empty or rule.pattern not in self._used:
                raise missing(rule.pattern, keys, path)
