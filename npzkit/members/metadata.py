"""The metadata of an archive, and the attributes of an array, as JSON.

Owns where they are: in the archive's comment, and as key-value pairs in an extra field.
np.load ignores both. Owns how values become text and are read from it: as strict JSON
(RFC 8259), which programs in any language can read. JSON has no NaN and no infinity. Such a
float is written as an object with the one name "npzkit.float", whose value is "NaN",
"Infinity" or "-Infinity", and is read as a float again. Its brackets count as a level.

Does not import NumPy; NumPy scalars are converted to Python numbers. `json` is imported on
first use.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import repeat
from types import MappingProxyType, NoneType
from typing import Any

from npzkit.errors import (
    Advice,
    LimitExceededError,
    MemberNotFoundError,
    NpzkitError,
    UnsupportedError,
    format_size,
    shown_value,
)
from npzkit.limits import DEFAULT_METADATA_SIZE, MAX_DEPTH, nests_deeper, parsed_size
from npzkit.members.keys import missing
from npzkit.zip.commit import find_long_comment
from npzkit.zip.extra_fields import KEY_VALUE_PAIRS_ID, find_extra, format_key_value_pairs
from npzkit.zip.extra_fields import parse_key_value_pairs as _parse_pairs

TREE_KEY = "npzkit.tree"
"""The key of the note about nested data: `npzkit.trees.containers` makes it, and
`npzkit.trees.restoring` reads it."""

FLAT = ["flat"]
"""The note of a mapping of arrays whose names are the keys."""

PARTS_ATTRIBUTE = "npzkit.parts"
"""The attribute of an array that is saved as several, as `npzkit.members.multipart` does."""
MASK, OFFSETS, MISSING = ".mask", ".offsets", ".missing"
"""What the keys of the others end with."""

LOST_KEY = "npzkit.lost"
"""The key of what `npzkit.repair` could not save, in the metadata of the archive that it wrote."""

_LOST_COUNT = 100
"""The most keys that are listed there."""

_OWN = "npzkit."
"""The prefix of names that npzkit reserves for itself, of attributes and of metadata."""

_FLOAT_KEY = "npzkit.float"
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""By the names that Python's `json` has for them too. NaN is always the same object, so that
two mappings that were read can be equal."""
_CONTAINERS = {dict, list}
"""Types of what JSON is parsed to."""

_LEAVES = {str, int, float, bool, NoneType}
"""Types of values that need no check. The structure of a tree has many of them."""
_PLAIN = str, int, float, NoneType
"""Types that JSON can represent, with those derived from them."""


def nested_data(module: str) -> Any:
    """Return a module of what handles nested data, imported with the first value or note."""
    return import_module(f"npzkit.trees.{module}")


def missing_or_tied(
    key: object,
    keys: Sequence[str],
    path: str | os.PathLike[str] | None,
    metadata: Callable[[], Mapping[str, Any]],
) -> MemberNotFoundError:
    """Return the error of `missing`; of a tied tensor, or nested data, it says what reads that.

    `metadata` returns those of the archive, which may raise.
    """
    error = missing(key, keys, path)
    with contextlib.suppress(NpzkitError, OSError):
        note = metadata().get(TREE_KEY) if key and isinstance(key, str) else None
        if note is None:
            return error
        notes = nested_data("notes")
        if (tied := notes.tied_to(key, note)) is not None:
            error.remedy = f"This tensor is tied to {shown_value(tied)}: read that one."
        elif any(key == name for name, _ in notes.nodes_of(note)):
            error.remedy = Advice(
                "It is nested data, which npzkit.load_tree(file, key) returns.",
                "It is nested data, which npzkit show FILE KEY prints.",
            )
    return error


def check_tree_version(note: Any) -> None:
    """Raise UnsupportedError for the note of a tree that a newer npzkit wrote."""
    if isinstance(note, list) and note[:1] == ["version"]:
        raise UnsupportedError(
            "the structure of the nested data has a version that this npzkit does not know",
            found=note[1] if len(note) > 1 else None,
            expected=1,
            remedy="Install a newer npzkit. npzkit.open reads the arrays.",
        )


