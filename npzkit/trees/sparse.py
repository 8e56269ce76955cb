"""scipy's sparse matrices and arrays in a tree: which they are, their parts, and back.

Owns the parts of each format, plain arrays with the names that scipy gives them; and which of
scipy's own files of `scipy.sparse.save_npz` is what matrix. Imports scipy to make one, never to
save one. The kind of one is the name of its class, from a fixed list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npzkit.errors import NpyFormatError, UnsupportedError
from npzkit.imported import imported
from npzkit.members.tensors import package

_PARTS = {
    **dict.fromkeys(("csr", "csc", "bsr"), ("data", "indices", "indptr", "shape")),
    "coo": ("data", "coords", "shape"),
    "dia": ("data", "offsets", "shape"),
}
PARTS = {f"{form}_{kind}": names for form, names in _PARTS.items() for kind in ("array", "matrix")}
"""The names of the parts, by the name of the class."""
_DAMAGED = "npzkit.open returns its parts, as they are."


def is_sparse(value: object) -> bool:
    """Return whether a value is one of scipy's sparse matrices or arrays."""
    sparse = imported("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(value))


def parts_of(value: Any) -> dict[str, Any]:
    """Return the parts of a sparse matrix or array, by name.

    Raises
    ------
    UnsupportedError
        It is of a format without plain arrays.
    """
    kind = type(value).__name__
    if kind not in PARTS:
        raise UnsupportedError(
            "this sparse format has no plain arrays", found=kind, remedy="Save value.tocsr().",
        )  # fmt: skip
    special = {"shape": lambda: np.array(value.shape), "coords": lambda: np.array(_coords(value))}
    return {name: special.get(name, lambda n=name: getattr(value, n))() for name in PARTS[kind]}


def _coords(value: Any) -> Any:
    return value.coords if hasattr(value, "coords") else (value.row, value.col)


def made_of(kind: str, parts: Mapping[str, Any]) -> Any:
    """Return the sparse matrix or array of some parts; a dict of them without scipy.

    Raises
    ------
    NpyFormatError
        The parts do not fit each other.
    """
    sparse = package("scipy.sparse", f"a {kind} is read as a dict of its parts")
    if sparse is None:
        return dict(parts)
    data, *places, shape = (parts[name] for name in PARTS[kind])
    if kind.startswith("coo"):
        places = [tuple(places[0])]
    try:
        made = getattr(sparse, kind)((data, *places), shape=tuple(shape.tolist()))
        if hasattr(made, "check_format"):
            # Otherwise a wrong index reads, or writes, memory of others.
            made.check_format(full_check=True)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise NpyFormatError(
            f"the parts of a {kind} do not fit each other", found=str(error), remedy=_DAMAGED
        ) from error
    return made


def of_scipy(tree: Any) -> Any:
    """Return the matrix of a file of `scipy.sparse.save_npz`, or any other tree as it is."""
    if not isinstance(tree, dict) or not {"format", "shape", "data"} <= tree.keys():
        return tree
    form, parts = tree["format"], dict(tree)
    if not isinstance(form, np.ndarray) or form.ndim or form.dtype.kind not in "SU":
        return tree
    text = form.item() if form.dtype.kind == "U" else form.item().decode("latin1")
    kind = f"{text}_{'array' if parts.pop('_is_array', False) else 'matrix'}"
    del parts["format"]
    if kind.startswith("coo") and {"row", "col"} <= parts.keys():
        parts["coords"] = parts.pop("row"), parts.pop("col")
    return made_of(kind, parts) if parts.keys() == {*PARTS.get(kind, ())} else tree
