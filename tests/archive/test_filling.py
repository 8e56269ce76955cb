"""`load_all(out=)` and `read(out=)`: arrays that exist are filled, all of them or none."""

from __future__ import annotations

import io
import os
import time
import tracemalloc
import zipfile

import ml_dtypes
import npzkit
import numpy as np
import pytest
from counting import CountingBytes
from deep import by_turns, needs_deep
from npzkit.archive import npzfile
from npzkit.archive.opened_archive import OpenedArchive
from npzkit.errors import (
    ChecksumError,
    MemberNotFoundError,
    NpzkitError,
    StaleArchiveError,
    ZipFormatError,
)
from npzkit.files.source import FileSource

from tables import each_row

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "large": RANDOM.standard_normal((300, 500)).astype("f4"),
    "fortran": np.asfortranarray(RANDOM.standard_normal((200, 300))),
    "huge": RANDOM.integers(0, 50, 150_000).cumsum(),
    "big_endian": np.arange(30_000, dtype=">i4"),
    "record": np.ones(5, [("a", "i4"), ("b", "f8", (2,))]),
    "brain": np.arange(40_000).astype(ml_dtypes.bfloat16),
    "text": np.array(["a", "bc"]),
    "scalar": np.array(2.5),
    "empty": np.empty((0, 3), "f4"),
    **{f"small/{number}": RANDOM.standard_normal(number) for number in range(80)},
}


def by_zipfile(path, method, large=None):
    """Save by one method, or arrays of more than 200 KB by another: bzip2 takes long for these."""
    with zipfile.ZipFile(path, "w", method) as file:
        for key, array in ARRAYS.items():
            stream = io.BytesIO()
            npzkit.format.write_array(stream, array)
            how = method if array.nbytes < 200_000 or large is None else large
            file.writestr(f"{key}.npy", stream.getvalue(), how)


def by_shards(path, compression):
    with npzkit.ShardedWriter(path, compression=compression, shard_size="1MB") as writer:
        for key, array in ARRAYS.items():
            if array.ndim != 2 or not array.size:
                writer[key] = array
                continue
            for row, column in ((0, 0), (100, 0), (0, 150), (100, 150)):
                part = array[row : row + 100 if row == 0 else None, column:][
                    :, : 150 if column == 0 else None
                ]
                writer.add(key, part, (row, column), array.shape)
        writer.commit()


SAVE = {
    "stored": lambda path: npzkit.save(path, ARRAYS),
    "deflated": lambda path: npzkit.save(path, ARRAYS, compression="deflated"),
    "numpy": lambda path: by_zipfile(path, zipfile.ZIP_STORED),
    "numpy deflated": lambda path: by_zipfile(path, zipfile.ZIP_DEFLATED),
    "bzip2": lambda path: by_zipfile(path, zipfile.ZIP_BZIP2, zipfile.ZIP_STORED),
    "shards": lambda path: by_shards(path, "stored"),
    "zstd": lambda path: npzkit.save(path, ARRAYS, compression="zstd"),
    "zstd shards": lambda path: by_shards(path, "zstd"),
    "deflated shards": lambda path: by_shards(path, "deflated"),
}
MEMORY = {
    "like": np.ones_like,
    "C": lambda array: np.ones_like(array, order="C"),
    "F": lambda array: np.ones_like(array, order="F"),
    "strided": lambda array: (
        np.repeat(array, 2, -1)[..., ::2] if array.ndim else np.ones_like(array)
    ),
    "backwards": lambda array: np.ones_like(array)[::-1] if array.ndim else np.ones_like(array),
}


