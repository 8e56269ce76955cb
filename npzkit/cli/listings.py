"""The commands that list the arrays of archives, and show details of one.

Owns how members are described, and how unreadable ones are shown. Only headers are read.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import click

import npzkit
from npzkit.cli.file_argument import (
    ArchiveFile,
    archive_argument,
    archives_argument,
    find_archives,
    key_argument,
    keys_matching,
    keys_option,
    opened,
    recursive_option,
    tell_abandoned,
    tell_passed_over,
    tell_unmatched,
    typed_key,
)
from npzkit.cli.messages import error_facts, in_a_line, message_of, report_failure, say
from npzkit.cli.output import (
    ProgressBar,
    as_text,
    json_option,
    print_fields,
    print_json,
    print_table,
    print_text,
    shape_text,
)
from npzkit.cli.tree import tree_lines
from npzkit.errors import (
    at_prompt,
    format_count,
    format_dtype,
    format_ratio,
    format_size,
    printable,
    shown_url,
    some_of,
)
from npzkit.files.urls import local_path
from npzkit.members.metadata import TREE_KEY

_STEP = 1000
"""Members between two updates of the progress bar."""


_NAMED_SIZE = 65_536
"""Unused bytes that are worth a line."""
_NESTED = "npzkit.load_tree returns it, with its dicts and lists"


def _without_note(
    metadata: Mapping[str, Any],
) -> tuple[dict[str, Any], list[Any] | None, list[tuple[str, str]]]:
    """Return metadata without npzkit's note about nested data; and its values and tied tensors."""
    if TREE_KEY not in metadata:
        return dict(metadata), None, []
    from npzkit.trees.containers import without_note
    from npzkit.trees.notes import links, values_of

    notes, tied = values_of(metadata[TREE_KEY]), links(metadata[TREE_KEY])
    # A note may be damaged.
    values = [(key, note[1]) for key, note in notes.items() if note[0] == "value" and note[1:]]
    return without_note(metadata)[0], values, list(tied.items())


def _info_dict(info: npzkit.ArrayInfo) -> dict[str, Any]:
    """Return the description of a member as a dict that JSON can represent."""
    return {
        **info._asdict(),
        "dtype": None if info.dtype is None else format_dtype(info.dtype, sys.maxsize),
        "attrs": dict(info.attrs),
        "mappable": info.why_not_mappable is None,
    }


class Member(NamedTuple):
    """A key with the description of its member, or with the error in reading it."""

    key: str
    info: npzkit.ArrayInfo | None
    error: str


def members_of(npz: npzkit.NpzFile, keys: Sequence[str]) -> list[Member]:
    members: list[Member] = []
    with ProgressBar("read headers", in_bytes=False) as tell:
        for count in range(0, len(keys), _STEP):
            tell(count, len(keys))
            members += [_member(npz, key) for key in keys[count : count + _STEP]]
    return members


