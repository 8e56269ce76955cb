"""repair(keep_partial=): what is left of a damaged array in its sound chunks."""

from __future__ import annotations

import os
import sys

import npzkit
import numpy as np
import pytest
from forge import npy, with_chunks
from npzkit.errors import ChecksumError, ZipFormatError

from tables import each_row

RNG = np.random.default_rng(0)
CHUNK = 1 << 12
VALUES = RNG.integers(-(2**60), 2**60, 4000)
MASKED = np.ma.array(RNG.random(4000), mask=RNG.random(4000) < 0.1)
ARRAYS = {
    "floats": RNG.random((60, 70)),
    "3-D": VALUES.reshape(40, 10, 10),
    "long rows": VALUES.view("u1").reshape(8, -1),
    "fortran": np.asfortranarray(VALUES.reshape(40, 100)),
    "structured": np.rec.fromarrays([VALUES, RNG.random(4000)], names="i,x").view(np.ndarray),
    "times": VALUES.view("M8[s]"),
    "complex": (VALUES + 1j).astype(">c16"),
    "text": np.array([f"{value}" for value in VALUES[:600]]),
    "masked": MASKED,
}
MISSING = {"floats": np.nan, "times": np.datetime64("NaT", "s"), "complex": np.nan}


@pytest.fixture
def paths(tmp_path):
    """Return the path of a damaged archive and another path."""
    return tmp_path / "damaged.npz", tmp_path / "saved.npz"


def save(path, arrays, **options):
    """Save arrays in chunks, each with an attribute."""
    with npzkit.NpzWriter(
        path, compression="deflated", chunk_size=CHUNK, masked="split", strings="split", **options
    ) as writer:
        for key, array in arrays.items():
            writer.add(key, array, attrs={"of": key})


def damage(path, key, numbers):
    """Damage chunks of an array, and return the bytes of its data that are sound."""
    data = bytearray(path.read_bytes())
    with npzkit.open(bytes(data)) as npz:
        entry = npz._archive.entry(key)
        header, start = npz._archive.reader.find_header(entry)
        listed = npz._archive.reader.lists.find(entry)
    sound = np.ones(header.nbytes, bool)
    for number in numbers:
        data[start + listed.offsets[number] + 50] ^= 64
        begin = number * CHUNK - header.data_offset
        sound[max(begin, 0) : begin + CHUNK] = False
    path.write_bytes(data)
    return sound


def repaired(paths, **options):
    """Repair a file into another, which must verify, and return the report."""
    before = paths[0].read_bytes()
    report = npzkit.repair(*paths, overwrite=True, **options)
    assert paths[0].read_bytes() == before
    found = npzkit.verify(paths[1])
    assert found.ok, found
    with npzkit.open(paths[1], strict=True) as npz:
        assert tuple(npz.files) == report.kept
    return report


def items_of(array, sound):
    """Return which items of an array are sound, by its bytes."""
    order = "F" if array.flags.fnc else "C"
    return sound.reshape(-1, array.itemsize).all(1).reshape(array.shape, order=order)


def test_the_lists_are_lost_with_the_end(paths):
    """If the end of the file is missing too, a damaged array is lost as a whole, and is named."""
    save(paths[0], {"before": np.arange(3), "floats": ARRAYS["floats"], "after": np.arange(4)})
    damage(paths[0], "floats", [1])
    with npzkit.open(paths[0]) as npz:
        end = npz._archive.entry("after").header_offset + 20
    os.truncate(paths[0], end)
    report = repaired(paths, keep_partial="mask")
    assert report.kept == ("before",)
    assert "floats" in [row.key for row in report.lost]


