"""Extra fields: the tagged blocks after names in both kinds of header. No I/O.

Owns the four that npzkit reads or writes: zip64 sizes (section 4.5.3), Info-ZIP's
Unicode path (4.6.9), key-value pairs (sozip/keyvaluepairs-spec 0.5) and the
alignment padding of Android's zipalign, which every reader skips.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence

from npzkit.errors import ConversionError, LimitExceededError, ZipFormatError
from npzkit.zip.records import SENTINEL_32

ZIP64_ID = 0x0001
UNICODE_PATH_ID = 0x7075
KEY_VALUE_PAIRS_ID = 0x564B
ALIGNMENT_ID = 0xD935

KEY_VALUE_SIGNATURE = b"KeyValuePairs"
CHANGED_NAME = "npzkit.changed"
"""The name of the pair, with an empty value, that says that an entry's pairs were changed after
its member was written. The local header has those of before."""
CHANGED_PAIR = struct.pack("<H", len(CHANGED_NAME)) + CHANGED_NAME.encode() + bytes(2)
_TOO_LONG = "Save what is large as an array."
_ALIGNMENT_MIN_SIZE = 6
"""Identifier, length, and the alignment itself: less cannot be padded."""


def iter_extra(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each block's identifier and payload.

    Up to three bytes left at the end are skipped: zipalign before 2016 padded
    with bare zeros.

    Raises
    ------
    ZipFormatError
        A block runs over the end of the field.
    """
    position = 0
    while position + 4 <= len(extra):
        identifier, size = struct.unpack_from("<HH", extra, position)
        position += 4
        if position + size > len(extra):
            raise ZipFormatError(
                f"extra field {identifier:#06x} extends past its end",
                found=f"{len(extra) - position} bytes",
                expected=f"{size} bytes",
            )
        yield identifier, extra[position : position + size]
        position += size


def find_extra(extra: bytes, identifier: int) -> bytes | None:
    """Return the payload of the first block with `identifier`, or None."""
    return next((payload for found, payload in iter_extra(extra) if found == identifier), None)


def without_blocks(extra: bytes, *dropped: int) -> bytes:
    """Return an extra field without some blocks."""
    return b"".join(
        format_extra(identifier, payload)
        for identifier, payload in iter_extra(extra)
        if identifier not in dropped
    )


def foreign_extra(extra: bytes, *dropped: int) -> bytes:
    """Return an extra field without zip64 sizes, padding and `dropped` blocks."""
    return without_blocks(extra, ZIP64_ID, ALIGNMENT_ID, *dropped)


def format_extra(identifier: int, payload: bytes) -> bytes:
    """Format one block."""
    return struct.pack("<HH", identifier, len(payload)) + payload


def parse_zip64(payload: bytes, count: int) -> tuple[int, ...]:
    """Return the 64-bit values that stand for `count` sentinels, in order.

    Raises
    ------
    ZipFormatError
        There are fewer values than sentinels.
    """
    if len(payload) < 8 * count:
        raise ZipFormatError(
            "the zip64 extra field lacks values",
            found=f"{len(payload)} bytes",
            expected=f"{8 * count} bytes",
        )
    return struct.unpack_from(f"<{count}Q", payload)


def merge_zip64(payload: bytes, values: tuple[int, ...]) -> tuple[int, ...]:
    """Return the values of 32-bit fields, with those of a zip64 block for the sentinels.

    Raises
    ------
    ZipFormatError
        There are fewer values than sentinels.
    """
    large = iter(parse_zip64(payload, values.count(SENTINEL_32)))
    return tuple(next(large) if value == SENTINEL_32 else value for value in values)


def format_zip64(values: Sequence[int]) -> bytes:
    """Format a zip64 block of these values; nothing if there are none."""
    return format_extra(ZIP64_ID, struct.pack(f"<{len(values)}Q", *values)) if values else b""


def parse_unicode_path(payload: bytes, name: bytes) -> str | None:
    """Return the UTF-8 name that Info-ZIP puts beside a name in another code page.

    None if the block was made for another name, which its CRC shows.
    """
    if len(payload) < 5 or payload[0] != 1:
        return None
    (crc,) = struct.unpack_from("<L", payload, 1)
    if crc != zlib.crc32(name):
        return None
    try:
        return payload[5:].decode("utf-8")
    except UnicodeDecodeError as error:
        raise ZipFormatError("a Unicode path is not UTF-8", found=payload[5:]) from error


def parse_key_value_pairs(payload: bytes) -> dict[str, str]:
    """Return the pairs of a key-value block.

    Raises
    ------
    ZipFormatError
        The block is truncated, or not UTF-8.
    """
    signature_size = len(KEY_VALUE_SIGNATURE)
    if payload[:signature_size] != KEY_VALUE_SIGNATURE or len(payload) == signature_size:
        raise ZipFormatError("a key-value extra field has a wrong signature", found=payload[:16])
    texts = []
    position = signature_size + 1
    for _ in range(2 * payload[signature_size]):
        end = position + 2
        if end <= len(payload):
            end += struct.unpack_from("<H", payload, position)[0]
        if end > len(payload) or end < position + 2:
            raise ZipFormatError("a key-value extra field is truncated", found=payload[:40])
        try:
            texts.append(payload[position + 2 : end].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ZipFormatError("a key-value pair is not UTF-8", found=payload[:40]) from error
        position = end
    return dict(zip(texts[::2], texts[1::2], strict=True))


def format_key_value_pairs(pairs: Mapping[str, str]) -> bytes:
    """Format a key-value block.

    Raises
    ------
    LimitExceededError
        More than 255 pairs, or more than 65,535 bytes in one text or in all.
    ConversionError
        A text has half of a surrogate pair.
    """
    if len(pairs) > 255:
        raise LimitExceededError("too many attributes", found=len(pairs), expected="at most 255")
    parts = [KEY_VALUE_SIGNATURE, bytes([len(pairs)])]
    for text in (text for pair in pairs.items() for text in pair):
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            raise ConversionError(
                "an attribute has half of a surrogate pair, which is no text",
                found=text,
                remedy="Replace it: text.encode('utf-8', 'replace').decode().",
            ) from None
        if len(data) > 0xFFFF:
            raise LimitExceededError(
                "an attribute is too long",
                found=f"{len(data)} bytes",
                expected="at most 65,535 bytes",
                remedy=_TOO_LONG,
            )
        parts += (struct.pack("<H", len(data)), data)
    payload = b"".join(parts)
    # The local header adds the alignment after it, in the same field.
    if len(payload) > 0xFFFF - 256:
        raise LimitExceededError(
            "the attributes of an array are too long",
            found=f"{len(payload)} bytes",
            expected="at most 65,279 bytes",
            remedy=_TOO_LONG,
        )
    return format_extra(KEY_VALUE_PAIRS_ID, payload)


def format_alignment(offset: int, alignment: int) -> bytes:
    """Return the padding block that moves `offset` to a multiple of `alignment`.

    Empty where it is one already.
    """
    size = -offset % alignment
    if size == 0:
        return b""
    while size < _ALIGNMENT_MIN_SIZE:
        size += alignment
    return format_padding(size, alignment)


def format_padding(size: int, alignment: int = 1) -> bytes:
    """Return a padding block of `size` bytes in all, at least 6."""
    return format_extra(ALIGNMENT_ID, struct.pack("<H", alignment) + bytes(size - 6))
