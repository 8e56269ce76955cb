"""Maps that are written through: the archive stays right."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import subprocess
import sys
import threading
import warnings
import zipfile

import forge
import npzkit
import npzkit.reading.map_flush
import numpy as np
import pytest
from crash import recorded, replay
from deep import amount
from faults import descriptor_count
from npzkit.errors import (
    ArchiveLockedError,
    ChecksumError,
    NotMappableError,
    StaleArchiveError,
    UnsupportedError,
)
from npzkit.files.locking import lock_path
from systems import replaces_open_files

ROUNDS = min(amount(1, 50), 500)
"""Times that threads and processes flush one array together."""


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


@pytest.mark.remedy(
    'The archive has maps of mode "r+". If the array was changed through one, call npz.flush() '
    "first."
)
def test_flushing_a_writable_map_renews_the_crc(path):
    """What was written is in the file after flush, and every reader accepts it."""
    with npzkit.open(path) as npz:
        mapped = npz.memmap("a1", mode="r+")
        before = npz.info("a1").crc32
        mapped[3] = -1
        with pytest.raises(ChecksumError, match=r"npz\.flush\(\)"):
            npz["a1"]
        npz.flush()
        assert is_sound(path)
        assert npz["a1"][3] == npz.load_all()["a1"][3] == npz.lazy("a1")[3] == -1
        assert npz.info("a1").crc32 != before
        mapped[4:6].flush()
        mapped[10:12][:] = -2
        mapped.flush()
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


@pytest.mark.slow
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


@pytest.mark.remedy("Open it with mode 'r+b', or open the archive by its path.")
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
    with npzkit.open(path) as npz:
        assert npz.memmap("a1", "r+")[0] == 77


def test_a_file_object_without_a_name_is_mapped(path):
    """A file that was opened by its descriptor has no path, and is locked by the descriptor."""
    with open(os.open(path, os.O_RDWR), "r+b") as file, npzkit.open(file) as npz:
        mapped = npz.memmap("a1", "r+")
        mapped[0] = 77
        mapped.flush()
        assert is_sound(path)


def test_a_file_object_without_a_name_waits_for_a_writer(path):
    """A flush by the descriptor waits for the lock of another as long as one by the path."""
    with open(os.open(path, os.O_RDWR), "r+b") as file, npzkit.open(file) as npz:
        mapped = npz.memmap("a1", "r+")
        mapped[0] = 77
        lock = lock_path(str(path), 0)
        threading.Timer(0.2, lock.close).start()
        mapped.flush()
    assert is_sound(path)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_and_its_parent_flush_by_turns(path, monkeypatch):
    """A flush locks the file itself: the descriptor's lock is the same one in a forked child."""
    monkeypatch.setattr("npzkit.reading.map_flush._TIMEOUT", 0.05)
    begun, going_on = os.pipe(), os.pipe()
    real = npzkit.reading.map_flush.chunk_crc32s

    def crc32s(data, size):
        os.write(begun[1], b"1")
        os.read(going_on[0], 1)
        return real(data, size)

    with npzkit.open(path) as npz:
        mapped = npz.memmap("a1", "r+")
        child = os.fork()
        if not child:
            status = 1
            try:
                npzkit.reading.map_flush.chunk_crc32s = crc32s
                mapped[0] = 5
                mapped.flush()
                status = 0
            finally:
                os._exit(status)
        os.read(begun[0], 1)
        mapped[1] = 6
        try:
            with pytest.raises(ArchiveLockedError):
                mapped.flush()
        finally:
            os.write(going_on[1], b"1")
            status = os.waitpid(child, 0)[1]
        assert status == 0
        mapped.flush()
    for end in (*begun, *going_on):
        os.close(end)
    assert is_sound(path)
    assert np.load(path)["a1"][:2].tolist() == [5, 6]


@pytest.mark.remedy("Open it again; what was written through the map is only in the old file.")
@replaces_open_files
def test_a_replaced_file_is_not_written(path):
    """Where the path leads elsewhere by now, neither file is touched."""
    with npzkit.open(path) as npz:
        npzkit.save(path, {"a1": np.zeros(3)})
        with pytest.raises(StaleArchiveError):
            npz.memmap("a1", "r+")
    with npzkit.open(path) as npz:
        npz.memmap("a1", "r+")[0] = 5
    assert is_sound(path)
    assert np.load(path)["a1"].tolist() == [5, 0, 0]


