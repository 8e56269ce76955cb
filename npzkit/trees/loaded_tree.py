"""An archive, or a part of it, read as nested dicts, lists and tuples of arrays.

Owns `read_tree`: which arrays are read. `npzkit.load_tree` is
`npzkit.datasets.opening`'s. How nested data is made of them is
`npzkit.trees.restoring`'s; what fits an example, `npzkit.trees.likeness`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.errors import (
    NpzkitError,
    TreeMismatchError,
    TreeMismatchWarning,
    shown_value,
    some_of,
    warn,
)
from npzkit.imported import imported
from npzkit.limits import thread_count
from npzkit.members.keys import is_within
from npzkit.members.metadata import TREE_KEY
from npzkit.trees.containers import MISSING
from npzkit.trees.frameworks import ReadBoxes, boxes_of, jax_form
from npzkit.trees.likeness import Fitting, SavedTensor, check_example, places_in, spread_in
from npzkit.trees.notes import links
from npzkit.trees.restoring import UNREAD, KeySelection, missing_part, unflatten
from npzkit.trees.sparse import of_scipy

_SMALL_SIZE = 1 << 20
"""Bytes of an array that are read in the time that one more read takes."""

Read = Callable[[Collection[str]], dict[str, Any]]
"""Returns the arrays of an archive by their keys."""


def read_tree(
    npz: NpzFile,
    read: Read | None = None,
    prefix: str = "",
    only: str | Iterable[str] | None = None,
    *,
    like: Any = None,
    into: Any = None,
    strict: bool = True,
    verify: bool = True,
    threads: int | None = None,
) -> Any:
    """Load nested data, for callers that may have their own way to read arrays.

    Parameters
    ----------
    npz : NpzFile
    read : callable, optional
        Returns arrays by their keys. It is called with the keys that are needed.
    prefix : str, optional
    only, like, into, strict, verify, threads
        As in `load_tree`.
    """
    selection = None if only is None else KeySelection(only)
    example = like if into is None else into
    check_example(example)
    filling = _Filling(npz, threads, verify)
    if read is None:
        read = filling.read
        filling.find_spread(example, prefix)
        filling.find_places(into, prefix)
    as_tensor = None if example is None else SavedTensor
    tree = _tree_of(npz, read, prefix, selection, as_tensor)
    if example is None:
        return tree
    is_wanted = _is_wanted(selection)
    fitting = Fitting(tree, prefix, is_wanted, in_place=into is not None)
    try:
        fitted = fitting.value(example, prefix)
    except NpzkitError as error:
        raise error.locate(path=npz._archive.path) from error.__cause__
    _check_fit(fitting, npz._archive.path, prefix, strict=strict)
    unfit = {*fitting.missing, *fitting.differing}
    filling.fill({key: out for key, out in filling.outs.items() if key not in unfit})
    fitting.apply()
    return fitted


class _Filling:
    """Reads arrays, or checks them and leaves them to be read straight into an example's.

    Those of the example then stand for what was saved. `outs` has them, by key. Of what is
    `spread` over processes, this one reads its parts when they are wanted.
    """

    def __init__(self, npz: NpzFile, threads: int | None, verify: bool) -> None:
        self._npz, self._threads, self._verify = npz, threads, verify
        self._places: dict[str, Any] = {}
        self._spread: dict[str, Any] = {}
        self._tied: set[str] = set()
        self.outs: dict[str, Any] = {}

    def find_spread(self, example: Any, prefix: str) -> None:
        """Find the arrays of which each process needs some parts."""
        found = spread_in(example, prefix).items()
        self._spread = {key: leaf for key, leaf in found if not leaf.sharding.is_fully_replicated}
        # Another leaf may need other boxes.
        self._tied = {*links(self._npz.metadata.get(TREE_KEY)).values()} if self._spread else set()

    def find_places(self, example: Any, prefix: str) -> None:
        if example is None or not self._npz._is_read_twice(self._npz._archive.nbytes):
            return
        self._places = places = places_in(example, prefix)
        for key, target in links(self._npz.metadata.get(TREE_KEY)).items():
            # If they are not tied in the example too, one array becomes several.
            if target in places and self._address(key) != self._address(target):
                del places[target]

    def read(self, keys: Collection[str]) -> dict[str, Any]:
        """Return arrays by their keys; an example's own if `outs` has it now."""
        places = self._places
        split = set(self._npz._archive.split_keys(keys)) if places or self._spread else set()
        count = Counter(map(self._address, keys))
        outs = {
            key: places[key] for key in keys
            if key in places and count[self._address(key)] == 1
            and split.isdisjoint((key, key.rpartition(".")[0])) and self._fits(key)
        }  # fmt: skip
        self.outs |= outs
        wanted = set(keys) - split
        spread = {key: leaf for key, leaf in self._spread.items() if key in wanted}
        small = {key: leaf for key, leaf in spread.items() if self._is_small(key, leaf)}
        lazy = [key for key in spread if key not in small]
        found = self._read_small(small)
        found |= {key: self._npz.lazy(key, verify=self._verify) for key in lazy}
        others = [key for key in keys if key not in outs and key not in found]
        found |= self._npz.load_all(others, threads=self._threads, verify=self._verify)
        if self._verify:
            self.fill(outs, is_trial=True)
        return found | outs

    def _is_small(self, key: str, leaf: Any) -> bool:
        """Whether the parts of an array are read sooner together than one by one."""
        info = self._npz.info(key)
        fits = (info.shape, info.dtype) == jax_form(leaf)
        return fits and info.nbytes <= _SMALL_SIZE and key not in self._tied

    def _read_small(self, leaves: dict[str, Any]) -> dict[str, Any]:
        """Return what this process needs of arrays; none of one part, which is read completely."""
        boxes = {key: boxes_of(leaf) for key, leaf in leaves.items()}
        archive, count = self._npz._archive, thread_count(self._threads)
        found = archive.read_boxes(boxes, count, self._verify)
        return {key: ReadBoxes(*jax_form(leaves[key]), read) for key, read in found.items()}

    def fill(self, outs: dict[str, Any], *, is_trial: bool = False) -> None:
        if outs:
            count = thread_count(self._threads)
            self._npz._archive.fill(outs, count, self._verify, is_trial=is_trial)

    def _address(self, key: str) -> int | None:
        return self._places[key].ctypes.data if key in self._places else None

    def _fits(self, key: str) -> bool:
        info, place = self._npz.info(key), self._places[key]
        return (info.shape, info.dtype) == (place.shape, place.dtype)


