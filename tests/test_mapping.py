"""Maps that are written through: the archive stays right."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
import warnings
import zipfile

import forge
import npzkit
import npzkit.zip.reseal
import numpy as np
import pytest
from faults import descriptor_count
from npzkit.errors import ChecksumError, NotMappableError, StaleArchiveError, UnsupportedError


@pytest.fixture(params=[3, 200], ids=["few members", "many members"])
def path(tmp_path, request):
    """An archive whose directory is read one by one, or by columns."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {f"a{i}": np.arange(2000.0) + i for i in range(request.param)})
    return path


def is_sound(path):
    """Whether numpy and zipfile read every member, CRC included."""
    with zipfile.ZipFile(path) as archive, np.load(path) as npz:
        return archive.testzip() is None and all(npz[key].size for key in npz.files)


def test_flushing_a_writable_map_renews_the_crc(path):
    """What was written is in the file after flush, and every reader accepts it."""
    with npzkit.open(path) as npz:
        mapped = npz.memmap("a1", mode="r+")
        before = npz.info("a1").crc32
        mapped[3] = -1
        with pytest.raises(ChecksumError, match=r"npz\.flush\(\)"):
            npz["a1"]
        mapped.flush()
        assert is_sound(path)
        assert npz["a1"][3] == npz.load_all()["a1"][3] == npz.lazy("a1")[3] == -1
        assert npz.info("a1").crc32 != before
        mapped[4:6].flush()
        mapped[10:12][:] = -2
        npz.flush()
        assert is_sound(path)
        assert npz["a1"][9:13].tolist() == [10, -2, -2, 13]


def test_closing_renews_the_crc(path):
    """Closing the archive is enough, and the map stays writable behind it."""
    with npzkit.open(path, mmap_mode="r+") as npz:
        mapped = npz["a2"]
        mapped[:] = 5
    assert is_sound(path)
    mapped[0] = 6
    mapped.flush()
    assert is_sound(path)
    assert np.load(path)["a2"][:2].tolist() == [6, 5]


def test_dropping_the_last_array_renews_the_crc(path):
    """Whoever forgets to flush leaves no member with a wrong CRC."""
    with npzkit.open(path) as npz:
        mapped = npz.memmap("a0", "r+")
        part = mapped[5:7]
        mapped[6] = 8
        del mapped
        gc.collect()
        part[0] = 9
        del part
        gc.collect()
        assert is_sound(path)
        assert npz["a0"][5:7].tolist() == [9, 8]


def test_the_end_of_python_renews_the_crc(path):
    """A script that ends with a map in its hands leaves a sound archive."""
    script = (
        "import npzkit, sys\n"
        "npz = npzkit.open(sys.argv[1]); mapped = npz.memmap('a1', 'r+'); mapped[7] = 3"
    )
    subprocess.run([sys.executable, "-c", script, path], check=True)
    assert is_sound(path)
    assert np.load(path)["a1"][7] == 3


def test_another_programs_member_is_written_through_a_map(tmp_path):
    """np.savez's members, with zip64 fields and unaligned, are mapped for writing too."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(5), y=np.asfortranarray(np.eye(3)))
    with npzkit.open(path) as npz:
        mapped = npz.memmap("y", "r+")
        assert mapped.flags.f_contiguous
        mapped[1] = 4
    assert is_sound(path)
    assert np.load(path)["y"][1].tolist() == [4, 4, 4]


def test_a_file_object_open_for_writing_is_mapped(path):
    """A caller's own file is written where it is open for writing, and refused where not."""
    with open(path, "r+b") as file, npzkit.open(file) as npz:
        npz.memmap("a1", "r+")[0] = 77
    assert is_sound(path)
    with (
        open(path, "rb") as file,
        npzkit.open(file) as npz,
        pytest.raises(NotMappableError, match="open for reading"),
    ):
        npz.memmap("a1", "r+")


def test_a_replaced_file_is_not_written(path):
    """Where the path leads elsewhere by now, neither file is touched."""
    with npzkit.open(path) as npz:
        npzkit.save(path, {"a1": np.zeros(3)})
        with pytest.raises(StaleArchiveError):
            npz.memmap("a1", "r+")
    assert is_sound(path)


@pytest.mark.parametrize("mode", ["r", "c", "r+"])
def test_a_file_that_was_cut_is_not_mapped(path, mode):
    """Pages behind its end would kill the process; the error names file and key."""
    with npzkit.open(path) as npz:
        os.truncate(path, 1000)
        with pytest.raises(StaleArchiveError) as caught:
            npz.memmap("a1", mode)
    assert (caught.value.path, caught.value.key) == (str(path), "a1")


