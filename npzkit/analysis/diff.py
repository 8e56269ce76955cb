"""Where two archives differ: keys, headers and values.

Owns the report, what is read for it and in which order, and which values are equal:
NaN is equal to NaN, and so are rows of equal bytes. Both archives are read, and what is
read is checked. Values are compared where CRC-32s differ, a piece of two arrays at a time.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npzkit.archive.lazyarray import LazyArray
from npzkit.archive.npzfile import NpzFile
from npzkit.codecs.checksum import crc32
from npzkit.datasets.opening import opened
from npzkit.display.blocks import PIECE_SIZE, blocks
from npzkit.display.piecewise import is_numeric
from npzkit.errors import (
    ClosedArchiveError,
    MemberNotFoundError,
    NpzkitError,
    format_count,
    printable,
    shown_key,
    shown_url,
    shown_value,
)
from npzkit.files.progress import Meter, Part
from npzkit.files.urls import find_locations
from npzkit.limits import Limits
from npzkit.members.array_info import ArrayInfo
from npzkit.members.keys import SUFFIX, check_several, suggestion
from npzkit.members.metadata import TREE_KEY, format_json
from npzkit.trees.containers import without_note
from npzkit.trees.notes import links, values_of
from npzkit.trees.values import value_of

if TYPE_CHECKING:
    from npzkit.typing import ArchiveLike, Progress

_IDENTITY = operator.attrgetter("crc32", "nbytes", "shape", "dtype", "fortran_order")
"""If it is the same, two members are the same bytes, as far as headers and a CRC-32 can tell."""


_UNKNOWN = -0.5
"""The distance of values that differ but have none. Every distance of two numbers is larger."""


class Difference(NamedTuple):
    """One thing in which two archives differ.

    ================ ===================================== =================================
    kind             what differs                          `a` and `b`
    ================ ===================================== =================================
    ``"removed"``    only the first archive has the key    None
    ``"added"``      only the second archive has the key   None
    ``"shape"``      the shapes                            the shapes
    ``"dtype"``      the dtypes, byte order aside          the dtypes
    ``"values"``     some values                           the two that are furthest apart
    ``"checksum"``   the CRC-32s; values were not compared the CRC-32s
    ``"objects"``    pickles, which are never read         None
    ``"bytes"``      members that are not both arrays      the dtype, or the size in bytes
    ``"attributes"`` the attributes                        the attributes
    ``"value"``      a value of nested data, no array      the values; ``np.ndarray``: an array
    ``"metadata"``   the archives' metadata                the metadata
    ================ ===================================== =================================

    Attributes
    ----------
    key : str or None
        None for the archives' metadata.
    kind : str
    a, b : object
        What each archive has. A value that NumPy cannot represent, text that is
        not valid Unicode, is None.
    value_count : int or None
        How many values differ.
    worst : tuple of int or None
        The index at which they differ most. Numbers that are finite in both archives
        come before others.
    max_difference : float or None
        How far apart they are there: infinite if one of them is not finite, or if no
        float is as large. None for values that are not numbers.
    field : str or None
        Of rows of a structured array, the field in which they differ most.
    nan_count, inf_count : int or None
        How many of the values that differ are NaN, or NaT, in one archive, and how many
        of the others are infinite in one or both.
    """

    key: str | None
    kind: str
    a: Any = None
    b: Any = None
    value_count: int | None = None
    worst: tuple[int, ...] | None = None
    max_difference: float | None = None
    field: str | None = None
    nan_count: int | None = None
    inf_count: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the difference as what JSON can express.

        Dtypes, dates, rows of tables, complex numbers and the like are text. Numbers
        that are not finite are None.
        """
        return {name: _plain(value) for name, value in self._asdict().items()}


class Problem(NamedTuple):
    """What keeps an array from being compared.

    Attributes
    ----------
    archive : {"a", "b"}
        The archive that is damaged.
    key : str
    what : str
        In one sentence without a full stop.
    where : int or None
        Bytes from the start of the file.
    """

    archive: str
    key: str
    what: str
    where: int | None


