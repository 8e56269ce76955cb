"""xarray's data sets to archives: variables, coordinates, attributes, groups.

Owns `to_npz`, and that arrays of dask are written block by block. How times,
missing values and coordinates are encoded is xarray's.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray
from xarray import conventions
from xarray.backends.common import ensure_dtype_not_object

from npzkit.archive.lazyarray import LazyArray
from npzkit.archive.npzfile import NpzFile
from npzkit.archive.npzwriter import NpzWriter
from npzkit.codecs.coding import STORED, checked_method
from npzkit.datasets.shardedfile import ShardedFile
from npzkit.datasets.shardedwriter import ShardedWriter
from npzkit.errors import UnsupportedError
from npzkit.files.file_objects import can_write
from npzkit.files.urls import Location, find_location
from npzkit.members.metadata import LOST_KEY, check_attrs
from npzkit.xarray.appending import append_variables, encoding_of, known_variables
from npzkit.xarray.archive_store import GROUPS, attrs_to_json, path_in
from npzkit.xarray.dimensions import DIMENSIONS, named_dimensions
from npzkit.xarray.kept_values import checked

if TYPE_CHECKING:
    from npzkit.typing import Compression


_OWN_ENCODING = {"compression", "level", "chunk_size", "seekable"}
"""What `encoding` says to npzkit."""
_CF_ENCODING = {
    "_FillValue", "_Unsigned", "add_offset", "calendar", "coordinates", "dtype", "grid_mapping",
    "missing_value", "scale_factor", "units",
}  # fmt: skip
"""What `encoding` says to xarray."""
_UNNAMED = "__xarray_dataarray_variable__"
"""The name that xarray gives to a DataArray without one, in every format, or to one that is
named like its own dimension or coordinate. Such a name is then in the attribute `_NAME`."""
_NAME = "__xarray_dataarray_name__"
_OTHER_ENCODING = (
    "Pass an encoding= that keeps them (NaN needs a _FillValue), or none, and "
    "dataset.drop_encoding()"
)
_ROWS_SIZE = 1 << 27
"""Most bytes of rows that are in memory at a time, unless one block has more."""


def to_npz(
    dataset: Any,
    path: Any,
    *,
    compression: Compression = "stored",
    level: int | None = None,
    mode: Literal["w", "x", "a"] = "w",
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    group: str | None = None,
    append_dim: str | None = None,
    durable: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Save a data set, or a tree of them, as one archive.

    ``xarray.open_dataset`` and ``xarray.open_datatree`` read it, and `numpy.load`
    reads its arrays. The file is replaced when the new one is complete.

    Parameters
    ----------
    dataset : xarray.Dataset, xarray.DataTree or xarray.DataArray
        The keys of a tree are the paths of its variables.
    path : path, URL or file object
        As in `npzkit.NpzWriter`.
    compression : {"stored", "deflated", "zstd"} or int, default "stored"
    level : int, optional
        Of compressed arrays, as in `npzkit.NpzWriter`.
    mode : {"w", "x", "a"}, default "w"
        "w" replaces an existing file, "x" fails if it exists, and "a" adds
        variables to it, and replaces those of the same names. Dimensions of the
        others keep their sizes.
    encoding : mapping of str to dict, optional
        By variable; in a tree by its path. ``compression``, ``level``,
        ``chunk_size`` and ``seekable`` are npzkit's. Others are xarray's:
        ``dtype``, ``scale_factor``, ``_FillValue``, ``units`` and so on.
    group : str, optional
        Path of the group to write to.
    append_dim : str, optional
        Append to a folder, `path`, along this dimension, the first one of the variables that
        have it. Only they are written, with the encoding of the folder, and all of them; others
        stay as they are. A folder that is not there is made. `mode` has no meaning then.
    durable : bool, default False
        As in `npzkit.NpzWriter`.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Raises
    ------
    TypeError
        A name, or an attribute, cannot be kept.
    ValueError
        A name contains a slash, or `encoding` names no variable, or the name of
        an attribute begins with ``npzkit.``, or a string ends with NUL or is null,
        or an encoding with integers cannot keep the values, or a dimension has
        another size in the archive that is added to, or what is appended does not
        fit a folder: a variable is missing, a coordinate that does not grow is another.
    NpzkitError, OSError
        As `npzkit.NpzWriter`. The old file is kept.

    Notes
    -----
    Arrays of dask are computed and written block by block, except strings of
    variable width, which are in memory meanwhile. If arrays are compressed or go
    to a URL, they are written by rows of up to 128 MiB; chunks with more rows
    than that are put into a temporary file first. Google and Azure
    take arrays of dask only if they are compressed.

    The names of dimensions are in the attribute ``_ARRAY_DIMENSIONS``, as in
    Zarr. Attributes of the data set are the archive's metadata. Strings are
    saved with a fixed width. NumPy's numbers in attributes come back as
    Python's, and arrays as lists.

    Examples
    --------
    >>> import tempfile, xarray, npzkit, npzkit.xarray
    >>> path = tempfile.mkdtemp() + "/t.npz"
    >>> dataset = xarray.Dataset({"t": ("x", [1.5, 2.5], {"units": "K"})})
    >>> npzkit.xarray.to_npz(dataset, path, encoding={"t": {"compression": "deflated"}})
    >>> with npzkit.open(path) as npz:
    ...     print(npz["t"], npz.info("t").attrs["units"])
    [1.5 2.5] K
    """
    root = path_in("", group)
    nodes = {path_in(root, name): node for name, node in _nodes(dataset).items()}
    own, foreign = _split(encoding or {}, root, nodes)
    options: dict[str, Any] = {
        "compression": compression, "level": level, "durable": durable,
        "storage_options": storage_options,
    }  # fmt: skip
    if append_dim is not None:
        with _folder(path, append_dim, options) as folder:
            _append(folder, path, nodes, foreign, append_dim, storage_options)
        return
    encoded = {name: _encoded(name, node, foreign, _OTHER_ENCODING) for name, node in nodes.items()}
    variables = {
        key: variable for variables, _ in encoded.values() for key, variable in variables.items()
    }
    with NpzWriter(path, mode, **options) as writer:
        if mode == "a" and writer.files:
            _check_sizes(path, variables)
        _write_attributes(writer, {name: attrs for name, (_, attrs) in encoded.items()})
        # There, an array has to be written from front to back.
        by_rows = can_write(path) or isinstance(find_location(path, storage_options), Location)
        _write_variables(writer, variables, own, compression, by_rows=by_rows)


