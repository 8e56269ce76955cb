"""The NPY header: parsing and formatting the bytes before the data of an array.

Owns the record `NpyHeader` and the three versions of its encoding. Does no
I/O and knows nothing about zip.

Layout (the NPY format description in `numpy.lib.format`)::

    offset  size  content
    0       6     magic, 93 4E 55 4D 50 59 (the byte 0x93, then "NUMPY")
    6       2     major and minor version: 1.0, 2.0 or 3.0
    8       2     length of the rest of the header, little-endian (2.0, 3.0: 4 bytes)
    10 (12)       a dict literal, latin-1 (3.0: UTF-8), padded with spaces and
                  ended by a newline so that the data starts at a multiple of 64
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import struct
from typing import Any, NamedTuple

import numpy as np

from npzkit.errors import (
    COPIED_AS_TEXT,
    DAMAGED,
    GET_AGAIN,
    SAVE_PARTIAL,
    Advice,
    LimitExceededError,
    NpyFormatError,
    UnsupportedError,
    two_sizes,
    warn,
)
from npzkit.format.descr import descr_to_dtype
from npzkit.format.literal import MAX_DIGITS, parse_literal
from npzkit.limits import DEFAULT_HEADER_SIZE, MAX_DIMENSIONS

MAGIC_PREFIX = b"\x93NUMPY"
MAGIC_LEN = len(MAGIC_PREFIX) + 2
ARRAY_ALIGN = 64
_CUT_REMEDY = (
    f"The file is truncated. {GET_AGAIN}, or save its complete rows: " + SAVE_PARTIAL + "."
)
_CUT_WHOLE_REMEDY = (
    f"The file is truncated. {GET_AGAIN}. Of a scalar or an array in Fortran "
    "order, repair keeps nothing."
)
CUT_HEADER_REMEDY = f"The file is truncated in its header. {GET_AGAIN}."
_CHOOSE_VERSION = "Omit the version to let npzkit choose it."
EXPECTED_KEYS = {"descr", "fortran_order", "shape"}
GROWTH_AXIS_MAX_DIGITS = 21
"""Space to rewrite the growing axis in place: the digits of 8 * 2**64."""

PREFIX_SIZE = MAGIC_LEN + 4
"""Bytes that `header_size` needs in every version."""

MAX_EMPTY_ITEMS = 2**24
"""Most items without bytes (``S0``). The size of the file does not limit their number."""

_ENCODINGS = {(1, 0): ("<H", "latin1"), (2, 0): ("<I", "latin1"), (3, 0): ("<I", "utf8")}
_OLDEST_READERS = {(1, 0): "", (2, 0): "1.9", (3, 0): "1.17"}
"""The NumPy that reads a version; for 1.0, it is any. Longer headers need 2.0, other names 3.0."""
_CACHE_SIZE = 4096
_CACHED_SIZE = 512
"""Bytes of the longest header that is cached. Hostile headers are longer."""


class NpyHeader(NamedTuple):
    """The contents of the header of one array.

    Attributes
    ----------
    version : (int, int)
    shape : tuple of int
    fortran_order : bool
        Whether the data is in Fortran order.
    dtype : numpy.dtype
    data_offset : int
        Bytes from the magic string to the data: the size of the header.
    nbytes : int
        Exact size of the data in bytes. 0 for an object array, whose data is a
        pickle of unknown size.
    python2 : bool
        Whether Python 2 wrote the header, with integers such as ``3L``.
    """

    version: tuple[int, int]
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]
    data_offset: int
    nbytes: int
    python2: bool

    @property
    def row_size(self) -> int:
        """The bytes of a row; 0 if there are none: of a scalar, in Fortran order, a pickle."""
        if not self.shape or self.fortran_order or self.dtype.hasobject:
            return 0
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def cut_remedy(self) -> str:
        """What to do about a file that ends in the array."""
        return _CUT_REMEDY if self.row_size else _CUT_WHOLE_REMEDY

    def fresh(self) -> NpyHeader:
        """Return the header with a dtype of its own, if it is structured.

        The field names of a dtype can be assigned to, which renames them in
        every array that shares the dtype.
        """
        if self.dtype.names is None:
            return self
        return self._replace(dtype=descr_to_dtype(self.dtype.descr))


class _UnknownVersionError(UnsupportedError, NpyFormatError):
    """A version of NPY that may come: the file may be sound. NumPy raises ValueError."""


def check_version(version: object, *, remedy: str | None = None) -> None:
    """Raise NpyFormatError unless `version` is 1.0, 2.0, 3.0 or None."""
    if version is not None and version not in _ENCODINGS:
        is_newer = isinstance(version, tuple) and version > (3, 0)
        raise (_UnknownVersionError if is_newer else NpyFormatError)(
            f"we only support format version (1,0), (2,0), and (3,0), not {version}",
            found=version,
            remedy=remedy or f"{GET_AGAIN}; or it needs a newer npzkit.",
        )


def header_size(prefix: bytes, limit: int | None = DEFAULT_HEADER_SIZE) -> int:
    """Return the size of a header from its first `PREFIX_SIZE` bytes.

    Parameters
    ----------
    prefix : bytes
        The start of the member; at least 10 bytes (12 from version 2.0 on).
    limit : int or None
        Largest length of the header's literal.

    Returns
    -------
    int
        Bytes before the data.

    Raises
    ------
    NpyFormatError
        The magic string or the version is wrong, or `prefix` is too short.
    LimitExceededError
        The claimed length exceeds the limit. Nothing was read or allocated.
    """
    if prefix[:6] != MAGIC_PREFIX:
        raise NpyFormatError(
            Advice("the magic string is not correct", "it is named .npy, but is no .npy file"),
            found=prefix[:6],
            expected=MAGIC_PREFIX,
            remedy=f"{GET_AGAIN}; if the member is no array, npz.stream(key) reads it.",
        )
    if len(prefix) < MAGIC_LEN:
        raise end_of_data("magic string", MAGIC_LEN, len(prefix))
    version = prefix[6], prefix[7]
    check_version(version)
    length_format = _ENCODINGS[version][0]
    start = MAGIC_LEN + struct.calcsize(length_format)
    if len(prefix) < start:
        raise end_of_data("array header length", start - MAGIC_LEN, len(prefix) - MAGIC_LEN)
    (length,) = struct.unpack_from(length_format, prefix, MAGIC_LEN)
    if limit is not None and length > limit:
        found, most = two_sizes(length, limit)
        raise LimitExceededError(
            f"Header info length ({length}) is large and may not be safe to load",
            found=found,
            expected=f"at most {most}",
            remedy=Advice(
                "If you trust the file, increase max_header_size (Limits.header_size), or pass "
                "allow_pickle=True.",
                "If you trust the file, read it in Python, with a larger limit (max_header_size of "
                "np.load).",
            ),
        )
    return start + int(length)


def npy_header_size(prefix: bytes) -> int:
    """Return the size of a member's NPY header, given its first bytes; 0 if it has none."""
    try:
        return header_size(prefix, None)
    except NpyFormatError:
        return 0