class DiffReport(NamedTuple):
    """What `diff` found. It is true if the archives are not known to be equal.

    Attributes
    ----------
    path_a, path_b : str or None
    rows : tuple of Difference
        In the order of the first archive; keys that only the second has come last.
    problems : tuple of Problem
        Damaged arrays, which were not compared.
    compared : int
        Keys that at least one of the archives has, of those that were asked for, also
        those of values of nested data.
    """

    path_a: str | None
    path_b: str | None
    rows: tuple[Difference, ...]
    problems: tuple[Problem, ...] = ()
    compared: int = 0

    @property
    def equal(self) -> bool:
        """Whether there is no difference, and no problem that hides one."""
        return not self.rows and not self.problems

    def __bool__(self) -> bool:
        """Whether there is a difference or a problem."""
        return not self.equal

    @property
    def changed(self) -> tuple[str, ...]:
        """The keys that both archives have, and that differ."""
        keys = (row.key for row in self.rows if row.kind not in ("added", "removed"))
        return tuple(dict.fromkeys(key for key in keys if key is not None))

    @property
    def added(self) -> tuple[str, ...]:
        """The keys that only the second archive has."""
        return self._keys_of("added")

    @property
    def removed(self) -> tuple[str, ...]:
        """The keys that only the first archive has."""
        return self._keys_of("removed")

    def _keys_of(self, kind: str) -> tuple[str, ...]:
        return tuple(row.key for row in self.rows if row.kind == kind and row.key is not None)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as what JSON can express."""
        return {
            "path_a": self.path_a,
            "path_b": self.path_b,
            "equal": self.equal,
            "compared": self.compared,
            "rows": [row.as_dict() for row in self.rows],
            "problems": [problem._asdict() for problem in self.problems],
        }

    def to_json(self, **options: Any) -> str:
        """Return the report as JSON; `options` are those of `json.dumps`."""
        import json

        return json.dumps(self.as_dict(), **options)

    def __str__(self) -> str:
        """Return a line for each difference and problem, with the counts last."""
        names = {"removed": printable(shown_url(self.path_a or "a")),
                 "added": printable(shown_url(self.path_b or "b"))}  # fmt: skip
        lines = [line for row in self.rows for line in _lines(row, names)]
        lines += [
            f"{shown_key(problem.key)}: cannot be compared, in {problem.archive}: "
            f"{printable(problem.what)}"
            for problem in self.problems
        ]
        counts = {"changed": self.changed, "added": self.added, "removed": self.removed}
        told = [f"{len(keys):,} {name}" for name, keys in counts.items() if keys]
        if self.problems:
            told.append(f"{len({problem.key for problem in self.problems}):,} damaged")
        text = ", ".join(told) or ("no difference" if self.equal else "other metadata")
        return "\n".join([*lines, f"{format_count(self.compared, 'key')}: {text}"])

    def _repr_html_(self) -> str:
        from npzkit.tables import lines_html

        names = f"DiffReport {self.path_a or 'a'}, {self.path_b or 'b'}"
        return lines_html(f"{names}\n{self}")


def diff(
    a: ArchiveLike,
    b: ArchiveLike,
    keys: Sequence[str] | None = None,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    metadata: bool = False,
    verify: bool = True,
    values: bool = True,
    limits: Limits | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> DiffReport:
    """Find out where two archives differ: in keys, shapes, dtypes and values.

    The arrays that both have are read, in pieces of a few megabytes, and their
    CRC-32s are checked: a damaged array is a problem, not a difference. Two NaNs
    in one place are equal. Byte order, memory order and compression make no
    difference.

    Parameters
    ----------
    a, b : path, URL, bytes-like, file object or NpzFile
    keys : sequence of str, optional
        What to compare, arrays and values of nested data; all by default.
    rtol, atol : float, default 0
        How far numbers may be apart, also those in fields of structured arrays:
        ``abs(a - b) <= atol + rtol * abs(b)``.
    metadata : bool, default False
        Compare the archives' metadata and the arrays' attributes too, and which tensors
        are tied. Values of nested data, such as a learning rate, and the arrays of tied
        tensors are always compared.
    verify : bool, default True
        False trusts recorded CRC-32s: arrays whose CRC-32s agree are not read.
        Damage in them is not noticed.
    values : bool, default True
        False compares CRC-32s in place of values, so that any other CRC-32 is a
        difference. With ``verify=False`` no array is read.
    limits : Limits, optional
        Upper bounds on sizes and counts; not with an `NpzFile`, which has its own.
    progress : callable, optional
        Called with the bytes done and the total, in this thread: every few
        megabytes, and at the end.
    storage_options : dict, optional
        For the stores of URLs; see `npzkit.open`.

    Returns
    -------
    DiffReport
        Its `changed`, `added` and `removed` are tuples of keys.

    Raises
    ------
    MemberNotFoundError
        Neither archive has one of `keys`.
    OSError, NpzkitError
        As `npzkit.open`.
    TypeError
        `keys` is a string.
    ValueError
        `rtol` or `atol` is negative or NaN.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> old, new = io.BytesIO(), io.BytesIO()
    >>> npzkit.save(old, {"w": np.zeros(3), "bias": np.ones(2)})
    >>> npzkit.save(new, {"w": np.array([0.0, 0.5, 0.1]), "step": np.array(7)})
    >>> report = npzkit.diff(old, new)
    >>> report.changed, report.added, report.removed
    (('w',), ('step',), ('bias',))
    >>> report.rows[0].value_count, report.rows[0].worst, report.rows[0].max_difference
    (2, (1,), 0.5)
    >>> print(report)
    w: 2 values differ, most by 0.5 at (1,): 0.0 and 0.5
    bias: removed (only in a)
    step: added (only in b)
    3 keys: 1 changed, 1 added, 1 removed
    >>> npzkit.diff(old, new, ["w"], atol=0.5).equal
    True
    """
    check_several(keys)
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not value >= 0:
            raise ValueError(f"{name} must be 0 or more, not {value}")
    first, second = find_locations([a, b], storage_options)
    with opened(first, limits=limits) as one, opened(second, limits=limits) as two:
        wanted = _wanted(one, two, keys)
        comparison = _Comparison(one, two, wanted, rtol, atol, metadata, verify, values)
        rows = tuple(comparison.rows(progress))
        paths = one._archive.path, two._archive.path
        return DiffReport(*paths, rows, tuple(comparison.problems), len(wanted))


def _are_known_equal(a: ArrayInfo, b: ArrayInfo) -> bool:
    """Whether two members have the same bytes, by their CRC-32s; a .npy file has none."""
    return a.crc32 is not None and _IDENTITY(a) == _IDENTITY(b)


class _Gaps(NamedTuple):
    """How the values of two arrays differ; each is an array of their shape.

    Attributes
    ----------
    differs : numpy.ndarray
        Which values differ by more than they may.
    distance : numpy.ndarray
        How far these are apart: of numbers that are finite in both. `_UNKNOWN` stands for others
        that differ, and a lower number for values that do not. Of rows it is that of the field
        that differs most.
    nan, inf : numpy.ndarray
        Which of them are NaN in one array, and which of the others are infinite.
    """

    differs: Any
    distance: Any
    nan: Any
    inf: Any

    def reduce(self, axes: Any) -> _Gaps:
        """Return what is said of all values along axes together."""
        differs, distance, nan, inf = self
        return _Gaps(
            differs.any(axes), distance.max(axes, initial=-1.0), nan.any(axes), inf.any(axes)
        )


def _gaps(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], rtol: float, atol: float) -> _Gaps:
    """Return how values differ; those of rows by their fields."""
    if a.dtype.names:
        fields = [_field_gaps(a, b, name, rtol, atol) for name in a.dtype.names]
        return _Gaps(*map(np.stack, zip(*fields, strict=True))).reduce(0)
    if not _is_distance(a.dtype, b.dtype):
        differs = _differs_exactly(a, b)
        none = np.zeros_like(differs)
        nan = differs & (np.isnat(a) | np.isnat(b)) if a.dtype.kind in "mM" else none
        return _Gaps(differs, np.where(differs, _UNKNOWN, -1.0), nan, none)
    x, y = _computable(a), _computable(b)
    with np.errstate(all="ignore"):
        distance = np.abs(x - y)
        allowed = atol + rtol * np.abs(y) if atol or rtol else 0.0
        # Values that differ by less than floating point can show still differ.
        differs = (a != b) & ((distance > allowed) | ~np.isfinite(distance) | (allowed == 0))
        distance = distance.astype(np.float64)
    no_x, no_y = np.isnan(x), np.isnan(y)
    differs &= ~(no_x & no_y)
    nan = differs & (no_x | no_y)
    inf = differs & ~nan & (np.isinf(x) | np.isinf(y))
    distance = np.where(differs, np.where(nan | inf, _UNKNOWN, distance), -1.0)
    return _Gaps(differs, distance, nan, inf)


def _field_gaps(a: Any, b: Any, name: str, rtol: float, atol: float) -> _Gaps:
    """Return the same of a field of rows. Its values may be arrays, of which the worst counts."""
    gaps = _gaps(np.asarray(a[name]), np.asarray(b[name]), rtol, atol)
    return gaps.reduce(tuple(range(np.ndim(a), np.ndim(gaps.differs))))


def _is_distance(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """Whether values of these dtypes have a distance: they are numbers."""
    return a.kind not in "mM" and is_numeric(a) and is_numeric(b)


def _are_comparable(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """Whether values of different dtypes can be equal."""
    if a.kind in "mM" or b.kind in "mM":
        # No unit counts both months and days.
        with contextlib.suppress(TypeError, OverflowError):
            return a.kind == b.kind == np.promote_types(a, b).kind
        return False
    return (is_numeric(a) and is_numeric(b)) or (a.kind == b.kind and a.kind in "SU")


def _computable(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return numbers in a dtype that their differences fit."""
    if values.dtype.kind in "cf":
        least = np.complex128 if values.dtype.kind == "c" else np.float64
        return values.astype(np.result_type(values.dtype, least))
    # Integers of 64 bits keep more of their digits so, where there is such a dtype.
    return values.astype(np.longdouble if values.dtype.kind in "iu" else np.float64)