def _folder(path: Any, dim: str, options: Mapping[str, Any]) -> ShardedWriter:
    """Open a folder that is appended to; of a file, the error says how it becomes one."""
    try:
        return ShardedWriter(path, "a", **options)
    except UnsupportedError as error:
        if error.path is not None and os.path.isfile(error.path):
            error.remedy = (
                "Append to a folder. It gets what the file has by npzkit.xarray.to_npz("
                f"xarray.open_dataset({error.path!r}), FOLDER, append_dim={dim!r})."
            )
        raise


def _append(
    writer: ShardedWriter,
    path: Any,
    nodes: Mapping[str, xarray.Dataset],
    encoding: Mapping[str, Mapping[str, Any]],
    dim: str,
    storage_options: Mapping[str, Any] | None,
) -> None:
    known, labels, advice = {}, {}, _OTHER_ENCODING
    originals = {
        path_in(group, name): variable
        for group, node in nodes.items()
        for name, variable in node.variables.items()
    }
    if writer.is_adding:
        with ShardedFile(path, storage_options=storage_options) as npz:
            known = known_variables(npz)
            coords = {path_in(group, name) for group, node in nodes.items() for name in node.coords}
            still = [key for key in coords & known.keys() if dim not in originals[key].dims]
            labels = {key: npz[key] for key in still}
        # The encoding is the folder's alone.
        nodes = {name: node.drop_encoding() for name, node in nodes.items()}
        encoding = {key: encoding_of(key, v.dtype.kind, known) for key, v in originals.items()}
        advice = (
            "This is the encoding of the folder. Write the folder to a new one without it: npzkit."
            "xarray.to_npz(xarray.open_dataset(FOLDER).drop_encoding(), NEW, "
            f"append_dim={dim!r})"
        )
    encoded = {name: _encoded(name, node, encoding, advice) for name, node in nodes.items()}
    variables = {key: one for variables, _ in encoded.values() for key, one in variables.items()}
    append_variables(writer, variables, known, labels, dim)
    if not known:
        _write_attributes(writer, {name: attrs for name, (_, attrs) in encoded.items()})
    writer.commit()


def _nodes(dataset: Any) -> dict[str, xarray.Dataset]:
    """Return data sets by the paths of their groups; the root is ""."""
    if isinstance(dataset, xarray.DataTree):
        return {
            # The first node of a subtree inherits coordinates from nodes that are not saved.
            node.path[len(dataset.path) :].strip("/"): node.to_dataset(inherit=node is dataset)
            for node in dataset.subtree
        }
    if isinstance(dataset, xarray.DataArray):
        dataset = _with_its_array(dataset)
    if not isinstance(dataset, xarray.Dataset):
        raise TypeError(
            "dataset must be an xarray.Dataset, DataTree or DataArray, "
            f"not {type(dataset).__name__}"
        )
    return {"": dataset}


