"""An archive, or a part of it, read as nested dicts, lists and tuples of arrays.

Owns `load_tree`: which arrays are read. How nested data is made of them is
`npzkit.members.nesting`'s; what fits an example, `npzkit.members.likeness`'s.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.opened_archive import MmapMode
from npzkit.archive.opening import open
from npzkit.errors import NpzkitError, TreeMismatchError, TreeMismatchWarning, warn
from npzkit.limits import Limits
from npzkit.members.containers import NOTHING, UNREAD, prune
from npzkit.members.keys import missing
from npzkit.members.likeness import Fitting
from npzkit.members.nesting import MISSING, TREE_KEY, is_within, links, unflatten
from npzkit.members.tensors import from_array

__all__ = ["TREE_KEY", "load_tree", "metadata_of"]


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
) -> Any:
    """Load nested data as it was saved: dicts, lists and tuples of arrays.

    Parameters
    ----------
    file : path, bytes-like, file object or NpzFile
        Any archive. If it was not saved as nested data, keys are split at ``/``.
    prefix : str, optional
        Key of the part to load; no other array is read. By default everything
        is loaded.
    like : object, optional
        An example with the structure to load, and with the types to load it in:
        dicts, lists, tuples, the classes of namedtuples and dataclasses, and
        tensors of PyTorch with their devices. It is not changed. None, ``...``
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
        There is nothing under `prefix`, or nothing that matches `only`.
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
    patterns = (only,) if isinstance(only, str) else None if only is None else tuple(only)
    is_wanted = _matcher(patterns)
    request = _Request((prefix or "").rstrip("/"), patterns, is_wanted, verify, mmap_mode, threads)
    if not isinstance(file, NpzFile):
        with open(file, allow_pickle=allow_pickle, limits=limits) as npz:
            return load_tree(
                npz, prefix, like=like, into=into, strict=strict, only=patterns,
                verify=verify, mmap_mode=mmap_mode, threads=threads,
            )  # fmt: skip
    example = like if into is None else into
    tree = _tree_of(file, request, from_array if example is not None else None)
    if example is None:
        return tree
    fitting = Fitting(tree, request.prefix, is_wanted, in_place=into is not None)
    fitted = fitting.value(example, request.prefix)
    _check_fit(fitting, file._archive.path, strict=strict)
    fitting.apply()
    return fitted


class _Request(NamedTuple):
    """What of an archive to load, and how."""

    prefix: str
    patterns: tuple[str, ...] | None
    is_wanted: Callable[[str], bool]
    verify: bool
    mmap_mode: MmapMode | None
    threads: int | None

    def read(self, npz: NpzFile, keys: Iterable[str]) -> dict[str, Any]:
        """Return arrays by their keys: read, or mapped."""
        if self.mmap_mode is not None:
            return {key: npz.memmap(key, self.mmap_mode) for key in keys}
        return npz.load_all(keys, self.threads, verify=self.verify)


def _matcher(patterns: tuple[str, ...] | None) -> Callable[[str], bool]:
    """Return a function that says whether a key matches a pattern, or is under one that does."""
    if patterns is None:
        return lambda key: True
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError("only must be a pattern, or patterns, of keys")
    texts = [fnmatch.translate(end) for p in patterns for end in (p, p.rstrip("/") + "/*")]
    match = re.compile("|".join(texts) or r"(?!)").match
    return lambda key: match(key) is not None


def _tree_of(npz: NpzFile, request: _Request, as_tensor: Callable[..., Any] | None) -> Any:
    """Return what was asked for, in the structure in which it was saved."""
    prefix, patterns, is_wanted, *_ = request
    note = npz.metadata.get(TREE_KEY)
    keys = [key for key in npz.files if is_within(key, prefix)]
    wanted = keys if patterns is None else list(filter(is_wanted, keys))
    linked = _linked(npz, note, request, wanted) if len(wanted) < len(npz.files) else {}
    arrays, parts = _joined(npz, wanted, request)
    whole = {key: arrays.get(key, UNREAD) for key in keys if key not in parts}
    if "torch" not in sys.modules:
        as_tensor = None
    try:
        tree = unflatten(
            whole, note, prefix, linked={**whole, **linked, **arrays}, as_tensor=as_tensor
        )
    except NpzkitError as error:
        raise error.locate(path=npz._archive.path) from None
    if patterns is not None and tree is not MISSING:
        tree = prune(tree, prefix, is_wanted)
    if tree is MISSING or tree is NOTHING:
        sought = prefix if tree is MISSING else ", ".join(patterns or ())
        raise missing(sought, npz.files, npz._archive.path)
    return tree


def _linked(npz: NpzFile, note: Any, request: _Request, wanted: list[str]) -> dict[str, Any]:
    """Return the arrays of tied tensors, read if they are asked for and not in `wanted`."""
    tied = {key: target for key, target in links(note).items() if target in npz}
    needed = {
        target
        for key, target in tied.items()
        if is_within(key, request.prefix) and request.is_wanted(key)
    }
    return {**dict.fromkeys(tied.values(), UNREAD), **request.read(npz, needed.difference(wanted))}


def _joined(npz: NpzFile, keys: list[str], request: _Request) -> tuple[dict[str, Any], set[str]]:
    """Return arrays by their keys, and the keys of those that are parts of others."""
    arrays = request.read(npz, keys)
    parts: set[str] = set()
    for key in keys:
        taken: list[str] = []

        def read(part: str, taken: list[str] = taken) -> Any:
            taken.append(part)
            return arrays[part] if part in arrays else npz.read(part)

        array = npz._join(key, read)
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


def metadata_of(npz: NpzFile) -> tuple[dict[str, Any], bool]:
    """Return an archive's metadata without the note of a tree, and whether it has that note."""
    metadata = dict(npz.metadata)
    is_tree = metadata.pop(TREE_KEY, None) is not None
    return metadata, is_tree