@pytest.mark.parametrize("mode", ["r", "c", "r+"])
def test_a_file_that_was_cut_is_not_mapped(path, mode):
    """Pages behind its end would kill the process; the error names file and key."""
    with npzkit.open(path) as npz:
        os.truncate(path, 1000)
        with pytest.raises(StaleArchiveError) as caught:
            npz.memmap("a1", mode)
    assert (caught.value.path, caught.value.key) == (str(path), "a1")


@pytest.mark.remedy("npzkit.repack(path) writes it before the data; or map with mode='c'.")
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
        with pytest.raises(UnsupportedError, match="after its data") as caught:
            npz.memmap("x", "r+")
        assert caught.value.remedy
        # Its traceback keeps the file open.
        del caught
        changed = npz.memmap("x", "c")
        changed[0] = 5
        assert changed.tolist() == [5, 1, 2, 3]
        del changed
    npzkit.repack(path)
    with npzkit.open(path) as npz:
        npz.memmap("x", "r+")[0] = 6
    assert np.load(path)["x"].tolist() == [6, 1, 2, 3]


@pytest.mark.slow
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
    with pytest.warns(npzkit.errors.TornArchiveWarning):
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


@replaces_open_files
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
    mapped._mmap.track(lambda *changed: None, 0, 0)


def test_many_maps_cost_little_each(tmp_path, monkeypatch):
    """Flushing many maps walks the directory once, not once for each."""
    path = tmp_path / "a.npz"
    # Python keeps a file open for each map, and a system may allow 64.
    npzkit.save(path, {f"a{i}": np.zeros(3) for i in range(40)})
    walks = []
    real = npzkit.reading.map_flush.read_directory
    monkeypatch.setattr(
        npzkit.reading.map_flush,
        "read_directory",
        lambda *a, **k: (walks.append(1), real(*a, **k))[1],
    )
    with npzkit.open(path) as npz:
        maps = [npz.memmap(key, "r+") for key in npz]
        for number, mapped in enumerate(maps):
            mapped[:] = number
        npz.flush()
        assert len(walks) == 1
        assert npz["a39"].tolist() == [39] * 3
    assert is_sound(path)


@replaces_open_files
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


# -- several flushes of one member --------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("handles", [1, 2])
def test_two_maps_of_one_array(path, handles):
    """The CRC follows the last flush, also where that puts back what was there at first."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(npzkit.open(path)) for _ in range(handles)]
        first, second = opened[0].memmap("a1", "r+"), opened[-1].memmap("a1", "r+")
        for mapped, value in [(first, 70), (second, 4), (first, 71), (second, 4), (first, 4)]:
            mapped[3] = value
            mapped.flush()
            assert is_sound(path)
        first[3], second[4] = 72, 73
        second.flush()
        assert is_sound(path)
        assert opened[-1]["a1"][2:5].tolist() == [3, 72, 73]
    assert is_sound(path)


def test_a_flush_tells_of_those_by_others(path):
    """Once its own map is flushed, an archive reads what another handle's flush changed."""
    with npzkit.open(path) as one, npzkit.open(path) as other:
        mine, theirs = one.memmap("a1", "r+"), other.memmap("a2", "r+")
        theirs[0] = 55
        other.flush()
        mine[0] = 44
        one.flush()
        assert one["a2"][0] == one.load_all()["a2"][0] == 55
        assert one["a1"][0] == 44


def test_an_archive_opened_before_an_append_says_that_it_is_old(path):
    """What others flushed by a newer directory is no damage: the archive is to be opened again."""
    with npzkit.open(path) as old:
        with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
            w["new"] = np.arange(3)
        with npzkit.open(path) as new:
            new.memmap("a1", "r+")[0] = 9
            gc.collect()
        assert is_sound(path)
        for read in (lambda: old["a1"], lambda: old.load_all(["a1"])):
            with pytest.raises(StaleArchiveError, match="changed through a map"):
                read()
        assert old["a0"][0] == 0
        assert old.read("a1", verify=False)[0] == 9