def check_is_mapping(metadata: Any) -> None:
    """Raise TypeError for metadata that are neither a mapping nor None."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping, not {type(metadata).__name__}")


def check_given(metadata: Any) -> None:
    """Check that metadata which a caller gave are a mapping, or None, without a note of their own.

    What a copied archive has in the place of the note is a list or a mapping.
    """
    check_is_mapping(metadata)
    if metadata and isinstance(metadata.get(TREE_KEY), (str, int, float)):
        raise ValueError(f"the metadata {TREE_KEY!r} is reserved for npzkit itself")


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
    check_is_mapping(metadata)
    if not metadata:
        return b""
    _check_values(metadata, "metadata")
    # ASCII only: no byte of an escaped comment can look like an end record.
    text = format_json(dict(metadata), MAX_DEPTH, separators=(",", ":")).encode("ascii")
    if (size := parsed_size(text, DEFAULT_METADATA_SIZE)) > DEFAULT_METADATA_SIZE:
        raise LimitExceededError(
            "the metadata would take too much memory when they are read",
            found=f"about {format_size(size)}, from {format_size(len(text))} of JSON",
            expected=f"at most {format_size(DEFAULT_METADATA_SIZE)}",
            remedy="Save what is large as an array.",
        )
    if find_long_comment(text) is not None:
        raise ValueError("the metadata 'npzkit.metadata' is reserved for npzkit itself")
    return text


def format_checked(metadata: Mapping[str, Any] | None) -> bytes:
    """Return metadata that a caller gave as their comment; as `format_metadata`.

    Raises
    ------
    UnsupportedError
        A newer version of npzkit wrote the note of its tree.
    """
    check_given(metadata)
    check_tree_version((metadata or {}).get(TREE_KEY))
    return format_metadata(metadata)


class CheckedValues(dict[str, Any]):
    """Metadata or attributes to be changed, which refuse at once what JSON cannot represent.

    What is changed inside a value is checked when it is written.

    Parameters
    ----------
    values : mapping
        Not checked.
    what : str
        Names them in errors.
    """

    def __init__(self, values: Mapping[str, Any], what: str) -> None:
        super().__init__(values)
        self._what = what

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def update(self, *values: Any, **named: Any) -> None:
        new = dict(*values, **named)
        _check_values(new, self._what)
        super().update(new)

    def clear(self) -> None:
        """Remove all values but npzkit's own, which say how nested data is read."""
        own = own_attrs(self)
        super().clear()
        super().update(own)

    def __ior__(self, values: Any) -> CheckedValues:  # type: ignore[override, misc]
        self.update(values)
        return self

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def _check_values(value: Any, what: str, key: object = None, around: tuple[int, ...] = ()) -> None:
    """Check that JSON can represent `value`, which does not contain itself, at any depth.

    `what` names it, `key` is its key, and `around` has the ids of the objects that contain it.
    """
    if not isinstance(value, (Mapping, list, tuple)):
        if not isinstance(value, _PLAIN):
            _plain(value, f"the value of {key!r} in {what}")
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
        As `check_metadata_size`.
    """
    check_metadata_size(comment, limit)
    try:
        metadata = parse_json(comment) if comment.startswith(b"{") else {}
    except ValueError:
        metadata = {}
    # One object alone may be a float.
    return MappingProxyType(metadata if isinstance(metadata, dict) else {})


def as_read(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata or attributes as they are read again: a copy, with plain numbers."""
    return dict(parse_metadata(format_metadata(values), None))


def with_lost(comment: bytes, keys: Sequence[str]) -> bytes:
    """Return the comment of an archive that lacks these keys: metadata that list them.

    A comment that is no metadata stays as it is, and so does one without room.
    """
    with contextlib.suppress(TypeError, ValueError):
        metadata = parse_metadata(comment)
        if keys and (metadata or not comment):
            before: Any = metadata.get(LOST_KEY)
            listed = before if isinstance(before, list) else []
            known = [key for key in listed if isinstance(key, str)]
            lost = list(dict.fromkeys([*known, *keys]))[:_LOST_COUNT]
            return format_metadata({**metadata, LOST_KEY: lost})
    return comment


def check_metadata_size(comment: bytes, limit: int | None) -> None:
    """Check, before it is parsed, that the metadata in a comment fits in `limit` bytes of memory.

    Raises
    ------
    LimitExceededError
        It would exceed ``Limits.metadata_size``.
    """
    if limit is None or not comment.startswith(b"{"):
        return
    if (size := parsed_size(comment, limit)) > limit:
        raise LimitExceededError(
            "the metadata would take too much memory",
            found=f"about {format_size(size)}, from {format_size(len(comment))} of JSON",
            expected=f"at most {format_size(limit)}",
            remedy="Pass limits=npzkit.Limits(metadata_size=...) if the file is trusted.",
        )


def check_attrs(attrs: Mapping[str, Any] | None) -> None:
    """Raise ValueError if a user's attribute has a name that npzkit reserves."""
    for name in attrs or ():
        if isinstance(name, str) and name.startswith(_OWN):
            raise ValueError(
                f"the attribute {name!r} is reserved: names that start with {_OWN!r} are "
                "for npzkit itself"
            )


def check_attrs_by_key(
    attrs: Mapping[str, Mapping[str, Any]] | None, arrays: Mapping[str, Any]
) -> None:
    """Raise ValueError unless these are attributes of arrays, by their keys."""
    for key, each in (attrs or {}).items():
        if key not in arrays:
            raise ValueError(
                f"attrs: there is no array {key!r}; attributes are given by key, such as "
                "{'t': {'unit': 'K'}}"
            )
        check_attrs(each)