def _member(npz: npzkit.NpzFile, key: str) -> Member:
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
    "-l",
    "--long",
    "is_long",
    is_flag=True,
    help="Also show methods, ratios, offsets, CRC-32s and attributes.",
)
@recursive_option
@click.option(
    "--sort", type=click.Choice(list(_ORDERS)),
    help="Order of the arrays within each FILE; size puts the largest first.",
)  # fmt: skip
@keys_option("Show")
@click.option("--tree", "is_tree", is_flag=True, help="Show keys with slashes as a tree.")
@click.option("--depth", type=click.IntRange(1), help="As --tree, with folders up to this depth.")
@json_option
def ls(
    files: tuple[str, ...], is_long: bool, recursive: bool, sort: str | None,
    keys: tuple[str, ...], is_tree: bool, depth: int | None, as_json: bool,
) -> int:  # fmt: skip
    """List the arrays of FILEs, or the archives in folders.

    Arrays are not read. The last line has the totals. With -l, the ratio is an
    array's size in the file, as a share of its size in memory, and the asm column
    shows whether an array is aligned (a), seekable (s: its parts are cheap to
    read) and mappable (m). FILE may be - for the standard input; a pipe is copied to a
    temporary file first.

    If FILE is a folder, or a URL such as s3://bucket/runs/, the archives and .npy
    files in it are listed, or the steps of checkpoints, and how many files the
    folders in it have. The column uncompressed counts headers too. With -l, --sort,
    --key or --tree, the arrays of each are listed. Temporary files that killed
    saves have left in it are named.

    Example: npzkit ls -l model.npz
    """
    is_tree |= depth is not None
    if is_tree and (is_long or as_json):
        raise click.UsageError("--tree and --depth cannot be used with --long or --json.")
    tell_abandoned(files, recursive=recursive)
    are_arrays = is_long or as_json or is_tree or sort is not None or bool(keys)
    shown = [row for file in files for row in _listed_for(file, are_arrays, recursive, as_json)]
    documents, looked_at, code, gap = [], list[str](), 0, ""
    is_named = len(shown) == 1 and shown[0][0] in files
    unmatched = set[str]() if is_named else set(keys)
    for file, archives, folders in shown:
        heading = f"{gap}{printable(shown_url(file))}:" if len(shown) > 1 else ""
        try:
            if archives is not None:
                code = max(code, _print_archives(heading, file, archives, folders))
                looked_at += [*(one.path for one in archives), *dict(folders)]
                gap = "\n"
                continue
            looked_at.append(file)
            with opened(file) as npz:
                members = _chosen(npz, keys, sort, None if is_named else unmatched)
                if keys and not members:
                    continue
                if as_json:
                    documents.append(_archive_dict(file, npz, members))
                elif is_tree:
                    infos = [(member.key, member.info) for member in members]
                    title = printable(shown_url(file))
                    click.echo(gap + "\n".join(tree_lines(title, infos, depth)))
                else:
                    _print_members(heading, npz, members, is_long)
        except (npzkit.NpzkitError, OSError) as error:
            if len(shown) == 1 and not as_json:
                raise
            # The other files are still listed.
            code = max(code, report_failure(error))
            documents.append({"path": shown_url(file), **error_facts(error)})
            continue
        gap = "\n"
        code = max(code, tell_unreadable(members))
    if as_json:
        print_json(documents)
    code = max(code, tell_unmatched(keys, unmatched))
    tell_passed_over(files, looked_at, recursive=recursive)
    return code


def _listed_for(
    file: str, are_arrays: bool, recursive: bool, as_json: bool
) -> list[tuple[str, list[ArchiveFile] | None, list[tuple[str, str]]]]:
    """Return what is listed of FILE: a folder with its archives and folders, or archives alone."""
    folders = [] if are_arrays or recursive else _folders_in(file)
    found = find_archives(
        [file], recursive=recursive, with_npy=True, may_lack=bool(folders), as_json=as_json
    )
    if are_arrays or [archive.path for archive in found] == [file]:
        return [(archive.path, None, []) for archive in found]
    return [(file, found, folders)]


def _folders_in(folder: str) -> list[tuple[str, str]]:
    """Return the paths of the folders in a folder that have archives, and how many they have."""
    from npzkit.datasets import INDEX_NAME
    from npzkit.datasets.paths import in_order

    found = []
    paths: list[str] = []
    # What is no folder, or cannot be read, is opened later.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for one in entries:
            is_folder = os.path.isdir(one.path) if one.is_symlink() else one.is_dir()
            paths += [one.path] if is_folder and one.name[0] != "." else []
    for path in in_order(paths):
        try:
            inside = os.listdir(path)
        except OSError:
            continue
        if count := len(_steps_in(inside)):
            found.append((os.path.join(path, ""), format_count(count, "checkpoint")))
        # A sharded archive is a row of its own.
        elif INDEX_NAME not in inside:
            count = sum(name.lower().endswith((".npz", ".npy")) for name in inside)
            if count:
                found.append((os.path.join(path, ""), format_count(count, ".npz or .npy file")))
    return found


def _steps_in(names: Sequence[str]) -> Collection[int]:
    """Return the steps of checkpoints that names are of; they are looked for once one begins so."""
    if not any(name.startswith("step_") for name in names):
        return ()
    from npzkit.checkpoint.steps import steps_in, steps_of_folders

    return {*steps_in(names), *steps_of_folders(names)}


