"""Examples of many bytes, which arrays are read straight into."""

from __future__ import annotations

import os
import tracemalloc

import npzkit
import numpy as np
import pytest
from npzkit.archive import npzfile
from npzkit.archive.opened_archive import OpenedArchive
from npzkit.errors import NpzkitError, TreeMismatchError, TreeMismatchWarning


def tree_of(fill):
    return {
        "layers": [
            {"w": np.full((256, 1024), fill, "f4"), "b": np.full(64, fill)} for _ in range(9)
        ],
        "order": np.full((1024, 256), fill, "f4", order="F"),
        "other": np.full((512, 512), fill, "f4")[:, ::2],
        "step": fill,
    }


def arrays_of(tree):
    return [leaf for layer in tree["layers"] for leaf in layer.values()] + [
        tree["order"],
        tree["other"],
    ]


@pytest.fixture(params=["stored", "deflated", "sharded"])
def path(request, tmp_path):
    if request.param != "sharded":
        npzkit.save(tmp_path / "a.npz", tree_of(3), compression=request.param)
        return tmp_path / "a.npz"
    npzkit.save(tmp_path / "one.npz", tree_of(3))
    with npzkit.ShardedWriter(tmp_path / "a", shard_size="4MB") as writer:
        with npzkit.open(tmp_path / "one.npz") as npz:
            writer.metadata |= npz.metadata
            for key in npz:
                writer[key] = npz[key]
        writer.commit()
    return tmp_path / "a"


@pytest.mark.slow
def test_arrays_are_read_into_the_example(path, monkeypatch):
    """The memory of the example is filled by the archive itself, and all of it once."""
    filled = []
    fill = OpenedArchive.fill

    def noted(self, outs, threads, verify, *, is_trial=False):
        if not is_trial:
            filled.extend(outs.values())
        fill(self, outs, threads, verify, is_trial=is_trial)

    monkeypatch.setattr(OpenedArchive, "fill", noted)
    example = tree_of(0)
    assert npzkit.load_tree(path, into=example) is example
    assert all((array == 3).all() for array in arrays_of(example))
    assert example["step"] == 3
    expected = [array for array in arrays_of(example) if array is not example["other"]]
    assert {array.ctypes.data for array in filled} == {array.ctypes.data for array in expected}


@pytest.mark.slow
def test_it_takes_little_memory(tmp_path):
    """Beside the example, a twentieth of it is in memory at most; without preadv, a tenth."""
    npzkit.save(tmp_path / "a.npz", {f"a{n}": np.full(1 << 19, n, "f4") for n in range(24)})
    example = {f"a{n}": np.zeros(1 << 19, "f4") for n in range(24)}
    npzkit.load_tree(tmp_path / "a.npz", only="a1", into=example)
    tracemalloc.start()
    npzkit.load_tree(tmp_path / "a.npz", into=example)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all((array == n).all() for n, array in enumerate(example.values()))
    share = 20 if hasattr(os, "preadv") else 10
    assert peak < sum(array.nbytes for array in example.values()) / share


@pytest.mark.slow
@pytest.mark.parametrize("key", ["layers/3/w", "layers/3/b", "other"])
def test_one_damaged_array_changes_nothing(path, key):
    """If any array is damaged, all of the example stays as it is."""
    if path.is_dir():
        pytest.skip("tests/archive/test_filling.py damages shards")
    with npzkit.open(path) as npz:
        entry = npz._archive.entry(key)
    data = bytearray(path.read_bytes())
    data[entry.header_offset + entry.compressed_size] ^= 1
    path.write_bytes(data)
    example = tree_of(0)
    with pytest.raises(NpzkitError, match=key):
        npzkit.load_tree(path, into=example)
    assert not any(array.any() for array in arrays_of(example))
    assert example["step"] == 0


