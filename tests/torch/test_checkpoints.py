"""Checkpoints of torch.distributed.checkpoint in one process: what is kept, and what is refused."""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime
import enum
import io
import os
import pickle
import warnings

import npzkit
import numpy as np
import pytest
from npzkit.errors import (
    ChecksumError,
    ClosedArchiveError,
    IndexFormatError,
    NpzkitError,
    PickleRefusedError,
)
from s3 import needs_s3, s3_server
from sharded import index_of, write_index

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed.checkpoint as dcp  # noqa: E402 - after the check
from npzkit.torch import NpzStorageReader, NpzStorageWriter  # noqa: E402
from npzkit.torch.storage_reader import read_box  # noqa: E402
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner  # noqa: E402
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict  # noqa: E402

pytest.importorskip("ml_dtypes", reason="bfloat16 and float8 need ml_dtypes")

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")
Point = collections.namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 1


@pytest.fixture(autouse=True)
def _alone():
    """PyTorch warns that torch.distributed is not initialized."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        yield


def save(folder, state, *, planner=None, checkpoint_id=None, **options):
    writer = NpzStorageWriter(folder, **{"durable": False, **options})
    dcp.save(state, storage_writer=writer, planner=planner, checkpoint_id=checkpoint_id)


def load(folder, state, **options):
    dcp.load(state, storage_reader=NpzStorageReader(folder, **options))
    return state


def load_new(folder):
    """Return a state dict as PyTorch makes it from the checkpoint alone."""
    state = {}
    _load_state_dict(
        state, storage_reader=NpzStorageReader(folder), planner=_EmptyStateDictLoadPlanner(),
        no_dist=True,
    )  # fmt: skip
    return state


def failure(call, *args, **options):
    """Return the error of the one rank, which PyTorch wraps."""
    with pytest.raises(CheckpointException) as caught:
        call(*args, **options)
    return caught.value.failures[0][0]


def raw(tensor):
    return (
        tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    )


def assert_same(one, other):
    assert type(one) is type(other) or {type(one), type(other)} == {
        torch.Tensor,
        torch.nn.Parameter,
    }
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, raw(one)) == (other.dtype, other.shape, raw(other))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and np.array_equal(one, other)
    elif isinstance(one, io.BytesIO):
        assert one.getvalue() == other.getvalue()
    else:
        assert repr(one) == repr(other)


TENSORS = {
    "float": torch.randn(3, 4),
    "bfloat16": torch.randn(5).bfloat16(),
    "float8": torch.randn(5).to(torch.float8_e4m3fn),
    "complex": torch.randn(3, dtype=torch.complex64),
    "bool": torch.tensor([True, False]),
    "uint16": torch.arange(4).to(torch.uint16),
    "scalar": torch.tensor(4),
    "empty": torch.empty(0, 3),
    "transposed": torch.randn(4, 6).t()[::2],
    "view": torch.arange(100)[40:50],
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # complex32 is experimental
    TENSORS["half complex"] = torch.randn(3, 2).to(torch.complex32)
VALUES = {
    "int": -(2**70), "float": 0.1, "nan": float("nan"), "infinite": float("-inf"), "none": None,
    "bool": True, "text": "\ud800 \0 ä", "bytes": b"a\0", "complex": complex(-0.0, float("inf")),
    "tuple": (0.9, (1, [2])), "list": [1, "a", None], "set": {1}, "size": torch.Size([2, 3]),
    "dtype": torch.bfloat16, "device": torch.device("cpu"), "stream": io.BytesIO(b"state"),
    "scalar": np.float32(2.5), "array": np.arange(3), "strings": np.array(["a", "bc"]),
    "tensors": (torch.ones(2), {"a/b": torch.zeros(1).bfloat16(), 3: None}),
    "date": datetime.date(2026, 1, 2), "named set": ({Point(1, 2)}, np.dtype("<f4")),
    "ordered": (collections.OrderedDict(b=1, a=2), frozenset()), "point": Point(1, (2.5,)),
}  # fmt: skip


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_tensors(compression, tmp_path):
    """Tensors of all dtypes and layouts come back with their bits, from files without pickle."""
    save(tmp_path, TENSORS, compression=compression)
    state = {name: torch.zeros(t.shape, dtype=t.dtype) for name, t in TENSORS.items()}
    assert_same(load(tmp_path, state), TENSORS)
    assert_same(load_new(tmp_path), TENSORS)


def test_values(tmp_path, monkeypatch):
    """Values that are not tensors come back as they were, with their types, and never pickled."""

    def refuse(*_args, **_options):
        raise AssertionError("pickled")

    with monkeypatch.context() as patched:
        patched.setattr(pickle, "dumps", refuse)
        patched.setattr(torch, "save", refuse)
        save(tmp_path, VALUES)
    found = load(tmp_path, dict.fromkeys(VALUES))
    # The class of a namedtuple is made from its name and fields.
    point = found.pop("point")
    assert (repr(point), point) == ("Point(x=1, y=(2.5,))", VALUES["point"])
    assert_same(found, {name: value for name, value in VALUES.items() if name != "point"})


def test_nested_state(tmp_path):
    """Nested dicts and lists come back in their structure; all names work, whatever they are."""
    state = {
        "model": {"w": torch.ones(2), "..": torch.zeros(1), "a/b": torch.ones(1), "x.npy": torch.ones(3)},
        "optimizer": {"groups": [{"lr": 0.1, "betas": (0.9, 0.99)}, torch.ones(1)]},
        "": torch.ones(1),
        "\udc80\\": torch.ones(4),
        "step": 3,
    }  # fmt: skip
    save(tmp_path, state)
    assert_same(load_new(tmp_path), state)
    with npzkit.open(tmp_path) as npz:
        assert npz["model.w"].tolist() == [1, 1]


def test_planner_that_does_not_flatten(tmp_path):
    """A planner may keep nested dicts, which are values then."""
    state = {"model": {"w": torch.ones(2), "a/b": [1, {2: "x"}]}}
    save(tmp_path, state, planner=dcp.DefaultSavePlanner(False, False))
    found = {"model": None}
    reader = NpzStorageReader(tmp_path)
    planner = dcp.DefaultLoadPlanner(False, False)
    dcp.load(found, storage_reader=reader, planner=planner)
    assert_same(found, state)


class Opaque:
    pass


@pytest.mark.parametrize(
    "value",
    [
        Opaque(), Colour.RED, [Colour.RED], np.array([None]), lambda: 0, {1: Opaque()},
        collections.defaultdict(int), 10**4000, (torch.eye(2).to_sparse(),),
    ],
)  # fmt: skip
def test_refused_values(value, tmp_path):
    """What JSON and arrays cannot hold is refused by its key, and the checkpoint stays."""
    save(tmp_path, {"old": torch.ones(1)})
    planner = dcp.DefaultSavePlanner(False, False)
    error = failure(save, tmp_path, {"good": torch.ones(1), "odd": value}, planner=planner)
    assert isinstance(error, (npzkit.errors.UnsupportedError, PickleRefusedError))
    assert error.key == "odd" and error.remedy
    with npzkit.open(tmp_path) as npz:
        assert npz.files == ["old"]
    assert len(os.listdir(tmp_path)) == 2


class PlannerOfArrays(dcp.DefaultSavePlanner):
    """A planner that keeps an array beside the state dict."""

    def create_global_plan(self, all_plans):
        plans, metadata = super().create_global_plan(all_plans)
        return plans, dataclasses.replace(metadata, planner_data={"scale": np.arange(3)})


@pytest.mark.remedy("Put them into the state dict.")
def test_a_planner_with_arrays(tmp_path):
    """Its data are no place for arrays; those of the state dict are kept."""
    state = {"x": torch.ones(1)}
    error = failure(save, tmp_path, state, planner=PlannerOfArrays())
    assert "the data of the planner has arrays" in str(error)
    save(tmp_path, state | {"scale": np.arange(3)})
    assert load_new(tmp_path)["scale"].tolist() == [0, 1, 2]


class PlannerOfPickles(dcp.DefaultSavePlanner):
    """A planner that cannot look up a value."""

    lookup_object = None


@pytest.mark.remedy("Give it a method lookup_object(index), as DefaultSavePlanner has.")
def test_a_planner_of_pickles(tmp_path):
    """Values are saved as they are, so a planner must give them."""
    error = failure(save, tmp_path, {"n": 3}, planner=PlannerOfPickles())
    assert (error.key, error.found) == ("n", "PlannerOfPickles")
    PlannerOfPickles.lookup_object = dcp.DefaultSavePlanner.lookup_object
    save(tmp_path, {"n": 3}, planner=PlannerOfPickles())
    assert load_new(tmp_path) == {"n": 3}


@pytest.mark.remedy("Read it by npzkit.open(path)[key].")
def test_a_dtype_that_pytorch_has_not(tmp_path, monkeypatch):
    """An older PyTorch does not load the checkpoint, and the array is read as NumPy's."""
    save(tmp_path, {"x": torch.tensor([0, 1, 2], dtype=torch.uint16)})
    monkeypatch.setattr("npzkit.torch.description._tensor_dtype", lambda dtype, special: None)
    error = failure(load, tmp_path, {"x": torch.tensor([0] * 3, dtype=torch.uint16)})
    assert "PyTorch has no dtype for this array" in str(error)
    with npzkit.open(tmp_path) as npz:
        assert npz["x"].tolist() == [0, 1, 2]


