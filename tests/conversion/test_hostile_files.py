"""npzkit.convert of files of strangers: what they claim costs neither time nor memory."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import importlib
import os
import random
import shutil
import signal
import struct
from collections import Counter
from pathlib import Path

import h5py
import npzkit
import numpy as np
import pytest
from deep import amount, extent
from npzkit.conversion.arrays import Contents
from npzkit.errors import ConversionError, FormatError, LimitExceededError, NpzkitError

from tables import each_row

scipy_io = pytest.importorskip("scipy.io", reason="scipy is not installed")
zarr = pytest.importorskip("zarr", reason="zarr is not installed")

TEXT = np.dtypes.StringDType()


def make(name, shape, dtype, chunks):
    """Make an array that has no chunk."""
    if name == "a.h5":
        with h5py.File(name, "w") as file:
            kind = h5py.string_dtype() if dtype is TEXT else dtype
            file.create_dataset("x", shape, kind, chunks=chunks)
    else:
        zarr.create_group(name).create_array("x", shape=shape, dtype=dtype, chunks=chunks)


@pytest.mark.slow
@each_row("name", ["a.h5", "a.zarr"])
@each_row(
    ("shape", "dtype", "chunks"),
    [((2**60,), TEXT, (1024,)), ((2**36,), TEXT, (2**20,)), ((2**50,), "f8", (2**20,)),
     ((2**28,), "u1", (1,))],
)  # fmt: skip
def test_a_shape_without_data(here, name, shape, dtype, chunks):
    """Texts and chunks that nothing stands for are refused by their key, and leave nothing."""
    make(name, shape, dtype, chunks)
    with pytest.raises(ConversionError, match="that the file does not have") as caught:
        npzkit.convert(name, "a.npz")
    assert caught.value.key == "x"
    with pytest.raises(ConversionError, match="all arrays are left out"):
        npzkit.convert(name, "a.npz", skip=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.h5", "a.zarr"])
def test_a_few_chunks_may_be_missing(here, name):
    """Chunks that were never written are zeros, within the limits."""
    make(name, (1 << 22,), "u1", (1 << 18,))
    npzkit.convert(name, "a.npz")
    with npzkit.open("a.npz") as npz:
        assert npz["x"].shape == (1 << 22,)
        assert not npz["x"].any()
    with pytest.raises(LimitExceededError, match=r"'x'.*npzkit\.Limits\(total_size") as caught:
        npzkit.convert(name, "b.npz", limits=npzkit.Limits(total_size=1 << 20))
    assert caught.value.path == name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.h5", "a.zarr"])
def test_large_chunks_that_are_missing(here, name):
    """A few chunks may claim a gigabyte more than the file pays for; or what the caller says."""
    make(name, (1 << 31,), "u1", (1 << 26,))
    with pytest.raises(LimitExceededError, match="too large for a file of"):
        npzkit.convert(name, "a.npz")
    assert os.listdir() == [name]


@pytest.mark.slow
@each_row("source", ["a.npz", "a.h5", "a.zarr", "a.mat", "a.safetensors"])
@each_row("limits", [{"member_count": 1}, {"member_size": 70}, {"total_size": 100}])
def test_limits(here, source, limits):
    """Every limit that concerns arrays is one of each format."""
    npzkit.save("a.npz", {"x": np.ones(8), "y": np.ones(9)})
    if source != "a.npz":
        npzkit.convert("a.npz", source)
    with pytest.raises(LimitExceededError, match=next(iter(limits))):
        npzkit.convert(source, "b.npz", limits=npzkit.Limits(**limits))
    # The headers of an archive count.
    roomy = npzkit.Limits(member_count=2, member_size=200, total_size=400)
    assert npzkit.convert(source, "b.npz", limits=roomy).keys == ("x", "y")
    with pytest.raises(TypeError, match="limits must be"):
        npzkit.convert(source, "c.npz", limits=3)


@pytest.mark.slow
def test_a_list_that_takes_much_memory(here):
    """The names and attributes of a file are within the limit of metadata."""
    with h5py.File("a.h5", "w") as file:
        for number in range(100):
            file[f"{number:0>100}"] = 1
    with pytest.raises(LimitExceededError, match="metadata_size"):
        npzkit.convert("a.h5", "a.npz", limits=npzkit.Limits(metadata_size=1 << 13))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.h5", "a.zarr"])
def test_one_long_text(here, name):
    """One long text does not make hundreds of megabytes of many short ones."""
    texts = np.array(["ab"] * (extent(30_000, 100_000) - 1) + ["c" * 1000], TEXT)
    if name == "a.h5":
        with h5py.File(name, "w") as file:
            file["x"] = texts.astype(object)
    else:
        zarr.create_group(name).create_array("x", data=texts, chunks=(10_000,))
    with pytest.raises(ConversionError, match="longest text has 1,000 characters") as caught:
        npzkit.convert(name, "a.npz")
    assert caught.value.key == "x"
    limits = npzkit.Limits(member_size=1 << 29)
    npzkit.convert(name, "a.npz", limits=limits)
    with npzkit.open("a.npz") as npz:
        assert npz.info("x").dtype == "U1000"


@pytest.mark.slow
def test_groups_in_groups(here):
    """The depth of groups is no matter of the stack."""
    with h5py.File("a.h5", "w") as file:
        group = file
        for _ in range(1500):
            group = group.create_group("g")
        group["x"] = np.arange(3)
    (key,) = npzkit.convert("a.h5", "a.npz").keys
    assert key == "g/" * 1500 + "x"


@pytest.mark.slow
@pytest.mark.remedy("Remove it.")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no FIFO")
@pytest.mark.parametrize("name", ["other", "x/zarr.json"])
def test_a_fifo_in_a_store(here, name):
    """What is no file is refused, as reading it would wait for ever; without it, the rest is read."""
    root = zarr.create_group("a.zarr")
    for key in "xy":
        root.create_array(key, data=np.arange(3))
    if name == "x/zarr.json":
        os.unlink("a.zarr/x/zarr.json")
    os.mkfifo(f"a.zarr/{name}")
    with pytest.raises(ConversionError, match="neither a file nor a folder") as caught:
        npzkit.convert("a.zarr", "a.npz")
    assert caught.value.path == os.path.join("a.zarr", *name.split("/"))
    os.unlink(f"a.zarr/{name}")
    npzkit.convert("a.zarr", "a.npz")
    assert npzkit.load_tree("a.npz")["y"].tolist() == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["4", "5"])
@pytest.mark.parametrize("is_big", [True, False])
def test_matlab_of_any_version_and_order(here, version, is_big):
    """Each variable is found where it is, in files of both byte orders."""
    arrays = {
        "x": np.arange(6.0).reshape(2, 3), "c": np.array([[1 + 2j, 3]]), "t": "some text",
        "e": np.zeros((0, 3)), "i": np.arange(3, dtype="i2"),
    }  # fmt: skip
    scipy_io.savemat("a.mat", arrays, format=version, do_compression=version == "5")
    if is_big:
        shutil.copyfile("a.mat", "b.mat")
        with open("a.mat", "wb") as file:
            write_big(file, version)
        arrays = {"x": np.arange(6.0).reshape(2, 3)}
    npzkit.convert("a.mat", "a.npz")
    with npzkit.open("a.npz") as npz:
        for key, array in arrays.items():
            assert np.squeeze(npz[key]).tolist() == np.squeeze(array).tolist(), key


def write_big(file, version):
    """Write a file of the other byte order, with the matrix x of 2 rows."""
    values = np.arange(6, dtype=">f8").reshape(2, 3).tobytes("F")
    if version == "4":
        file.write(struct.pack(">5i", 1000, 2, 3, 0, 2) + b"x\0" + values)
        return

    def element(kind, data):
        return struct.pack(">II", kind, len(data)) + data + bytes(-len(data) % 8)

    matrix = (
        element(6, struct.pack(">II", 6, 0)) + element(5, struct.pack(">ii", 2, 3))
        + element(1, b"x") + element(9, values)
    )  # fmt: skip
    file.write(b"MATLAB 5.0".ljust(124) + b"\1\0MI" + element(14, matrix))


def test_many_variables_take_linear_time(here, monkeypatch):
    """A variable is not searched for among all others."""
    from npzkit.conversion import matlab
    from npzkit.conversion.refusals import Claims

    scipy_io.savemat("a.mat", {f"v{number}": number for number in range(50)})
    sizes = []

    def load(file, load=scipy_io.loadmat):
        sizes.append(file.seek(0, os.SEEK_END))
        file.seek(0)
        return load(file)

    monkeypatch.setattr(scipy_io, "loadmat", load)
    with matlab.read("a.mat", print, Claims(npzkit.Limits(), 0)) as contents:
        assert len(list(contents.arrays)) == 50
    assert max(sizes) < 300


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "kind",
        pytest.param(
            "length", marks=pytest.mark.remedy("Download it, create it again or restore a backup.")
        ),
        pytest.param(
            "end", marks=pytest.mark.remedy("Download it, create it again or restore a backup.")
        ),
    ],
)
def test_damaged_matlab(here, change):
    """A variable that is of no kind, or extends past the end, is an error that says where.

    The file that is written again is converted.
    """
    arrays = {"x": np.arange(30.0), "y": 1.0}
    scipy_io.savemat("a.mat", arrays)
    data = bytearray((here / "a.mat").read_bytes())
    if change == "end":
        del data[-3:]
    else:
        data[128 if change == "kind" else 134] = 77
    (here / "a.mat").write_bytes(data)
    with pytest.raises(FormatError) as caught:
        npzkit.convert("a.mat", "a.npz")
    assert caught.value.path == "a.mat"
    assert caught.value.offset is not None
    scipy_io.savemat("a.mat", arrays)
    assert npzkit.convert("a.mat", "a.npz").keys == ("x", "y")


def test_errors_of_matlab_name_the_path(here, monkeypatch):
    """A file that cannot be opened or made is named as the caller does."""
    npzkit.save("a.npz", {"x": np.eye(2)})

    def fail(path, mode):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr("npzkit.conversion.matlab.open", fail, raising=False)
    with pytest.raises(PermissionError, match=r"'a\.mat'$"):
        npzkit.convert("a.npz", "a.mat")
    assert os.listdir() == ["a.npz"]


def flipped(name, place, bit):
    """Change one bit of a file, and return the outcome of its conversion."""
    with open(name, "r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ bit]))
    try:
        npzkit.convert(name, "a.npz")
    except NpzkitError as error:
        return error
    return None


def test_a_file_that_crashes_scipy(here):
    """A bit of 184 bytes that ends the process of scipy 1.17 is an error, or harmless."""
    scipy_io.savemat("a.mat", {"x": "ab"})
    assert os.path.getsize("a.mat") == 184
    assert isinstance(flipped("a.mat", 176, 4), ConversionError | None)


@pytest.mark.slow
def test_a_file_that_stops_hdf5(here, monkeypatch):
    """A bit with which HDF5 2.0 never ends is an error in time, or harmless."""
    monkeypatch.setattr("npzkit.conversion.foreign_process.TIME", 1)
    with h5py.File("a.h5", "w") as file:
        file["x"] = np.array(["a", "bcd"], object)
    # The size of the first object of the heap.
    place = (here / "a.h5").read_bytes().index(b"GCOL") + 24
    assert isinstance(flipped("a.h5", place, 8), NpzkitError | None)


ARRAYS = {
    "x": np.arange(50.0), "y": np.arange(12, dtype="i2").reshape(3, 4), "f": np.ones((2, 2), "f4")
}  # fmt: skip
TRIES = {".safetensors": amount(50, 2000), ".pt": amount(4, 100)}


def damaged(data, rng):
    """Return bytes with a few of them changed, lost, or taken from elsewhere."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if not data:
            break
        place, other = rng.randrange(len(data)), rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[place] ^= 1 << rng.randrange(8)
            case 1:
                data[place] = rng.choice([0, 255, 127, 128, rng.randrange(256)])
            case 2:
                del data[place:]
            case 3:
                data[place : place + 4] = rng.randbytes(4)
            case _:
                data[place : place + 8] = data[other : other + 8]
    return data


