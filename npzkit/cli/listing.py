"""The commands that tell what is in an archive without reading an array: ls, tree, info."""

from __future__ import annotations

import fnmatch
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

import npzkit
from npzkit.cli.opening import (
    archive_argument,
    as_text,
    dtype_text,
    info_dict,
    key_argument,
    opened,
    shape_text,
)
from npzkit.cli.output import (
    can_print,
    colour,
    format_ratio,
    format_size,
    in_a_line,
    json_option,
    print_fields,
    print_json,
    print_table,
    printable,
    report_error,
)

__all__ = ["info", "ls", "tree"]

_METADATA_LENGTH = 500
"""Characters of metadata shown by ls without -l."""


class _Member(NamedTuple):
    """A key, and what is known of it, or what is wrong with it."""

    key: str
    info: npzkit.ArrayInfo | None
    error: str


def _members(npz: npzkit.NpzFile, keys: Iterable[str]) -> Iterator[_Member]:
    for key in keys:
        try:
            yield _Member(key, npz.info(key), "")
        except npzkit.errors.StaleArchiveError:
            raise
        except npzkit.NpzkitError as error:
            yield _Member(key, None, in_a_line(str(error)))


# -- ls -----------------------------------------------------------------------

_ORDERS: Mapping[str, Callable[[_Member], Any]] = {
    "key": lambda member: member.key,
    "size": lambda member: -member.info.nbytes if member.info else 0,
    "ratio": lambda member: (
        member.info.compressed_size / max(member.info.nbytes, 1) if member.info else 0
    ),
    "dtype": lambda member: str(member.info.dtype) if member.info else "",
}


