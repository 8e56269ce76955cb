"""How a part of an array is read best, for those who choose which parts they read.

Owns the record alone. Lazy arrays tell it.
"""

from __future__ import annotations

from typing import NamedTuple


class ReadHabits(NamedTuple):
    """How a lazy array is read.

    Attributes
    ----------
    gap_size : int
        A gap between two items that is shorter than these bytes is read as well.
    at_once : int
        How many reads are best made at a time: several, if each is a request.
    by_columns : bool
        Whether it is stored in Fortran's order.
    is_in_order : bool
        Whether data before a part is decompressed first, because there is no seek index.
    """

    gap_size: int = 1 << 14
    at_once: int = 1
    by_columns: bool = False
    is_in_order: bool = False
