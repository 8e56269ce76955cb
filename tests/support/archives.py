"""Archives of several programs to append to, and what must hold of an archive that was written."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import struct
import threading
import zipfile
from pathlib import Path

import forge
import npzkit
import numpy as np

__all__ = [
    "FIXTURES",
    "MAKERS",
    "NOISE",
    "UNREADABLE",
    "Pipe",
    "by_npzkit",
    "by_pipe",
    "by_save",
    "by_zipfile",
    "check_accepted",
    "damage",
    "files",
    "files_in",
    "flip",
    "forged",
    "listing",
    "loaded",
    "made_by",
    "packed",
    "piped",
    "same",
    "untouched",
    "with_names",
]


FIXTURES = Path(__file__).parents[2] / "fixtures"
NOISE = np.random.default_rng(0).integers(0, 9, 60_000)
"""Half a megabyte: of two chunks where it is deflated."""


class Pipe(io.RawIOBase):
    """A file that can only be written to, behind which descriptors are put."""

    def __init__(self, path):
        self.file = open(path, "wb")

    def writable(self):
        return True

    def write(self, data):
        return self.file.write(data)

    def close(self):
        self.file.close()
        super().close()


def by_zipfile(target, method=zipfile.ZIP_STORED):
    """Write two arrays, a folder and a note, with times, attributes and comments."""
    with zipfile.ZipFile(target, "w", method) as archive:
        archive.comment = b"kept as it is"
        for number, name in enumerate(["x.npy", "deep/y.npy", "folder/", "note.txt"]):
            member = zipfile.ZipInfo(name, (2001, 2, 3 + number, 4, 5, 6))
            member.compress_type = method
            member.external_attr = 0o640 << 16 | number
            member.comment = b"of " + name.encode()
            if name.endswith(".npy"):
                data = forge.npy(np.arange(100 + number))
            else:
                data = b"words" if number == 3 else b""
            archive.writestr(member, data)


def by_pipe(path):
    with Pipe(path) as pipe:
        by_zipfile(pipe, zipfile.ZIP_DEFLATED)


def forged(path):
    """Write what zipfile does not: foreign extra fields, other ones in both headers."""
    block = struct.pack("<HH", 0xCAFE, 4) + b"cafe"
    path.write_bytes(
        forge.archive(
            forge.Member("x.npy", forge.npy(np.arange(4)), extra=block, local_extra=block * 2),
            forge.Member("y.npy", forge.npy(np.ones(3)), method=8, comment=b"said", extra=block),
            comment=b"\xff\xfe foreign",
        )
    )


def by_npzkit(path):
    with npzkit.NpzWriter(path, compression="deflated", metadata={"step": 1}) as w:
        w.add("x", np.arange(4), attrs={"unit": "m"})
        w.add("noise", NOISE, attrs={"long": "ü" * 100})


MAKERS = {
    "npzkit": by_npzkit,
    "np.savez": lambda path: np.savez(path, x=np.arange(4), y=np.eye(3)),
    "np.savez_compressed": lambda path: np.savez_compressed(path, x=np.arange(4), y=NOISE),
    "zipfile": by_zipfile,
    "zipfile bzip2": lambda path: by_zipfile(path, zipfile.ZIP_BZIP2),
    "zipfile lzma": lambda path: by_zipfile(path, zipfile.ZIP_LZMA),
    "zipfile descriptors": by_pipe,
    "forged": forged,
}
for _fixture in sorted(FIXTURES.glob("*.npz")):
    if _fixture.stat().st_size < 1 << 20:
        MAKERS[_fixture.stem] = lambda path, fixture=_fixture: shutil.copyfile(fixture, path)

UNREADABLE = {"7zip_deflate64", "infozip_encrypted", "zipfile_zstandard"}
"""What zipfile, or this Python's, cannot read."""


def by_save(path):
    """Save three arrays: x, y and z."""
    npzkit.save(path, {"x": np.arange(4), "y": np.eye(3), "z": NOISE}, metadata={"step": 1})
    return path


def listing(path):
    """What zipfile says of the archive: its comment, and all fields of its entries."""
    with zipfile.ZipFile(path) as archive:
        fields = [slot for slot in zipfile.ZipInfo.__slots__ if not slot.startswith("_")]
        entries = [
            {field: getattr(info, field, None) for field in fields} for info in archive.infolist()
        ]
        return archive.comment, entries


def check_accepted(path, **arrays):
    """Have zipfile, numpy and npzkit read the archive, and compare some of its arrays."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    with np.load(path) as theirs, npzkit.open(path, strict=True) as npz:
        assert theirs.files == npz.files
        for key, array in arrays.items():
            for found in (theirs[key], npz[key], npz.load_all([key])[key]):
                assert found.dtype == np.asanyarray(array).dtype
                assert np.array_equal(found, array)


@contextlib.contextmanager
def untouched(path):
    """Hold a file's bytes, inode and times against what they were; nothing may be left beside."""
    before, stat, names = path.read_bytes(), path.stat(), sorted(os.listdir(path.parent))
    yield
    after = path.stat()
    assert path.read_bytes() == before
    assert (after.st_ino, after.st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)
    assert sorted(os.listdir(path.parent)) == names


def loaded(path, key):
    """The array as numpy reads it, once zipfile has compared all CRCs."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    with np.load(path) as theirs, npzkit.open(path) as ours:
        assert np.array_equal(theirs[key], ours[key])
        return theirs[key]


def files(path):
    """The keys of an archive."""
    with npzkit.open(path) as npz:
        return npz.files


def files_in(folder):
    """The names of what lies in a folder."""
    return sorted(entry.name for entry in folder.iterdir())


def same(left, right):
    """Whether two arrays have the same dtype, shape and bytes."""
    right = np.asanyarray(right)
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )


def made_by(maker, path):
    """Make an archive, and return its path and whether this Python's zipfile reads it."""
    MAKERS[maker](path)
    return path, maker not in UNREADABLE


def packed(arrays, **options):
    """Return an archive as bytes."""
    stream = io.BytesIO()
    npzkit.save(stream, arrays, **options)
    return stream.getvalue()


def with_names(path, names):
    """Write an archive whose members have any names, as `zipfile` allows."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, forge.npy(np.arange(3)))


def flip(path, offset):
    """Change one bit of a file, in place."""
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def damage(path, key, offset=3):
    """Change one bit of the data of an array, in place."""
    with npzkit.open(path) as npz:
        place = npz.info(key).data_offset + offset
    flip(path, place)


def piped(data):
    """Return the end of a pipe that data is read from."""
    receiving, sending = os.pipe()

    def send():
        # The reader may have had enough.
        with contextlib.suppress(OSError), open(sending, "wb", buffering=0) as pipe:
            view = memoryview(data)
            while view:
                view = view[pipe.write(view) :]

    # Windows' pipes hold little.
    threading.Thread(target=send, daemon=True).start()
    return open(receiving, "rb")
