"""A whole archive in one call.

Owns what `save` checks before anything is touched, and the order of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from npzkit.archive.npzwriter import NpzWriter
from npzkit.codecs.methods import method_number
from npzkit.writing.coding import Compression, check_coding, level_for
from npzkit.writing.preparation import Member, Preparation, splitting_for
from npzkit.zip.sozip import CHUNK_SIZE

if TYPE_CHECKING:
    from npzkit.members.multipart import OnParts, Splitting

__all__ = ["save", "save_arrays"]


def save(
    file: Any,
    arrays: Mapping[str, Any],
    *,
    compression: Compression = "stored",
    level: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    allow_pickle: bool = False,
    durable: bool = False,
    chunk_size: int = CHUNK_SIZE,
    seekable: bool = True,
    threads: int | None = None,
    lock_timeout: float | None = None,
    masked: OnParts = "refuse",
    strings: OnParts = "refuse",
) -> None:
    """Write a mapping of arrays as one archive: the old file or the new one.

    Parameters
    ----------
    file : path or file object
        A path is taken as it is, no ``.npz`` is appended.
    arrays : mapping of str to array-like
        In this order. Any key a file could have, ``"file"`` and ``"arr_0"``
        among them. A dict's arrays are all checked, and pickled where they hold
        objects, before anything is touched; of another mapping, such as an
        `NpzFile`, they are taken one by one, and few are held at a time. A
        dict may be nested: see the notes.
    compression, level, metadata, allow_pickle, durable, chunk_size, seekable, threads, lock_timeout
        As in `NpzWriter`.
    masked, strings : {"refuse", "split"}, default "refuse"
        As in `NpzWriter`.

    Raises
    ------
    NpzkitError, OSError, ValueError, TypeError
        As `NpzWriter` and `NpzWriter.add`. The path keeps its old file.

    Notes
    -----
    Mappings in a dict, and lists and tuples that hold arrays, become keys with
    ``/``: ``{"layer": {"w": w}}`` is ``layer/w``, and ``{"steps": [a, b]}`` is
    ``steps/0`` and ``steps/1``. `npzkit.load_tree` gives back the dicts, lists
    and tuples in their order, keys that are ints, and None, numbers and strings
    in them. These are kept in the metadata under ``npzkit.tree``, 65,535 bytes
    in all; more is a `LimitExceededError`. A namedtuple is an `UnsupportedError`:
    save its ``_asdict()``. At the top, numbers, strings and lists of them are
    arrays, as in `numpy.savez`.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"file": np.arange(3), "layer": {"w": np.eye(2)}})
    >>> np.load(io.BytesIO(stream.getvalue())).files
    ['file', 'layer/w']
    """
    if not isinstance(arrays, Mapping):
        raise TypeError(
            f"arrays must be a mapping of keys to arrays, not {type(arrays).__name__}: "
            "npzkit.save(file, {'x': x}); npzkit.savez(file, x=x) has numpy's signature"
        )
    if isinstance(arrays, dict) and not _is_flat(arrays):
        from npzkit.members.nesting import flatten, is_nested, with_note

        if is_nested(arrays):
            arrays, note = flatten(arrays)
            metadata = with_note(metadata, note)
    save_arrays(
        file,
        arrays,
        compression=compression,
        level=level,
        metadata=metadata,
        allow_pickle=allow_pickle,
        durable=durable,
        chunk_size=chunk_size,
        seekable=seekable,
        threads=threads,
        lock_timeout=lock_timeout,
        splitting=splitting_for(masked, strings),
    )


def _is_flat(arrays: dict[Any, Any]) -> bool:
    """Whether these are arrays by strings, as in most calls."""
    return set(map(type, arrays)) <= {str} and set(map(type, arrays.values())) <= {np.ndarray}


def save_arrays(
    file: Any,
    arrays: Mapping[str, Any],
    *,
    compression: Compression = "stored",
    level: int | None = None,
    allow_pickle: bool = False,
    chunk_size: int = CHUNK_SIZE,
    seekable: bool = True,
    splitting: Splitting | None = None,
    **options: Any,
) -> None:
    """Write a flat mapping, whose values are saved as arrays whatever they are."""
    level_for(method_number(compression), level)
    coding = check_coding(compression, level, chunk_size, seekable)
    members: Iterable[Member]
    members = Preparation(allow_pickle=allow_pickle, splitting=splitting).many(arrays, coding)
    if isinstance(arrays, dict):
        # No file is touched if one of them cannot be saved.
        members = list(members)
    with NpzWriter(file, **options) as writer:
        writer._archive.alone(writer._archive.write, members, coding, False)
