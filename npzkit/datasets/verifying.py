"""Checking archives, in one file or in many.

Owns `verify`, which tells the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npzkit.datasets.opening import is_sharded, opened
from npzkit.files.progress import Report
from npzkit.limits import Limits
from npzkit.maintenance import verify as single
from npzkit.maintenance.findings import VerifyReport


def verify(
    file: Any,
    keys: Sequence[str] | None = None,
    progress: Report | None = None,
    *,
    threads: int | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Check an archive against every rule, without stopping at the first fault.

    These are checked:

    - the end records and the directory
    - overlaps and gaps between members
    - each local header against its directory entry
    - the header of each array against the size of the member
    - all data against its CRC-32
    - seek indexes, by reading with them
    - names that cannot be extracted safely
    - alignment, and which members contain Python objects
    - of a sharded archive, the index against the shards

    Parameters
    ----------
    file : path, URL, bytes-like, file object or NpzFile
        May be the folder of a sharded archive, as for `npzkit.open`.
        A file object that cannot seek, such as a pipe, is read from front to
        back; see the notes.
    keys : sequence of str, optional
        Members to check; all by default.
    progress : callable, optional
        Called with the uncompressed bytes done and the total, in this thread,
        every few megabytes and at the end.
    threads : int, optional
        Number of threads; None uses all processors.
    limits : Limits, optional
        Limits to check the archive against. The default is those of an
        `NpzFile`, or ``Limits()``.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Returns
    -------
    VerifyReport
        If the file is not an archive, the report has one row that says so.

    Raises
    ------
    OSError
        The file cannot be read.
    MemberNotFoundError
        One of `keys` is not found.
    TypeError
        `keys` is a string.

    Notes
    -----
    A file object that cannot seek is read to its end in bounded memory. Seek
    indexes are not tried then, and the total that `progress` gets is the number
    of bytes so far.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"w": np.arange(1000.0), "b": np.zeros(3)})
    >>> npzkit.verify(stream).ok
    True
    >>> data = bytearray(stream.getvalue())
    >>> data[5000] ^= 1
    >>> print(npzkit.verify(data))  # doctest: +ELLIPSIS
    severity  key  at byte  what
    error     w         64  the data is damaged: its CRC-32 differs: found ...
    archive: NOT sound, 2 members, 1 error
    """
    if not is_sharded(file):
        return single.verify(
            file, keys, progress, threads=threads, limits=limits, storage_options=storage_options
        )
    with opened(file, limits=limits, storage_options=storage_options) as npz:
        return npz.verify(keys, progress, threads=threads)
