"""kerchunk: references to the bytes of an archive, by which zarr reads the same values."""

from __future__ import annotations

import json

import npzkit
import numpy as np
import pytest
from archives import packed
from forge import Member, archive, npy
from npzkit.conversion import kerchunk as module
from npzkit.errors import ConversionError, UnsupportedError
from range_server import RangeServer


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.npz")


def through_zarr(references, **options):
    """Open references as users of zarr do."""
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    # JSON, because users keep references in files.
    options = {"fo": json.loads(json.dumps(references)), "skip_instance_cache": True, **options}
    return zarr.open_group("reference://", storage_options=options, mode="r", zarr_format=2)


def test_zarr_reads_the_same(path, arrays):
    """Every kind of array that Zarr has is read by zarr from the archive's own bytes."""
    record = arrays.pop("record")
    arrays["flat"] = record[["id", "tag"]].astype([("id", ">i4"), ("tag", "S3")])
    npzkit.save(path, {**arrays, "group/inner": np.arange(5)}, metadata={"title": "demo"})
    group = through_zarr(npzkit.kerchunk(path))
    assert group.attrs["title"] == "demo"
    for key, array in {**arrays, "group/inner": np.arange(5)}.items():
        found = group[key][...]
        assert found.dtype == np.asarray(array).dtype, key
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shape", [(12, 4, 2), (7, 4), (4, 7), (1, 1, 9), (6,)])
def test_large_arrays_have_several_chunks(path, monkeypatch, order, shape):
    """Chunks divide the slowest dimension evenly, in both orders."""
    monkeypatch.setattr(module, "_CHUNK_SIZE", 64)
    array = np.asarray(np.arange(np.prod(shape)).reshape(shape), order=order)
    npzkit.save(path, {"x": array})
    refs = npzkit.kerchunk(path)
    chunks = json.loads(refs["refs"]["x/.zarray"])["chunks"]
    assert all(length % chunk == 0 for length, chunk in zip(shape, chunks, strict=True))
    assert chunks != list(shape) or array.nbytes <= 64 or max(shape[0], shape[-1]) == 9
    np.testing.assert_array_equal(through_zarr(refs)["x"][...], array)


def test_chunks_of_a_prime_number_of_rows(path, monkeypatch):
    """Rows that cannot be divided are one chunk, and not thousands."""
    monkeypatch.setattr(module, "_CHUNK_SIZE", 1 << 10)
    npzkit.save(path, {"x": np.zeros(10_007, "u1"), "y": np.zeros((10_007, 64), "u1")})
    refs = npzkit.kerchunk(path)["refs"]
    assert json.loads(refs["x/.zarray"])["chunks"] == [10_007]
    assert json.loads(refs["y/.zarray"])["chunks"] == [1, 64]


def test_dimensions_and_attributes(path):
    """Named dimensions and attributes are kept; others are made up, one per length."""
    with npzkit.NpzWriter(path) as w:
        w.add("t", np.zeros((2, 3)), attrs={"_ARRAY_DIMENSIONS": ["time", "x"], "unit": "K"})
        w.add("n", np.zeros((3, 3)))
        w.add("s", np.float64(1))
    refs = npzkit.kerchunk(path)["refs"]
    assert json.loads(refs["t/.zattrs"]) == {"_ARRAY_DIMENSIONS": ["time", "x"], "unit": "K"}
    assert json.loads(refs["n/.zattrs"])["_ARRAY_DIMENSIONS"] == ["dim_0", "dim_1"]
    assert json.loads(refs["s/.zattrs"])["_ARRAY_DIMENSIONS"] == []
    assert refs["s/0"][2] == 8


def test_nan_and_infinity_in_attributes(path):
    """They are null, which is JSON, and which readers such as xarray take for no value."""
    attrs = {"_FillValue": np.nan, "range": [0, np.inf]}
    with npzkit.NpzWriter(path, metadata={"q": -np.inf}) as w:
        w.add("x", np.zeros(3), attrs=attrs)
    refs = npzkit.kerchunk(path)["refs"]
    assert json.loads(refs[".zattrs"]) == {"q": None}
    found = json.loads(refs["x/.zattrs"])
    assert (found["_FillValue"], found["range"]) == (None, [0, None])


