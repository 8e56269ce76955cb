"""npzkit.convert of files of torch.save: what comes back, and what is refused."""

from __future__ import annotations

import collections
import re
import sys
import zipfile
from argparse import Namespace
from datetime import date, timedelta

import npzkit
import numpy as np
import pytest
from npzkit.conversion.refusals import Claims
from npzkit.errors import (
    ChecksumError,
    ConversionError,
    FormatError,
    LimitExceededError,
    NpzkitError,
    PickleRefusedError,
    UnsupportedError,
)
from npzkit.members import tensors

from tables import each_row

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from npzkit.conversion import torch_file  # noqa: E402

WEIGHT = torch.arange(12.0).reshape(3, 4)
STATE = {
    "model": collections.OrderedDict({"0.weight": WEIGHT, "tied": WEIGHT, "other": WEIGHT.T[1:]}),
    "optimizer": {
        "state": {0: {"step": torch.tensor(3.0), "m": torch.ones(3, dtype=torch.bfloat16)}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0], "foreach": None}],
    },
    "empty": torch.zeros(0, 2), "size": torch.Size([3]), "epoch": 3, "name": "run", "raw": b"a\0",
}  # fmt: skip


@pytest.mark.parametrize("part_size", [1 << 25, 20])
@pytest.mark.parametrize("is_zip", [True, False])
def test_a_checkpoint_comes_back(here, monkeypatch, is_zip, part_size):
    """The archive is that of `npzkit.save`, from files of any version, taken whole or in parts."""
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", part_size)
    torch.save(STATE, "a.pt", _use_new_zipfile_serialization=is_zip)
    report = npzkit.convert("a.pt", "a.npz")
    npzkit.save("b.npz", STATE)
    with npzkit.open("a.npz") as npz, npzkit.open("b.npz") as saved:
        assert list(report.keys) == npz.files == saved.files
        assert npz.metadata == saved.metadata
        for key in npz:
            assert npz.info(key).crc32 == saved.info(key).crc32
    found = npzkit.load_tree("a.npz", like=STATE)
    assert found["optimizer"]["param_groups"] == STATE["optimizer"]["param_groups"]
    assert found["model"]["tied"].data_ptr() == found["model"]["0.weight"].data_ptr()
    assert torch.equal(found["optimizer"]["state"][0]["m"], torch.ones(3, dtype=torch.bfloat16))


def test_any_format_takes_the_arrays(here):
    """A file of torch.save becomes one of safetensors, and that an archive with the nested data."""
    torch.save({"model": {"w": WEIGHT, "tied": WEIGHT}, "epoch": 3}, "a.ckpt")
    (note,) = npzkit.convert("a.ckpt", "a.safetensors").notes
    assert note.endswith(
        "1 tied tensor without an array: 'model/tied' (use the array of 'model/w', to which it is "
        "tied); only npzkit finds this, in the metadata"
    )
    npzkit.convert("a.safetensors", "a.npz")
    found = npzkit.load_tree("a.npz")
    assert found["epoch"] == 3
    assert np.array_equal(found["model"]["tied"], WEIGHT.numpy())


def test_values_of_a_configuration(here):
    """Sets, dtypes and devices are what they were."""
    config = {"tags": {1, 2}, "dtype": torch.float32, "device": torch.device("cpu")}
    torch.save({"cfg": config, "w": WEIGHT}, "a.pt")
    npzkit.convert("a.pt", "a.npz")
    assert npzkit.load_tree("a.npz", "cfg") == config


class Other:
    """What only this program knows."""

    def __reduce__(self):
        return exec, ("raise AssertionError('code of the file runs')",)


class Parameter:
    """What PyTorch's own function makes of something else."""

    def __reduce__(self):
        return torch._utils._rebuild_parameter, (Other(), True, None)


