"""An archive that is uploaded: parts, their number in memory, faults, and what is visible."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Mapping

import npzkit
import numpy as np
import pytest
from archives import packed
from npzkit.errors import ClosedArchiveError, UnsupportedError
from npzkit.stores import retries, upload_sink
from npzkit.stores.retries import TransientError
from npzkit.stores.upload_sink import UploadSink
from npzkit.zip import member_writer
from uploads import RecordedUpload

from tables import each_row

ARRAYS = {f"k{i}": np.random.default_rng(i).normal(size=(40, 50)) for i in range(6)}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts of 5,000 bytes, and no delay before a request is made again."""
    monkeypatch.setattr(upload_sink, "PART_SIZE", 5000)
    monkeypatch.setattr(member_writer, "_KEPT_SIZE", 1000)
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.0)


def save(upload, arrays=ARRAYS, **options):
    npzkit.save(UploadSink(upload), arrays, **options)


# -- parts --------------------------------------------------------------------


def test_a_small_archive_is_one_request():
    """What fits into one part is put at once; from four arrays on, its bytes are those of a file."""
    upload = RecordedUpload()
    arrays = dict.fromkeys("abcd", np.arange(5))
    save(upload, arrays)
    assert upload.calls == ["put"]
    assert upload.object == packed(arrays)


@pytest.mark.parametrize("has_any_order", [True, False])
@pytest.mark.parametrize("compression", ["stored", "deflated", "zstd"])
def test_a_large_archive_is_parts(compression, has_any_order):
    """All parts but the last have the same size; together they are the bytes of a file."""
    upload = RecordedUpload(has_any_order=has_any_order)
    save(upload, compression=compression, chunk_size=4096)
    assert upload.object == packed(ARRAYS, compression=compression, chunk_size=4096)
    *full, last = [upload.sizes[number] for number in sorted(upload.sizes)]
    assert set(full) == {5000}
    assert 0 < last <= 5000
    assert upload.calls[0] == "begin"
    assert upload.calls[-1] == "complete"
    assert upload.calls.count("send") == len(upload.sizes)


def test_an_archive_without_arrays():
    """It is an object of an end record."""
    upload = RecordedUpload()
    save(upload, {})
    assert npzkit.open(upload.object).files == []


@pytest.mark.slow
@each_row("part_size", [7, 100, 5000])
@each_row("compression", ["stored", "deflated", "zstd"])
def test_arrays_that_grow(monkeypatch, compression, part_size):
    """The part with a header waits until the header is final, wherever parts begin."""
    monkeypatch.setattr(upload_sink, "PART_SIZE", part_size)
    monkeypatch.setattr(upload_sink, "GROWTH", 100_000)
    rows = np.random.default_rng(0).integers(0, 99, (60, 20))
    upload, stream = RecordedUpload(), io.BytesIO()
    for target in (UploadSink(upload), stream):
        with npzkit.NpzWriter(target, compression=compression, chunk_size=4096) as writer:
            writer["a"] = np.arange(10)
            for key, length in (("log", None), ("more", None)):
                with writer.create(key, (length, 20), rows.dtype) as out:
                    for start in range(0, 60, 7):
                        out.append(rows[start : start + 7])
            writer["b"] = np.arange(9)
    assert upload.object == stream.getvalue()
    np.testing.assert_array_equal(npzkit.open(upload.object)["log"], rows)
    if part_size == 7:
        # They are sent as soon as they can be, not at the end.
        assert upload.order != sorted(upload.order)


def test_parts_grow(monkeypatch):
    """5 TiB fit into the 10,000 parts of S3, each between 5 MiB and 5 GiB."""
    monkeypatch.undo()
    sizes = [upload_sink.PART_SIZE << number // upload_sink.GROWTH for number in range(10_000)]
    assert sum(sizes) >= 5 << 40
    assert min(sizes) >= 5 << 20
    assert max(sizes) <= 5 << 30


def test_sizes_of_parts(monkeypatch):
    """Each size is used for some parts, then doubled."""
    monkeypatch.setattr(upload_sink, "GROWTH", 3)
    upload = RecordedUpload()
    save(upload)
    sizes = [upload.sizes[number] for number in sorted(upload.sizes)]
    assert sizes[:7] == [5000, 5000, 5000, 10_000, 10_000, 10_000, 20_000]
    assert upload.object == packed(ARRAYS)


def test_few_parts_are_in_memory():
    """However large the archive is, and however slow the store."""
    made = []

    def fault(number, name):
        if name == "send":
            made.append(sink._open.number - len(upload.order))

    upload = RecordedUpload(fault)
    sink = UploadSink(upload)
    npzkit.save(sink, {"x": np.zeros(100_000)})
    assert len(upload.sizes) > 100
    assert max(made) <= 3 * upload_sink.THREADS + 2
    assert 1 <= upload.most_under_way <= upload_sink.THREADS


def test_large_parts_are_two_in_memory(monkeypatch):
    """One is sent while the next one is made."""
    monkeypatch.setattr(upload_sink, "_LARGE_SIZE", 4000)
    upload = RecordedUpload()
    save(upload)
    assert upload.most_under_way == 1
    assert upload.object == packed(ARRAYS)


class OneByOne(Mapping):
    """Arrays that exist while they are written."""

    def __getitem__(self, key):
        return np.full(1 << 17, int(key))

    def __iter__(self):
        return map(str, range(16))

    def __len__(self):
        return 16


class Forgetful(RecordedUpload):
    """An upload that keeps nothing."""

    def send(self, number, data):
        super().send(number, data)
        self.parts.clear()

    def complete(self):
        self._call("complete")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"compression": "deflated", "level": 0, "threads": 1}])
