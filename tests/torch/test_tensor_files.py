"""npzkit.torch.save_file and load_file: dicts of tensors, as users of safetensors know them."""

from __future__ import annotations

import io
import sys
import zipfile

import npzkit
import numpy as np
import pytest
from npzkit.errors import (
    ChecksumError,
    MemberNotFoundError,
    NotAnArrayError,
    UnsafeNameError,
    UnsupportedError,
)

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
load_file, save_file = npzkit.torch.load_file, npzkit.torch.save_file

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")

WEIGHT = torch.arange(12.0).reshape(3, 4)
DTYPES = [
    "bool", "uint16", "int64", "float16", "complex32", "complex64", "bfloat16", "float8_e4m3fn",
    "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2",
]  # fmt: skip
TENSORS = {
    **{name: torch.ones(2, 48, dtype=torch.uint8).view(getattr(torch, name)) for name in DTYPES},
    "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "columns": WEIGHT.T,
    "apart": WEIGHT[:, ::2], "a/b": WEIGHT, "trained": torch.nn.Parameter(WEIGHT + 1),
}  # fmt: skip


def raw(tensor):
    """Return a tensor's bytes."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def test_tensors_come_back(tmp_path):
    """Every kind of tensor comes back bit for bit without an example, and np.load reads it."""
    save_file(TENSORS, filename=tmp_path / "a.npz", metadata={"format": "pt"})
    found = load_file(tmp_path / "a.npz")
    assert list(found) == list(TENSORS)
    for key, tensor in TENSORS.items():
        assert (found[key].dtype, found[key].shape) == (tensor.dtype, tensor.shape)
        assert raw(found[key]) == raw(tensor)
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz.metadata["format"] == "pt"
    with np.load(tmp_path / "a.npz") as theirs:
        assert theirs["bfloat16"].view("u2").ravel().tolist() == [0x0101] * 48


def test_tied_tensors_stay_tied(tmp_path):
    """A tensor that has two names is saved once, and loaded as one."""
    save_file({"a": WEIGHT, "b": WEIGHT}, tmp_path / "a.npz")
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz.files == ["a"]
        for read in (npz.__getitem__, npz.info, lambda key: npz.load_all([key])):
            with pytest.raises(MemberNotFoundError, match="tied to 'a': read that one"):
                read("b")
        found = load_file(npz)
    assert found["a"] is found["b"]


def test_tensors_are_what_was_read(tmp_path, monkeypatch):
    """The memory into which an array was read is its tensor's: it is not copied."""
    save_file({"a": WEIGHT, "b": WEIGHT.bfloat16()}, tmp_path / "a.npz")
    places = {}

    def load_all(self, keys, load_all=npzkit.NpzFile.load_all):
        arrays = load_all(self, keys)
        places.update({key: array.ctypes.data for key, array in arrays.items()})
        return arrays

    monkeypatch.setattr(npzkit.NpzFile, "load_all", load_all)
    found = load_file(tmp_path / "a.npz", "cpu")
    assert {key: tensor.data_ptr() for key, tensor in found.items()} == places


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_tensors_go_to_a_device(tmp_path, device):
    """All tensors are on the device that is named."""
    save_file({"a": WEIGHT, "b": WEIGHT}, tmp_path / "a.npz")
    assert {tensor.device.type for tensor in load_file(tmp_path / "a.npz", device).values()} == {
        "meta"
    }


def test_any_archive_is_loaded(tmp_path):
    """Nested data has flat keys without its other values; so do sharded and open archives."""
    npzkit.save(tmp_path / "a.npz", {"model": {"w": WEIGHT}, "n": 3, "cfg": {"s": "x"}, "k": [1]})
    assert list(load_file(tmp_path / "a.npz")) == ["model/w"]
    with npzkit.ShardedWriter(tmp_path / "run") as writer:
        writer["x"] = np.arange(3, dtype=">i4")
        writer.commit()
    with npzkit.open(tmp_path / "run") as npz:
        for archive in (tmp_path / "run", npz):
            assert load_file(archive)["x"].tolist() == [0, 1, 2]


def test_files_of_safetensors_come_over(tmp_path):
    """What safetensors has saved is loaded the same after `npzkit.convert`."""
    theirs = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    tensors = {"w": WEIGHT, "half": WEIGHT.bfloat16(), "eighth": WEIGHT.to(torch.float8_e4m3fn)}
    theirs.save_file(tensors, tmp_path / "a.safetensors", {"format": "pt"})
    npzkit.convert(tmp_path / "a.safetensors", tmp_path / "a.npz")
    for key, tensor in load_file(tmp_path / "a.npz").items():
        assert (tensor.dtype, raw(tensor)) == (tensors[key].dtype, raw(tensors[key]))


