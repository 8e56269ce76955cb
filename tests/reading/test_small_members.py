"""Many small members read together: the same checks, and the same words, as for one."""

from __future__ import annotations

import io
import itertools
import struct
import warnings

import npzkit
import numpy as np
import pytest
from forge import Member, archive, deflate, header, npy
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import LimitExceededError, NpzkitError
from npzkit.reading import member_headers
from npzkit.reading.member import MemberReader

from tables import each_row

COUNT = 100
X = np.arange(6.0).reshape(2, 3)
DATA = npy(X)
SENTINELS = {"csize": 0xFFFFFFFF, "usize": 0xFFFFFFFF}


def zip64(*sizes: int) -> bytes:
    return struct.pack("<HHQQ", 1, 16, *sizes)


def among_many(*special: Member, place: int = 50) -> bytes:
    """Put members among a hundred good ones of several dtypes and shapes."""
    kinds = ["<f8", "<i2", "|u1", "<f4", "<M8[s]", "<c16", ">i4", "<U2"]
    good = [
        Member(f"good/{'x' * (n % 23)}{n}.npy", npy(np.arange(n % 7 + 1).astype(kinds[n % 8])))
        for n in range(COUNT)
    ]
    return archive(*good[:place], *special, *good[place:])


WRONG = {
    "name": {"local": {"name": b"y.npy"}},
    "name, one byte": {"name": "x" * 17 + ".npy", "local": {"name": b"x" * 16 + b"y.npy"}},
    "name, longer": {"local": {"name": b"x.npyy"}},
    "method": {"local": {"method": 8}},
    "compressed size": {"local": {"csize": 5}},
    "uncompressed size": {"local": {"usize": 5}},
    "both sizes": {"local": {"csize": 5, "usize": 5}},
    "sizes differ": {"central": {"usize": 5}, "local": {"usize": 5}},
    "CRC": {"local": {"crc": 5}},
    "CRC of the data": {"local": {"crc": 5}, "central": {"crc": 5}},
    "encrypted": {"local": {"flags": 1}, "central": {"flags": 1}},
    "flags": {"local": {"flags": 1}},
    "masked": {"local": {"flags": 0x2000}, "central": {"flags": 0x2000}},
    "signature": {"local": {"signature": b"PK\x03\x05"}},
    "disk": {"central": {"disk": 1}},
    "zip64, compressed": {"local": SENTINELS, "local_extra": zip64(len(DATA), 5)},
    "zip64, uncompressed": {"local": SENTINELS, "local_extra": zip64(5, len(DATA))},
    "zip64, missing": {"local": SENTINELS, "local_extra": struct.pack("<HH", 2, 16) + bytes(16)},
    "zip64 by another name": {"local": SENTINELS, "local_extra": b"\2" + zip64(len(DATA), len(DATA))[1:]},
    "zip64, too short": {"local": SENTINELS, "local_extra": struct.pack("<HHQQ", 1, 8, len(DATA), len(DATA))},
    "zip64 inside a block": {"local": SENTINELS, "local_extra": struct.pack("<HH", 9, 20) + zip64(len(DATA), len(DATA))},
    "zip64 behind another, long name": {"local": {**SENTINELS, "name": b"y" * 600}, "local_extra": zip64(len(DATA), len(DATA))},
    "zip64 behind a long name, deflated": {"method": 8, "local": {**SENTINELS, "name": b"y" * 600}, "local_extra": zip64(5, 5)},
    "entry's sizes differ": {"central": {"usize": 5}},
    "long name": {"name": "x" * 1000 + ".npy", "local": {"name": b"x" * 1000 + b".npz"}},
    "extra pushes data over": {"local_extra": struct.pack("<HH", 2, 90) + bytes(90), "raw": DATA[:-94]},
    "no array": {"data": b"no array at all"},
    "nothing": {"data": b""},
    "magic": {"data": b"\x93NUMPX" + DATA[6:]},
    "version": {"data": b"\x93NUMPY\x01\x05" + DATA[8:]},
    "header runs into the next": {"data": DATA[:8] + b"\xc8\0" + DATA[10:]},
    "shorter than a prefix": {"data": DATA[:6] + b"\x02\0\xe9\xff"},
    "header runs over": {"data": DATA[:8] + b"\xff\x01" + DATA[10:]},
    "header": {"data": DATA.replace(b"'shape'", b"'shipe'")},
    "short": {"data": DATA[:-1]},
    "long": {"data": DATA + b"!"},
    "objects": {"data": header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + b"x"},
    "no objects": {"data": header("{'descr': '|O', 'fortran_order': False, 'shape': (0, 3)}")},
}  # fmt: skip


