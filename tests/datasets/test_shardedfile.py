"""Reading sharded archives."""

from __future__ import annotations

import inspect
import io
import os
import pickle
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import npzkit
import numpy as np
import pytest
from children import forked, read_rest
from npzkit.archive.opened_archive import OpenedArchive
from npzkit.datasets import reopened, sharded_array, sharded_contents
from npzkit.datasets.sharded_contents import ShardedContents
from npzkit.display import blocks
from npzkit.errors import (
    ChecksumError,
    ClosedArchiveError,
    FormatError,
    LimitExceededError,
    MemberNotFoundError,
    MissingShardError,
    StaleArchiveError,
    UnsupportedError,
)
from sharded import index_of, write_index, write_run
from structure import MODULES
from systems import replaces_open_files


def loaded(file):
    """Return what np.load reads from an archive."""
    with np.load(file) as npz:
        return dict(npz)


def test_arrays_of_several_writers_are_one_archive(folder, whole):
    """Each array comes back complete, with attributes and metadata."""
    with npzkit.open(folder) as npz:
        assert sorted(npz) == ["layer/0", "layer/1", "w"]
        np.testing.assert_array_equal(npz["w"], whole)
        np.testing.assert_array_equal(npz["layer/1"], [1, 1, 1])
        info = npz.info("w")
        assert (info.shape, info.dtype, len(npz.parts("w"))) == ((7, 6), np.dtype("f4"), 4)
        assert dict(info.attrs) == {"unit": "m"}
        assert npz.metadata["step"] == 7


def test_load_all_reads_every_array(folder, whole):
    """`load_all` returns new, writable arrays in the archive's order."""
    with npzkit.open(folder) as npz:
        arrays = npz.load_all()
        assert list(arrays) == npz.files
        np.testing.assert_array_equal(arrays["w"], whole)
        arrays["w"][0] = 0


