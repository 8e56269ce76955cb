"""The command that lists the arrays of archives, and the members that other commands list too.

Owns how unreadable members are shown. Only headers are read.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import npzkit
from npzkit.cli.messages import in_a_line, message_of, report_failure, say
from npzkit.cli.opening import (
    NESTED_TEXT,
    archives_argument,
    as_text,
    dtype_text,
    info_dict,
    listed,
    shape_text,
    without_note,
)
from npzkit.cli.output import json_option, print_json, print_table, print_text, progress
from npzkit.errors import format_count, format_ratio, format_size, printable, shown_url

if TYPE_CHECKING:
    from npzkit.cli.opening import Listing

_STEP = 1000
"""Members between two updates of the progress bar."""


class Member(NamedTuple):
    """A key with the description of its member, or with the error in reading it."""

    key: str
    info: npzkit.ArrayInfo | None
    error: str


def members_of(npz: Listing, keys: Sequence[str]) -> list[Member]:
    members: list[Member] = []
    with progress("read headers", in_bytes=False) as tell:
        for count in range(0, len(keys), _STEP):
            tell(count, len(keys))
            members += [_member(npz, key) for key in keys[count : count + _STEP]]
    return members


def _member(npz: Listing, key: str) -> Member:
    try:
        return Member(key, npz.info(key), "")
    except (npzkit.errors.StaleArchiveError, npzkit.errors.MemberNotFoundError):
        raise
    except npzkit.NpzkitError as error:
        return Member(key, None, in_a_line(message_of(error)))


def tell_unreadable(members: Sequence[Member]) -> int:
    """Print the error of an unreadable member, or the first of several; return the exit code."""
    errors = [member.error for member in members if member.info is None]
    if len(errors) > 1:
        say(f"{len(errors)} members cannot be read. The first error: {errors[0]}")
    elif errors:
        say(errors[0])
    return 1 if errors else 0


_METADATA_LENGTH = 500
"""Characters of metadata shown by ls without -l."""


_ORDERS: Mapping[str, Callable[[Member], Any]] = {
    "key": lambda member: member.key,
    "size": lambda member: -member.info.nbytes if member.info else 0,
    "ratio": lambda member: (
        member.info.compressed_size / max(member.info.nbytes, 1) if member.info else 0
    ),
    "dtype": lambda member: str(member.info.dtype) if member.info else "",
}


@click.command()
@archives_argument
@click.option(
    "-l", "--long", "is_long", is_flag=True, help="Also show offsets, CRCs and attributes."
)
@click.option(
    "--sort", type=click.Choice(list(_ORDERS)),
    help="Order of the arrays; size puts the largest first.",
)  # fmt: skip
@click.option(
    "--glob", "patterns", multiple=True, help="Show only keys that match, such as 'layer*/bias'."
)
@json_option
def ls(
    files: tuple[str, ...], is_long: bool, sort: str | None, patterns: tuple[str, ...],
    as_json: bool,
) -> int:  # fmt: skip
    """List the arrays of FILEs, reading headers only.

    The ratio is an array's size in the file, as a share of its size in memory.
    The asm column shows whether an array is aligned (a), seekable (s: its parts
    are cheap to read) and mappable (m). The last line shows
    the totals and the size of the file. FILE may be - for the standard input,
    which is read to its end without checking the data.

    Example: npzkit ls -l model.npz
    """
    archives, code, is_first = [], 0, True
    for file in files:
        try:
            with listed(file) as npz:
                members = _chosen(npz, patterns, sort)
                if as_json:
                    archives.append(_archive_dict(file, npz, members))
                else:
                    if len(files) > 1:
                        click.echo(("" if is_first else "\n") + f"{printable(shown_url(file))}:")
                    _print_members(npz, members, is_long)
        except (npzkit.NpzkitError, OSError) as error:
            if len(files) == 1:
                raise
            # The other files are still listed.
            code = max(code, report_failure(error))
            continue
        is_first = False
        code = max(code, tell_unreadable(members))
    if as_json:
        print_json(archives)
    return code


def _chosen(npz: Listing, patterns: Sequence[str], sort: str | None) -> list[Member]:
    """Return the members that match --glob, in the order of --sort."""
    keys = [
        key for key in npz
        if not patterns or any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)
    ]  # fmt: skip
    members = members_of(npz, keys)
    if sort is not None:
        members.sort(key=_ORDERS[sort])
    return members


def _archive_dict(file: str, npz: Listing, members: Sequence[Member]) -> dict[str, Any]:
    return {
        "path": shown_url(file),
        "size": npz.file_size,
        "metadata": dict(npz.metadata),
        "members": [
            info_dict(member.info) if member.info else {"key": member.key, "error": member.error}
            for member in members
        ],
    }


class _Column(NamedTuple):
    """A column of the table: its heading, and its cells as a function of fields of ArrayInfo."""

    heading: str
    side: str
    cell: Callable[..., str]
    fields: tuple[str, ...]


def _marks(aligned: bool, is_cheap: bool | None, why_not_mappable: str | None) -> str:
    marks = zip("asm", (aligned, is_cheap, why_not_mappable is None), strict=True)
    return "".join(mark if is_set else "-" for mark, is_set in marks)


def _order(fortran_order: bool | None) -> str:
    return "-" if fortran_order is None else "F" if fortran_order else "C"


def _attrs_text(attrs: Mapping[str, Any]) -> str:
    return as_text(dict(attrs)) if attrs else ""


_COLUMNS = [
    _Column("key", "left", printable, ("key",)),
    _Column("shape", "left", shape_text, ("shape",)),
    _Column("dtype", "left", dtype_text, ("dtype",)),
    _Column("size", "right", format_size, ("nbytes",)),
    _Column("ratio", "right", format_ratio, ("compressed_size", "nbytes")),
    _Column("method", "left", str, ("method",)),
    _Column("asm", "left", _marks, ("aligned", "has_cheap_parts", "why_not_mappable")),
]
_LONG_COLUMNS = [
    *_COLUMNS,
    _Column("in file", "right", "{:,}".format, ("compressed_size",)),
    _Column("at byte", "right", "{:,}".format, ("data_offset",)),
    _Column("order", "left", _order, ("fortran_order",)),
    _Column("CRC-32", "left", "{:08x}".format, ("crc32",)),
    _Column("attributes", "left", _attrs_text, ("attrs",)),
]


def _print_members(npz: Listing, members: Sequence[Member], is_long: bool) -> None:
    print_members(members, len(npz), npz.file_size, is_long=is_long)
    metadata, is_tree = without_note(npz.metadata)
    if is_tree:
        print_text(f"nested: {NESTED_TEXT}")
    if metadata:
        text = as_text(metadata)
        if not is_long and len(text) > _METADATA_LENGTH:
            text = text[: _METADATA_LENGTH - 3] + "..."
        print_text(f"metadata: {text}")


def print_members(
    members: Sequence[Member], all_count: int, file_size: int, *, is_long: bool
) -> None:
    """Print a table of members, and a line with their number and sizes."""
    if members:
        columns = _LONG_COLUMNS if is_long else _COLUMNS
        headings = [(column.heading, column.side) for column in columns]
        print_table(headings, _rows(members, columns, "unreadable" if is_long else "?"))
    print_text(_totals(members, all_count, file_size))


def _rows(
    members: Sequence[Member], columns: Sequence[_Column], unreadable: str
) -> list[tuple[str, ...]]:
    """Return the cells of each member."""
    infos = [member.info for member in members if member.info]
    rows = zip(*(_cells(column, infos) for column in columns), strict=True)
    blank = *["-"] * (len(columns) - 2), unreadable
    return [next(rows) if member.info else (printable(member.key), *blank) for member in members]


def _cells(column: _Column, infos: Sequence[npzkit.ArrayInfo]) -> Iterator[str]:
    """Return the cells of a column. The text of a value that many arrays have is made once."""
    is_hashable = column.fields != ("attrs",)
    cell = functools.cache(column.cell) if is_hashable else column.cell
    return map(cell, *(map(attrgetter(field), infos) for field in column.fields))


def _totals(members: Sequence[Member], all_count: int, file_size: int) -> str:
    infos = [member.info for member in members if member.info]
    size = sum(info.nbytes for info in infos)
    compressed_size = sum(info.compressed_size for info in infos)
    count = format_count(all_count, "member")
    if len(members) != all_count:
        count = f"{len(members):,} of {count}"
    ratio = f" ({format_ratio(compressed_size, size)})" if size else ""
    taken = f"{format_size(compressed_size)}{ratio} of the file's {format_size(file_size)}"
    return f"{count}, {format_size(size)}, {taken}"
