"""The arrays of an archive that is read from front to back, written to files.

Owns what waits until the end of the stream says which arrays the archive has.
Until then, files have temporary names in a folder of their own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from npzkit.conversion.csv_tables import check_is_table, write_table
from npzkit.conversion.output_paths import check_file_names, check_file_path, path_within, replacing
from npzkit.errors import (
    ConversionError,
    NoDataError,
    NpzkitError,
    PickleRefusedError,
    UnsupportedError,
)
from npzkit.files.progress import Report
from npzkit.format.array import read_header
from npzkit.format.header import PREFIX_SIZE
from npzkit.limits import DEFAULT_HEADER_SIZE, Limits
from npzkit.members.keys import SUFFIX, member_of, missing
from npzkit.reading.member_headers import check_nbytes, is_array
from npzkit.reading.streaming import StreamedArchive, entries_by_key
from npzkit.zip.entries import Entry
from npzkit.zip.forward import ForwardMember

_PIECE_SIZE = 1 << 18


class Wanted(NamedTuple):
    """What to extract, and how; see `npzkit.extract`. Without a delimiter, as .npy files."""

    folder: str
    keys: Sequence[str] | None
    delimiter: str | None
    skip: bool
    overwrite: bool


class _Waiting(NamedTuple):
    """A file that has not its name yet.

    Attributes
    ----------
    path : str
        Empty if there is nothing to write.
    suffix : str
        Of an array's file; empty if the member is not an array.
    error : NpzkitError or None
        Why the member cannot be written.
    """

    path: str = ""
    suffix: str = ""
    error: NpzkitError | None = None


def extract_stream(
    stream: Any, wanted: Wanted, progress: Report | None
) -> tuple[dict[str, str], dict[str, NpzkitError]]:
    """Write the arrays of a stream to files; see `npzkit.extract`.

    No file appears before the stream was read to its end, and its directory
    was compared.

    Returns
    -------
    files : dict of str to str
    failed : dict of str to NpzkitError
    """
    archive = StreamedArchive(stream, Limits())
    with _temporary_folder(wanted.folder) as temporary:
        waiting: dict[int, _Waiting] = {}
        for key, member in archive:
            if wanted.keys is not None and not _is_wanted(key, member.entry, wanted.keys):
                continue
            found = _write(archive, key, member, wanted, temporary)
            if isinstance(found.error, NoDataError):
                break
            waiting[member.entry.header_offset] = found
            if progress is not None:
                progress(archive.source.offset, archive.source.offset)
        return _place(archive, waiting, wanted)


@contextlib.contextmanager
def _temporary_folder(folder: str) -> Iterator[str]:
    """Create `folder` if necessary, and a folder in it that is removed at the end."""
    is_new = not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".npzkit-{secrets.token_hex(8)}.tmp")
    try:
        os.mkdir(temporary)
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if is_new:
            # Only if nothing was written.
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _is_wanted(key: str, entry: Entry, keys: Sequence[str]) -> bool:
    """Whether one of the keys may mean a member; the directory decides."""
    return key in keys or entry.name in keys or entry.name.removesuffix(SUFFIX) in keys


def _write(
    archive: StreamedArchive, key: str, member: ForwardMember, wanted: Wanted, temporary: str
) -> _Waiting:
    """Write the member that comes next to a temporary file."""
    path = os.path.join(temporary, str(member.entry.header_offset))
    try:
        if wanted.delimiter is None:
            suffix = _write_bytes(archive, member, path)
        else:
            suffix = _write_table(archive, key, member, path, wanted.delimiter)
    except NpzkitError as error:
        error.locate(path=archive.path, key=key, offset=member.entry.header_offset)
        if isinstance(error, ConversionError):
            raise
        return _Waiting(error=error)
    if member.entry.name.endswith("/") and not os.path.getsize(path):
        # An entry that ends in a slash says that there is a folder.
        return _Waiting()
    # Told now, and not after the last byte of a long stream.
    name = _file_name(member.entry.name, suffix)
    check_file_path(path_within(wanted.folder, name), overwrite=wanted.overwrite)
    return _Waiting(path, suffix)


def _write_bytes(archive: StreamedArchive, member: ForwardMember, path: str) -> str:
    """Write the bytes of a member, which are an .npy file's, and return the file's suffix."""
    stream = member.open()
    prefix, buffer = stream.read_up_to(PREFIX_SIZE), memoryview(bytearray(_PIECE_SIZE))
    with open(path, "xb") as out:
        out.write(prefix)
        while count := stream.read_some(buffer):
            out.write(buffer[:count])
    archive.check_rest(member)
    if not is_array(prefix, member.entry):
        return ""
    with open(path, "rb") as file:
        header = read_header(file, DEFAULT_HEADER_SIZE)
    check_nbytes(header, member.entry._replace(uncompressed_size=os.path.getsize(path)))
    return SUFFIX


def _write_table(
    archive: StreamedArchive, key: str, member: ForwardMember, path: str, delimiter: str
) -> str:
    """Write an array as text, or the bytes of another member; return the file's suffix."""
    try:
        found = archive.read(key, member)
    except PickleRefusedError:
        raise ConversionError(
            "an array of Python objects is not a table",
            key=key, remedy='Write it with format="npy".',
        ) from None  # fmt: skip
    if isinstance(found, bytes):
        with open(path, "xb") as out:
            out.write(found)
        return ""
    check_is_table(found.shape, found.dtype, key)
    with open(path, "xb") as out:
        write_table(found, out, delimiter, lambda size: None)
    return ".csv"


def _file_name(name: str, suffix: str) -> str:
    return name.removesuffix(SUFFIX) + suffix if suffix else name


def _place(
    archive: StreamedArchive, waiting: dict[int, _Waiting], wanted: Wanted
) -> tuple[dict[str, str], dict[str, NpzkitError]]:
    """Give files their names, if the directory lists their members."""
    try:
        directory = archive.read_directory()
    except NpzkitError as error:
        raise error.locate(path=archive.path) from error.__cause__
    listed = entries_by_key(directory)
    found, failed = {}, {}
    for key in dict.fromkeys(listed if wanted.keys is None else wanted.keys):
        name = member_of(key, directory.entries)
        if name is None:
            raise missing(key, list(listed), archive.path)
        entry = directory.entries[name]
        try:
            file = _checked(archive, entry, waiting)
        except NpzkitError as error:
            error.locate(path=archive.path, key=key, offset=entry.header_offset)
            if not wanted.skip:
                raise
            failed[key] = error
            continue
        if file.path:
            found[key] = file.path, _file_name(name, file.suffix)
    return _move(found, wanted), failed


def _checked(archive: StreamedArchive, entry: Entry, waiting: dict[int, _Waiting]) -> _Waiting:
    """Return the file of a listed member, after comparing the member with its entry."""
    file = waiting.get(entry.header_offset)
    if file is not None and file.error is not None:
        raise file.error
    archive.check(entry)
    if file is None:
        raise UnsupportedError(
            "the name of the member is one that no directory lists",
            remedy="Save the stream to a file, and extract that.",
        )
    return file


def _move(found: dict[str, tuple[str, str]], wanted: Wanted) -> dict[str, str]:
    check_file_names(name for _, name in found.values())
    targets = {key: path_within(wanted.folder, name) for key, (_, name) in found.items()}
    for target in targets.values():
        check_file_path(target, overwrite=wanted.overwrite)
    for key, (path, _) in found.items():
        os.makedirs(os.path.dirname(targets[key]), exist_ok=True)
        with replacing(targets[key]) as temporary:
            os.rename(path, temporary)
    return targets