def own_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return npzkit's own values: metadata, or attributes of an array before it was written."""
    return {name: value for name, value in attrs.items() if name.startswith(_OWN)}


def user_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's attributes."""
    return {name: value for name, value in attrs.items() if not name.startswith(_OWN)}


def other_suffixes(attrs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the suffixes of all parts but the first, by its attributes; none for other arrays.

    Examples
    --------
    >>> other_suffixes({"npzkit.parts": {"kind": "masked"}})
    ('.mask',)
    """
    parts = attrs.get(PARTS_ATTRIBUTE)
    if not isinstance(parts, dict):
        return ()
    kind = parts.get("kind")
    if kind == "strings":
        return (OFFSETS, MISSING) if "missing" in parts else (OFFSETS,)
    return (MASK,) if kind == "masked" else ()


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


# -- JSON -----------------------------------------------------------------


def is_float(value: Mapping[Any, Any]) -> bool:
    """Return whether a mapping is what a float is written as.

    Examples
    --------
    >>> is_float({"npzkit.float": "NaN"}), is_float({"npzkit.float": 1.5})
    (True, False)
    """
    # The names in a tree are names in its note, whose values are never strings.
    name = value.get(_FLOAT_KEY) if len(value) == 1 else None
    return isinstance(name, str) and name in _FLOATS


def format_json(value: object, depth: int | None = None, **options: Any) -> str:
    """Return a value, which does not contain itself, as JSON.

    `depth` is the largest with the floats that are objects, if it matters. `options` are those of
    `json.dumps`.

    Raises
    ------
    TypeError
        JSON cannot represent a value.
    ValueError
        A NaN or an infinity is nested too deeply, or an int has more digits than Python prints.

    Examples
    --------
    >>> format_json([0.5, float("-inf")])
    '[0.5, {"npzkit.float": "-Infinity"}]'
    """
    import json

    try:
        return json.dumps(value, default=_plain, allow_nan=False, **options)
    except ValueError:
        # Almost always one of these floats. If not, the next line raises it again.
        text = json.dumps(value, default=_plain)
    strict = json.loads(text, parse_constant=lambda name: {_FLOAT_KEY: name})
    if depth is not None and is_deeper(strict, depth):
        raise ValueError(
            "a NaN or an infinity in metadata or attributes is nested too deeply; "
            "save large values as arrays"
        )
    return json.dumps(strict, allow_nan=False, **options)


def _plain(value: Any, place: str = "a value") -> Any:
    """Return a NumPy scalar, which has `item`, as a Python number; `place` is for the error."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        # Not for longdouble, of which `item` is a longdouble, nor for dates: that of NaT is None.
        is_date = getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")
        if isinstance(plain := value.item(), (*_PLAIN, tuple)) and not is_date:
            return plain
        value = value[()]
    if getattr(value, "ndim", 0):
        remedy = "add it as an array of its own"
    elif hasattr(value, "isoformat"):
        remedy = "use value.isoformat()"
    else:
        remedy = "convert it first, for example by str(value) or list(value)"
    raise TypeError(
        f"{place} is of type {type(value).__name__}, which JSON cannot represent; {remedy}"
    )


def parse_json(text: str | bytes) -> Any:
    """Parse JSON, with the floats of `format_json`.

    Raises
    ------
    ValueError
        It is no JSON, or is nested more than `MAX_DEPTH` deep: too deep to write or print.
    """
    import json

    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    # An escape may be any of its letters.
    has_floats = _FLOAT_KEY in text or "\\u00" in text
    try:
        value = json.loads(text, object_hook=_restored if has_floats else None)
    except RecursionError:
        if not nests_deeper(text, MAX_DEPTH):
            raise
        is_deep = True
    else:
        is_deep = len(text) > MAX_DEPTH and is_deeper(value, MAX_DEPTH)
    if is_deep:
        raise ValueError("it is nested too deeply")
    return value


def _restored(found: dict[str, Any]) -> Any:
    """Return the float that an object stands for, or the object."""
    return _FLOATS[found[_FLOAT_KEY]] if is_float(found) else found


def is_deeper(value: object, depth: int) -> bool:
    """Return whether lists and mappings are nested more than `depth` deep, as JSON has them."""
    layer: list[Any] = [value]
    for _ in range(depth):
        outer: list[Any] = [value for value in layer if type(value) in _CONTAINERS]
        if not outer:
            return False
        layer = []
        for container in outer:
            layer += container.values() if type(container) is dict else container
    return any(
        type(value) in _CONTAINERS or (type(value) is float and not math.isfinite(value))
        for value in layer
    )