@pytest.mark.slow
def test_what_does_not_fit_changes_nothing(path):
    """Another shape or dtype is an error before anything is filled; or is left as it is."""
    example = tree_of(0)
    example["order"] = np.zeros((256, 1024), "f4")
    example["layers"][2]["w"] = np.zeros((256, 1024), "i4")
    with pytest.raises(TreeMismatchError, match="order") as caught:
        npzkit.load_tree(path, into=example)
    assert list(caught.value.differing) == ["layers/2/w", "order"]
    assert not any(array.any() for array in arrays_of(example))
    with pytest.warns(TreeMismatchWarning):
        npzkit.load_tree(path, into=example, strict=False)
    assert not example["order"].any()
    assert not example["layers"][2]["w"].any()
    assert (example["layers"][1]["w"] == 3).all()


@pytest.mark.slow
def test_only_a_part_is_filled(path):
    """With `only`, other arrays of the example keep their values."""
    example = tree_of(0)
    npzkit.load_tree(path, into=example, only=["layers/4/*", "order"])
    assert (example["layers"][4]["w"] == 3).all()
    assert (example["order"] == 3).all()
    assert not example["layers"][3]["w"].any()
    part = tree_of(0)["layers"]
    npzkit.load_tree(path, "layers", into=part)
    assert all((layer["w"] == 3).all() for layer in part)


@pytest.mark.slow
def test_memory_that_the_example_has_twice_is_filled_with_equal_arrays(tmp_path):
    """Two arrays for the same memory must be equal; else nothing changes."""
    memory = np.zeros(3_000_000)
    example = {"a": memory, "b": memory, "c": np.zeros(3)}
    for b, fits in ((2.0, True), (1.0, False)):
        npzkit.save(
            tmp_path / "a.npz",
            {"a": np.full(3_000_000, 2.0), "b": np.full(3_000_000, b), "c": np.ones(3)},
        )
        memory[:] = 0
        if fits:
            npzkit.load_tree(tmp_path / "a.npz", into=example)
            assert (memory == 2).all()
        else:
            with pytest.raises(TreeMismatchError, match="'b'"):
                npzkit.load_tree(tmp_path / "a.npz", into=example)
            assert not memory.any()


@pytest.mark.slow
def test_masked_arrays_and_strings_are_joined(tmp_path):
    """An array in several members is never read into the memory of one of them."""
    values = np.ma.array(np.arange(2_000_000), mask=np.arange(2_000_000) % 2)
    plain = np.arange(2_000_000)
    npzkit.save(tmp_path / "a.npz", {"m": values, "p": plain}, masked="split")
    example = {
        "m": np.ma.array(np.zeros(2_000_000, int), mask=False),
        "p": np.zeros(2_000_000, int),
    }
    npzkit.load_tree(tmp_path / "a.npz", into=example)
    assert (example["p"] == plain).all()
    assert (example["m"].data == plain).all()
    example["m"] = np.zeros(2_000_000, int)
    with pytest.raises(npzkit.errors.UnsupportedError, match="masked"):
        npzkit.load_tree(tmp_path / "a.npz", into=example)
    assert not example["m"].any()


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy has no StringDType")
def test_parts_of_strings_are_not_filled_before_they_are_joined(tmp_path, monkeypatch):
    """If the example has a part's key too, the strings are still those that were saved."""
    monkeypatch.setattr(npzfile, "READ_ONCE_SIZE", 0)
    texts = np.array(["a", "bcd"], np.dtypes.StringDType())
    npzkit.save(tmp_path / "a.npz", {"t": texts}, strings="split")
    example = {"t": np.zeros_like(texts), "t.offsets": np.zeros(3, np.int64)}
    with pytest.warns(TreeMismatchWarning, match="offsets"):
        npzkit.load_tree(tmp_path / "a.npz", into=example, strict=False)
    assert example["t"].tolist() == ["a", "bcd"]
    assert not example["t.offsets"].any()


def test_bytes_do_not_fill_an_array(tmp_path, any_size):
    """An array of the example at whose key bytes were saved is left as it is."""
    npzkit.save(tmp_path / "a.npz", {"d": {"b": bytes(9), "w": np.ones(3)}})
    example = {"d": {"b": np.full(9, 7, np.uint8), "w": np.zeros(3)}}
    with pytest.warns(TreeMismatchWarning, match="found bytes"):
        npzkit.load_tree(tmp_path / "a.npz", into=example, strict=False)
    assert (example["d"]["b"] == 7).all()
    assert (example["d"]["w"] == 1).all()
