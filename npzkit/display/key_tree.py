"""The keys of an archive as a tree, of which only some rows are shown.

Owns how keys are split into folders, which rows there are for the folders that are open, and which
keys have some words. Knows no widget and no terminal.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterator, Sequence, Set
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
        # The keys in each folder that was seen, and the rows of each that was open. A folder's
        # name ends with a slash, so that it may lie beside an array of its name.
        self._inside: dict[str, Any] = {"": keys}
        self._listed: dict[str, list[str]] = {}

    def keys_in(self, folder: str) -> Sequence[str]:
        """Return all keys in a folder that was listed."""
        found: Sequence[str] = self._inside[folder]
        return found

    def is_folder(self, path: str, folder: str) -> bool:
        """Return whether a path that is listed in a folder is one of its folders."""
        # A folder may have an array without a name, whose key is the folder's path.
        return path != folder and path in self._inside

    def listed(self, folder: str) -> list[str]:
        """Return what is in a folder: keys, and paths of folders."""
        found = self._listed.get(folder)
        if found is None:
            found = self._listed[folder] = []
            inside, size, is_deepest = self._inside, len(folder), folder.count("/") == _DEPTH
            for key in inside[folder]:
                end = 0 if is_deepest else key.find("/", size) + 1
                if not end:
                    found.append(key)
                elif (path := key[:end]) in inside:
                    inside[path].append(key)
                else:
                    inside[path] = [key]
                    found.append(path)
        return found

    def rows(self, opened: Collection[str], count: int) -> list[Row]:
        """Return the first rows, `count` at most, with what is in the open folders."""
        return list(islice(self._rows("", 0, opened), count))

    def _rows(self, folder: str, depth: int, opened: Collection[str]) -> Iterator[Row]:
        for path in self.listed(folder):
            if not self.is_folder(path, folder):
                yield Row(_label(path[len(folder) :]), depth, key=path)
                continue
            label, count = _label(path[len(folder) : -1]), len(self._inside[path])
            is_open = path in opened
            yield Row(label, depth, folder=path, key_count=count, is_open=is_open)
            if is_open:
                yield from self._rows(path, depth + 1, opened)

    def row_count(self, opened: Set[str]) -> int:
        """Return how many rows there are in all."""
        # A folder comes before those in it, and is listed before they are.
        shown = (path for path in sorted(opened) if self.parents(path) <= opened)
        return len(self.listed("")) + sum(len(self.listed(p)) for p in shown if p in self._inside)

    def folders(self, count: int) -> set[str]:
        """Return the folders to open at first: all, if there are at most `count` rows then."""
        found: set[str] = set()
        waiting, total = [""], 0
        while waiting:
            folder = waiting.pop(0)
            paths = self.listed(folder)
            total += len(paths)
            if total > count:
                break
            found.add(folder)
            waiting += [path for path in paths if self.is_folder(path, folder)]
        return found - {""}

    def parents(self, key: str) -> set[str]:
        """Return the folders that a key is in."""
        return {key[: found.end()] for found in islice(re.finditer("/", key), _DEPTH)}

    def matching(self, words: str, count: int) -> tuple[list[str], int]:
        """Return the first keys that have all words, and the number of all such keys.

        Capitals do not matter. A word with ``*``, ``?`` or ``[`` is a pattern for the
        complete key.
        """
        found: Sequence[str] = self.keys
        for word in words.casefold().split():
            if set(word) & set("*?["):
                is_match = re.compile(fnmatch.translate(word)).match
                found = [key for key in found if is_match(key.casefold())]
            else:
                found = [key for key in found if word in key.casefold()]
        return list(found[:count]), len(found)


def _label(name: str) -> str:
    text = printable(name[:_NAME_LENGTH])
    return text if text.strip() else repr(name[:_NAME_LENGTH])
