"""The formats of `convert`, by bytes and suffixes of files, and the library that each needs.

Owns which format a file has, which one a new path means, and which paths are refused: those
without a format, and those of another kind than the format's.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from npzkit.datasets.opening import holds_index, is_zarr, open_any
from npzkit.errors import Advice, ConversionError, NpzkitError, UnsupportedError, format_count
from npzkit.files.file_objects import check_regular
from npzkit.files.urls import Location
from npzkit.members.keys import SUFFIX


class Format(NamedTuple):
    """A format, and the library that it needs.

    Attributes
    ----------
    module : str
        Within `npzkit.conversion`. It has ``read(path, say, claims)``, a context manager
        that gives the file's `Contents`; and if such files are written,
        ``why_unfit(array)``, the reason why an array cannot be kept, or None, and
        ``write(path, contents, options, say)``, which makes a new file or folder.
        If names are restricted, it has ``why_no_name(key)``, the reason, or None.
        It is imported when a file of its kind is met, and its library with it.
    library : str
        Empty if none is needed.
    installed_by : str
        What pip installs to bring the library.
    is_foreign : bool
        Whether files of others are read by the library, and so in a process of its own.
    """

    module: str
    library: str = ""
    installed_by: str = ""
    is_foreign: bool = False


NPZ, ZARR = Format("npz"), Format("zarr_store", "zarr", "npzkit[zarr]", is_foreign=True)
TORCH = Format("torch_file", "torch", "torch", is_foreign=True)
_HDF5 = Format("hdf5", "h5py", "npzkit[h5]", is_foreign=True)
_SAFETENSORS = Format("safetensors_file", "safetensors", "npzkit[safetensors]")
MATLAB = Format("matlab", "scipy", "npzkit[mat]", is_foreign=True)
_SUFFIXES = {
    ".npz": NPZ,
    ".safetensors": _SAFETENSORS,
    ".h5": _HDF5,
    ".hdf5": _HDF5,
    ".zarr": ZARR,
    ".mat": MATLAB,
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), TORCH),
}
_TABLE_SUFFIXES = (".csv", ".tsv", ".txt")
PACK_ARCHIVES = (
    "To pack the archives in it: "
    + Advice('npzkit.pack(out, "FOLDER/**/*.npz")', 'npzkit pack OUT "FOLDER/**/*.npz"') + "."
)  # fmt: skip
"""What to do with a folder of archives."""


def source_format(place: str | os.PathLike[str] | Location) -> Format:
    if isinstance(place, Location):
        # An archive, unless its name says otherwise.
        if _SUFFIXES.get(os.path.splitext(place.file_name)[1].lower(), NPZ) is NPZ:
            return NPZ
        raise UnsupportedError(
            "only .npz archives can be read from a store", path=str(place),
            remedy="Download the file, and convert the copy.",
        )  # fmt: skip
    path = os.fsdecode(place)
    os.stat(path)
    if holds_index(path):
        return NPZ
    if os.path.isdir(path):
        if is_zarr(path):
            return ZARR
        raise ConversionError(
            "this folder is no Zarr store, and no sharded archive", path=path,
            remedy=_of_its_files(path),
        )  # fmt: skip
    check_regular(path)
    return _format_of_file(path)


def _of_its_files(folder: str) -> str:
    """Return what to do with the files in a folder, which is not converted."""
    suffixes = {os.path.splitext(name)[1].lower() for name in os.listdir(folder)}
    if SUFFIX not in suffixes:
        if ".npz" in suffixes:
            return PACK_ARCHIVES
        for suffix in sorted(suffixes.intersection(_SUFFIXES)):
            return "Convert its files one by one: " + Advice(
                f'for file in glob.glob("FOLDER/*{suffix}"): npzkit.convert(file, file + ".npz").',
                f'for file in FOLDER/*{suffix}; do npzkit convert "$file" "${{file%.*}}.npz"; done',
            )
        if suffixes & {".csv", ".tsv"}:
            return "Read its tables with NumPy's genfromtxt or with pandas, and save the arrays."
    return "To make an archive of the .npy files in it: " + Advice(
        'npzkit.pack("new.npz", folder).', "npzkit pack NEW.npz FILE."
    )


def _format_of_file(path: str) -> Format:
    """Return the format that the bytes of a file show, and if they show none, its name."""
    suffix = os.path.splitext(path)[1].lower()
    # A .npy file is read as an archive.
    named = {**_SUFFIXES, SUFFIX: NPZ, ".zip": NPZ}.get(suffix)
    error, count = None, 0
    try:
        with warnings.catch_warnings(action="ignore"), open_any(path) as npz:
            if any(npz.info(key).dtype is not None for key in npz):
                return NPZ
            count = len(npz.files)
    except NpzkitError as caught:
        error = caught
    found = (_SUFFIXES.get(error._suffix) if error else None) or named
    if found is NPZ and count:
        raise ConversionError(
            f"the archive has {format_count(count, 'member')}, and none is an array", path=path,
            remedy="To write its members to files: "
            + Advice("npzkit.extract(path, folder).", "npzkit extract FILE."),
        )  # fmt: skip
    with open(path, "rb") as file:
        is_zip = file.read(2) == b"PK"
    # A file of torch.save has this name too, and is a zip archive or a pickle.
    is_no_torch = found is TORCH and not (is_zip or zipfile.is_zipfile(path))
    if error is not None and not error._is_foreign and (is_no_torch or (is_zip and found is None)):
        raise error
    if found not in (None, ZARR):
        return found
    check_no_table(path)
    if error is not None and error._is_foreign:
        raise error
    end = f"that end in {suffix}" if suffix else "without a suffix"
    raise ConversionError(
        f"convert does not know files {end}", path=path,
        remedy=f"It reads {' '.join(_SUFFIXES)} {SUFFIX}.",
    )  # fmt: skip


def check_no_table(path: str) -> None:
    if path.lower().endswith(_TABLE_SUFFIXES):
        raise ConversionError(
            "text tables are not read", path=path,
            remedy="Read it with NumPy's genfromtxt or with pandas, and save the arrays.",
        )  # fmt: skip


def target_format(path: str) -> Format:
    if not path:
        raise ConversionError("the path of the new file is empty")
    name = path.rstrip("/" + os.sep)
    found = _SUFFIXES.get(os.path.splitext(name)[1].lower())
    if found is None:
        raise ConversionError(
            f"the path's suffix is none of {' '.join(_SUFFIXES)}", path=path,
            remedy=Advice(
                "npzkit.extract writes .npy and .csv files.",
                "npzkit extract writes .npy files; with --format csv, text tables.",
            ),
        )  # fmt: skip
    if found is TORCH:
        raise ConversionError(
            "files of torch.save are read, but not written", path=path,
            remedy="Convert to .safetensors; or to .npz, and in Python: "
            'torch.save(npzkit.load_tree("NEW.npz", like={}), "NEW.pt").',
        )  # fmt: skip
    if found is not ZARR and name != path:
        raise ConversionError(
            "the path ends in a slash, but this format is a file", path=path,
            remedy="Remove the slash.",
        )  # fmt: skip
    return found


def module_of(found: Format) -> Any:
    """Import a format's module."""
    with needing(found):
        return importlib.import_module(f"npzkit.conversion.{found.module}")


@contextlib.contextmanager
def needing(found: Format) -> Iterator[None]:
    """Say what to install if a library is missing."""
    try:
        yield
    except ImportError as error:
        if not found.library or (error.name or "").split(".")[0] == "npzkit":
            raise
        raise UnsupportedError(
            f"this format needs the package {found.library}, which is not installed",
            remedy=f'Install it: python -m pip install "{found.installed_by}"',
        ) from error
