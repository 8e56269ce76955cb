"""open_many: the files of a data set as one mapping of joined arrays, checked, bounded, picklable."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import sys
import tempfile
import threading
import types
from pathlib import Path

import npzkit
import numpy as np
import pytest
from archives import packed
from children import forked, read_rest
from forge import Member, archive, npy
from hypothesis import given
from hypothesis import strategies as st
from npzkit.datasets import reopened, skeleton
from npzkit.datasets.paths import in_order
from npzkit.display.histograms import histogram_overview
from npzkit.errors import (
    ChecksumError,
    ClosedArchiveError,
    DifferentFilesError,
    LimitExceededError,
    MemberNotFoundError,
    NpzkitError,
    StaleArchiveError,
    UnsupportedError,
    ZipFormatError,
)
from range_server import RangeServer
from systems import replaces_open_files

COUNT = 12


def sample(number):
    rng = np.random.default_rng(number)
    return {"image": rng.random((3, 4)), "label": np.int16(number), "name": f"n{number * 99}"}


SAVERS = {
    "np.savez": lambda path, arrays: np.savez(path, **arrays),
    "np.savez_compressed": lambda path, arrays: np.savez_compressed(path, **arrays),
    "npzkit": npzkit.save,
}


@pytest.fixture(params=SAVERS)
def folder(request, tmp_path):
    """A folder of samples that one program wrote."""
    for number in range(COUNT):
        SAVERS[request.param](tmp_path / f"s{number}.npz", sample(number))
    return tmp_path


def stacked(key, numbers=range(COUNT)):
    return np.stack([sample(number)[key] for number in numbers])


@given(
    st.lists(st.text("a1209²٣/.", max_size=8), min_size=1, unique=True),
    st.sampled_from(["", "x7", "٣"]),
)
def test_names_with_one_number_are_sorted_as_all_are(names, start):
    """The short way for names that are alike but for one number gives the same order."""
    found = [f"{start}{name}.npz" for name in names]

    def parts(file):
        pieces = re.split(r"(\d+)", file)
        return [int(one) if place % 2 else one for place, one in enumerate(pieces)], file

    assert in_order(found) == sorted(found, key=parts)


def test_any_digits_in_names_are_sorted(tmp_path):
    """Digits of any script are numbers; superscripts and fractions are text."""
    names = ["k1²2.npz", "m²1.npz", "m²10.npz", "m²٣.npz", "²2.npz", "½.npz"]
    for name in names:
        npzkit.save(tmp_path / name, {"x": np.zeros(1)})
    with npzkit.open_many(f"{tmp_path}/*.npz", axis=None) as many:
        found = [os.path.basename(path) for path in many.paths]
    assert [name for name in found if name[0] == "m"] == ["m²1.npz", "m²٣.npz", "m²10.npz"]
    assert sorted(found) == sorted(names)


def test_files_are_stacked(folder):
    """axis=None gives each key one position per file, in the order of the numbers in their names."""
    with npzkit.open_many(f"{folder}/s*.npz", axis=None) as many:
        assert [os.path.basename(path) for path in many.paths] == [
            f"s{n}.npz" for n in range(COUNT)
        ]
        assert many.files == list(many) == ["image", "label", "name"] and len(many) == 3
        for key in many:
            found = many[key]
            np.testing.assert_array_equal(found, stacked(key))
            assert found.dtype == stacked(key).dtype and found.flags.writeable
            assert many.lazy(key).shape == found.shape
        assert "image" in many and "other" not in many and many.get("other") is None
        assert "12 files, stacked" in repr(many)
        with pytest.raises(MemberNotFoundError, match="'image'"):
            many.lazy("imag")
        with pytest.raises(TypeError, match=r"many\.samples"):
            many[0]


def test_files_are_joined(tmp_path):
    """axis=0 and other axes are those of np.concatenate, for files of any lengths."""
    rng = np.random.default_rng(0)
    parts = [rng.random((2, length, 3)) for length in (4, 0, 1, 5)]
    for number, part in enumerate(parts):
        npzkit.save(tmp_path / f"{number}.npz", {"x": part, "f": np.asfortranarray(part)})
    paths = [tmp_path / f"{number}.npz" for number in range(4)]
    for axis in (1, -2):
        many = npzkit.open_many(paths, axis=axis)
        np.testing.assert_array_equal(many["x"], np.concatenate(parts, 1))
        np.testing.assert_array_equal(many["f"], np.concatenate(parts, 1))
        assert [len(s["x"]) for s in many.samples] == [2] * 10
        np.testing.assert_array_equal(many.samples[4]["f"], parts[2][:, 0])
    with pytest.raises(DifferentFilesError, match=r"1\.npz.*'x'.*\(2, 0, 3\).*\(2, 4, 3\)"):
        npzkit.open_many(paths, axis=0)
    assert npzkit.open_many(iter(paths[:1])).lazy("x").shape == (2, 4, 3)


@given(st.data())
def test_any_index_is_that_of_numpy(data):
    """A joined array gives what NumPy gives for any index that LazyArray takes."""
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    axis = data.draw(st.sampled_from([None, 0, 1]))
    compressed = data.draw(st.booleans())
    shapes = [(2, 2) if axis is None else (n, 2) if axis == 0 else (2, n) for n in lengths]
    parts = [np.arange(4 * i, 4 * i + s[0] * s[1]).reshape(s) for i, s in enumerate(shapes)]
    whole = np.stack(parts) if axis is None else np.concatenate(parts, axis)
    items = []
    for length in whole.shape:
        choices = [st.slices(length), st.just(Ellipsis), st.none()]
        if length:
            choices.append(st.integers(-length, length - 1))
        items.append(data.draw(st.one_of(choices)))
    if whole.shape[0] and data.draw(st.booleans()):
        items[0] = data.draw(st.lists(st.integers(-whole.shape[0], whole.shape[0] - 1), max_size=5))
    index = tuple(items)
    try:
        expected = whole[index]
    except IndexError:
        expected = None
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        for i, part in enumerate(parts):
            npzkit.save(f"{folder}/{i}.npz", {"x": part}, compression="deflated" if compressed else "stored")  # fmt: skip
        lazy = opened.enter_context(npzkit.open_many(f"{folder}/*.npz", axis=axis)).lazy("x")
        if expected is None:
            with pytest.raises(IndexError):
                lazy[index]
            return
        found = lazy[index]
    assert type(found) is type(expected)
    np.testing.assert_array_equal(found, expected)


def test_the_attributes_of_a_joined_array(tmp_path):
    """They are those of the first file, as those of what `npzkit pack --join` writes."""
    for step, unit in enumerate(("K", "C")):
        path = tmp_path / f"s{step}.npz"
        npzkit.save(path, {"t": np.ones(2)}, attrs={"t": {"unit": unit}})
    with npzkit.open_many(tmp_path / "s*.npz") as many:
        assert many.lazy("t").attrs == {"unit": "K"}


def test_a_joined_array_is_an_array(folder):
    """It has the attributes of LazyArray, iterates, and is read by np.asarray and in chunks."""
    lazy = npzkit.open_many(f"{folder}/s*.npz", axis=None).lazy("image")
    image = stacked("image")
    assert (lazy.shape, lazy.dtype, lazy.ndim, lazy.size, lazy.nbytes) == (
        image.shape, image.dtype, 3, image.size, image.nbytes
    )  # fmt: skip
    assert isinstance(lazy, npzkit.LazyArray) and dict(lazy.attrs) == {}
    assert "image" in lazy._repr_html_()
    assert histogram_overview(lazy).statistics.count == image.size
    assert len(lazy) == COUNT and lazy.chunks == image.shape
    np.testing.assert_array_equal(np.asarray(lazy), image)
    np.testing.assert_array_equal(np.stack(list(lazy)), image)
    out = np.empty_like(image)
    assert lazy.read(out) is out
    np.testing.assert_array_equal(out, image)
    covered = np.zeros(image.shape, int)
    for chunk in lazy.iter_chunks():
        covered[chunk] += 1
    assert (covered == 1).all()
    with pytest.raises(ValueError, match="out must have shape"):
        lazy.read(out[1:])
    with pytest.raises(ValueError, match="copy"):
        np.asarray(lazy, copy=False)
    assert "'image', shape=(12, 3, 4)" in repr(lazy)


def test_chunks_are_parts_of_files_or_several_files(tmp_path):
    """Chunks have about 1 MiB, in whole files if these are small."""
    for number in range(4):
        npzkit.save(tmp_path / f"{number}.npz", {"small": np.zeros((1 << 16), "f4"), "large": np.zeros((4, 1 << 18), "f4")})  # fmt: skip
    many = npzkit.open_many(f"{tmp_path}/*.npz")
    assert many.lazy("small").chunks == (4 << 16,)
    assert many.lazy("large").chunks == (1, 1 << 18)
    many = npzkit.open_many(f"{tmp_path}/*.npz", axis=None)
    assert many.lazy("small").chunks == (4, 1 << 16)
    assert many.lazy("large").chunks == (1, 1, 1 << 18)


def test_fields(tmp_path):
    """Fields of records are read by name."""
    dtype = [("a", "i4"), ("b", "f8", (2,))]
    for number in range(3):
        npzkit.save(tmp_path / f"{number}.npz", {"r": np.full(2, number, dtype)})
    for axis in (0, None):
        many = npzkit.open_many(f"{tmp_path}/*.npz", axis=axis)
        for names in ("a", "b", ["b", "a"]):
            np.testing.assert_array_equal(many.lazy("r")[names], many["r"][names])


def test_samples(folder):
    """samples is a sequence of dicts, one per file, that slices and ends as a list does."""
    many = npzkit.open_many(f"{folder}/s*.npz", axis=None)
    samples = many.samples
    assert len(samples) == COUNT
    for number in (0, 5, -1):
        found = samples[number]
        expected = sample(range(COUNT)[number])
        assert list(found) == list(expected)
        for key, array in expected.items():
            np.testing.assert_array_equal(found[key], array)
            assert found[key].flags.writeable and found[key].flags.aligned
    assert [int(s["label"]) for s in samples[3:8:2]] == [3, 5, 7]
    assert len(list(samples)) == COUNT and len(samples[3:8][1:]) == 4
    for index in ([1, 5], "label"):
        with pytest.raises(TypeError, match=r"an integer or a slice.*many\.lazy\(key\)"):
            samples[index]
    assert many.lazy("label")[[1, 5]].tolist() == [1, 5]
    with pytest.raises(IndexError, match="there are 12 samples"):
        samples[COUNT]
    chosen = npzkit.open_many(f"{folder}/s*.npz", axis=None, keys=["label"])
    assert list(chosen.samples[2]) == ["label"] == chosen.files


def test_rows_are_samples(tmp_path):
    """With axis=0 each row of each file is a sample; arrays of other lengths have none in common."""
    for number in range(3):
        rows = np.arange(4) + 4 * number
        npzkit.save(tmp_path / f"{number}.npz", {"x": rows, "y": rows * 2, "z": rows[:2]})
    many = npzkit.open_many(f"{tmp_path}/*.npz", keys=["x", "y"])
    assert many.samples[9] == {"x": 9, "y": 18} and len(many.samples) == 12
    with pytest.raises(ValueError, match=r"'x': 12.*'z': 6"):
        npzkit.open_many(f"{tmp_path}/*.npz").samples


MISFITS = [
    ({"x": np.zeros(3), "y": 1}, r"first file lacks.*'y'.*found \['x', 'y'\], expected \['x'\]"),
    ({}, r"lacks an array.*'x'.*found \[\], expected \['x'\]"),
    ({"x": np.zeros(3, "f4")}, r"'x'.*found 'float32 \(3,\)', expected 'float64 \(3,\)'"),
    ({"x": np.zeros(3, ">f8")}, "'x'.*>f8"),
    ({"x": np.zeros((3, 1))}, r"'x'.*\(3, 1\)"),
    ({"x": np.zeros(4)}, r"'x'.*\(4,\)"),
]  # fmt: skip


@pytest.mark.parametrize(("arrays", "words"), MISFITS)
def test_files_that_do_not_fit(tmp_path, arrays, words):
    """The error names the file, the key, what was found and what was expected."""
    for number in range(3):
        npzkit.save(tmp_path / f"{number}.npz", {"x": np.zeros(3)})
    npzkit.save(tmp_path / "1.npz", arrays)
    with pytest.raises(DifferentFilesError, match=rf"(?s)(?=.*1\.npz).*{words}") as caught:
        npzkit.open_many(f"{tmp_path}/*.npz", axis=None)
    assert caught.value.path.endswith("1.npz")
    os.link(tmp_path / "1.npz", tmp_path / "3.npz")
    (tmp_path / "4.npz").write_bytes(b"")
    with pytest.warns(UserWarning, match="3 files cannot be opened, or not joined"):
        many = npzkit.open_many(f"{tmp_path}/*.npz", axis=None, on_error="warn")
    assert [path[-5:] for path in many.left_out] == ["4.npz", "1.npz", "3.npz"]
    assert many["x"].shape == (2, 3)
    (tmp_path / "4.npz").unlink()
    (tmp_path / "3.npz").unlink()
    if "y" in arrays:
        assert npzkit.open_many(f"{tmp_path}/*.npz", axis=None, keys=["x"])["x"].shape == (3, 3)


def test_bad_arguments(tmp_path):
    """Patterns without files, empty lists and arrays that cannot be joined are refused."""
    npzkit.save(tmp_path / "a.npz", {"x": 1})
    npzkit.save(tmp_path / "o.npz", {"o": np.array([{}], object)}, allow_pickle=True)
    cases = [
        ((f"{tmp_path}/none*.npz",), {}, FileNotFoundError, r"none\*\.npz"),
        ((f"{tmp_path}/missing.npz",), {}, FileNotFoundError, r"missing\.npz"),
        (([],), {}, ValueError, "empty"),
        ((f"{tmp_path}/a.npz",), {}, ValueError, "'x'.*no axis 0.*axis=None"),
        ((f"{tmp_path}/a.npz", "0"), {}, TypeError, "integer"),
        ((f"{tmp_path}/a.npz",), {"keys": "x"}, TypeError, "keys"),
        ((f"{tmp_path}/a.npz",), {"keys": ["y"]}, MemberNotFoundError, "y"),
        ((f"{tmp_path}/a.npz",), {"storage_options": {"anon": True}}, ValueError, "URL"),
        ((f"{tmp_path}/o.npz",), {}, UnsupportedError, "objects.*'o'|'o'.*objects"),
        ((f"{tmp_path}/a.npz",), {"limits": npzkit.Limits(member_count=0)}, LimitExceededError, "member"),
    ]  # fmt: skip
    for arguments, options, error, words in cases:
        with pytest.raises(error, match=words):
            npzkit.open_many(*arguments, **options)
    (tmp_path / "a[1].npz").write_bytes((tmp_path / "a.npz").read_bytes())
    assert npzkit.open_many(f"{tmp_path}/a[1].npz", axis=None)["x"].tolist() == [1]


@pytest.mark.remedy(" Or join them along the axis in which they differ: ")
def test_scalars_beside_rows_of_different_lengths(tmp_path):
    """What each error names is an axis that fits, and then the arrays that have it."""
    for run in range(3):
        npzkit.save(tmp_path / f"{run}.npz", {"x": np.zeros((2, run)), "step": run, "run": run})
    pattern = f"{tmp_path}/?.npz"
    with pytest.raises(DifferentFilesError, match=r"in which they differ: axis=1 "):
        npzkit.open_many(pattern, axis=None)
    with pytest.raises(ValueError, match=r"'step'.* no axis 1\. Choose .*, keys=\['x'\], or stack"):
        npzkit.open_many(pattern, axis=1)
    assert npzkit.open_many(pattern, axis=1, keys=["x"])["x"].shape == (2, 3)
    with pytest.raises(ValueError, match=r"'step'.* no axis 0\. Stack the files, axis=None$"):
        npzkit.open_many(pattern, keys=["step", "run"])
    assert npzkit.open_many(pattern, axis=None, keys=["step", "run"])["run"].tolist() == [0, 1, 2]


@pytest.mark.slow
@replaces_open_files
@pytest.mark.remedy("Open the files again with npzkit.open_many.")
def test_a_file_that_is_replaced(folder):
    """A file that changed after it was opened is an error that names it, in every way to read."""
    for warm in (False, True):
        for number in range(COUNT):
            npzkit.save(folder / f"s{number}.npz", sample(number))
        many = npzkit.open_many(f"{folder}/s*.npz", axis=None)
        if warm:
            many.samples[3], many.lazy("image")[3, 1]
        np.savez(folder / "s3.npz", **sample(4))
        with pytest.raises(StaleArchiveError, match=r"s3\.npz"):
            many.samples[3]
        with pytest.raises(StaleArchiveError, match=r"s3\.npz"):
            many["image"]
        for index in (3, (3, 1)):
            with pytest.raises(StaleArchiveError, match=r"s3\.npz"):
                many.lazy("image")[index]
        assert many.samples[2]["label"] == 2
        again = npzkit.open_many(f"{folder}/s*.npz", axis=None)
        assert (again.samples[3]["label"], again["label"][3]) == (4, 4)
        again.close()
        with pytest.raises(ClosedArchiveError):
            again.samples[3]
        os.unlink(folder / "s3.npz")
        with pytest.raises(FileNotFoundError, match=r"s3\.npz"):
            many.samples[3]


def test_damage_names_the_file(folder):
    """A flipped bit of the data is a ChecksumError with path and key, warm or not."""
    many = npzkit.open_many(f"{folder}/s*.npz", axis=None)
    many.samples[0]
    path = folder / "s7.npz"
    with npzkit.open(path) as npz:
        info = npz.info("image")
        offset = info.data_offset + (8 if info.method == "stored" else info.compressed_size - 20)
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    state = os.stat(path)
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises((ChecksumError, ZipFormatError), match=r"s7\.npz.*'image'") as caught:
        many.samples[7]
    assert "join the other files without it" in caught.value.remedy
    others = [other for other in many.paths if not other.endswith("s7.npz")]
    assert len(npzkit.open_many(others, axis=None)["image"]) == len(others)
    with pytest.raises((ChecksumError, ZipFormatError), match=r"s7\.npz.*'image'"):
        many["image"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the open files")
def test_few_files_are_open(folder, monkeypatch):
    """Few files are open, however many archives there are, and none after close; reading then is an error."""
    monkeypatch.setattr(reopened, "_FILE_COUNT", 3)

    def opened():
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(link).startswith(str(folder)) for link in links if os.path.exists(link))  # fmt: skip

    with (
        npzkit.open_many(f"{folder}/s*.npz", axis=None) as many,
        npzkit.open_many(f"{folder}/s*.npz", keys=["image"]) as others,
    ):
        assert opened() == 0
        lazy = many.lazy("image")
        for number in range(COUNT):
            assert lazy[number, 1, 2] == sample(number)["image"][1, 2]
            others.lazy("image")[number, 1]
        assert 0 < opened() <= 3
    assert opened() == 0
    for read in (lambda: many["image"], lambda: many.samples[1], lambda: lazy[1, 1]):
        with pytest.raises(ClosedArchiveError):
            read()


@pytest.mark.slow
def test_processes_and_threads(folder, monkeypatch):
    """It is used in threads, in forked children, and pickled into another folder; pickles are small."""
    monkeypatch.chdir(folder)
    many = npzkit.open_many("s*.npz", axis=None)
    lazy = many.lazy("image")
    lazy[2, 1]
    expected = stacked("image")
    wrong = []

    def work(start):
        for number in range(start, start + 30):
            at = number % COUNT
            if not (
                np.array_equal(lazy[at, 1:], expected[at, 1:]) and many.samples[at]["label"] == at
            ):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    if hasattr(os, "fork"):
        with forked(lambda pipe: os.write(pipe, lazy[2:4].tobytes())) as (_, pipe):
            assert read_rest(pipe) == expected[2:4].tobytes()
    data = pickle.dumps((many, lazy, many.samples[2:5]))
    assert len(data) < 3000
    monkeypatch.chdir("/")
    other, again, samples = pickle.loads(data)
    np.testing.assert_array_equal(other["image"], expected)
    np.testing.assert_array_equal(again[1:3], expected[1:3])
    assert [int(s["label"]) for s in samples] == [2, 3, 4]
    assert other.paths == many.paths == [f"s{n}.npz" for n in range(COUNT)]
    with pytest.raises(StaleArchiveError, match=r"s2\.npz"):
        npzkit.save(folder / "s2.npz", {"image": 0})
        pickle.loads(data)[1][2]


def test_only_a_part_is_read(tmp_path):
    """A part of large files costs its own bytes."""
    with RangeServer().running() as server:
        rows = np.arange(1 << 18).reshape(512, 512)
        urls = [
            server.put(packed({"x": rows + n, "y": np.zeros(9), "z": 1, "w": 2}), f"/{n}.npz")
            for n in range(3)
        ]
        many = npzkit.open_many(urls, axis=0, keys=["x"])
        assert server.count == 3
        assert many.paths == urls
        server.forget()
        np.testing.assert_array_equal(many.lazy("x")[511:514], np.concatenate([rows, rows + 1])[511:514])  # fmt: skip
        assert server.size < 80_000
        other = pickle.loads(pickle.dumps(many))
        np.testing.assert_array_equal(other.lazy("x")[1024], rows[0] + 2)
        server.put(packed({"x": rows}), "/1.npz")
        server.etag = '"two"'
        with pytest.raises(StaleArchiveError, match=r"\d\.npz"):
            many["x"]


def test_arrays_have_dtypes_of_their_own(tmp_path):
    """Renaming the fields of an array changes no other one, and not what is read later."""
    records = np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")])
    for number in range(4):
        np.savez(tmp_path / f"s{number}.npz", x=records)
    with npzkit.open_many(f"{tmp_path}/s*.npz", axis=None) as many:
        for _ in range(2):
            read = [many["x"], many.lazy("x")[:2], *(each["x"] for each in many.samples)]
            for array in read:
                array.dtype.names = ("p", "q")
            many.lazy("x").dtype.names = ("r", "s")
        assert many["x"].dtype == many.samples[1]["x"].dtype == records.dtype


def test_only_a_writable_array_is_filled(tmp_path):
    """`read(out=...)` refuses arrays that cannot be written to, and other objects."""
    for number in range(3):
        np.savez(tmp_path / f"s{number}.npz", x=np.arange(4))
    fixed = np.zeros(12, int)
    fixed.flags.writeable = False
    with npzkit.open_many(f"{tmp_path}/s*.npz") as many:
        with pytest.raises(ValueError, match="out must be writable"):
            many.lazy("x").read(fixed)
        with pytest.raises(TypeError, match="out must be a numpy array"):
            many.lazy("x").read([0] * 12)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "axis"), [("image", 0), ("image", None), ("name", None)])
def test_a_damaged_file_fills_nothing(folder, key, axis, any_size):
    """If one of the files is damaged, `read(out=)` names it and leaves all of `out` as it was."""
    with npzkit.open_many(f"{folder}/s*.npz", keys=[key], axis=axis) as many:
        path = many.paths[-1]
        out = np.zeros_like(many[key])
        assert np.array_equal(many.lazy(key).read(np.zeros_like(out)), many[key])
        with npzkit.open(path) as npz:
            place = npz.info(key).data_offset + npz.info(key).nbytes // 2
        times = os.stat(path)
        with open(path, "r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 64]))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        with pytest.raises(NpzkitError) as caught:
            many.lazy(key).read(out)
    assert caught.value.path == path
    assert (out == np.zeros_like(out)).all()


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, None])
def test_what_is_masked_is_filled_too(folder, axis):
    """Of a masked array the data is filled from many files, and its mask stays."""
    with npzkit.open_many(f"{folder}/s*.npz", keys=["image"], axis=axis) as many:
        image = many["image"]
        mask = np.arange(image.size).reshape(image.shape) % 3 == 0
        out = np.ma.array(np.zeros_like(image), mask=mask, hard_mask=True)
        assert many.lazy("image").read(out) is out
    np.testing.assert_array_equal(out.data, image)
    np.testing.assert_array_equal(out.mask, mask)


@pytest.mark.parametrize(
    ("broken", "cls"),
    [
        ([b"<html>", b"PK\3\4", None], ZipFormatError),
        ([None, b"<html>"], FileNotFoundError),
        ([b""] * 15, ZipFormatError),
        ([b"<html>"], ZipFormatError),
    ],
)
def test_files_that_cannot_be_opened(tmp_path, broken, cls):
    """One error names them all, up to ten; on_error="warn" leaves them out, and says which."""
    paths = [str(tmp_path / f"s{number}.npz") for number in range(len(broken) + 2)]
    for number, path in enumerate(paths):
        np.savez(path, x=np.full(2, number))
    wrong = paths[1:-1]
    for path, data in zip(wrong, broken, strict=True):
        os.remove(path)
        if data is not None:
            Path(path).write_bytes(data)
    with pytest.raises(cls) as caught:
        npzkit.open_many(paths)
    # An error of the system doubles the separators of Windows.
    text = str(caught.value).replace("\\\\", "\\")
    assert [path in text for path in wrong] == [at < 11 for at in range(len(wrong))]
    assert ("4 more" in text) == (len(wrong) == 15)
    assert (f"{len(wrong) - 1} other file" in text) == (len(wrong) > 1)
    with pytest.warns(UserWarning, match=f"{len(wrong)} files? cannot be opened") as warned:
        many = npzkit.open_many(paths, on_error="warn")
    assert [warning.filename for warning in warned] == [__file__]
    many = pickle.loads(pickle.dumps(many))
    assert list(many.left_out) == wrong
    assert many.left_out[wrong[0]]
    assert many.paths == [paths[0], paths[-1]]
    assert many["x"].tolist() == [0, 0, len(wrong) + 1, len(wrong) + 1]
    with pytest.raises(cls):
        npzkit.open_many(wrong, on_error="warn")
    with pytest.raises(ValueError, match="on_error"):
        npzkit.open_many(paths, on_error="ignore")


def test_what_is_not_made_yet_has_a_repr(tmp_path):
    """A debugger shows the object of a call that fails."""
    for number in range(2):
        np.savez(tmp_path / f"s{number}.npz", x=np.zeros(number + 1), y=np.zeros(2))
    with pytest.raises(DifferentFilesError) as caught:
        npzkit.open_many(f"{tmp_path}/*.npz", axis=None)
    shown = [
        repr(entry.frame.f_locals["self"])
        for entry in caught.traceback
        if "self" in entry.frame.f_locals
    ]
    assert any("ManyFiles of 2 files" in text for text in shown)


def test_any_dtype_is_kept(tmp_path, arrays):
    """Arrays of every kind come back, also from a pickle, and in every layout."""
    for number in range(3):
        npzkit.save(tmp_path / f"{number}.npz", arrays)
    many = npzkit.open_many(f"{tmp_path}/*.npz", axis=None)
    for each in (many, pickle.loads(pickle.dumps(many))):
        for number in (0, 1, 2):
            for key, array in each.samples[number].items():
                expected = np.asarray(arrays[key])
                assert array.dtype == expected.dtype and array.shape == expected.shape
                np.testing.assert_array_equal(array, expected)
        for key in arrays:
            np.testing.assert_array_equal(each[key], np.stack([arrays[key]] * 3))


def test_bfloat16(tmp_path):
    """dtypes of ml_dtypes are kept by a pickle."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    for number in range(2):
        npzkit.save(tmp_path / f"{number}.npz", {"w": np.arange(3).astype(ml_dtypes.bfloat16)})
    opened = npzkit.open_many(f"{tmp_path}/*.npz")
    for many in (opened, pickle.loads(pickle.dumps(opened))):
        assert many["w"].dtype == ml_dtypes.bfloat16 == many.samples[1]["w"].dtype
        assert many["w"].astype(int).tolist() == [0, 1, 2, 0, 1, 2]