@pytest.mark.remedy("Call read_metadata first, as dcp.load does.")
def test_a_reader_is_opened_by_read_metadata(tmp_path):
    """Without that call nothing can be read; each load makes it, and so can a program."""
    save(tmp_path, {"x": torch.ones(2)})
    reader, planner = NpzStorageReader(tmp_path), dcp.DefaultLoadPlanner()
    state = {"x": torch.zeros(2)}
    with pytest.raises(ClosedArchiveError, match="the checkpoint is not open"):
        reader.read_data(dcp.LoadPlan([]), planner)
    planner.set_up_planner(state, reader.read_metadata())
    reader.read_data(planner.create_local_plan(), planner).wait()
    assert state["x"].tolist() == [1, 1]


def test_refused_tensors(tmp_path):
    """A sparse tensor is refused by its key."""
    assert failure(save, tmp_path, {"odd": torch.eye(2).to_sparse()}).key == "odd"


def test_tied_weights(tmp_path):
    """Tensors that share memory have all their names, and are loaded into shared memory again."""
    weight = torch.randn(3)
    save(tmp_path, {"a": weight, "b": weight})
    other = torch.zeros(3)
    load(tmp_path, {"a": other, "b": other})
    assert torch.equal(other, weight)


def test_loads_into_any_memory(tmp_path):
    """Targets may be of another dtype, or not contiguous; others hear of the change."""
    save(tmp_path, {"x": torch.arange(12.0).reshape(3, 4)})
    expected = torch.arange(12.0).reshape(3, 4)
    for target in (
        torch.zeros(4, 3).t(),
        torch.zeros(3, 4, dtype=torch.float64),
        torch.zeros(3, 8)[:, ::2],
    ):
        version = target._version
        load(tmp_path, {"x": target})
        assert torch.equal(target.float(), expected)
        assert target._version > version