@each_row(
    ("value", "what"),
    [
        (torch.strided, "layout, not a tensor"),
        (torch.per_tensor_affine, "qscheme, not a tensor"),
        (WEIGHT.to_sparse(), "torch.sparse_coo"),
        (Namespace(lr=0.1), "run code: argparse.Namespace"),
        (np.float64(0.5), "run code: numpy.*scalar"),
        (Namespace, "run code: argparse.Namespace"),
        (Other(), "run code: builtins.exec"),
        (frozenset({1}), "run code: builtins.frozenset"),
        (timedelta(1), "run code: datetime.timedelta"),
        (date(2026, 1, 31), "run code: datetime.date"),
        (np.dtype("f4"), "run code: numpy.dtype"),
        ({np.float64(0.5)}, "a set with a value of type numpy.*scalar"),
    ],
)
def test_a_value_that_is_no_array(tmp_path, value, what):
    """A value that has no place is refused by its key, or left out; no code is run."""
    path, new = tmp_path / "a.pt", tmp_path / "a.npz"
    torch.save({"cfg": [{"v": value}], "w": WEIGHT}, path)
    with pytest.raises(ConversionError, match=what) as caught:
        npzkit.convert(path, new)
    assert caught.value.key == "cfg/0/v"
    report = npzkit.convert(path, new, skip=True)
    assert (list(report.skipped), report.notes) == (["cfg/0/v"], ())
    assert np.array_equal(npzkit.load_tree(new)["w"], WEIGHT.numpy())


class Dict(dict):
    """A dict that only this program knows."""


class Tensor(torch.Tensor):
    """A tensor that only this program knows."""


def check_is_saved(tree):
    """Save what an error says to save in the place of what the file has, and convert that."""
    torch.save(tree, "a.pt")
    npzkit.convert("a.pt", "tree.npz")
    found = npzkit.load_tree("tree.npz", like=tree)
    assert all(torch.equal(found[name], tree[name]) for name in tree)


