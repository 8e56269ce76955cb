"""The keys of an archive as a tree, of which only some rows are shown.

Owns which rows there are, for the folders that are open or the words that keys are
filtered by. Knows no widget.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from npzkit.errors import printable

_DEPTH = 50
"""Folders in each other. What follows is one name, because a key may have 30,000 slashes."""
_NAME_LENGTH = 300
"""Characters shown of a name."""


class Row(NamedTuple):
    """A row of the tree.

    Attributes
    ----------
    label : str
        What is shown; every character can be printed.
    depth : int
    key : str or None
        Of an array; None for a folder.
    folder : str or None
        Of a folder, with its last slash; None for an array.
    key_count : int
        Of a folder.
    is_open : bool
    """

    label: str
    depth: int
    key: str | None = None
    folder: str | None = None
    key_count: int = 0
    is_open: bool = False


class KeyTree:
    """Keys, split at their slashes.

    Parameters
    ----------
    keys : sequence of str

    Examples
    --------
    >>> tree = KeyTree(["a/x", "a/y", "b"])
    >>> [(row.label, row.key_count) for row in tree.rows(set(), 10)]
    [('a', 2), ('b', 0)]
    >>> [row.label for row in tree.rows({"a/"}, 10)]
    ['a', 'x', 'y', 'b']
    >>> tree.matching("Y", 10)
    (['a/y'], 1)
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        self._folded = [key.casefold() for key in keys]
        # A folder's name ends with a slash, so that it may lie beside an array of its name.
        self._root: dict[str, Any] = {}
        for key in keys:
            branch = self._root
            *folders, name = key.split("/", _DEPTH)
            for folder in folders:
                branch = branch.setdefault(f"{folder}/", {})
            branch[name] = key
        self._counts: dict[int, int] = {}

    def rows(self, opened: Collection[str], count: int) -> list[Row]:
        """Return the first rows, `count` at most, with what is in the open folders."""
        return list(islice(self._rows(self._root, "", 0, opened), count))

    def _rows(
        self, branch: dict[str, Any], path: str, depth: int, opened: Collection[str]
    ) -> Iterator[Row]:
        for name, found in branch.items():
            if isinstance(found, str):
                yield Row(_label(name), depth, key=found)
                continue
            folder = path + name
            is_open = folder in opened
            label = _label(name.removesuffix("/"))
            yield Row(label, depth, folder=folder, key_count=self._count(found), is_open=is_open)
            if is_open:
                yield from self._rows(found, folder, depth + 1, opened)

    def row_count(self, opened: Collection[str]) -> int:
        """Return how many rows there are in all."""
        return sum(1 for _ in self._rows(self._root, "", 0, opened))

    def _count(self, branch: dict[str, Any]) -> int:
        """Return the number of keys in a folder, which is counted once."""
        found = self._counts.get(id(branch))
        if found is None:
            found = sum(1 if isinstance(x, str) else self._count(x) for x in branch.values())
            self._counts[id(branch)] = found
        return found

    def folders(self, count: int) -> set[str]:
        """Return the folders to open at first: all, if there are at most `count` rows then."""
        found: set[str] = set()
        branches = [("", self._root)]
        total = 0
        while branches:
            path, branch = branches.pop(0)
            total += len(branch)
            if total > count and path:
                break
            if path:
                found.add(path)
            branches += [(path + n, x) for n, x in branch.items() if not isinstance(x, str)]
        return found

    def parents(self, key: str) -> set[str]:
        """Return the folders that a key is in."""
        return {key[: found.end()] for found in re.finditer("/", key)}

    def matching(self, words: str, count: int) -> tuple[list[str], int]:
        """Return the first keys that have all words, and the number of all such keys.

        Capitals do not matter. A word with ``*``, ``?`` or ``[`` is a pattern for the
        complete key.
        """
        found: Sequence[int] = range(len(self.keys))
        for word in words.casefold().split():
            folded = self._folded
            if set(word) & set("*?["):
                is_match = re.compile(fnmatch.translate(word)).match
                found = [place for place in found if is_match(folded[place])]
            else:
                found = [place for place in found if word in folded[place]]
        return [self.keys[place] for place in found[:count]], len(found)


def _label(name: str) -> str:
    text = printable(name[:_NAME_LENGTH])
    return text if text.strip() else repr(name[:_NAME_LENGTH])
