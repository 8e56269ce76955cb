"""The metadata of an archive, and the attributes of an array.

Owns their encoding as text: JSON in the archive's comment, and key-value pairs
in an extra field. np.load ignores both. Also owns the attribute with the names of an
array's dimensions, as xarray and Zarr keep them. What JSON is, and what becomes of NaN, is
`npzkit.members.strict_json`'s. Does not import NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from types import MappingProxyType, NoneType
from typing import Any

from npzkit.codecs.checksum import crc32
from npzkit.errors import LimitExceededError
from npzkit.limits import DEFAULT_METADATA_SIZE, MAX_DEPTH, parsed_size
from npzkit.members.strict_json import format_json, is_float, parse_json
from npzkit.zip.commit_marks import find_long_comment
from npzkit.zip.extra_fields import KEY_VALUE_PAIRS_ID, find_extra, format_key_value_pairs
from npzkit.zip.extra_fields import parse_key_value_pairs as _parse_pairs

TREE_KEY = "npzkit.tree"
"""The key of the note about nested data, which `npzkit.members.containers` makes and reads."""

DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute with the names of an array's dimensions, by xarray's convention for Zarr."""

PARTS_ATTRIBUTE = "npzkit.parts"
"""The attribute of an array that is saved as several, as `npzkit.members.multipart` does."""

_OWN = "npzkit."
"""The prefix of attribute names that npzkit reserves for itself."""

_LEAVES = {str, int, float, bool, NoneType}
"""Types of values that need no check. The structure of a tree has many of them."""


def format_metadata(metadata: Any) -> bytes:
    """Return the metadata of an archive as its comment; empty if there is none.

    Raises
    ------
    TypeError
        The metadata is not a mapping, a key is not a string, or JSON cannot
        represent a value.
    ValueError
        A value contains itself, or is nested too deeply, or is a mapping that stands for
        a NaN; or the metadata look like the comment that leads to long metadata.
    LimitExceededError
        Reading them would exceed the default of ``Limits.metadata_size``.
    """
    if not metadata:
        return b""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping, not {type(metadata).__name__}")
    _check_values(metadata, "metadata")
    # ASCII only: no byte of an escaped comment can look like an end record.
    text = format_json(dict(metadata), MAX_DEPTH, separators=(",", ":")).encode("ascii")
    if (size := parsed_size(text, DEFAULT_METADATA_SIZE)) > DEFAULT_METADATA_SIZE:
        raise LimitExceededError(
            "the metadata would take too much memory when they are read",
            found=f"about {size} bytes, from {len(text)} bytes of JSON",
            expected=f"at most {DEFAULT_METADATA_SIZE}",
            remedy="Save what is large as an array.",
        )
    if find_long_comment(text) is not None:
        raise ValueError("the metadata 'npzkit.metadata' is reserved for npzkit itself")
    return text


def _check_values(value: Any, what: str, key: object = None, around: tuple[int, ...] = ()) -> None:
    """Check that `value` has only string keys and does not contain itself, at any depth.

    Parameters
    ----------
    value : object
    what : str
        "metadata" or "attributes".
    key : object
        The key of `value`.
    around : tuple of int
        The ids of the objects that contain `value`.

    Raises
    ------
    TypeError
        A key is not a string.
    ValueError
        A value contains itself, is nested too deeply, or is a mapping that would be read as a
        float.
    """
    if not isinstance(value, (Mapping, list, tuple)):
        return
    if len(around) == MAX_DEPTH:
        raise ValueError(f"{what} are nested too deeply; save large values as arrays")
    if id(value) in around:
        raise ValueError(f"{what} must not contain themselves, as the value of {key!r} does")
    around = (*around, id(value))
    if isinstance(value, Mapping):
        if is_float(value):
            raise ValueError(
                f"the mapping {dict(value)!r} in {what} is reserved for npzkit itself, "
                "which reads it as a float"
            )
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"{what} must have strings as keys, not {name!r}")
    for name, inner in value.items() if isinstance(value, Mapping) else zip(repeat(key), value):
        if not _is_checked(inner, around):
            _check_values(inner, what, name, around)


def _is_checked(value: Any, around: tuple[int, ...]) -> bool:
    """Return whether a value needs no check: a leaf or a list of leaves."""
    kind = type(value)
    if kind is list and len(around) < MAX_DEPTH:
        return _LEAVES.issuperset(map(type, value))
    return kind in _LEAVES


def parse_metadata(comment: bytes, limit: int | None = DEFAULT_METADATA_SIZE) -> Mapping[str, Any]:
    """Return the metadata in an archive's comment; empty if that is not a JSON object.

    Raises
    ------
    LimitExceededError
        As `check_json_size`.
    """
    check_metadata_size(comment, limit)
    try:
        metadata = parse_json(comment) if comment.startswith(b"{") else {}
    except ValueError:
        metadata = {}
    # One object alone may be a float.
    return MappingProxyType(metadata if isinstance(metadata, dict) else {})