@pytest.mark.slow
@each_row("case", WRONG)
def test_one_bad_member_among_many(case):
    """It is named, with the error that reading it alone raises; all others are read."""
    member = Member(**{"name": "x.npy", "data": DATA, **WRONG[case]})
    with npzkit.open(among_many(member)) as npz:
        key = npz.files[50]
        with pytest.raises(NpzkitError) as alone:
            npz[key]
        with pytest.raises(NpzkitError) as caught:
            npz.load_all()
        assert (type(caught.value), str(caught.value)) == (type(alone.value), str(alone.value))
        assert caught.value.key == key
        others = [other for other in npz.files if other != key]
        found = npz.load_all(others)
        assert list(found) == others
        assert all(np.array_equal(found[other], npz[other]) for other in others)


@each_row("method", [0, 8])
@each_row("case", WRONG)
def test_one_bad_member_among_few(case, method):
    """Next to a few others it raises the error that reading it alone raises."""
    member = Member(**{"name": "x.npy", "data": DATA, **WRONG[case], "method": method})
    with npzkit.open(archive(Member("a.npy", DATA), member, Member("b.npy", DATA))) as npz:
        key = npz.files[1]
        outcomes = []
        for read in (lambda: npz[key], lambda: npz.load_all()[key]):
            try:
                outcomes.append(read().tobytes())
            except NpzkitError as error:
                outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1]


UNUSUAL = {
    "forced zip64": Member("x.npy", DATA, local=SENTINELS, local_extra=zip64(len(DATA), len(DATA))),
    "zip64 behind more": Member(
        "x.npy", DATA, local=SENTINELS,
        local_extra=struct.pack("<HH", 2, 2000) + bytes(2000) + zip64(len(DATA), len(DATA)),
    ),
    "long local extra": Member("x.npy", DATA, local_extra=struct.pack("<HH", 2, 2000) + bytes(2000)),
    "descriptor": Member("x.npy", DATA, descriptor="signed 32"),
    "deflated": Member("x.npy", DATA, method=8),
    "UTF-8": Member("größe.npy", DATA),
    "long name": Member("x" * 3000 + ".npy", DATA),
    "fortran": Member("x.npy", npy(np.asfortranarray(X))),
    "scalar": Member("x.npy", npy(np.float64(3))),
    "empty": Member("x.npy", npy(np.zeros((0, 3)))),
    "no items": Member("x.npy", npy(np.zeros(3, "S0"))),
    "fields": Member("x.npy", npy(np.zeros(3, "i4,f8"))),
    "void": Member("x.npy", npy(np.zeros(3, "V5"))),
    "long header": Member("x.npy", npy(np.zeros(3, [(f"f{n}", "i1") for n in range(99)]))),
    "version 2": Member("x.npy", header("{'descr': '<i4', 'fortran_order': False, 'shape': (1,)}", (2, 0)) + bytes(4)),
    "large": Member("x.npy", npy(np.zeros(100_000))),
    "attributes": Member("x.npy", DATA, extra=struct.pack("<HHL", 0x5455, 4, 9)),
    "no array": Member("note", b"text"),
}  # fmt: skip


@pytest.mark.slow
@each_row("place", [0, 50, COUNT])
@each_row("case", UNUSUAL)
def test_one_unusual_member_among_many(case, place):
    """What the fast way does not know is read as ever, in its place."""
    with npzkit.open(among_many(UNUSUAL[case], place=place)) as npz:
        found = npz.load_all()
        assert list(found) == npz.files
        for key, array in found.items():
            alone = npz[key]
            assert type(array) is type(alone)
            if isinstance(array, np.ndarray):
                assert (array.dtype, array.shape) == (alone.dtype, alone.shape)
                assert array.tobytes() == alone.tobytes()
                assert array.flags.aligned
                assert array.flags.writeable
            else:
                assert array == alone


@pytest.mark.parametrize(
    "case", ["forced zip64", "UTF-8", "long name", "fortran", "scalar", "void", "attributes"]
)
def test_usual_members_go_the_fast_way(case, monkeypatch):
    """None of these is given back to be read alone."""
    with npzkit.open(among_many(UNUSUAL[case])) as npz:
        monkeypatch.setattr("npzkit.reading.load_all._Batch.task", None)
        assert len(npz.load_all()) == COUNT + 1


