"""npzkit.statistics: what NumPy computes of the whole array, read piece by piece."""

from __future__ import annotations

import subprocess
import sys

import npzkit
import numpy as np
import pytest
from archives import packed
from peak import PEAK, needs_peak

from tables import each_row

RNG = np.random.default_rng(0)
ARRAYS = {
    "line": RNG.random(5000),
    "plane": RNG.normal(size=(60, 50)).astype("f4"),
    "half": RNG.normal(size=300).astype("f2"),
    "block": RNG.integers(-50, 50, (7, 20, 30)),
    "fortran": np.asfortranarray(RNG.random((40, 60))),
    "flags": RNG.random(2000) < 0.5,
    "big_endian": np.arange(3000, dtype=">i4"),
    "nan": np.where(RNG.random(3000) < 0.3, np.nan, 1e9),
    "infinite": np.array([np.inf, 1, 2.5, -np.inf, np.nan]),
}


@each_row("compression", ["stored", "deflated"])
@each_row("name", ARRAYS)
def test_statistics_are_numpys(name, compression):
    """Extremes are exact and of the array's dtype; the rest is that of the finite values."""
    array = ARRAYS[name]
    found = npzkit.statistics(packed({"x": array}, compression=compression), "x")
    numbers, finite = array[~np.isnan(array)], array[np.isfinite(array)].astype("f8")
    assert (found.min, found.max) == (numbers.min(), numbers.max())
    assert found.min.dtype == array.dtype.newbyteorder("=")
    assert found.mean == pytest.approx(finite.mean())
    assert found.std == pytest.approx(finite.std(), rel=1e-9, abs=1e-6)
    assert found.count == array.size
    assert (found.nan_count, found.inf_count) == (np.isnan(array).sum(), np.isinf(array).sum())


@each_row("name", ARRAYS)
def test_a_histogram_is_numpys(name):
    """The counts are those that np.histogram gives for the edges, 10 to 20 bins."""
    counts, edges = npzkit.statistics(packed({"x": ARRAYS[name]}), "x").histogram
    finite = ARRAYS[name][np.isfinite(ARRAYS[name])] + 0
    assert np.histogram(finite, edges)[0].tolist() == counts.tolist()
    assert len(edges) == len(counts) + 1
    assert len(np.unique(finite)) < 20 or 10 <= len(counts) <= 20


@each_row(
    ("array", "expected"),
    [
        (np.array([2**64 - 1, 0], "u8"), {"min": 0, "max": 2**64 - 1}),
        (np.array([-(2**63), 2**63 - 1]), {"min": -(2**63), "max": 2**63 - 1}),
        (np.array([-1.7e308, 1.7e308]), {"mean": 0.0, "std": np.inf}),
        (np.array([np.nan, np.inf, 3.0]), {"nan_count": 1, "inf_count": 1, "mean": 3.0}),
        (np.array([np.nan]), {"min": None, "mean": None, "count": 1}),
        (np.zeros((0, 3)), {"min": None, "count": 0}),
        (np.float32(3.5), {"min": 3.5, "std": 0.0}),
        (np.array([3 + 4j]), {"max": 5.0}),
        (np.array(["2020-01", "NaT"], "M8[M]"), {"min": np.datetime64("2020-01"), "nan_count": 1}),
        (np.array([True, False]), {"min": False, "max": True, "mean": 0.5}),
        (np.array([1e-320, 2e-320]), {"min": 1e-320}),
    ],
)
def test_statistics_at_the_edges(array, expected):
    """Extremes are exact, what is no number is counted, nothing overflows loudly."""
    found = npzkit.statistics(packed({"x": array}), "x")
    assert {name: getattr(found, name) for name in expected} == expected


def test_dates_and_durations():
    """They have extremes and a histogram, which are dates too, but no mean."""
    dates = np.array(["2020-01-05", "NaT", "2020-01-01", "2020-03-01"], "M8[D]")
    found = npzkit.statistics(packed({"x": dates}), "x")
    assert (found.min, found.max) == (np.datetime64("2020-01-01"), np.datetime64("2020-03-01"))
    assert (found.nan_count, found.mean, found.std) == (1, None, None)
    assert found.histogram.edges.dtype == dates.dtype
    assert found.histogram.edges[0] <= found.min
    assert found.histogram.edges[-1] > found.max
    assert found.histogram.counts.sum() == 3
    wide = np.array([-(2**63) + 1, 2**63 - 1]).view("m8[s]")
    assert not np.isnat(npzkit.statistics(packed({"x": wide}), "x").histogram.edges).any()


@pytest.mark.parametrize("array", [np.zeros((0, 3)), np.array([np.nan]), np.array([np.inf])])
def test_without_finite_values(array):
    """What cannot be computed is None."""
    found = npzkit.statistics(packed({"x": array}), "x")
    assert (found.mean, found.std, found.histogram) == (None, None, None)
    assert (found.max is None) == (not np.isinf(array).any())


def test_complex_numbers_are_measured_by_magnitude():
    """Minimum, maximum and mean are those of the magnitudes."""
    found = npzkit.statistics(packed({"x": np.array([3 + 4j, 0])}), "x")
    assert (found.min, found.max, found.mean) == (0, 5, 2.5)