def end_of_data(
    what: str, expected: int, found: int, *, remedy: str = CUT_HEADER_REMEDY
) -> NpyFormatError:
    """Return the error for a file or member that ends inside `what`."""
    return NpyFormatError(
        # NumPy's message, which its users search for.
        Advice(
            f"EOF: reading {what}, expected {expected} bytes got {found}",
            f"the {what} is too short",
        ),
        found=f"{found} bytes",
        expected=f"{expected} bytes",
        remedy=remedy,
    )


def parse_header(data: bytes) -> NpyHeader:
    """Parse a complete header, including the magic string. Short headers are cached.

    Checkpoints repeat a few headers, and a repeated one costs a dictionary
    lookup. The dtype may be shared, see `NpyHeader.fresh`.

    Raises
    ------
    NpyFormatError
        The header is not a dict literal with the three keys, or its values do
        not describe an array.
    LimitExceededError
        The array has a huge number of items without bytes.

    Examples
    --------
    >>> header = parse_header(format_header({"descr": "<f4", "fortran_order": False,
    ...                                      "shape": (3, 4)}))
    >>> header.shape, header.dtype, header.data_offset, header.nbytes
    ((3, 4), dtype('float32'), 128, 48)
    """
    return _parse_cached(data) if len(data) <= _CACHED_SIZE else _parse(data)


