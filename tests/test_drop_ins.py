"""npzkit.load, savez and savez_compressed behave like NumPy's, except for documented differences."""

from __future__ import annotations

import gc
import inspect
import io
import os
import pickle
import subprocess
import sys
import warnings

import npzkit
import numpy as np
import pytest
from npzkit.errors import NoDataError, NpzkitError, PickleRefusedError, UnsafeNameError


@pytest.mark.parametrize("name", ["load", "savez", "savez_compressed"])
def test_signatures_are_numpys(name):
    """Parameters have NumPy's names, kinds and defaults; `load` takes options for URLs beside."""
    ours, theirs = (
        dict(inspect.signature(getattr(module, name)).parameters) for module in (npzkit, np)
    )
    if name == "load":
        assert ours.pop("storage_options").kind is inspect.Parameter.KEYWORD_ONLY
    elif "allow_pickle" not in theirs:
        # NumPy has it from 2.1 on.
        assert np.lib.NumpyVersion(np.__version__) < "2.1.0"
        assert ours.pop("allow_pickle").kind is inspect.Parameter.KEYWORD_ONLY
    assert [(p.name, p.kind) for p in ours.values()] == [(p.name, p.kind) for p in theirs.values()]
    for parameter in ours.values():
        assert parameter.default == theirs[parameter.name].default


@pytest.mark.parametrize("name", ["savez", "savez_compressed"])
def test_suffix_and_positional_names(name, tmp_path):
    """.npz is appended to a path that does not end with it, and keywords come before arr_0."""
    getattr(npzkit, name)(tmp_path / "a", np.zeros(2), [1, 2], named=3)
    getattr(npzkit, name)(str(tmp_path / "b.npz"), np.zeros(2))
    with np.load(tmp_path / "a.npz") as theirs, npzkit.load(tmp_path / "b.npz") as ours:
        assert theirs.files == ["named", "arr_0", "arr_1"]
        assert ours.files == ["arr_0"]
        assert ours.zip.infolist()[0].compress_type == (8 if "compressed" in name else 0)
    with pytest.raises(ValueError, match="arr_0"):
        getattr(npzkit, name)(tmp_path / "a", np.zeros(2), arr_0=1)


def test_keywords_are_left_alone(tmp_path):
    """The caller's dict of arrays is not changed."""
    arrays = {"a": np.zeros(2)}
    npzkit.savez(tmp_path / "a", 1, **arrays)
    assert list(arrays) == ["a"]


@pytest.mark.parametrize("value", [np.arange(3), np.array(1), "no", None, 2, 1.0])
def test_an_array_in_the_place_of_allow_pickle_is_refused(tmp_path, value):
    """NumPy saves an archive without it; npzkit names the call that takes any name."""
    for savez in (npzkit.savez, npzkit.savez_compressed):
        with pytest.raises(TypeError, match=r"npzkit\.save.* takes arrays of any name"):
            savez(tmp_path / "a", allow_pickle=value)
    assert not list(tmp_path.iterdir())
    for allowed in (True, False, np.True_, 0, 1):
        npzkit.savez(tmp_path / "a", np.eye(1), allow_pickle=allowed)


def test_unsafe_keywords(tmp_path):
    """Keys that NumPy writes and no reader can find are refused."""
    with pytest.raises(UnsafeNameError):
        npzkit.savez(tmp_path / "a", **{"../up": np.zeros(2)})


def test_load_tells_the_kinds_apart(tmp_path):
    """Archives, arrays and pickles are recognised by their first bytes."""
    np.save(tmp_path / "a.npy", np.arange(3))
    assert npzkit.load(tmp_path / "a.npy").tolist() == [0, 1, 2]
    assert isinstance(npzkit.load(tmp_path / "a.npy", mmap_mode="r"), np.memmap)
    np.savez(tmp_path / "a.npz", a=np.arange(3))
    with npzkit.load(tmp_path / "a.npz") as npz:
        assert isinstance(npz, npzkit.NpzFile)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"a": 1}))
    assert npzkit.load(tmp_path / "a.pkl", allow_pickle=True) == {"a": 1}
    with pytest.raises(PickleRefusedError, match="allow_pickle"):
        npzkit.load(tmp_path / "a.pkl")
    (tmp_path / "bad").write_bytes(b"neither of them")
    with pytest.raises(pickle.UnpicklingError):
        npzkit.load(tmp_path / "bad", allow_pickle=True)
    with pytest.raises(EOFError):
        npzkit.load(io.BytesIO())
    with pytest.raises(ValueError, match="encoding"):
        npzkit.load(tmp_path / "a.npy", encoding="utf-8")