def _differs_exactly(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which values differ; equal bytes are equal, whatever is in them: NaN, NaT."""
    if a.dtype.kind != "V":
        differs = np.asarray(a != b)
        if a.dtype.kind in "mM":
            differs &= ~(np.isnat(a) & np.isnat(b))
        return differs
    size = a.dtype.itemsize
    if not size:
        return np.zeros(a.shape, np.bool_)
    raw = [np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, size) for x in (a, b)]
    return np.asarray((raw[0] != raw[1]).any(axis=-1))


class _UnreadableError(Exception):
    """An array turned out to be damaged while its values were read."""


@dataclass
class _Comparison:
    """Two archives, and how they are to be compared.

    Attributes
    ----------
    keys : list of str
        What is compared: the first archive's keys before those of the second alone.
    problems : list of Problem
    tied : tuple of dict
        Of each archive, the keys of tied tensors, and the one that has the array.
    """

    a: NpzFile
    b: NpzFile
    keys: list[str]
    rtol: float
    atol: float
    metadata: bool
    verify: bool
    values: bool
    problems: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tied = _tied(self.a), _tied(self.b)

    def rows(self, progress: Progress | None) -> list[Difference]:
        """Return what differs, in the first archive's order."""
        rows: dict[str | None, list[Difference]] = {None: [], **{key: [] for key in self.keys}}
        ours, theirs = dict(self.a.metadata), dict(self.b.metadata)
        values = self._values()
        rows[None] += _compared_values(*values)
        if self.metadata and (
            differ(without_note(ours)[0], without_note(theirs)[0])
            or (not rows[None] and differ(ours, theirs))
        ):
            rows[None].append(Difference(None, "metadata", ours, theirs))
        pairs: dict[str, tuple[ArrayInfo, ArrayInfo]] = {}
        read: tuple[dict[str, int], dict[str, int]] = {}, {}
        for key in self.keys:
            if key in values[0] or key in values[1]:
                continue
            at_a, at_b = (tied.get(key, key) for tied in self.tied)
            if key != at_a == at_b in rows:
                # It is compared by that key.
                continue
            if at_a not in self.a or at_b not in self.b:
                rows[key].append(Difference(key, "added" if at_b in self.b else "removed"))
                continue
            a, b = _info(self.a, at_a), _info(self.b, at_b)
            if a is not None and b is not None:
                pairs[key] = a, b
            # What `verify` says of damaged headers is wanted too.
            if self.verify or key not in pairs or self._is_compared(*pairs[key]):
                read[0][at_a], read[1][at_b] = (info.nbytes if info else 0 for info in (a, b))
        sizes = [sum(keys.values()) for keys in read]
        compared_size = sum(a.nbytes for a, b in pairs.values() if self._is_compared(a, b))
        meter = Meter(progress, sum(sizes) + compared_size)
        for side, keys, size in zip("ab", read, sizes, strict=True):
            self._check(side, list(keys), meter.part(size))
        damaged = {(problem.archive, problem.key) for problem in self.problems}
        for key, (a, b) in pairs.items():
            if damaged.isdisjoint((("a", a.key), ("b", b.key))):
                rows[key] += [row._replace(key=key) for row in self._compared(a, b, meter)]
        meter.finish()
        return [row for found in rows.values() for row in found]

    def _values(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the notes of values of nested data by key; where one is an array, `ndarray`."""
        wanted = set(self.keys)
        ours, theirs = (
            {key: note for key, note in _leaves(npz).items() if key in wanted and key not in tied}
            for npz, tied in zip((self.a, self.b), self.tied, strict=True)
        )
        sides = zip((self.a, self.b), self.tied, (ours, theirs), (theirs, ours), strict=True)
        for npz, tied, own, other in sides:
            own |= {key: np.ndarray for key in other if key in npz or key in tied}
        return ours, theirs

    def _is_compared(self, a: ArrayInfo, b: ArrayInfo) -> bool:
        """Whether the values of two members are compared."""
        return self.values and not _are_known_equal(a, b)

    def _compared(self, a: ArrayInfo, b: ArrayInfo, meter: Meter) -> Iterator[Difference]:
        """Yield in what two sound members differ."""
        if self.metadata and differ(dict(a.attrs), dict(b.attrs)):
            yield Difference(a.key, "attributes", dict(a.attrs), dict(b.attrs))
        if _are_known_equal(a, b):
            return
        try:
            yield from self._compare(a, b, meter)
        except _UnreadableError as error:
            self.problems.append(error.args[0])

    def _check(self, side: str, keys: list[str], share: Part) -> None:
        """Compare CRC-32s with what they cover, and note what is damaged."""
        report = (self.a if side == "a" else self.b).verify(keys, progress=share.reach)
        share.end()
        # The first fault of a member is enough.
        errors = {row.key: row for row in reversed(report.rows) if row.severity == "error"}
        self.problems += [
            Problem(side, key, errors[key].what, errors[key].where) for key in keys if key in errors
        ]

    def _compare(self, a: ArrayInfo, b: ArrayInfo, meter: Meter) -> Iterator[Difference]:
        """Compare two members of one key, as far as their headers allow."""
        if a.dtype is None or b.dtype is None:
            ours, theirs = (info.nbytes if info.dtype is None else info.dtype for info in (a, b))
            yield Difference(a.key, "bytes", ours, theirs)
            return
        if a.shape != b.shape:
            yield Difference(a.key, "shape", a.shape, b.shape)
        same_dtype = a.dtype.newbyteorder("=") == b.dtype.newbyteorder("=")
        if not same_dtype:
            yield Difference(a.key, "dtype", a.dtype, b.dtype)
        if a.shape != b.shape or not (same_dtype or _are_comparable(a.dtype, b.dtype)):
            return
        if not self.values:
            yield Difference(a.key, "checksum", a.crc32, b.crc32)
        elif a.dtype.hasobject:
            if a.nbytes != b.nbytes or _crc_of(self.a, a) != _crc_of(self.b, b):
                yield Difference(a.key, "objects")
        else:
            yield from self._compare_values(a, b, meter)

    def _compare_values(self, a: ArrayInfo, b: ArrayInfo, meter: Meter) -> Iterator[Difference]:
        """Compare values piece by piece, and find the two that are furthest apart."""
        lazy = self.a.lazy(a.key), self.b.lazy(b.key)
        worst, counts = -1.0, np.zeros(3, np.int64)
        found: tuple[Any, Any, tuple[int, ...]] = (None, None, ())
        for index, left, right in _pairs(a.key, lazy, a.fortran_order == b.fortran_order):
            differs, distance, *other = _gaps(left, right, self.rtol, self.atol)
            meter.add(left.nbytes)
            if not differs.any():
                continue
            counts += [np.count_nonzero(which) for which in (differs, *other)]
            furthest = int(distance.argmax())
            if (far := float(distance.flat[furthest])) > worst:
                worst = far
                within = np.unravel_index(furthest, left.shape)
                place = tuple(axis.start + int(n) for axis, n in zip(index, within, strict=True))
                found = _value(left, within), _value(right, within), place
        count, *others = counts.tolist()
        if count:
            name, dtypes = None, [one.dtype for one in lazy]
            if dtypes[0].names:
                distances = {
                    name: _field_gaps(*found[:2], name, self.rtol, self.atol).distance
                    for name in dtypes[0].names
                }
                name = max(distances, key=lambda name: float(distances[name]))
                dtypes = [dtype[name].base for dtype in dtypes]
            far = math.inf if worst == _UNKNOWN else worst
            yield Difference(
                a.key, "values", *found[:2], count, found[2],
                far if _is_distance(*dtypes) else None, name, *others,
            )  # fmt: skip


def _crc_of(npz: NpzFile, info: Any) -> Any:
    """Return the CRC-32 of a member. A .npy file has none: it is read."""
    if info.crc32 is not None:
        return info.crc32
    crc = 0
    with npz.stream(info.key) as stream:
        while piece := stream.read(PIECE_SIZE):
            crc = crc32(piece, crc)
    return crc


def all_keys(a: NpzFile, b: NpzFile) -> list[str]:
    """Return the keys of arrays and of values of nested data of two archives, each once."""
    return list(dict.fromkeys([*a, *_leaves(a), *b, *_leaves(b)]))


def _wanted(a: NpzFile, b: NpzFile, keys: Sequence[str] | None) -> list[str]:
    """Return the keys to compare, as they are listed."""
    listed = all_keys(a, b)
    if keys is None:
        return listed
    known = set(listed)
    wanted = {key if key in known else key.removesuffix(SUFFIX) for key in keys}
    for key in wanted - known:
        raise MemberNotFoundError(
            f"neither archive has an array named {shown_value(key)}", key=key,
            remedy=suggestion(key, listed),
        )  # fmt: skip
    return [key for key in listed if key in wanted]


def _pairs(
    key: str, lazy: tuple[LazyArray, LazyArray], in_one_order: bool
) -> Iterator[tuple[tuple[slice, ...], Any, Any]]:
    """Yield where each part of two arrays of one shape lies, and its values in both.

    If one is stored by rows and the other by columns, a part of one is spread
    over the other, which may be inflated from its start for each part. Such
    parts are large, and compared in pieces.
    """
    a, b = lazy
    shape, size = a.shape, a.dtype.itemsize
    for part in a.iter_chunks() if in_one_order else blocks(shape, size, a.chunks):
        left, right = _read("a", key, a, part), _read("b", key, b, part)
        for piece in blocks(left.shape, size, size=PIECE_SIZE):
            index = tuple(
                slice(whole.start + inner.start, whole.start + inner.stop)
                for whole, inner in zip(part, piece, strict=True)
            )
            # The dots keep what has no axes an array.
            within: Any = (*piece, ...)
            yield index, left[within], right[within]


def _read(side: str, key: str, lazy: LazyArray, part: tuple[slice, ...]) -> np.ndarray[Any, Any]:
    """Read a part of an array; raise `_UnreadableError` if it is damaged after all."""
    try:
        return np.asarray(lazy[part])
    except ClosedArchiveError:
        # It says nothing of the file.
        raise
    except NpzkitError as error:
        raise _UnreadableError(Problem(side, key, error.what, error.offset)) from error


def _info(npz: NpzFile, key: str) -> ArrayInfo | None:
    """Return what is known of a member; None if its headers are damaged, as `verify` reports."""
    try:
        return npz.info(key)
    except NpzkitError as error:
        if isinstance(error, ClosedArchiveError):
            raise
        return None


def _value(values: Any, index: tuple[Any, ...] | str) -> Any:
    """Return one value, which keeps no piece in memory."""
    try:
        value = values[index]
    except (SystemError, ValueError):
        return None
    return value.copy() if isinstance(value, np.void) else value


def _plain(value: Any) -> Any:
    """Return what an archive has as what JSON can express."""
    if isinstance(value, np.generic):
        item = value.item()
        value = item if isinstance(item, (bool, int, float)) else str(value)
    if isinstance(value, (float, dict)):
        import json

        return json.loads(json.dumps(value), parse_constant=lambda name: None)
    is_plain = value is None or isinstance(value, (int, str, tuple))
    return value if is_plain else "an array" if value is np.ndarray else str(value)


def _lines(row: Difference, names: Mapping[str, str]) -> Iterator[str]:
    """Yield a difference as lines of text: several of metadata. `names` are those of archives."""
    key = "metadata" if row.key is None else shown_key(row.key)
    values = row.a, row.b
    if row.field is not None:
        values = _value(row.a, row.field), _value(row.b, row.field)
    texts = " and ".join(_shown(value, row.kind) for value in values)
    if row.kind in names:
        yield f"{key}: {row.kind} (only in {names[row.kind]})"
    elif row.kind == "objects":
        yield f"{key}: the pickles differ"
    elif row.kind in ("metadata", "attributes"):
        what = key if row.key is None else f"{key}: attribute"
        yield from _named_lines(what, without_note(row.a)[0], without_note(row.b)[0], names)
    elif row.kind == "values" and row.value_count is not None:
        is_known = row.max_difference is not None and math.isfinite(row.max_difference)
        by = f" by {row.max_difference:.6g}" if is_known else ""
        told = {"NaN on one side": row.nan_count, "infinite": row.inf_count}
        other = ", ".join(f"{count:,} {what}" for what, count in told.items() if count)
        verb = "differs" if row.value_count == 1 else "differ"
        if row.value_count > 1:
            verb, by = f"{verb} ({other})" if other else verb, f" most{by}"
        counted = f"{format_count(row.value_count, 'value')} {verb},{by}"
        inside = "" if row.field is None else f" in {printable(row.field)!r}"
        yield f"{key}: {counted}{inside} at {row.worst}: {texts}"
    else:
        verb = "differ" if row.kind.endswith("s") else "differs"
        yield f"{key}: {row.kind} {verb}: {texts}"


def differ(a: Any, b: Any) -> bool:
    """Whether values of metadata differ: as JSON, in which 1, 1.0 and true are not the same."""
    ours, theirs = (format_json(value, sort_keys=True) for value in (a, b))
    return ours != theirs


def _leaves(npz: NpzFile) -> dict[str, Any]:
    """Return the notes of values of nested data that are no arrays, by their keys."""
    notes = values_of(npz.metadata.get(TREE_KEY))
    return {key: note for key, note in notes.items() if key not in npz}


def _tied(npz: NpzFile) -> dict[str, str]:
    """Return the keys of tied tensors, and the one that has the array."""
    found = links(npz.metadata.get(TREE_KEY))
    return {key: target for key, target in found.items() if target in npz and key not in npz}


def _restored(note: Any) -> Any:
    """Return the value of a note; of a tensor tied to nothing, a text; an invalid one, as it is."""
    try:
        return f"same as {note[1]}" if note[0] == "same" else value_of(note[1])
    except (TypeError, LookupError, ValueError, NpzkitError):
        return note


def _compared_values(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield what differs in values of nested data."""
    for key in dict.fromkeys([*ours, *theirs]):
        if key not in theirs or key not in ours:
            yield Difference(key, "added" if key in theirs else "removed")
        elif repr(ours[key]) != repr(theirs[key]):
            yield Difference(key, "value", _restored(ours[key]), _restored(theirs[key]))


def _named_lines(
    what: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], names: Mapping[str, str]
) -> Iterator[str]:
    """Yield a line for each name that differs in metadata, or in attributes."""
    if not differ(ours, theirs):
        yield f"{what}: the nested data has other lists, tuples, types or tied tensors"
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in theirs or name not in ours:
            kind = "removed" if name in ours else "added"
            yield f"{what} {shown_key(name)}: {kind} (only in {names[kind]})"
        elif differ(ours[name], theirs[name]):
            texts = (printable(shown_value(values[name])) for values in (ours, theirs))
            yield f"{what} {shown_key(name)}: {' and '.join(texts)}"


def _shown(value: Any, kind: str) -> str:
    if kind == "value":
        return "an array" if value is np.ndarray else printable(repr(value))
    if kind == "bytes":
        return f"{value:,} bytes" if isinstance(value, int) else f"an array of {value}"
    return "no Unicode" if value is None else printable(str(value))