def test_without_preadv(folder, monkeypatch):
    """Systems without preadv read the same."""
    monkeypatch.delattr(os, "preadv", raising=False)
    many = npzkit.open_many(f"{folder}/s*.npz", axis=None)
    assert many._files._alike == {}
    np.testing.assert_array_equal(many["image"], stacked("image"))
    assert many.samples[5]["label"] == 5


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="files are not read so without preadv")
def test_alike_files_are_read_with_one_call(tmp_path, monkeypatch):
    """Files that differ from the first one in data, CRC-32s and times alone are not parsed again."""
    for number in range(COUNT):
        np.savez(tmp_path / f"s{number:02}.npz", **{**sample(number), "name": "same"})
    many = npzkit.open_many(f"{tmp_path}/s*.npz", axis=None)
    monkeypatch.setattr(npzkit.NpzFile, "__init__", lambda *args, **options: 1 / 0)
    for number in range(COUNT):
        assert many.samples[number]["label"] == number
    np.testing.assert_array_equal(many["image"], stacked("image"))


def members(data):
    return [Member("image.npy", npy(data)), Member("label.npy", npy(np.int16(3)))]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["local", "central"])
def test_alike_files_are_alike_in_every_byte(tmp_path, side):
    """A changed byte anywhere in a file gives what reading that file alone gives."""
    good = archive(*members(np.arange(6.0)))
    (tmp_path / "0.npz").write_bytes(good)
    path = tmp_path / "1.npz"
    expected = {"image": np.arange(6.0).tolist(), "label": 3}
    places = range(0, len(good), 3 if side == "local" else 5)
    for place in places:
        data = bytearray(good)
        data[place] ^= 0x41 if side == "local" else 0x01
        path.write_bytes(data)
        try:
            with npzkit.open(path) as npz:
                alone = {key: array.tolist() for key, array in npz.load_all().items()}
        except (npzkit.NpzkitError, Warning):
            alone = None
        try:
            many = npzkit.open_many([tmp_path / "0.npz", path], axis=None)
            many.samples[0]
            found = {key: array.tolist() for key, array in many.samples[1].items()}
        except (npzkit.NpzkitError, Warning):
            found = None
        assert found == alone, place
        assert found in (None, expected) or list(found) != list(expected)


