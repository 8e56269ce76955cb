"""What a step's file holds beside its arrays: step, metrics, the user's metadata, structure.

Owns the metadata of a checkpoint, their checksums, and the checks of what users pass.
No CRC of the zip format covers metadata, nor the names and attributes of members. So the
metadata contain two CRC-32s: that of their JSON without them, and that of names and
attributes. Reads and writes no file.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Mapping
from types import NoneType
from typing import Any, NamedTuple

from npzkit.archive.npzfile import NpzFile
from npzkit.datasets.index_format import crc32_without, newer_version, with_item
from npzkit.errors import NpzkitError, ZipFormatError
from npzkit.members.metadata import TREE_KEY, as_read, format_metadata

_OWN_KEY = "npzkit.checkpoint"
"""The key of the format's version and of the checksums."""
_AGE = "age"
"""In that item: for how many steps frozen arrays were not written."""
_VERSION = 1
_LARGEST_STEP = 10**18 - 1
MISNAMED = "If it is not of this step, rename it."
"""The remedy for a file that has the name of a step, and may be another one's or none's."""


class Record(NamedTuple):
    """What a checkpoint's metadata say.

    Attributes
    ----------
    step : int
    metrics : dict of str to number
    metadata : dict
        The user's.
    structure : object
        What the keys of the arrays do not say of the tree.
    """

    step: int
    metrics: dict[str, Any]
    metadata: dict[str, Any]
    structure: Any


def check_step(step: Any) -> int:
    """Return a step as an int.

    Raises
    ------
    TypeError, ValueError
        It is not an integer, is negative, or has more than 18 digits.
    """
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"step must be an integer, not {type(step).__name__}")
    step = operator.index(step)
    if not 0 <= step <= _LARGEST_STEP:
        raise ValueError(f"step must be from 0 to {_LARGEST_STEP}, not {step}")
    return int(step)


def check_metrics(metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return metrics as Python numbers by name.

    Raises
    ------
    TypeError
        The metrics are not a mapping of strings to numbers.
    """
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics must be a mapping of names to numbers, not {metrics!r}")
    return {_metric_name(name): _number(name, value) for name, value in metrics.items()}


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a user's metadata as JSON has them: a copy that no later change reaches.

    Raises
    ------
    TypeError, ValueError
        As `npzkit.members.metadata.format_metadata`.
    """
    found = as_read({} if metadata is None else {"metadata": metadata})
    if not isinstance(metadata, (Mapping, NoneType)):
        raise TypeError(f"metadata must be a mapping, not {type(metadata).__name__}")
    plain: dict[str, Any] = found.get("metadata", {})
    return plain


def _metric_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of a metric must be a string, not {name!r}")
    return str(name)


def _number(name: str, value: Any) -> int | float | bool:
    """Return a number of Python, NumPy or a tensor of one value as Python's."""
    try:
        found = value.item() if hasattr(value, "item") else value
    except RecursionError:
        raise
    except (ValueError, RuntimeError):
        # An array of several values.
        found = None
    if not isinstance(found, (int, float)):
        raise TypeError(f"the metric {name!r} must be a number, not {type(value).__name__}")
    return found


def format_record(record: Record, names_crc32: int, age: int = 0) -> bytes:
    """Return the metadata of a step's archive as JSON, with their checksums.

    `age` is what `age_of` returns.

    Raises
    ------
    TypeError, ValueError
        As `npzkit.members.metadata.format_metadata`.
    """
    metadata: dict[str, Any] = {
        "step": record.step,
        "metrics": record.metrics,
        "metadata": record.metadata,
    }
    if record.structure is not None:
        metadata[TREE_KEY] = record.structure
    text = format_metadata(metadata)
    own = {"version": _VERSION, "names_crc32": names_crc32, "crc32": zlib.crc32(text)}
    if age:
        own[_AGE] = age
    return with_item(text, {_OWN_KEY: own})


def age_of(metadata: Mapping[str, Any]) -> int:
    """Return how many steps before this one have the frozen arrays that it has, at most."""
    own = metadata.get(_OWN_KEY)
    age = own.get(_AGE) if isinstance(own, dict) else None
    return age if type(age) is int else 0


def record_of(npz: NpzFile, step: int) -> Record:
    """Return the checked record of an open step.

    Raises
    ------
    ZipFormatError
        The metadata are damaged, those of another step, or not those of a checkpoint. Or
        names or attributes are damaged.
    UnsupportedError
        A newer version of npzkit wrote them.
    """
    archive = npz._archive
    try:
        return _parsed(archive.metadata, archive.comment, step, archive.names_crc32)
    except NpzkitError as error:
        raise error.locate(path=archive.path) from None


def _parsed(metadata: Mapping[str, Any], text: bytes, step: int, names_crc: int | None) -> Record:
    rest = dict(metadata)
    own = rest.pop(_OWN_KEY, None)
    if not isinstance(own, dict):
        raise ZipFormatError(
            "the metadata of the checkpoint are damaged or missing",
            remedy=MISNAMED,
        )
    if own.get("version") != _VERSION:
        # It is not damaged: the archive has a CRC-32 of its comment.
        raise newer_version("the checkpoint", own.get("version"), _VERSION)
    crc = crc32_without(text, {_OWN_KEY: own})
    if crc is None or own.get("crc32") != crc:
        raise ZipFormatError(
            "the metadata of the checkpoint are damaged: their CRC-32 differs",
            found=crc,
            expected=own.get("crc32"),
        )
    if names_crc is not None and own.get("names_crc32") != names_crc:
        raise ZipFormatError(
            "the names or attributes of the arrays are damaged: their CRC-32 differs",
            found=names_crc,
            expected=own.get("names_crc32"),
        )
    if rest["step"] != step:
        raise ZipFormatError(
            "the file is named for another step", found=rest["step"], expected=step,
            remedy=MISNAMED,
        )  # fmt: skip
    return Record(step, rest["metrics"], rest["metadata"], rest.get(TREE_KEY))
