"""Nested data, read from an archive in one file or in many.

Owns `load_tree`: what it takes. Which arrays are read for it, and what is made of them, is
`npzkit.archive.trees`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from npzkit.archive.npzfile import NOT_MAPPED, NpzFile
from npzkit.archive.opened_archive import MmapMode
from npzkit.archive.trees import read_tree
from npzkit.datasets.opening import open
from npzkit.files.urls import check_local
from npzkit.limits import Limits
from npzkit.members.selection import Selection


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
        Any archive, also the folder of a sharded one. If it was not saved as
        nested data, keys are split at ``/``.
    prefix : str, optional
        Key of the part to load, or the beginning of keys up to a slash; no other
        array is read. By default everything is loaded.
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
    object
        What was saved; a dict if it was not saved as nested data. Arrays are new and
        writable. Masked arrays and arrays of strings that were split are joined. If one
        key is the beginning of another, both stay at the same level:
        ``{"a": ..., "a/b": ...}``. With a `prefix`, the value under it.

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
    arrays. `NpzWriter` keeps the note up to date. An array that is added is placed
    by its key. An array that is removed leaves its container, and a container in
    which nothing is left goes too. A list, tuple or namedtuple that lacks an item,
    or to which one was added, becomes a dict by index or name, and keeps the other
    items. With `only`, it becomes such a dict if it is loaded in part.

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
