"""The checks of a member before it is read: entry, local header, descriptor, CRC-32.

Guarantees that both headers of a member say the same. `REPEATED`, the name and the
attributes are what a local header must repeat from its entry. `find_data` compares one
member and says what is wrong; `npzkit.zip.header_columns` compares many at once. A field
that is added to `REPEATED` is compared by both. A local header is checked when its member
is first read, because checking all at open would cost one read per member. Knows no NPY.
"""

from __future__ import annotations

import struct
from typing import Any, cast

from npzkit.codecs.coding import MAX_RATIOS, STORED
from npzkit.errors import (
    GET_AGAIN,
    READ_DIFFERENTLY,
    REPAIR,
    SAVE_SOUND,
    Advice,
    ChecksumError,
    UnsupportedError,
    ZipFormatError,
    check_limit,
)
from npzkit.files.source import Source
from npzkit.zip import records
from npzkit.zip.entries import BAD_NAME, Entry, check_names, is_usual
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
    FLAG_UTF8,
    LOCAL_HEADER_SIGNATURE,
    LOCAL_HEADER_SIZE,
    LOCAL_LAYOUT,
    SENTINEL_32,
)

_ENCRYPTED_FLAGS = FLAG_ENCRYPTED | records.FLAG_STRONG_ENCRYPTION | records.FLAG_MASKED
_REFUSED_FLAGS = _ENCRYPTED_FLAGS | records.FLAG_PATCHED | BAD_NAME
IS_ENCRYPTED = "the member is encrypted"
TO_DECRYPT = (
    "Extract it with its password, by 7z; then "
    + Advice("npzkit.pack(path, folder)", "npzkit pack NEW.npz FOLDER")
    + " makes an archive of its .npy files."
)


def check_entry(entry: Entry, size_limit: int | None = None) -> None:
    """Check whether the entry alone says that its member cannot be read.

    Raises
    ------
    UnsupportedError
        Encrypted, patched, or on another disk.
    ZipFormatError
        A name that cannot be used, or a size that the compressed bytes cannot reach.
    LimitExceededError
        More uncompressed bytes than `size_limit`.
    """
    if size_limit is not None:
        what, offset = "the member is too large", entry.header_offset
        check_limit(entry.uncompressed_size, size_limit, "member_size", what, offset)
    if not is_usual(entry):
        _check_special(entry)


def _check_special(entry: Entry) -> None:
    """Raise for what is not supported, and for two sizes that do not fit each other."""
    if entry.flags & _REFUSED_FLAGS or entry.disk_start:
        check_names([entry])
        is_encrypted = entry.flags & _ENCRYPTED_FLAGS
        error = UnsupportedError(
            IS_ENCRYPTED if is_encrypted else "the member is patched, or split over several files",
            offset=entry.header_offset,
            found=f"flags {entry.flags:#06x}, disk {entry.disk_start}",
            remedy=TO_DECRYPT
            if is_encrypted
            else "Extract it with the program that made it, and save it again.",
            is_damage=True,
        )
        raise error._as_foreign() if is_encrypted else error
    size, compressed_size = entry.uncompressed_size, entry.compressed_size
    if entry.method == STORED and size != compressed_size:
        raise ZipFormatError(
            "a stored member has two different sizes",
            offset=entry.header_offset,
            found=compressed_size,
            expected=size,
        )
    reachable = MAX_RATIOS.get(entry.method, size) * compressed_size
    if size > reachable:
        raise ZipFormatError(
            "the member claims more bytes than its compressed data can hold",
            offset=entry.header_offset,
            found=f"{size} bytes from {compressed_size}",
            expected=f"at most {reachable}",
        )


def data_offset(source: Source, entry: Entry, *, verify: bool = True) -> int:
    """Read and check a member's local header; return where its data begins in the file.

    If the member has a data descriptor, that is read and compared too.
    `verify` is as in `find_data`.
    """
    offset, room = entry.header_offset, entry.end_offset - entry.header_offset
    head = source.read_at(offset, min(LOCAL_HEADER_SIZE + len(entry.raw_name) + 1024, room))
    start = find_data(head, entry, verify)
    if start is None:
        head = source.read_at(offset, min(header_end(head), room))
        start = cast(int, find_data(head, entry, verify))
    start += offset
    if entry.flags & FLAG_DESCRIPTOR:
        end = start + entry.compressed_size
        data = source.read_at(end, min(records.DESCRIPTOR_MAX_SIZE, entry.end_offset - end))
        if not data.startswith(records.data_descriptors(*entry.described)):
            raise ZipFormatError(
                "the data descriptor and the central directory disagree",
                offset=end,
                found=data,
                expected=entry.described,
            )
    return start


WRONG_CRC = "the data is damaged: its CRC-32 differs"
AS_IT_IS = Advice(
    "npz.read(key, verify=False) reads it as it is",
    "npzkit extract FILE KEY --no-verify writes it as it is",
)


def check_crc32(found: int, entry: Entry, offset: int) -> None:
    """Raise ChecksumError if the CRC of the data is not the entry's."""
    if found != entry.crc32:
        raise ChecksumError(
            WRONG_CRC,
            offset=offset,
            found=f"{found:08x}",
            expected=f"{entry.crc32:08x}",
            remedy=f"{GET_AGAIN}; " + AS_IT_IS + ".",
        )


# -- the local header ---------------------------------------------------------

REPEATED = ("flags", "method", "crc32", "compressed_size", "uncompressed_size")
"""Fields of a local header that repeat those of the same name in its `Entry`; the sizes last."""

HEADER_READ = ("signature", *REPEATED, "name_size", "extra_size")
LOCAL_FIELDS = LOCAL_LAYOUT.picked(*HEADER_READ)
"""Unpacks the signature, the fields of `REPEATED`, and the sizes of name and extra field."""
_first = Entry._fields.index(REPEATED[0])
_EXPECTED = slice(_first, _first + len(REPEATED))
"""Where an `Entry` has them: side by side, in the same order."""

_COMPARED_FLAGS = {
    FLAG_ENCRYPTED: "encryption flag", FLAG_DESCRIPTOR: "descriptor flag", FLAG_UTF8: "UTF-8 flag",
}  # fmt: skip
"""The bits of the flags that decide how a member, and its name, are read; others may differ."""
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
        error.remedy = "One of them is damaged: " + SAVE_SOUND + " saves the array."
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
        if (found["flags"] ^ entry.flags) & bit and not (
            bit == FLAG_UTF8 and entry.raw_name.isascii()
        ):
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
        remedy=READ_DIFFERENTLY,
    )


def _crc_differs(entry: Entry, found: int) -> ChecksumError:
    """Return the error for two headers that differ only in the CRC.

    A flush of a map that was killed leaves a member so, because it writes both
    headers one after the other.
    """
    is_mappable = entry.method == STORED and not entry.flags & FLAG_DESCRIPTOR
    remedy = (
        "If the flush of a map was interrupted, " + REPAIR + " completes it"
        if is_mappable
        else GET_AGAIN
    )
    return ChecksumError(
        "the local header and the central directory disagree on the CRC-32",
        offset=entry.header_offset,
        found=f"{found:08x}",
        expected=f"{entry.crc32:08x}",
        remedy=f"{remedy}; npz.read(key, verify=False) reads it as it is.",
    )


def header_end(head: bytes | memoryview) -> int:
    """Return where the local header at the start of `head` ends, by its own sizes."""
    name_size, extra_size = struct.unpack_from("<HH", head, LOCAL_HEADER_SIZE - 4)
    end: int = LOCAL_HEADER_SIZE + name_size + extra_size
    return end