@each_row(
    "index",
    [np.s_[3], np.s_[:, 2:5], np.s_[::-2, ..., 0], np.s_[[1, 3], 0], np.s_[..., [5, 1, 1]],
     np.s_[None, 2:, None], np.s_[np.arange(20) % 3 == 0], np.s_[np.int64(4), -1], np.s_[20:]],
)  # fmt: skip
@each_row("order", "CF")
def test_a_part_is_what_an_index_chooses(index, order):
    """Any index of a lazy array chooses the part that is measured."""
    array = np.asarray(RNG.normal(size=(20, 30)), order=order)
    found = npzkit.statistics(packed({"x": array}), "x", index)
    part = array[index]
    assert found.count == part.size
    assert found.max == (part.max() if part.size else None)


@pytest.mark.remedy("Choose a field that holds numbers: ")
def test_a_field():
    """Of a structured array a field is measured, with its own axes, or a part of it."""
    table = np.zeros(20, [("id", ">i2"), ("pos", "f4", (2,)), ("name", "S3")])
    table["id"], table["pos"][:, 1] = np.arange(20), 7
    data = packed({"t": table})
    assert npzkit.statistics(data, "t", field="id").max == 19
    assert npzkit.statistics(data, "t", np.s_[:5], field="id").max == 4
    assert npzkit.statistics(data, "t", field="pos").mean == 3.5
    with pytest.raises(
        npzkit.errors.UnsupportedError, match=r"field that holds numbers: 'id', 'pos'\.$"
    ):
        npzkit.statistics(data, "t")
    with pytest.raises(npzkit.errors.UnsupportedError, match="need numbers"):
        npzkit.statistics(data, "t", field="name")
    with pytest.raises(IndexError, match="no field 'none'"):
        npzkit.statistics(data, "t", field="none")


def test_what_has_no_statistics(fixtures):
    """Text, bytes and missing keys and parts are errors that say so."""
    data = packed({"text": np.array(["a"]), "x": np.zeros(3)})
    with pytest.raises(npzkit.errors.UnsupportedError, match="key 'text'"):
        npzkit.statistics(data, "text")
    with pytest.raises(npzkit.errors.MemberNotFoundError):
        npzkit.statistics(data, "none")
    with pytest.raises(IndexError, match="out of bounds"):
        npzkit.statistics(data, "x", 3)
    with pytest.raises(npzkit.errors.NpyFormatError, match="not an array"):
        npzkit.statistics(fixtures / "zipfile_names.npz", "readme.txt")
    with pytest.raises(npzkit.errors.PickleRefusedError):
        npzkit.statistics(fixtures / "numpy_object.npz", "objects")


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_a_damaged_array_has_no_statistics(compression):
    """The CRC-32 is checked where all of an array is read."""
    data = bytearray(packed({"x": RNG.random(50_000)}, compression=compression))
    with npzkit.open(bytes(data)) as npz:
        data[npz.info("x").data_offset + 300] ^= 1
    with pytest.raises((npzkit.errors.ChecksumError, npzkit.errors.ZipFormatError)):
        npzkit.statistics(data, "x")


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3, None])
def test_threads_give_the_same(threads):
    """Any number of threads gives the same numbers, to the last digit."""
    data = packed({"x": RNG.random((900, 1000))}, compression="deflated", level=1)
    told = []
    found = npzkit.statistics(
        data, "x", threads=threads, progress=lambda done, total: told.append((done, total))
    )
    assert found.mean == npzkit.statistics(data, "x").mean
    assert told == sorted(told)
    assert told[-1] == (7_200_000, 7_200_000)


def test_an_open_archive_stays_open():
    """An NpzFile is used as it is, and not closed."""
    with npzkit.open(packed({"x": np.arange(3)})) as npz:
        assert npzkit.statistics(npz, "x").max == 2
        assert npzkit.statistics(npz, "x.npy").max == 2
        assert npz["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_an_array_is_read_once_for_its_statistics(compression, tmp_path, monkeypatch):
    """The bytes are read, and compared with the CRC-32, in one pass, whatever the compression."""
    path = tmp_path / "a.npz"
    values = np.random.default_rng(0).random((600, 1000))
    npzkit.save(path, {"x": values}, compression=compression)
    sizes = []
    for name in ("readinto_at", "read_at"):
        real = getattr(npzkit.files.source.FileSource, name)

        def counted(self, offset, size, real=real):
            sizes.append(size if isinstance(size, int) else len(size))
            return real(self, offset, size)

        monkeypatch.setattr(npzkit.files.source.FileSource, name, counted)
    assert npzkit.statistics(path, "x").count == values.size
    assert sum(sizes) < 1.4 * path.stat().st_size


@needs_peak
@pytest.mark.slow
def test_statistics_in_bounded_memory(tmp_path):
    """An array is measured in less memory than it takes."""
    path, count = tmp_path / "a.npz", 250
    with (
        npzkit.NpzWriter(path, compression="deflated", level=1) as w,
        w.create("x", (None, 1 << 17), "f8") as rows,
    ):
        for _ in range(count):
            rows.append(np.zeros((1, 1 << 17)))
    code = (
        f"{PEAK}\nimport npzkit\nfound = npzkit.statistics({str(path)!r}, 'x')\n"
        "print(found.count, peak())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr
    number, peak = map(int, found.stdout.split())
    assert number == count << 17
    assert peak < 240_000