@pytest.fixture(scope="module", params=SAVE)
def saved(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "a.npz"
    SAVE[request.param](path)
    return path


def holes(make=np.ones_like):
    """Return arrays to fill, whose bytes are other ones."""
    return {key: blank(make(array)) for key, array in ARRAYS.items()}


def blank(array):
    array[...] = np.zeros((), array.dtype)
    return array


def is_blank(outs):
    return all(np.array_equal(out, np.zeros_like(out)) for out in outs.values())


def equals(outs):
    # NumPy cannot know the dtype of bfloat16 in other programs' archives.
    return all(outs[key].tobytes() == ARRAYS[key].tobytes() for key in outs)


@pytest.mark.slow
@each_row(("memory", "options"), by_turns(MEMORY, [{}, {"verify": False, "threads": 1}]))
def test_every_kind_of_array_is_filled(saved, memory, options):
    """Memory in any order gets what was saved, from any archive, and is returned."""
    with npzkit.open(saved) as npz:
        outs = {
            key: out
            for key, out in holes(MEMORY[memory]).items()
            if out.dtype == npz.info(key).dtype
        }
        assert len(outs) >= len(ARRAYS) - 1
        found = npz.load_all(out=outs, **options)
    assert list(found) == list(outs)
    assert all(found[key] is outs[key] for key in outs)
    assert equals(found)


@pytest.mark.slow
def test_what_is_masked_is_filled_too(saved, any_size):
    """Of a masked array the data is filled, of any size, and its mask stays."""
    with npzkit.open(saved) as npz:
        for key in ("large", "small/9"):
            mask = np.arange(ARRAYS[key].size).reshape(ARRAYS[key].shape) % 2 == 0
            for fill in (npz.read, lambda key, out: npz.load_all(out={key: out})[key]):
                out = np.ma.array(np.zeros_like(ARRAYS[key]), mask=mask, hard_mask=True)
                assert fill(key, out=out) is out
                assert (out.data == ARRAYS[key]).all()
                assert (out.mask == mask).all()


def test_keys_choose_what_is_filled(saved):
    """Arrays of other keys are not touched."""
    outs = holes()
    with npzkit.open(saved) as npz:
        found = npz.load_all(["scalar", "large", "scalar"], out=outs)
        assert list(found) == ["scalar", "large"]
        assert equals(found)
        assert is_blank({key: out for key, out in outs.items() if key not in found})
        with pytest.raises(KeyError, match="huge"):
            npz.load_all(["huge"], out=found)
        with pytest.raises(MemberNotFoundError):
            npz.load_all(out={"absent": np.zeros(3)})
        assert npz.load_all(out={}) == {}


@pytest.mark.slow
@each_row(
    ("out", "error", "message"),
    [
        (np.zeros((300, 501), "f4"), ValueError, r"out\['large'\] must have shape \(300, 500\)"),
        (np.zeros((300, 500)), ValueError, r"dtype float32, not \(300, 500\) and float64"),
        ([1], TypeError, r"out\['large'\] must be a numpy array, not list"),
        (
            np.broadcast_to(np.float32(0), (300, 500)),
            ValueError,
            r"out\['large'\] must be writable",
        ),
    ],
)
def test_what_does_not_fit_changes_nothing(saved, out, error, message):
    """Each array is checked before any of them is filled."""
    outs = holes() | {"large": out}
    outs.pop("brain")
    with npzkit.open(saved) as npz, pytest.raises(error, match=message):
        npz.load_all(out=outs)
    outs.pop("large")
    assert is_blank(outs)


def test_python_objects_fill_nothing():
    """A member that is no array of plain values is refused, also if pickles are allowed."""
    stream = io.BytesIO()
    np.savez(stream, a=np.ones(3), o=np.array([None, {}]))
    outs = {"a": np.zeros(3), "o": np.array([1, 2], object)}
    with (
        npzkit.open(stream, allow_pickle=True) as npz,
        pytest.raises(ValueError, match="plain values"),
    ):
        npz.load_all(out=outs)
    assert outs["a"].tolist() == [0, 0, 0]


def damage(path, key):
    """Flip a bit of an array's data, in a file or in one of its shards."""
    with npzkit.open(path) as npz:
        if isinstance(npz, npzkit.ShardedFile):
            index = npz._archive.index
            number = index.number(key)
            part = index.part_numbers(number)[-1]
            damage(path / index.shards[index.shard_of(part)].name, index.stored_key(number, part))
            return
        entry = npz._archive.entry(key)
    data = bytearray(path.read_bytes())
    data[entry.header_offset + max(200, entry.compressed_size - 5)] ^= 4
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "key"), by_turns(SAVE, ["large", "fortran", "huge", "small/70"]))
def test_one_damaged_member_changes_nothing(tmp_path, name, key, any_size):
    """If an array is damaged, neither it nor others are filled; the error names it or its part."""
    path = tmp_path / "a.npz"
    SAVE[name](path)
    damage(path, key)
    outs = holes()
    del outs["brain"]
    with npzkit.open(path) as npz:
        for fill in (
            lambda: npz.load_all(out=outs),
            lambda: npz.read(key, out=outs[key]),
            lambda: npz.lazy(key).read(out=outs[key]),
        ):
            with pytest.raises(NpzkitError) as caught:
                fill()
            assert caught.value.key.startswith(key)
            assert caught.value.is_damage
            assert is_blank(outs)


@pytest.mark.parametrize("is_url", [False, True])
def test_what_is_read_slowly_is_read_once(tmp_path, is_url):
    """From a URL or a file object, arrays are read into memory first: not twice, and all or none."""
    path = tmp_path / "a.npz"
    npzkit.save(path, ARRAYS)
    sound = path.read_bytes()
    damage(path, "huge")
    for data in (sound, path.read_bytes()):
        file = CountingBytes(data)
        if is_url:
            import fsspec

            file = "memory://filling/a.npz"
            with fsspec.open(file, "wb") as stream:
                stream.write(data)
        outs = holes()
        with npzkit.open(file) as npz:
            if data is sound:
                assert equals(npz.load_all(out=outs))
                assert is_url or file.count < 1.2 * len(data)
            else:
                with pytest.raises(ChecksumError):
                    npz.load_all(out=outs)
                assert is_blank(outs)


