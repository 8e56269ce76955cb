"""An archive, or a part of it, read as nested dicts, lists and tuples of arrays.

Owns `load_tree`: which arrays are read. How nested data is made of them is
`npzkit.members.nesting`'s.
"""

from __future__ import annotations

from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.opening import open
from npzkit.errors import NpzkitError
from npzkit.limits import Limits
from npzkit.members.keys import missing
from npzkit.members.nesting import MISSING, TREE_KEY, is_within, unflatten

__all__ = ["TREE_KEY", "load_tree", "metadata_of"]


def load_tree(
    file: Any,
    prefix: str | None = None,
    *,
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
        There is nothing under `prefix`.
    OSError, NpzkitError
        As `npzkit.open` and `NpzFile.load_all`.

    Notes
    -----
    `npzkit.save` and `NpzWriter.add` keep a note in the archive's metadata that
    describes lists, tuples, None, numbers, strings and int keys. If arrays were
    added or removed since, the parts that no longer match the note become
    dicts.

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
    """
    if not isinstance(prefix, (str, type(None))):
        raise TypeError(f"prefix must be a key, not {type(prefix).__name__}")
    prefix = (prefix or "").rstrip("/")
    if isinstance(file, NpzFile):
        return _tree_of(file, prefix, threads)
    with open(file, allow_pickle=allow_pickle, limits=limits) as npz:
        return _tree_of(npz, prefix, threads)


def _tree_of(npz: NpzFile, prefix: str, threads: int | None) -> Any:
    keys = [key for key in npz.files if is_within(key, prefix)] if prefix else npz.files
    arrays = npz.load_all(keys, threads=threads)
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
    whole = {key: array for key, array in arrays.items() if key not in parts}
    try:
        tree = unflatten(whole, npz.metadata.get(TREE_KEY), prefix)
    except NpzkitError as error:
        raise error.locate(path=npz._archive.path) from None
    if tree is MISSING:
        raise missing(prefix, npz.files, npz._archive.path)
    return tree


def metadata_of(npz: NpzFile) -> tuple[dict[str, Any], bool]:
    """Return an archive's metadata without the note of a tree, and whether it has that note."""
    metadata = dict(npz.metadata)
    is_tree = metadata.pop(TREE_KEY, None) is not None
    return metadata, is_tree