def _print_archives(
    heading: str, folder: str, archives: Sequence[ArchiveFile], folders: list[tuple[str, str]]
) -> int:
    """Print a row per archive and folder of a folder, or per step of checkpoints.

    Return the exit code. Beside steps, folders have no row, and are removed from the list.
    """
    if heading:
        click.echo(heading)
    of_runs = [archive.name for archive in archives if not archive.name.endswith(".npy")]
    if of_runs and len(_steps_in(of_runs)) == len(of_runs):
        from npzkit.cli.ckpt import print_steps

        with npzkit.checkpoint.CheckpointStore(folder) as store:
            if len(store.steps) == len(of_runs):
                folders.clear()
                return print_steps(store)
    rows, code = [], 0
    with ProgressBar("list", in_bytes=False) as tell:
        for count, archive in enumerate(archives):
            tell(count, len(archives))
            try:
                with opened(archive.path) as npz:
                    rows.append((printable(shown_url(archive.path)), npz.archive_info()))
            except (npzkit.NpzkitError, OSError) as error:
                tell.hide()
                code = max(code, report_failure(error))
    if not rows and not folders:
        return code
    cells = [
        (path, f"{info.member_count:,}", *map(format_size, (info.uncompressed_size, info.size)))
        for path, info in rows
    ]
    cells += [(printable(path), count, "", "") for path, count in folders]
    headings = "archive", ("members", "right"), ("uncompressed", "right"), ("in file", "right")
    print_table(headings, cells)
    size = format_size(sum(info.size for _, info in rows))
    click.echo(f"{format_count(len(rows), 'archive')}, {size}")
    return code


def _chosen(
    npz: npzkit.NpzFile, patterns: Sequence[str], sort: str | None, unmatched: set[str] | None
) -> list[Member]:
    """Return the members that --key names, in the order of --sort.

    Each must name one, unless what is `unmatched` in several files is collected.
    """
    keys = npz.files
    if patterns and unmatched is not None:
        keys = keys_matching(patterns, keys, unmatched)
    elif patterns:
        from npzkit.trees.restoring import KeySelection

        chosen = KeySelection(patterns)
        keys = chosen.keys(npz.files)
        chosen.check_used(npz.files, npz._archive.path, is_empty=False)
    members = members_of(npz, keys)
    if sort is not None:
        members.sort(key=_ORDERS[sort])
    return members


def _archive_dict(file: str, npz: npzkit.NpzFile, members: Sequence[Member]) -> dict[str, Any]:
    return {
        "path": shown_url(file),
        "size": npz.file_size,
        "metadata": dict(npz.metadata),
        "members": [
            _info_dict(info) if info else {"key": key, "error": error}
            for key, info, error in members
        ],
    }


_Column = tuple[str, str, Callable[..., str], tuple[str, ...]]
"""A column of the table: heading, side, and its cells as a function of fields of ArrayInfo."""


def _marks(aligned: bool, is_cheap: bool | None, why_not_mappable: str | None) -> str:
    marks = zip("asm", (aligned, is_cheap, why_not_mappable is None), strict=True)
    return "".join(mark if is_set else "-" for mark, is_set in marks)


_COLUMNS: list[_Column] = [
    ("key", "left", printable, ("key",)),
    ("shape", "left", shape_text, ("shape",)),
    ("dtype", "left", format_dtype, ("dtype",)),
    ("size", "right", format_size, ("nbytes",)),
]
_LONG_COLUMNS: list[_Column] = [
    *_COLUMNS,
    ("ratio", "right", format_ratio, ("compressed_size", "nbytes")),
    ("method", "left", str, ("method",)),
    ("asm", "left", _marks, ("aligned", "has_cheap_parts", "why_not_mappable")),
    ("in file", "right", "{:,}".format, ("compressed_size",)),
    ("at byte", "right", "{:,}".format, ("data_offset",)),
    ("order", "left", {None: "-", False: "C", True: "F"}.__getitem__, ("fortran_order",)),
    ("CRC-32", "left", lambda crc: "-" if crc is None else f"{crc:08x}", ("crc32",)),
    ("attributes", "left", lambda attrs: as_text(dict(attrs)) if attrs else "", ("attrs",)),
]


def _print_members(
    heading: str, npz: npzkit.NpzFile, members: Sequence[Member], is_long: bool
) -> None:
    if heading:
        click.echo(heading)
    if members:
        columns = _LONG_COLUMNS if is_long else _COLUMNS
        headings = [(heading, side) for heading, side, _, _ in columns]
        print_table(headings, _rows(members, columns, "unreadable" if is_long else "?"))
    print_text(_totals(members, len(npz), npz.file_size))
    if len(members) == len(npz) and (unused := _unused_size(npz, members)):
        print_text(f"unused: {format_size(unused)}, which npzkit repack frees")
    metadata, values, tied = _without_note(npz.metadata)
    if values is not None:
        counts = [f"{format_count(len(values), 'value')} without an array"] if values else []
        counts += [format_count(len(tied), "tied tensor")] if tied else []
        more = f"; npzkit info shows {' and '.join(counts)}" if counts else ""
        print_text(f"nested: {_NESTED}{more}")
    if metadata:
        text = as_text(metadata)
        print_text(f"metadata: {text if is_long else _cut(text)}")