@click.command()
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True,
    type=click.Path(readable=False, allow_dash=True),
)  # fmt: skip
@click.option("-l", "--long", "is_long", is_flag=True, help="Also offsets, CRCs and attributes.")
@click.option("--sort", type=click.Choice(list(_ORDERS)), help="By size: largest first.")
@click.option("--glob", "patterns", multiple=True, help="Only keys like this: 'layer*/bias'.")
@json_option
def ls(
    files: tuple[str, ...],
    is_long: bool,
    sort: str | None,
    patterns: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the arrays of FILEs, reading headers only.

    Under "asm" stands which arrays are (a)ligned, (s)eekable, which means that
    parts are read without what comes before them, and (m)appable. FILE may be
    - for the standard input.

    Example: npzkit ls -l model.npz
    """
    context = click.get_current_context()
    archives, code, is_first = [], 0, True
    for file in files:
        try:
            with opened(file) as npz:
                members = _chosen(npz, patterns, sort)
                bad_count = sum(member.info is None for member in members)
                if as_json:
                    archives.append(_archive_dict(file, npz, members))
                else:
                    if len(files) > 1:
                        click.echo(("" if is_first else "\n") + f"{printable(file)}:")
                    _print_members(npz, members, is_long)
        except (npzkit.NpzkitError, OSError) as error:
            if len(files) == 1 or isinstance(error, BrokenPipeError) or context.obj:
                raise
            # The others are listed all the same.
            code = max(code, report_error(error))
            continue
        is_first = False
        if bad_count:
            code = max(code, 1)
            _tell_unreadable(bad_count, members)
    if as_json:
        print_json(archives)
    context.exit(code)


def _chosen(npz: npzkit.NpzFile, patterns: Sequence[str], sort: str | None) -> list[_Member]:
    """Return the members that --glob asks for, in the order of --sort."""
    keys = [
        key for key in npz
        if not patterns or any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)
    ]  # fmt: skip
    members = list(_members(npz, keys))
    if sort is not None:
        members.sort(key=_ORDERS[sort])
    return members


def _tell_unreadable(count: int, members: Sequence[_Member]) -> None:
    """Say what is wrong with one member, or how to find out about many."""
    first = next(member.error for member in members if member.info is None)
    text = first if count == 1 else f"{count} members cannot be read, the first: {first}"
    click.echo(f"npzkit: {text}", err=True)


def _archive_dict(file: str, npz: npzkit.NpzFile, members: Sequence[_Member]) -> dict[str, Any]:
    return {
        "path": file,
        "metadata": dict(npz.metadata),
        "members": [
            info_dict(member.info) if member.info else {"key": member.key, "error": member.error}
            for member in members
        ],
    }


_COLUMNS: list[str | tuple[str, str]] = [
    "key",
    "shape",
    "dtype",
    ("size", "right"),
    ("ratio", "right"),
    "method",
    "asm",
]
_LONG_COLUMNS: list[str | tuple[str, str]] = [
    ("in file", "right"),
    ("at byte", "right"),
    "order",
    "CRC-32",
    "attributes",
]


def _print_members(npz: npzkit.NpzFile, members: Sequence[_Member], is_long: bool) -> None:
    columns = [*_COLUMNS, *(_LONG_COLUMNS if is_long else [])]
    if members:
        print_table(columns, [_row(member, is_long) for member in members])
    click.echo(_totals(members, len(npz)))
    if npz.metadata:
        text = as_text(dict(npz.metadata))
        if not is_long and len(text) > _METADATA_LENGTH:
            text = text[: _METADATA_LENGTH - 3] + "..."
        click.echo(f"metadata: {text}")


def _row(member: _Member, is_long: bool) -> list[str]:
    info = member.info
    if info is None:
        count = len(_COLUMNS) + (len(_LONG_COLUMNS) if is_long else 0)
        return [printable(member.key), *["-"] * (count - 2), "unreadable" if is_long else "?"]
    row = [
        printable(info.key), shape_text(info.shape), dtype_text(info.dtype),
        format_size(info.nbytes), format_ratio(info.compressed_size, info.nbytes),
        info.method, _marks(info),
    ]  # fmt: skip
    if is_long:
        order = "-" if info.fortran_order is None else "F" if info.fortran_order else "C"
        row += [
            f"{info.compressed_size:,}", f"{info.data_offset:,}", order, f"{info.crc32:08x}",
            as_text(dict(info.attrs)) if info.attrs else "",
        ]  # fmt: skip
    return row


def _marks(info: npzkit.ArrayInfo) -> str:
    marks = zip("asm", (info.aligned, info.seekable, info.why_not_mappable is None), strict=True)
    return "".join(mark if is_set else "-" for mark, is_set in marks)


def _totals(members: Sequence[_Member], all_count: int) -> str:
    infos = [member.info for member in members if member.info]
    size = sum(info.nbytes for info in infos)
    compressed_size = sum(info.compressed_size for info in infos)
    count = f"{len(members):,}"
    if len(members) != all_count:
        count += f" of {all_count:,}"
    noun = "member" if all_count == 1 else "members"
    ratio = f" ({format_ratio(compressed_size, size)})" if size else ""
    return f"{count} {noun}, {format_size(size)}, {format_size(compressed_size)} in the file{ratio}"


# -- tree ---------------------------------------------------------------------


class _Folder:
    """Keys that begin alike up to a slash."""

    def __init__(self) -> None:
        self.folders: dict[str, _Folder] = {}
        self.members: list[tuple[str, _Member]] = []
        self.size = 0
        self.count = 0


@click.command()
@archive_argument
@click.option("--depth", type=click.IntRange(1), help="Folders are shown this deep.")
@json_option
def tree(file: str, depth: int | None, as_json: bool) -> None:
    """Show the keys of FILE as a tree, with sizes.

    Slashes in keys part folders.

    Example: npzkit tree model.npz
    """
    with opened(file) as npz:
        members = list(_members(npz, npz))
    root = _grow(members)
    if as_json:
        print_json({"path": file, **_as_dict(root)})
    else:
        count = f"{root.count:,} member{'' if root.count == 1 else 's'}"
        click.echo(f"{printable(file)}  {count}, {format_size(root.size)}")
        lines = list(_branches(root, depth))
        if lines:
            click.echo("\n".join(lines))
    bad_count = sum(member.info is None for member in members)
    if bad_count:
        _tell_unreadable(bad_count, members)
    click.get_current_context().exit(1 if bad_count else 0)


def _grow(members: Iterable[_Member]) -> _Folder:
    root = _Folder()
    for member in members:
        *parts, name = member.key.split("/")
        size = member.info.nbytes if member.info else 0
        folder = root
        for part in parts:
            folder.size += size
            folder.count += 1
            folder = folder.folders.setdefault(part, _Folder())
        folder.size += size
        folder.count += 1
        folder.members.append((name, member))
    return root


def _branches(root: _Folder, depth: int | None) -> Iterator[str]:
    """Yield a line for each folder and member; a folder alone in its folder shares its line."""
    fork, last, bar, blank = ("├── ", "└── ", "│   ", "    ")
    if not can_print(fork + last + bar):
        fork, last, bar = "|-- ", "`-- ", "|   "
    # Folders may be as deep as a key is long: no recursion.
    stack = [(iter(_children(root)), "", 1)]
    while stack:
        children, indent, level = stack[-1]
        child = next(children, None)
        if child is None:
            stack.pop()
            continue
        name, thing, is_last = child
        lead = indent + (last if is_last else fork)
        if isinstance(thing, _Member):
            yield lead + _leaf(name, thing)
            continue
        while not thing.members and len(thing.folders) == 1:
            ((part, inner),) = thing.folders.items()
            name, thing = f"{name}/{part}", inner
        told = f"{thing.count:,}, {format_size(thing.size)}"
        yield f"{lead}{colour(printable(name) + '/', bold=True)}  {told}"
        if depth is None or level < depth:
            inner_indent = indent + (blank if is_last else bar)
            stack.append((iter(_children(thing)), inner_indent, level + 1))


def _children(folder: _Folder) -> list[tuple[str, _Folder | _Member, bool]]:
    """Return names and what they are, and whether each is the last one."""
    # A name that is empty is the entry of the folder itself.
    named = [(name, member) for name, member in folder.members if name or member.info is None]
    things: list[tuple[str, _Folder | _Member]] = [*folder.folders.items(), *named]
    return [(name, thing, place == len(things)) for place, (name, thing) in enumerate(things, 1)]


def _leaf(name: str, member: _Member) -> str:
    if member.info is None:
        return f"{printable(name)}  unreadable"
    info = member.info
    kind = (
        "no array" if info.dtype is None else f"{shape_text(info.shape)} {dtype_text(info.dtype)}"
    )
    return f"{printable(name)}  {kind}  {format_size(info.nbytes)}"


def _as_dict(root: _Folder) -> dict[str, Any]:
    """Return the tree as nested dicts, made without recursion."""
    found: dict[str, Any] = {}
    stack = [(root, found)]
    while stack:
        folder, target = stack.pop()
        target["size"], target["count"] = folder.size, folder.count
        target["members"] = [member.key for _, member in folder.members]
        target["folders"] = {}
        for name, inner in folder.folders.items():
            target["folders"][name] = {}
            stack.append((inner, target["folders"][name]))
    return found


# -- info ---------------------------------------------------------------------


@click.command()
@archive_argument
@key_argument(required=False)
@json_option
def info(file: str, key: str | None, as_json: bool) -> None:
    """Tell all that is known of FILE, or of its array KEY.

    Only headers are read.

    Example: npzkit info model.npz weights
    """
    bad: list[_Member] = []
    with opened(file) as npz:
        if key is None:
            members = list(_members(npz, npz))
            bad = [member for member in members if member.info is None]
            found = _archive_facts(npz, members)
            fields = _archive_fields(found)
        else:
            found = _member_facts(npz, key)
            fields = _member_fields(found)
    if as_json:
        print_json(found)
    else:
        print_fields([(f"{name}:", text) for name, text in fields if text])
    if bad:
        _tell_unreadable(len(bad), bad)
    click.get_current_context().exit(1 if bad else 0)


_COUNTS: Mapping[str, Callable[[npzkit.ArrayInfo], bool]] = {
    "aligned": lambda info: info.aligned,
    "seekable": lambda info: info.seekable,
    "mappable": lambda info: info.why_not_mappable is None,
    "python_objects": lambda info: info.dtype is not None and info.dtype.hasobject,
    "not_arrays": lambda info: info.dtype is None,
}


def _archive_facts(npz: npzkit.NpzFile, members: Sequence[_Member]) -> dict[str, Any]:
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
        "made_by": dict(Counter(map(_producer, _zip_members(npz))).most_common(10)),
    }


def _archive_fields(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    size, compressed_size = found["nbytes"], found["compressed_size"]
    bad, metadata = found["unreadable"], found["metadata"]
    return [
        ("path", printable(found["path"] or "-")),
        ("size", _size_text(found["size"])),
        ("members", f"{found['member_count']:,}"),
        ("arrays take", _size_text(size)),
        ("in the file", f"{compressed_size:,} bytes, {format_ratio(compressed_size, size)}"),
        ("methods", ", ".join(f"{count:,} {name}" for name, count in found["methods"].items())),
        *[
            (name.replace("_", " "), f"{count:,}" if count else "")
            for name, count in found["counts"].items()
        ],
        ("unreadable", ", ".join(map(printable, bad[:10])) + (" ..." if len(bad) > 10 else "")),
        ("begins at byte", f"{found['start_offset']:,}" if found["start_offset"] else ""),
        ("directory at", f"byte {found['directory_offset']:,}"),
        ("directory", _size_text(found["directory_size"])),
        ("dead space", _size_text(found["dead_size"])),
        ("behind the end", _size_text(found["torn_size"]) if found["torn_size"] else ""),
        ("made by", "; ".join(found["made_by"])),
        ("metadata", as_text(metadata) if metadata else ""),
        ("comment", "" if metadata else printable(found["comment"])),
    ]


def _size_text(size: int) -> str:
    return f"{size:,} bytes" + (f" ({format_size(size)})" if size >= 1024 else "")


def _member_facts(npz: npzkit.NpzFile, key: str) -> dict[str, Any]:
    info = npz.info(key)
    facts = info_dict(info) | {"why_not_mappable": info.why_not_mappable, "chunks": None}
    if info.dtype is not None and not info.dtype.hasobject:
        facts["chunks"] = npz.lazy(key).chunks
    entries = [entry for entry in _zip_members(npz) if entry.filename == info.member]
    return facts | {"zip": _zip_facts(entries[-1]) if entries else {}}


def _zip_facts(entry: zipfile.ZipInfo) -> dict[str, Any]:
    """Return what a member's entry says of whoever made it."""
    traits = [text for bit, text in _FLAGS.items() if entry.flag_bits & bit]
    if entry.extract_version >= _ZIP64_VERSION and entry.file_size < _ZIP64_SIZE:
        traits.append("zip64 without need, as np.savez writes")
    return {
        "header_offset": entry.header_offset,
        "uncompressed_size": entry.file_size,
        "made_by": _producer(entry),
        "date": "{:04}-{:02}-{:02} {:02}:{:02}:{:02}".format(*entry.date_time),
        "mode": oct((entry.external_attr >> 16) & 0o7777),
        "traits": traits,
        "extra_fields": _extra_names(entry.extra),
    }


def _member_fields(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    size, compressed_size, zipped = found["nbytes"], found["compressed_size"], found["zip"]
    why, has_data = found["why_not_mappable"], found["chunks"] is not None
    fields = [
        ("key", printable(found["key"])),
        ("member", printable(found["member"])),
        ("shape", shape_text(found["shape"])),
        ("dtype", found["dtype"] or "none: not an array"),
        ("order", _ORDERS_TEXT[found["fortran_order"]]),
        ("size", _size_text(size)),
        ("in the file", f"{_size_text(compressed_size)}, {format_ratio(compressed_size, size)}"),
        ("method", found["method"]),
        ("CRC-32", f"{found['crc32']:08x}"),
        ("data at", f"byte {found['data_offset']:,}"),
        ("aligned", "yes, to 64 bytes" if found["aligned"] else "no"),
        ("seekable", _seekable_text(found)),
        ("mappable", "yes" if why is None else f"no: {why}"),
        ("chunks", shape_text(found["chunks"]) if has_data else ""),
        ("attributes", as_text(found["attrs"]) if found["attrs"] else ""),
    ]
    if zipped:
        header_size = zipped["uncompressed_size"] - size
        fields += [
            ("header at", f"byte {zipped['header_offset']:,}"),
            ("NPY header", _size_text(header_size) if has_data else ""),
            ("made by", zipped["made_by"]),
            ("written", zipped["date"]),
            ("mode", zipped["mode"]),
            ("traits", ", ".join(zipped["traits"])),
            ("extra fields", ", ".join(zipped["extra_fields"])),
        ]
    return fields


_ORDERS_TEXT = {None: "", False: "C, by rows", True: "Fortran, by columns"}


def _seekable_text(found: Mapping[str, Any]) -> str:
    if found["chunks"] is None:
        return "no"
    if found["seekable"]:
        return "yes" if found["method"] == "stored" else "yes, by its seek index"
    return "no: a part costs what lies before it; see npzkit repack"


# -- what zipfile tells ---------------------------------------------------------

_ZIP64_VERSION, _ZIP64_SIZE = 45, 0xFFFFFFFF
_SYSTEMS = {0: "MS-DOS", 3: "Unix", 7: "Macintosh", 10: "Windows", 11: "MVS", 14: "VFAT",
            19: "macOS"}  # fmt: skip
"""Section 4.4.2 of APPNOTE.TXT, as far as they are met."""
_FLAGS = {1: "encrypted", 8: "sizes behind the data", 0x800: "name in UTF-8"}
_EXTRA_NAMES = {
    0x0001: "zip64", 0x000A: "NTFS", 0x5455: "time", 0x564B: "attributes",
    0x7075: "Unicode path", 0x7875: "owner", 0xCAFE: "jar", 0xD935: "alignment",
}  # fmt: skip


def _zip_members(npz: npzkit.NpzFile) -> list[zipfile.ZipInfo]:
    """Return what zipfile tells of the members; nothing where it cannot read them."""
    try:
        return npz.zip.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError):
        return []


def _producer(member: zipfile.ZipInfo) -> str:
    system = _SYSTEMS.get(member.create_system, f"system {member.create_system}")
    return f"{system}, zip {member.create_version / 10}"


def _extra_names(extra: bytes) -> list[str]:
    """Name the blocks of an entry's extra field."""
    blocks, place = [], 0
    while place + 4 <= len(extra):
        identifier = int.from_bytes(extra[place : place + 2], "little")
        size = int.from_bytes(extra[place + 2 : place + 4], "little")
        blocks.append(f"{_EXTRA_NAMES.get(identifier, hex(identifier))} ({size} bytes)")
        place += 4 + size
    return blocks
