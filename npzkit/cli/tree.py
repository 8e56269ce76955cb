"""Keys as a tree of lines: a slash in a key separates folders, as in a path.

Owns the lines, and which folders share one. The tree is `npzkit.display.key_tree`'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from npzkit.cli.output import can_print, colour, shape_text
from npzkit.display.key_tree import KeyTree
from npzkit.errors import format_count, format_dtype, format_size, printable

if TYPE_CHECKING:
    from npzkit import ArrayInfo

    Info = ArrayInfo | None
    """What is known of a member; None if it cannot be read."""


def tree_lines(title: str, members: Iterable[tuple[str, Info]], depth: int | None) -> Iterator[str]:
    """Yield a title with the totals, and a line per folder, up to a depth, and per member."""
    infos = dict(members)
    tree = KeyTree(list(infos))
    yield f"{title}  {_count_text(tree, infos, '')}"
    yield from _branches(tree, infos, depth)


def _branches(tree: KeyTree, infos: Mapping[str, Info], depth: int | None) -> Iterator[str]:
    """Yield one line per folder and member. A folder with nothing beside it shares a line."""
    fork, last, bar, blank = ("├── ", "└── ", "│   ", "    ")
    if not can_print(fork + last + bar):
        fork, last, bar = "|-- ", "`-- ", "|   "
    # No recursion, because a key can have very many parts.
    stack = [("", _children(tree, infos, ""), "", 1)]
    while stack:
        folder, children, indent, level = stack[-1]
        if not children:
            stack.pop()
            continue
        path = children.popleft()
        lead = indent + (fork if children else last)
        if not tree.is_folder(path, folder):
            yield lead + _leaf(path[len(folder) :], infos[path])
            continue
        while len(inner := tree.listed(path)) == 1 and tree.is_folder(inner[0], path):
            (path,) = inner
        name = printable(path[len(folder) :])
        yield f"{lead}{colour(name, bold=True)}  {_count_text(tree, infos, path)}"
        if depth is None or level < depth:
            inner_indent = indent + (bar if children else blank)
            stack.append((path, _children(tree, infos, path), inner_indent, level + 1))


def _count_text(tree: KeyTree, infos: Mapping[str, Info], folder: str) -> str:
    found = [infos[key] for key in tree.keys_in(folder)]
    size = sum(info.nbytes for info in found if info)
    return f"{format_count(len(found), 'member')}, {format_size(size)}"


def _children(tree: KeyTree, infos: Mapping[str, Info], folder: str) -> deque[str]:
    """Return folders, and behind them members."""
    paths = tree.listed(folder)
    folders = [path for path in paths if tree.is_folder(path, folder)]
    # An empty name is the entry of the folder itself.
    named = [
        path for path in paths
        if not tree.is_folder(path, folder) and (path != folder or infos[path] is None)
    ]  # fmt: skip
    return deque(folders + named)


def _leaf(name: str, info: Info) -> str:
    if info is None:
        return f"{printable(name)}  unreadable"
    kind = f"{shape_text(info.shape)} {format_dtype(info.dtype)}" if info.dtype else "not an array"
    return f"{printable(name)}  {kind}  {format_size(info.nbytes)}"
