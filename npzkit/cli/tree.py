"""The command that shows the keys of an archive as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from npzkit.cli.file_argument import archive_argument, opened, shape_text
from npzkit.cli.listings import Member, members_of, tell_unreadable
from npzkit.cli.output import can_print, colour
from npzkit.errors import format_count, format_dtype, format_size, printable, shown_url


class _Folder:
    """Keys with the same parts before a slash."""

    def __init__(self) -> None:
        self.folders: dict[str, _Folder] = {}
        self.members: list[tuple[str, Member]] = []
        self.size = 0
        self.count = 0


@click.command()
@archive_argument
@click.option("--depth", type=click.IntRange(1), help="Show folders up to this depth.")
def tree(file: str, depth: int | None) -> int:
    """Show the keys of FILE as a tree, with sizes.

    A slash in a key separates folders, as in a path. FILE may be - for the
    standard input; a pipe is copied to a temporary file first. For programs,
    npzkit ls --json lists the keys.

    Example: npzkit tree model.npz
    """
    with opened(file) as npz:
        members = members_of(npz, npz.files)
    root = _grow(members)
    lines = [f"{printable(shown_url(file))}  {_count_text(root)}", *_branches(root, depth)]
    click.echo("\n".join(lines))
    return tell_unreadable(members)


def _grow(members: Iterable[Member]) -> _Folder:
    root = _Folder()
    for member in members:
        *parts, name = member.key.split("/")
        size = member.info.nbytes if member.info else 0
        folders = [root]
        for part in parts:
            folders.append(folders[-1].folders.setdefault(part, _Folder()))
        for folder in folders:
            folder.size += size
            folder.count += 1
        folders[-1].members.append((name, member))
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
        if isinstance(thing, Member):
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


def _children(folder: _Folder) -> list[tuple[str, _Folder | Member, bool]]:
    """Return names with their folder or member, and whether each is the last one."""
    # An empty name is the entry of the folder itself.
    named = [(name, member) for name, member in folder.members if name or member.info is None]
    things: list[tuple[str, _Folder | Member]] = [*folder.folders.items(), *named]
    return [(name, thing, place == len(things)) for place, (name, thing) in enumerate(things, 1)]


def _leaf(name: str, member: Member) -> str:
    if member.info is None:
        return f"{printable(name)}  unreadable"
    info = member.info
    kind = f"{shape_text(info.shape)} {format_dtype(info.dtype)}" if info.dtype else "not an array"
    return f"{printable(name)}  {kind}  {format_size(info.nbytes)}"