def test_memory_is_bounded(monkeypatch, options):
    """16 MiB take the memory of an array and of some parts."""
    monkeypatch.setattr(upload_sink, "PART_SIZE", 1 << 16)
    upload = Forgetful()
    gc.collect()
    tracemalloc.start()
    try:
        npzkit.save(UploadSink(upload), OneByOne(), **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(upload.sizes.values()) > 1 << 24
    assert peak < 5 << 20


# -- faults -------------------------------------------------------------------


def faulty(number, error):
    """Fail at one request."""

    def fault(count, name):
        if count == number:
            raise error

    return fault


def request_count():
    upload = RecordedUpload()
    save(upload)
    return len(upload.calls)


@each_row("error", [OSError("lost"), PermissionError("no"), KeyboardInterrupt()])
@each_row("number", [1, 2, 11, -1])
def test_a_failure_leaves_nothing(number, error):
    """Whichever request fails, no object is visible, and the parts are removed."""
    number = number % (request_count() + 1)
    upload = RecordedUpload(faulty(number, error))
    before = sys._current_frames().keys()
    with pytest.raises(type(error)) as caught:
        save(upload)
    assert upload.object is None
    assert upload.calls[-1] == "abort"
    assert not upload.parts
    assert "the archive was discarded" in caught.value.__notes__[0]
    # Those of other tests may end meanwhile.
    assert sys._current_frames().keys() <= before
    if number < request_count() - 1:
        assert upload.is_stopped


@pytest.mark.parametrize("number", [1, 2, 11, -1])
def test_a_failure_that_passes(number):
    """The request is made again, and the archive is complete."""
    number = number % (request_count() + 1)
    upload = RecordedUpload(faulty(number, TransientError("slow down")))
    save(upload)
    assert upload.object == packed(ARRAYS)
    assert "abort" not in upload.calls


def test_a_failure_that_stays():
    """After four attempts it is an OSError that names URL and part."""

    def fault(number, name):
        if name == "send":
            raise TransientError("slow down")

    upload = RecordedUpload(fault)
    with pytest.raises(OSError, match=r"fake://bucket/a.npz, part \d+: failed after 4 .*slow down"):
        save(upload)
    assert upload.object is None


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
@pytest.mark.parametrize("size", [10, 100_000])
def test_an_exception_in_the_block(size, error):
    """Nothing is visible; parts that were sent are removed."""
    upload = RecordedUpload()
    with pytest.raises(type(error)), npzkit.NpzWriter(UploadSink(upload)) as writer:
        writer["a"] = np.zeros(size)
        raise error
    assert upload.object is None
    assert not upload.parts
    assert upload.calls[-1:] == (["abort"] if size > 10 else [])


def test_parts_that_cannot_be_removed():
    """The error says that nothing is visible, and who removes them."""

    def fault(number, name):
        if name in ("abort", "complete"):
            raise ConnectionError("gone")

    upload = RecordedUpload(fault)
    with pytest.raises(OSError, match="failed after 4") as caught:
        save(upload)
    (note,) = caught.value.__notes__
    assert "No archive is visible; the next upload to this name removes the parts" in note


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_lost_answer_to_the_last_request(size):
    """If the object is there all the same, it is saved; after an interrupt, a note says so."""

    class Lost(RecordedUpload):
        def _make(self, data):
            super()._make(data)
            raise error

    for error in (OSError("connection lost"), KeyboardInterrupt()):
        upload = Lost()
        if error.args:
            save(upload, {"x": np.zeros(size)})
        else:
            with pytest.raises(KeyboardInterrupt) as caught:
                save(upload, {"x": np.zeros(size)})
            assert "what was written is in its place" in caught.value.__notes__[0]
        assert "abort" not in upload.calls
        assert npzkit.open(upload.object)["x"].size == size


def test_an_object_that_exists():
    """It is found before anything is sent, and again when the upload is completed."""
    upload = RecordedUpload(older=None)
    upload.object = b"other"
    with pytest.raises(FileExistsError, match="already exists"):
        UploadSink(upload)
    upload.object = None
    for arrays in (ARRAYS, {"x": np.zeros(3)}):
        sink = UploadSink(upload)
        with pytest.raises(FileExistsError), npzkit.NpzWriter(sink) as writer:
            for key, array in arrays.items():
                writer[key] = array
            upload.object = b"other"
        assert upload.object == b"other"
        assert not upload.parts
        upload.object = None


def test_a_writer_that_is_dropped():
    """Its parts are removed when it is collected."""
    upload = RecordedUpload()
    writer = npzkit.NpzWriter(UploadSink(upload))
    writer["a"] = np.zeros(10_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del writer
        gc.collect()
    assert upload.calls[-1] == "abort"
    assert not upload.parts


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child():
    """A child that drops its copy of the writer does not end the upload of its parent."""
    upload = RecordedUpload()
    with npzkit.NpzWriter(UploadSink(upload)) as writer:
        writer["a"] = np.zeros(1000)
        child = os.fork()
        if not child:
            signal.alarm(20)  # a child that hangs is killed
            writer.abort()
            os._exit(upload.calls.count("abort"))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        writer["b"] = np.zeros(1000)
    assert npzkit.open(upload.object).verify().ok


# -- what needs written bytes again -------------------------------------------


def test_what_is_refused():
    """Nothing is sent, and the writer can go on."""
    upload = RecordedUpload()
    with npzkit.NpzWriter(UploadSink(upload)) as writer:
        with pytest.raises(UnsupportedError, match="committed once"):
            writer.commit()
        with pytest.raises(UnsupportedError, match="Write the archive to a path"):
            writer.create("x", (3, 4), "f8", fortran_order=True)
        writer["a"] = np.arange(3)
        with pytest.raises(UnsupportedError):
            writer.rename("a", "b")
        assert not upload.calls
    assert npzkit.open(upload.object).files == ["a"]


def test_arrays_that_grow_in_order_only():
    """A store that takes parts in their order needs the number of rows."""
    upload = RecordedUpload(has_any_order=False)
    with npzkit.NpzWriter(UploadSink(upload), compression="deflated") as writer:
        with pytest.raises(UnsupportedError, match="Write the archive to a path"):
            writer.create("x", (None, 4), "f8")
        with writer.create("x", (3, 4), "f8") as out:
            out.append(np.ones((3, 4)))
    assert npzkit.open(upload.object)["x"].sum() == 12


def test_arrays_that_are_replaced_and_removed():
    """They are left out of the directory; their bytes stay in the object."""
    upload = RecordedUpload()
    with npzkit.NpzWriter(UploadSink(upload)) as writer:
        writer["a"] = np.zeros(1000)
        writer["b"] = np.ones(1000)
        writer.add("a", np.arange(3), overwrite=True)
        del writer["b"]
        writer.metadata["step"] = 1
    npz = npzkit.open(upload.object)
    assert npz.files == ["a"]
    assert npz["a"].tolist() == [0, 1, 2]
    assert npz.metadata["step"] == 1


def test_a_complete_upload_takes_nothing():
    """Neither does one that was given up."""
    sink = UploadSink(RecordedUpload())
    sink.commit(b"1234")
    with pytest.raises(ClosedArchiveError):
        sink.write(b"5")
    sink = UploadSink(RecordedUpload())
    sink.write(bytes(6000))
    with pytest.raises(UnsupportedError, match="cannot be changed"):
        sink.patch(10, b"x")
    with pytest.raises(UnsupportedError, match="cannot be read back"):
        sink.readinto_at(0, memoryview(bytearray(3)))
    sink.abort()
    sink.abort()
    with pytest.raises(ClosedArchiveError):
        sink.write(b"5")


class Blocked(RecordedUpload):
    """A store that answers no more until nobody waits for it."""

    def __init__(self):
        super().__init__()
        self.ended = threading.Event()

    def send(self, number, data):
        super().send(number, data)
        if number == 3:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert self.ended.wait(30)

    def stop(self):
        super().stop()
        self.ended.set()


@pytest.mark.skipif(
    not hasattr(signal, "pthread_kill"), reason="the system sends no signals to threads"
)
def test_an_interrupt_ends_requests_that_are_under_way(interrupts):
    """It does not wait for a store that does not answer."""
    upload = Blocked()
    with pytest.raises(KeyboardInterrupt):
        save(upload)
    assert upload.is_stopped
    assert upload.object is None
    assert upload.calls[-1] == "abort"
