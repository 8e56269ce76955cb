"""Dicts of tensors in archives, by the functions that users of safetensors know.

Owns which arrays of an archive become tensors, and which values of a dict are saved. How
a tensor is kept in an array is `npzkit.members.tensors`'s, and what is tied is in the note of
`npzkit.save`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from npzkit.archive.save import save
from npzkit.datasets.opening import opened
from npzkit.errors import NotAnArrayError, UnsupportedError
from npzkit.format import descr_to_dtype
from npzkit.members.metadata import TREE_KEY
from npzkit.trees.frameworks import from_array
from npzkit.trees.notes import is_leaf, links, nodes_of

if TYPE_CHECKING:
    from npzkit.typing import ArchiveLike, Writable

_TENSOR = ["as", "tensor"]
"""How the note of a tensor begins."""


def save_file(
    tensors: Mapping[str, torch.Tensor],
    filename: Writable,
    metadata: Mapping[str, Any] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Save a dict of tensors as an archive, as `safetensors.torch.save_file` does.

    `npzkit.save` takes the same dict first, and has more options: nested data, compression,
    NumPy's arrays.

    Parameters
    ----------
    tensors : mapping of str to torch.Tensor
        Dense tensors on any device, contiguous or not. Tensors that are the same
        memory, such as tied weights, are saved once and loaded as one. Other tensors
        that share memory, such as a part of another one, are saved each.
    filename : path, URL or file object
        The file at the path is replaced when the new one is complete.
    metadata : mapping of str to object, optional
        Whatever JSON can hold; ``npzkit.open(filename).metadata`` returns it.
    storage_options : mapping, optional
        For the store of a URL; see `npzkit.open`.

    Raises
    ------
    TypeError
        `tensors` is not a mapping.
    NotAnArrayError
        A value is not a tensor, or a key is not a string.
    UnsupportedError
        A tensor is sparse, quantized or distributed; or the name is that of another format,
        such as .pt or .safetensors.
    NpzkitError, OSError
        As `npzkit.save`.

    Notes
    -----
    `numpy.load` reads the file. It has bfloat16 and float8 as bytes, such as ``V2``.

    Examples
    --------
    >>> import io, npzkit.torch, torch
    >>> file = io.BytesIO()
    >>> npzkit.torch.save_file({"w": torch.ones(2, dtype=torch.bfloat16)}, file, {"by": "me"})
    >>> npzkit.torch.load_file(file)
    {'w': tensor([1., 1.], dtype=torch.bfloat16)}
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(
            "save_file takes a dict of tensors first, such as model.state_dict(), "
            f"not {type(tensors).__name__}"
        )
    for key, value in tensors.items():
        if not (isinstance(key, str) and isinstance(value, torch.Tensor)):
            raise NotAnArrayError(
                "save_file takes tensors by strings", key=str(key), found=type(value).__name__,
                remedy="npzkit.save also keeps nested data, NumPy's arrays, numbers and strings.",
            )  # fmt: skip
    save(filename, dict(tensors), metadata=metadata, storage_options=storage_options)


def load_file(
    filename: ArchiveLike,
    device: str | int | torch.device = "cpu",
    *,
    dtypes: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, torch.Tensor]:
    """Load the tensors of an archive, as `safetensors.torch.load_file` does.

    Each array is read into new memory, which its tensor then uses, and its CRC-32 is checked.

    Parameters
    ----------
    filename : path, URL, bytes-like, file object or NpzFile
        An archive of any program, also the folder of a sharded one.
    device : str, int or torch.device, default "cpu"
        Where the tensors are moved.
    dtypes : mapping of str to str, optional
        What the bytes of some arrays are, by key: ``{"w": "bfloat16"}`` for an array of ``V2``
        that another program saved.
    storage_options : mapping, optional
        For the store of a URL; see `npzkit.open`.

    Returns
    -------
    dict of str to torch.Tensor
        By the keys of the archive: ``{"model": {"w": w}}`` was saved as ``model/w``. Numbers,
        strings and other values that were saved with nested data are left out;
        `npzkit.load_tree` returns them.

    Raises
    ------
    UnsupportedError
        PyTorch has no tensors of an array's dtype, such as text.
    NpzkitError, OSError
        As `npzkit.open` and `NpzFile.load_all`.

    Examples
    --------
    >>> import io, npzkit.torch, numpy as np
    >>> np.savez(file := io.BytesIO(), w=np.eye(2, dtype="f4"))
    >>> npzkit.torch.load_file(file)
    {'w': tensor([[1., 0.],
            [0., 1.]])}
    """
    with opened(filename, storage_options=storage_options) as npz:
        note = npz.metadata.get(TREE_KEY)
        leaves = {key: leaf for key, leaf in nodes_of(note) if leaf is not None and is_leaf(leaf)}
        keys = [key for key in npz.files if leaves.get(key, _TENSOR)[:2] == _TENSOR]
        arrays = npz.load_all(keys)
    tensors = {}
    for key in keys:
        array = arrays.pop(key)
        if dtypes and key in dtypes:
            array = array.view(descr_to_dtype(dtypes[key]))
        tensor = _tensor(key, array, *leaves.get(key, _TENSOR)[2:])
        tensors[key] = tensor.to(device)
    for key, first in links(note).items():
        if first in tensors:
            tensors.setdefault(key, tensors[first])
    return tensors


def _tensor(key: str, array: Any, *special: Any) -> torch.Tensor:
    found = from_array(array, *special) if type(array) is np.ndarray else None
    if not isinstance(found, torch.Tensor):
        dtype = np.dtype(getattr(array, "dtype", "O"))
        # Bytes of a dtype that only ml_dtypes has.
        if dtype.char == "V" and dtype.names is None and find_spec("ml_dtypes") is None:
            raise UnsupportedError(
                "tensors of bfloat16 and float8 need the package ml_dtypes", key=key,
                found=str(array.dtype), remedy="Install it: python -m pip install ml_dtypes",
            )  # fmt: skip
        raise UnsupportedError(
            "PyTorch has no tensors of this dtype", key=key,
            found=str(getattr(array, "dtype", type(array).__name__)),
            remedy="Read it with npzkit.load_tree; if it is bytes of bfloat16 or float8, say so: "
            'npzkit.torch.load_file(filename, dtypes={key: "bfloat16"}).',
        )  # fmt: skip
    return found