def test_a_crc_behind_the_data_is_left_alone(tmp_path):
    """A member with a data descriptor says how to make it writable."""
    stream = io.BytesIO()
    stream.seek = stream.tell = None

    class Pipe(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            return stream.write(data)

    with zipfile.ZipFile(Pipe(), "w") as archive:
        member = io.BytesIO()
        np.save(member, np.arange(4))
        archive.writestr("x.npy", member.getvalue())
    path = tmp_path / "a.npz"
    path.write_bytes(stream.getvalue())
    with npzkit.open(path) as npz:
        assert npz.memmap("x").tolist() == [0, 1, 2, 3]
        with pytest.raises(UnsupportedError, match="behind its data") as caught:
            npz.memmap("x", "r+")
        assert caught.value.remedy


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_workers_fill_parts_of_one_array(path):
    """Forked workers write through a map, and the parent's flush makes the archive right."""
    with npzkit.open(path) as npz:
        mapped = npz.memmap("a1", "r+")
        for worker in range(4):
            child = os.fork()
            if not child:
                mapped[worker * 500 : (worker + 1) * 500] = worker
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    assert is_sound(path)
    assert np.load(path)["a1"].tolist() == np.repeat(np.arange(4.0), 500).tolist()


def test_an_archive_behind_other_bytes_is_written_through_a_map(path, tmp_path):
    """The CRC goes to the archive that begins where the file object stood."""
    whole = tmp_path / "b.npz"
    whole.write_bytes(path.read_bytes() + path.read_bytes())
    size = path.stat().st_size
    with open(whole, "r+b") as file:
        file.seek(size)
        with npzkit.open(file) as npz:
            mapped = npz.memmap("a1", mode="r+")
            mapped[0] = -1
            mapped.flush()
            assert npz["a1"][0] == -1
            del mapped
    data = whole.read_bytes()
    assert data[:size] == path.read_bytes()
    path.write_bytes(data[size:])
    assert is_sound(path)


def test_a_torn_end_is_warned_of_once(tmp_path):
    """Flushing says nothing that opening has said."""
    path = tmp_path / "torn.npz"
    npzkit.save(path, {"x": np.arange(5.0)})
    path.write_bytes(path.read_bytes() + b"junk")
    with pytest.warns(npzkit.TornArchiveWarning):
        npz = npzkit.open(path)
    with warnings.catch_warnings(), npz:
        warnings.simplefilter("error")
        mapped = npz.memmap("x", "r+")
        mapped[0] = 9
        mapped.flush()
        assert npz["x"][0] == 9


def test_maps_of_several_are_flushed_by_turns(path):
    """Who flushes finds what another one wrote to the headers since, and adds to it."""
    with npzkit.open(path) as one, npzkit.open(path) as other:
        maps = [npz.memmap("a1", "r+") for npz in (one, other)]
        for number in range(4):
            mapped = maps[number % 2]
            mapped[number] = 70 + number
            mapped.flush()
            with npzkit.open(path, strict=True) as npz:
                assert npz["a1"][: number + 1].tolist() == list(range(70, 71 + number))
        del mapped, maps


def test_closing_leaves_no_file_open(path):
    """Once the archive is closed and its maps are gone the file is closed too, whoever has the archive."""
    before = descriptor_count()
    npz = npzkit.open(path)
    mapped = npz.memmap("a1", "r+")
    mapped[0] = 7
    npz.close()
    mapped[1] = 8
    del mapped
    assert descriptor_count() <= before
    assert is_sound(path)


def test_names_of_the_same_bytes_are_told_apart(tmp_path):
    """The CRC goes to the entry whose flags decode the name as it was asked for."""
    path = tmp_path / "a.npz"
    name = "\xfc.npy".encode()
    members = [
        forge.Member(name, forge.npy(np.arange(4.0))),
        forge.Member(name, forge.npy(np.ones(4)), local={"flags": 0}, central={"flags": 0}),
    ]
    path.write_bytes(forge.archive(*members))
    with npzkit.open(path) as npz:
        npz.memmap("\xfc", "r+")[0] = 7
    with npzkit.open(path) as npz:
        assert [array[0] for array in npz.values()] == [7, 1]


def test_a_flush_behind_a_replaced_file_is_no_silent_loss(path):
    """Where another file took the path meanwhile, flushing says that the changes went astray."""
    npz = npzkit.open(path)
    mapped = npz.memmap("a1", "r+")
    mapped[0] = 5
    with pytest.raises(ChecksumError):
        npzkit.repack(path)
    npzkit.save(path, {"a1": np.arange(3)})
    with pytest.raises(StaleArchiveError, match="another file"):
        mapped.flush()
    with pytest.raises(StaleArchiveError, match="another file"):
        npz.close()
    assert is_sound(path)
    mapped._mmap.track(lambda take_crc32: None, 0, 0)


def test_many_maps_cost_little_each(tmp_path, monkeypatch):
    """Flushing hundreds of maps walks the directory once, not once for each."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {f"a{i}": np.zeros(3) for i in range(300)})
    walks = []
    real = npzkit.zip.reseal.read_directory
    monkeypatch.setattr(
        npzkit.zip.reseal, "read_directory", lambda *a, **k: (walks.append(1), real(*a, **k))[1]
    )
    with npzkit.open(path) as npz:
        maps = [npz.memmap(key, "r+") for key in npz]
        for number, mapped in enumerate(maps):
            mapped[:] = number
        npz.flush()
        assert len(walks) == 1
        assert npz["a299"].tolist() == [299] * 3
    assert is_sound(path)


def test_a_map_that_was_not_written_to_outlives_its_file(path):
    """A map whose data is as it was has nothing to say about a file that took the path."""
    npz = npzkit.open(path)
    mapped = npz.memmap("a1", "r+")
    mapped[0] = 5
    mapped.flush()
    npzkit.save(path, {"a1": np.arange(3)})
    mapped.flush()
    npz.close()
    assert mapped[0] == 5
