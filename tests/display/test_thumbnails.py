"""Small pictures: which one an array gets, and that their pixels are its values."""

from __future__ import annotations

import base64
import io
import re
import struct
import xml.etree.ElementTree as ET
import zlib

import npzkit
import numpy as np
import pytest
from npzkit.display.histograms import histogram_overview
from npzkit.display.sampling import reachable
from npzkit.display.thumbnails import bars_markup, thumbnail
from virtual_array import VirtualArray


def pixels(found):
    """Return the pixels of a thumbnail as red, green, blue and opacity, decoded here."""
    data = base64.b64decode(re.search(r"base64,([^\"]+)", found)[1])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        size = struct.unpack(">I", data[place : place + 4])[0]
        checked = data[place + 4 : place + 8 + size]
        assert struct.unpack(">I", data[place + 8 + size : place + 12 + size])[0] == zlib.crc32(
            checked
        )
        chunks[checked[:4]] = checked[4:]
        place += 12 + size
    width, height, depth, kind = struct.unpack(">2I2B", chunks[b"IHDR"][:10])
    assert depth == 8
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), "u1").reshape(height, -1)
    assert not rows[:, 0].any()
    if kind == 3:
        palette = np.frombuffer(chunks[b"PLTE"], "u1").reshape(-1, 3)
        alpha = np.frombuffer(chunks[b"tRNS"], "u1")[:, np.newaxis]
        return np.concatenate([palette, alpha], 1)[rows[:, 1:]]
    return rows[:, 1:].reshape(height, width, -1)


def test_a_plane_is_an_image():
    """Small values are dark blue and large ones yellow; NaNs show the page behind."""
    array = np.array([[0.0, np.nan], [50.0, 100.0]])
    found = thumbnail(array)
    shown = pixels(found)
    assert shown[0, 0].tolist() == [68, 1, 84, 255]
    assert shown[1, 1].tolist() == [253, 231, 37, 255]
    assert shown[0, 1, 3] == 0
    assert 'width="120" height="120"' in found
    assert "pixelated" in found


def test_pictures_of_pillow_are_the_same():
    """Another decoder finds the same pixels."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for array in (
        np.random.default_rng(0).random((40, 50)),
        np.eye(9, dtype="u1").repeat(3).reshape(9, 9, 3),
    ):
        found = thumbnail(array)
        data = base64.b64decode(re.search(r"base64,([^\"]+)", found)[1])
        opened = image.open(io.BytesIO(data)).convert("RGBA")
        assert np.asarray(opened)[..., :3].tolist() == pixels(found)[..., :3].tolist()


def test_pictures_in_colour():
    """Bytes, and numbers from 0 to 1, of three or four channels are a picture."""
    array = np.arange(5 * 6 * 3, dtype="u1").reshape(5, 6, 3)
    found = thumbnail(array)
    assert pixels(found).tolist() == array.tolist()
    found = thumbnail(array[np.newaxis] / 255)
    assert pixels(found).tolist() == array.tolist()


def test_numbers_that_are_no_colours():
    """Three channels of other numbers are an image of the first one."""
    array = np.arange(5 * 6 * 3.0).reshape(5, 6, 3) - 1
    found = thumbnail(array)
    assert found == thumbnail(array[:, :, 0])
    assert pixels(found).shape == (5, 6, 4)


@pytest.mark.parametrize(("shape", "kind", "part"), [
    ((7,), "line", ""), ((1, 7), "line", "[0, :]"), ((7, 1, 1), "line", "[:, 0, 0]"),
    ((2, 3), "image", ""), ((9, 2, 3), "image", "[4, :, :]"), ((4, 5, 2, 3), "image", "[2, 2, :, :]"),
    ((3, 8, 8), "image", "[1, :, :]"), ((2, 8, 8, 4), "picture", "[1, :, :, :]"),
])  # fmt: skip
def test_the_part_that_is_drawn(shape, kind, part):
    """Of many axes, the plane in the middle is drawn; axes of length 1 do not count."""
    array = np.random.default_rng(0).integers(0, 255, shape, "u1")
    found = thumbnail(array)
    assert found == thumbnail(eval(f"array{part or '[...]'}"))
    assert found.startswith("<svg" if kind == "line" else "<img")
    assert (kind == "picture") == (kind != "line" and np.array_equal(pixels(found), array[1]))


def test_a_line_is_drawn_in_the_pages_colour():
    """Gaps are at NaNs, infinities at the edge; a huge value does no harm."""
    found = thumbnail(np.array([0, 1, np.nan, np.inf, -1e308, 1e308]))
    svg = ET.fromstring(found)
    assert svg[0].get("stroke") == "currentColor"
    assert svg[0].get("d").count("M") == 2
    assert "nan" not in found
    assert "inf" not in found


@pytest.mark.parametrize("array", [
    np.array(3), np.zeros((0, 5)), np.zeros((1, 1)), np.array(["a", "b"]), np.zeros(3, "i4,f4"),
    np.array([None, 1]),
])  # fmt: skip
def test_what_has_no_picture(array):
    """Single values, text, records and objects have none."""
    assert thumbnail(array) is None


@pytest.mark.parametrize("dtype", ["?", "u1", ">i8", "f2", "c16", "M8[s]", "m8[D]", "g"])
@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_every_kind_of_numbers_has_a_picture(dtype, shape):
    """Whatever `npzkit.statistics` can measure can be drawn."""
    assert thumbnail(np.arange(6).astype(dtype).reshape(shape)) is not None


def test_a_huge_array_has_a_small_picture():
    """However large the array, little is read, and the picture is small."""
    for shape in ((10**10,), (10**5, 10**5), (100, 10**4, 10**4, 3)):
        source = VirtualArray(shape)
        found = thumbnail(source, budget=1 << 20)
        assert source.read_size <= 1 << 20
        assert len(found) < 200_000


def test_planes_that_are_read_together():
    """In Fortran's order, the plane lies along the first axes."""
    array = np.asfortranarray(np.random.default_rng(0).random((6, 4, 5)))
    assert thumbnail(array) == thumbnail(array[:, :, 2])
    assert pixels(thumbnail(np.asfortranarray(np.zeros((9, 9, 3), "u1")))).shape == (9, 9, 3)