def test_shard_size(tmp_path):
    """A rank writes several files if it has more bytes than `shard_size`."""
    state = {f"x{i}": torch.full((1000,), i) for i in range(10)}
    save(tmp_path, state, shard_size=20_000, threads=2)
    assert len(os.listdir(tmp_path)) == 1 + 4
    assert_same(load_new(tmp_path), state)
    with npzkit.open(tmp_path) as npz:
        assert npz.files == list(state)


def damage(folder, part):
    """Flip a bit of a part's data."""
    with npzkit.open(folder) as npz:
        (found,) = (each for each in npz.parts("x") if each.offset[0] == part)
    path = os.path.join(folder, found.shard)
    with npzkit.open(path) as npz:
        at = npz.info(found.key).data_offset + 64
    with open(path, "r+b") as file:
        file.seek(at + 200)
        byte = file.read(1)
        file.seek(at + 200)
        file.write(bytes([byte[0] ^ 1]))


def in_parts(folder):
    """Write an array in two files, as two ranks would."""
    with npzkit.ShardedWriter(folder, shard_size=1000) as w:
        for part in (0, 500):
            w.add("x", np.arange(part, part + 500.0), offset=(part,), global_shape=(1000,))
        w.commit()


class PartPlanner(dcp.DefaultLoadPlanner):
    """Asks for some of a tensor, as one rank of many does."""

    def __init__(self, begin, size):
        super().__init__()
        self.begin, self.size = begin, size

    def create_local_plan(self):
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
        from torch.distributed.checkpoint.planner import LoadPlan
        from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

        chunk = ChunkStorageMetadata(torch.Size([self.begin]), torch.Size([self.size]))
        found = self.metadata.state_dict_metadata["x"]
        return LoadPlan(create_read_items_for_chunk_list("x", found, [chunk]))

    def lookup_tensor(self, index):
        return self.state_dict["x"]


def load_part(folder, begin, size):
    state = {"x": torch.zeros(size, dtype=torch.float64)}
    reader = NpzStorageReader(folder)
    dcp.load(state, storage_reader=reader, planner=PartPlanner(begin, size))
    return state["x"].tolist()


