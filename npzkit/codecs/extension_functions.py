"""C functions that an extension module of another package exports.

Owns how `ctypes` finds them. The packages deflate and zlib-ng contain the libraries
libdeflate and zlib-ng, but offer only some of their functions to Python.
"""

from __future__ import annotations

import importlib
from typing import Any


def exported_functions(module: str, *names: str) -> tuple[Any, ...] | None:
    """Return functions of an extension module, whose types the caller sets.

    None if the module is not installed or does not export all of them, as on Windows.
    """
    try:
        import ctypes

        library = ctypes.CDLL(str(importlib.import_module(module).__file__))
        return tuple(getattr(library, name) for name in names)
    except (ImportError, OSError, AttributeError):
        return None