def as_read(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata or attributes as they are read again: a copy, with plain numbers.

    Raises
    ------
    LimitExceededError, TypeError, ValueError
        As `format_metadata`.
    """
    return dict(parse_metadata(format_metadata(values), None))


def check_metadata_size(comment: bytes, limit: int | None) -> None:
    """Check what the metadata in an archive's comment may cost; see `check_json_size`."""
    if comment.startswith(b"{"):
        check_json_size(comment, limit, "the metadata")


def check_json_size(data: bytes, limit: int | None, what: str) -> None:
    """Check, before JSON is parsed, that the result fits in `limit` bytes of memory.

    Raises
    ------
    LimitExceededError
        It would exceed ``Limits.metadata_size``.
    """
    if limit is not None and (size := parsed_size(data, limit)) > limit:
        raise LimitExceededError(
            f"{what} would take too much memory",
            found=f"about {size} bytes, from {len(data)} bytes of JSON",
            expected=f"at most {limit}",
            remedy="Pass limits=npzkit.Limits(metadata_size=...) if the file is trusted.",
            is_damage=True,
        )


def with_item(text: bytes, item: Mapping[str, Any]) -> bytes:
    """Return a JSON object that is not empty, with one more item at its end."""
    return text[:-1] + b"," + format_metadata(item)[1:]


def crc32_without(text: bytes, item: Mapping[str, Any]) -> int | None:
    """Return the CRC-32 of a JSON object before `with_item`; None if it ends otherwise."""
    end = with_item(b"}", item)
    if not text.endswith(end):
        return None
    return crc32(b"}", crc32(memoryview(text)[: -len(end)]))


def names_crc32(names: Iterable[str], extras: Iterable[tuple[str, bytes]]) -> int:
    """Return the CRC-32 of the names of members, and of the extra fields of those that have one."""
    crc = crc32("\0".join(names).encode("utf-8", "surrogatepass"))
    parts: list[bytes] = []
    for name, extra in extras:
        if extra:
            parts += (name.encode("utf-8", "surrogatepass"), extra)
    return crc32(b"\0".join(parts), crc)


def without_note(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return metadata without the note about nested data, and whether it was there."""
    others = dict(metadata)
    is_tree = others.pop(TREE_KEY, None) is not None
    return others, is_tree


def check_attrs(attrs: Mapping[str, Any] | None) -> None:
    """Raise ValueError if a user's attribute has a name that npzkit reserves."""
    for name in attrs or ():
        if isinstance(name, str) and name.startswith(_OWN):
            raise ValueError(
                f"the attribute {name!r} is reserved: names that start with {_OWN!r} are "
                "for npzkit itself"
            )


def own_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return npzkit's own attributes, which describe an array before it was written."""
    return {name: value for name, value in attrs.items() if name.startswith(_OWN)}


def user_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's attributes."""
    return {name: value for name, value in attrs.items() if not name.startswith(_OWN)}


def format_attrs(attrs: Mapping[str, Any] | None) -> bytes:
    """Return the attributes of an array as an extra field; empty if there are none.

    Values are written as JSON, except strings that are not valid JSON, which are
    written as they are.
    """
    if not attrs:
        return b""
    if not isinstance(attrs, Mapping):
        raise TypeError(f"attrs must be a mapping, not {type(attrs).__name__}")
    _check_values(attrs, "attributes")
    return format_key_value_pairs({key: _format_value(value) for key, value in attrs.items()})


def _format_value(value: object) -> str:
    if isinstance(value, str) and _parse_value(value) == value:
        return value
    return format_json(value, MAX_DEPTH - 1, ensure_ascii=False)


def parse_attrs(extra: bytes) -> dict[str, Any]:
    """Return the attributes in the extra field of a directory entry.

    Raises
    ------
    ZipFormatError
        The field is damaged.
    """
    payload = find_extra(extra, KEY_VALUE_PAIRS_ID) if extra else None
    if payload is None:
        return {}
    return {key: _parse_value(text) for key, text in _parse_pairs(payload).items()}


def _parse_value(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


# -- names of dimensions --------------------------------------------------


def named_dimensions(attrs: Mapping[str, Any], ndim: int) -> tuple[str, ...] | None:
    """Return the names in an array's attributes; None if there are none that fit.

    Examples
    --------
    >>> named_dimensions({"_ARRAY_DIMENSIONS": ["time", "x"]}, 2)
    ('time', 'x')
    """
    names = attrs.get(DIMENSIONS)
    if not isinstance(names, list) or len(names) != ndim:
        return None
    return tuple(names) if all(isinstance(name, str) for name in names) else None


def made_up_dimensions(
    shapes: Mapping[str, tuple[int, ...]], taken: Iterable[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return names for the dimensions of arrays: ``dim_0``, ``dim_1`` and so on, one per length.

    Dimensions of the same length share a name, unless they belong to the same array.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        By key.
    taken : iterable of str
        Names that are not to be used.

    Examples
    --------
    >>> made_up_dimensions({"a": (3, 4), "b": (4,), "c": (3, 3)})
    {'a': ('dim_0', 'dim_1'), 'b': ('dim_1',), 'c': ('dim_0', 'dim_2')}
    """
    taken = set(taken)
    names: dict[tuple[int, int], str] = {}
    number = 0
    found = {}
    for key, shape in shapes.items():
        own = []
        for axis, length in enumerate(shape):
            which = length, shape[:axis].count(length)
            while which not in names:
                name = f"dim_{number}"
                number += 1
                if name not in taken:
                    names[which] = name
            own.append(names[which])
        found[key] = tuple(own)
    return found
