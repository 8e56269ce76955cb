"""Inputs to begin with: the small fixtures, and archives that are made on the fly."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import npzkit
import numpy as np
from check_http import http_seeds
from check_zstd import zstd_seeds
from forge import Member, archive, npy, with_chunks, with_metadata
from plain_writer import append, append_in_room

__all__ = ["FINDINGS", "seeds_of"]

FOLDER = Path(__file__).parent.parent.parent / "fixtures"
FINDINGS = FOLDER / "fuzz"
"""What violated the oracle once, by target."""
_LARGEST = 4096
"""Bytes of the largest fixture that is taken: small inputs run often."""


def _arrays() -> dict[str, np.ndarray]:
    record = np.zeros(3, [("id", "<i4"), ("pos", "<f8", (2,)), ("tag", "S3")])
    record["id"] = [1, 2, 3]
    return {
        "x": np.arange(6, dtype="<i4").reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6, dtype="<f4").reshape(3, 2)),
        "big": np.arange(3, dtype=">i8"),
        "empty": np.zeros((0, 3)),
        "scalar": np.float64(2.5),
        "text": np.array(["a", "bcd"]),
        "bytes": np.array([b"a", b"bcd"]),
        "when": np.arange("2020-01", "2020-04", dtype="M8[M]"),
        "record": record,
        "none": np.zeros(3, "S0"),
    }


def npy_seeds() -> list[bytes]:
    """Return NPY files of every kind, the fixture of Python 2 among them."""
    files = [npy(array) for array in _arrays().values()]
    for version in ((2, 0), (3, 0)):
        stream = io.BytesIO()
        np.lib.format.write_array(stream, np.arange(3.0), version)
        files.append(stream.getvalue())
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([1, None], object))
    files.append(stream.getvalue())
    files.append((FOLDER / "python2_long.npy").read_bytes())
    return files


def _own(**options: object) -> bytes:
    stream = io.BytesIO()
    npzkit.save(stream, _arrays(), **options)
    return stream.getvalue()


def _nested() -> bytes:
    """A tree of lists, dicts and values, with arrays in parts."""
    strings = np.array(["ä", "", None], np.dtypes.StringDType(na_object=None))
    tree = {
        "layer": {"w": np.eye(2), "name": "dense", "none": {}},
        "steps": [None, (np.arange(2), 1.5)],
        "rate": 0.5,
        "names": ("a", "b"),
        "masked": np.ma.array([1.5, 2], mask=[0, 1], fill_value=-1),
        "text": strings,
    }
    stream = io.BytesIO()
    npzkit.save(stream, tree, masked="split", strings="split")
    return stream.getvalue()


class _Pipe:
    """A stream that cannot seek, so that zipfile writes descriptors."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> int:
        self.data += data
        return len(data)

    def flush(self) -> None:
        pass


def _by_zipfile() -> list[bytes]:
    found = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        pipe = _Pipe()
        stream = io.BytesIO()
        for target in (stream, pipe):
            with zipfile.ZipFile(target, "w", method) as z:
                z.comment = b"not JSON"
                for key in ("x", "scalar"):
                    with z.open(
                        zipfile.ZipInfo(key + ".npy"), "w", force_zip64=target is pipe
                    ) as member:
                        member.write(npy(_arrays()[key]))
                z.writestr(zipfile.ZipInfo("readme.txt"), b"a note")
                z.writestr(zipfile.ZipInfo("größe/"), b"")
        found += [stream.getvalue(), pipe.data]
    return found


