"""What a caller does together with other processes, or alone.

Owns what both are asked for. How processes agree is `npzkit.jax.processes`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Agreement:
    """One process, which agrees with itself; a class below it has all processes of a job.

    Attributes
    ----------
    is_joint : bool
        Whether there are others, so that this one reads, or writes, some parts only.
    """

    is_joint = False

    def first(self, work: Callable[[], T]) -> T:
        """Return what the work of the first process returns, as JSON has it."""
        return work()

    def own(self, work: Callable[[], T]) -> T:
        """Return what this process's work returns, once that of all has succeeded."""
        return work()
