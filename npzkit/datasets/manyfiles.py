"""The files of a data set as one mapping of arrays: what users can do with it.

Owns `open_many`: what it takes and checks, and how the arrays of files are joined.
"""

from __future__ import annotations

import errno
import operator
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from npzkit.datasets import INDEX_NAME
from npzkit.datasets.joined import JoinedArray, naming_others
from npzkit.datasets.opened_files import Files, Known, all_named, read_headers
from npzkit.datasets.opening import holds_index
from npzkit.datasets.parted_array import JoinedLayout
from npzkit.datasets.paths import find_files
from npzkit.datasets.skeleton import Arrays
from npzkit.errors import (
    Advice,
    DifferentFilesError,
    UnsupportedError,
    format_count,
    format_dtype,
    format_size,
    shown_key,
    some_of,
    warn,
)
from npzkit.limits import Limits, thread_count
from npzkit.members.keys import check_several, missing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npzkit.typing import PathLike

_THREADS = 16
"""Threads that wait for stores."""
_KEYS_OPTION = Advice("keys=[...]", "--key KEY")
"""What names the arrays to join."""
_LEAVE_OUT = Advice(
    'Leave the file out: on_error="warn" does, and names it (npzkit.pack: skip=True).',
    "Leave the file out: --skip does, and names it.",
)
_EITHER = _LEAVE_OUT + " Or choose the arrays that are to be joined: " + _KEYS_OPTION + "."


def open_many(
    paths: PathLike | Iterable[PathLike],
    axis: int | None = 0,
    *,
    keys: Iterable[str] | None = None,
    threads: int | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_error: Literal["raise", "warn"] = "raise",
) -> ManyFiles:
    """Open many archives as one: each array of the same key is joined over all files.

    Reads the headers of all files, but no data. Of arrays that were saved with a mask, the
    values are joined, masked ones too, and the mask is another array.

    Parameters
    ----------
    paths : str, path-like or iterable of these
        A pattern such as ``"runs/*.npz"`` (``**`` for folders at any depth), or
        a list of paths and URLs. The files of a pattern are sorted by their
        names, numbers by their value: ``step2`` is before ``step10``. A list keeps
        its order.
    axis : int or None, default 0
        The axis along which arrays are concatenated. None stacks them on a new
        first axis, with one position per file.
    keys : iterable of str, optional
        The arrays to join; by default all, and each file must have the same.
    threads : int, optional
        Number of threads that read; by default one per processor, or 16 for URLs.
    limits : Limits, optional
        Upper bounds on sizes and counts of each file.
    storage_options : dict, optional
        For the stores of URLs; see `npzkit.open`.
    on_error : {"raise", "warn"}, default "raise"
        What to do about files that cannot be opened, or do not fit the first one: raise
        an error, or leave them out with one warning. Data that is damaged behind a sound header
        raises an error when it is read; parts of arrays above 256 KiB only if npzkit wrote them.

    Returns
    -------
    ManyFiles

    Raises
    ------
    FileNotFoundError
        No file matches the pattern, or a file does not exist.
    DifferentFilesError
        A file has other keys than the first one, or an array has another dtype
        or shape. Names the file and the key. The lengths along `axis` may
        differ, and so may the widths of strings.
    NpzkitError
        As `npzkit.open`, for the first file that cannot be opened. Names up to ten
        others.
    ValueError, TypeError
        The list is empty, or an argument is bad.

    Examples
    --------
    >>> import tempfile, npzkit, numpy as np
    >>> folder = tempfile.mkdtemp()
    >>> for number in range(12):
    ...     np.savez(f"{folder}/sample{number}.npz", image=np.eye(4) * number, label=number)
    >>> many = npzkit.open_many(f"{folder}/sample*.npz", axis=None)
    >>> many.lazy("image").shape, many["label"][-2:]
    ((12, 4, 4), array([10, 11]))
    >>> many.samples[3]["label"]
    array(3)
    """
    many = join_files(
        paths, axis, keys=keys, threads=threads, limits=limits,
        storage_options=storage_options, on_error=on_error,
    )  # fmt: skip
    if left := list(many.left_out):
        warn(
            f"{format_count(len(left), 'file')} cannot be opened, or not joined with the first, "
            f"and left out: {some_of(left, repr)}. The attribute left_out says why.",
            UserWarning,
        )
    return many