def test_damage_is_found(tmp_path):
    """A tensor whose bytes have changed raises an error that names it."""
    save_file({"w": WEIGHT}, tmp_path / "a.npz")
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.index(np.float32(11).tobytes())] ^= 1
    with pytest.raises(ChecksumError, match="'w'"):
        load_file(data)


OTHERS = pytest.mark.remedy("npzkit.save also keeps nested data, NumPy's arrays, numbers")


@pytest.mark.parametrize(
    ("tensors", "error", "says"),
    [
        (torch.nn.Linear(1, 1), TypeError, r"model\.state_dict\(\), not Linear"),
        ("a.npz", TypeError, "first"),
        pytest.param({"w": {"inner": WEIGHT}}, NotAnArrayError, "'w'", marks=OTHERS),
        pytest.param({"w": np.ones(3)}, NotAnArrayError, "'w'", marks=OTHERS),
        ({1: WEIGHT}, NotAnArrayError, "strings"),
        ({"w": WEIGHT.to_sparse()}, UnsupportedError, "'w'"),
        ({"../w": WEIGHT}, UnsafeNameError, "'../w'"),
    ],
)
def test_what_is_no_dict_of_tensors_is_refused(tensors, error, says):
    """The error names the key, and nothing is written."""
    stream = io.BytesIO()
    with pytest.raises(error, match=says):
        save_file(tensors, stream)
    assert stream.getvalue() == b""
    if error is NotAnArrayError and "w" in tensors:
        npzkit.save(stream, {**tensors, "n": 3, "s": "text"})
        found = npzkit.load_tree(stream, like={**tensors, "n": 0, "s": ""})
        assert (found["n"], found["s"], type(found["w"])) == (3, "text", type(tensors["w"]))


def test_a_name_of_another_format_is_refused(tmp_path):
    """An archive whose name says torch.save or safetensors is not written."""
    for name in ("a.pt", "a.safetensors"):
        with pytest.raises(UnsupportedError, match=r"Name it \.npz"):
            save_file({"w": WEIGHT}, tmp_path / name)
        assert not (tmp_path / name).exists()


def test_tensors_in_a_store_have_its_options():
    """`save_file` and `load_file` pass `storage_options` to the store of a URL."""
    pytest.importorskip("fsspec", reason="memory:// needs fsspec")
    save_file({"w": WEIGHT}, "memory://tensors/a.npz", storage_options={})
    assert torch.equal(load_file("memory://tensors/a.npz", storage_options={})["w"], WEIGHT)
    with pytest.raises(ValueError, match="storage_options are for URLs"):
        load_file("a.npz", storage_options={"anon": True})


@pytest.mark.remedy("Install it: python -m pip install ml_dtypes")
@pytest.mark.filterwarnings("ignore:this array has the dtype:UserWarning")
def test_ml_dtypes_is_named_if_it_is_missing(tmp_path, monkeypatch):
    """A tensor of bfloat16 cannot be loaded without the package, and the error says so."""
    save_file({"w": WEIGHT.to(torch.bfloat16)}, tmp_path / "a.npz")
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "ml_dtypes", None)
        with pytest.raises(UnsupportedError, match=r"'w'.*pip install ml_dtypes"):
            load_file(tmp_path / "a.npz")
    assert torch.equal(load_file(tmp_path / "a.npz")["w"], WEIGHT.to(torch.bfloat16))


@pytest.mark.remedy("Read it with npzkit.load_tree; if it is bytes of bfloat16")
@pytest.mark.parametrize("array", [np.array(["text"]), np.array(["2026-01"], "M8[M]"), None])
def test_an_array_that_is_no_tensor(tmp_path, array):
    """What PyTorch has no dtype for, or is no array, is named and not left out in silence."""
    npzkit.save(tmp_path / "a.npz", {"w": np.ones(3)} | ({} if array is None else {"names": array}))
    if array is None:
        with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
            archive.writestr("names", b"text")
    with pytest.raises(UnsupportedError, match="'names'"):
        load_file(tmp_path / "a.npz")
    found = npzkit.load_tree(tmp_path / "a.npz")["names"]
    assert found == b"text" if array is None else np.array_equal(found, array)


@pytest.mark.remedy('npzkit.torch.load_file(filename, dtypes={key: "bfloat16"}).')
def test_bytes_of_bfloat16_of_another_program():
    """`load_file` cannot know what they are, and says how to say it; that works."""
    np.savez(file := io.BytesIO(), w=np.frombuffer(b"\x80\x3f" * 3, "V2"))
    with pytest.raises(UnsupportedError, match="dtypes="):
        load_file(file)
    ones = torch.ones(3, dtype=torch.bfloat16)
    assert torch.equal(load_file(file, dtypes={"w": "bfloat16"})["w"], ones)
    like = {"w": torch.empty(3, dtype=torch.bfloat16)}
    assert torch.equal(npzkit.load_tree(file, like=like)["w"], torch.ones(3, dtype=torch.bfloat16))
