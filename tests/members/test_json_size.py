"""What metadata and indexes may cost, before they are parsed."""

from __future__ import annotations

import io
import json
import tracemalloc

import npzkit
import numpy as np
import pytest
from deep import extent
from forge import Member, archive, npy, with_metadata
from npzkit.datasets.index import ArrayRow, PartRow
from npzkit.datasets.index_format import format_index, parse_index
from npzkit.datasets.shard_names import ShardRecord
from npzkit.errors import LimitExceededError
from npzkit.limits import DEFAULT_METADATA_SIZE, parsed_size
from npzkit.members.metadata import is_deeper

from tables import each_row

COUNT = 20_000
TEXTS = {
    "empty lists": "[" + "[]," * COUNT + "0]",
    "lists of one": "[" + "[0]," * COUNT + "0]",
    "nested lists": "[" + "[[]]," * COUNT + "0]",
    "empty objects": "[" + "{}," * COUNT + "0]",
    "objects of one": "[" + '{"":0},' * COUNT + "0]",
    "objects with names": "[" + ",".join(f'{{"{number:x}":0}}' for number in range(COUNT)) + "]",
    "short strings": "[" + ",".join(f'"{number:x}"' for number in range(COUNT)) + "]",
    "long strings": "[" + ('"' + "x" * 100 + '",') * COUNT + "0]",
    "numbers": "[" + ",".join(map(str, range(COUNT))) + "]",
    "floats": "[" + "0.5," * COUNT + "0]",
    "long numbers": "[" + ("1" * 40 + ",") * COUNT + "0]",
    "names": json.dumps({f"{number:x}": 0 for number in range(COUNT)}),
    "names of lists": json.dumps({f"{number:x}": [] for number in range(COUNT)}),
    "a long string with a wide character": '"' + "x" * 20 * COUNT + '\U0001f600"',
    "a long string with an escape": '"' + "x" * 20 * COUNT + '\\ud83d\\ude00"',
    "wide characters": "[" + '"\U0001f600b",' * COUNT + "0]",
}


@pytest.fixture(scope="module")
def hostile():
    """33 MiB of empty lists."""
    return b'{"a":[' + b"[]," * (11 << 20) + b"0]}"


@pytest.mark.slow
@each_row("kind", TEXTS)
def test_the_estimate_covers_what_parsing_takes(kind):
    """JSON of any kind takes no more memory than was estimated from its text."""
    data = TEXTS[kind].encode()
    tracemalloc.start()
    is_deeper(json.loads(data), 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < parsed_size(data, 0) < 6 * peak


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "append"])
def test_hostile_metadata_is_refused_before_it_is_parsed(kind, hostile, tmp_path):
    """33 MiB of empty lists, which take 1 GiB, are an error; the arrays can be read."""
    path = tmp_path / "a.npz"
    path.write_bytes(with_metadata(hostile))
    tracemalloc.start()
    with pytest.raises(LimitExceededError, match="take too much memory") as caught:
        if kind == "append":
            npzkit.NpzWriter(path, "a")
        else:
            with npzkit.open(path) as npz:
                np.testing.assert_array_equal(npz["x"], [0, 1, 2])
                assert not npz.verify().ok
                _ = npz.metadata
    assert tracemalloc.get_traced_memory()[1] < 6 * len(hostile)
    tracemalloc.stop()
    assert "Limits(metadata_size=...)" in caught.value.remedy


@pytest.mark.remedy("Pass limits=npzkit.Limits(metadata_size=...) if the file is trusted.")
def test_the_limit_of_metadata_can_be_changed(tmp_path):
    """A lower limit refuses what the default accepts, by the length before it is read; None all."""
    npzkit.save(tmp_path / "a.npz", {"x": np.zeros(3)}, metadata={"a": list(range(30_000))})

    def metadata(**limits):
        with npzkit.open(tmp_path / "a.npz", limits=npzkit.Limits(**limits)) as npz:
            return npz.metadata["a"]

    assert metadata() == metadata(metadata_size=None) == list(range(30_000))
    with pytest.raises(LimitExceededError, match=r"the metadata is too long.*a\.npz"):
        metadata(metadata_size=100_000)
    with pytest.raises(LimitExceededError, match=r"the metadata would take too much.*a\.npz"):
        metadata(metadata_size=1_000_000)
    assert metadata(metadata_size=2_000_000)[-1] == 29_999
    for size, is_ok in ((100_000, False), (1_000_000, False), (2_000_000, True)):
        limits = npzkit.Limits(metadata_size=size)
        assert npzkit.verify(tmp_path / "a.npz", limits=limits).ok is is_ok


def test_comments_that_are_no_metadata_have_no_limit():
    """The comment of another program is not JSON, so nothing is parsed and nothing refused."""
    npz = npzkit.open(
        archive(Member("x.npy", npy(np.zeros(3))), comment=b"," * 5_000),
        limits=npzkit.Limits(metadata_size=1_000),
    )
    assert not npz.metadata
    assert npz.verify().ok


@pytest.mark.remedy("Save what is large as an array.")
def test_what_could_not_be_read_is_not_saved(tmp_path, monkeypatch):
    """Metadata above the default limit are refused before a byte is written."""
    monkeypatch.setattr("npzkit.members.metadata.DEFAULT_METADATA_SIZE", 1 << 20)
    with pytest.raises(LimitExceededError, match="would take too much memory") as caught:
        npzkit.save(tmp_path / "a.npz", {"x": np.zeros(3)}, metadata={"a": [[]] * 20_000})
    assert caught.value.remedy == "Save what is large as an array."
    assert caught.value.found == "about 3.1 MiB, from 58.6 KiB of JSON"
    assert not list(tmp_path.iterdir())
    npzkit.save(tmp_path / "a.npz", {"x": np.zeros(3), "a": np.zeros((20_000, 0))})
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz["a"].tolist() == [[]] * 20_000


@pytest.mark.slow
def test_large_archives_are_far_below_the_limit():
    """An index of 100,000 arrays, and a tree of 100,000 leaves, take a quarter of the limit.

    By default a fifth of each is tried, against a fifth of that.
    """
    count = extent(20_000, 100_000)
    share = DEFAULT_METADATA_SIZE / 4 * count / 100_000
    shards = [ShardRecord(f"shard-a.{at:08x}-00000.npz", 1 << 40, at) for at in range(10)]
    keys = [f"model.layers.{at}.self_attn.q_proj.weight" for at in range(count)]
    rows = [
        ArrayRow(
            key, (4096, 4096), np.dtype("<f4"), None, False, {"unit": "m"},
            (PartRow(at % 10, key, (0, 0), (4096, 4096), 1 << 26, at, 0),),
        )
        for at, key in enumerate(keys)
    ]  # fmt: skip
    data = format_index("a", {}, shards, rows)
    index, _ = parse_index(data, npzkit.Limits(metadata_size=int(share)))
    assert len(index.keys) == count
    stream = io.BytesIO()
    tree = {
        "layers": [{"w": np.ones(1), "step": at, "name": f"layer {at}"} for at in range(count // 3)]
    }
    npzkit.save(stream, tree)
    npz = npzkit.open(stream)
    text = npz._archive.comment
    assert parsed_size(text, 0) < share
    assert len(npzkit.load_tree(stream)["layers"]) == count // 3
