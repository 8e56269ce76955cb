"""An array to be created: its arguments checked and its headers made, nothing written.

Owns what `NpzWriter.create` accepts. Writes nothing; the two kinds of arrays
are `npzkit.writing.filled_array` and `npzkit.writing.growing_array`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.coding import STORED, Coding
from npzkit.errors import LimitExceededError, UnsupportedError
from npzkit.files.sink import Sink
from npzkit.format.array import described_size
from npzkit.format.header import index_shape
from npzkit.writing.array_bytes import prepare_header
from npzkit.zip.member_writer import MAX_BLOCK_SIZE

_HEADER_ROOM = 256
"""At least the bytes of a local header besides name and attributes: fields, zip64, padding."""


class Plan(NamedTuple):
    """An array to be created: checked, its headers made, nothing written.

    Attributes
    ----------
    key, name : str
        Its key, and its member's name.
    shape : tuple
        The first dimension may be None: the number of rows is not known.
    dtype : numpy.dtype
    attrs : mapping or None
    coding : Coding
    fortran_order : bool
    grows : bool
        Whether its bytes come one after the other, as in an `GrowingArray`;
        if not, it is a `FilledArray`. See `for_sink`.
    head, extra : bytes
        The NPY header, with no rows if their number is not known, and the
        member's extra field.
    """

    key: str
    name: str
    shape: tuple[Any, ...]
    dtype: np.dtype[Any]
    attrs: Mapping[str, Any] | None
    coding: Coding
    fortran_order: bool
    grows: bool
    head: bytes
    extra: bytes

    @property
    def size(self) -> int | None:
        """The member's bytes; None if the number of rows is not known."""
        if self.shape[:1] == (None,):
            return None
        count: int = math.prod(self.shape)
        return len(self.head) + count * self.dtype.itemsize

    @property
    def room(self) -> int:
        """An upper bound of the bytes of a member of known size, local header included."""
        assert self.size is not None  # noqa: S101 - the caller asked
        return self.size + len(self.name.encode()) + len(self.extra) + _HEADER_ROOM

    def for_sink(self, sink: Sink, path: str) -> Plan:
        """Return the plan for a sink. Rows are written in order if the sink cannot be read.

        Raises
        ------
        UnsupportedError
            The array cannot be written to this sink.
        """
        if self.size is not None and (self.grows or sink.can_read):
            return self
        has_rows = bool(self.shape) and not (self.fortran_order and len(self.shape) > 1)
        if sink.can_patch if self.size is None else has_rows:
            return self._replace(grows=True)
        raise UnsupportedError(
            "the number of rows must be known, because the file object cannot seek"
            if self.size is None
            else "an array that is written in order must have rows, and these in C order",
            path=path, key=self.key, remedy="Write the archive to a path.",
        )  # fmt: skip


def plan_array(
    key: str,
    name: str,
    shape: Any,
    dtype: Any,
    attrs: Mapping[str, Any] | None,
    coding: Coding,
    *,
    fortran_order: bool,
) -> Plan:
    """Check the arguments of `NpzWriter.create`, and make the array's headers.

    Raises
    ------
    ValueError, TypeError
        A bad shape or dtype, or a shape and an order that cannot grow.
    PickleRefusedError, UnsupportedError
        The dtype does not hold plain values.
    LimitExceededError
        The attributes or the header are too long.
    """
    dtype, shape = np.dtype(dtype), _check_shape(shape)
    if dtype.subdtype is not None:
        # As in np.zeros, a subarray dtype adds its dimensions.
        dtype, inner = dtype.subdtype
        shape += inner
    if described_size([n or 1 for n in shape], dtype) > np.iinfo(np.int64).max:
        raise ValueError(f"an array of shape {shape} and dtype {dtype} is too big")
    grows = coding.method != STORED or shape[:1] == (None,)
    if grows and (not shape or fortran_order):
        raise ValueError(
            "an array that grows by rows needs a first dimension to grow along, "
            "and is written in C order"
        )
    is_counted = shape[:1] == (None,)
    known = (0, *shape[1:]) if is_counted else shape
    head, extra = prepare_header(key, known, dtype, attrs, fortran_order=fortran_order)
    if is_counted and coding.method != STORED and len(head) > MAX_BLOCK_SIZE:
        raise LimitExceededError(
            "the array's header is too long to be completed later",
            key=key, found=f"{len(head)} bytes", expected=f"at most {MAX_BLOCK_SIZE} bytes",
            remedy="Give the number of rows, or compression='stored'.",
        )  # fmt: skip
    return Plan(key, name, shape, dtype, attrs, coding, fortran_order, grows, head, extra)


def _check_shape(shape: Any) -> tuple[Any, ...]:
    """Return a shape as a tuple; its first dimension may be None."""
    if shape is None or isinstance(shape, (int, np.integer)):
        shape = (shape,)
    if isinstance(shape, str) or not hasattr(shape, "__len__") or None in shape[1:]:
        raise TypeError(
            f"shape must be integers, of which only the first may be None, not {shape!r}"
        )
    first, rest = tuple(shape[:1]), index_shape(tuple(shape[1:]))
    checked = first if first == (None,) else index_shape(first)
    if any(n is not None and n < 0 for n in (*checked, *rest)):
        raise ValueError(f"dimensions must not be negative: {shape}")
    return (*checked, *rest)