@pytest.mark.parametrize(
    ("saved", "error", "what"),
    [
        *(
            pytest.param(
                saved, PickleRefusedError, what,
                marks=pytest.mark.remedy("skip=True cannot leave them out: nothing of the file is"),
            )
            for saved, what in (
                ({"w": WEIGHT, "n": Namespace(), "args": Dict(lr=0.1)}, "Dict'"),
                ({"w": WEIGHT, "p": Parameter()}, "builtins.exec'"),
                ({"w": WEIGHT, "sub": WEIGHT.as_subclass(Tensor)}, "Tensor'"),
                (torch.nn.Linear(4, 3), "torch.nn.modules.linear.Linear"),
            )
        ),
        ({"inner": {(1, 2): WEIGHT}}, ConversionError, "'inner'"),
        (3, ConversionError, "int"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:TypedStorage:UserWarning")
def test_what_is_no_tree_of_tensors(here, saved, error, what):
    """The error says what it is and where, and does not say how to run code from the file."""
    torch.save(saved, "a.pt")
    with pytest.raises(error, match=what) as caught:
        npzkit.convert("a.pt", "a.npz")
    assert caught.value.path == "a.pt"
    assert caught.value.remedy
    assert "weights_only" not in str(caught.value)
    assert (error is PickleRefusedError) == ("skip=True cannot leave" in str(caught.value))
    if error is PickleRefusedError:
        state = {"w": WEIGHT} if isinstance(saved, dict) else saved.state_dict()
        check_is_saved(state)


@pytest.mark.remedy("Load it with torch.jit.load, and save its state dict.")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_program_of_torchscript(here):
    """A program is no file of tensors, and the error says what it is; its state dict is one."""
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), "a.pt")
    with pytest.raises(UnsupportedError, match="TorchScript"):
        npzkit.convert("a.pt", "a.npz")
    check_is_saved(torch.jit.load("a.pt").state_dict())


@pytest.mark.remedy("or to .npz, and in Python: torch.save(npzkit.load_tree(")
def test_files_of_torch_are_not_written(here):
    """PyTorch writes what `npzkit.load_tree` loads, as the error says."""
    npzkit.save("a.npz", {"w": WEIGHT})
    with pytest.raises(ConversionError, match="read, but not written"):
        npzkit.convert("a.npz", "b.pt")
    torch.save(npzkit.load_tree("a.npz", like={}), "b.pt")
    assert torch.equal(torch.load("b.pt")["w"], WEIGHT)


@pytest.mark.remedy('Convert it: npzkit.convert(path, "new.npz").')
@pytest.mark.parametrize("is_zip", [True, False])
def test_a_file_of_torch_is_no_archive(here, is_zip):
    """`npzkit.open` says what the file is and which function converts it, and leaves it closed."""
    torch.save(STATE, "a.pt", _use_new_zipfile_serialization=is_zip)
    with pytest.raises(NpzkitError, match=r"of torch\.save.*Convert it: npzkit\.convert\("):
        npzkit.open("a.pt")
    npzkit.convert("a.pt", "new.npz")
    with npzkit.open("new.npz") as npz:
        assert np.array_equal(npz["model/0.weight"], WEIGHT)


def test_a_file_whose_name_says_another_format(here):
    """It is read as what its bytes are."""
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    torch.save({"w": WEIGHT}, "a.pt")
    npzkit.convert("a.pt", "a.npz")
    npzkit.convert("a.npz", "a.safetensors")
    for true, named in [
        ("a.npz", "b.pt"), ("a.safetensors", "b.pt"), ("a.pt", "b.h5"), ("a.pt", "c.npz"),
    ]:  # fmt: skip
        (here / named).write_bytes((here / true).read_bytes())
        npzkit.convert(named, "b.npz", overwrite=True)
        with npzkit.open("b.npz") as npz:
            assert np.array_equal(npz["w"], WEIGHT.numpy())


@pytest.mark.parametrize(
    "is_zip",
    [
        pytest.param(
            True, marks=pytest.mark.remedy("Download it, create it again or restore a backup.")
        ),
        False,
    ],
)
def test_a_damaged_file(here, is_zip):
    """A file that was cut off, or is none of torch.save, is an error of npzkit that names it.

    The sound file is converted.
    """
    torch.save(STATE, "a.pt", _use_new_zipfile_serialization=is_zip)
    data = (here / "a.pt").read_bytes()
    for content in (data[:-40], data[:9], b"", b"<html>"):
        (here / "a.pt").write_bytes(content)
        with pytest.raises(FormatError, match=r"'a\.pt'") as caught:
            npzkit.convert("a.pt", "a.npz")
        assert not is_zip or content[:1] != b"P" or "cut off" in str(caught.value)
        assert "weights_only" not in str(caught.value)
    (here / "a.pt").write_bytes(data)
    npzkit.convert("a.pt", "a.npz")
    assert np.array_equal(npzkit.load_tree("a.npz")["model"]["tied"], WEIGHT.numpy())


def zipped(source, path, method=zipfile.ZIP_STORED, change=lambda name, data: data):
    """Zip the records of a file again, changed."""
    with zipfile.ZipFile(source) as found, zipfile.ZipFile(path, "w", method) as made:
        for name in found.namelist():
            made.writestr(name, change(name, found.read(name)))


def test_records_that_are_compressed(here):
    """A file that another program zipped again has its values, or none."""
    torch.save(STATE, "a.pt")
    zipped("a.pt", "b.pt", zipfile.ZIP_DEFLATED)
    npzkit.convert("b.pt", "b.npz")
    npzkit.convert("a.pt", "a.npz")
    with npzkit.open("a.npz") as npz, npzkit.open("b.npz") as other:
        assert {key: npz.info(key).crc32 for key in npz} == {
            key: other.info(key).crc32 for key in other
        }
    zipped("a.pt", "b.pt", zipfile.ZIP_BZIP2)
    with pytest.raises(FormatError, match="compressed"):
        npzkit.convert("b.pt", "c.npz")


def test_a_record_that_is_too_short(here):
    """A tensor has no bytes of what follows its record."""
    torch.save({"w": WEIGHT}, "a.pt")
    zipped("a.pt", "b.pt", change=lambda name, data: data[:-4] if "data/0" in name else data)
    with pytest.raises(FormatError, match="fewer bytes") as caught:
        npzkit.convert("b.pt", "b.npz")
    assert (caught.value.path, caught.value.key) == ("b.pt", "a/data/0")
    assert (caught.value.found, caught.value.expected) == (44, 48)
    zipped("a.pt", "b.pt", change=lambda name, data: data + b"more" if "data/0" in name else data)
    npzkit.convert("b.pt", "b.npz")
    assert np.array_equal(npzkit.load_tree("b.npz")["w"], WEIGHT.numpy())


@pytest.mark.remedy("Download it, create it again or restore a backup.")
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_record_whose_checksum_differs(here, method):
    """One wrong bit of a tensor is found, and the record named."""
    torch.save({"w": WEIGHT}, "a.pt")
    zipped("a.pt", "b.pt", method)
    data = bytearray((here / "b.pt").read_bytes())
    with zipfile.ZipFile("b.pt") as archive:
        crc = archive.getinfo("a/data/0").CRC.to_bytes(4, "little")
    if method == zipfile.ZIP_STORED:
        data[data.index(WEIGHT.numpy().tobytes()) + 5] ^= 1
    else:
        data = data.replace(crc, bytes(4))
    (here / "b.pt").write_bytes(data)
    with pytest.raises(ChecksumError, match="CRC-32") as caught:
        npzkit.convert("b.pt", "b.npz")
    assert (caught.value.path, caught.value.key) == ("b.pt", "a/data/0")
    check_is_saved({"w": WEIGHT})


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
@pytest.mark.filterwarnings("ignore::npzkit.errors.AmbiguousArchiveWarning")
def test_a_zip_that_programs_read_differently(here):
    """A record that is there twice, and bytes before the first, are refused."""
    torch.save({"w": WEIGHT}, "a.pt")
    data = (here / "a.pt").read_bytes()
    (here / "b.pt").write_bytes(b"before" + data)
    with pytest.raises(FormatError, match="before its first record"):
        npzkit.convert("b.pt", "b.npz")
    with zipfile.ZipFile("a.pt", "a") as archive:
        archive.writestr("a/data/0", bytes(48))
    with pytest.raises(FormatError, match="two records"):
        npzkit.convert("a.pt", "b.npz")


def pickled(content):
    """Make a file of torch.save with a pickle."""
    with zipfile.ZipFile("a.pt", "w") as archive:
        archive.writestr("a/data.pkl", content)
        archive.writestr("a/version", "3\n")
        archive.writestr("a/byteorder", "little")


@pytest.mark.remedy("Install it: python -m pip install ml_dtypes")
def test_a_tensor_that_needs_a_package(here, monkeypatch):
    """It is not left out: the error names the package, with which it is converted."""
    torch.save({"v": [torch.ones(2).to(torch.float8_e4m3fnuz)]}, "a.pt")
    tensors._numpy_dtype.cache_clear()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "ml_dtypes", None)
        patched.delitem(np.sctypeDict, "float8_e4m3fnuz", raising=False)
        with pytest.raises(UnsupportedError, match="need the package ml_dtypes") as caught:
            torch_file.read("a.pt", print, Claims(npzkit.Limits(), None)).__enter__()
    assert caught.value.key == "v/0"
    assert npzkit.convert("a.pt", "a.npz").keys == ("v/0",)


