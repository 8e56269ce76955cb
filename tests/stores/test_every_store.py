"""What every store promises: one suite for web servers, stores of objects, memory and folders."""

from __future__ import annotations

import gc
import json
import logging
import pickle

import npzkit
import numpy as np
import pytest
from archives import packed
from azurite import needs_azure
from npzkit.checkpoint import CheckpointStore, latest
from npzkit.cli.commands import run
from npzkit.errors import StaleArchiveError, ZipFormatError
from npzkit.stores import retries, upload_sink
from npzkit.stores.objects import Objects
from parties import has_fsspec, needs_google, party_of
from s3 import needs_s3

# gcsfs and adlfs close their connections when Python ends.
pytestmark = pytest.mark.filterwarnings("ignore")

ARRAYS = {f"w{i}": np.random.default_rng(i).random(20_000) for i in range(6)}
OTHER = {key: array + 1 for key, array in ARRAYS.items()}
SMALL = np.arange(5)
LARGE = np.random.default_rng(9).random((upload_sink.PART_SIZE + 99_999) // 8)
"""More than one part of an upload has."""
WEB = [pytest.param("http")]
STORES = [
    pytest.param("s3", marks=needs_s3),
    pytest.param("gs", marks=needs_google),  # gcsfs
    pytest.param("az", marks=needs_azure),
    pytest.param("memory", marks=has_fsspec),
]
FOLDERS = [pytest.param("file", marks=has_fsspec)]
for_all = pytest.mark.parametrize("kind", [*WEB, *STORES, *FOLDERS], scope="module")
for_writing = pytest.mark.parametrize("kind", [*STORES, *FOLDERS], scope="module")
for_stores = pytest.mark.parametrize("kind", STORES, scope="module")
for_distant = pytest.mark.parametrize("kind", [*WEB, *STORES], scope="module")
for_buckets = pytest.mark.parametrize("kind", STORES[:3], scope="module")


@pytest.fixture(scope="module")
def lent(kind, tmp_path_factory):
    """What returns a new folder of a store."""
    with party_of(kind, tmp_path_factory.mktemp("folders")) as lent:
        yield lent
    # Connections that libraries leave open are collected here, where their warnings are ignored.
    gc.collect()


@pytest.fixture
def store(lent, monkeypatch):
    """An empty folder of a store."""
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.001)
    return lent()


def same(found, arrays):
    return list(found) == list(arrays) and all(
        np.array_equal(found[key], array) for key, array in arrays.items()
    )


# -- reading ------------------------------------------------------------------


@pytest.mark.slow
@for_all
def test_reading(store):
    """An archive that another program put there is what it is, however it is read."""
    store.put("a.npz", packed(ARRAYS, metadata={"step": 1}))
    url = store.url("a.npz")
    with npzkit.open(url, **store.given) as npz:
        assert npz.metadata == {"step": 1}
        np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
        np.testing.assert_array_equal(npz.lazy("w2")[5:9], ARRAYS["w2"][5:9])
        np.testing.assert_array_equal(npz.lazy("w2")[::-7], ARRAYS["w2"][::-7])
        assert same(npz.load_all(), ARRAYS)
        assert npz.verify().ok
        with pickle.loads(pickle.dumps(npz)) as other:
            np.testing.assert_array_equal(other["w1"], ARRAYS["w1"])
    assert same(npzkit.load_tree(url, **store.given), ARRAYS)
    assert npzkit.verify(url, **store.given).ok


REQUESTS = {"http": [1, 1, 1, 2, 1], "s3": [1, 1, 1, 2, 1]}
"""Of an open, an array, all of them, the first rows of an array, and others. The version comes
with each answer."""


# gcsfs asks for a list with each version.
@pytest.mark.parametrize(
    "kind", [*WEB, *(one for one in STORES if "gs" not in one.values)], scope="module"
)
def test_requests(store, kind):
    """They are as few as the guide says; other stores are asked for the version each time."""
    store.put("a.npz", packed(ARRAYS))
    counts = [store.count()]

    def count():
        counts.append(store.count())

    with npzkit.open(store.url("a.npz"), **store.given) as npz:
        npz.summary()
        count()
        npz["w3"]
        count()
        npz.load_all()
        count()
        lazy = npz.lazy("w2")
        lazy[5:9]
        count()
        lazy[50:90]
        count()
    assert np.diff(counts).tolist() == REQUESTS.get(kind, [3, 2, 2, 4, 2])


@for_all
def test_what_is_not_there(store):
    """A missing object is not found, and an empty one is no archive."""
    with pytest.raises(FileNotFoundError, match="missing"):
        npzkit.open(store.url("missing.npz"), **store.given)
    store.put("empty.npz", b"")
    with pytest.raises(ZipFormatError, match="empty"):
        npzkit.open(store.url("empty.npz"), **store.given)