def sound(name):
    """Make a file of a format, and return the bytes of each file that it has."""
    suffix = os.path.splitext(name)[1]
    if suffix == ".pt":
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        torch.save({"x": torch.arange(9.0), "n": [1, (2, torch.ones(3))], "s": "a"}, name)
    else:
        text = {"t": np.array(["a", "bcd"])} if suffix != ".safetensors" else {}
        npzkit.save("a.npz", {**ARRAYS, **text}, metadata={"a": [1, {"b": None}]})
        npzkit.convert("a.npz", name)
    places = [os.path.join(place, one) for place, _, names in os.walk(name) for one in names]
    return {place: Path(place).read_bytes() for place in sorted(places or [name])}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.h5", "a.mat", "a.safetensors", "a.zarr", "a.pt"])
def test_mutated_files(here, monkeypatch, name):
    """Whatever is changed in a file: its data or one error, in time, and the process lives."""
    monkeypatch.setattr("npzkit.conversion.foreign_process.TIME", 10)
    contents = sound(name)
    for seed in range(TRIES.get(os.path.splitext(name)[1], amount(8, 500))):
        rng = random.Random(seed)
        place = rng.choice(list(contents))
        Path(place).write_bytes(damaged(contents[place], rng))
        try:
            npzkit.convert(name, "b.npz", overwrite=True)
        except (NpzkitError, OSError, MemoryError):
            pass
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error
        Path(place).write_bytes(contents[place])


