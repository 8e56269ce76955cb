"""What an archive may cost its reader. Imports nothing of npzkit."""

from __future__ import annotations

import dataclasses

__all__ = ["DEFAULT_HEADER_SIZE", "Limits"]

DEFAULT_HEADER_SIZE = 10_000
"""numpy's own default for ``max_header_size``, in bytes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds that a reader holds an archive against.

    Sizes are always checked against what the file can physically hold, limits
    or not; these bound what an honest but huge file may cost.

    Parameters
    ----------
    header_size : int or None, default 10_000
        Bytes of one array's NPY header. Lifted by ``allow_pickle=True``, as in
        numpy: whoever unpickles a file trusts it.
    member_count : int or None, default None
        Members of the archive, checked before the directory is parsed.
    member_size : int or None, default None
        Uncompressed bytes of one member, checked when it is read.
    total_size : int or None, default None
        Uncompressed bytes of all members together, checked at open.

    Notes
    -----
    ``None`` means no limit.

    Examples
    --------
    >>> Limits(member_size=2**30).member_size
    1073741824
    """

    header_size: int | None = DEFAULT_HEADER_SIZE
    member_count: int | None = None
    member_size: int | None = None
    total_size: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and (type(value) is not int or value < 0):
                raise ValueError(f"{field.name} must be a whole number or None, not {value!r}")