def test_python_2_is_warned_of():
    """A header with integers of Python 2 is read with its warning."""
    old = header("{'descr': '<i4', 'fortran_order': False, 'shape': (1L,)}") + bytes(4)
    npz = npzkit.open(among_many(Member("x.npy", old)))
    with pytest.warns(UserWarning, match="Python 2"):
        assert npz.load_all()["x"].tolist() == [0]


def test_names_of_fields_are_not_shared():
    """Renaming one array's fields leaves its twin's alone."""
    records = npy(np.zeros(3, "i4,f8"))
    with npzkit.open(among_many(Member("x.npy", records), Member("y.npy", records))) as npz:
        found = npz.load_all()
    found["x"].dtype.names = ("a", "b")
    assert found["y"].dtype.names == ("f0", "f1")


def test_bfloat16_among_many(tmp_path):
    """A dtype that NPY cannot name is restored."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = {f"a{n}": np.full(3, n, ml_dtypes.bfloat16) for n in range(COUNT)}
    npzkit.save(tmp_path / "a.npz", arrays)
    with npzkit.open(tmp_path / "a.npz") as npz:
        found = npz.load_all()
    assert all(found[key].dtype == ml_dtypes.bfloat16 for key in arrays)
    assert all((found[key] == arrays[key]).all() for key in arrays)


def read_by_stream(reader, window, entry, options):
    """Read a member without a window, as one that is special."""
    return reader._read_stream(entry, options)


@given(st.data())
def test_flips_among_many(data):
    """One byte changed anywhere: arrays or error are those of reading one by one."""
    special = Member("x.npy", DATA, extra=struct.pack("<HHL", 9, 4, 9)), shrunk(DATA, name="y.npy")
    changed = bytearray(among_many(*special))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))

    def outcome() -> object:
        try:
            with npzkit.open(bytes(changed)) as npz:
                found = npz.load_all()
        except NpzkitError as error:
            return type(error), str(error)
        return [(k, a.dtype, a.shape, a.tobytes()) if hasattr(a, "dtype") else a for k, a in found.items()]  # fmt: skip

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("ignore")
        fast = outcome()
        patched.setattr("npzkit.zip.directory._COLUMNS_COUNT", 1 << 60)
        patched.setattr(MemberReader, "read_in", read_by_stream)
        assert outcome() == fast


def shrunk(data: bytes, name: str = "x.npy", **kwargs) -> Member:
    return Member(name, data, method=8, **kwargs)


RAW = deflate(DATA)
DEFLATED = {
    "name": shrunk(DATA, local={"name": b"y.npy"}),
    "method": shrunk(DATA, local={"method": 0}),
    "flags": shrunk(DATA, local={"flags": 1}),
    "encrypted": shrunk(DATA, local={"flags": 1}, central={"flags": 1}),
    "CRC": shrunk(DATA, local={"crc": 5}, central={"crc": 5}),
    "signature": shrunk(DATA, local={"signature": b"PK\x03\x05"}),
    "disk": shrunk(DATA, central={"disk": 1}),
    "cut short": shrunk(DATA, raw=RAW[:-3]),
    "bytes behind the stream": shrunk(DATA, raw=RAW + b"!"),
    "no stream": shrunk(DATA, raw=b"\xff" * len(RAW)),
    "longer than declared": shrunk(DATA, raw=deflate(DATA + b"!")),
    "shorter than declared": shrunk(DATA, raw=deflate(DATA[:-1])),
    "empty": shrunk(b""),
    "no array": shrunk(b"text" * 40),
    "objects": shrunk(npy(np.array([None]))),
    "no objects": shrunk(header("{'descr': '|O', 'fortran_order': False, 'shape': (0, 3)}")),
    "bytes behind the array": shrunk(DATA + b"!" * 8),
    "array cut short": shrunk(DATA[:-8]),
    "version": shrunk(DATA[:6] + b"\x04" + DATA[7:]),
    "version 2": shrunk(header("{'descr': '<i4', 'fortran_order': False, 'shape': (1,)}", (2, 0)) + bytes(4)),
    "header too long": shrunk(DATA[:8] + b"\xff\xff" + DATA[10:]),
    "header of rubbish": shrunk(header("{") + bytes(8)),
    "text": Member("x.txt", b"text" * 40, method=8),
    "fortran": shrunk(npy(np.asfortranarray(X))),
    "records": shrunk(npy(np.zeros(3, "i4,f8"))),
    "nothing in it": shrunk(npy(np.zeros((0, 3)))),
    "descriptor": shrunk(DATA, descriptor="signed 32"),
    "zip64": shrunk(DATA, local=SENTINELS, local_extra=zip64(len(DATA), len(RAW))),
    "attributes": shrunk(DATA, extra=struct.pack("<HHL", 9, 4, 9)),
    "encoder's bits": shrunk(DATA, local={"flags": 6}, central={"flags": 6}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@each_row("count", [3, COUNT])
@each_row("case", DEFLATED)
def test_one_odd_deflated_member_among_others(case, count):
    """Small deflated members read together are what each is when it is read alone."""
    others = [Member(f"{n}.npy", npy(np.arange(n + 1)), method=8) for n in range(count)]
    special = DEFLATED[case]

    def outcome(read) -> object:
        try:
            with npzkit.open(archive(*others[:2], special, *others[2:])) as npz:
                found = read(npz)
        except NpzkitError as error:
            return type(error), str(error)
        return (found.dtype, found.shape, found.flags.f_contiguous, found.tobytes()) if hasattr(found, "dtype") else found  # fmt: skip

    key = special.name.decode().removesuffix(".npy")
    assert outcome(lambda npz: npz.load_all()[key]) == outcome(lambda npz: npz[key])


def test_small_deflated_members_are_fresh_and_writable():
    """What is inflated together does not share memory, and can be changed."""
    members = [Member(f"{n}.npy", npy(np.full(3, n)), method=8) for n in range(5)]
    with npzkit.open(archive(*members)) as npz:
        found = npz.load_all(["0", "0.npy", "1", "2"])
    found["0"][:] = 9
    assert [array.tolist() for array in found.values()] == [[9] * 3, [0] * 3, [1] * 3, [2] * 3]


def test_usual_deflated_members_go_the_fast_way(monkeypatch):
    """What numpy and npzkit deflate is not given back to be read alone."""
    for save in (np.savez_compressed, npzkit.savez_compressed):
        stream = io.BytesIO()
        save(stream, **{f"a{n}": np.arange(n + 1.0) for n in range(9)}, f=np.asfortranarray(X))
        stream.seek(0)
        with npzkit.open(stream) as npz, monkeypatch.context() as patched:
            patched.setattr("npzkit.reading.load_all._Batch.task", None)
            assert len(npz.load_all()) == 10


@pytest.mark.parametrize("count", [3, COUNT])
def test_a_member_asked_for_twice(count):
    """Two keys of one member are two arrays, neither of which changes with the other."""
    data = archive(*[Member(f"{n}.npy", npy(np.arange(3, dtype="u1"))) for n in range(count)])
    keys = [f"{n}{end}" for n in range(count) for end in ("", ".npy")]
    found = npzkit.open(data).load_all(keys)
    assert list(found) == keys
    found["1"][:] = 9
    assert all(array.tolist() == [0, 1, 2] for key, array in found.items() if key != "1")


def owner(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_neighbours_share_a_mebibyte_at_most(tmp_path, reverse):
    """However many are loaded, an array keeps no more than its neighbourhood alive."""
    arrays = {f"a{n}": np.full(n * 37 % 7000, n, "u2") for n in range(1, 1000)}
    npzkit.save(tmp_path / "a.npz", arrays)
    with npzkit.open(tmp_path / "a.npz") as npz:
        keys = npz.files[::-1] if reverse else npz.files
        found = npz.load_all(keys)
    assert list(found) == keys
    assert all(np.array_equal(found[key], arrays[key]) for key in keys)
    assert max(owner(array).nbytes for array in found.values()) < (1 << 20) + 4096


def test_members_far_apart_are_not_read_along(tmp_path):
    """Of small members between large ones only the small ones are read."""
    arrays = {}
    for n in range(100):
        arrays[f"small{n}"], arrays[f"large{n}"] = np.full(9, n), np.zeros(20_000)
    npzkit.save(tmp_path / "a.npz", arrays)
    with npzkit.open(tmp_path / "a.npz") as npz:
        found = npz.load_all([key for key in arrays if key.startswith("small")])
    assert [array[0] for array in found.values()] == list(range(100))
    assert sum(owner(array).nbytes for array in found.values()) < 100 * 1024


def test_limits_hold_for_many():
    """Limits of sizes are those of reading one by one."""
    data = among_many()
    for limits in (npzkit.Limits(member_size=130), npzkit.Limits(header_size=100)):
        with npzkit.open(data, limits=limits) as npz:
            with pytest.raises(LimitExceededError):
                npz.load_all()
            assert npz.load_all(npz.files[:0]) == {}
    with pytest.raises(LimitExceededError):
        npzkit.open(data, limits=npzkit.Limits(total_size=5000))


@each_row("method", [0, 8])
@each_row("case", [*WRONG, *UNUSUAL])
def test_headers_are_read_either_way_alike(case, method, monkeypatch):
    """What info tells, or raises, is the same whether a member's headers are read fast or not."""
    if case in WRONG:
        member = Member(**{"name": "x.npy", "data": DATA, **WRONG[case], "method": method})
    else:
        member = UNUSUAL[case]
        member = member if method == 0 else Member(member.name, member.data, method=method)
    data = archive(Member("first.npy", DATA), member)

    def told():
        with npzkit.open(data) as npz:
            try:
                return npz.info(npz.files[1])
            except NpzkitError as error:
                return type(error), str(error)

    fast = told()
    monkeypatch.setattr("npzkit.reading.member_headers.HeaderFinder.find", lambda *args: None)
    assert fast == told()