def join_files(
    paths: PathLike | Iterable[PathLike],
    axis: int | None,
    *,
    keys: Iterable[str] | None = None,
    threads: int | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_error: str,
    is_wanted: Callable[[str], bool] | None = None,
    keys_left_out: Callable[[Arrays, set[str]], Collection[str]] = lambda arrays, others: (),
) -> ManyFiles:
    """Open many archives as one, as `open_many` does, without a warning of what is left out.

    `is_wanted` is as of `Files`. `keys_left_out` takes the first file's arrays, and the keys that
    only others have, and returns which are left out of all files.
    """
    axis = None if axis is None else operator.index(axis)
    check_several(keys)
    _check_arguments(paths, on_error)
    found = find_files(paths, storage_options)
    _check_no_index(found)
    options = {} if limits is None else {"limits": limits}
    files = Files(found, options)
    files.is_wanted = is_wanted
    count = _THREADS if threads is None and files.is_distant else thread_count(threads)
    known, errors = read_headers(files, count)
    if errors and (on_error == "raise" or len(errors) == len(found)):
        raise all_named(errors, files)
    first = known.kinds[known.kind_of[0]]
    left = keys_left_out(first, {key for arrays in known.kinds for key in arrays}.difference(first))
    kinds = [{key: one for key, one in arrays.items() if key not in left} for arrays in known.kinds]
    known = known._replace(kinds=kinds)
    wanted = None if keys is None else list(keys)
    while True:
        if known.left_out:
            found = [file for file in found if str(file) not in known.left_out]
            files = Files(found, options)
        try:
            return ManyFiles(files, known, axis, wanted, count)
        except DifferentFilesError as error:
            if on_error == "raise":
                raise
            known = known.without(error)


def _check_arguments(paths: Any, on_error: str) -> None:
    if isinstance(paths, (str, os.PathLike)) and os.path.isdir(paths):
        folder = os.fsdecode(paths)
        told = f"it is a folder: pass a pattern, {os.path.join(folder, '*.npz')!r}"
        if holds_index(folder):
            told = "it is a sharded archive: npzkit.open(folder) opens it"
        raise IsADirectoryError(errno.EISDIR, told, folder)
    if on_error not in ("raise", "warn"):
        raise ValueError(f"on_error must be 'raise' or 'warn', not {on_error!r}")


def _check_no_index(found: Sequence[Any]) -> None:
    """Refuse the index of a sharded archive, whose tables are no data."""
    for file in found:
        folder, name = os.path.split(str(file))
        if name == INDEX_NAME and holds_index(folder or os.curdir):
            raise UnsupportedError(
                "it is the index of a sharded archive", path=str(file),
                remedy="Open the folder with npzkit.open, which joins the shards.",
            )  # fmt: skip


