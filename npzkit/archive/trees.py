"""An archive, or a part of it, read as nested dicts, lists and tuples of arrays.

Owns `load_tree`: which arrays are read. How nested data is made of them is
`npzkit.members.nesting`'s; what fits an example, `npzkit.members.likeness`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from npzkit.archive.npzfile import NOT_MAPPED, NpzFile
from npzkit.archive.opened_archive import MmapMode
from npzkit.archive.opening import open
from npzkit.errors import NpzkitError, TreeMismatchError, TreeMismatchWarning, warn
from npzkit.files.urls import check_local
from npzkit.limits import Limits
from npzkit.members.containers import is_within
from npzkit.members.keys import missing
from npzkit.members.likeness import Fitting
from npzkit.members.nesting import MISSING, TREE_KEY, links, unflatten
from npzkit.members.selection import UNREAD, Selection
from npzkit.members.tensors import from_array

__all__ = ["TREE_KEY", "load_tree", "read_tree"]


def load_tree(
    file: Any,
    prefix: str | None = None,
    *,
    like: Any = None,
    into: Any = None,
    strict: bool = True,
    only: str | Iterable[str] | None = None,
    verify: bool = True,
    mmap_mode: MmapMode | None = None,
    allow_pickle: bool = False,
    limits: Limits | None = None,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Load nested data as it was saved: dicts, lists and tuples of arrays.

    Parameters
    ----------
    file : path, URL, bytes-like, file object or NpzFile
        Any archive. If it was not saved as nested data, keys are split at ``/``.
    prefix : str, optional
        Key of the part to load; no other array is read. By default everything
        is loaded.
    like : object, optional
        An example with the structure to load, and with the types to load it in:
        dicts, lists, tuples, the classes of namedtuples and dataclasses, tensors
        of PyTorch with their devices, arrays of JAX (or their descriptions by
        `jax.eval_shape`) with their sharding. It is not changed. None, ``...``
        and empty dicts and lists in it stand for whatever was saved there.
    into : object, optional
        As `like`, but its arrays, tensors, dicts and lists are filled in place.
        Nothing is changed if an error is raised.
    strict : bool, default True
        Raise an error if the archive does not fit the example. If False, a
        warning names the keys, and what does not fit keeps the example's value.
    only : str or iterable of str, optional
        Patterns such as ``"encoder/*"``, in which ``*`` also matches ``/``. Only
        matching keys, and what is under them, are loaded, and no other array is
        read. With an example, all others keep the example's value.
    verify : bool, default True
        Check the CRC-32 of each array.
    mmap_mode : {None, "r", "c", "r+"}, optional
        Map the arrays instead of reading them; see `NpzFile.memmap`.
    allow_pickle, limits
        As in `npzkit.open`; ignored for an `NpzFile`.
    threads : int, optional
        Number of threads; by default one per processor.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Returns
    -------
    dict of str or int to object
        Arrays are new and writable. Masked arrays and arrays of strings that
        were split are joined. If one key is the beginning of another, both
        stay at the same level: ``{"a": ..., "a/b": ...}``. With a `prefix`, the
        value under it, which may also be a list, an array or a number.

    Raises
    ------
    MemberNotFoundError
        There is nothing under `prefix`, or nothing that matches a pattern.
    TreeMismatchError
        The archive does not fit the example. The error names all keys that are
        missing, left over, or of another shape or dtype.
    OSError, NpzkitError
        As `npzkit.open` and `NpzFile.load_all`.
    ValueError
        `like` and `into` are both given, or an array in `into` is read-only.

    Warns
    -----
    TreeMismatchWarning
        With ``strict=False``; its attribute `mismatch` is the error.

    Notes
    -----
    `npzkit.save` and `NpzWriter.add` keep a note in the archive's metadata that
    describes lists, tuples, namedtuples, int keys and values that are not
    arrays. If arrays were added or removed since, the parts that no longer
    match the note become dicts. With `only`, a list that is loaded in part
    becomes a dict by index.

    Tensors of PyTorch come back as arrays. With an example they come back as
    tensors, those that it does not describe on the CPU. Tensors that were tied
    are tied again if they are tied in the example.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"layer": {"name": "dense", "w": np.eye(2)}, "steps": [None, (1, 2.5)]})
    >>> npzkit.load_tree(stream)
    {'layer': {'name': 'dense', 'w': array([[1., 0.],
           [0., 1.]])}, 'steps': [None, (1, 2.5)]}
    >>> npzkit.load_tree(stream, "layer")["name"]
    'dense'
    >>> npzkit.load_tree(stream, only=["layer/n*", "steps/1"])
    {'layer': {'name': 'dense'}, 'steps': {1: (1, 2.5)}}
    >>> npzkit.load_tree(stream, "layer", like={"w": np.zeros((2, 2)), "name": ""})["w"][0]
    array([1., 0.])
    """
    if not isinstance(prefix, (str, type(None))):
        raise TypeError(f"prefix must be a key, not {type(prefix).__name__}")
    if like is not None and into is not None:
        raise ValueError("like and into are both examples; pass one of them")
    key = (prefix or "").rstrip("/")
    selection = None if only is None else Selection(only)

    def loaded(npz: NpzFile) -> Any:
        def read(keys: Collection[str]) -> dict[str, Any]:
            if mmap_mode is not None:
                return {key: npz.memmap(key, mmap_mode) for key in keys}
            return npz.load_all(keys, threads, verify=verify)

        return read_tree(npz, read, key, selection, like=like, into=into, strict=strict)

    if isinstance(file, NpzFile):
        return loaded(file)
    if mmap_mode is not None:
        check_local(file, *NOT_MAPPED)
    with open(
        file, allow_pickle=allow_pickle, limits=limits, storage_options=storage_options
    ) as npz:
        return loaded(npz)