@contextlib.contextmanager
def read_here(module, library, path, say, claims):
    """Read a file in this process, as the process of its own does."""
    reader = importlib.import_module(f"npzkit.conversion.{module}")
    with reader.read(path, say, claims) as contents:
        arrays = list(contents.arrays)
        for array in arrays:
            claims.add(array.key, 0 if array.problem else array.nbytes)
        yield Contents(contents.metadata, arrays)


def outcome_of(name):
    """Convert a file in a copy of this process, and return what became of that."""
    import resource

    child = os.fork()
    if not child:
        # Also a library that never comes back to Python is ended.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = 3
        # The end that a file brings about is an outcome, and no report in the log.
        faulthandler.disable()
        try:
            with open(os.devnull, "w") as null:
                os.dup2(null.fileno(), 2)
            npzkit.convert(name, "b.npz", overwrite=True)
            code = 0
        except (NpzkitError, OSError, MemoryError, RecursionError):
            code = 1
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {0: "data", 1: "error", -signal.SIGALRM: "endless"}.get(status, f"ended by {status}")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("name", ["a.h5", "a.mat", "a.safetensors", "a.zarr", "a.pt"])
def test_mutated_files_by_the_thousand(here, monkeypatch, name):
    """No other error comes from a reader, however a file is changed; NPZKIT_DEEP=10: 10,000.

    What ends or stops a library would end or stop the process of its own.
    """
    monkeypatch.setattr("npzkit.conversion.foreign_process.read", read_here)
    contents = sound(name)
    # What is imported now is not imported by each copy.
    npzkit.convert(name, "b.npz", overwrite=True)
    outcomes = Counter()
    for seed in range(amount(5, 1000)):
        rng = random.Random(seed)
        place = rng.choice(list(contents))
        Path(place).write_bytes(damaged(contents[place], rng))
        found = outcome_of(name)
        assert found != "ended by 3", f"seed {seed}"
        outcomes[found] += 1
        Path(place).write_bytes(contents[place])
    print(name, dict(outcomes))
