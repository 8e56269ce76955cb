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

__all__ = ["format_attrs", "format_metadata", "parse_attrs", "parse_metadata"]

_COMMENT_MAX_SIZE = 0xFFFF


def format_metadata(metadata: Mapping[str, Any]) -> bytes:
    """Encode an archive's metadata as its comment; empty where there is none.

    Raises
    ------
    TypeError
        A key is no string, or a value is nothing that JSON can express.
    LimitExceededError
        More than 65,535 bytes of JSON.
    """
    if not metadata:
        return b""
    _check_keys(metadata, "metadata")
    import json

    # ASCII only: no byte of an escaped comment can look like an end record.
    text = json.dumps(dict(metadata), default=_plain, separators=(",", ":")).encode("ascii")
    if len(text) > _COMMENT_MAX_SIZE:
        raise LimitExceededError(
            "the metadata is too long",
            found=f"{len(text)} bytes of JSON",
            expected="at most 65,535",
            remedy="Save what is large as an array.",
        )
    return text


def _check_keys(value: Any, what: str) -> None:
    """Raise TypeError for a key that is no string, at any depth: JSON would rename it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{what} must have strings as keys, not {key!r}")
            _check_keys(inner, what)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_keys(inner, what)


def _plain(value: object) -> Any:
    """Turn a numpy scalar, which has `item`, into a Python number."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(
        f"metadata and attributes take what JSON can express, not {type(value).__name__}; "
        "save arrays as members, or convert it first"
    )


def parse_metadata(comment: bytes) -> Mapping[str, Any]:
    """Decode an archive's comment; empty where it is not a JSON object."""
    import json

    try:
        metadata = json.loads(comment) if comment.startswith(b"{") else {}
    except (ValueError, RecursionError):
        metadata = {}
    return MappingProxyType(metadata)


def format_attrs(attrs: Mapping[str, Any] | None) -> bytes:
    """Encode an array's attributes as an extra field; empty where there are none.

    A string is written as it is, unless it would read as JSON; everything else
    is written as JSON.
    """
    if not attrs:
        return b""
    if not isinstance(attrs, Mapping):
        raise TypeError(f"attrs must be a mapping, not {type(attrs).__name__}")
    _check_keys(attrs, "attributes")
    return format_key_value_pairs({key: _format_value(value) for key, value in attrs.items()})


def _format_value(value: object) -> str:
    import json

    if isinstance(value, str) and _parse_value(value) == value:
        return value
    return json.dumps(value, default=_plain, ensure_ascii=False)


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
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
