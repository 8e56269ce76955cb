"""The arrays of an archive that were created and are not sealed yet.

Owns which they are, whether one of them grows, and what must wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npzkit.members.keys import SUFFIX

if TYPE_CHECKING:
    from npzkit.writing.created_array import CreatedArray


class Unsealed:
    """The created arrays of one archive, until they are sealed.

    Attributes
    ----------
    growing : CreatedArray or None
        The one that grows: nothing else can be written until it is sealed.
    """

    def __init__(self) -> None:
        self._arrays: list[CreatedArray] = []
        self.growing: CreatedArray | None = None

    def add(self, created: CreatedArray, *, grows: bool) -> None:
        """Add an array that was begun."""
        self._arrays.append(created)
        if grows:
            self.growing = created

    def remove(self, created: CreatedArray) -> None:
        """Remove an array that is sealed."""
        self._arrays.remove(created)
        if created is self.growing:
            self.growing = None

    def close(self) -> None:
        """Seal all of them."""
        for created in list(self._arrays):
            created.close()

    def forget(self) -> None:
        """Let none of them accept more data: the archive is complete or discarded."""
        for created in self._arrays:
            created.forget()
        self._arrays.clear()
        self.growing = None

    def check_none_grows(self, action: str) -> None:
        """Raise ValueError if an array is still growing; `action` is what must wait for it."""
        if self.growing is not None:
            raise ValueError(
                f"the array {self.growing.key!r} is still growing; close it before {action}"
            )

    def check_sealed(self, key: str, name: str) -> None:
        """Raise ValueError if the member of this name is one of them."""
        if any(created.key + SUFFIX == name for created in self._arrays):
            raise ValueError(f"the array {key!r} is being created; close it first")