@pytest.mark.slow
@each_row("numbers", [(0,), (1, 3, 4), (-1,)])
@each_row("key", ARRAYS)
def test_lost_values_are_masked(paths, key, numbers):
    """All values outside of damaged chunks stay where they were; one more attribute says what is lost."""
    array = ARRAYS[key]
    save(paths[0], {"before": np.arange(3), key: array, "after": np.arange(4)})
    count = -(-(array.nbytes + 128) // CHUNK)
    sound = items_of(np.asarray(array), damage(paths[0], key, [n % count for n in numbers]))
    report = repaired(paths, keep_partial="mask")
    (lost,) = [row for row in report.lost if row.key == key]
    assert f"{np.count_nonzero(~sound):,} of {array.size:,} values are masked" in lost.what
    rows = sound.reshape(len(sound), -1).all(1)
    listed = [number for begin, stop in lost.rows for number in range(begin, stop)]
    assert listed == ([] if key == "fortran" else np.flatnonzero(~rows).tolist())
    with npzkit.open(paths[1]) as npz, np.load(paths[1]) as theirs:
        found, mask = npz.join(key), npz[f"{key}.mask"]
        assert npz.info(key).attrs == {"of": key, "partly_lost": lost.what}
        np.testing.assert_array_equal(theirs[key], npz[key])
    assert found.dtype == array.dtype and found.shape == array.shape
    mask = mask["i"] if mask.dtype.names else mask
    expected = ~sound | (np.ma.getmaskarray(array) if key == "masked" else False)
    np.testing.assert_array_equal(mask, expected)
    np.testing.assert_array_equal(found.data[sound], np.asarray(array)[sound])
    if key in MISSING:
        np.testing.assert_array_equal(found.data[~sound].real, MISSING[key])


@pytest.mark.slow
@each_row("numbers", [(0,), (1, 3, 4), (-1,)])
@each_row("key", ["floats", "3-D", "long rows", "structured", "text", "masked"])
def test_rows_with_lost_values_are_dropped(paths, key, numbers):
    """keep_partial="drop" keeps the rows without lost values; a masked array keeps all of its rows."""
    array = ARRAYS[key]
    save(paths[0], {key: array})
    count = -(-(array.nbytes + 128) // CHUNK)
    sound = items_of(np.asarray(array), damage(paths[0], key, [n % count for n in numbers]))
    rows = sound.reshape(len(sound), -1).all(1)
    (lost,) = repaired(paths, keep_partial="drop").lost
    with npzkit.open(paths[1]) as npz:
        if key == "masked":
            assert npz.join(key).shape == array.shape
            return
        assert npz.files == [key]
        np.testing.assert_array_equal(npz[key], array[rows])
        assert npz.info(key).attrs == {"of": key, "partly_lost": lost.what}
    assert f"{np.count_nonzero(~rows):,} of {len(rows):,} rows are left out" in lost.what


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "place", "bits"),
    [
        ("stored", 200_000, 64),
        ("deflated", 200_000, 64),
        ("zstd", 200_000, 64),
        # The frame's header asks for a dictionary, or a huge window.
        ("zstd", 39, 2),
        ("zstd", 40, 0xF0),
    ],
)
def test_any_method(paths, method, place, bits):
    """Arrays of each method whose chunks have CRC-32s keep the values of sound chunks."""
    if method == "zstd":
        pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    array = RNG.random((400, 100))
    npzkit.save(paths[0], {"x": array}, compression=method, chunk_size=1 << 16)
    data = bytearray(paths[0].read_bytes())
    data[place] ^= bits
    paths[0].write_bytes(data)
    with npzkit.open(paths[0]) as npz, pytest.raises(ChecksumError) as caught:
        npz["x"]
    *_, row = [row for row in npzkit.verify(paths[0]).rows if row.severity == "error"]
    (lost,) = repaired(paths, keep_partial="mask").lost
    assert row.where == lost.where == caught.value.offset
    assert f"damaged chunk {caught.value.chunk} of 5, in rows" in row.what
    with npzkit.open(paths[1]) as npz:
        found = npz.join("x")
        assert npz.info("x").method == method
    assert found.mask.any(1).sum() == lost.rows[0][1] - lost.rows[0][0]
    np.testing.assert_array_equal(found.data[~found.mask], array[~found.mask])


@pytest.mark.parametrize("partial", ["mask", "drop"])
def test_lost_values_of_a_mask_are_masked(paths, partial):
    """Where it is not known whether a value was masked, it is masked."""
    array = np.ma.array(np.arange(9000.0), mask=RNG.random(9000) < 0.5)
    save(paths[0], {"x": array})
    known = damage(paths[0], "x.mask", [1])
    sound = items_of(array.data, damage(paths[0], "x", [5]))
    report = repaired(paths, keep_partial=partial)
    assert {row.key for row in report.lost} == {"x", "x.mask"}
    with npzkit.open(paths[1]) as npz:
        assert npz.files == ["x", "x.mask"]
        found = npz.join("x")
    np.testing.assert_array_equal(np.ma.getmaskarray(found), array.mask | ~known | ~sound)
    np.testing.assert_array_equal(found.data[sound], array.data[sound])


