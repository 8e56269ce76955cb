"""Packages that npzkit uses only if the program has imported them.

Owns how such a package is found. Never imports one, and never waits for an import.
"""

from __future__ import annotations

import sys
from typing import Any


def imported(name: str) -> Any:
    """Return a module whose import is complete, or None.

    While a thread imports a module, `sys.modules` already has it, without some of its names.
    No value can be of its classes yet. Waiting for the import could wait forever, because
    the import may wait for this thread.

    Examples
    --------
    >>> imported("sys") is sys, imported("none.such")
    (True, None)
    """
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    return module
