"""The NPY format: npzkit's implementation of every function of `numpy.lib.format`.

Names, signatures and bytes are the same as in NumPy. The functions are stricter
about bad input: they raise `npzkit.errors.NpyFormatError` (a ``ValueError``) or
a related error, and never evaluate text from a file as Python code. The readers
and writers of version 3.0 are public here and private in NumPy.

Source: the NPY format description in `numpy.lib.format`; NEP 1.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return what NumPy's module has, too, from `npzkit.drop_ins.numpy_format`, imported now."""
    from importlib import import_module

    try:
        return getattr(import_module("npzkit.drop_ins.numpy_format"), name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*__getattr__("__all__"), *globals()})


# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - Cached headers: the dtype of a cached header is copied before it is returned if it has fields,
#   because users can assign to `dtype.names`.