def test_reads_the_parts_that_are_needed(tmp_path):
    """A part of a tensor is read from the files that have it; others may be gone or damaged."""
    in_parts(tmp_path)
    assert load_part(tmp_path, 300, 400) == list(range(300, 700))
    damage(tmp_path, 0)
    assert load_part(tmp_path, 500, 500) == list(range(500, 1000))
    with npzkit.open(tmp_path) as npz:
        os.unlink(tmp_path / npz.parts("x")[0].shard)
    assert load_part(tmp_path, 600, 50) == list(range(600, 650))


def test_complete_parts_are_checked(tmp_path):
    """The CRC-32 of a part that is read completely is compared, unless `verify` is False."""
    in_parts(tmp_path)
    damage(tmp_path, 0)
    error = failure(load_part, tmp_path, 0, 600)
    assert isinstance(error, ChecksumError) and error.key == "x"
    state = {"x": torch.zeros(1000, dtype=torch.float64)}
    assert isinstance(failure(load, tmp_path, state), ChecksumError)
    assert load(tmp_path, state, verify=False)["x"][999] == 999


def test_values_and_boxes_are_read_without_checks(tmp_path):
    """With ``verify=False``, values and what is read of a part are not checked either."""
    x, value = torch.arange(1000.0, dtype=torch.float64), np.arange(1000, 2000)
    save(tmp_path, {"x": x, "value": value})
    (path,) = tmp_path.glob("shard-*.npz")
    data = path.read_bytes()
    for item in (x.numpy()[500:501], value[500:501]):
        assert data.count(item.tobytes()) == 1
        data = data.replace(item.tobytes(), bytes(8))
    path.write_bytes(data)

    def read(state, planner, verify):
        reader = NpzStorageReader(tmp_path, verify=verify)
        dcp.load(state, storage_reader=reader, planner=planner)

    for state, planner, at in (
        ({"x": torch.ones(200, dtype=torch.float64)}, PartPlanner(400, 200), 100),
        ({"value": value}, None, 500),
    ):
        assert isinstance(failure(read, state, planner, True), ChecksumError)
        read(state, planner, False)
        (found,) = state.values()
        assert (found == 0).nonzero()[0].item() == at


