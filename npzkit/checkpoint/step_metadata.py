"""What a step's file holds beside its arrays: step, metrics, the user's metadata, structure.

Owns the metadata of a checkpoint, and the checks of what users pass. The checksums that
npzkit writes to each archive cover them, and the names and attributes of arrays. An archive
without arrays has none, so that the metadata of such a step have a CRC-32 of their own. Reads
and writes no file.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Mapping
from types import NoneType
from typing import Any, NamedTuple

from npzkit.archive.npzfile import NpzFile
from npzkit.datasets.index_format import newer_version
from npzkit.errors import NpzkitError, ZipFormatError, shown_value, some_of
from npzkit.members.metadata import LOST_KEY, TREE_KEY, as_read, format_json, format_metadata

_OWN_KEY = "npzkit.checkpoint"
"""The key of the format's version."""
_AGE = "age"
"""In that item: for how many steps frozen arrays were not written."""
_CRC = "crc32"
"""In that item, of a step without arrays: the CRC-32 of the metadata without it."""
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
        raise TypeError(
            "step must be an integer, such as store.latest or store.best(metric), not "
            f"{type(step).__name__}"
        )
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
    plain: dict[str, Any] = as_read({"metadata": {} if metadata is None else metadata})
    if not isinstance(metadata, (Mapping, NoneType)):
        raise TypeError(f"metadata must be a mapping, not {type(metadata).__name__}")
    return dict(plain["metadata"])


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


def format_record(record: Record, age: int = 0, *, is_sealed: bool = True) -> bytes:
    """Return the metadata of a step's archive as JSON.

    `age` is what `age_of` returns; `is_sealed` says whether the archive has arrays.

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
    own = metadata[_OWN_KEY] = {"version": _VERSION}
    if age:
        own[_AGE] = age
    text = format_metadata(metadata)
    if not is_sealed:
        own[_CRC] = zlib.crc32(text)
        text = format_metadata(metadata)
    return text


def _crc32(rest: dict[str, Any], own: dict[str, Any]) -> int:
    """Return the CRC-32 of metadata without that item, which is the last one."""
    others = {name: value for name, value in own.items() if name != _CRC}
    text = format_json({**rest, _OWN_KEY: others}, separators=(",", ":"))
    return zlib.crc32(text.encode("ascii"))


def age_of(metadata: Mapping[str, Any]) -> int:
    """Return how many steps before this one have the frozen arrays that it has, at most."""
    own = metadata.get(_OWN_KEY)
    age = own.get(_AGE) if isinstance(own, dict) else None
    return age if type(age) is int else 0


def record_of(npz: NpzFile, step: int) -> Record:
    """Return the record of an open step, whose names, attributes and metadata have checksums.

    Raises
    ------
    ZipFormatError
        The metadata are damaged, those of another step, or not those of a checkpoint. Or
        the checksums are missing.
    UnsupportedError
        A newer version of npzkit wrote them.
    """
    archive = npz._archive
    try:
        return _parsed(archive.metadata, step, is_sealed=archive.is_sealed)
    except NpzkitError as error:
        raise error.locate(path=archive.path) from None


def _parsed(metadata: Mapping[str, Any], step: int, *, is_sealed: bool) -> Record:
    rest = dict(metadata)
    own = rest.pop(_OWN_KEY, None)
    if not isinstance(own, dict):
        raise ZipFormatError(
            "the metadata of the checkpoint are damaged or missing", remedy=MISNAMED
        )
    if (lost := rest.get(LOST_KEY)) is not None:
        names = some_of(lost, shown_value) if isinstance(lost, list) else shown_value(lost)
        raise ZipFormatError(f"it was repaired with losses: {names}")
    if not is_sealed and own.get(_CRC) != _crc32(rest, own):
        # Another program has written the step, or a damaged footer is none.
        raise ZipFormatError("the checksums of the checkpoint are damaged or missing")
    if own.get("version") != _VERSION:
        raise newer_version("the checkpoint", own.get("version"), _VERSION)
    if rest["step"] != step:
        raise ZipFormatError(
            "the file is named for another step", found=rest["step"], expected=step,
            remedy=MISNAMED,
        )  # fmt: skip
    return Record(step, rest["metrics"], rest["metadata"], rest.get(TREE_KEY))