def _with_its_array(array: xarray.DataArray) -> xarray.Dataset:
    """Return a DataArray as the data set that ``xarray.open_dataarray`` takes it from."""
    if array.name is None:
        return array.to_dataset(name=_UNNAMED)
    if array.name not in array.dims and array.name not in array.coords:
        return array.to_dataset()
    return array.to_dataset(name=_UNNAMED).assign_attrs({_NAME: array.name})


def _split(
    encoding: Mapping[str, Mapping[str, Any]], root: str, nodes: Mapping[str, xarray.Dataset]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return what `encoding` says to npzkit and to xarray, both by key."""
    own, foreign = {}, {}
    for name, values in encoding.items():
        key = path_in(root, name)
        group, _, last = key.rpartition("/")
        if group not in nodes or last not in nodes[group].variables:
            raise ValueError(f"encoding: there is no variable {name!r}")
        unknown = values.keys() - _OWN_ENCODING - _CF_ENCODING
        if unknown:
            known = ", ".join(sorted(_OWN_ENCODING | _CF_ENCODING))
            raise ValueError(
                f"encoding of {name!r}: not known are {sorted(unknown)}; known are {known}"
            )
        own[key] = {item: value for item, value in values.items() if item in _OWN_ENCODING}
        foreign[key] = {item: value for item, value in values.items() if item not in own[key]}
    return own, foreign


def _encoded(
    group: str, dataset: xarray.Dataset, encoding: Mapping[str, Mapping[str, Any]], advice: str
) -> tuple[dict[str, xarray.Variable], dict[str, Any]]:
    """Return the variables of a group by key, and its attributes, as they are stored.

    `advice` is for values that the encoding cannot keep.
    """
    for name in dataset.variables:
        if not isinstance(name, str):
            raise TypeError(f"names of variables must be strings, not {name!r}")
        if "/" in name:
            raise ValueError(
                f"the variable {name!r} has a slash: make a group of it, in a DataTree"
            )
    prefix = f"{group}/" if group else ""
    dataset = dataset.copy()
    for name, variable in dataset.variables.items():
        # As it was read, also from another format, but for what is npzkit's business.
        chosen = {**variable.encoding, **encoding.get(f"{prefix}{name}", {})}
        variable.encoding = {k: v for k, v in chosen.items() if k != "preferred_chunks"}
    variables, attrs = conventions.encode_dataset_coordinates(dataset)
    # NPY has booleans, which xarray would make int8.
    others = {name: v for name, v in variables.items() if v.dtype.kind != "b"}
    others, attrs = conventions.cf_encoder(others, attrs)
    kept = attrs_to_json(attrs, f"the group {group!r}" if group else "the data set")
    # What `repair` notes of a file stays true of its data set.
    check_attrs({name: value for name, value in kept.items() if name != LOST_KEY})
    return {
        (key := f"{prefix}{name}"): _stored(
            key, checked(key, variable, others.get(name, variable), advice)
        )
        for name, variable in variables.items()
    }, kept


def _stored(key: str, variable: xarray.Variable) -> xarray.Variable:
    """Return a variable with a dtype that NPY has, and attributes that JSON has."""
    if variable.dtype.kind in "OT":
        # The longest string is the width of all, so dask's are computed here.
        variable = variable.compute()
        _check_strings(variable.values, key)
    variable = ensure_dtype_not_object(variable, name=key)
    if variable.dtype.kind in "OT":
        variable = variable.copy(data=_fixed_width(np.asarray(variable.data), key))
    attrs = attrs_to_json(variable.attrs, f"the variable {key!r}")
    attrs[DIMENSIONS] = [str(name) for name in variable.dims]
    variable = variable.copy(deep=False)
    variable.attrs = attrs
    return variable


def _fixed_width(strings: np.ndarray[Any, Any], key: str) -> np.ndarray[Any, Any]:
    """Return variable-width strings, all text or all bytes, with the width of the longest."""
    if not all(isinstance(text, (str, bytes)) for text in strings.flat):
        raise ValueError(
            f"the variable {key!r} has null strings, which NumPy's strings of a fixed width "
            "cannot keep: replace them, such as by dataset.fillna('')"
        )
    is_bytes = strings.size > 0 and isinstance(strings.flat[0], bytes)
    # NumPy finds no width for strings of its variable width.
    return strings.astype(object).astype(bytes if is_bytes else str)


def _check_sizes(path: Any, variables: Mapping[str, xarray.Variable]) -> None:
    """Raise ValueError if a dimension has another size in the archive that is added to."""
    sizes = {
        (_group_of(key), dim): (key, size)
        for key, variable in variables.items()
        for dim, size in variable.sizes.items()
    }
    with NpzFile(path) as npz:
        kept = [(key, npz.info(key)) for key in npz.files if key not in variables]
    for key, info in kept:
        shape = info.shape or ()
        for dim, size in zip(named_dimensions(info.attrs, len(shape)) or (), shape, strict=False):
            other, wanted = sizes.get((_group_of(key), dim), (key, size))
            if size != wanted:
                raise ValueError(
                    f"the dimension {dim!r} of {other!r} has the size {wanted}, but {size} in "
                    f"the archive, where {key!r} has it: rename it, or write to another group"
                )


def _group_of(key: str) -> str:
    return key.rpartition("/")[0]


def _write_attributes(
    writer: NpzWriter | ShardedWriter, attrs: Mapping[str, dict[str, Any]]
) -> None:
    """Keep the attributes of groups in the metadata of the archive."""
    kept = writer.metadata.get(GROUPS)
    groups = dict(kept) if isinstance(kept, dict) else {}
    for name, values in attrs.items():
        if name:
            groups[name] = values
        else:
            writer.metadata.update(values)
    if groups:
        writer.metadata[GROUPS] = groups


def _write_variables(
    writer: NpzWriter,
    variables: Mapping[str, xarray.Variable],
    encoding: Mapping[str, dict[str, Any]],
    compression: Compression,
    *,
    by_rows: bool,
) -> None:
    filled = []
    for key, variable in variables.items():
        options = {**encoding.get(key, {}), "attrs": variable.attrs}
        if key in writer:
            del writer[key]
        if not variable.chunks or not variable.size:
            writer.add(key, np.asarray(variable.values), **options)
            continue
        # An array of dask, which has axes.
        data, shape = variable.data, variable.shape
        method = checked_method(options.get("compression", compression), options.get("level"))
        if method != STORED or by_rows:
            rows = None if method == STORED else shape[0]
            _write_rows(writer, key, data, (rows, *shape[1:]), options)
        else:
            filled.append((data, writer.create(key, shape, data.dtype, **options)))
    _fill(filled)


# -- arrays of dask ---------------------------------------------------------


def _fill(filled: list[tuple[Any, Any]]) -> None:
    """Compute arrays into arrays of an archive that are filled in any order.

    All are computed at once, because they may have intermediate results in common.

    Parameters
    ----------
    filled : list of (dask.array.Array, FilledArray)
    """
    if not filled:
        return
    import dask.array

    with contextlib.ExitStack() as stack:
        for _, target in filled:
            stack.enter_context(target)
        sources, targets = zip(*filled, strict=True)
        dask.array.store(list(sources), list(targets), lock=False)


def _write_rows(
    writer: NpzWriter,
    key: str,
    data: Any,
    shape: tuple[int | None, ...],
    options: Mapping[str, Any],
) -> None:
    """Write an array that must be written from front to back.

    Parameters
    ----------
    writer : NpzWriter
    key : str
    data : dask.array.Array
    shape, options
        As of `NpzWriter.create`.
    """
    row_size = max(data.nbytes // len(data), 1)
    edges = [0, *accumulate(data.chunks[0])]
    with contextlib.ExitStack() as stack:
        is_high = max(data.chunks[0]) * row_size > _ROWS_SIZE
        if is_high and data.npartitions > len(data.chunks[0]):
            data = stack.enter_context(_in_order(data))
            edges = [*range(0, len(data), max(_ROWS_SIZE // row_size, 1)), len(data)]
        target = stack.enter_context(writer.create(key, shape, data.dtype, **options))
        for start, stop in pairwise(edges):
            target.append(np.asarray(data[start:stop]))


@contextlib.contextmanager
def _in_order(data: Any) -> Iterator[LazyArray]:
    """Yield an array of dask from a temporary archive, where its rows are complete."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.npz")
        with NpzWriter(path) as writer:
            _fill([(data, writer.create("rows", data.shape, data.dtype))])
        with NpzFile(path) as npz:
            yield npz.lazy("rows")


def _check_strings(strings: np.ndarray[Any, Any], key: str) -> None:
    """Raise ValueError if NumPy would cut strings that get a fixed width."""
    ends: dict[type, Any] = {str: "\0", bytes: b"\0"}
    for text in strings.flat:
        if type(text) in ends and text.endswith(ends[type(text)]):
            raise ValueError(
                f"the variable {key!r} has strings that end with NUL, which NumPy's strings of a "
                "fixed width cannot keep"
            )
