"""What is stored beside the arrays: the archive's metadata, an array's attributes.

Owns their encoding as text: JSON in the archive's comment, key-value pairs in
an extra field. np.load sees neither. Imports no numpy; numpy's scalars are
taken for the Python numbers they stand for. `json` is imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from npzkit.errors import LimitExceededError
from npzkit.zip.extra import KEY_VALUE_PAIRS_ID, find_extra, format_key_value_pairs
from npzkit.zip.extra import parse_key_value_pairs as _parse_pairs

__all__ = [
    "MAX_DEPTH",
    "check_attrs",
    "format_attrs",
    "format_metadata",
    "is_deeper",
    "own_attrs",
    "parse_attrs",
    "parse_metadata",
    "user_attrs",
]

_OWN = "npzkit."
"""What the names of attributes begin with that npzkit itself keeps."""

_COMMENT_MAX_SIZE = 0xFFFF
MAX_DEPTH = 500
"""Lists and mappings in each other. JSON reads more than it writes, or anyone prints."""


def format_metadata(metadata: Any) -> bytes:
    """Encode an archive's metadata as its comment; empty where there is none.

    Raises
    ------
    TypeError
        It is no mapping, a key is no string, or a value is nothing that JSON
        can express.
    ValueError
        A value contains itself, or is nested too deeply.
    LimitExceededError
        More than 65,535 bytes of JSON.
    """
    if not metadata:
        return b""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping, not {type(metadata).__name__}")
    try:
        _check_values(metadata, "metadata")
        # ASCII only: no byte of an escaped comment can look like an end record.
        text = _format_json(dict(metadata), separators=(",", ":")).encode("ascii")
    except RecursionError:
        raise _too_deep("metadata") from None
    if len(text) > _COMMENT_MAX_SIZE:
        raise LimitExceededError(
            "the metadata is too long",
            found=f"{len(text)} bytes of JSON",
            expected="at most 65,535",
            remedy="Save what is large as an array.",
        )
    return text


def _check_values(value: Any, what: str, key: object = None, around: tuple[int, ...] = ()) -> None:
    """Raise for what JSON would rename, or never come to an end of, at any depth.

    Parameters
    ----------
    value : object
    what : str
        "metadata" or "attributes".
    key : object
        What `value` lies under.
    around : tuple of int
        The ids of the objects it lies in.

    Raises
    ------
    TypeError
        A key is no string.
    ValueError
        A value contains itself, or is nested too deeply.
    """
    if not isinstance(value, (Mapping, list, tuple)):
        return
    if len(around) == MAX_DEPTH:
        raise _too_deep(what)
    if id(value) in around:
        raise ValueError(f"{what} must not contain themselves, as the value of {key!r} does")
    around = (*around, id(value))
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise TypeError(f"{what} must have strings as keys, not {name!r}")
            _check_values(inner, what, name, around)
    else:
        for inner in value:
            _check_values(inner, what, key, around)


def _too_deep(what: str) -> ValueError:
    return ValueError(f"{what} are nested too deeply; save what is large as an array")


def _format_json(value: object, **options: Any) -> str:
    import json

    return json.dumps(value, default=_plain, **options)


def _plain(value: object) -> Any:
    """Turn a numpy scalar, which has `item`, into a Python number."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        plain = value.item()
        # A longdouble, which no Python number can hold, answers with itself.
        if type(plain) is not type(value):
            return plain
    raise TypeError(
        f"metadata and attributes take what JSON can express, not {type(value).__name__}; "
        "save arrays as members, or convert it first"
    )


def parse_metadata(comment: bytes) -> Mapping[str, Any]:
    """Decode an archive's comment; empty where it is not a JSON object."""
    try:
        metadata = _parse_json(comment) if comment.startswith(b"{") else {}
    except (ValueError, RecursionError):
        metadata = {}
    return MappingProxyType(metadata)


def _parse_json(text: str | bytes) -> Any:
    """Parse what is to be written and printed too: a deeper value is a RecursionError."""
    import json

    value = json.loads(text)
    if len(text) > MAX_DEPTH and is_deeper(value, MAX_DEPTH):
        raise RecursionError
    return value


def is_deeper(value: object, depth: int) -> bool:
    """Whether lists and mappings lie in each other more than `depth` deep."""
    layer: list[Any] = [value]
    for _ in range(depth + 1):
        layer = [value for value in layer if isinstance(value, (dict, list))]
        if not layer:
            return False
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return True


def check_attrs(attrs: Mapping[str, Any] | None) -> None:
    """Raise ValueError where a user's attributes take a name of npzkit's own."""
    for name in attrs or ():
        if isinstance(name, str) and name.startswith(_OWN):
            raise ValueError(f"the attribute {name!r} is npzkit's own")


def own_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of npzkit's own: what an array was before it was written."""
    return {name: value for name, value in attrs.items() if name.startswith(_OWN)}


def user_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return those that were given."""
    return {name: value for name, value in attrs.items() if not name.startswith(_OWN)}


def format_attrs(attrs: Mapping[str, Any] | None) -> bytes:
    """Encode an array's attributes as an extra field; empty where there are none.

    A string is written as it is, unless it would read as JSON; everything else
    is written as JSON.
    """
    if not attrs:
        return b""
    if not isinstance(attrs, Mapping):
        raise TypeError(f"attrs must be a mapping, not {type(attrs).__name__}")
    try:
        _check_values(attrs, "attributes")
        texts = {key: _format_value(value) for key, value in attrs.items()}
    except RecursionError:
        raise _too_deep("attributes") from None
    return format_key_value_pairs(texts)


def _format_value(value: object) -> str:
    if isinstance(value, str) and _parse_value(value) == value:
        return value
    return _format_json(value, ensure_ascii=False)


def parse_attrs(extra: bytes) -> dict[str, Any]:
    """Decode the attributes in a central entry's extra field.

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
        return _parse_json(text)
    except (ValueError, RecursionError):
        return text