def _appended() -> list[bytes]:
    """Archives of two commits, and such whose second one is torn or edits the first."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.arange(5), "y": np.ones(2)}, metadata={"step": 1})
    once = stream.getvalue()
    with npzkit.NpzWriter(stream, "a", auto_repack=False) as w:
        w.add("z", np.arange(40.0), compression="deflated", attrs={"unit": "m", "n": [1, 2]})
        w.commit()
        w.add("x", np.arange(3), overwrite=True)
        del w["y"]
    twice = stream.getvalue()
    junk = struct.pack("<4sHHHHLLH", b"\0\0\0\0", 0, 0, 2, 2, 92, len(once), 0)
    torn = [twice, twice[:-1], twice[:-30], twice[: len(once) + 100], once + junk, once + once]
    return [*torn, *_begun(once), *_begun(twice)]


def _begun(data: bytes) -> list[bytes]:
    """Return an archive as it is while an array is appended to it, in both ways."""
    added = {"new.npy": (npy(np.arange(3)), b"")}, b'{"step":2}'
    return [*append(data, *added)[:-1], *append_in_room(data, *added, room=200)[:-1]]


def _with_array_index() -> list[bytes]:
    """Archives with an array index, of one commit, of two, and of every kind of member."""
    arrays = {f"layer.{i}": np.full((2, 3), i, "f4") for i in range(4)}
    stream, deflated = io.BytesIO(), io.BytesIO()
    npzkit.save(stream, arrays)
    once = stream.getvalue()
    with npzkit.NpzWriter(stream, "a", auto_repack=False) as w:
        w["new"] = np.arange(3)
        w.add("layer.1", np.eye(2), overwrite=True)
    with npzkit.NpzWriter(deflated, compression="deflated", chunk_size=4096) as w:
        w["big"] = np.tile((np.arange(6000) // 7 % 11).astype("u1"), 2)
        w.add("x", np.arange(3), attrs={"unit": "m"})
        w["records"] = np.zeros(2, [("a", "i4"), ("b", "S3")])
        w["empty"] = np.zeros((0, 4))
    return [once, stream.getvalue(), deflated.getvalue()]


def _indexed() -> list[bytes]:
    """Members with lists of chunks, npzkit's and forged ones."""
    big, own = (np.arange(6000) // 7 % 11).astype("u1").reshape(600, 10), []
    for compression in ("deflated", "zstd"):
        stream = io.BytesIO()
        with npzkit.NpzWriter(stream, compression=compression, chunk_size=4096) as w:
            w["big"] = np.tile(big, (2, 1))
            w["x"] = np.arange(3)
        own.append(stream.getvalue())
    data = npy(np.zeros(3000, "u1"))
    chunked = [with_chunks(name, data, size) for name, size in (("a.npy", 1024), ("d/a.npy", 2048))]
    return [*own, *chunked, with_metadata(b'{"step": 1}')]


def archive_seeds() -> list[bytes]:
    """Return small archives by many programs, and of every state."""
    try:
        import ml_dtypes
    except ImportError:
        extension = []
    else:
        stream = io.BytesIO()
        npzkit.save(stream, {"half": np.ones(3, ml_dtypes.bfloat16), "y": np.zeros(2)})
        extension = [stream.getvalue()]
    mini = npy(np.arange(4, dtype="u1"))
    forged = [
        archive(Member("a.npy", mini), Member("b.npy", mini, method=8)),
        archive(
            Member("a.npy", mini, descriptor="signed"),
            Member("b.npy", mini, method=8, descriptor="64"),
        ),
        archive(Member("a.npy", mini), Member("b.npy", mini), zip64=True, comment=b'{"a": [1]}'),
        archive(*[Member(f"m{i}.npy", mini, method=8 * (i % 2)) for i in range(5)], gap=b"gap"),
        archive(Member("a", mini), Member("a.npy", mini), Member("readme.txt", b"hello")),
        archive(Member("a.npy", npy(np.array([1, None], object)))),
        archive(Member("a.npy", mini), Member("a.npy", npy(np.ones(2)))),
        archive(),
    ]
    fixtures = [
        path.read_bytes()
        for path in sorted(FOLDER.glob("*.npz"))
        if path.stat().st_size <= _LARGEST
    ]
    own = [
        _own(),
        _own(compression="deflated"),
        _own(compression="zstd"),
        _own(metadata={"a": [1, None, "ä"]}),
    ]
    return [
        *own,
        _nested(),
        *_by_zipfile(),
        *_appended(),
        *_indexed(),
        *_with_array_index(),
        *extension,
        *forged,
        *fixtures,
    ]


def _numbered(number: int, count: int = 2) -> dict[str, np.ndarray]:
    """Arrays of which no two archives have the same."""
    return {key: np.full(3, 10 * number + i, "u1") for i, key in enumerate("abc"[:count])}


def _committed(count: int, nested: bytes = b"", metadata: dict | None = None) -> bytes:
    """An archive of several commits, the last one with an archive in an array."""
    stream = io.BytesIO()
    npzkit.save(stream, _numbered(count), metadata=metadata)
    for number in range(1, count):
        with npzkit.NpzWriter(stream, "a", auto_repack=False) as w:
            w.add("a", np.full(2, number, "i2"), overwrite=True)
            if nested and number == count - 1:
                w["nested"] = np.frombuffer(nested, "u1")
                w["last"] = np.arange(number)
    return stream.getvalue()


def end_seeds() -> list[bytes]:
    """Return small archives, each with other arrays, by three programs and of several commits."""
    savez, commented, empty = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(savez, **_numbered(5))
    with zipfile.ZipFile(commented, "w") as z:
        z.comment = b"a comment"
        for key, array in _numbered(6, 3).items():
            z.writestr(key + ".npy", npy(array))
    plain = savez.getvalue()
    with npzkit.NpzWriter(savez, "a", auto_repack=False) as w:
        w["c"] = np.arange(4)
    with npzkit.NpzWriter(empty) as w:
        w["a"] = np.arange(2)
        w.commit()
        del w["a"]
    nested = archive(Member("a.npy", npy(np.arange(4, dtype="u1"))))
    own = [_committed(1), _committed(2), _committed(3), _committed(2, nested), _committed(3, plain)]
    return [
        *own, *_begun(own[0]), *_begun(own[2]), *_begun(plain), _committed(2, metadata={"step": 1}), _committed(2, _committed(1)), plain,
        savez.getvalue(), commented.getvalue(), empty.getvalue(), nested, archive(),
        archive(Member("a.npy", npy(np.ones(3, "u1"))), zip64=True, comment=b"{}"),
    ]  # fmt: skip


def seeds_of(target: str) -> tuple[bytes, ...]:
    """Return what a target begins with: its findings, and what is made for it."""
    findings = [path.read_bytes() for path in sorted(FINDINGS.glob(f"{target}-*"))]
    makers = {"npy": npy_seeds, "end": end_seeds, "http": http_seeds, "zstd": zstd_seeds}
    return *makers.get(target, archive_seeds)(), *findings