def changing(monkeypatch, change):
    """Have a file change when all was checked, and nothing was filled yet."""
    monkeypatch.setattr(npzfile, "READ_ONCE_SIZE", 0)
    fill = OpenedArchive.fill

    def changed(self, outs, threads, verify, *, is_trial=False):
        if not is_trial:
            change()
        fill(self, outs, threads, verify, is_trial=is_trial)

    monkeypatch.setattr(OpenedArchive, "fill", changed)


def test_a_file_that_is_overwritten_meanwhile_fills_nothing(tmp_path, monkeypatch):
    """If another program writes to the file after the check, StaleArchiveError says so."""
    path = tmp_path / "a.npz"
    npzkit.save(path, ARRAYS)
    data = path.read_bytes()
    outs = holes()
    npzkit.save(path, ARRAYS | {"small/79": ARRAYS["small/79"] + 1})
    for changed in (data[: len(data) // 2], bytes(len(data)), path.read_bytes()):
        path.write_bytes(data)
        # The clock of a file system ticks every 10 milliseconds or more often.
        time.sleep(0.05)
        with monkeypatch.context() as patched, npzkit.open(path) as npz:
            changing(patched, lambda changed=changed: path.write_bytes(changed))
            with pytest.raises(StaleArchiveError):
                npz.load_all(out=outs)
        assert is_blank(outs)


@pytest.mark.skipif(os.name == "nt", reason="Windows does not replace open files")
def test_a_file_that_is_replaced_meanwhile_fills_what_was_opened(tmp_path, monkeypatch):
    """Replaced or appended to, the file still has what was checked."""
    path = tmp_path / "a.npz"
    npzkit.save(path, ARRAYS)

    def append():
        with npzkit.NpzWriter(path, "a") as writer:
            writer["new"] = np.ones(3)

    for change in (lambda: npzkit.save(path, {"x": np.ones(2)}), append):
        npzkit.save(path, ARRAYS)
        with monkeypatch.context() as patched, npzkit.open(path) as npz:
            changing(patched, change)
            assert equals(npz.load_all(out=holes()))


def test_bytes_that_change_while_they_are_read_are_an_error(tmp_path, monkeypatch):
    """CRC-32s are compared again while arrays are filled."""
    path = tmp_path / "a.npz"
    npzkit.save(path, ARRAYS)
    read = FileSource.readinto_at

    def spoilt(self, offset, view):
        read(self, offset, view)
        if len(view) > 1000:
            view[500] ^= 1

    with npzkit.open(path) as npz:
        changing(monkeypatch, lambda: monkeypatch.setattr(FileSource, "readinto_at", spoilt))
        with pytest.raises((ChecksumError, ZipFormatError)):
            npz.load_all(out=holes())


@pytest.mark.slow
@pytest.mark.parametrize(
    "compression", ["stored", "deflated", pytest.param("zipfile", marks=needs_deep), "many"]
)
def test_filling_takes_little_memory(tmp_path, compression):
    """Beside the arrays, there is never more in memory than a twentieth of them."""
    path = tmp_path / "a.npz"
    size = (1 << 13) - 64 if compression == "many" else 1 << 22
    block = np.arange(size, dtype=np.uint16)
    arrays = {f"a{number}": block for number in range((1 << 25) // size)}
    if compression == "zipfile":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
            for key, array in arrays.items():
                with file.open(f"{key}.npy", "w") as stream:
                    npzkit.format.write_array(stream, array)
    else:
        npzkit.save(path, arrays, compression="deflated" if compression == "deflated" else "stored")
    outs = {key: np.zeros_like(array) for key, array in arrays.items()}
    with npzkit.open(path) as npz:
        npz.load_all(list(outs)[:1], out=outs)
        [npz.info(key) for key in outs]
        tracemalloc.start()
        npz.load_all(out=outs)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert all(np.array_equal(out, block) for out in outs.values())
    assert peak < sum(out.nbytes for out in outs.values()) / 20


@pytest.mark.parametrize("key", ["small", "large"])
def test_a_damaged_header_is_damage(tmp_path, key):
    """If an array's own header has another dtype than the index, that is not the fault of `out`."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"small": np.ones(3, "f4"), "large": np.ones(300_000, "f4")})
    data = path.read_bytes()
    with npzkit.open(path) as npz:
        outs = {key: np.zeros(npz.info(key).shape, "f4")}
        place = data.index(b"<f4", npz._archive.entry(key).header_offset)
        path.write_bytes(data[:place] + b"<i4" + data[place + 3 :])
        with pytest.raises(NpzkitError) as caught:
            npz.load_all(out=outs)
    assert caught.value.key == key
    assert not outs[key].any()