class ManyFiles(Mapping[str, "NDArray[Any]"]):
    """Many archives as one: ``many[key]`` is the array of all files, joined.

    Made by `npzkit.open_many`. Threads and forked processes may share it, and it
    can be pickled: the pickle has the list of files and their headers.

    Attributes
    ----------
    files : list of str
        The keys.
    paths : list of str
        The files, in their order.
    axis : int or None
    left_out : mapping of str to str
        With ``on_error="warn"``, the files that are not joined, and why.
    samples : Samples
        Dicts of arrays, one for each position of the joined axis: a data set of
        PyTorch.

    Notes
    -----
    A file that is replaced after it was opened is a `StaleArchiveError` that
    names it. Files are opened when they are read.

    Examples
    --------
    >>> import tempfile, npzkit, numpy as np
    >>> folder = tempfile.mkdtemp()
    >>> for step in range(3):
    ...     np.savez(f"{folder}/step{step}.npz", x=np.full((2, 2), step))
    >>> with npzkit.open_many(f"{folder}/*.npz", axis=0) as many:
    ...     print(many["x"].shape, many.lazy("x")[1:3, 0], len(many.samples))
    (6, 2) [0 1] 6
    """

    def __init__(
        self, files: Files, known: Known, axis: int | None, keys: list[str] | None, threads: int
    ) -> None:
        self._files, self._known, self.axis = files, known, axis
        self._keys, self._threads = keys, threads
        # For `repr`, which debuggers call at any time.
        self._layouts: dict[str, JoinedLayout] = {}
        files.marks = known.marks
        self._first = [known.kind_of.index(number) for number in range(len(known.kinds))]
        names = list(known.kinds[known.kind_of[0]]) if keys is None else keys
        self._layouts = {key: self._layout(key) for key in dict.fromkeys(names)}
        if keys is None:
            self._check_no_others()

    # -- what fits ----------------------------------------------------------

    def _layout(self, key: str) -> JoinedLayout:
        """Return how the arrays of a key are joined, and check that they can be."""
        arrays = [self._array(number, key) for number in range(len(self._known.kinds))]
        shape, dtype = arrays[self._known.kind_of[0]]
        if dtype.hasobject:
            raise UnsupportedError(
                "arrays of Python objects cannot be joined", path=self._files.path(0), key=key,
                remedy="Choose the arrays that are to be joined: " + _KEYS_OPTION + ".",
            )  # fmt: skip
        axis = self._axis(key, shape)
        for number, (found, other) in enumerate(arrays):
            if _without(found, axis) != _without(shape, axis) or not is_alike(other, dtype):
                raise DifferentFilesError(
                    "the array does not fit that of the first file",
                    path=self._files.path(self._first[number]), key=key,
                    found=f"{other} {found}", expected=f"{dtype} {shape}",
                    remedy=(_EITHER if self._keys is None else _LEAVE_OUT)
                    + (_or_joined(found, shape) if is_alike(other, dtype) else ""),
                )  # fmt: skip
        dtype = max((other for _, other in arrays), key=lambda dtype: dtype.itemsize)
        if axis is None:
            starts = np.arange(len(self._known.names) + 1)
            return JoinedLayout(0, True, starts, (len(self._known.names), *shape), dtype)
        lengths = np.array([found[axis] for found, _ in arrays], np.int64)
        starts = np.concatenate(([0], np.cumsum(lengths[np.asarray(self._known.kind_of)])))
        joined = (*shape[:axis], int(starts[-1]), *shape[axis + 1 :])
        return JoinedLayout(axis, False, starts, joined, dtype)

    def _array(self, kind: int, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        arrays = self._known.kinds[kind]
        if key not in arrays:
            path = self._files.path(self._first[kind])
            if kind == self._known.kind_of[0]:
                raise missing(key, list(arrays), path)
            raise DifferentFilesError(
                "the file lacks an array", path=path, key=key,
                found=list(arrays) if self._keys is None else "no such array",
                expected=list(self._known.kinds[self._known.kind_of[0]]),
                remedy=_EITHER if self._keys is None else _LEAVE_OUT,
            )  # fmt: skip
        return arrays[key]

    def _axis(self, key: str, shape: tuple[int, ...]) -> int | None:
        axis = self.axis
        if axis is None:
            return None
        if not -len(shape) <= axis < len(shape):
            arrays = self._known.kinds[self._known.kind_of[0]]
            names = [
                name for name in (arrays if self._keys is None else self._keys)
                if name in arrays and -len(arrays[name][0]) <= axis < len(arrays[name][0])
            ]  # fmt: skip
            others = f"Choose those that have it, keys=[{some_of(names, repr)}], or s"
            raise ValueError(
                f"the array {key!r} of {self._files.path(0)!r} has "
                f"{format_count(len(shape), 'dimension')}, and no axis {axis}. "
                f"{others if names else 'S'}tack the files, axis=None"
            )
        return axis % len(shape)

    def _check_no_others(self) -> None:
        for kind, arrays in enumerate(self._known.kinds):
            for key in arrays:
                if key not in self._layouts:
                    raise DifferentFilesError(
                        "the first file lacks an array that this file has",
                        path=self._files.path(self._first[kind]), key=key, found=list(arrays),
                        expected=list(self._layouts), remedy=_EITHER,
                    )  # fmt: skip

    # -- the mapping --------------------------------------------------------

    @property
    def files(self) -> list[str]:
        return list(self._layouts)

    @property
    def paths(self) -> list[str]:
        return list(self._known.names)

    @property
    def left_out(self) -> Mapping[str, str]:
        return dict(self._known.left_out)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)

    def __contains__(self, key: object) -> bool:
        return key in self._layouts

    def __getitem__(self, key: str) -> NDArray[Any]:
        return self.lazy(key).read()

    # As of `NpzFile`.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def get(self, key: str, default: Any = None, /) -> Any:
        """Return the joined array with this key, or `default` if there is none."""
        return self[key] if key in self else default  # noqa: SIM401 - this is get

    def lazy(self, key: str, *, verify: bool = True) -> JoinedArray:
        """Return the joined array of a key, which reads only the parts that are indexed.

        Parameters
        ----------
        key : str
        verify : bool, default True
            As of `NpzFile.lazy`.

        Returns
        -------
        JoinedArray

        Raises
        ------
        MemberNotFoundError
            The key does not exist.
        """
        layout = self._layouts.get(key)
        if layout is None:
            if not isinstance(key, str):
                raise TypeError(f"keys are strings, not {key!r}; many.samples takes numbers")
            raise missing(key, self.files, None)
        return JoinedArray(self, key, layout, verify=verify)

    @property
    def samples(self) -> Samples:
        return Samples(self)

    def _arrays(self, number: int) -> Arrays:
        return self._known.kinds[self._known.kind_of[number]]

    def __repr__(self) -> str:
        return f"<{self._title}, with keys: {self.files}>"

    @property
    def _title(self) -> str:
        how = "stacked" if self.axis is None else f"joined along axis {self.axis}"
        return f"ManyFiles of {format_count(len(self._known.names), 'file')}, {how}"

    def _repr_html_(self) -> str:
        from npzkit.tables import SHOWN_COUNT, block, line, table

        shown = [self.lazy(key) for key in self.files[:SHOWN_COUNT]]
        rows = [
            (
                shown_key(lazy._key),
                str(lazy.shape),
                format_dtype(lazy.dtype),
                format_size(lazy.nbytes),
            )
            for lazy in shown
        ]
        total = format_count(len(self), "array")
        if len(shown) < len(self):
            total += f"; the first {len(shown)} are shown"
        heads = "key", "shape", "dtype", "size"
        return block([line(self._title), table(heads, rows, right=3), line(total)])

    # -- the files ----------------------------------------------------------

    def close(self) -> None:
        """Close all files. Reading anything after that raises ClosedArchiveError."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return ManyFiles, (self._files, self._known, self.axis, self._keys, self._threads)


class Samples(Sequence[dict[str, "NDArray[Any]"]]):
    """The samples of a data set: for each position of the joined axis, a dict of arrays.

    A data set for ``torch.utils.data.DataLoader``, also with workers. If the files
    are stacked (``axis=None``), a sample is a file, and is compared with its
    CRC-32s. Slices are samples again.

    Parameters
    ----------
    many : ManyFiles
    numbers : range, optional
        The positions; by default all.

    Raises
    ------
    ValueError
        The arrays differ in their lengths along the axis.
    """

    def __init__(self, many: ManyFiles, numbers: range | None = None) -> None:
        self._many = many
        if numbers is None:
            lengths = {key: int(layout.starts[-1]) for key, layout in many._layouts.items()}
            if len(set(lengths.values())) > 1:
                raise ValueError(f"the arrays have different numbers of samples: {lengths}")
            numbers = range(next(iter(lengths.values()), 0))
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Samples(self._many, self._numbers[index])
        try:
            number = self._numbers[index]
        except IndexError:
            raise IndexError(
                f"sample {index} is out of range: there are {len(self)} samples"
            ) from None
        except TypeError:
            raise TypeError(
                f"samples are chosen by an integer or a slice, not by {type(index).__name__}; "
                "many.lazy(key)[...] takes any index of an array"
            ) from None
        many = self._many
        if many.axis is None:
            with naming_others():
                return many._files.read(number, many.files, many._arrays(number), {})
        return {
            key: many.lazy(key)[(slice(None),) * layout.axis + (number,)]
            for key, layout in many._layouts.items()
        }

    def __repr__(self) -> str:
        return f"<{len(self)} samples of {self._many!r}>"


def _or_joined(found: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """Return advice for arrays that are not joined, if they differ along one axis alone."""
    axes = [axis for axis in range(len(shape)) if _without(found, axis) == _without(shape, axis)]
    return (
        " Or join them along the axis in which they differ: " + Advice(
            f"axis={axes[0]} (npzkit.pack: join='concatenate').",
            f"--join --axis {axes[0]}, without --stack.",
        )
        if axes else ""
    )  # fmt: skip


def _without(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return shape if axis is None else (-len(shape), *shape[:axis], *shape[axis + 1 :])


def is_alike(found: np.dtype[Any], expected: np.dtype[Any]) -> bool:
    """Whether arrays can be joined without a loss: strings of any width, others of one dtype."""
    if found.kind in "SU":
        return (found.kind, found.byteorder) == (expected.kind, expected.byteorder)
    return found == expected
