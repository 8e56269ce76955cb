"""A local header, checked against the entry of its member: one, or thousands by columns.

Owns the rule, `REPEATED`, the name and attributes: what a local header must repeat
from its entry. `find_data` applies it to one member and says what is wrong.
`find_many` applies it to columns of members and leaves out those that it does
not accept. A field that is added to `REPEATED` is compared by both.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from npzkit.codecs.methods import STORED
from npzkit.errors import ChecksumError, ZipFormatError
from npzkit.zip.directory_columns import Columns, Ints, take_zip64, windows_of
from npzkit.zip.entries import Entry
from npzkit.zip.extra_fields import (
    CHANGED_PAIR,
    KEY_VALUE_PAIRS_ID,
    ZIP64_ID,
    find_extra,
    merge_zip64,
    parse_key_value_pairs,
)
from npzkit.zip.records import (
    FLAG_DESCRIPTOR,
    FLAG_ENCRYPTED,
    LOCAL_HEADER_SIGNATURE,
    LOCAL_HEADER_SIZE,
    LOCAL_LAYOUT,
    SENTINEL_32,
)

REPEATED = ("flags", "method", "crc32", "compressed_size", "uncompressed_size")
"""Fields of a local header that repeat those of the same name in its `Entry`; the sizes last."""

_READ = ("signature", *REPEATED, "name_size", "extra_size")
LOCAL_FIELDS = LOCAL_LAYOUT.picked(*_READ)
"""Unpacks the signature, the fields of `REPEATED`, and the sizes of name and extra field."""
_COLUMNS = np.dtype(LOCAL_LAYOUT.columns(*_READ))
_first = Entry._fields.index(REPEATED[0])
_EXPECTED = slice(_first, _first + len(REPEATED))
"""Where an `Entry` has them: side by side, in the same order."""

_COMPARED_FLAGS = {FLAG_ENCRYPTED: "encryption flag", FLAG_DESCRIPTOR: "descriptor flag"}
"""The bits of the flags that decide how a member is read; programs differ in others."""
_DESCRIBED = {"crc32", "compressed_size", "uncompressed_size"}
"""Fields that a data descriptor after the data has, instead of the local header."""

_FORCED_ZIP64 = struct.Struct("<LQQ")
_FORCED_ZIP64_START = 16 << 16 | ZIP64_ID
"""A block of both sizes begins with its identifier and 16, its size (section 4.5.3)."""


def find_data(head: bytes | memoryview, entry: Entry, verify: bool = True) -> int | None:
    """Check a member's local header and return where its data begins, from `head`'s start.

    Parameters
    ----------
    head : bytes-like
        The archive's bytes from the local header on.
    entry : Entry
        What the directory says about the member.
    verify : bool, default True
        Compare the CRC too.

    Returns
    -------
    int or None
        None if `head` does not hold the whole local header.

    Raises
    ------
    ZipFormatError
        The name, a field or the attributes differ, so programs would not agree on what
        the archive holds. Or the data extends past the member's end.
    ChecksumError
        Only the CRC differs.
    """
    try:
        fields: Any = LOCAL_FIELDS.unpack_from(head)
    except struct.error:
        return None
    name_end = LOCAL_HEADER_SIZE + fields[-2]
    start: int = name_end + fields[-1]
    # A header that extends past its whole member has wrong sizes, which the rest shows.
    if start > len(head) < entry.end_offset - entry.header_offset:
        return None
    if fields[0] != LOCAL_HEADER_SIGNATURE:
        raise _differs(entry, "signature", fields[0], LOCAL_HEADER_SIGNATURE)
    if head[LOCAL_HEADER_SIZE:name_end] != entry.raw_name:
        name = bytes(head[LOCAL_HEADER_SIZE:name_end])
        raise _differs(entry, "name", name, entry.raw_name)
    found, expected = fields[1:-2], entry[_EXPECTED]
    if found != expected:
        sizes = resolve_sizes(bytes(head[name_end:start]), found[-1], found[-2])
        found = found[:-2] + sizes[::-1]
        if found != expected:
            _check_fields(entry, dict(zip(REPEATED, found, strict=True)), verify)
    if entry.extra and head[name_end : name_end + len(entry.extra)] != entry.extra:
        _check_attributes(entry, bytes(head[name_end:start]))
    if entry.header_offset + start + entry.compressed_size > entry.end_offset:
        room = entry.end_offset - entry.header_offset - start
        raise ZipFormatError(
            "the member's data overlaps the next member or the central directory",
            offset=entry.header_offset + start,
            found=f"{entry.compressed_size} bytes",
            expected=f"at most {max(room, 0)}",
        )
    return start


def _check_attributes(entry: Entry, local_extra: bytes) -> None:
    """Raise unless both headers have the same attributes, or only one of them has any.

    A later change of attributes is only in the entry, which says so.
    """
    expected = find_extra(entry.extra, KEY_VALUE_PAIRS_ID)
    if expected is None or CHANGED_PAIR in expected:
        return
    found = find_extra(local_extra, KEY_VALUE_PAIRS_ID)
    if found is not None and found != expected:
        error = _differs(entry, "attributes", _pairs(found), _pairs(expected))
        error.remedy = "One of them is damaged: npzkit.repair(path, output=...) saves the array."
        raise error


def _pairs(payload: bytes) -> object:
    """Return key-value pairs as messages show them."""
    try:
        return parse_key_value_pairs(payload)
    except ZipFormatError:
        return payload


def _check_fields(entry: Entry, found: dict[str, int], verify: bool) -> None:
    """Raise for what differs, except what a data descriptor or other flags explain."""
    for bit, label in _COMPARED_FLAGS.items():
        if (found["flags"] ^ entry.flags) & bit:
            raise _differs(entry, label, found["flags"] & bit, entry.flags & bit)
    # With a descriptor, each is 0 here, or correct all the same (Java's jar).
    deferred = (0, SENTINEL_32) if entry.flags & FLAG_DESCRIPTOR else ()
    differing = [
        field
        for field in REPEATED
        if found[field] != getattr(entry, field)
        and field != "flags"
        and not (field in _DESCRIBED and found[field] in deferred)
    ]
    for field in differing:
        if field != "crc32":
            label = field.replace("_", " ")
            raise _differs(entry, label, found[field], getattr(entry, field))
    if differing and verify:
        raise _crc_differs(entry, found["crc32"])


def resolve_sizes(extra: bytes, uncompressed_size: int, compressed_size: int) -> tuple[int, int]:
    """Return both sizes, uncompressed first, from the zip64 block if they are sentinels."""
    # np.savez forces zip64 headers on members of any size.
    if uncompressed_size == compressed_size == SENTINEL_32 and len(extra) == _FORCED_ZIP64.size:
        block = _FORCED_ZIP64.unpack(extra)
        if block[0] == _FORCED_ZIP64_START:
            return block[1:]
    sizes = (uncompressed_size, compressed_size)
    if SENTINEL_32 not in sizes:
        return sizes
    payload = find_extra(extra, ZIP64_ID)
    if payload is None:
        return sizes
    uncompressed_size, compressed_size = merge_zip64(payload, sizes)
    return uncompressed_size, compressed_size


def _differs(entry: Entry, field: str, found: object, expected: object) -> ZipFormatError:
    return ZipFormatError(
        f"the local header and the central directory disagree on the {field}",
        offset=entry.header_offset,
        found=found,
        expected=expected,
        remedy="Programs would read different data from this file. Create it again.",
    )


def _crc_differs(entry: Entry, found: int) -> ChecksumError:
    """Return the error for two headers that differ only in the CRC.

    A flush of a map that was killed leaves a member so, because it writes both
    headers one after the other.
    """
    is_mappable = entry.method == STORED and not entry.flags & FLAG_DESCRIPTOR
    remedy = (
        "If the flush of a map was interrupted, npzkit.repair(path) completes it"
        if is_mappable
        else "Download the file or create it again"
    )
    return ChecksumError(
        "the local header and the central directory disagree on the CRC-32",
        offset=entry.header_offset,
        found=f"{found:#010x}",
        expected=f"{entry.crc32:#010x}",
        remedy=f"{remedy}; npz.read(key, verify=False) reads it as it is.",
    )


def header_end(head: bytes | memoryview) -> int:
    """Return where the local header at the start of `head` ends, by its own sizes."""
    name_size, extra_size = struct.unpack_from("<HH", head, LOCAL_HEADER_SIZE - 4)
    end: int = LOCAL_HEADER_SIZE + name_size + extra_size
    return end


def find_many(
    columns: Columns, rows: Ints, window: np.ndarray[Any, Any], offset: int, least: int
) -> tuple[Ints, Ints]:
    """Find members whose local headers repeat their entries, and their data.

    Parameters
    ----------
    columns : Columns
    rows : numpy.ndarray
        Members whose local headers begin in `window`.
    window : numpy.ndarray of uint8
        Part of the file.
    offset : int
        Where it begins in the file.
    least : int
        Bytes that a member must have, at least 8.

    Returns
    -------
    chosen : numpy.ndarray of int64
        Which of `rows` are plain members (`Columns.is_usual`) that lie
        completely in the window. `find_data` tells what is wrong with others, if
        anything is.
    starts : numpy.ndarray of int64
        Where in the window the data of each of these begins.
    """
    positions = columns.header_offset[rows] - offset
    headers = windows_of(window, f"V{LOCAL_HEADER_SIZE}")
    is_in = positions < len(headers)
    positions[~is_in] = 0
    local = headers[positions].view(_COLUMNS)
    size, name_size = columns.compressed_size[rows], columns.name_size[rows]
    starts = positions + LOCAL_HEADER_SIZE + name_size + local["extra_size"]
    repeated_size = columns.repeated_size[rows]
    chosen = np.flatnonzero(
        is_in
        & columns.is_usual[rows]
        & (size >= least)
        & (local["signature"] == LOCAL_HEADER_SIGNATURE)
        & (local["name_size"] == name_size)
        & (name_size + local["extra_size"] >= repeated_size)
        & (starts + size <= np.minimum(columns.end_offset[rows] - offset, len(window)))
    )
    rows, starts, local = rows[chosen], starts[chosen], local[chosen]
    same = columns.repeats_text(rows, window, positions[chosen] + LOCAL_HEADER_SIZE)
    for field, found in _resolved(local, window, starts).items():
        same &= found == getattr(columns, field)[rows]
    return chosen[same], starts[same]


def _resolved(
    local: np.ndarray[Any, Any], window: np.ndarray[Any, Any], starts: Ints
) -> dict[str, Ints]:
    """Return the columns of `REPEATED`, with the sizes that a zip64 block has."""
    fields: dict[str, Ints] = {field: local[field] for field in REPEATED}
    sizes = ("uncompressed_size", "compressed_size")
    if any((fields[size] == SENTINEL_32).any() for size in sizes):
        large = [fields[size].astype(np.int64) for size in sizes]
        extra_size = local["extra_size"].astype(np.int64)
        take_zip64(window, starts - extra_size, extra_size, large)
        fields.update(zip(sizes, large, strict=True))
    return fields