def test_threads_flush_maps_of_one_array(path):
    """Threads that each flush a map of their own leave the CRC of all that they wrote."""
    with npzkit.open(path) as npz:

        def work(number):
            mapped = npz.memmap("a1", "r+")
            start.wait()
            for turn in range(ROUNDS):
                mapped[number * 500 + turn] = turn + number
                mapped.flush()

        start = threading.Barrier(4)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert is_sound(path)
        assert npz["a1"][::500].tolist() == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("mapping", ["mapped before the fork", "mapped in each"])
def test_processes_flush_their_own_elements(path, mapping):
    """Whichever process flushes last, the CRC is that of all elements."""
    for turn in range(ROUNDS):
        receiving, sending = os.pipe()
        with npzkit.open(path) as npz:
            mapped = npz.memmap("a1", "r+") if mapping == "mapped before the fork" else None
            children = []
            for number in range(3):
                child = os.fork()
                if not child:
                    status = 1
                    with contextlib.suppress(BaseException):
                        os.close(sending)
                        own = npzkit.open(path).memmap("a1", "r+") if mapped is None else mapped
                        os.read(receiving, 1)
                        for step in range(5):
                            own[number * 600 + step] = turn + number + step
                            own.flush()
                        status = 0
                    os._exit(status)
                children.append(child)
            os.close(sending)
            assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
            os.close(receiving)
            # Before this process's own flush.
            assert is_sound(path)
    assert np.load(path)["a1"][[4, 604, 1204]].tolist() == [turn + 4, turn + 5, turn + 6]


def test_a_flushed_map_outlives_its_member(path):
    """Where nothing was changed since the last flush, a map of a removed array has nothing to say."""
    with npzkit.open(path) as npz:
        mapped, other = npz.memmap("a1", "r+"), npz.memmap("a1", "r+")
        mapped[0] = 9
        mapped.flush()
        with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
            del w["a1"]
        mapped.flush()
        other.flush()
        npz.flush()
        del mapped, other
    assert is_sound(path)


@pytest.mark.remedy("Its changes are in the file, but not listed. Open the archive again.")
def test_a_flush_that_fails_keeps_no_other_from_its_own(path):
    """Where one array's flush is an error, those of the others are made all the same."""
    with npzkit.open(path) as npz:
        maps = [npz.memmap(key, "r+") for key in ("a0", "a1", "a2")]
        with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
            del w["a1"]
        for mapped in maps:
            mapped[0] = 9
        with pytest.raises(StaleArchiveError, match="no longer where it was mapped"):
            npz.flush()
        assert is_sound(path)
        with npzkit.open(path) as found:
            assert found["a0"][0] == found["a2"][0] == 9
        maps[1]._mmap.track(lambda *changed: None, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["chunk_crc32s", "read_directory"])
def test_a_map_dropped_within_a_flush(path, monkeypatch, call):
    """Python may drop one archive's map while another's is flushed: neither waits for the other."""
    monkeypatch.setattr("npzkit.reading.map_flush._TIMEOUT", 0.0)
    with npzkit.open(path) as one, npzkit.open(path) as other:
        first, others = one.memmap("a1", "r+"), [other.memmap("a2", "r+")]
        first[0], others[0][0] = 5, 6
        real = getattr(npzkit.reading.map_flush, call)

        def dropping(*args, **options):
            others.clear()
            return real(*args, **options)

        monkeypatch.setattr(npzkit.reading.map_flush, call, dropping)
        first.flush()
        assert is_sound(path)
        assert np.load(path)["a2"][0] == 6


def test_a_map_that_changed_nothing_waits_for_no_writer(path, monkeypatch):
    """A flush that has nothing to write is done, and another one waits, while a writer is at work."""
    monkeypatch.setattr("npzkit.reading.map_flush._TIMEOUT", 0.05)
    with npzkit.open(path) as npz:
        mapped, unchanged = npz.memmap("a1", "r+"), npz.memmap("a2", "r+")
        with npzkit.NpzWriter(path, "a") as w:
            w["new"] = np.arange(3)
            unchanged.flush()
            del unchanged
            mapped[0] = 7
            with pytest.raises(ArchiveLockedError):
                mapped.flush()
        mapped.flush()
    assert is_sound(path)
    assert np.load(path)["a1"][0] == 7


