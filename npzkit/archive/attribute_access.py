"""The arrays of an archive as attributes: ``npz.f.weights``.

Owns that object. Every name is a key, so it has no attributes of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ArrayAttributes"]


class ArrayAttributes:
    """The arrays of an archive as attributes."""

    def __init__(self, npz: Mapping[str, Any]) -> None:
        self._npz = npz

    def __getattribute__(self, name: str) -> Any:
        npz = object.__getattribute__(self, "_npz")
        try:
            return npz[name]
        except KeyError as error:
            raise AttributeError(str(error)) from None

    def __dir__(self) -> list[str]:
        npz: Mapping[str, Any] = object.__getattribute__(self, "_npz")
        return list(npz)
