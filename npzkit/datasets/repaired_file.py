"""Repairing an archive in one file. One in many files is refused, because they must fit its index.

Owns `repair`, and what it says of a sharded archive. How a file is repaired is
`npzkit.maintenance.repair`'s.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from npzkit.datasets.opening import sharded_folder
from npzkit.errors import Advice, UnsupportedError
from npzkit.limits import Limits
from npzkit.maintenance import repair as single
from npzkit.maintenance.findings import RepairReport

if TYPE_CHECKING:
    from npzkit.typing import Partial, Progress


def repair(
    file: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    keep_partial: Partial = None,
    overwrite: bool = False,
    limits: Limits | None = None,
    threads: int | None = None,
    lock_timeout: float | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> RepairReport:
    """Repair a damaged archive, or save the sound members to another file.

    Without `output`, the end of the file is repaired:

    - An unfinished append after the last commit is cut off.
    - An append that is complete but for its last few bytes is completed.
    - If the end record, the directory or the metadata of the last commit is
      damaged, a new directory is written at the end of the file. Nothing is cut
      off. Metadata that cannot be restored is reported as lost.
    - An interrupted flush of a map is completed: if the two headers of a stored
      array have different CRC-32s, the one that matches the data is written to
      both, and the array is reported as uncertain, because a copy of another version
      over the file leaves the same. If neither matches, it is reported as lost.

    A file without these faults is not changed.

    With `output`, every member whose data matches its CRC-32 is copied there
    with its attributes. If the directory is lost, members are found by their
    own headers. If a member's own header is damaged, its data is checked against
    its directory entry. Of a file that was copied as text, that is undone.

    Whatever may be older than the last commit is reported as uncertain, or as lost. If the
    end of the file is missing, or its newest directory cannot be restored completely, that
    is every array. What came after the last array that was found is lost then.

    Parameters
    ----------
    file : path or URL
        With a URL, `output` is needed.
    output : path, optional
        Where the sound arrays are written.
    keep_partial : {None, "mask", "drop"}, default None
        Keep what is left of damaged arrays.

        - Of an array with a CRC-32 per chunk, the values outside of damaged chunks
          are kept, and "mask" masks the others: the array is saved as with
          ``masked="split"``, and lost values are NaN, NaT or zero. "drop" leaves out
          the rows with lost values instead, so the rows after them get other
          numbers. An array that has a mask already keeps its rows.
        - Of a truncated array, the complete rows are kept. They cannot be checked,
          because the CRC-32 covers the complete array. So are those of a .npy file,
          which becomes an archive.

        The report names the lost rows, and the attribute ``partly_lost`` of the new array says
        what is lost.

        If anything is lost, the metadata ``npzkit.lost`` of the new archive list the keys.
    overwrite : bool, default False
        Whether to replace another file that is already at `output`, when the new one is
        complete.
    limits : Limits, optional
        Limits to check members against; by default, none.
    threads : int, optional
        Number of threads; None uses all processors.
    lock_timeout : float, optional
        Seconds to wait if another writer has the file open.
    progress : callable, optional
        Called with the bytes done and the total, which is twice the file size:
        the file is checked, then copied. Not called if no array is read.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Returns
    -------
    RepairReport
        Without `output`, arrays are not checked; use `npzkit.verify`.

    Raises
    ------
    ZipFormatError, AmbiguousArchiveError, UnsupportedError
        Without `output`, the file is not an archive and no earlier commit was
        found. With `output`, no member was found, or it is the archive itself. Or the file is
        a sharded archive, or its index.
    ArchiveLockedError
        Another writer has the file open.
    FileExistsError
        `output` already exists, and `overwrite` is False.
    OSError
        A file cannot be read or written.

    Examples
    --------
    >>> import os, tempfile, npzkit, numpy as np
    >>> path = os.path.join(tempfile.mkdtemp(), "a.npz")
    >>> npzkit.save(path, {"x": np.arange(3), "y": np.arange(1000)})
    >>> with open(path, "ab") as file:
    ...     _ = file.write(b"half an array")
    >>> npzkit.repair(path).cut_size
    13
    >>> os.truncate(path, 4000)
    >>> print(npzkit.repair(path, path + "2", keep_partial="mask"))  # doctest: +ELLIPSIS
    /...a.npz2: 2 members kept
    the list at the end of the file is missing or damaged: if the file was ever changed in ...
    partly lost: y (at byte ...): truncated: ... of 1,000 rows kept, unchecked; the other ...
    lost: the end of the file (at byte 4000): what came after 'y' is not known: arrays, ...
    """
    if isinstance(file, (str, os.PathLike)) and (folder := sharded_folder(file, storage_options)):
        raise not_repaired(folder)
    return single.repair(
        file, output, keep_partial=keep_partial, overwrite=overwrite, limits=limits,
        threads=threads, lock_timeout=lock_timeout, progress=progress,
        storage_options=storage_options,
    )  # fmt: skip


def not_repaired(folder: str) -> UnsupportedError:
    """Return the error for a sharded archive, which says what saves its sound parts."""
    rows = f"npzkit.open({folder!r}).lazy(key)[a:b] reads the sound rows of a damaged one"
    again = "Or write the archive again."
    return UnsupportedError(
        "repair does not take a sharded archive or its index", path=folder,
        remedy=Advice(
            f"npzkit.verify({folder!r}) names missing and damaged shards. "
            f"npzkit.extract({folder!r}, 'arrays', skip=True) saves its sound arrays. {rows}. "
            f"{again}",
            "npzkit verify FILE names missing and damaged shards. npzkit extract FILE -o FOLDER "
            f"saves its sound arrays; in Python, {rows}. {again}",
        ),
    )  # fmt: skip
