"""The command that shows details of an archive or of one array."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

import npzkit
from npzkit.cli.listing import Member, members_of, tell_unreadable
from npzkit.cli.messages import at_prompt
from npzkit.cli.opening import (
    NESTED_TEXT,
    archive_argument,
    as_text,
    info_dict,
    key_argument,
    opened,
    shape_text,
    without_note,
)
from npzkit.cli.output import json_option, print_fields, print_json
from npzkit.errors import format_ratio, format_size, printable


@click.command()
@archive_argument
@key_argument(required=False)
@json_option
def info(file: str, key: str | None, as_json: bool) -> int:
    """Show details of FILE or of one array.

    This reads headers only. FILE may be - for the standard input; a pipe is
    copied to a temporary file first.

    Example: npzkit info model.npz weights
    """
    members: list[Member] = []
    with opened(file) as npz:
        if key is None:
            members = members_of(npz, npz.files)
            found = _archive_facts(npz, members)
            fields = _archive_fields(found, *without_note(npz.metadata))
        else:
            found = _member_facts(npz, key)
            fields = _member_fields(npz.info(key), found)
    if as_json:
        print_json(found)
    else:
        print_fields([(f"{name}:", text) for name, text in fields if text])
    return tell_unreadable(members)


_COUNTS: Mapping[str, Callable[[npzkit.ArrayInfo], bool]] = {
    "aligned": lambda info: info.aligned,
    "seekable": lambda info: info.seekable,
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
        "made_by": dict(Counter(map(_producer, _zip_members(npz))).most_common(10)),
    }


def _archive_fields(
    found: Mapping[str, Any], metadata: Mapping[str, Any], is_tree: bool
) -> list[tuple[str, str]]:
    size, compressed_size = found["nbytes"], found["compressed_size"]
    bad = found["unreadable"]
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
        ("after the end", _size_text(found["torn_size"]) if found["torn_size"] else ""),
        ("made by", "; ".join(found["made_by"])),
        ("nested", NESTED_TEXT if is_tree else ""),
        ("metadata", as_text(metadata) if metadata else ""),
        ("comment", "" if found["metadata"] else printable(found["comment"])),
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
    """Return details from a member's directory entry."""
    traits = [text for bit, text in _FLAGS.items() if entry.flag_bits & bit]
    if entry.extract_version >= _ZIP64_VERSION and entry.file_size < _ZIP64_SIZE:
        traits.append("unnecessary zip64, as np.savez writes")
    return {
        "header_offset": entry.header_offset,
        "uncompressed_size": entry.file_size,
        "made_by": _producer(entry),
        "date": "{:04}-{:02}-{:02} {:02}:{:02}:{:02}".format(*entry.date_time),
        "mode": oct((entry.external_attr >> 16) & 0o7777),
        "traits": traits,
        "extra_fields": _extra_names(entry.extra),
    }


def _member_fields(info: npzkit.ArrayInfo, found: Mapping[str, Any]) -> list[tuple[str, str]]:
    size, compressed_size, zipped = found["nbytes"], found["compressed_size"], found["zip"]
    why, has_data = found["why_not_mappable"], found["chunks"] is not None
    fields = [
        ("key", printable(found["key"])),
        ("member", printable(found["member"])),
        ("shape", shape_text(found["shape"])),
        ("dtype", found["dtype"] or "none, because it is not an array"),
        ("order", _ORDERS_TEXT[found["fortran_order"]]),
        ("size", _size_text(size)),
        ("in the file", f"{_size_text(compressed_size)}, {format_ratio(compressed_size, size)}"),
        ("method", found["method"]),
        ("CRC-32", f"{found['crc32']:08x}"),
        ("data at", f"byte {found['data_offset']:,}"),
        ("aligned", "yes, to 64 bytes" if found["aligned"] else "no"),
        ("seekable", _seekable_text(info)),
        ("parts", at_prompt(info.parts_text()) if has_data else ""),
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


def _seekable_text(info: npzkit.ArrayInfo) -> str:
    if not info.seekable:
        return "no"
    return "yes" if info.method == "stored" else "yes, with a seek index"


# -- details from zipfile -------------------------------------------------------

_ZIP64_VERSION, _ZIP64_SIZE = 45, 0xFFFFFFFF
_SYSTEMS = {0: "MS-DOS", 3: "Unix", 7: "Macintosh", 10: "Windows", 11: "MVS", 14: "VFAT",
            19: "macOS"}  # fmt: skip
"""The systems of section 4.4.2 of APPNOTE.TXT that are in use."""
_FLAGS = {1: "encrypted", 8: "sizes after the data", 0x800: "name in UTF-8"}
_EXTRA_NAMES = {
    0x0001: "zip64", 0x000A: "NTFS", 0x5455: "time", 0x564B: "attributes",
    0x7075: "Unicode path", 0x7875: "owner", 0xCAFE: "jar", 0xD935: "alignment",
}  # fmt: skip


def _zip_members(npz: npzkit.NpzFile) -> list[zipfile.ZipInfo]:
    """Return the members as zipfile describes them, or nothing if it cannot read them."""
    try:
        return npz.zip.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError):
        return []


def _producer(member: zipfile.ZipInfo) -> str:
    system = _SYSTEMS.get(member.create_system, f"system {member.create_system}")
    return f"{system}, zip {member.create_version / 10}"


def _extra_names(extra: bytes) -> list[str]:
    """Return the names and sizes of the blocks in an extra field."""
    blocks, place = [], 0
    while place + 4 <= len(extra):
        identifier = int.from_bytes(extra[place : place + 2], "little")
        size = int.from_bytes(extra[place + 2 : place + 4], "little")
        blocks.append(f"{_EXTRA_NAMES.get(identifier, hex(identifier))} ({size} bytes)")
        place += 4 + size
    return blocks
