"""What the commands use of the library, as a user calls it."""

from __future__ import annotations

import io

import npzkit
import numpy as np
import pytest
from npzkit.analysis.statistics import ArrayPart
from npzkit.files.urls import default_storage_options
from npzkit.stores.received_bytes import receiving
from range_server import RangeServer

from tables import each_row


def content(save=npzkit.save, **arrays):
    """Return the bytes of an archive."""
    stream = io.BytesIO()
    arrays = arrays or {"x": np.arange(3)}
    save(stream, arrays) if save is npzkit.save else save(stream, **arrays)
    return stream.getvalue()


@pytest.mark.parametrize("write", [npzkit.repack, npzkit.repair])
def test_another_file_is_replaced_only_if_that_is_wanted(tmp_path, write):
    """What is already at the new path stays, unless `overwrite` is true."""
    old, new = tmp_path / "old.npz", tmp_path / "new.npz"
    old.write_bytes(content())
    new.write_bytes(b"other")
    with pytest.raises(FileExistsError):
        write(old, new)
    assert new.read_bytes() == b"other"
    write(old, new, overwrite=True)
    with npzkit.open(new) as npz:
        assert npz["x"].tolist() == [0, 1, 2]
    write(old, tmp_path / "third.npz")


def test_an_object_in_a_store_is_replaced_only_if_that_is_wanted(tmp_path):
    """The same for URLs."""
    pytest.importorskip("fsspec")
    url = "memory://commands/new.npz"
    (tmp_path / "old.npz").write_bytes(content())
    npzkit.repack(tmp_path / "old.npz", url)
    for write in (npzkit.repack, npzkit.repair):
        with pytest.raises(FileExistsError):
            write(tmp_path / "old.npz", url)
        write(tmp_path / "old.npz", url, overwrite=True)


@pytest.mark.parametrize(("kind", "expected"), [("npy", None), ("csv", b"0\n1\n2\n")])
def test_one_array_is_extracted_to_a_file_object(kind, expected):
    """It gets what the file would have; other numbers of arrays are refused."""
    out = io.BytesIO()
    npzkit.extract(content(), out, format=kind)
    if expected is None:
        assert np.load(io.BytesIO(out.getvalue())).tolist() == [0, 1, 2]
    else:
        assert out.getvalue() == expected
    for keys in ([], ["x", "y"]):
        with pytest.raises(ValueError, match=f"takes one array, and {len(keys)} are wanted"):
            npzkit.extract(content(x=1, y=2), out, keys)


class Pipe(io.BytesIO):
    """A file object that zipfile takes for a pipe."""

    def seek(self, *arguments):
        raise io.UnsupportedOperation

    tell = seek


def test_the_size_of_the_file(tmp_path):
    """It is that of the file or the folder."""
    data = content()
    with npzkit.open(data) as npz:
        assert npz.file_size == len(data)
    with npzkit.ShardedWriter(tmp_path / "many", attempt="a1") as writer:
        writer.add("x", np.arange(3))
    writer.commit()
    with npzkit.open(tmp_path / "many") as npz:
        assert npz.file_size == sum(path.stat().st_size for path in (tmp_path / "many").iterdir())
    with pytest.raises(npzkit.errors.ClosedArchiveError):
        _ = npz.file_size


def test_bytes_and_options_of_urls():
    """`receiving` counts in its block, and `default_storage_options` is for its block."""
    with RangeServer().running() as server:
        url = server.put(content())
        with (
            receiving() as reception,
            default_storage_options({"headers": {"X": "1"}}),
        ):
            npzkit.open(url).close()
        assert 0 < reception.received <= reception.size
        assert server.requests[0].headers["x"] == "1"
        received = reception.received
        npzkit.open(url).close()
        assert reception.received == received
        assert "x" not in server.requests[-1].headers


def test_parts_of_an_array():
    """Shape and size are known before anything is read; a field, and new axes, are taken."""
    table = np.zeros(5, [("a", "i4"), ("b", "f8", 2)])
    with npzkit.open(content(t=table)) as npz:
        part = ArrayPart(npz.lazy("t"), np.s_[None, 1:], "b")
        assert (part.shape, part.field_shape, part.nbytes) == ((4,), (2,), 4 * table.itemsize)
        assert part.read().shape == (4, 2)
        with pytest.raises(IndexError):
            ArrayPart(npz.lazy("t"), 5)


@each_row(
    "read",
    [
        npzkit.verify, npzkit.load_tree,
        lambda url, **options: npzkit.diff(url, io.BytesIO(content()), **options),
        lambda url, **options: npzkit.statistics(url, "x", **options),
        lambda url, **options: npzkit.extract(url, "out", **options),
        lambda url, **options: npzkit.convert(url, "out.npz", **options),
        lambda url, **options: npzkit.pack("out.npz", [url], **options),
        lambda url, **options: (npzkit.save("a.npz", {}), npzkit.add("a.npz", [url], **options)),
        lambda url, **options: npzkit.repack(url, "out.npz", **options),
        lambda url, **options: npzkit.repair(url, "out.npz", **options),
    ],
)  # fmt: skip
def test_what_reads_a_url_takes_its_storage_options(tmp_path, monkeypatch, read):
    """Each function that opens an archive passes them to the store: here, a header."""
    monkeypatch.chdir(tmp_path)
    with RangeServer().running() as server:
        url = server.put(content())
        read(url, storage_options={"headers": {"Token": "t1"}})
        assert {request.headers.get("token") for request in server.requests} == {"t1"}
