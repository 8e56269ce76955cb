"""Members of other programs that are inflated in one call, and what that holds in memory."""

from __future__ import annotations

import functools
import io
import time
import tracemalloc
import zipfile

import npzkit
import numpy as np
import pytest
from npzkit.codecs import decompressors, libdeflate
from npzkit.errors import NpzkitError
from npzkit.reading import member

ARRAY = np.random.default_rng(0).integers(0, 50, 1 << 18).cumsum()
"""2 MiB."""


@pytest.fixture(params=["functions", "package", "stream"])
def way(request, monkeypatch):
    """By libdeflate's own functions, by the package around them, and without libdeflate."""
    if request.param != "stream":
        pytest.importorskip("deflate", reason="the package deflate is not installed")
    if request.param != "functions":
        monkeypatch.setattr(libdeflate, "_inflate_function", lambda: None)
    if request.param == "stream":
        monkeypatch.setattr(decompressors, "library", lambda name: None)
    return request.param


@functools.cache
def savez_compressed(count=1):
    """Return an archive by NumPy."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **{f"x{index}": ARRAY + index for index in range(count)})
    return stream.getvalue()


def by_zipfile(npy):
    """Return an archive by zipfile with one deflated member."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x0.npy", npy)
    return stream.getvalue()


@pytest.mark.slow
def test_each_way_returns_the_array(way):
    """Whatever inflates a member, the array is the same, aligned and can be written to."""
    with npzkit.open(savez_compressed()) as npz:
        array = npz["x0"]
    assert np.array_equal(array, ARRAY)
    assert array.dtype == ARRAY.dtype
    assert array.flags.writeable
    assert array.flags.aligned
    array += 1


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_small_member_takes_one_read(size):
    """A small array that NumPy compressed is read together with its headers."""
    stream = Counting()
    array = np.random.default_rng(0).integers(0, 255, size, "u1")
    np.savez_compressed(stream, x=array)
    with npzkit.open(stream) as npz:
        stream.reads = 0
        assert np.array_equal(npz["x"], array)
        assert stream.reads == 1


class Counting(io.BytesIO):
    """A file that counts how often it is read."""

    reads = 0

    def read(self, size=-1):
        self.reads += 1
        return super().read(size)

    def readinto(self, buffer):
        self.reads += 1
        return super().readinto(buffer)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["C", "F"])
def test_each_way_keeps_the_order(way, order):
    """Arrays in Fortran's order and structured ones come back as they were."""
    array = np.asarray(ARRAY.reshape(512, -1), order=order).view([("a", "<i4"), ("b", "<u4")])
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array)
    with npzkit.open(by_zipfile(stream.getvalue())) as npz:
        assert np.array_equal(npz["x0"], array)