def test_a_kind_of_file_is_only_used_if_its_headers_agree(tmp_path):
    """An archive whose index or directory is wrong does not become the example for others."""
    data = archive(
        Member("image.npy", npy(np.arange(6.0)), local={"name": b"imagE.npy"}),
        Member("label.npy", npy(np.int16(3))),
    )
    (tmp_path / "0.npz").write_bytes(data)
    (tmp_path / "1.npz").write_bytes(data)
    with pytest.raises(npzkit.NpzkitError):
        npzkit.open_many(f"{tmp_path}/*.npz", axis=None)["image"]


def test_two_names_of_one_array(tmp_path):
    """An archive with a repeated name is read as npzkit.open reads it."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(2):
            data = archive(Member("x.npy", npy(np.zeros(2))), Member("x.npy", npy(np.ones(2))))
            (tmp_path / f"{number}.npz").write_bytes(data)
        many = npzkit.open_many(f"{tmp_path}/*.npz")
        assert many["x"].tolist() == [1, 1, 1, 1]
        assert many._files._alike == {}


def test_dask_and_torch_take_it(folder):
    """dask.array.from_array and a DataLoader read joined arrays and samples."""
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    many = npzkit.open_many(f"{folder}/s*.npz", axis=None)
    np.testing.assert_array_equal(da.from_array(many.lazy("image")).compute(), stacked("image"))
    chunked = da.from_array(many.lazy("image"), chunks=(5, 3, 4))
    np.testing.assert_array_equal(chunked[3:9].compute(), stacked("image")[3:9])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_data_loader_reads_samples(folder, method):
    """PyTorch's DataLoader reads samples in its workers, forked and spawned."""
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    many = npzkit.open_many(f"{folder}/s*.npz", axis=None, keys=["image", "label"])
    many.samples[0]
    loader = data.DataLoader(
        many.samples, batch_size=5, num_workers=2, multiprocessing_context=method, timeout=120
    )
    batches = list(loader)
    found = np.concatenate([batch["image"].numpy() for batch in batches])
    np.testing.assert_array_equal(found, stacked("image"))
    assert [int(label) for batch in batches for label in batch["label"]] == list(range(COUNT))
    rows = data.DataLoader(many.lazy("image"), batch_size=4)
    np.testing.assert_array_equal(np.concatenate([row.numpy() for row in rows]), stacked("image"))


