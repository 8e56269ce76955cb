"""The metadata of an archive that is appended to."""

from __future__ import annotations

import copy
import datetime
import re

import forge
import npzkit
import numpy as np
import pytest
from archives import NOISE, by_save, check_accepted, listing


@pytest.fixture
def path(tmp_path):
    """Three arrays: x, y and z."""
    return by_save(tmp_path / "a.npz")


def test_metadata_is_kept_and_merged(path):
    """What is given is added to what is there, and may be changed or removed until close."""
    with npzkit.NpzWriter(path, "a", metadata={"loss": 0.5}) as w:
        assert w.metadata == {"step": 1, "loss": 0.5}
        w.metadata["step"] = 2
    with npzkit.open(path) as npz:
        assert npz.metadata == {"step": 2, "loss": 0.5}
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = np.arange(3)
    with npzkit.NpzWriter(path, "a") as w:
        assert w.metadata == {"step": 2, "loss": 0.5}
        w.metadata.clear()
    with npzkit.open(path) as npz:
        assert npz.metadata == {}
        assert npz.files == ["x", "y", "z", "new"]


def test_bad_metadata_loses_nothing(path):
    """Metadata that cannot be written is refused when it is assigned, or by a commit if it is
    inside a value, and a commit goes through without it.
    """
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = NOISE
        w.metadata["list"] = []
        w.metadata["list"].append(np.arange(3))
        with pytest.raises(TypeError, match="the value of 'list' in metadata is of type ndarray"):
            w.commit()
        del w.metadata["list"]
        with pytest.raises(TypeError, match="must be a mapping, not list"):
            w.metadata = ["bad"]
        w.commit()
    check_accepted(path, new=NOISE)
    before = path.read_bytes()
    w = npzkit.NpzWriter(path, "a")
    w["lost"] = NOISE
    w.metadata["inner"] = {}
    w.metadata["inner"][3] = 4
    with pytest.raises(TypeError):
        w.close()
    assert path.read_bytes() == before


NOW = datetime.datetime(2026, 1, 2)


CONVERTED = pytest.mark.remedy("convert it first, for example by str(value) or list(value)")


@pytest.mark.parametrize(("value", "kind", "instead"), [
    pytest.param(
        NOW, "datetime", lambda value: value.isoformat(),
        marks=pytest.mark.remedy("use value.isoformat()"),
    ),
    pytest.param(
        {"inner": [NOW.date()]}, "date", lambda value: {"inner": [value["inner"][0].isoformat()]},
        marks=pytest.mark.remedy("use value.isoformat()"),
    ),
    pytest.param(np.datetime64("2026-01-02"), "datetime64", str, marks=CONVERTED),
    pytest.param(np.array(1j), "complex128", str, marks=CONVERTED),
    pytest.param(
        np.arange(3), "ndarray", None, marks=pytest.mark.remedy("add it as an array of its own")
    ),
    pytest.param({1}, "set", list, marks=CONVERTED),
])  # fmt: skip
def test_a_value_that_json_lacks_is_refused_at_once(
    path, value, kind, instead, request, remedies_met
):
    """Each way to assign metadata and attributes names the key, the type and what to write."""
    (remedy,) = request.node.get_closest_marker("remedy").args
    # The errors are Python's own; the message is compared below.
    remedies_met.texts.append(remedy)
    message = f"'(created|inner)' in (metadata|attributes) is of type {kind}, .*{re.escape(remedy)}"
    with npzkit.NpzWriter(path, "a") as w:
        for changed in (w.metadata, w.attrs("x")):
            for assign in ("__setitem__", "setdefault"):
                with pytest.raises(TypeError, match=message):
                    getattr(changed, assign)("created", value)
            for assign in ("update", "__ior__"):
                with pytest.raises(TypeError, match=message):
                    getattr(changed, assign)({"ok": 1, "created": value})
        with pytest.raises(TypeError, match=message):
            w.metadata = {"created": value}
        with pytest.raises(TypeError, match=message):
            w.add("y", NOISE, attrs={"created": value}, overwrite=True)
        w.metadata |= {"step": np.int64(2)}
        assert type(copy.deepcopy(w.metadata)) is dict
        w["new"] = NOISE
    with npzkit.open(path) as npz:
        assert (npz.metadata, npz.info("x").attrs, npz.files[-1]) == ({"step": 2}, {}, "new")
    with npzkit.NpzWriter(path, "a") as w:
        if instead is None:
            w["created"] = value
        else:
            w.metadata["created"] = w.attrs("x")["created"] = instead(value)
    with npzkit.open(path) as npz:
        if instead is None:
            assert npz["created"].tolist() == [0, 1, 2]
        else:
            assert npz.metadata["created"] == npz.info("x").attrs["created"] == instead(value)


@pytest.mark.parametrize("comment", [b"not JSON", b'{"broken": ', b"\xff\x00", b'{ "spaced" : 1 }'])
def test_a_foreign_comment_is_kept(tmp_path, comment):
    """Another program's comment stays, byte for byte, until metadata takes its place."""
    path = tmp_path / "a.npz"
    path.write_bytes(forge.archive(forge.Member("x.npy", forge.npy(np.ones(3))), comment=comment))
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w["new"] = np.arange(3)
        w.commit()
        w.rename("new", "newer")
    assert listing(path)[0] == comment
    with npzkit.NpzWriter(path, "a") as w:
        del w["x"]
    assert listing(path)[0] == comment
    with npzkit.NpzWriter(path, "a") as w:
        w.metadata["step"] = 1
    with npzkit.open(path) as npz:
        assert npz.metadata["step"] == 1


def test_nested_data_survives_new_metadata(tmp_path):
    """A dict in the place of all metadata, or none, replaces the user's alone."""
    path, tree = tmp_path / "a.npz", {"w": np.ones(3), "run": {"rate": 0.1, "name": "seven"}}
    npzkit.save(path, tree, metadata={"author": "me"})
    for change in (
        lambda w: setattr(w, "metadata", {"author": "you"}),
        lambda w: w.metadata.clear(),
    ):
        with npzkit.NpzWriter(path, "a") as writer:
            change(writer)
        assert npzkit.load_tree(path)["run"] == tree["run"]
        assert npzkit.verify(path).ok
    with npzkit.open(path) as npz:
        assert set(npz.metadata) == {"npzkit.tree"}


def test_metadata_of_nested_data_beside_other_arrays(tmp_path):
    """With them come no values that were not saved; a copy of the arrays keeps its values."""
    old, new = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(old, {"w": np.ones(3), "rate": {"of": 0.1}}, metadata={"author": "me"})
    with npzkit.open(old) as npz:
        npzkit.save(new, {"other": np.zeros(2)}, metadata=npz.metadata)
        assert list(npzkit.load_tree(new)) == ["other"]
        npzkit.save(new, dict(npz), metadata=npz.metadata)
        assert npzkit.load_tree(new)["rate"] == {"of": 0.1}
    with npzkit.open(new) as npz:
        assert npz.metadata["author"] == "me"


def test_metadata_of_a_closed_writer(path):
    """They can be read, and a change raises: it would be lost."""
    with npzkit.NpzWriter(path, "a") as writer:
        pass
    assert writer.metadata["step"] == 1
    with pytest.raises(TypeError):
        writer.metadata["late"] = 1
