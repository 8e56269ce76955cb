"""How an array that is filled piece by piece begins in its archive.

Owns what `NpzWriter.create` takes, and the zip's side of `npzkit.writing.filled_array`:
which member an array gets, where its bytes go and how it is sealed. Knows
nothing of the other members, nor of who may write at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.methods import DEFLATED
from npzkit.errors import LimitExceededError, UnsupportedError
from npzkit.files.parallel import Pipeline, crc32_at
from npzkit.files.sink import Sink
from npzkit.format.header import index_shape
from npzkit.writing.filled_array import AppendedArray, CreatedArray, FilledArray
from npzkit.writing.prepare import prepare_header
from npzkit.zip.deflate import MAX_BLOCK_SIZE
from npzkit.zip.writer import Coding, ZipWriter

__all__ = ["Hooks", "Plan", "begin", "plan_array"]

_HEADER_ROOM = 256
"""More than a local header has besides name and attributes: fields, zip64 sizes, padding."""


class Plan(NamedTuple):
    """An array to be created: checked, its headers made, nothing written.

    Attributes
    ----------
    key, name : str
        Its key, and its member's name.
    shape : tuple
        The first dimension may be None: that many rows as will have come.
    dtype : numpy.dtype
    attrs : mapping or None
    coding : Coding
    fortran_order : bool
    grows : bool
        Whether its bytes come one after the other, as those of an
        `AppendedArray`; else it is a `FilledArray`.
    head, extra : bytes
        The NPY header, of no rows where their number is not known, and the
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
        """The member's bytes; None where the number of rows is not known."""
        if self.shape[:1] == (None,):
            return None
        count: int = math.prod(self.shape)
        return len(self.head) + count * self.dtype.itemsize

    @property
    def room(self) -> int:
        """At most the bytes that a member of known size takes, its local header included."""
        assert self.size is not None  # noqa: S101 - the caller asked
        return self.size + len(self.name.encode()) + len(self.extra) + _HEADER_ROOM

    def check_sink(self, sink: Sink, path: str) -> None:
        """Raise UnsupportedError unless the array can be written to `sink`."""
        if not (sink.can_patch if self.size is None else self.grows or sink.can_read):
            raise UnsupportedError(
                "this array needs a file whose bytes can be read and changed behind the writer",
                path=path, key=self.key,
                remedy="Write the archive to a path.",
            )  # fmt: skip


class Hooks(NamedTuple):
    """What a created array asks of the writer it belongs to.

    Attributes
    ----------
    write : callable
        Calls what it is given, with its arguments, while nothing else is
        written; where that fails, the archive is given up.
    seal : callable
        The same for what seals the array, which comes first.
    discard : callable
        Gives the archive up, because of an error.
    """

    write: Callable[..., None]
    seal: Callable[[CreatedArray, Callable[[], None]], None]
    discard: Callable[[BaseException], None]


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
    """Check what `NpzWriter.create` was given, and make the array's headers.

    Raises
    ------
    ValueError, TypeError
        A bad shape or dtype, or a shape and an order that cannot grow.
    PickleRefusedError, UnsupportedError
        Of a dtype that is not of plain values.
    LimitExceededError
        Attributes, or a header, that are too long.
    """
    dtype, shape = np.dtype(dtype), _check_shape(shape)
    if dtype.subdtype is not None:
        # As in np.zeros, an item that is an array adds its dimensions.
        dtype, inner = dtype.subdtype
        shape += inner
    _check_extent(shape, dtype)
    grows = coding.method == DEFLATED or shape[:1] == (None,)
    if grows and (not shape or fortran_order):
        raise ValueError(
            "an array that grows by rows needs a dimension to grow along, the first, "
            "and is written in C order"
        )
    is_counted = shape[:1] == (None,)
    known = (0, *shape[1:]) if is_counted else shape
    head, extra = prepare_header(key, known, dtype, attrs, fortran_order=fortran_order)
    if is_counted and coding.method == DEFLATED and len(head) > MAX_BLOCK_SIZE:
        raise LimitExceededError(
            "the array's header is too long to be changed when its rows are counted",
            key=key, found=f"{len(head)} bytes", expected=f"at most {MAX_BLOCK_SIZE}",
            remedy="Give the number of rows, or compression='stored'.",
        )  # fmt: skip
    return Plan(key, name, shape, dtype, attrs, coding, fortran_order, grows, head, extra)


def _check_extent(shape: tuple[Any, ...], dtype: np.dtype[Any]) -> None:
    """Raise ValueError for a shape that no array of numpy's can have."""
    size = math.prod(n or 1 for n in shape) * max(dtype.itemsize, 1)
    if size > np.iinfo(np.intp).max:
        raise ValueError(f"an array of shape {shape} and dtype {dtype} is too big")


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


def begin(plan: Plan, writer: ZipWriter, threads: int, hooks: Hooks) -> CreatedArray:
    """Begin the array's member. One that grows has the file to itself until it is sealed."""
    if plan.grows:
        return _begin_appended(plan, writer, threads, hooks)
    return _begin_filled(plan, writer, threads, hooks)


def _begin_filled(plan: Plan, writer: ZipWriter, threads: int, hooks: Hooks) -> FilledArray:
    """Leave room for an array of known shape, and put its header there."""
    sink, size = writer.sink, plan.size
    assert size is not None  # noqa: S101 - rows that are not counted yet would grow
    member = writer.reserve_member(plan.name, size, plan.extra)
    sink.patch(member.offset, plan.head)

    def seal() -> None:
        member.seal(crc32_at(sink, member.offset, member.size, threads))

    filled = FilledArray(
        plan.key, plan.shape, plan.dtype, plan.fortran_order, sink,
        member.offset + len(plan.head), lambda: hooks.seal(filled, seal), hooks.discard,
    )  # fmt: skip
    return filled


def _begin_appended(plan: Plan, writer: ZipWriter, threads: int, hooks: Hooks) -> AppendedArray:
    """Put down the header of an array that grows; rows are written behind it."""
    pipeline = Pipeline(threads)
    is_counted = plan.size is None
    member = writer.begin_member(
        plan.name, plan.size, pipeline, coding=plan.coding, extra=plan.extra
    )

    def write(pieces: Iterator[memoryview]) -> None:
        with pipeline:
            for piece in pieces:
                member.write(piece)

    def seal(shape: tuple[int, ...]) -> None:
        with pipeline:
            head = prepare_header(plan.key, shape, plan.dtype, plan.attrs)[0]
            member.finish(head if is_counted else None)

    if is_counted:
        member.write_start(plan.head)
    else:
        write(iter([memoryview(plan.head)]))
    appended = AppendedArray(
        plan.key, plan.shape, plan.dtype,
        lambda pieces: hooks.write(write, pieces),
        lambda shape: hooks.seal(appended, lambda: seal(shape)),
        hooks.discard,
    )  # fmt: skip
    return appended