@pytest.mark.remedy("save what it holds, such as model.state_dict() or ")
def test_a_model_among_others(here):
    """The error says to save its state, and then nothing is lost."""
    model = torch.nn.Linear(2, 2)
    torch.save({"model": model, "epoch": 1}, "a.pt")
    with pytest.raises(ConversionError, match=r"save what it holds, such as model\.state_dict\(\)"):
        npzkit.convert("a.pt", "a.npz")
    torch.save({"model": model.state_dict(), "epoch": 1}, "a.pt")
    assert npzkit.convert("a.pt", "a.npz").keys == ("model/weight", "model/bias", "epoch")


@pytest.mark.remedy("save float(x) for a number of NumPy's, or torch.from_numpy(x) for an array")
def test_numbers_and_arrays_of_numpy(here):
    """The error says how they are saved without code."""
    loss, steps = np.float64(0.5), np.arange(3)
    for given in ({"loss": loss}, {"steps": steps}):
        torch.save(given, "a.pt")
        with pytest.raises(ConversionError, match=r"save float\(x\) for a number of NumPy's"):
            npzkit.convert("a.pt", "a.npz")
    torch.save({"loss": float(loss), "steps": torch.from_numpy(steps)}, "a.pt")
    assert npzkit.convert("a.pt", "a.npz").keys == ("loss", "steps")