def test_many_kinds_of_one_size(tmp_path):
    """Files of the same size with different keys and order are told apart."""
    for number in range(8):
        keys = ("a", "b") if number % 2 else ("b", "a")
        np.savez(tmp_path / f"{number}.npz", **{key: np.full(3, number + (key == "b") * 10) for key in keys})  # fmt: skip
    many = npzkit.open_many(f"{tmp_path}/*.npz", axis=None)
    for _ in range(2):
        assert [int(sample["b"][0]) for sample in many.samples] == list(range(10, 18))
    assert many["a"][:, 0].tolist() == list(range(8))
    assert isinstance(Path(many.paths[0]), Path) and skeleton._MAX_COUNT > 1


def test_stores_of_objects():
    """A pattern of a store lists it."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    fs = fsspec.filesystem("memory")
    try:
        for number in range(11):
            npzkit.save(f"memory://datasets/s{number}.npz", sample(number))
        many = npzkit.open_many("memory://datasets/s*.npz", axis=None)
        assert many.paths[-1] == "memory://datasets/s10.npz"
        assert many["label"].tolist() == list(range(11))
        with pytest.raises(FileNotFoundError, match=r"memory://datasets/none\*"):
            npzkit.open_many("memory://datasets/none*.npz")
        npzkit.save("memory://datasets/s4.npz", sample(40))
        many = npzkit.open_many("memory://datasets/s*.npz", axis=None)
        assert many["label"][4] == 40
    finally:
        fs.store.clear()


def test_a_folder_is_no_list_of_files(tmp_path):
    """The error says the pattern."""
    with pytest.raises(IsADirectoryError, match=r"\*\.npz"):
        npzkit.open_many(tmp_path)


def test_each_file_that_is_left_out_is_named_in_its_own_reason(tmp_path):
    """Two files that lack the same array each have a message with their own path."""
    for name, keys in (("a", "xy"), ("b", "x"), ("c", "x")):
        npzkit.save(tmp_path / f"{name}.npz", dict.fromkeys(keys, np.arange(3)))
    with pytest.warns(UserWarning, match="left out"):
        many = npzkit.open_many(tmp_path / "*.npz", on_error="warn")
    with many:
        assert [path in reason for path, reason in many.left_out.items()] == [True, True]


def test_what_one_owner_left_is_no_other_owners():
    """An archive that an interrupted `__del__` left behind is not given to the next owner."""
    for number in range(200):
        owner = reopened.Recent()
        assert owner.get(0, lambda number=number: types.SimpleNamespace(number=number)).number == number  # fmt: skip
        owner.clear = lambda: None
        reopened.Recent.__del__, kept = lambda self: None, reopened.Recent.__del__
        try:
            del owner
        finally:
            reopened.Recent.__del__ = kept
    reopened._FILES.clear()


@pytest.mark.remedy("Open the folder with npzkit.open, which joins the shards.")
@pytest.mark.parametrize("pattern", ["*.npz", "index.npz"])
def test_the_index_of_shards_is_no_file_of_a_data_set(tmp_path, pattern):
    """A pattern that matches it is meant for the archive, also where others would be left out."""
    with npzkit.ShardedWriter(tmp_path, mode="a") as writer:
        writer["x"] = np.arange(3)
    with pytest.raises(UnsupportedError, match="index of a sharded archive"):
        npzkit.open_many(f"{tmp_path}/{pattern}", on_error="warn")
    with npzkit.open(tmp_path) as npz:
        assert npz["x"].tolist() == [0, 1, 2]