def test_what_cannot_be_masked(paths):
    """An array whose mask would take another key is reported, and keep_partial="drop" keeps its rows."""
    save(paths[0], {"x": ARRAYS["floats"], "x.mask": np.arange(5), "y": np.arange(3)})
    damage(paths[0], "x", [1])
    (lost,) = repaired(paths, keep_partial="mask").lost
    assert "cannot be given a mask; keep_partial='drop' keeps its other rows" in lost.what
    assert lost.rows == ()
    assert "values are masked" not in lost.what
    assert repaired(paths, keep_partial="drop").kept == ("x", "x.mask", "y")


@pytest.mark.parametrize("first", [0, 1])
def test_what_has_nothing_left_is_lost(paths, first):
    """An array without a sound value is lost, and so is a file of only such arrays."""
    save(paths[0], {"x": np.array(RNG.bytes(3 * CHUNK))})
    damage(paths[0], "x", range(first, 4))
    with pytest.raises(ZipFormatError, match="nothing can be saved"):
        npzkit.repair(*paths, keep_partial="mask")


def test_a_header_in_a_damaged_chunk_says_nothing(paths):
    """If the directory is lost, and the header is in a damaged chunk, the array is lost."""
    save(paths[0], {"y": np.arange(3), "x": VALUES, "z": np.arange(3)}, level=0)
    data = paths[0].read_bytes()
    place = data.index(b"<i8", data.index(b"x.npy"))
    with npzkit.open(data) as npz:
        end = npz._archive.entry("z").header_offset + 20
    paths[0].write_bytes(data[:place] + b"<f8" + data[place + 3 : end])
    assert repaired(paths, keep_partial="mask").kept == ("y",)


def test_a_mask_in_another_order_is_not_changed(paths):
    """An array in Fortran order whose mask is in C order cannot be masked."""
    array = np.ma.array(ARRAYS["fortran"], mask=np.zeros((40, 100), bool))
    save(paths[0], {"x": array})
    damage(paths[0], "x", [1])
    report = repaired(paths, keep_partial="mask")
    assert report.kept == ("x.mask",)
    assert "cannot be given a mask" in report.lost[0].what


def test_a_tree_has_its_structure(paths):
    """A tree with a masked array loads as before, with everything beside arrays."""
    tree = {"model": {"w": ARRAYS["floats"], "rate": 0.5}, "steps": [np.arange(3), 7]}
    npzkit.save(paths[0], tree, compression="deflated", chunk_size=CHUNK)
    damage(paths[0], "model/w", [2])
    repaired(paths, keep_partial="mask")
    found = npzkit.load_tree(paths[1])
    assert np.ma.is_masked(found["model"].pop("w"))
    assert found["model"] == {"rate": 0.5}
    assert found["steps"][1] == 7


def test_other_programs_chunks_are_not_checked(paths):
    """Without CRC-32s of chunks, a damaged array is lost, and the report says why."""
    np.savez_compressed(paths[0], x=VALUES, y=np.arange(3))
    sound = paths[0].read_bytes()
    for offset in 100, 5000:
        data = bytearray(sound)
        data[offset] ^= 0xFF
        paths[0].write_bytes(data)
        for keep_partial in ("mask", "drop"):
            report = repaired(paths, keep_partial=keep_partial)
            assert report.kept == ("y",)
            assert "without checksums of its parts, nobody knows which" in report.lost[0].what


def test_another_choice_is_refused(paths):
    """Only "mask", "drop" and None are choices."""
    save(paths[0], {"x": VALUES})
    with pytest.raises(ValueError, match="'mask', 'drop' or None, not 'rows'"):
        npzkit.repair(*paths, keep_partial="rows")


@pytest.mark.parametrize("keep_partial", ["mask", "drop"])
def test_a_name_that_is_too_long_in_utf8(paths, keep_partial):
    """A name of code page 437 may be; its damaged array is lost as a whole, and others are kept."""
    plain = {"local": {"flags": 0}, "central": {"flags": 0}}
    data = bytearray(
        with_chunks(b"\x82" * 40_000 + b".npy", npy(np.arange(60_000)), 1 << 16, **plain)
    )
    with npzkit.open(bytes(data)) as npz:
        (key,) = npz.files
        assert len(key.encode()) > 0xFFFF and npz.info(key).checked_parts
    data[len(data) // 2] ^= 1
    paths[0].write_bytes(data)
    with npzkit.NpzWriter(paths[0], "a") as writer:
        writer["small"] = np.arange(3)
    report = npzkit.repair(*paths, keep_partial=keep_partial)
    assert report.kept == ("small",)
    assert [row.key for row in report.lost] == [key]