def _parse(data: bytes) -> NpyHeader:
    try:
        return _parse_at_length(data)
    except NpyFormatError as error:
        error.remedy = error.remedy or DAMAGED
        raise


def _parse_at_length(data: bytes) -> NpyHeader:
    if header_size(data[:PREFIX_SIZE], None) != len(data):
        raise NpyFormatError("the header does not have the length that it claims", found=len(data))
    if data.endswith(b"\r"):
        # Its line feed would be the first byte of the data.
        what = "the header ends with a carriage return, as in a file that was copied as text"
        raise NpyFormatError(what, remedy=COPIED_AS_TEXT)
    version = data[6], data[7]
    length_format, encoding = _ENCODINGS[version]
    start = MAGIC_LEN + struct.calcsize(length_format)
    try:
        text = data[start:].decode(encoding)
    except UnicodeDecodeError as error:
        raise NpyFormatError(
            f"the header is not valid {encoding} at its byte {start + error.start}",
            found=data[start:][:40],
        ) from error
    fields, python2 = _usual_fields(text), False
    if fields is None:
        fields, python2 = parse_literal(text, python2=version <= (2, 0))
    shape, fortran_order = _check_fields(fields)
    dtype = descr_to_dtype(fields["descr"])
    if dtype.subdtype is not None:
        raise NpyFormatError("a subarray can only be the dtype of a field", found=fields["descr"])
    nbytes = check_size(shape, dtype)
    return NpyHeader(version, shape, fortran_order, dtype, len(data), nbytes, python2)


def _usual_fields(text: str) -> dict[str, Any] | None:
    """Return the fields of a simple dtype's header as NumPy writes it; None for any other text.

    The parser gives the same. Its pattern takes longer to compile than all else that a
    program's first array needs.
    """
    parts = text.split("'")
    if len(parts) != 9:
        return None
    descr, is_fortran, lengths = parts[3], parts[6] == ": True, ", parts[8].strip(" :(,)}\n")
    numbers = lengths.split(", ") if lengths else []
    if not all(number.isdecimal() and len(number) <= MAX_DIGITS for number in numbers):
        return None
    fields = {"descr": descr, "fortran_order": is_fortran, "shape": tuple(map(int, numbers))}
    is_usual = text.rstrip(" \n") == _literal(fields) and "\\" not in text
    return fields if is_usual else None


def _literal(fields: dict[str, Any]) -> str:
    """Return fields as NumPy writes them, in sorted order."""
    return "{" + "".join(f"'{name}': {fields[name]!r}, " for name in sorted(fields)) + "}"


_parse_cached = functools.lru_cache(maxsize=_CACHE_SIZE)(_parse)


def _check_fields(fields: object) -> tuple[tuple[int, ...], bool]:
    """Check the dict's keys and return its shape and order."""
    if not isinstance(fields, dict):
        raise NpyFormatError("Header is not a dictionary", found=fields)
    if fields.keys() != EXPECTED_KEYS:
        raise NpyFormatError(
            "Header does not contain the correct keys",
            found=sorted(fields),
            expected=sorted(EXPECTED_KEYS),
        )
    shape, fortran_order = fields["shape"], fields["fortran_order"]
    if not isinstance(shape, tuple) or any(type(n) is not int or not 0 <= n < 2**63 for n in shape):
        raise NpyFormatError(
            "shape is not valid", found=shape, expected="a tuple of integers from 0 to 2**63 - 1"
        )
    if len(shape) > MAX_DIMENSIONS:
        raise NpyFormatError(
            "shape has too many dimensions", found=len(shape), expected=f"at most {MAX_DIMENSIONS}"
        )
    if not isinstance(fortran_order, bool):
        raise NpyFormatError(
            "fortran_order is not a valid bool", found=fortran_order, expected="True or False"
        )
    return shape, fortran_order