INDICES = [
    (), 0, -1, slice(None), slice(2, 5), slice(None, None, -2), (slice(None), 3),
    (slice(1, 6, 2), slice(5, 0, -2)), [6, 0, 3, 3], (slice(None), [5, 1]), Ellipsis, (2, 4),
    slice(5, 2), (None, 1), (slice(6, 7), slice(5, 6)), np.array([True, False] * 3 + [True]),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_lazy_indexing_is_as_of_the_array(folder, whole, index):
    """`lazy(key)[index]` equals indexing the complete array, for all kinds of indices."""
    with npzkit.open(folder) as npz:
        found = npz.lazy("w")[index]
        expected = whole[index]
        np.testing.assert_array_equal(found, expected)
        assert np.shape(found) == np.shape(expected)


def test_lazy_arrays_give_fields(tmp_path):
    """`lazy[name]` and `lazy[names]` give fields of an array in several parts, as of one."""
    records = np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")])
    with npzkit.ShardedWriter(tmp_path) as w:
        w.add("r", records[:1], (0,), (2,))
        w.add("r", records[1:], (1,), (2,))
        w.commit()
    with npzkit.open(tmp_path) as npz:
        np.testing.assert_array_equal(npz.lazy("r")["b"], [2.0, 4.0])
        np.testing.assert_array_equal(npz.lazy("r")[["b", "a"]], records[["b", "a"]])
        with pytest.raises(ValueError, match="no field of name c"):
            npz.lazy("r")["c"]


def test_shards_are_plain_archives(folder):
    """np.load opens each shard."""
    for path in folder.glob("shard-*.npz"):
        assert "w" in loaded(path)


def test_it_pickles(folder, whole):
    """A pickled archive opens again, and its lazy arrays too."""
    with npzkit.open(folder) as npz:
        again, lazy = pickle.loads(pickle.dumps((npz, npz.lazy("w"))))
        np.testing.assert_array_equal(again["w"], whole)
        np.testing.assert_array_equal(lazy[2:4], whole[2:4])


def test_it_is_an_npzfile_throughout(folder, whole):
    """Whatever an NpzFile asks of its contents, those of a ShardedFile have too."""
    sources = {name: path.read_text("utf-8") for name, path in MODULES.items()}
    # What a LazyArray of one file asks, those of many files do not.
    callers = "".join(sources[name] for name in sources.keys() - {"archive.lazyarray"})
    names = re.findall(r"_archive\.([a-z]\w*)", callers)
    names += re.findall(r"\barchive\.([a-z]\w*)", sources["archive.npzfile"])
    asked = {*names} & {*dir(OpenedArchive)}
    assert {"read", "load_all", "fill", "split_keys", "streams", "one_file"} <= asked
    assert asked <= {*dir(ShardedContents), "path", "state"}
    for name in asked:
        one, many = getattr(OpenedArchive, name), getattr(ShardedContents, name, None)
        if inspect.isfunction(one):
            taken = inspect.signature(many).parameters
            assert inspect.signature(one).parameters.keys() <= taken.keys(), name
    public = {name for name in vars(npzkit.ShardedFile) if not name.startswith("_")}
    assert public == {"path", "parts"}
    with npzkit.open(folder) as npz:
        assert isinstance(npz, npzkit.NpzFile)
        np.testing.assert_array_equal(npz.f.w, whole)
        np.testing.assert_array_equal(npz.get("w.npy"), whole)
        np.testing.assert_array_equal(npz.join("w"), whole)
        assert npz.get("nothing") is None
        assert npz.fid is None


def test_summary_repr_and_html_name_the_arrays(folder):
    """The summary, the repr and the table of a notebook are as of one file."""
    with npzkit.open(folder) as npz:
        assert "w        (7, 6)  float32  168 B  stored in 4 parts" in npz.summary()
        assert repr(npz) == f"ShardedFile {str(folder)!r} with keys: w, layer/0, layer/1"
        assert "layer/1" in npz._repr_html_()
        assert "(7, 6)" in npz.lazy("w")._repr_html_()
    assert "closed" in npz._repr_html_()


@pytest.mark.remedy(
    "Open one of its shards, or convert it: npzkit.convert(folder, 'all.npz').",
    "Read it, or parts of it with npz.lazy(key).",
)
def test_what_needs_one_file_is_refused(folder, whole, tmp_path):
    """A sharded archive has no ZipFile, cannot be repacked, and says what to do."""
    with npzkit.open(folder) as npz:
        for call in (lambda: npz.zip, lambda: npzkit.NpzFile(npz), lambda: npz.memmap("w")):
            with pytest.raises(UnsupportedError):
                call()
        np.testing.assert_array_equal(npz["w"], whole)
        np.testing.assert_array_equal(npz.lazy("w")[2:5], whole[2:5])
    npzkit.convert(folder, tmp_path / "all.npz")
    for path in (*folder.glob("shard-*.npz"), tmp_path / "all.npz"):
        with npzkit.open(path) as npz:
            assert npz.zip.namelist()
            assert npz.memmap("w").shape[1] in {4, 6}


def test_a_complete_stored_array_is_mapped(folder):
    """An array that is one stored part can be mapped, read-only."""
    with npzkit.open(folder, mmap_mode="r") as npz:
        assert isinstance(npz["layer/1"], np.memmap)
        with pytest.raises(UnsupportedError, match="cannot be changed"):
            npz.memmap("layer/1", "r+")


def test_read_fills_memory_that_is_given(folder, whole):
    """`read(out=)` fills an array of any layout, and refuses one of another shape."""
    with npzkit.open(folder) as npz:
        for out in (
            np.empty_like(whole),
            np.empty(whole.shape, "f4", "F"),
            np.empty((14, 12), "f4")[::2, ::2],
        ):
            assert npz.read("w", out) is out
            np.testing.assert_array_equal(out, whole)
        with pytest.raises(ValueError, match="out must have shape"):
            npz.read("w", np.empty((7, 5), "f4"))


def test_parts_are_read_into_the_array_itself(tmp_path, monkeypatch):
    """Parts of complete rows are read into the result, not copied there."""
    with npzkit.ShardedWriter(tmp_path) as w:
        for row in (0, 2):
            w.add("w", np.full((2, 3), row), (row, 0), (4, 3))
        w.commit()
    found = []
    fill = OpenedArchive.fill
    monkeypatch.setattr(
        OpenedArchive, "fill",
        lambda self, outs, *rest, **kw: found.extend(outs.values()) or fill(self, outs, *rest, **kw),
    )  # fmt: skip
    with npzkit.open(tmp_path) as npz:
        array = npz.load_all()["w"]
    assert all(out.base is array and out.flags.c_contiguous for out in found)
    assert len(found) == 2


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_every_kind_of_array_comes_back(tmp_path, arrays, compression):
    """All dtypes and orders survive, in one part and in several."""
    with npzkit.ShardedWriter(tmp_path, compression=compression) as w:
        for key, array in arrays.items():
            w[key] = array
            array = np.asarray(array)
            if array.ndim:
                middle = len(array) // 2
                behind = (middle, *[0] * (array.ndim - 1))
                w.add(f"cut/{key}", array[:middle], [0] * array.ndim, array.shape)
                w.add(f"cut/{key}", array[middle:], behind, array.shape)
        w.commit()
    with npzkit.open(tmp_path) as npz:
        found = npz.load_all()
        for key, array in arrays.items():
            for name in (key, f"cut/{key}"):
                if name in npz:
                    for again in (
                        found[name],
                        npz[name],
                        npz.lazy(name)[...],
                        np.load(io.BytesIO(npz.stream(name).read())),
                    ):
                        np.testing.assert_array_equal(again, array, strict=True)
        assert npz.info("fortran").fortran_order
        assert found["cut/empty"].shape == (0, 3)


def test_bfloat16_comes_back(tmp_path):
    """A dtype that NPY cannot name is restored, also of parts."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(6).astype(ml_dtypes.bfloat16)
    with npzkit.ShardedWriter(tmp_path) as w:
        w.add("b", array[:2], [0], [6])
        w.add("b", array[2:], [2], [6])
        w.commit()
    with npzkit.open(tmp_path) as npz:
        for found in (npz["b"], npz.lazy("b")[:], npz.load_all()["b"]):
            np.testing.assert_array_equal(found, array, strict=True)
        assert npz.info("b").dtype == array.dtype


def test_only_shards_that_an_index_touches_are_opened(folder, whole):
    """Rows of the first shard are read while the second is gone."""
    second = max(folder.glob("shard-*.npz"), key=lambda path: "layer/1" in loaded(path))
    second.unlink()
    with npzkit.open(folder) as npz:
        np.testing.assert_array_equal(npz.lazy("w")[:3], whole[:3])
        with pytest.raises(MissingShardError, match=second.name):
            npz.lazy("w")[2:4]
        with pytest.raises(MissingShardError, match=second.name):
            npz.load_all()


def test_few_shards_are_open_at_a_time(tmp_path, monkeypatch):
    """An archive of many shards is read with few files open."""
    monkeypatch.setattr(reopened, "_FILE_COUNT", 3)
    with npzkit.ShardedWriter(tmp_path, shard_size=1) as w:
        for row in range(12):
            w.add("w", np.full((1, 2), row), (row, 0), (12, 2))
        w.commit()
    assert len(list(tmp_path.glob("shard-*.npz"))) == 12
    with npzkit.open(tmp_path) as npz:
        for _ in range(2):
            np.testing.assert_array_equal(npz["w"][:, 0], range(12))
            np.testing.assert_array_equal(npz.lazy("w")[:, 1], range(12))
        assert sum(number in npz._archive._shards for number in range(12)) <= 3


@pytest.mark.remedy("Open it again.")
def test_closing_it_ends_reading(folder, whole):
    """After `close`, nothing can be read until it is opened again; closing again does nothing."""
    npz = npzkit.open(folder)
    lazy = npz.lazy("w")
    npz.close()
    npz.close()
    for call in (
        lambda: npz["w"],
        npz.load_all,
        lambda: lazy[0],
        npz.verify,
        lambda: npz.info("w"),
    ):
        with pytest.raises(ClosedArchiveError):
            call()
    with npzkit.open(folder) as npz:
        np.testing.assert_array_equal(npz["w"], whole)


def test_threads_and_forked_children_share_it(folder, whole):
    """Several threads and, where the system forks, a forked child read from one open archive."""
    with npzkit.open(folder) as npz:
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _: npz["w"], range(8)):
                np.testing.assert_array_equal(found, whole)
        if not hasattr(os, "fork"):
            return
        with forked(lambda pipe: os.write(pipe, npz["w"].tobytes())) as (_, pipe):
            assert read_rest(pipe) == whole.tobytes()


def test_a_missing_key_is_suggested(folder):
    """An unknown key names a similar one."""
    with (
        npzkit.open(folder) as npz,
        pytest.raises(MemberNotFoundError, match="Did you mean 'layer/"),
    ):
        npz["layer/O"]


def test_limits_hold_for_the_archive(folder):
    """More arrays or bytes than the limits allow are refused when it is opened."""
    for limits in ({"member_count": 2}, {"total_size": 100}, {"member_size": 20}):
        with pytest.raises(LimitExceededError):
            npzkit.open(folder, limits=npzkit.Limits(**limits))


# -- the archive is replaced, or damaged ------------------------------------------------------


@replaces_open_files
@pytest.mark.remedy("Open it again.")
def test_a_replaced_archive_is_stale_and_never_mixed(folder, whole):
    """A reader of the old archive gets its data from open shards, and an error for others."""
    old, other = npzkit.open(folder), npzkit.open(folder)
    np.testing.assert_array_equal(other["w"], whole)
    write_run(folder, whole + 1, "a2")
    with pytest.raises(StaleArchiveError, match="replaced or removed since it was opened"):
        old["w"]
    np.testing.assert_array_equal(other["w"], whole)
    with npzkit.open(folder) as npz:
        np.testing.assert_array_equal(npz["w"], whole + 1)


@pytest.mark.remedy("Restore it from a copy, or write the archive again.")
@pytest.mark.parametrize("way", ["restore", "write"])
def test_a_shard_that_does_not_exist(folder, whole, way):
    """Its arrays are read when it is there again, or when the archive was written again."""
    path = sorted(folder.glob("s*.npz"))[0]
    data = path.read_bytes()
    path.unlink()
    with npzkit.open(folder) as npz, pytest.raises(MissingShardError, match=path.name):
        npz["w"]
    if way == "restore":
        path.write_bytes(data)
    else:
        write_run(folder, whole, "a2")
    with npzkit.open(folder) as npz:
        np.testing.assert_array_equal(npz["w"], whole)
        assert npz.verify().ok


@pytest.mark.remedy("Restore the file, or write the archive again.")
def test_a_shard_of_another_attempt_is_stale(folder, whole, tmp_path):
    """A shard that was replaced by one of another attempt is refused, until it is restored."""
    other = write_run(tmp_path / "other", whole + 1)
    kept = {path: path.read_bytes() for path in folder.glob("s*.npz")}
    for mine, theirs in zip(
        sorted(folder.glob("s*.npz")), sorted(other.glob("s*.npz")), strict=True
    ):
        mine.write_bytes(theirs.read_bytes())
    with npzkit.open(folder) as npz:
        with pytest.raises(StaleArchiveError, match="was replaced since the index was written"):
            npz["w"]
        report = npz.verify()
        assert not report.ok
        assert "was replaced" in report.rows[0].what
    for path, data in kept.items():
        path.write_bytes(data)
    with npzkit.open(folder) as npz:
        np.testing.assert_array_equal(npz["w"], whole)


def test_a_pickle_of_an_older_archive_is_refused(folder, whole):
    """What was pickled is opened again only if the index is the same."""
    with npzkit.open(folder) as npz:
        data = pickle.dumps(npz)
    write_run(folder, whole, "a2")
    with pytest.raises(StaleArchiveError, match="since the archive was pickled"):
        len(pickle.loads(data))


def test_damaged_data_is_noticed(folder, whole):
    """A wrong bit in a part is a ChecksumError for reads, and a row of the report."""
    path = sorted(folder.glob("s*.npz"))[0]
    with npzkit.open(path) as shard:
        offset = shard.info("w").data_offset
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    with npzkit.open(folder) as npz:
        for call in (lambda: npz["w"], npz.load_all, lambda: npz.stream("w").read()):
            with pytest.raises(ChecksumError):
                call()
        assert (npz.read("w", verify=False) != whole).sum() == 1
        report = npz.verify(["w"])
        assert [row.key for row in report.rows if row.severity == "error"] == ["w"]
        assert path.name in report.rows[0].what
        assert npz.verify(["layer/0", "layer/1"]).ok


def test_a_sound_archive_is_found_sound(folder):
    """`verify` checks every part, and reports progress up to the end."""
    seen = []
    report = npzkit.verify(folder, progress=lambda done, total: seen.append((done, total)))
    assert report.ok
    assert (report.member_count, report.path) == (3, str(folder))
    assert seen[-1] == (208, 208)
    assert npzkit.verify(folder / "index.npz", ["w"]).ok


def test_verify_compares_the_index_with_the_shards(folder):
    """A CRC-32 in the index that is not that of the part is reported."""
    index = index_of(folder)
    index["parts"]["crc32"][0] ^= 1
    write_index(folder, index)
    report = npzkit.verify(folder)
    assert "CRC-32 is not that of the index" in report.rows[0].what


def test_folders_without_an_index_are_not_archives(tmp_path):
    """A folder and a missing path raise what opening a file would."""
    with pytest.raises(OSError, match=r"no index\.npz in the folder"):
        npzkit.open(tmp_path)
    with pytest.raises(FileNotFoundError):
        npzkit.open(tmp_path / "index.npz")
    with pytest.raises(FileNotFoundError):
        npzkit.open(tmp_path / "nothing")


# -- other functions ---------------------------------------------------------------------------


def test_a_folder_that_may_not_be_entered(folder, monkeypatch):
    """The error names the folder: nobody knows what is in it."""
    stat = os.stat

    def refused(path, *arguments, **options):
        if str(path).endswith("index.npz"):
            raise PermissionError(13, "Permission denied", path)
        return stat(path, *arguments, **options)

    for is_entered in (True, False):
        with monkeypatch.context() as patched, pytest.raises(PermissionError) as caught:
            patched.setattr(os, "stat", refused)
            patched.setattr(os, "access", lambda path, mode, found=is_entered: found)
            npzkit.open(folder)
        assert os.path.basename(caught.value.filename) == (
            "index.npz" if is_entered else folder.name
        )


def test_functions_take_the_folder(folder, whole, tmp_path):
    """convert, extract, pack, diff, statistics and load_tree read a sharded archive."""
    one = tmp_path / "one.npz"
    npzkit.convert(folder, one)
    with npzkit.open(one) as npz:
        np.testing.assert_array_equal(npz["w"], whole)
        assert npz.info("w").attrs == {"unit": "m"}
        assert npz.metadata["step"] == 7
    assert npzkit.diff(folder, one).equal
    npzkit.extract(folder, tmp_path / "out")
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "w.npy"), whole)
    npzkit.pack(tmp_path / "packed.npz", [("run", folder)])
    np.testing.assert_array_equal(loaded(tmp_path / "packed.npz")["run/w"], whole)
    assert npzkit.statistics(folder, "w").mean == whole.mean()
    np.testing.assert_array_equal(npzkit.load_tree(folder)["layer"]["1"], [1, 1, 1])


def test_large_arrays_are_converted_in_pieces(tmp_path, monkeypatch):
    """An array larger than a block is checked, and read part by part, in both orders."""
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 1000)
    monkeypatch.setattr(sharded_array.ShardedArray, "_chunk_size", 256)
    array = np.arange(2400.0).reshape(8, 20, 15)
    with npzkit.ShardedWriter(tmp_path / "run") as w:
        for key, order in (("c", "C"), ("f", "F")):
            for at in (0, 12):
                part = np.array(array[:, at : at + 12 - at // 3], order=order)[:, : 20 - at]
                w.add(key, np.array(part, order=order), (0, at, 0), array.shape)
        w.commit()
    npzkit.convert(tmp_path / "run", tmp_path / "one.npz")
    found = loaded(tmp_path / "one.npz")
    with npzkit.open(tmp_path / "run") as npz:
        for key in "cf":
            np.testing.assert_array_equal(found[key], array)
            np.testing.assert_array_equal(np.load(io.BytesIO(npz.stream(key).read())), array)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux lists the files that are open")
def test_a_shard_that_was_replaced_is_closed(folder):
    """The file of a shard that is not the index's is closed at once, also while the error lives."""
    for name in index_of(folder)["shards"]["name"]:
        npzkit.save(folder / name, {"w": np.zeros(3)})
    count = len(os.listdir("/proc/self/fd"))
    with npzkit.open(folder) as npz:
        with pytest.raises(StaleArchiveError) as caught:
            npz.load_all()
        assert len(os.listdir("/proc/self/fd")) == count
    assert caught.value.path


def test_a_stream_keeps_its_shard_open(tmp_path, monkeypatch):
    """A shard is closed when others are read, but not while somebody reads a stream of it."""
    monkeypatch.setattr(reopened, "_FILE_COUNT", 1)
    folder = tmp_path / "run"
    with npzkit.ShardedWriter(folder, shard_size=1_000_000) as writer:
        for number in range(3):
            writer.add(f"k{number}", np.full(200_000, float(number)))
    writer.commit()
    with npzkit.open(folder) as npz:
        stream = npz.stream("k0")
        assert stream.read(100)
        for key in ("k1", "k2", "k1"):
            np.testing.assert_array_equal(npz[key][:2], float(key[1]))
        assert len(stream.read()) == 200_000 * 8 + 128 - 100


def test_a_stream_that_failed_has_no_end():
    """After an error of one piece, a stream raises it again: it is not taken for complete."""

    def pieces():
        yield memoryview(b"abc")
        raise ChecksumError("damaged")

    stream = io.BufferedReader(sharded_contents.PartsStream(pieces()), 3)
    assert stream.read(3) == b"abc"
    for _ in range(2):
        with pytest.raises(ChecksumError, match="damaged"):
            stream.read(1)


def test_other_metadata_are_another_index(folder):
    """A pickled archive is not opened again if its metadata alone have changed, at the same size."""
    with npzkit.open(folder) as npz:
        pickled = pickle.dumps(npz)
    with pickle.loads(pickled) as npz:
        assert npz.metadata == {"step": 7}
    npzkit.ShardedWriter(folder, attempt="a1", metadata={"step": 8}).commit()
    with pytest.raises(StaleArchiveError, match="changed since"):
        len(pickle.loads(pickled))


@pytest.mark.remedy("names missing and damaged shards.")
def test_repair_takes_no_sharded_archive(folder, whole, tmp_path):
    """Neither the folder nor its index is repaired; the error says what saves the arrays."""
    for path in folder, folder / "index.npz", str(folder):
        for output in None, tmp_path / "a.npz":
            with pytest.raises(npzkit.errors.UnsupportedError, match="sharded archive") as caught:
                npzkit.repair(path, output)
    assert not (tmp_path / "a.npz").exists()
    steps = re.findall(r"npzkit\.(?:verify|extract)\(.*?\)", caught.value.remedy)
    report, extracted = (
        eval(step.replace("'arrays'", repr(str(tmp_path / "arrays")))) for step in steps
    )
    assert report.ok
    assert not extracted.failed
    np.testing.assert_array_equal(np.load(tmp_path / "arrays" / "w.npy"), whole)


def test_the_sound_arrays_of_a_damaged_folder_are_saved(tmp_path, monkeypatch):
    """What the error of repair says to call leaves out the damaged ones."""
    monkeypatch.chdir(tmp_path)
    with npzkit.ShardedWriter("run") as writer:
        writer["a"], writer["b"] = np.arange(1000, dtype="i8"), np.arange(5)
    (shard,) = (tmp_path / "run").glob("shard-*")
    shard.write_bytes(shard.read_bytes().replace(np.arange(7, dtype="i8").tobytes(), bytes(56)))
    with pytest.raises(npzkit.errors.UnsupportedError) as caught:
        npzkit.repair("run")
    report = eval(re.search(r"npzkit\.extract\(.*?\)", caught.value.remedy)[0])
    assert (list(report.files), list(report.failed)) == (["b"], ["a"])


def test_arrays_of_a_missing_shard_are_named(tmp_path):
    """verify of some arrays names those that are concerned, and diff calls them problems."""
    for name in "ab":
        for values in ({"x": np.arange(9), "y": np.ones(2)}, {"z": np.arange(7)}):
            with npzkit.ShardedWriter(tmp_path / name, mode="a") as writer:
                writer.update(values)
    with npzkit.open(tmp_path / "b") as npz:
        (part,) = npz.parts("z")
    (tmp_path / "b" / part.shard).unlink()
    report = npzkit.diff(tmp_path / "a", tmp_path / "b")
    assert ([problem.key for problem in report.problems], report.equal) == (["z"], False)
    with npzkit.open(tmp_path / "b") as npz:
        assert [row.key for row in npz.verify(["x", "z"]).rows] == ["z"]
        assert [row.key for row in npz.verify().rows] == [None]


@pytest.mark.remedy("Restore index.npz from a copy")
def test_a_damaged_index(tmp_path):
    """The error names what helps: a copy of the index, or the shards, which can be read alone."""
    folder = write_run(tmp_path / "run")
    index = tmp_path / "run" / "index.npz"
    whole = index.read_bytes()
    index.write_bytes(whole[:100] + bytes([whole[100] ^ 255]) + whole[101:])
    for place in (folder, index):
        with pytest.raises(FormatError, match=r"Restore index\.npz from a copy"):
            npzkit.open(place)
    for shard in tmp_path.glob("run/shard-*.npz"):
        assert npzkit.verify(shard).ok
    index.write_bytes(whole)
    assert npzkit.verify(folder).ok
