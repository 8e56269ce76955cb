"""Loaded data in the structure of an example, with the example's own types.

Owns what fits the example: which keys are missing or left over, and which
leaves have another shape or dtype. Nothing of the example is changed before
that is known. Reads no archive.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from npzkit.archive.lazyarray import LazyArray
from npzkit.errors import NpzkitError, UnsupportedError
from npzkit.imported import imported
from npzkit.members.keys import child_key, common_start, is_within
from npzkit.members.tensors import (
    extension_name,
    form_of,
    identity,
    is_jax_array,
    is_spread,
    is_tensor,
)
from npzkit.trees.containers import (
    PYTHON,
    children_of,
    is_changeable,
    is_record,
    items_in,
    rebuilt,
    update,
)
from npzkit.trees.frameworks import (
    ReadBoxes,
    array_like,
    check_fillable,
    check_unmasked,
    fill,
    from_array,
    jax_form,
    native,
    number_like,
    tensor_like,
    view_of,
)
from npzkit.trees.sparse import is_sparse


class SavedTensor:
    """A tensor that was saved, as an array until it is known what the example wants of it.

    Parameters
    ----------
    array : numpy.ndarray
    special : str, optional
        From `npzkit.members.tensors.special_dtype`.
    """

    def __init__(self, array: np.ndarray[Any, Any], special: str | None = None) -> None:
        self.array, self._special = native(array), special

    @functools.cached_property
    def tensor(self) -> Any:
        """The tensor, the same one each time."""
        return from_array(self.array, self._special)


class _Differs(Exception):  # noqa: N818 - it never leaves this module
    """A leaf of another kind, shape or dtype, or with what was found and what was expected."""


class _Made(NamedTuple):
    """A tensor, or an array, that the first of several keys of the example has received."""

    key: str
    saved: Any
    array: Any
    tensor: Any


class Fitting:
    """Fits loaded data into the structure of an example.

    Parameters
    ----------
    tree : object
        The loaded data.
    key : str
        Its key in the archive; empty for all.
    is_wanted : callable
        Returns whether a key was asked for. All others keep the example's value.
    in_place : bool
        Fill the example's arrays and containers instead of making new ones.

    Attributes
    ----------
    missing : list of str
        Keys of the example that are not in the data.
    differing : dict of str to (str, str)
        What was found, and what was expected, by key.
    left_out : list of str
        Keys of the example that were not asked for.
    """

    def __init__(
        self, tree: Any, key: str, is_wanted: Callable[[str], bool], *, in_place: bool
    ) -> None:
        self._is_wanted = is_wanted
        self._in_place = in_place
        items = list(items_in(tree, key))
        self._nodes = {key: node for key, node, _ in items}
        # What is left, in the order of the data.
        self._leaves = {key: node for key, node, is_leaf in items if is_leaf}
        self._all_leaves = list(self._leaves)
        self._made: dict[Any, _Made] = {}
        self._filled: set[int] = set()
        self._given: set[int] = set()
        self._changes: list[Callable[[], Any]] = []
        self.missing: list[str] = []
        self.differing: dict[str, tuple[str, str]] = {}
        self.left_out: list[str] = []

    @property
    def left_over(self) -> list[str]:
        """Keys of the data that the example does not have."""
        return list(self._leaves)

    @property
    def folder(self) -> str:
        """The key below which is all that the example took, and nothing left over; or empty."""
        # Up to the last slash that all of them have.
        folder = common_start(self._taken).rpartition("/")[0]
        return "" if any(is_within(key, folder) for key in self._leaves) else folder

    @property
    def fits_at_all(self) -> bool:
        """Whether the example has taken any leaf as it is; those of a sparse matrix are parts."""
        differing = self.differing.keys()
        return any(differing.isdisjoint((key, key.rpartition("/")[0])) for key in self._taken)

    @property
    def _taken(self) -> list[str]:
        return [key for key in self._all_leaves if key not in self._leaves]

    @property
    def prefix(self) -> tuple[str, str, str] | None:
        """The prefix by which all missing keys differ from some left over, with one of each."""
        lacking = self.missing or ([] if self.fits_at_all else self.left_out)
        first = min(lacking, default="")
        for other in self._leaves if first else ():
            same = common_start([first, other])
            same = same[: max(same.rfind("/"), same.rfind(".")) + 1]
            rest = min(first, other, key=len)[len(same) :]
            old, new = first.removesuffix(rest), other.removesuffix(rest)
            prefix = max(old, new, key=len)[len(same) :]
            if (
                same in (old, new)
                and prefix.endswith((".", "/"))
                and all(
                    key.startswith(old) and new + key[len(old) :] in self._leaves for key in lacking
                )
            ):
                return prefix, first, other
        return None

    def value(self, like: Any, key: str) -> Any:
        """Return the data for one node of the example."""
        # Its parts are fitted together.
        children = None if is_sparse(like) else children_of(like)
        if like is None or like is ... or (children == {} and not is_record(like)):
            return self._as_saved(like, key)
        if children is None:
            return self._leaf(like, key)
        there = self._nodes.get(key)
        if isinstance(there, np.ndarray) and there.ndim and type(like) in (list, tuple):
            # A flat mapping, whose lists were saved as arrays.
            return type(like)(self._leaves.pop(key, there).tolist())
        items = {name: self.value(child, child_key(key, name)) for name, child in children.items()}
        return self._container(like, items)

    def apply(self) -> None:
        """Fill what is filled in place."""
        for change in self._changes:
            change()

    def _as_saved(self, like: Any, key: str) -> Any:
        """Return what was saved, because the example does not say what it is."""
        if key not in self._nodes:
            if children_of(like) is None and self._is_wanted(key):
                self.missing.append(key)
            return like
        found = _restored(self._nodes[key], key)
        self._take(found, key)
        items, children = children_of(found), children_of(like)
        if items is None or children is None or isinstance(found, dict) != isinstance(like, dict):
            return found
        return self._container(like, items)

    def _take(self, node: Any, key: str) -> None:
        for below, *_ in items_in(node, key):
            self._leaves.pop(below, None)

    def _container(self, like: Any, items: dict[Any, Any]) -> Any:
        if not (self._in_place and is_changeable(like)) or id(like) in self._filled:
            # One dict or list cannot be filled twice, as schedulers share some.
            return rebuilt(like, items)
        self._filled.add(id(like))
        self._changes.append(lambda: update(like, items))
        return like

    def _leaf(self, like: Any, key: str) -> Any:
        if not self._is_wanted(key):
            self.left_out.append(key)
            return like
        _check_no_model(like, key)
        there = self._nodes if is_sparse(like) else self._leaves
        if key not in there:
            self.missing.append(key)
            return like
        saved = there[key]
        self._take(saved, key)
        try:
            return self._fit(like, saved, key)
        except _Differs as differs:
            found, expected = differs.args or (_described(saved), _described(like))
            self.differing[key] = found, expected
            return like
        except NpzkitError as error:
            raise error.locate(key=key) from error.__cause__

    def _fit(self, like: Any, saved: Any, key: str) -> Any:
        """Return a saved leaf as the example has it, or raise _Differs."""
        if is_sparse(like):
            if type(saved) is type(like) and (saved.shape, saved.dtype) == (like.shape, like.dtype):
                return saved
            raise _Differs
        is_in_parts = isinstance(saved, (LazyArray, ReadBoxes)) and is_spread(like)
        array = saved if is_in_parts else _array_of(saved)
        is_filled = self._in_place and not isinstance(like, np.ma.MaskedArray)
        if is_tensor(like) or is_jax_array(like) or is_filled:
            check_unmasked(array)
        if isinstance(like, np.generic):
            return _checked(array, (), like.dtype)[()]
        if isinstance(like, PYTHON):
            if array is None:
                return saved
            if array.ndim or array.dtype.kind not in "biufcSU":
                raise _Differs
            return array.item()
        if is_tensor(like):
            return self._tensor(like, _checked(array, *form_of(like)), saved, key)
        if is_jax_array(like):
            array = number_like(saved, like) if array is None else array
            array = _checked(array, *jax_form(like))
            return array_like(array if is_in_parts else self._unshared(array, saved), like)
        if hasattr(like, "shape") and hasattr(like, "dtype"):
            return self._array(like, _checked(array, tuple(like.shape), like.dtype), saved, key)
        return _restored(saved, key)

    def _array(self, like: Any, array: Any, saved: Any, key: str) -> Any:
        if not (self._in_place and isinstance(like, np.ndarray)):
            return self._unshared(array, saved)
        if not like.flags.writeable:
            raise ValueError(f"the array {key!r} is read-only and cannot be filled")
        made = self._made.setdefault(id(like), _Made(key, saved, array, like))
        self._check_one(made, array)
        if array is not like:
            self._changes.append(lambda: np.copyto(like, array))
        return like

    def _tensor(self, like: Any, array: Any, saved: Any, key: str) -> Any:
        """Return a tensor, the same one for tensors that are tied in the example."""
        tie = identity(like)
        made = self._made.get(tie) if tie is not None else None
        if made is not None and (saved is made.saved or _is_same(array, made.array)):
            return made.tensor
        if self._in_place:
            check_fillable(like, key)
            self._check_one(made, array)
            self._changes.append(lambda: fill(like, array))
            tensor = like
        else:
            tensor = tensor_like(self._unshared(array, saved), like)
        if tie is not None:
            self._made[tie] = _Made(key, saved, array, tensor)
        return tensor

    def _check_one(self, made: _Made | None, array: Any) -> None:
        """Check that the same memory is not to be filled with two different arrays."""
        if made is not None and array is not made.array and not _is_same(array, made.array):
            tied = f"those of {made.key!r}, to which it is tied in the example"
            raise _Differs("other values", tied)

    def _unshared(self, array: Any, saved: Any) -> Any:
        """Return an array that no other leaf has: a copy from the second time on."""
        if id(saved) in self._given:
            return array.copy()
        self._given.add(id(saved))
        return array


def check_example(like: Any) -> None:
    """Raise TypeError for an object that says nothing about structure or types."""
    _check_no_model(like, "")
    is_leaf = like is None or like is ... or is_tensor(like) or is_jax_array(like)
    is_leaf |= isinstance(like, (*PYTHON, np.generic))
    is_leaf |= hasattr(like, "shape") and hasattr(like, "dtype")
    if not is_leaf and children_of(like) is None:
        raise TypeError(
            "an example must be a dict, a list, a tuple, a dataclass, a pytree, an array, "
            f"a tensor, a number or a string, not {type(like).__name__}"
        )


def _check_no_model(like: Any, key: str) -> None:
    """Raise TypeError for a model or an optimizer, whose arrays its `state_dict` has."""
    if callable(getattr(like, "state_dict", None)) and children_of(like) is None:
        place = f"the example at {key!r}" if key else "the example"
        raise TypeError(f"{place} has the type {type(like).__name__}: pass its state_dict()")


def places_in(node: Any, key: str) -> dict[str, Any]:
    """Return the arrays of an example that bytes can be read into, also of tensors, by key."""
    found: dict[str, Any] = {}
    for below, leaf, _ in items_in(node, key):
        place = leaf
        if is_tensor(leaf):
            # One of a kind that cannot be filled is reported when it is.
            with contextlib.suppress(UnsupportedError):
                place = view_of(leaf) if identity(leaf) and leaf.is_contiguous() else None
        is_usual = type(place) is np.ndarray and place.ndim and place.flags.forc
        if is_usual and place.flags.writeable and not place.dtype.hasobject:
            found[below] = place
    return found


def spread_in(node: Any, key: str = "") -> dict[str, Any]:
    """Return the arrays of an example that are spread over processes, by their keys."""
    if imported("jax") is None:
        return {}
    return {below: leaf for below, leaf, _ in items_in(node, key) if is_spread(leaf)}


def _restored(saved: Any, key: str) -> Any:
    """Return saved data as it was, with its tensors."""
    if type(saved) is SavedTensor:
        try:
            return saved.tensor
        except NpzkitError as error:
            raise error.locate(key=key) from None
    children = children_of(saved)
    if not children:
        return saved
    items = {name: _restored(child, child_key(key, name)) for name, child in children.items()}
    return rebuilt(saved, items)


def _array_of(saved: Any) -> Any:
    """Return the array of a saved leaf, or None."""
    if isinstance(saved, LazyArray):
        return saved[...]
    if isinstance(saved, np.ndarray):
        return saved
    if type(saved) is SavedTensor:
        return saved.array
    return np.asarray(saved) if isinstance(saved, np.generic) else None


def _checked(array: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    if isinstance(array, np.ndarray) and array.dtype == f"V{dtype.itemsize}":
        # Other programs save bfloat16 as bytes, and do not say so.
        array = array.view(dtype) if extension_name(dtype) is not None else array
    if array is None or array.shape != shape:
        raise _Differs
    if array.dtype != dtype:
        # A machine of the other byte order saved it.
        if array.dtype.newbyteorder("=") != dtype.newbyteorder("="):
            raise _Differs
        array = array.astype(dtype)
    return array


def _is_same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays of one shape and dtype have the same bytes."""
    raw = f"V{one.dtype.itemsize}"
    return bool((one.view(raw) == other.view(raw)).all())


def _described(leaf: Any) -> str:
    if type(leaf) is SavedTensor:
        leaf = leaf.array
    if is_sparse(leaf):
        return f"{type(leaf).__name__} of {leaf.dtype} {leaf.shape}"
    if is_tensor(leaf):
        shape, dtype = form_of(leaf)
    elif hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        shape, dtype = leaf.shape, leaf.dtype
    else:
        return type(leaf).__name__
    return f"{dtype} {tuple(shape)}"
