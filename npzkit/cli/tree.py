"""Keys as a tree: a slash in a key separates folders, as in a path.

Owns the lines of the tree, and which folders share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from npzkit.cli.output import can_print, colour, shape_text
from npzkit.errors import format_count, format_dtype, format_size, printable

if TYPE_CHECKING:
    from npzkit import ArrayInfo

    Info = ArrayInfo | None
    """What is known of a member; None if it cannot be read."""


class _Folder:
    """Keys with the same parts before a slash."""

    def __init__(self) -> None:
        self.folders: dict[str, _Folder] = {}
        self.members: list[tuple[str, Info]] = []
        self.size = 0
        self.count = 0


def tree_lines(title: str, members: Iterable[tuple[str, Info]], depth: int | None) -> Iterator[str]:
    """Yield a title with the totals, and a line per folder, up to a depth, and per member."""
    root = _grow(members)
    yield f"{title}  {_count_text(root)}"
    yield from _branches(root, depth)


def _grow(members: Iterable[tuple[str, Info]]) -> _Folder:
    root = _Folder()
    for key, info in members:
        *parts, name = key.split("/")
        folders = [root]
        for part in parts:
            folders.append(folders[-1].folders.setdefault(part, _Folder()))
        for folder in folders:
            folder.size += info.nbytes if info else 0
            folder.count += 1
        folders[-1].members.append((name, info))
    return root


def _branches(root: _Folder, depth: int | None) -> Iterator[str]:
    """Yield one line per folder and member. A folder with nothing beside it shares a line."""
    fork, last, bar, blank = ("├── ", "└── ", "│   ", "    ")
    if not can_print(fork + last + bar):
        fork, last, bar = "|-- ", "`-- ", "|   "
    # No recursion, because a key can have very many parts.
    stack = [(iter(_children(root)), "", 1)]
    while stack:
        children, indent, level = stack[-1]
        child = next(children, None)
        if child is None:
            stack.pop()
            continue
        name, thing, is_last = child
        lead = indent + (last if is_last else fork)
        if not isinstance(thing, _Folder):
            yield lead + _leaf(name, thing)
            continue
        while not thing.members and len(thing.folders) == 1:
            ((part, inner),) = thing.folders.items()
            name, thing = f"{name}/{part}", inner
        yield f"{lead}{colour(printable(name) + '/', bold=True)}  {_count_text(thing)}"
        if depth is None or level < depth:
            inner_indent = indent + (blank if is_last else bar)
            stack.append((iter(_children(thing)), inner_indent, level + 1))


def _count_text(folder: _Folder) -> str:
    return f"{format_count(folder.count, 'member')}, {format_size(folder.size)}"


def _children(folder: _Folder) -> list[tuple[str, _Folder | Info, bool]]:
    """Return names with their folder or member, and whether each is the last one."""
    # An empty name is the entry of the folder itself.
    named = [(name, info) for name, info in folder.members if name or info is None]
    things: list[tuple[str, _Folder | Info]] = [*folder.folders.items(), *named]
    return [(name, thing, place == len(things)) for place, (name, thing) in enumerate(things, 1)]


def _leaf(name: str, info: Info) -> str:
    if info is None:
        return f"{printable(name)}  unreadable"
    kind = f"{shape_text(info.shape)} {format_dtype(info.dtype)}" if info.dtype else "not an array"
    return f"{printable(name)}  {kind}  {format_size(info.nbytes)}"