def _is_wanted(selection: KeySelection | None) -> Callable[[str], bool]:
    return (lambda key: True) if selection is None else selection.__contains__


def _tree_of(
    npz: NpzFile,
    read: Read,
    prefix: str,
    selection: KeySelection | None,
    as_tensor: Callable[..., Any] | None,
) -> Any:
    """Return what was asked for, in the structure in which it was saved."""
    note, path = npz.metadata.get(TREE_KEY), npz._archive.path
    names_in = None if selection is None else selection.names_in
    keys = [key for key in npz.files if is_within(key, prefix)] if prefix else npz.files
    wanted = keys if selection is None else selection.keys(keys)
    tied = links(note, names_in) if len(wanted) < len(npz.files) else {}
    linked = dict.fromkeys((target for target in tied.values() if target in npz), UNREAD)
    needed = {
        target for key, target in tied.items()
        if target in linked and is_within(key, prefix) and _is_wanted(selection)(key)
    }  # fmt: skip
    others = needed.difference(wanted)
    if others:
        linked |= read(others)
    arrays, parts = _joined(npz, read, wanted)
    if parts:
        keys = [key for key in keys if key not in parts]
    if imported("torch") is None:
        as_tensor = None
    try:
        tree = unflatten(
            arrays, note, prefix, keys=keys, linked={**linked, **arrays},
            selection=selection, as_tensor=as_tensor,
        )  # fmt: skip
    except NpzkitError as error:
        raise error.locate(path=path) from None
    if note is None and not prefix and selection is None:
        tree = of_scipy(tree)
    if tree is MISSING:
        raise missing_part(prefix, npz.files, path, "only=")
    if selection is not None:
        inside = [key for key in npz.files if is_within(key, prefix)]
        selection.check_used(inside, path, is_empty=tree is UNREAD)
    return tree


def _joined(npz: NpzFile, read: Read, keys: list[str]) -> tuple[dict[str, Any], set[str]]:
    """Return arrays by their keys, and the keys of those that are parts of others."""
    arrays = read(keys)
    parts: set[str] = set()
    for key in npz._archive.split_keys(keys):
        taken: list[str] = []

        def part_of(part: str, taken: list[str] = taken) -> Any:
            taken.append(part)
            return arrays[part] if part in arrays else npz.read(part)

        array = npz._join(key, part_of)
        if len(taken) > 1:
            arrays[key] = array
            parts.update(part for part in taken if part != key)
    return arrays, parts


def _check_fit(fitting: Fitting, path: Any, start: str, *, strict: bool) -> None:
    """Report what does not fit the example, whose keys start with those of a folder."""
    left_over = fitting.left_over
    if not (fitting.missing or left_over or fitting.differing):
        return
    error = TreeMismatchError.of(fitting.missing, left_over, fitting.differing, path)
    fits_at_all, prefix = fitting.fits_at_all, fitting.prefix
    differ_in_dtypes = all(map(_has_one_shape, fitting.differing.values()))
    if prefix is not None:
        name, expected, found = map(shown_value, prefix)
        what = f"The keys differ by the prefix {name}: the archive has {found} for {expected}."
        folder = prefix[2].removesuffix(prefix[1][len(start) :].lstrip("/"))
        if folder.endswith("/") and len(folder) > len(start) + 1 and not fitting.fits_at_all:
            error.remedy = (
                f"{what} Load that folder: npzkit.load_tree(path, {shown_value(folder[:-1])}, "
                "like=...)."
            )
        else:
            error.remedy = (
                f"{what} Rename those of the example, or each of the archive by a writer of "
                f"mode 'a': w.rename({found}, {expected})."
            )
    elif differ_in_dtypes and not (fitting.missing or left_over):
        error.remedy = (
            "Only dtypes differ: load the values with like={}, and convert them, as "
            "model.load_state_dict does."
        )
    elif not fits_at_all and any(fitting.left_out):
        error.remedy = (
            f"only= leaves out {some_of(fitting.left_out, shown_value, 5)} of the example, and "
            "nothing else of it fits: pass keys of the example, such as "
            f"only={shown_value(fitting.left_out[0])}."
        )
    elif not fits_at_all:
        error.remedy = "Nothing of the archive fits: npzkit.load_tree(file) returns what it has."
    elif strict and fitting.folder and not (fitting.missing or fitting.differing):
        error.remedy = f"Pass only={f'{fitting.folder}/*'!r} to load this part, or strict=False."
    if strict or not fits_at_all:
        raise error
    if prefix is None:
        error.remedy = None
    warning = TreeMismatchWarning(str(error))
    warning.mismatch = error
    warn(warning, TreeMismatchWarning)


def _has_one_shape(forms: tuple[str, str]) -> bool:
    """Return whether two descriptions, such as "float32 (2,)", are of the same shape."""
    one, other = (form.rpartition(" (")[2] for form in forms)
    return one == other
