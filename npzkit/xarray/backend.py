"""The engine by which xarray opens archives: data sets, trees of groups.

Owns what xarray calls, and which files it opens with npzkit without being told.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import xarray
from xarray.backends import BackendEntrypoint, StoreBackendEntrypoint

from npzkit.datasets.opening import holds_index
from npzkit.datasets.opening import open as open_archive
from npzkit.datasets.reopened import Reopened
from npzkit.errors import MemberNotFoundError, warn
from npzkit.files.urls import Location, find_location
from npzkit.xarray.archive_store import NpzStore, groups_of, path_in
from npzkit.xarray.dimensions import Dims, dimensions_of
from npzkit.xarray.masks import applied, masks_of


class NpzBackend(BackendEntrypoint):
    """Opens ``.npz`` archives for xarray, which finds it by the name ``npzkit``.

    Besides the parameters of `xarray.open_dataset`, its functions take these:

    Parameters
    ----------
    group : str, optional
        Path of a group, such as ``"model/layer"``; by default the root. The keys
        of a group's arrays begin with its path and a slash.
    dims : mapping of str to sequence of str, optional
        Names of dimensions by key in the group, for arrays that have none in the archive,
        or instead of those.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Warns
    -----
    MadeUpDimensionsWarning
        Arrays have no names of dimensions, and names were made up: ``dim_0``,
        ``dim_1``, one for each length.
    UserWarning
        All arrays are in groups inside the group.

    Notes
    -----
    Arrays that were saved with ``masked="split"`` have missing values, as of a
    ``_FillValue``; with ``mask_and_scale=False``, the mask is a variable.

    Complete variables are compared with their CRC-32, and parts are not, as by
    `npzkit.NpzFile.lazy`. xarray keeps the URL, also its password and query, in
    ``dataset.encoding["source"]``.

    Examples
    --------
    >>> import xarray, npzkit, numpy as np, tempfile
    >>> path = tempfile.mkdtemp() + "/t.npz"
    >>> npzkit.save(path, {"t": np.zeros((3, 4))})
    >>> with xarray.open_dataset(path, dims={"t": ["y", "x"]}) as dataset:
    ...     print(dict(dataset.sizes))
    {'y': 3, 'x': 4}
    """

    description = "Open .npz archives (.npz) using npzkit in Xarray"
    url = "https://pypi.org/project/npzkit/"
    supports_groups = True
    # xarray would take them from a signature without `**decoding`.
    open_dataset_parameters = (
        "filename_or_obj", "drop_variables", "mask_and_scale", "decode_times",
        "concat_characters", "decode_coords", "use_cftime", "decode_timedelta",
        "group", "dims", "storage_options",
    )  # fmt: skip

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether this is the path or URL of an archive, or a folder with index.npz."""
        if not isinstance(filename_or_obj, (str, os.PathLike)):
            return False
        found = find_location(filename_or_obj)
        if isinstance(found, Location):
            return found.file_name.partition("?")[0].lower().endswith(".npz")
        path = os.fsdecode(found)
        return path.lower().endswith(".npz") or (os.path.isdir(path) and holds_index(path))

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str | None = None,
        dims: Dims | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **decoding: Any,
    ) -> xarray.Dataset:
        """Open one group of an archive; see `xarray.open_dataset`."""
        opened = _opened(filename_or_obj, group, dims, storage_options, is_tree=False)
        with opened as (archive, name, all_dims, masks):
            _warn_of_groups(name, all_dims)
            return _dataset(archive, name, all_dims, masks, drop_variables, decoding)

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str | None = None,
        dims: Dims | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **decoding: Any,
    ) -> dict[str, xarray.Dataset]:
        """Open all groups, or all within one; see `xarray.open_groups`."""
        opened = _opened(filename_or_obj, group, dims, storage_options, is_tree=True)
        with opened as (archive, root, all_dims, masks):
            inside = f"{root}/" if root else ""
            found = {}
            for name in groups_of(archive.open()):
                if name == root or name.startswith(inside):
                    found[f"/{name[len(inside) :]}"] = _dataset(
                        archive.copy(), name, all_dims, masks, drop_variables, decoding
                    )
            return found

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> xarray.DataTree:
        """Open an archive as a tree of its groups; see `xarray.open_datatree`."""
        groups = self.open_groups_as_dict(filename_or_obj, **options)
        try:
            tree = xarray.DataTree.from_dict(groups)
        except BaseException:
            for dataset in groups.values():
                dataset.close()
            raise
        for path, dataset in groups.items():
            tree[path].set_close(dataset.close)
        return tree


@contextlib.contextmanager
def _opened(
    file: Any,
    group: str | None,
    dims: Dims | None,
    storage_options: Mapping[str, Any] | None,
    *,
    is_tree: bool,
) -> Iterator[tuple[Reopened, str, dict[str, tuple[str, ...]], dict[str, str]]]:
    """Open an archive; yield it with the path of a group, all dimensions, and all masks.

    It stays open, unless there is an error.
    """
    archive = Reopened(open_archive(file, storage_options=storage_options))
    try:
        npz = archive.open()
        name, groups = path_in("", group), groups_of(npz)
        if name not in groups:
            raise MemberNotFoundError(
                "the archive has no such group", path=archive.path, key=name,
                remedy=f"It has these: {', '.join(map(repr, groups[1:]))}." if groups[1:] else "",
            )  # fmt: skip
        infos = {key: npz.info(key) for key in npz.files}
        masks = masks_of(infos)
        yield archive, name, dimensions_of(infos, masks, dims, name, is_tree=is_tree), masks
    except BaseException:
        archive.close()
        raise


def _warn_of_groups(group: str, keys: Iterable[str]) -> None:
    """Warn if all arrays of a group are in groups inside it, so that its data set is empty."""
    inside = f"{group}/" if group else ""
    found = [key for key in keys if key.startswith(inside)]
    if found and all("/" in key[len(inside) :] for key in found):
        # Without the path, so that Python shows it once for many files.
        what = (
            "1 array is in a group" if len(found) == 1 else f"{len(found):,} arrays are in groups"
        )
        first = found[0].rpartition("/")[0]
        warn(f"{what}: use xarray.open_datatree(path), or group={first!r}", UserWarning)


def _dataset(
    archive: Reopened,
    group: str,
    dims: Mapping[str, tuple[str, ...]],
    masks: Mapping[str, str],
    dropped: str | Iterable[str] | None,
    decoding: Mapping[str, Any],
) -> xarray.Dataset:
    """Return a group as a data set, decoded by xarray."""
    names = [dropped] if isinstance(dropped, str) else list(dropped or ())
    applying = applied(masks, decoding.get("mask_and_scale"))
    store = NpzStore(archive, group, dims, applying, names)
    dataset = StoreBackendEntrypoint().open_dataset(store, **decoding)
    dataset.set_close(archive.close)
    return dataset