def check_size(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the exact number of data bytes, or raise an error for an impossible shape."""
    count = math.prod(shape)
    if dtype.hasobject:
        return 0
    if dtype.itemsize == 0 and count > MAX_EMPTY_ITEMS:
        raise LimitExceededError(
            f"the array claims {count} items without bytes", found=shape,
            expected=f"at most {MAX_EMPTY_ITEMS} items", remedy=DAMAGED,
        )  # fmt: skip
    # NumPy counts empty dimensions as one for this limit.
    if math.prod(n or 1 for n in shape) * max(dtype.itemsize, 1) >= 2**63:
        raise NpyFormatError("shape is too large for any array", found=shape)
    return count * dtype.itemsize


def warn_python2(header: NpyHeader) -> None:
    """Warn if a header has integers of Python 2."""
    if header.python2:
        warn(
            "Reading this header needed an extra step, because Python 2 wrote it with integers "
            "such as '3L'. Save the array again to avoid this warning.",
            UserWarning,
        )


def format_header(fields: dict[str, Any], version: tuple[int, int] | None = None) -> bytes:
    """Return the fields as header bytes, identical to NumPy's.

    Parameters
    ----------
    fields : dict
        Usually ``descr``, ``fortran_order`` and ``shape``. They are written in
        sorted order, each value by its ``repr``.
    version : (int, int), optional
        None chooses the oldest version that can store the header, and warns if
        that is not 1.0. A header that readers refuse without being asked warns too.

    Raises
    ------
    NpyFormatError
        The given version does not exist, or cannot store the header.
    """
    check_version(version, remedy=_CHOOSE_VERSION)
    shape = fields["shape"]
    text = _literal(fields)
    if shape:
        growing = shape[-1 if fields["fortran_order"] else 0]
        text += " " * (GROWTH_AXIS_MAX_DIGITS - len(repr(growing)))
    if version is not None:
        return _checked(_wrap(text, version))
    for chosen, oldest in _OLDEST_READERS.items():
        with contextlib.suppress(NpyFormatError):
            header = _wrap(text, chosen)
            if oldest:
                warn(
                    f"Stored array in format {chosen[0]}.0. It can only be read by "
                    f"NumPy >= {oldest}",
                    UserWarning,
                )
            return _checked(header)
    return _wrap(text, chosen)


def _checked(header: bytes) -> bytes:
    """Return a header, and warn if readers refuse one that is so long."""
    size = len(header)
    if size > DEFAULT_HEADER_SIZE:
        warn(
            f"the header of this array has {size:,} bytes, more than readers allow. "
            + Advice(
                f"Pass max_header_size={size} to np.load, or "
                f"limits=npzkit.Limits(header_size={size}) to npzkit.open.",
                "Read it in Python, with a larger limit (max_header_size of np.load).",
            ),
            UserWarning,
        )
    return header


def _wrap(text: str, version: tuple[int, int]) -> bytes:
    """Return the header: magic string, version, length, literal, padding, newline."""
    length_format, encoding = _ENCODINGS[version]
    try:
        literal = text.encode(encoding)
        # The value of the length field: literal, 1 to 64 spaces, newline.
        size = len(literal) + 1
        start = MAGIC_LEN + struct.calcsize(length_format)
        padded = size + ARRAY_ALIGN - (start + size) % ARRAY_ALIGN
        prefix = MAGIC_PREFIX + bytes(version) + struct.pack(length_format, padded)
    except (UnicodeEncodeError, struct.error) as error:
        raise NpyFormatError(
            f"Header length {len(text)} too big for version={version}"
            if isinstance(error, struct.error)
            else f"a field name cannot be written in version={version}",
            remedy=_CHOOSE_VERSION,
        ) from error
    return prefix + literal + b" " * (padded - len(literal) - 1) + b"\n"


def index_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape as Python integers, because the repr of NumPy's is a call."""
    if isinstance(shape, (tuple, list)):
        return tuple(operator.index(n) for n in shape)
    return (operator.index(shape),)