@pytest.mark.remedy("npzkit.save('new.npz', torch.load(path, 'cpu', weights_only=False))")
def test_a_trusted_file_with_numpys_state(here):
    """The error names what a user of the file can do; allow_pickle runs none of its code."""
    torch.save({"w": WEIGHT, "rng": np.random.RandomState(0).get_state()}, "a.pt")
    with pytest.raises(ConversionError, match="if you trust the file") as caught:
        npzkit.convert("a.pt", "a.npz", allow_pickle=True)
    instead = re.search(r"npzkit\.save\(.*?\)\)", str(caught.value))[0]
    eval(instead, {"npzkit": npzkit, "torch": torch, "path": "a.pt"})
    random = np.random.RandomState()
    random.set_state(npzkit.load_tree("new.npz")["rng"])
    assert random.randint(2**31) == np.random.RandomState(0).randint(2**31)


def test_a_class_whose_name_is_no_text(here):
    """A class of any name is left out, and the number beside it is kept."""
    pickled(b"\x80\x02}(X\1\0\0\0acx\ny\0z\n)\x81X\1\0\0\0bK\1u.")
    skipped = npzkit.convert("a.pt", "a.npz", skip=True).skipped
    assert skipped == {"a": r"unpickling it could run code: x.y\x00z"}


def test_a_list_that_loses_items(here):
    """The report names lists that load as dicts, and none that is gone or complete."""
    lost = Namespace()
    tree = {"s": [lost, WEIGHT, {"n": lost}], "gone": [[lost]], "kept": (1, []), "o": {"p": lost}}
    for given, name in ((tree, "'s'"), ([lost, tree["kept"]], "the file")):
        torch.save(given, "a.pt")
        (note,) = npzkit.convert("a.pt", "a.npz", skip=True, overwrite=True).notes
        assert note == f"lists and tuples that lost items load as dicts by index or name: {name}"
    assert npzkit.load_tree("a.npz") == {1: (1, [])}


@pytest.mark.remedy("In the program that made the file, save a state dict: tensors, numbers")
def test_containers_that_the_file_does_not_pay_for(here):
    """Tuples that contain one another twice at each level are no endless data."""
    value = (1,)
    for _ in range(60):
        value = (value, value)
    torch.save({"x": value}, "a.pt")
    with pytest.raises(ConversionError, match="contain each other so often"):
        npzkit.convert("a.pt", "a.npz")
    pickled(b"\x80\x02)" + b"\x85" * 100_000 + b".")
    with pytest.raises(ConversionError, match="nested more than 500 deep"):
        npzkit.convert("a.pt", "a.npz")
    check_is_saved({"w": WEIGHT})


def test_a_tensor_that_the_file_does_not_pay_for(here):
    """A tensor that repeats one value so often that it takes terabytes is refused."""
    torch.save({"w": torch.ones(1).expand(2**40), "v": torch.ones(1).expand(9)}, "a.pt")
    with pytest.raises(LimitExceededError, match="too large for a file"):
        npzkit.convert("a.pt", "a.npz")
    torch.save({"v": torch.ones(1).expand(9)}, "a.pt")
    assert npzkit.convert("a.pt", "a.npz").keys == ("v",)