def _cut(text: str) -> str:
    return text if len(text) <= _METADATA_LENGTH else text[: _METADATA_LENGTH - 3] + "..."


def _value_text(found: tuple[str, Any]) -> str:
    return f"{printable(found[0])} {_cut(as_text(found[1]))}"


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
    _, _, cell, fields = column
    cell = cell if fields == ("attrs",) else functools.cache(cell)
    return map(cell, *(map(attrgetter(field), infos) for field in fields))


def _totals(members: Sequence[Member], all_count: int, file_size: int) -> str:
    infos = [member.info for member in members if member.info]
    size = sum(info.nbytes for info in infos)
    compressed_size = sum(info.compressed_size for info in infos)
    count = format_count(all_count, "member")
    if len(members) != all_count:
        count = f"{len(members):,} of {count}"
    ratio = f" ({format_ratio(compressed_size, size)})" if size else ""
    taken = f"{format_size(compressed_size)}{ratio} in the file"
    return f"{count}, {format_size(size)} in memory, {taken}; file size {format_size(file_size)}"


def _unused_size(npz: npzkit.NpzFile, members: Sequence[Member]) -> int:
    """Return the size of what was removed from a file, if it is a tenth of the file or more."""
    used = sum(member.info.compressed_size for member in members if member.info)
    least = npz.file_size // 10
    # Counting takes requests.
    if npz.file_size - used <= max(least, _NAMED_SIZE) or "://" in (npz._archive.path or ""):
        return 0
    size = npz.archive_info().dead_size
    return size if size > max(least, _NAMED_SIZE) else 0


@click.command()
@archive_argument
@key_argument
@json_option
def info(file: str, key: str | None, as_json: bool) -> int:
    """Show details of FILE or of one array.

    This reads headers only. FILE may be - for the standard input; a pipe is
    copied to a temporary file first.

    Example: npzkit info model.npz weights
    """
    from npzkit.datasets.opening import is_npy

    members: list[Member] = []
    modified = _modified(file) if key is None else {}
    with opened(file) as npz:
        if key is None and is_npy(npz) and len(npz) == 1:
            key = npz.files[0]
        if key is None:
            members = members_of(npz, npz.files)
            found = _archive_facts(npz, members) | modified
            fields = _archive_fields(found, *_without_note(npz.metadata))
        else:
            key = typed_key(key, npz.files)
            found = _member_facts(npz, key) | modified
            fields = _member_fields(npz.info(key), found)
    if as_json:
        print_json(found)
    else:
        print_fields(fields)
    return tell_unreadable(members)


def _modified(file: str) -> dict[str, str]:
    """Return when a local file, or the index of a sharded archive, was modified, for JSON."""
    from datetime import datetime

    from npzkit.datasets import INDEX_NAME

    path = local_path(file)
    if path and os.path.isdir(path):
        path = os.path.join(path, INDEX_NAME)
    # The time of a pipe says nothing. One that no calendar has is left out.
    if path and file != "-" and os.path.isfile(path):
        with contextlib.suppress(OSError, OverflowError, ValueError):
            time = datetime.fromtimestamp(os.path.getmtime(path)).astimezone()
            return {"modified": time.isoformat(timespec="seconds")}
    return {}


def _time_text(found: Mapping[str, Any]) -> str:
    return str(found.get("modified", ""))[:16].replace("T", " ")


_COUNTS: Mapping[str, Callable[[npzkit.ArrayInfo], bool]] = {
    "aligned": lambda info: info.aligned,
    "seekable": lambda info: bool(info.has_cheap_parts),
    "mappable": lambda info: info.why_not_mappable is None,
    "python_objects": lambda info: info.dtype is not None and info.dtype.hasobject,
    "not_arrays": lambda info: info.dtype is None,
}