def test_an_open_archive_is_no_stream():
    """It has a method `read`, which takes a key: the error names what is wrong with it."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.arange(3)})
    with npzkit.open(stream) as npz:
        for call in (npzkit.load, npzkit.iter_arrays):
            with pytest.raises(TypeError, match="not NpzFile"):
                call(npz)


def test_nothing_left_to_read(tmp_path):
    """An empty file, and a stream at its end, raise EOFError as in NumPy, and an NpzkitError."""
    path = tmp_path / "empty.npz"
    path.touch()
    stream = io.BytesIO()
    for number in range(2):
        np.save(stream, np.arange(number))
    stream.seek(0)
    assert [len(npzkit.load(stream)) for _ in range(2)] == [0, 1]
    for file in (path, str(path), stream, io.BytesIO()):
        with pytest.raises(EOFError) as theirs:
            np.load(file)
        with pytest.raises(EOFError, match="No data left in file") as caught:
            npzkit.load(file)
        assert isinstance(caught.value, NpzkitError)
        assert type(caught.value) is NoDataError
        assert "no data left" in str(theirs.value).lower()
    with open(path, "rb") as file, pytest.raises(NoDataError) as caught:
        npzkit.load(file)
    assert str(path) in str(caught.value)


def test_load_takes_a_path_of_bytes(tmp_path):
    """A path may be bytes, as in np.load."""
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    np.save(tmp_path / "a.npy", np.arange(4))
    with npzkit.load(os.fsencode(tmp_path / "a.npz")) as npz:
        assert npz["x"].tolist() == [0, 1, 2]
    path = os.fsencode(tmp_path / "a.npy")
    assert npzkit.load(path).tolist() == np.load(path).tolist()
    assert npzkit.load(path, mmap_mode="r").filename == str(tmp_path / "a.npy")
    with pytest.raises(FileNotFoundError):
        npzkit.load(os.fsencode(tmp_path / "absent.npz"))


def test_mmap_mode_is_honoured_for_archives(tmp_path):
    """With mmap_mode, which NumPy ignores for archives, members are mapped or raise an error."""
    npzkit.savez(tmp_path / "a", a=np.arange(3))
    with npzkit.load(tmp_path / "a.npz", mmap_mode="r") as npz:
        assert isinstance(npz["a"], np.memmap)
    npzkit.savez_compressed(tmp_path / "b", a=np.arange(3))
    with (
        npzkit.load(tmp_path / "b.npz", mmap_mode="r") as npz,
        pytest.raises(npzkit.errors.NotMappableError),
    ):
        npz["a"]


def test_only_read_and_seek_are_needed():
    """load works with an object that has only read and seek."""

    class JustReader:
        def __init__(self, data):
            self.inner = io.BytesIO(data)

        def read(self, size):
            return self.inner.read(size)

        def seek(self, offset, whence=0):
            return self.inner.seek(offset, whence)

    stream = io.BytesIO()
    np.savez(stream, a=np.arange(3))
    assert npzkit.load(JustReader(stream.getvalue()))["a"].tolist() == [0, 1, 2]


def test_string_dtype_needs_pickle_with_one_warning(tmp_path):
    """A dtype without a fixed size is pickled as by NumPy, with one warning."""
    array = np.array(["a", "long text"], dtype=np.dtypes.StringDType())
    with pytest.warns(UserWarning, match="pickle") as caught:
        npzkit.savez(tmp_path / "a", a=array)
    assert len(caught) == 1
    with npzkit.load(tmp_path / "a.npz", allow_pickle=True) as npz:
        assert npz["a"].tolist() == ["a", "long text"]


def test_an_archive_passes_for_one_of_numpys(tmp_path):
    """A program that asks what `load` returned finds NumPy's class, and no other than before."""
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    with npzkit.load(tmp_path / "a.npz") as npz:
        assert isinstance(npz, np.lib.npyio.NpzFile)
        assert isinstance(npz, npzkit.NpzFile)
    assert not isinstance({}, np.lib.npyio.NpzFile)


@pytest.mark.slow
def test_it_passes_for_one_before_load_was_called(tmp_path):
    """What `open` returns does too, in a program that never calls `load`."""
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    code = (
        "import sys, npzkit, numpy as np\n"
        "with npzkit.open(sys.argv[1]) as npz: assert isinstance(npz, np.lib.npyio.NpzFile)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "a.npz"], check=True, timeout=60)


def test_an_archive_of_load_need_not_be_closed(tmp_path):
    """The commonest idiom of NumPy gives no warning; with npzkit.open, it does."""
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert npzkit.load(tmp_path / "a.npz")["x"].tolist() == [0, 1, 2]
        gc.collect()
    with pytest.warns(ResourceWarning, match="unclosed archive"):
        npzkit.open(tmp_path / "a.npz")["x"]
        gc.collect()


@pytest.mark.parametrize(
    ("data", "what", "remedy"),
    [
        (b"<!DOCTYPE html><html><body>404</body></html>", "an HTML or XML page", "Download it"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "Convert it"),
        (b"\x02\0\0\0\0\0\0\0{}", "a safetensors file", "Convert it"),
    ],
)
def test_a_file_of_another_kind_is_no_pickle(data, what, remedy):
    """`load` says what it is, and does not propose to unpickle it."""
    with pytest.raises(npzkit.errors.PickleRefusedError, match=what) as caught:
        npzkit.load(io.BytesIO(data))
    assert caught.value.remedy.startswith(remedy)