# -- flushes that were killed ---------------------------------------------------------------


def halves(path, edit, key="a1"):
    """Yield each state of the file that a kill within the flush of a changed map leaves."""
    with npzkit.open(path) as npz:
        mapped = npz.memmap(key, "r+")
        if edit:
            with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
                w["new"] = np.arange(3)
        mapped[3] = -1
        with recorded(path.parent) as recorder:
            mapped.flush()
        del mapped
    before = recorder.contents[recorder.names[str(path)]]
    calls = [call for call in recorder.calls if call.kind == "write"]
    for count in range(len(calls) + 1):
        yield count, replay(before, calls[:count])


@pytest.mark.slow
@pytest.mark.remedy("If the flush of a map was interrupted, npzkit.repair(path) completes it")
@pytest.mark.parametrize("edit", [False, True])
def test_a_kill_within_a_flush(path, edit):
    """Unchecked reads, maps and info go on; a checked read says what to do; repair completes it."""
    expected = np.arange(2000.0) + 1
    expected[3] = -1
    states = list(halves(path, edit))
    assert len(states) == 3 + edit
    for count, data in states:
        path.write_bytes(data)
        with npzkit.open(path) as npz:
            is_half = count == 1
            if count < 2:
                with pytest.raises(ChecksumError) as caught:
                    npz["a1"]
                assert ("npzkit.repair(path)" in str(caught.value)) == is_half
                with pytest.raises(ChecksumError, match="chunk 1 of 1"):
                    npz.lazy("a1")[3]
            else:
                assert npz.lazy("a1")[3] == -1
            assert npz.lazy("a1", verify=False)[3] == -1
            assert np.array_equal(npz.read("a1", verify=False), expected)
            assert np.array_equal(npz.memmap("a1"), expected)
            assert npz.info("a1").why_not_mappable is None
        found = npzkit.verify(path)
        assert found.ok == (count >= 2)
        assert any("npzkit.repair(path)" in row.what for row in found.rows) == is_half
        report = npzkit.repair(path)
        assert report.sealed == report.uncertain == (("a1",) if is_half else ())
        assert ("a1" in str(report)) == is_half
        assert report.lost == ()
        if count:
            assert is_sound(path)
            assert npzkit.verify(path).ok
            with npzkit.open(path) as npz:
                assert np.array_equal(npz["a1"], expected)
        else:
            # Nothing tells a change that was never flushed from damage.
            assert path.read_bytes() == data


@pytest.mark.slow
def test_a_flush_completes_what_a_killed_one_left(path):
    """Whoever maps the array again and flushes it needs no repair."""
    for _, data in halves(path, edit=False):
        path.write_bytes(data)
        with npzkit.open(path) as npz:
            npz.memmap("a1", "r+").flush()
            assert npz["a1"][3] == -1
        assert is_sound(path)


@pytest.mark.slow
def test_a_kill_within_a_flush_beside_a_killed_append(path, monkeypatch):
    """Both copies of the directory get the CRC; repair cuts one off, and completes the flush."""
    monkeypatch.setattr("npzkit.files.path_sink._DIRECT_SIZE", 1)
    first = path.read_bytes()
    with recorded(path.parent) as recorder, npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w["new"] = np.arange(3)
    calls = [call for call in recorder.calls if call.kind in ("write", "truncate")]
    path.write_bytes(replay(first, calls[:-3]))
    with pytest.warns(npzkit.errors.TornArchiveWarning):
        states = list(halves(path, edit=False))
    # The local header, both entries.
    assert len(states) == 4
    path.write_bytes(states[-1][1])
    assert is_sound(path)
    for count, data in states:
        path.write_bytes(data)
        report = npzkit.repair(path)
        assert report.cut_size == len(data) - len(first)
        assert report.sealed == (("a1",) if count == 1 else ())
        assert is_sound(path) == (count > 0)