def test_narrow_planes_can_be_seen():
    """A plane of thousands of rows and three columns is not thinner than a finger."""
    assert 'width="24" height="120"' in thumbnail(np.zeros((9000, 3)))
    assert 'width="50" height="24"' in thumbnail(np.zeros((3, 9000)), width=50, height=40)


def test_values_larger_than_a_pixel_have_edges():
    """A coarse image, whatever the size of its array, is not blurred."""
    array = VirtualArray((10**6, 10**6))
    assert "pixelated" in thumbnail(array, budget=1 << 20)
    assert "pixelated" not in thumbnail(np.zeros((500, 500)))


def test_bars():
    """Each bin has a bar; those of rare values can still be seen."""
    counts = histogram_overview(np.repeat([0, 5, 19], [1, 0, 10**6])).statistics.histogram.counts
    svg = ET.fromstring(bars_markup(counts.tolist()))
    assert svg[0].get("d").count("M") == 20
    assert "v-1.0h" in svg[0].get("d")
    assert "v-60.0h" in svg[0].get("d")


def test_what_is_compressed_without_an_index_is_cut(tmp_path, monkeypatch):
    """Of a large member without seek points, the beginning is shown; others are complete."""
    monkeypatch.setattr("npzkit.display.sampling._NEAR_SIZE", 1 << 12)
    array = np.arange(10_000.0).reshape(100, 100)
    np.savez_compressed(tmp_path / "a.npz", c=array, f=np.asfortranarray(array))
    npzkit.save(tmp_path / "b.npz", {"c": np.zeros((300, 300))}, compression="deflated")
    with npzkit.open(tmp_path / "a.npz") as npz, npzkit.open(tmp_path / "b.npz") as other:
        assert reachable(npz.lazy("c")).shape == (5, 100)
        assert reachable(npz.lazy("f")).shape == (100, 5)
        assert histogram_overview(reachable(npz.lazy("c"))).statistics.max == 499
        assert thumbnail(reachable(npz.lazy("f"))) is not None
        lazy = other.lazy("c")
        assert reachable(lazy) is lazy
    assert reachable(array) is array


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [5e-324, np.finfo("f8").max, -np.finfo("f8").max, np.inf, np.nan])
def test_pictures_of_extreme_numbers(value):
    """The smallest and the largest numbers, alone and with others, are drawn without a warning."""
    for others in (0.0, value, -value):
        values = np.full((6, 6), others)
        values[2, 3] = value
        assert thumbnail(values).startswith("<img")
        assert "NaN" not in thumbnail(values[2])
