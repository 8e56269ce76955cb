"""Sharded archives for readers: what they have beside what any archive has.

Owns `ShardedFile` and `PartInfo`. What its calls do is in `npzkit.datasets.sharded_contents`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from npzkit.archive.npzfile import NpzFile
from npzkit.codecs.coding import method_name
from npzkit.datasets.sharded_contents import ShardedContents
from npzkit.limits import Limits

if TYPE_CHECKING:
    from npzkit.typing import MmapMode, PathLike


class PartInfo(NamedTuple):
    """A part of an array of a sharded archive, from the index.

    Attributes
    ----------
    shard : str
        Name of the file.
    key : str
        Key of the part in its shard.
    offset, shape : tuple of int
        Where the part is in the array.
    compressed_size : int
        Bytes of the part in the shard, without headers.
    crc32 : int
        CRC-32 of its uncompressed bytes, including the NPY header.
    method : str
        ``"stored"``, ``"deflated"``, ...
    """

    shard: str
    key: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    compressed_size: int
    crc32: int
    method: str


class ShardedFile(NpzFile):
    """An open sharded archive: ``npz[key]`` reads one array, whatever shards it is in.

    Returned by `npzkit.open` for a folder with an ``index.npz``. Opening reads
    the index. A shard is opened when it is needed, and is checked to be the one
    that the index names.

    Threads and forked processes may share it. It can be pickled, and is opened
    again when it is unpickled; each use raises the error if that fails. The pickle
    of a URL contains its `storage_options`, also secret ones.

    Parameters
    ----------
    folder : path or URL
        Of the folder, or of its ``index.npz``.
    mmap_mode : {None, "r", "c", "r+"}, optional
        If given, ``npz[key]`` maps the array instead of reading it; see
        `memmap`.
    verify : bool, default True
        Compare what is read with CRC-32s, where a call does not say otherwise; see
        `npzkit.open`.
    strict : bool, default False
        As of `NpzFile`, for each shard.
    limits : Limits, optional
        For the archive, and for each shard. ``member_count`` counts arrays.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Attributes
    ----------
    files : list of str
        The keys, in the archive's order.
    f : object
        The arrays as attributes: ``npz.f.weights``.
    metadata : mapping of str to object
        The metadata that the archive was saved with, read-only.
    path : str
        The folder, or its URL without secrets.

    Raises
    ------
    OSError
        There is no index, or it cannot be read.
    FormatError, ChecksumError
        The index is damaged.
    UnsafeNameError
        The index names a file that is not in its folder.
    LimitExceededError
        The archive exceeds `limits`.

    Notes
    -----
    The methods are those of `NpzFile`, with these differences:

    - `read`, `load_all`, `lazy` and what they return may also raise
      MissingShardError, StaleArchiveError (the archive or a shard was replaced)
      and IndexFormatError (a part is not what the index says).
    - `lazy` and `info` open no shard. `info` of an array of several parts has
      their number in `method`, the sum of their `compressed_size`, and as `crc32`
      that of the CRC-32s of the `parts`, four bytes each. The index does not know
      `data_offset` and `aligned`: 0 and False.
    - `memmap` maps arrays that are stored in one part, and not in mode "r+".
    - `stream` checks all parts of an array before it returns the first byte, so
      it reads them twice, unless there is one part.
    - `archive_info` has the sizes of all shards, with the index as the directory.
    - `verify` compares the index with the shards too. Offsets are those in the
      shard that a row names.
    - `zip` raises UnsupportedError, `fid` is None, and `flush` does nothing.

    Examples
    --------
    >>> import npzkit, numpy as np
    >>> with npzkit.ShardedWriter("memory://doctest/file") as w:
    ...     w.add("x", np.zeros((2, 3)), offset=(0, 0), global_shape=(4, 3))
    ...     w.add("x", np.ones((2, 3)), offset=(2, 0), global_shape=(4, 3))
    ...     w.commit()
    >>> npz = npzkit.open("memory://doctest/file")
    >>> npz["x"].shape, npz.lazy("x")[1:3, 0]
    ((4, 3), array([0., 1.]))
    """

    _archive: ShardedContents  # type: ignore[assignment]

    def __init__(
        self,
        folder: PathLike,
        *,
        mmap_mode: MmapMode | None = None,
        verify: bool = True,
        strict: bool = False,
        limits: Limits | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            folder, mmap_mode=mmap_mode, verify=verify, strict=strict, limits=limits,
            storage_options=storage_options,
        )  # fmt: skip

    @staticmethod
    def _open_archive(
        file: Any, own_fid: bool, options: dict[str, Any], storage_options: Mapping[str, Any] | None
    ) -> ShardedContents:
        return ShardedContents(file, options, storage_options)

    @property
    def path(self) -> str:
        return self._archive.path

    def parts(self, key: str) -> tuple[PartInfo, ...]:
        """Return the parts of an array by the index alone. No shard is opened.

        Parameters
        ----------
        key : str
            With or without ``.npy``.

        Returns
        -------
        tuple of PartInfo
            They tile the array. Empty if the array has no items.
        """
        index = self._archive.index
        return tuple(
            PartInfo(
                index.shards[part.shard].name, part.key, part.offset, part.shape,
                part.compressed_size, part.crc32, method_name(part.method),
            )
            for part in index.parts(self._archive.find(key))
        )  # fmt: skip