@for_buckets
def test_a_bucket_that_does_not_exist(store):
    """Neither is found what is in it, nor can anything be written to it."""
    url = store.base.partition("://")[0] + "://nosuchbucket/a.npz"
    with pytest.raises(FileNotFoundError, match=url):
        npzkit.open(url, **store.given)
    for array in (SMALL, LARGE):
        with pytest.raises(FileNotFoundError, match=url) as caught:
            npzkit.save(url, {"a": array}, **store.given)
        text = "\n".join([str(caught.value), *caught.value.__notes__])
        assert not any(secret in text for secret in store.secrets)


@for_all
def test_a_replaced_object(store):
    """Two versions never mix, and an object that was removed is not found."""
    store.put("a.npz", packed(ARRAYS))
    with npzkit.open(store.url("a.npz"), **store.given) as npz:
        lazy = npz.lazy("w1")
        np.testing.assert_array_equal(lazy[:3], ARRAYS["w1"][:3])
        for data in (packed(OTHER), b"x"):
            store.put("a.npz", data)
            for read in (lambda: npz["w2"], npz.load_all, lambda: lazy[9_000:9_003]):
                with pytest.raises(StaleArchiveError, match=r"a\.npz"):
                    read()


@for_distant
def test_an_object_that_was_removed(store):
    """It is not found."""
    store.put("a.npz", packed(ARRAYS))
    with npzkit.open(store.url("a.npz"), **store.given) as npz:
        store.remove("a.npz")
        with pytest.raises(FileNotFoundError, match=r"a\.npz"):
            npz["w1"]


@for_buckets
def test_a_list_that_a_library_remembers(store, kind):
    """It neither hides that another process replaced an object, nor that it made one."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    listing = fsspec.filesystem(kind, **store.options)
    store.put("a.npz", packed(ARRAYS))
    with npzkit.open(store.url("a.npz"), **store.given) as npz:
        listing.ls(store.base)
        store.put("b.npz", packed(ARRAYS))
        with npzkit.open(store.url("b.npz"), **store.given) as other:
            assert same(other.load_all(), ARRAYS)
        listing.ls(store.base)
        store.put("a.npz", packed(OTHER))
        with pytest.raises(StaleArchiveError):
            npz["w1"]
    listing.ls(store.base)
    npzkit.save(store.url("c.npz"), {"a": LARGE}, **store.given)
    assert any(name.endswith("c.npz") for name in listing.ls(store.base, detail=False))


@for_writing
def test_many_files(store):
    """Those that match a pattern are one, and a replaced one is noticed."""
    for number in range(2):
        store.put(f"{number}.npz", packed(ARRAYS))
    with npzkit.open_many(store.url("*.npz"), axis=0, **store.given) as many:
        np.testing.assert_array_equal(many["w1"][-5:], ARRAYS["w1"][-5:])
        store.put("1.npz", packed(OTHER))
        with pytest.raises(StaleArchiveError):
            many["w1"][-5:]


# -- writing ------------------------------------------------------------------


@pytest.mark.slow
@for_writing
def test_writing(store):
    """Small and large archives are the bytes of a file; an older object is replaced."""
    large = {"stored": LARGE, "other": LARGE[:9], "more": SMALL, "most": SMALL}
    for arrays in (ARRAYS, large):
        for options in ({}, {"compression": "deflated"}):
            npzkit.save(store.url("a.npz"), arrays, **options, **store.given)
            with npzkit.open(store.url("a.npz"), **store.given) as npz:
                assert same(npz.load_all(), arrays)
                assert npz.verify().ok
    assert len(store.names()) == 1


@for_writing
@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["small", "large"])
def test_mode_x(store, array):
    """Another writer's object stays, whether it was there before or not; no part is left."""
    url = store.url("a.npz")
    with (
        pytest.raises(FileExistsError, match=r"a\.npz"),
        npzkit.NpzWriter(url, "x", **store.given) as writer,
    ):
        writer["mine"] = array
        store.put("a.npz", packed({"other": np.ones(2)}))
    with pytest.raises(FileExistsError, match=r"a\.npz"):
        npzkit.NpzWriter(url, "x", **store.given)
    with npzkit.open(url, **store.given) as npz:
        assert npz.files == ["other"]
    assert len(store.names()) == 1
    with npzkit.NpzWriter(store.url("b.npz"), "x", **store.given) as writer:
        writer["mine"] = array
    assert len(store.names()) == 2