def test_what_zarr_cannot_read(path):
    """Compressed arrays, objects and keys that are groups are refused with key and remedy."""
    npzkit.save(path, {"a": np.zeros(9), "a/b": np.zeros(9)}, compression="deflated")
    with pytest.raises(ConversionError, match=r"'a'.*keys"):
        npzkit.kerchunk(path)
    with pytest.raises(UnsupportedError, match=r"a\.npz.*'a'.*deflated|deflated.*'a'") as caught:
        npzkit.kerchunk(path, keys=["a"])
    assert 'repack(path, compression="stored")' in caught.value.remedy
    npzkit.repack(path, compression="stored")
    assert "a/0" in npzkit.kerchunk(path, keys=["a"])["refs"]
    npzkit.save(path, {"o": np.array([{}], object), "x": 1}, allow_pickle=True)
    with pytest.raises(UnsupportedError, match="'o'"):
        npzkit.kerchunk(path)
    assert "x/0" in npzkit.kerchunk(path, keys=["x"])["refs"]
    npzkit.save(path, {"a/.zarray": 1})
    with pytest.raises(ConversionError, match=r"'a/\.zarray'"):
        npzkit.kerchunk(path)
    with open(path, "rb") as file, pytest.raises(UnsupportedError, match="path or a URL"):
        npzkit.kerchunk(file.read())


@pytest.mark.parametrize("dtype", ["g", "G", [("a", "f4", (2,))], [("a", [("b", "i4")])]])
def test_dtypes_that_zarr_lacks(path, dtype):
    """An array that zarr could not open is refused with its key, before others cannot be listed."""
    npzkit.save(path, {"x": np.zeros(2, dtype)})
    with pytest.raises(UnsupportedError, match=r"no dtype.*'x'"):
        npzkit.kerchunk(path)


def test_bfloat16_is_bytes(path):
    """dtypes that Zarr cannot name are read as bytes."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    array = np.arange(3).astype(ml_dtypes.bfloat16)
    npzkit.save(path, {"w": array})
    found = through_zarr(npzkit.kerchunk(path))["w"][...]
    assert found.dtype == "V2" and found.tobytes() == array.tobytes()


def test_urls(arrays):
    """References to a URL name it, and zarr reads it over HTTP by ranges."""
    with RangeServer().running() as server:
        url = server.put(packed({"x": np.arange(10), "y": np.zeros(1 << 18), "z": 1, "w": 2}))
        references = npzkit.kerchunk(url)
        assert references["refs"]["x/0"][0] == url
        assert server.count == 1
        pytest.importorskip("aiohttp", reason="aiohttp is not installed")
        group = through_zarr(references, remote_protocol="http", remote_options={"asynchronous": True})  # fmt: skip
        server.forget()
        assert group["x"][3:5].tolist() == [3, 4]
        assert server.size < 1000


def test_xarray_opens_references(path):
    """xarray's engine for Zarr opens the references."""
    xr = pytest.importorskip("xarray", reason="xarray is not installed")
    pytest.importorskip("zarr", reason="zarr is not installed")
    from npzkit.xarray import to_npz

    dataset = xr.Dataset({"t": (("time", "x"), np.arange(6.0).reshape(2, 3), {"units": "K"})}, {"x": [1, 2, 3]}, {"title": "demo"})  # fmt: skip
    to_npz(dataset, path)
    options = {"storage_options": {"fo": npzkit.kerchunk(path)}, "consolidated": False}
    with xr.open_dataset("reference://", engine="zarr", backend_kwargs=options) as found:
        xr.testing.assert_identical(found.load(), dataset)


def test_records_without_fields_are_refused(tmp_path):
    """Zarr has no dtype without fields, so references to such an array are not made."""
    npzkit.save(tmp_path / "a.npz", {"x": np.zeros(2, [])})
    with pytest.raises(UnsupportedError, match="Zarr has no dtype"):
        npzkit.kerchunk(tmp_path / "a.npz")


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/x", "a\\x", "C:x", "a//b"])
def test_keys_that_lead_out_of_a_folder_are_refused(tmp_path, key):
    """What convert refuses is in no reference: who follows one may write files by its name."""
    path = tmp_path / "a.npz"
    path.write_bytes(archive(Member(f"{key}.npy", npy(np.arange(3)))))
    with pytest.raises(npzkit.NpzkitError, match="a path in Zarr") as caught:
        npzkit.kerchunk(path)
    assert caught.value.key == key