def test_what_has_no_right_crc_is_not_sealed(path):
    """Data that is neither header's is left as it is, and reported: it may be damage."""
    data = bytearray(list(halves(path, edit=False))[1][1])
    with npzkit.open(path) as npz:
        offset = npz.info("a1").data_offset
    data[offset + 999] ^= 4
    path.write_bytes(data)
    report = npzkit.repair(path)
    assert path.read_bytes() == data
    assert report.sealed == ()
    assert [lost.key for lost in report.lost] == ["a1"]
    assert "neither" in report.lost[0].what
    assert any("neither" in row.what for row in npzkit.verify(path).rows)


@pytest.mark.parametrize("descriptor", [None, "signed"])
@pytest.mark.parametrize("method", [0, 8])
def test_only_what_a_flush_can_change_is_sealed(tmp_path, method, descriptor):
    """The two CRCs of a compressed member, or of one with a descriptor, are no unfinished flush."""
    data, path = forge.npy(np.arange(3.0)), tmp_path / "a.npz"
    local = {} if descriptor else {"crc": 5}
    member = forge.Member("x.npy", data, method=method, descriptor=descriptor, local=local)
    path.write_bytes(forge.archive(member))
    before = path.read_bytes()
    is_flush = method == 0 and descriptor is None
    report = npzkit.repair(path)
    assert report.sealed == (("x",) if is_flush else ())
    assert (path.read_bytes() == before) == (not is_flush)
    assert report.lost == ()


@pytest.mark.slow
def test_an_order_that_the_disk_chose(path):
    """A machine that lost power may have the entry's CRC alone: repair completes that too."""
    (_, first), _, (_, last) = halves(path, edit=False)
    changed = [place for place in range(len(first)) if first[place] != last[place]]
    data = bytearray(last)
    with npzkit.open(path) as npz:
        start = npz.archive_info().directory_offset
    for place in changed:
        if place < start:
            data[place] = first[place]
    path.write_bytes(data)
    assert npzkit.repair(path).sealed == ("a1",)
    assert path.read_bytes() == last


# -- files with holes -----------------------------------------------------------------------

X = np.zeros(60_000)
X[30_000:30_010] = 5


@pytest.fixture
def sparse(tmp_path):
    """An archive whose zeros are holes of the file, as programs copy files."""
    path = tmp_path / "sparse.npz"
    npzkit.save(path, {"x": X, "y": np.arange(3)})
    data = path.read_bytes()
    with open(path, "wb") as file:
        for offset in range(0, len(data), 4096):
            block = data[offset : offset + 4096]
            if any(block):
                file.seek(offset)
                file.write(block)
        file.truncate(len(data))
    if not hasattr(os, "SEEK_HOLE") or path.stat().st_blocks * 512 >= X.nbytes:
        pytest.skip("files have no holes here")
    return path


@pytest.mark.parametrize("lacking", [False, True])
@pytest.mark.parametrize("by_path", [True, False])
def test_holes_are_filled_before_they_are_mapped(sparse, monkeypatch, by_path, lacking):
    """A map that is written through has its room on disk; other maps change nothing."""
    data = sparse.read_bytes()
    if lacking:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    with open(sparse, "r+b") as file, npzkit.open(sparse if by_path else file) as npz:
        for mode in ("r", "c"):
            npz.memmap("x", mode)
        assert sparse.stat().st_blocks * 512 < X.nbytes
        mapped = npz.memmap("x", "r+")
        assert sparse.stat().st_blocks * 512 >= X.nbytes
        assert sparse.read_bytes() == data
        mapped[7] = 6
        npz.flush()
        assert npz["x"][7] == 6
    assert is_sound(sparse)


def test_holes_on_a_full_disk(sparse, monkeypatch):
    """Where holes cannot be filled the map is refused by the system's error, and nothing changes."""
    data = sparse.read_bytes()

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with npzkit.open(sparse) as npz:
        monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
        with pytest.raises(OSError, match="No space"):
            npz.memmap("x", "r+")
        assert np.array_equal(npz["x"], X)
    assert sparse.read_bytes() == data


def test_filling_holes_leaves_a_file_object_where_it_stands(sparse):
    """Looking for holes moves no caller's file object."""
    with open(sparse, "r+b", buffering=0) as file, npzkit.open(file) as npz:
        position = file.tell()
        npz.memmap("x", "r+")
        assert file.tell() == position
