"""Folders of .npy files: a key's slashes are folders, and there is no place for attributes.

Owns how keys become paths.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from npzkit.conversion.arrays import (
    Array,
    Contents,
    FileOptions,
    InFile,
    Say,
    array_of,
    unreadable,
    why_not_npy,
)
from npzkit.conversion.inputs import Input, arrays_in_folder, raise_error
from npzkit.conversion.output_paths import check_file_names, path_within
from npzkit.errors import PickleRefusedError, printable
from npzkit.members.keys import SUFFIX


@contextlib.contextmanager
def read(path: str, say: Say) -> Iterator[Contents]:
    """Open a folder; one without an array is an error."""
    yield Contents({}, [_array(item) for item in arrays_in_folder(path, say)])


def _array(item: Input) -> Array:
    try:
        return array_of(item.key, item.read())
    except PickleRefusedError:
        return unreadable(item.key, (), "it holds Python objects")


why_unfit = why_not_npy


def can_replace(path: str) -> bool:
    """Return whether a folder holds nothing but what `write` puts there."""
    places = os.walk(path, onerror=raise_error)
    return all(name.endswith(SUFFIX) for _, _, names in places for name in names)


def write(path: str, contents: Contents, options: FileOptions, say: Say) -> None:
    """Write a folder."""
    os.mkdir(path)
    names = {array.key: array.key + SUFFIX for array in contents.arrays}
    check_file_names(names.values())
    if contents.metadata:
        say("the metadata is not kept: .npy files have no place for it")
    for array in contents.arrays:
        if array.attrs:
            say(f"the attributes of {printable(array.key)!r} are not kept")
        target = path_within(path, names[array.key])
        os.makedirs(os.path.dirname(target), exist_ok=True)
        stored = array.stored()
        if stored is not array:
            say(f"{printable(array.key)!r}: {array.dtype} is kept as bytes, which .npy cannot name")
        InFile.made(target, stored)
