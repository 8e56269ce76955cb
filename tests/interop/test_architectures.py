"""Files that npzkit wrote on other machines: big-endian, 32-bit, ARM."""

from __future__ import annotations

import shutil
from pathlib import Path

import architectures
import npzkit
import numpy as np
import pytest
from npzkit.checkpoint import CheckpointStore

FOLDER = Path(__file__).parents[2] / "fixtures" / "architectures"
MACHINES = sorted(path.name for path in FOLDER.iterdir())


@pytest.fixture(params=MACHINES)
def folder(request, tmp_path):
    """A copy of what a machine wrote."""
    return shutil.copytree(FOLDER / request.param, tmp_path / request.param)


def check(found, expected):
    """Compare arrays, with their dtypes and orders."""
    assert list(found) == list(expected)
    for key, array in expected.items():
        assert found[key].dtype == array.dtype, key
        assert found[key].shape == array.shape, key
        assert np.array_equal(found[key], array), key
        assert found[key].flags.fnc == array.flags.fnc, key


def expected_arrays():
    arrays = architectures.arrays()
    arrays["fortran"] = arrays["fortran"][..., :2]
    return arrays


def test_there_are_three_machines():
    """One of each kind that x86-64 is not."""
    assert MACHINES == ["aarch64", "i386", "s390x"]


@pytest.mark.parametrize("name", ["stored.npz", "deflated.npz", "stream.npz"])
def test_machines_write_the_same_bytes(name):
    """By zlib alone, an archive does not depend on the machine."""
    assert len({(FOLDER / machine / name).read_bytes() for machine in MACHINES}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_archives_hold_what_was_saved(folder, compression):
    """Arrays, attributes and metadata, for npzkit and np.load, and `verify` finds nothing."""
    path = folder / f"{compression}.npz"
    report = npzkit.verify(path)
    assert report.ok
    # Of the array that was replaced.
    assert ["dead space" in row.what for row in report.rows] == [True]
    with npzkit.open(path) as npz:
        check(npz.load_all(), expected_arrays())
        assert npz.metadata.items() >= {**architectures.METADATA, "step": 8}.items()
        assert npz.info("fortran").attrs == architectures.ATTRS
        assert npz.lazy("large")[100, :2].tolist() == [100, 100]
        assert {npz.info(key).method for key in npz} == {compression}
    with np.load(path) as npz:
        check(npz, expected_arrays())


def test_archives_are_appended_to(folder):
    """An append keeps what the other machine wrote."""
    path = folder / "stored.npz"
    with npzkit.NpzWriter(path, "a") as writer:
        writer["more"] = np.arange(3)
        writer.append("large", np.ones((2, 1000)))
    with npzkit.open(path) as npz:
        assert npz["more"].tolist() == [0, 1, 2]
        assert npz["large"][132:, 0].tolist() == [132, 1, 1]
        check({"record": npz["record"]}, {"record": expected_arrays()["record"]})


def test_a_stream_and_shards_hold_what_was_saved(folder):
    """What was written to a pipe, and a folder whose index has numbers of the other machine."""
    with (folder / "stream.npz").open("rb") as stream:
        check(dict(npzkit.iter_arrays(stream)), architectures.large())
    assert npzkit.verify(folder / "sharded").ok
    with npzkit.open(folder / "sharded") as npz:
        check(npz.load_all(), architectures.large() | architectures.arrays())
        assert npz.metadata == architectures.METADATA
        assert npz.lazy("parts")[19_999:20_001].tolist() == [5, 6]


def test_a_checkpoint_holds_its_tree(folder):
    """Nested data keep their types, and the store goes on with the next step."""
    with CheckpointStore(folder / "checkpoint", durable=False) as store:
        checkpoint = store.load()
        expected = architectures.tree()
        assert (checkpoint.step, checkpoint.metrics) == (100, {"loss": 0.25})
        layers = [checkpoint.tree["model"].pop("layers"), expected["model"].pop("layers")]
        assert checkpoint.tree == expected
        for found, saved in zip(*layers, strict=True):
            assert found["w"].dtype == saved["w"].dtype
            assert np.array_equal(found["w"], saved["w"])
        store.save(101, {"step": 8})
        assert store.steps == (100, 101)
