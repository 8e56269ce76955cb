"""An archive, or a part of it, read as nested dicts, lists and tuples of arrays.

Owns `read_tree`: which arrays are read. `npzkit.load_tree` is
`npzkit.datasets.opening`'s. How nested data is made of them is
`npzkit.members.containers`'s; what fits an example, `npzkit.trees.likeness`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.errors import NpzkitError, TreeMismatchError, TreeMismatchWarning, warn
from npzkit.imported import imported
from npzkit.limits import thread_count
from npzkit.members.containers import MISSING
from npzkit.members.keys import is_within, missing
from npzkit.members.metadata import TREE_KEY
from npzkit.members.notes import links
from npzkit.trees.frameworks import address
from npzkit.trees.likeness import Fitting, SavedTensor
from npzkit.trees.places import apart, places_in
from npzkit.trees.restoring import UNREAD, KeySelection, unflatten

Read = Callable[[Collection[str]], dict[str, Any]]
"""Returns the arrays of an archive by their keys."""

_HELD_SIZE = 1 << 23
"""Bytes of small arrays that are rather read once, into memory of their own, than twice."""
_SMALL_SIZE = 1 << 16


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
    filling = _Filling(npz, into if read is None else None, prefix, thread_count(threads), verify)
    read = read or partial(npz.load_all, threads=threads, verify=verify)
    as_tensor = None if example is None else SavedTensor
    tree = _tree_of(npz, partial(filling.read, read), prefix, selection, as_tensor)
    if example is None:
        return tree
    is_wanted = _is_wanted(selection)
    fitting = Fitting(tree, prefix, is_wanted, in_place=into is not None)
    fitted = fitting.value(example, prefix)
    _check_fit(fitting, npz._archive.path, strict=strict)
    filling.fill()
    fitting.apply()
    return fitted


class _Filling:
    """Arrays that are read straight into those of an example, when all is known to be sound.

    Until then, an example's own array stands for what was saved.
    """

    def __init__(self, npz: NpzFile, example: Any, prefix: str, threads: int, verify: bool) -> None:
        self._npz, self._threads, self._verify = npz, threads, verify
        self._outs: dict[str, Any] = {}
        archive = npz._archive
        if example is None or archive.nbytes <= _HELD_SIZE or not archive.can_be_read_twice:
            self._places = {}
            return
        self._places = places_in(example, prefix)
        for key, target in links(npz.metadata.get(TREE_KEY)).items():
            # Where they are not tied in the example too, one array becomes several.
            if self._address(key) != self._address(target):
                self._places.pop(target, None)

    def _address(self, key: str) -> int | None:
        place = self._places.get(key)
        return None if place is None else address(place)

    def read(self, read: Read, keys: Collection[str]) -> dict[str, Any]:
        """Return arrays by their keys: those that have no place in the example, and places."""
        outs = self._outs_of(keys)
        if outs and self._verify:
            self._npz._archive.fill(outs, self._threads, True, is_trial=True)
        self._outs |= outs
        return read([key for key in keys if key not in outs]) | outs

    def _outs_of(self, keys: Collection[str]) -> dict[str, Any]:
        """Return the places to fill: of arrays that fit, and that are no part of others."""
        found = {key: self._places[key] for key in keys if key in self._places}
        split = set(self._npz._archive.split_keys(keys)) if found else set()
        found = apart({
            key: place for key, place in found.items()
            if key not in split and key.rpartition(".")[0] not in split
        })  # fmt: skip
        small = {key for key, place in found.items() if place.nbytes <= _SMALL_SIZE}
        if sum(found[key].nbytes for key in small) > _HELD_SIZE:
            small.clear()
        outs = {}
        for key, place in found.items():
            info = None if key in small else self._npz.info(key)
            if info is not None and (info.shape, info.dtype) == (place.shape, place.dtype):
                outs[key] = place
        return outs

    def fill(self) -> None:
        if self._outs:
            self._npz._archive.fill(self._outs, self._threads, self._verify)


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
    if tree is MISSING:
        raise missing(prefix, npz.files, path)
    if selection is not None:
        selection.check_used(npz.files, path, is_empty=tree is UNREAD)
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


def _check_fit(fitting: Fitting, path: Any, *, strict: bool) -> None:
    """Report what does not fit the example."""
    left_over = fitting.left_over
    if not (fitting.missing or left_over or fitting.differing):
        return
    error = TreeMismatchError.of(fitting.missing, left_over, fitting.differing, path)
    if strict:
        raise error
    error.remedy = None
    warning = TreeMismatchWarning(str(error))
    warning.mismatch = error
    warn(warning, TreeMismatchWarning)