def _archive_facts(npz: npzkit.NpzFile, members: Sequence[Member]) -> dict[str, Any]:
    archive = npz.archive_info()
    infos = [member.info for member in members if member.info]
    return {
        **archive._asdict(),
        "comment": archive.comment.decode("utf-8", "backslashreplace"),
        "metadata": dict(npz.metadata),
        "nbytes": sum(info.nbytes for info in infos),
        "compressed_size": sum(info.compressed_size for info in infos),
        "methods": dict(Counter(info.method for info in infos)),
        "counts": {name: sum(map(is_so, infos)) for name, is_so in _COUNTS.items()},
        "unreadable": [member.key for member in members if member.info is None],
    }


def _archive_fields(
    found: Mapping[str, Any], metadata: Mapping[str, Any], values: Sequence[Any] | None,
    tied: Sequence[tuple[str, str]],
) -> list[tuple[str, str]]:  # fmt: skip
    size, compressed_size = found["nbytes"], found["compressed_size"]
    return [
        ("path", printable(found["path"] or "-")),
        ("size", _size_text(found["size"])),
        ("modified", _time_text(found)),
        ("members", f"{found['member_count']:,}"),
        ("arrays take", _size_text(size)),
        ("in the file", f"{compressed_size:,} bytes, {format_ratio(compressed_size, size)}"),
        ("methods", ", ".join(f"{count:,} {name}" for name, count in found["methods"].items())),
        *[
            (name.replace("_", " "), f"{count:,}" if count else "")
            for name, count in found["counts"].items()
        ],
        ("unreadable", some_of(found["unreadable"], printable)),
        ("begins at byte", f"{found['start_offset']:,}" if found["start_offset"] else ""),
        ("directory at", f"byte {found['directory_offset']:,}"),
        ("directory", _size_text(found["directory_size"])),
        ("dead space", _size_text(found["dead_size"])),
        ("after the end", _size_text(found["torn_size"]) if found["torn_size"] else ""),
        ("nested", "" if values is None else _NESTED),
        ("values", some_of(values or (), _value_text)),
        ("tied", some_of(tied, lambda keys: " to ".join(map(printable, keys)))),
        ("metadata", as_text(metadata) if metadata else ""),
        ("comment", "" if found["metadata"] else printable(found["comment"])),
    ]


def _size_text(size: int) -> str:
    return f"{size:,} bytes" + (f" ({format_size(size)})" if size >= 1024 else "")


def _member_facts(npz: npzkit.NpzFile, key: str) -> dict[str, Any]:
    info = npz.info(key)
    facts = _info_dict(info) | {"why_not_mappable": info.why_not_mappable, "chunks": None}
    if info.dtype is not None and not info.dtype.hasobject:
        facts["chunks"] = npz.lazy(key).chunks
    return facts


def _member_fields(info: npzkit.ArrayInfo, found: Mapping[str, Any]) -> list[tuple[str, str]]:
    size, compressed_size = found["nbytes"], found["compressed_size"]
    why, has_data = found["why_not_mappable"], found["chunks"] is not None
    has_index = info.seekable and info.method != "stored"
    is_seekable = "yes" if info.has_cheap_parts else "no"
    return [
        ("key", printable(found["key"])),
        ("member", printable(found["member"])),
        ("modified", _time_text(found)),
        ("shape", shape_text(found["shape"])),
        ("dtype", found["dtype"] or "none, because it is not an array"),
        ("order", _ORDERS_TEXT[found["fortran_order"]]),
        ("size", _size_text(size)),
        ("in the file", f"{_size_text(compressed_size)}, {format_ratio(compressed_size, size)}"),
        ("method", found["method"]),
        ("split", info.split_text()),
        ("CRC-32", "none" if found["crc32"] is None else f"{found['crc32']:08x}"),
        ("data at", f"byte {found['data_offset']:,}"),
        ("aligned", "yes, to 64 bytes" if found["aligned"] else "no"),
        ("seekable", "yes, with a seek index" if has_index else is_seekable),
        ("parts", at_prompt(info.parts_text()) if has_data else ""),
        ("mappable", "yes" if why is None else f"no: {why}"),
        ("chunks", shape_text(found["chunks"]) if has_data else ""),
        ("attributes", as_text(found["attrs"]) if found["attrs"] else ""),
    ]


_ORDERS_TEXT = {None: "", False: "C, by rows", True: "Fortran, by columns"}