@pytest.mark.parametrize("save", [npzkit.save, npzkit.savez, npzkit.savez_compressed, np.savez])
def test_headers_of_usual_members_are_read_the_fast_way(save, monkeypatch):
    """No stream is opened to tell what npzkit's and NumPy's members are."""
    stream = io.BytesIO()
    save(stream, **({"arrays": {"x": X}} if save is npzkit.save else {"x": X}))
    monkeypatch.setattr("npzkit.reading.member.MemberStream", None)
    with npzkit.open(stream) as npz:
        assert npz.info("x").shape == X.shape


@pytest.mark.slow
@each_row("method", [0, 8])
@each_row("case", [*WRONG, *UNUSUAL])
def test_a_header_that_was_read_before_changes_nothing(case, method):
    """A member is read, or refused, as in an archive that was opened for it alone."""
    if case in WRONG:
        member = Member(**{"name": "x.npy", "data": DATA, **WRONG[case], "method": method})
    else:
        member = UNUSUAL[case]
        member = member if method == 0 else Member(member.name, member.data, method=method)
    data = archive(Member("a.npy", DATA), member, Member("b.npy", DATA, method=8 - method))

    def told(npz, key):
        try:
            array = npz[key]
            return array if isinstance(array, bytes) else (array.dtype, array.tolist())
        except (NpzkitError, ValueError) as error:
            return type(error), str(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with npzkit.open(data) as npz:
            keys = npz.files * 2
            found = [told(npz, key) for key in keys]
        for key, one in zip(keys, found, strict=True):
            with npzkit.open(data) as npz:
                assert repr(told(npz, key)) == repr(one)


def test_a_repeated_header_is_parsed_once(monkeypatch):
    """Neighbours with the same NPY header take one lookup of its meaning."""
    parsed = []
    parse = member_headers.parse_header
    monkeypatch.setattr(
        member_headers, "parse_header", lambda data: parsed.append(data) or parse(data)
    )
    stream = io.BytesIO()
    npzkit.save(stream, dict.fromkeys("abcde", X))
    with npzkit.open(stream) as npz:
        assert list(npz.load_all()) == list("abcde")
    assert len(parsed) == 1


@pytest.mark.parametrize("save", [npzkit.save, np.savez])
def test_arrays_of_many_layouts_read_together(save):
    """Neighbours of any shape, dtype and order are as each read alone, and writable."""
    shapes = [(), (1,), (3, 4), (2, 1, 3), (1,) * 31, (1,) * 32]
    dtypes = ["u1", "<i2", ">f8", "S5", "U3", "M8[s]", "c16", "V7", "f2"]
    arrays = {
        f"{number}": np.ones(shape, "u1").astype(dtype).copy(order)
        for number, (shape, dtype, order) in enumerate(itertools.product(shapes, dtypes, "CF"))
    }
    stream = io.BytesIO()
    save(stream, arrays) if save is npzkit.save else save(stream, **arrays)
    with npzkit.open(stream) as npz:
        for key, array in npz.load_all().items():
            alone = npz[key]
            assert array.dtype == alone.dtype == arrays[key].dtype
            assert (array.shape, array.strides) == (alone.shape, alone.strides)
            assert array.flags.writeable
            assert array.flags.aligned
            assert array.tobytes("A") == arrays[key].tobytes("A")
