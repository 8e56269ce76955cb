"""Any sequence of edits, commits and crashes, held against a dictionary."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import forge
import npzkit
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from npzkit.errors import (
    ArchiveLockedError,
    MemberNotFoundError,
    TornArchiveWarning,
    UnsafeNameError,
)

KEYS = ["a", "b", "c", "deep/d", "größe"]
"""Few, so that names are taken, given up and taken again."""
LARGE = 9000
"""Items of an array over 64 KiB, which takes the way of large ones."""
DTYPES = ["u1", "<f8", ">i4", "c16", "S3", "<U2", "?", "<M8[s]", [("x", "<i2"), ("y", "<f4", 2)]]
ATTRS = st.dictionaries(
    st.sampled_from(["unit", "größe", "n"]),
    st.text(max_size=3) | st.integers(-9, 9) | st.lists(st.booleans(), max_size=2),
    max_size=2,
)
METADATA = st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3) | st.text(max_size=3))
JUNK = {
    "nothing": b"",
    "zeros": bytes(100),
    "half a header": b"PK\3\4" + b"junk" * 5,
    "half an end": b"PK\5",
    "a lot": b"{" * 70_000,
}
TAIL_LIMIT = 60_000
"""Bytes behind an end record over which zipfile, and so np.load, still finds it."""


@st.composite
def arrays(draw):
    """A small array of any kind, or one over 64 KiB, its values from a seed."""
    seed = draw(st.integers(0, 99))
    if draw(st.integers(0, 3)) == 0:
        dtype = draw(st.sampled_from(["<f8", ">i8", "u1"]))
        count = LARGE if dtype != "u1" else 8 * LARGE
        return (np.arange(count) * (seed + 1) % 251).astype(dtype)
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.sampled_from([(), (0, 3), (4,), (2, 3)]))
    count = int(np.prod(shape))
    data = np.random.default_rng(seed).integers(0, 2, count * dtype.itemsize, dtype="u1")
    array = np.frombuffer(data.tobytes(), dtype).reshape(shape)
    return np.asfortranarray(array) if draw(st.booleans()) else array


class Kept(NamedTuple):
    """What an archive holds under a key."""

    array: np.ndarray
    attrs: dict


Contents = dict[str, Kept | None]
"""By key, in order; None for what is being created."""


def by_zipfile(path, contents):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.comment = b"foreign"
        for key, array in contents.items():
            archive.writestr(f"{key}.npy", forge.npy(array))


MAKERS = {
    "nothing": None,
    "npzkit": npzkit.save,
    "np.savez": lambda path, contents: np.savez(path, **contents),
    "np.savez_compressed": lambda path, contents: np.savez_compressed(path, **contents),
    "zipfile": by_zipfile,
}


def check_same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def check_contents(npz, contents, metadata):
    """Compare all that an open archive holds with a model of it."""
    assert npz.files == list(contents)
    loaded = npz.load_all()
    for key, kept in contents.items():
        check_same(loaded[key], kept.array)
        check_same(npz[key], kept.array)
        assert npz.info(key).attrs == kept.attrs
        assert npz.info(key) == npz._archive.read_info(key)
        if kept.array.ndim:
            check_same(npz.lazy(key)[1:], kept.array[1:])
    assert npz.metadata == metadata


class Editing(RuleBasedStateMachine):
    """One path, at most one writer, and readers that were opened on the way."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "a.npz"
        self.committed: Contents | None = None
        self.pending: Contents = {}
        self.committed_metadata: dict = {}
        self.writer: npzkit.NpzWriter | None = None
        self.is_new = False
        # What the file holds up to its last commit, and which file it is.
        self.bytes, self.inode, self.firm_size = b"", 0, 0
        # Whether arrays were written since; each created one with where the file ended then.
        self.has_written = False
        self.created: dict = {}
        self.readers: list = []

    def teardown(self):
        for npz, *_ in self.readers:
            npz.close()
        if self.writer is not None:
            self.writer.abort()
        shutil.rmtree(self.folder)

    # -- what is known -----------------------------------------------------------

    def is_torn(self):
        return self.committed is not None and self.path.stat().st_size > len(self.bytes)

    def expecting_tail(self):
        """Expect the warning of a torn end, if there is one and no writer."""
        if self.writer is None and self.is_torn():
            return pytest.warns(TornArchiveWarning)
        return contextlib.nullcontext()

    def sealed(self):
        return [key for key, kept in self.pending.items() if kept is not None]

    def choose(self, data, keys):
        return data.draw(st.sampled_from(sorted(keys)))

    def is_replacing(self):
        """Whether what is written next, or was, takes the place of what was committed."""
        # Behind an end record at the file's start nothing can be put.
        return self.is_new or self.bytes.startswith(b"PK\5\6")

    def take_over(self):
        """Remember what was committed, as it lies in the file."""
        self.bytes, self.inode = self.path.read_bytes(), self.path.stat().st_ino
        # What is being created lies behind the commit before, and is filled later.
        self.firm_size = min([len(self.bytes), *(start for *_, start in self.created.values())])

    def found(self):
        """Return the file as it is now, and which one it is."""
        return (self.path.read_bytes(), self.path.stat().st_ino) if self.path.exists() else None

    # -- opening -------------------------------------------------------------------

    @initialize(
        maker=st.sampled_from(sorted(MAKERS)),
        contents=st.dictionaries(st.sampled_from(KEYS), arrays(), max_size=3),
    )
    def begin(self, maker, contents):
        if MAKERS[maker] is not None:
            if maker == "npzkit":
                # `save` leaves a note about names with slashes in the metadata.
                contents = {key: array for key, array in contents.items() if "/" not in key}
            MAKERS[maker](self.path, contents)
            self.committed = {key: Kept(array, {}) for key, array in contents.items()}
            self.take_over()

    @precondition(lambda self: self.writer is None)
    @rule(
        mode=st.sampled_from("aaaw"),
        compression=st.sampled_from(["stored", "deflated", "zstd"]),
        metadata=st.none() | METADATA,
        auto_repack=st.booleans(),
        durable=st.booleans(),
    )
    def open(self, mode, compression, metadata, auto_repack, durable):
        with self.expecting_tail() if mode == "a" else contextlib.nullcontext():
            self.writer = npzkit.NpzWriter(
                self.path, mode, compression=compression, metadata=metadata,
                auto_repack=auto_repack, durable=durable, chunk_size=1 << 14,
            )  # fmt: skip
        begins_anew = mode == "w" or self.committed is None
        self.is_new = begins_anew
        self.pending = {} if begins_anew else dict(self.committed)
        expected = {} if begins_anew else dict(self.committed_metadata)
        expected.update(metadata or {})
        assert self.writer.metadata == expected
        assert self.writer.files == list(self.pending)

    @precondition(lambda self: self.committed is not None)
    @rule()
    def exclusive_is_refused(self):
        with pytest.raises(FileExistsError):
            npzkit.NpzWriter(self.path, "x")

    @precondition(lambda self: self.writer is not None and self.committed is not None)
    @rule(mode=st.sampled_from("aw"))
    def second_writer_is_refused(self, mode):
        with pytest.raises(ArchiveLockedError):
            npzkit.NpzWriter(self.path, mode)

    @precondition(lambda self: self.committed is not None and len(self.readers) < 3)
    @rule()
    def keep_a_reader(self):
        with self.expecting_tail():
            npz = npzkit.open(self.path)
        self.readers.append((npz, dict(self.committed), dict(self.committed_metadata)))

    # -- editing ---------------------------------------------------------------------

    @precondition(lambda self: self.writer is not None)
    @rule(
        key=st.sampled_from(KEYS),
        array=arrays(),
        attrs=ATTRS,
        compression=st.sampled_from(["stored", "deflated", "zstd", None]),
    )
    def add(self, key, array, attrs, compression):
        if key in self.pending:
            with pytest.raises(UnsafeNameError):
                self.writer.add(key, array)
            return
        self.writer.add(key, array, attrs=attrs, compression=compression)
        self.has_written = True
        self.pending[key] = Kept(array, attrs)

    @precondition(lambda self: self.writer is not None and self.sealed())
    @rule(data=st.data(), array=arrays(), attrs=ATTRS)
    def replace(self, data, array, attrs):
        key = self.choose(data, self.sealed())
        self.writer.add(key, array, attrs=attrs, overwrite=True)
        self.has_written = True
        self.pending[key] = Kept(array, attrs)

    @precondition(lambda self: self.writer is not None and self.sealed())
    @rule(data=st.data(), count=st.integers(1, 3))
    def append_rows(self, data, count):
        key = self.choose(data, self.sealed())
        array, attrs = self.pending[key]
        if not array.shape:
            with pytest.raises(ValueError, match="cannot be appended"):
                self.writer.append(key, [0])
            return
        rows = np.zeros((count, *array.shape[1:]), array.dtype)
        self.writer.append(key, rows)
        self.has_written = True
        self.pending[key] = Kept(np.concatenate([array, rows]).astype(array.dtype), attrs)

    @precondition(lambda self: self.writer is not None and self.sealed())
    @rule(data=st.data())
    def delete(self, data):
        key = self.choose(data, self.sealed())
        del self.writer[key]
        del self.pending[key]
        with pytest.raises(MemberNotFoundError):
            del self.writer[key]

    @precondition(lambda self: self.writer is not None and self.sealed())
    @rule(data=st.data(), new=st.sampled_from(KEYS))
    def rename(self, data, new):
        old = self.choose(data, self.sealed())
        if new in self.pending and new != old:
            with pytest.raises(UnsafeNameError):
                self.writer.rename(old, new)
            return
        self.writer.rename(old, new)
        self.has_written = True
        self.pending = {new if key == old else key: kept for key, kept in self.pending.items()}

    @precondition(lambda self: self.writer is not None and self.sealed())
    @rule(data=st.data(), attrs=ATTRS)
    def edit_attrs(self, data, attrs):
        key = self.choose(data, self.sealed())
        found = self.writer.attrs(key)
        assert found == self.pending[key].attrs
        found.clear()
        found.update(copy.deepcopy(attrs))
        self.pending[key] = self.pending[key]._replace(attrs=attrs)

    @precondition(lambda self: self.writer is not None)
    @rule(metadata=METADATA)
    def edit_metadata(self, metadata):
        self.writer.metadata.clear()
        self.writer.metadata.update(metadata)

    @precondition(lambda self: self.writer is not None and self.sealed())
    @rule(data=st.data())
    def refused_attrs(self, data):
        """What cannot be written is refused at commit, and nothing is lost."""
        key = self.choose(data, self.sealed())
        with pytest.raises(TypeError):
            self.writer.attrs(key)["bad"] = object()
        self.writer.attrs(key)["bad"] = values = []
        values.append(object())
        with pytest.raises(TypeError):
            self.writer.commit()
        del self.writer.attrs(key)["bad"]

    @precondition(lambda self: self.writer is not None)
    @rule(key=st.sampled_from(KEYS), array=arrays())
    def begin_to_create(self, key, array):
        if key in self.pending:
            with pytest.raises(UnsafeNameError):
                self.writer.create(key, array.shape, array.dtype, compression="stored")
            return
        dst = self.writer.create(
            key, array.shape, array.dtype, compression="stored", fortran_order=array.ndim > 1
        )
        self.pending[key] = None
        self.created[key] = dst, array, 0 if self.is_replacing() else len(self.bytes)
        self.has_written = True

    @precondition(lambda self: self.created)
    @rule(data=st.data())
    def seal(self, data):
        key = self.choose(data, self.created)
        dst, array, _ = self.created.pop(key)
        dst[...] = array
        dst.close()
        self.pending[key] = Kept(array, {})

    @precondition(lambda self: self.writer is not None)
    @rule(
        key=st.sampled_from(KEYS),
        seed=st.integers(0, 9),
        counts=st.lists(st.sampled_from([0, 1, 7, LARGE]), max_size=3),
        compression=st.sampled_from(["stored", "deflated", "zstd"]),
    )
    def grow(self, key, seed, counts, compression):
        if key in self.pending:
            return
        rows = [np.full(count, seed, "<f8") for count in counts]
        with self.writer.create(key, None, "<f8", compression=compression) as dst:
            for part in rows:
                dst.append(part)
        self.has_written = True
        self.pending[key] = Kept(np.concatenate([np.zeros(0), *rows]), {})

    # -- commits -----------------------------------------------------------------------

    def is_unchanged(self):
        """Whether a commit has nothing to do, as far as the model can tell."""
        return (
            not self.is_new
            and not self.has_written
            and list(self.pending) == list(self.committed)
            and all(self.pending[key] is kept for key, kept in self.committed.items())
            and self.writer.metadata == self.committed_metadata
        )

    def count(self):
        """Take what is pending for committed."""
        self.committed = {key: kept for key, kept in self.pending.items() if kept is not None}
        self.committed_metadata = dict(self.writer.metadata)
        self.is_new = self.has_written = False

    @precondition(lambda self: self.writer is not None)
    @rule()
    def commit(self):
        was_unchanged, was_torn = self.is_unchanged(), self.is_torn()
        before = self.found()
        self.writer.commit()
        is_replacing = self.is_new or (self.is_replacing() and self.has_written)
        if is_replacing and not any(kept is not None for kept in self.pending.values()):
            # A new archive takes the old one's place with its first array.
            assert self.found() == before
            return
        self.count()
        if was_unchanged and not was_torn:
            assert self.found() == before
        if self.found() != before:
            self.take_over()

    @precondition(lambda self: self.writer is not None)
    @rule()
    def close(self):
        for key, (_, array, _) in self.created.items():
            self.pending[key] = Kept(np.zeros_like(array), {})
        self.created.clear()
        before = self.found()
        self.writer.close()
        self.count()
        self.writer = None
        if self.found() != before:
            self.take_over()

    @precondition(lambda self: self.writer is not None)
    @rule()
    def abort(self):
        self.writer.abort()
        self.give_up()

    @precondition(lambda self: self.writer is not None)
    @rule()
    def fail(self):
        with pytest.raises(ZeroDivisionError), self.writer:
            1 / 0
        self.give_up()

    @precondition(lambda self: self.writer is not None)
    @rule()
    def drop(self):
        """The writer is forgotten, and with it what was not committed."""
        self.created.clear()
        with pytest.warns(ResourceWarning, match="never closed"):
            self.writer = None
            # Arrays that were created hold their writer, and it them.
            gc.collect()
        self.give_up()

    def give_up(self):
        self.writer = None
        self.has_written = False
        self.created.clear()

    @rule(
        share=st.floats(0, 1),
        junk=st.sampled_from(sorted(JUNK)),
    )
    def crash(self, share, junk):
        """The machine stops: of what was not committed a part is there, or other bytes are."""
        if self.committed is None:
            if self.writer is not None:
                self.writer.abort()
                self.give_up()
            return
        size = len(self.bytes)
        tail = self.path.read_bytes()[size:]
        if self.writer is not None:
            self.writer.abort()
            self.give_up()
        left = tail[: round(share * len(tail))] + JUNK[junk]
        # The same file goes on, as readers have it open.
        with open(self.path, "r+b") as file:
            file.truncate(size)
            file.seek(size)
            file.write(left)

    @precondition(lambda self: self.writer is None and self.committed is not None)
    @rule(compression=st.sampled_from([None, "stored", "deflated", "zstd"]))
    def repack(self, compression):
        with self.expecting_tail():
            npzkit.repack(self.path, compression=compression, chunk_size=1 << 14)
        self.take_over()

    @precondition(lambda self: self.writer is None and self.committed is not None)
    @rule()
    def repair(self):
        """A torn end is cut off, and no byte that counts is touched."""
        size = self.path.stat().st_size
        report = npzkit.repair(self.path)
        assert report.cut_size == size - len(self.bytes)
        assert list(report.kept) == list(self.committed)
        assert self.found() == (self.bytes, self.inode)

    @precondition(lambda self: self.writer is None and self.committed)
    @rule()
    def repair_elsewhere(self):
        """The repaired copy has every array that was committed; the file stays as it is."""
        before = self.found()
        copy_path = self.path.with_name("repaired.npz")
        report = npzkit.repair(self.path, copy_path)
        assert list(report.kept) == list(self.committed)
        assert self.found() == before
        with npzkit.open(copy_path) as npz:
            for key, kept in self.committed.items():
                assert np.array_equal(npz[key], kept.array)
                assert npz.info(key).attrs == kept.attrs
        copy_path.unlink()

    # -- what must hold -------------------------------------------------------------------

    @invariant()
    def the_path_holds_what_was_committed(self):
        if self.committed is None:
            assert not self.path.exists()
            return
        with self.expecting_tail():
            npz = npzkit.open(self.path)
        with npz:
            check_contents(npz, self.committed, self.committed_metadata)
        self.others_read_it()

    def others_read_it(self):
        """np.load and zipfile agree, as far as they look for an end record."""
        tail = self.path.read_bytes()[len(self.bytes) :]
        if len(tail) > TAIL_LIMIT or b"PK\5\6" in tail:
            return
        with zipfile.ZipFile(self.path) as archive:
            is_read = sys.version_info >= (3, 14) or 93 not in {
                info.compress_type for info in archive.infolist()
            }
        with np.load(self.path) as theirs:
            assert theirs.files == list(self.committed)
            for key, kept in self.committed.items() if is_read else ():
                check_same(theirs[key], kept.array)
        if not tail:
            with zipfile.ZipFile(self.path) as archive:
                assert not is_read or archive.testzip() is None
                assert len(archive.namelist()) == len(set(archive.namelist()))

    @invariant()
    def no_committed_byte_is_touched(self):
        if self.committed is not None:
            assert self.path.stat().st_ino == self.inode
            assert self.path.read_bytes().startswith(self.bytes[: self.firm_size])

    @invariant()
    def the_writer_knows_what_is_pending(self):
        if self.writer is not None:
            assert self.writer.files == list(self.pending)
            assert len(self.writer) == len(self.pending)

    @invariant()
    def readers_keep_what_they_opened(self):
        for npz, contents, metadata in self.readers:
            check_contents(npz, contents, metadata)

    @invariant()
    def nothing_lies_beside_it(self):
        """A writer that replaces the file has one beside it; nobody else has."""
        names = set(os.listdir(self.folder))
        is_replacing = self.is_new or (self.is_replacing() and self.has_written)
        if self.writer is None or not is_replacing:
            assert names == ({"a.npz"} if self.committed is not None else set())
        else:
            assert len(names - {"a.npz"}) == 1


Editing.TestCase.settings = settings(
    max_examples=settings().max_examples // 2, stateful_step_count=30
)


class TestEditing(Editing.TestCase):
    """Whatever is edited, committed and cut short, the path holds what was committed last."""