@for_buckets
@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["small", "large"])
def test_mode_x_at_the_last_moment(store, kind, array, monkeypatch):
    """An object that appears when nobody looks any more stays: the store compares."""
    if kind == "gs" and array is LARGE:
        pytest.skip("the tests' server of Google's protocol compares when an upload begins")
    monkeypatch.setattr(upload_sink.Upload, "check", lambda self: None)
    with (
        pytest.raises(FileExistsError, match=r"a\.npz"),
        npzkit.NpzWriter(store.url("a.npz"), "x", **store.given) as writer,
    ):
        writer["mine"] = array
        store.put("a.npz", packed({"other": np.ones(2)}))
    monkeypatch.undo()
    with npzkit.open(store.url("a.npz"), **store.given) as npz:
        assert npz.files == ["other"]


@for_writing
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception(store, error):
    """Nothing that was sent is visible or left, and an older object stays."""
    for count in (0, 1):
        with pytest.raises(error), npzkit.NpzWriter(store.url("a.npz"), **store.given) as writer:
            writer["large"] = LARGE
            raise error
        assert len(store.names()) == count
        store.put("a.npz", packed({"older": SMALL}))
    with npzkit.open(store.url("a.npz"), **store.given) as npz:
        assert npz.files == ["older"]


@for_writing
def test_checkpoints(store):
    """Steps are listed, kept, replaced and removed."""
    with CheckpointStore(f"{store.base}/run", latest(2), **store.given) as steps:
        for step in range(4):
            steps.save(step, {"w": np.full(10, step)}, {"loss": step})
        assert steps.steps == (2, 3)
        steps.save(3, {"w": np.full(10, 7)})
        found = steps.load()
        assert (found.step, found.tree["w"].tolist()) == (3, [7] * 10)
        steps.delete(2)
        assert steps.steps == (3,)
        assert steps.verify().ok
    with CheckpointStore(f"{store.base}/run", **store.given) as steps:
        assert steps.load().step == 3


@pytest.mark.slow
@for_stores
def test_frozen_arrays_are_copied_by_the_store(store, monkeypatch):
    """Steps share what is frozen, of which no byte comes through this process."""
    monkeypatch.setattr(Objects, "take", None)
    with CheckpointStore(f"{store.base}/run", frozen="base", **store.given) as steps:
        for step in range(2):
            steps.save(step, {"w": np.full(10, step), "base": LARGE})
        steps.delete(0)
        assert sum(file.size for file in steps._files(1)) > LARGE.nbytes
        np.testing.assert_equal(steps.load().tree, {"w": np.full(10, 1), "base": LARGE})


# -- secrets ------------------------------------------------------------------


@for_all
def test_secrets(store, caplog):
    """None is in a repr, an error, the repr of what was pickled, or a log."""
    store.put("a.npz", packed(ARRAYS))
    caplog.set_level(logging.DEBUG)
    with npzkit.open(store.url("a.npz"), **store.given) as npz:
        texts = [repr(npz), repr(npz.lazy("w1")), repr(npz._lend_source())]
        with pickle.loads(pickle.dumps(npz)) as other:
            texts.append(repr(other))
        location = getattr(npz._lend_source(), "location", "")
        texts += [repr(location), str(location), repr(pickle.loads(pickle.dumps(location)))]
    with pytest.raises(OSError) as caught:
        npzkit.open(store.url("missing.npz"), **store.given)
    # A chain of causes would be shown with it.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    texts += [str(caught.value), repr(caught.value), *getattr(caught.value, "__notes__", ())]
    for secret in store.secrets:
        assert secret not in "\n".join([*texts, caplog.text])


@for_writing
def test_secrets_of_a_writer(store):
    """None is in a repr or an error."""
    with npzkit.NpzWriter(store.url("a.npz"), **store.given) as writer:
        texts = [repr(writer)]
        writer["a"] = SMALL
    with pytest.raises((OSError, npzkit.NpzkitError)) as caught:
        npzkit.NpzWriter(store.url("a.npz"), "x", **store.given)
    texts += [str(caught.value), *getattr(caught.value, "__notes__", ())]
    for secret in store.secrets:
        assert secret not in "\n".join(texts)


@for_all
def test_at_a_prompt(store, capsys):
    """Options are given as text, or as JSON."""
    store.put("a.npz", packed(ARRAYS))
    options = [
        f"--storage-option={name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in store.options.items()
    ]
    assert run(["show", store.url("a.npz"), "w3", "0:3", *options]) == 0
    assert f"{ARRAYS['w3'][0]:.4f}"[:5] in capsys.readouterr().out
    assert run(["verify", *options, store.url("a.npz")]) == 0