def test_archives_of_others(tmp_path):
    """Archives that PyTorch did not make are read by their keys, sharded or in one file."""
    arrays = {
        "w": np.arange(6.0).reshape(2, 3),
        "f": np.asfortranarray(np.arange(6).reshape(3, 2)),
        "s": np.array(["ab"]),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    with npzkit.ShardedWriter(tmp_path / "b") as w:
        for key, array in arrays.items():
            w.add(key, array)
        w.commit()
    for path in (tmp_path / "a.npz", tmp_path / "b"):
        state = {"w": torch.zeros(2, 3), "f": torch.zeros(3, 2, dtype=torch.int64), "s": None}
        load(path, state)
        assert torch.equal(state["w"], torch.arange(6.0).reshape(2, 3))
        assert state["f"].tolist() == [[0, 1], [2, 3], [4, 5]]
        assert state["s"].tolist() == ["ab"]
        assert list(load_new(path)) == ["w", "f", "s"]


def test_the_background(tmp_path):
    """`async_save` saves what there was when it was called."""
    state = {"x": torch.ones(1000), "step": 1}
    future = dcp.async_save(state, storage_writer=NpzStorageWriter(tmp_path), no_dist=True)
    state["x"].zero_()
    future.result()
    assert load_new(tmp_path)["x"].sum() == 1000


def test_another_checkpoint_id(tmp_path):
    """`checkpoint_id` names another folder, for the writer and for the reader."""
    save(tmp_path / "a", {"x": torch.ones(1)}, checkpoint_id=tmp_path / "b")
    assert os.listdir(tmp_path) == ["b"]
    state = {"x": torch.zeros(1)}
    reader = NpzStorageReader(tmp_path / "a")
    dcp.load(state, checkpoint_id=tmp_path / "b", storage_reader=reader)
    assert state["x"] == 1
    assert reader.checkpoint_id == tmp_path / "b"
    assert NpzStorageWriter.validate_checkpoint_id("s3://bucket/run")


def test_overwrite(tmp_path):
    """A checkpoint is replaced, and what it had is gone; with `overwrite=False` it stays."""
    save(tmp_path, {"x": torch.ones(1)}, metadata={"step": 1})
    assert isinstance(
        failure(save, tmp_path, {"y": torch.ones(1)}, overwrite=False), FileExistsError
    )
    with npzkit.open(tmp_path) as npz:
        assert npz.files == ["x"] and npz.metadata["step"] == 1
    save(tmp_path, {"y": torch.ones(1)})
    assert len(os.listdir(tmp_path)) == 2
    assert list(load_new(tmp_path)) == ["y"]


def test_a_missing_checkpoint(tmp_path):
    """The error of a load names the folder."""
    assert str(tmp_path / "none") in str(failure(load, tmp_path / "none", {"x": torch.ones(1)}))


def change(folder, path, value):
    fields = index_of(folder)
    entry = fields["metadata"]
    *outer, last = path
    for step in outer:
        entry = entry[step]
    entry[last] = value
    write_index(folder, fields)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), 3), (("version",), 2), (("items",), []), (("items", "x"), 1), (("surplus",), 1),
        (("items", "x"), {"key": "y"}), (("items", "x"), {"key": 1}), (("items", "x"), {"dtype": []}),
        (("items", "x"), {"dtype": "complex32"}), (("items", "x"), {"dtype": "float8_e4m3fn"}),
        (("items", "x"), {"dtype": "nonsense", "key": "../x"}), (("planner",), ["odd"]),
        (("planner",), ["dict", ["tuple", "x", ["tuple", "x", 10**9]]]), (("planner",), ["dict", 1]),
        (("planner",), ["array", "x"]), (("planner",), ["named", "a b", ["list", "c"], 1]),
        (("items", "v", "value"), ["torch.device", "nowhere"]), (("items", "v", "value"), ["set", ["list"]]),
        (("items", "v", "value"), ["array", "none"]), (("items", "v", "value"), []),
        (("items", "v", "value"), {}), (("items", "v", "value"), ["as", "bytes"]),
        (("items", "v", "value"), ["torch.dtype", "Tensor"]), (("items", "v", "value"), [["list"]]),
        (("items", "v", "value"), ["named", 1, 2]), (("items", "v", "value"), ["torch.dtype", 1]),
    ],
)  # fmt: skip
def test_damaged_entries(path, value, tmp_path):
    """Wrong metadata of an index are an error of npzkit, or make no difference."""
    save(tmp_path, {"x": torch.ones(2), "v": 1})
    change(tmp_path, ("npzkit.torch", *path), value)
    error = failure(load, tmp_path, {"x": torch.zeros(2), "v": 0})
    # PyTorch replaces errors of the metadata by one of its own, which quotes them.
    assert isinstance(error, NpzkitError) or "metadata read failed" in str(error)
    assert os.fspath(tmp_path) in str(error)


def test_failed_writes(tmp_path, monkeypatch):
    """A save that cannot write removes its files."""
    from npzkit.torch import storage_writer as writer

    save(tmp_path, {"x": torch.ones(2)})
    write = writer.write_shard

    def fail(place, name, parts, **options):
        if name.endswith("-00002.npz"):
            raise OSError(28, "no space")
        return write(place, name, parts, **options)

    monkeypatch.setattr(writer, "write_shard", fail)
    state = {f"x{i}": torch.ones(1000) for i in range(4)}
    assert isinstance(failure(save, tmp_path, state, shard_size=4000), OSError)
    assert len(os.listdir(tmp_path)) == 2
    assert list(load_new(tmp_path)) == ["x"]


def test_leftovers(tmp_path):
    """A save removes what killed ones have left, and nothing else."""
    save(tmp_path, {"x": torch.ones(2)})
    for name in ("shard-a1.00c0ffee-00000.npz", ".npzkit-0123456789abcdef.tmp", "notes.npz"):
        (tmp_path / name).touch()
    save(tmp_path, {"x": torch.ones(2)})
    names = sorted(os.listdir(tmp_path))
    assert len(names) == 3 and names[:2] == ["index.npz", "notes.npz"]


def test_stores_of_objects():
    """A checkpoint may be in a store of objects."""
    path = "memory://dcp/run"
    save(path, TENSORS | {"step": 1})
    save(path, TENSORS | {"step": 2})
    assert_same(load_new(path), TENSORS | {"step": 2})
    assert npzkit.open(path)["float"].shape == (3, 4)