@pytest.mark.parametrize("damage", ["stream", "crc", "size"])
def test_each_way_refuses_what_is_damaged(way, damage):
    """A damaged stream, a wrong CRC and a wrong size raise an error that names the member."""
    data = bytearray(savez_compressed())
    entry = data.rindex(b"PK\1\2")
    if damage == "stream":
        data[len(data) // 2] ^= 255
    elif damage == "crc":
        data[14] ^= 1
        data[entry + 16] ^= 1
    else:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            size = file.infolist()[0].file_size
        data = bytearray(
            bytes(data).replace(size.to_bytes(4, "little"), (size - 8).to_bytes(4, "little"))
        )
    with npzkit.open(bytes(data)) as npz, pytest.raises(NpzkitError) as caught:
        npz["x0"]
    assert caught.value.key == "x0"


@pytest.mark.parametrize("change", [-1, 1])
def test_only_a_stream_of_the_right_size_fills_memory(way, change):
    """Memory with one byte less or more than the stream has is not filled."""
    if way == "stream":
        assert decompressors.inflate_whole(memoryview(bytearray(9)), 9, pytest.fail) is None
        return
    with npzkit.open(savez_compressed()) as npz:
        info, full_size = npz.info("x0"), npz.zip.getinfo("x0.npy").file_size
    raw = savez_compressed()[info.data_offset : info.data_offset + info.compressed_size]
    for size, is_right in ((full_size + change, False), (full_size, True)):
        given = memoryview(bytearray(raw)), size, lambda size: np.empty(size, np.uint8).data
        found = decompressors.inflate_whole(*given)
        assert (found is not None) == is_right


@pytest.mark.slow
def test_threads_share_the_room_for_compressed_bytes(way, monkeypatch):
    """Several threads never hold more compressed bytes than one may, and return all arrays."""
    with npzkit.open(savez_compressed(4)) as npz:
        largest = max(npz.info(key).compressed_size for key in npz)
    monkeypatch.setattr(member, "WHOLE_SIZE", largest * 3 // 2)
    real, held, most = member.inflate_whole, [], [0]

    def inflate(data, *given):
        held.append(len(data))
        most[0] = max(most[0], sum(held))
        # Other threads come here meanwhile, if they may.
        time.sleep(0.01)
        try:
            return real(data, *given)
        finally:
            held.pop()

    monkeypatch.setattr(member, "inflate_whole", inflate)
    with npzkit.open(savez_compressed(4)) as npz:
        arrays = npz.load_all(threads=4)
    assert all(np.array_equal(arrays[f"x{index}"], ARRAY + index) for index in range(4))
    assert 0 < most[0] <= largest * 3 // 2


def test_a_member_is_held_once():
    """An array takes its own size and that of its compressed bytes, and no second copy."""
    pytest.importorskip("deflate", reason="the package deflate is not installed")
    data = savez_compressed()
    with npzkit.open(data) as npz:
        npz.info("x0")
        tracemalloc.start()
        try:
            npz["x0"]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 1.05 * (ARRAY.nbytes + len(data))


def test_an_array_with_chunks_is_read_by_them(monkeypatch):
    """A compressed array that has a seek index is never read as one stream."""
    stream = io.BytesIO()
    array = np.random.default_rng(0).integers(0, 9, 3_000_000, "u1")
    npzkit.save(stream, {"x": array}, compression="deflated")

    def fail(*_):
        raise AssertionError("read as a stream")

    monkeypatch.setattr("npzkit.reading.member.MemberReader._read_stream", fail)
    for threads in (1, 2):
        with npzkit.open(stream) as npz:
            assert np.array_equal(npz.read("x", threads=threads), array)


@pytest.mark.slow
def test_members_read_before_leave_the_memory_to_the_next(monkeypatch):
    """Compressed bytes count only while they are held: any number of members is inflated whole."""
    pytest.importorskip("deflate", reason="the package deflate is not installed")
    monkeypatch.setattr("npzkit.reading.member.WHOLE_SIZE", 3 << 20)
    stream = io.BytesIO()
    array = np.random.default_rng(0).integers(0, 9, 2 << 20, "u1")
    np.savez_compressed(stream, x=array)
    with npzkit.open(stream) as npz:
        assert np.array_equal(npz["x"], array)
        monkeypatch.setattr("npzkit.reading.member.MemberReader._read_stream", None)
        for _ in range(5):
            assert np.array_equal(npz["x"], array)


@pytest.mark.parametrize("method", [0, 8, 12, 14])
def test_an_array_is_known_by_its_first_bytes(method):
    """A member without the suffix .npy is an array if it begins like one, however it is packed."""
    stream, member = io.BytesIO(), io.BytesIO()
    np.save(member, np.arange(30))
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("x", member.getvalue())
        archive.writestr("text", b"no array")
    with npzkit.open(stream) as npz:
        assert npz["x"].tolist() == npz.lazy("x")[:].tolist() == list(range(30))
        assert npz.load_all()["x"].tolist() == list(range(30))
        assert npz["text"] == b"no array"