Read = Callable[[Collection[str]], dict[str, Any]]
"""Returns the arrays of an archive by their keys."""


def read_tree(
    npz: NpzFile,
    read: Read,
    prefix: str = "",
    selection: Selection | None = None,
    *,
    like: Any = None,
    into: Any = None,
    strict: bool = True,
) -> Any:
    """Load nested data, for callers that have their own way to read arrays.

    Parameters
    ----------
    npz : NpzFile
    read : callable
        Returns arrays by their keys. It is called with the keys that are needed.
    prefix : str, optional
    selection : Selection, optional
        What `load_tree` makes of `only`.
    like, into, strict
        As in `load_tree`.
    """
    example = like if into is None else into
    tree = _tree_of(npz, read, prefix, selection, None if example is None else from_array)
    if example is None:
        return tree
    is_wanted = _is_wanted(selection)
    fitting = Fitting(tree, prefix, is_wanted, in_place=into is not None)
    fitted = fitting.value(example, prefix)
    _check_fit(fitting, npz._archive.path, strict=strict)
    fitting.apply()
    return fitted


def _is_wanted(selection: Selection | None) -> Callable[[str], bool]:
    return (lambda key: True) if selection is None else selection.__contains__


def _tree_of(
    npz: NpzFile,
    read: Read,
    prefix: str,
    selection: Selection | None,
    as_tensor: Callable[..., Any] | None,
) -> Any:
    """Return what was asked for, in the structure in which it was saved."""
    note, path = npz.metadata.get(TREE_KEY), npz._archive.path
    keys = [key for key in npz.files if is_within(key, prefix)] if prefix else npz.files
    wanted = keys if selection is None else selection.keys(keys)
    tied = links(note, selection) if len(wanted) < len(npz.files) else {}
    linked = dict.fromkeys((target for target in tied.values() if target in npz), UNREAD)
    needed = {
        target for key, target in tied.items()
        if target in linked and is_within(key, prefix) and _is_wanted(selection)(key)
    }  # fmt: skip
    linked |= read(needed.difference(wanted))
    arrays, parts = _joined(npz, read, wanted)
    if parts:
        keys = [key for key in keys if key not in parts]
    if "torch" not in sys.modules:
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
    for key in keys:
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