@needs_s3
def test_s3():
    """A checkpoint may be in S3."""
    with s3_server() as options:
        path = "s3://data/run"
        for step in (1, 2):
            save(path, {"x": torch.full((1000,), step), "step": step}, storage_options=options)
        state = load(
            path, {"x": torch.zeros(1000, dtype=torch.int64), "step": 0}, storage_options=options
        )
        assert state["x"].sum() == 2000 and state["step"] == 2


def test_other_processes(tmp_path):
    """A writer and a reader can be sent to another process, as a save in one does."""
    writer = pickle.loads(pickle.dumps(NpzStorageWriter(tmp_path, metadata={"step": 1})))
    dcp.save({"x": torch.ones(2)}, storage_writer=writer, no_dist=True)
    reader = pickle.loads(pickle.dumps(NpzStorageReader(tmp_path)))
    state = {"x": torch.zeros(2)}
    dcp.load(state, storage_reader=reader, no_dist=True)
    assert state["x"].tolist() == [1, 1]


def test_plans_of_another_storage(tmp_path):
    """A planner that caches plans may have used another storage before."""
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
    state = {"x": torch.ones(2)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "a"), planner=planner)
    try:
        save(tmp_path / "b", state, planner=planner)
    finally:
        for name in [name for name in vars(dcp.SavePlanner) if name.startswith("_cached")]:
            getattr(dcp.SavePlanner, name).clear()
    assert_same(load_new(tmp_path / "b"), state)


def test_threads_of_a_rank(monkeypatch):
    """The ranks of a machine share its processors."""
    from npzkit.torch import storage

    monkeypatch.setattr(storage, "thread_count", lambda threads: threads or 8)
    for processes, expected in (("4", 2), ("16", 1), ("", 8), ("x", 8), ("0", 8)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        assert storage.own_threads(None) == expected
        assert storage.own_threads(3) == 3


def test_values_keep_their_copies(tmp_path):
    """Two values that are equal are two objects."""
    save(tmp_path, {"a": [1], "b": [1]})
    state = load(tmp_path, {"a": None, "b": None})
    assert state["a"] == state["b"] and state["a"] is not state["b"]


def test_named_tuples_can_be_pickled(tmp_path):
    """A namedtuple of a class that was made from a file can be pickled and copied."""
    save(tmp_path, {"p": Point(1, 2)})
    found = load(tmp_path, {"p": None})["p"]
    assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found == (1, 2)


@pytest.mark.parametrize("rows", [slice(0, 4), slice(1, 3)])
def test_parts_have_the_data_that_the_index_means(tmp_path, rows):
    """An index in which the CRC-32s of two parts were exchanged is an error, also for slices."""
    whole = np.arange(8.0).reshape(4, 2)
    with npzkit.ShardedWriter(tmp_path) as w:
        for start in (0, 2):
            w.add("w", whole[start : start + 2], (start, 0), (4, 2))
        w.commit()
    index = index_of(tmp_path)
    index["parts"]["crc32"].reverse()
    write_index(tmp_path, index)
    out = np.empty((rows.stop - rows.start, 2))
    with npzkit.open(tmp_path) as npz, pytest.raises(IndexFormatError, match="not what the index"):
        read_box(npz.lazy("w"), (rows.start, 0), out, verify=False, threads=1)
    error = failure(load, tmp_path, {"w": torch.zeros(4, 2, dtype=torch.float64)})
    assert isinstance(error, IndexFormatError)


def test_a_nearly_full_stack_is_no_bad_tensor(monkeypatch):
    """Deep in a recursion, no tensor is called unfit, no note invalid, and no dtype unknown."""
    from npzkit.members.tensors import to_array
    from npzkit.torch import description
    from npzkit.trees.containers import decode_value

    def fail(*args, **options):
        raise RecursionError

    monkeypatch.setattr(torch.Tensor, "numpy", fail)
    monkeypatch.setattr(description, "from_array", fail)
    calls = [
        lambda: to_array(torch.zeros(2)),
        lambda: description._tensor_dtype.__wrapped__(np.dtype("f4"), None),
        lambda: decode_value(["array", "k"], fail),
    ]
    for call in calls:
        with pytest.raises(RecursionError):
            call()


def test_a_namedtuple_that_cannot_be_made_again_is_refused(tmp_path):
    """Names that Python replaced, such as those of keywords, would be refused by the reader."""
    renamed = collections.namedtuple("Renamed", ["x", "class"], rename=True)
    assert renamed._fields == ("x", "_1")
    with pytest.raises(CheckpointException, match="namedtuple has names"):
        save(tmp_path, {"value": renamed(1, 2)})
