"""npzkit.diff: keys, shapes, dtypes and values, the last only where they can differ."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile

import npzkit
import numpy as np
import pytest
from archives import packed
from peak import PEAK, needs_peak

from tables import each_row

TABLE = np.zeros(3, [("id", "<i4"), ("pos", "<f8", (2,))])
NAN_TABLE = np.full(3, np.nan, [("x", "<f8")])


def damaged(data, key, offset=3):
    """Return an archive with one byte of an array's data changed."""
    changed = bytearray(data)
    with npzkit.open(data) as npz:
        changed[npz.info(key).data_offset + offset] ^= 1
    return bytes(changed)


@pytest.mark.slow
def test_equal_archives(arrays):
    """The same arrays have no difference, whoever wrote them, compressed or not."""
    data, other = packed(arrays), io.BytesIO()
    np.savez(other, **arrays)
    for b in (data, packed(arrays, compression="deflated"), other):
        report = npzkit.diff(data, b)
        assert report.equal
        assert not report
        assert (report.changed, report.added, report.removed) == ((), (), ())
        assert report.compared == len(arrays)
    assert str(report) == f"{len(arrays)} keys: no difference"


def test_what_changed_was_added_and_was_removed():
    """The report names the keys in the order of the archives, and is true if there are any."""
    a = packed({"x": np.zeros(3), "gone": np.zeros(3), "y": np.zeros(3), "same": np.ones(2)})
    b = packed({"y": np.ones(3), "x": np.ones((3, 1)), "new": np.zeros(3), "same": np.ones(2)})
    report = npzkit.diff(a, b)
    assert report
    assert not report.equal
    assert (report.changed, report.added, report.removed) == (("x", "y"), ("new",), ("gone",))
    assert [row.kind for row in report.rows] == ["shape", "removed", "values", "added"]
    assert (report.rows[0].a, report.rows[0].b) == ((3,), (3, 1))
    assert str(report).splitlines() == [
        "x: shape differs: (3,) and (3, 1)", "gone: removed (only in a)",
        "y: 3 values differ, most by 1 at (0,): 0.0 and 1.0", "new: added (only in b)",
        "5 keys: 2 changed, 1 added, 1 removed",
    ]  # fmt: skip


def test_some_keys():
    """Only the keys that are asked for are compared, with or without .npy; others are not read."""
    a = packed({"x": np.zeros(3), "y": np.zeros(300), "z": np.zeros(3)})
    b = damaged(packed({"x": np.ones(3), "y": np.zeros(300)}), "y")
    report = npzkit.diff(a, b, ["z", "x.npy"])
    assert (report.changed, report.removed, report.problems) == (("x",), ("z",), ())
    assert report.compared == 2
    with pytest.raises(npzkit.errors.MemberNotFoundError, match="no"):
        npzkit.diff(a, b, ["x", "no"])
    with pytest.raises(TypeError, match="a sequence of keys"):
        npzkit.diff(a, b, "x")


def test_open_archives_stay_open(tmp_path):
    """An NpzFile is used as it is, and not closed; the report has the paths."""
    for name in "ab":
        npzkit.save(tmp_path / f"{name}.npz", {"x": np.arange(3)})
    with npzkit.open(tmp_path / "a.npz") as a:
        report = npzkit.diff(a, tmp_path / "b.npz")
        assert a["x"].tolist() == [0, 1, 2]
    assert (report.path_a, report.path_b) == (str(tmp_path / "a.npz"), str(tmp_path / "b.npz"))
    with pytest.raises(npzkit.errors.ClosedArchiveError):
        npzkit.diff(a, tmp_path / "b.npz")


def test_metadata_and_attributes():
    """They are compared if that is asked for."""
    a, b = io.BytesIO(), io.BytesIO()
    for stream, unit in ((a, "m"), (b, "km")):
        with npzkit.NpzWriter(stream, metadata={"unit": unit}) as w:
            w.add("x", np.zeros(3), attrs={"unit": unit})
    assert npzkit.diff(a, b).equal
    report = npzkit.diff(a, b, metadata=True)
    assert [row[:4] for row in report.rows] == [
        (None, "metadata", {"unit": "m"}, {"unit": "km"}),
        ("x", "attributes", {"unit": "m"}, {"unit": "km"}),
    ]
    assert report.changed == ("x",)
    assert str(npzkit.diff(a, b, [], metadata=True)).endswith("0 keys: other metadata")


def test_metadata_of_other_types():
    """Of metadata and attributes, 1 and True differ as values of nested data do; NaN is NaN."""
    a, b, c = io.BytesIO(), io.BytesIO(), io.BytesIO()
    both = {"n": [np.nan], "m": {"x": 1, "y": 2}}
    turned = {"m": {"y": 2, "x": 1}, "n": [np.nan]}
    for stream, values in (
        (a, {**both, "k": 1}), (b, {**turned, "k": True}), (c, {**turned, "k": 1})
    ):  # fmt: skip
        with npzkit.NpzWriter(stream, metadata=values) as w:
            w.add("x", np.zeros(3), attrs=values)
    report = npzkit.diff(a, b, metadata=True)
    assert [row.kind for row in report.rows] == ["metadata", "attributes"]
    assert str(report).splitlines()[:2] == ["metadata k: 1 and True", "x: attribute k: 1 and True"]
    assert npzkit.diff(a, c, metadata=True).equal


def test_values_of_nested_data():
    """A number that is no array is compared too, unless others are asked for."""
    a, b, c = io.BytesIO(), io.BytesIO(), io.BytesIO()
    for stream, rate in ((a, 0.1), (b, 0.2)):
        npzkit.save(stream, {"w": np.zeros(3), "opt": {"lr": rate}}, metadata={"rate": rate})
    npzkit.save(c, {"w": np.zeros(3)})
    report = npzkit.diff(a, b)
    assert [row[:4] for row in report.rows] == [("opt/lr", "value", 0.1, 0.2)]
    assert report.changed == ("opt/lr",)
    assert str(report).startswith("opt/lr: value differs: 0.1 and 0.2")
    kinds = [row.kind for row in npzkit.diff(a, b, metadata=True).rows]
    assert kinds == ["value", "metadata"]
    assert npzkit.diff(a, b, ["w"]).equal
    assert npzkit.diff(a, b, ["opt/lr"]).changed == npzkit.diff(a, c, ["opt/lr"]).removed
    assert npzkit.diff(a, b, ["opt/lr"]).compared == 1


def test_values_of_nested_data_that_one_archive_lacks():
    """They are removed or added, as arrays are; an array in place of one is another value."""
    a, b, c = io.BytesIO(), io.BytesIO(), io.BytesIO()
    npzkit.save(a, {"w": np.zeros(3), "opt": [{"lr": 0.1}]})
    npzkit.save(b, {"w": np.zeros(3)})
    npzkit.save(c, {"w": np.zeros(3), "opt": [{"lr": np.float32([0.1])}]})
    removed, added = npzkit.diff(a, b), npzkit.diff(b, a)
    assert (removed.removed, added.added) == (("opt/0/lr",), ("opt/0/lr",))
    assert removed.as_dict()["rows"][0]["kind"] == "removed"
    assert str(removed).splitlines() == [
        "opt/0/lr: removed (only in a)", "2 keys: 1 removed"
    ]  # fmt: skip
    (row,) = npzkit.diff(a, c).rows
    assert (row.key, row.kind, row.a, row.b) == ("opt/0/lr", "value", 0.1, np.ndarray)
    told = "opt/0/lr: value differs: an array and 0.1"
    assert str(npzkit.diff(c, a)).startswith(told)
    assert npzkit.diff(c, a).as_dict()["rows"][0]["a"] == "an array"


def test_values_of_nested_data_are_told_as_python_writes_them():
    """None, text, complex numbers and dtypes are shown by repr, and are null or text in JSON."""
    a, b = io.BytesIO(), io.BytesIO()
    pairs = [(None, 0), ("1", 1), (complex(np.nan), 1 + 2j), (np.dtype("f4"), np.dtype("f8"))]
    for side, stream in enumerate((a, b)):
        npzkit.save(
            stream, {"w": np.zeros(3), "opt": {f"{n}": p[side] for n, p in enumerate(pairs)}}
        )
    report = npzkit.diff(a, b)
    assert str(report).splitlines() == [
        *(f"opt/{n}: value differs: {one!r} and {other!r}" for n, (one, other) in enumerate(pairs)),
        "5 keys: 4 changed",
    ]  # fmt: skip
    assert [(row.a, row.b) for row in report.rows[:2]] == pairs[:2]
    found = json.loads(report.to_json(), parse_constant=pytest.fail)["rows"]
    assert [(row["a"], row["b"]) for row in found] == [
        (None, 0), ("1", 1), ("(nan+0j)", "(1+2j)"), ("float32", "float64")
    ]  # fmt: skip


def test_tied_tensors_are_compared_by_their_arrays():
    """What one archive ties may be an array of its own in the other; that it is, metadata says."""
    w, tie, own = np.arange(3.0), ["same", "w"], ["as", "tensor"]

    def saved(note, **arrays):
        note = {"w": own, "tied": note}
        return packed(arrays, metadata={"npzkit.tree": note})

    tied, untied = saved(tie, w=w), saved(own, w=w, tied=w)
    other = saved(own, w=w, tied=w + 1)
    assert npzkit.diff(tied, untied).equal
    assert npzkit.diff(untied, tied, ["tied"]).compared == 1
    told = "the nested data has other lists, tuples, types or tied tensors"
    assert told in str(npzkit.diff(tied, untied, metadata=True))
    (row,) = npzkit.diff(tied, other).rows
    assert (row.key, row.kind, row.a, row.b) == ("tied", "values", 0.0, 1.0)
    assert npzkit.diff(other, saved(["value", 1], w=w)).rows[0][:4] == (
        "tied", "value", np.ndarray, 1,
    )  # fmt: skip
    assert npzkit.diff(tied, saved(["value", 1], w=w)).rows[0].a is np.ndarray
    changed = saved(tie, w=w + 1)
    assert npzkit.diff(tied, changed).changed == ("w",)
    assert npzkit.diff(tied, changed, ["tied"]).changed == ("tied",)
    for report in (npzkit.diff(damaged(tied, "w"), untied), npzkit.diff(tied, damaged(tied, "w"))):
        assert [problem.key for problem in report.problems] == ["w"]
        assert report.rows == ()


def test_notes_of_values_that_are_not_valid():
    """A note of nested data that no npzkit writes is shown as it is."""
    streams = io.BytesIO(), io.BytesIO()
    for stream, note in zip(streams, (["value"], ["value", ["no kind", 1]]), strict=True):
        with npzkit.NpzWriter(stream, metadata={"npzkit.tree": {"x": None, "lr": note}}) as w:
            w.add("x", np.zeros(3))
    (row,) = npzkit.diff(*streams).rows
    assert (row.key, row.a, row.b) == ("lr", ["value"], ["value", ["no kind", 1]])


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_damage_is_a_problem(compression):
    """A damaged array is neither equal nor changed, whichever archive has it."""
    arrays = {"x": np.arange(9000), "y": np.arange(3)}
    sound = packed(arrays, compression=compression)
    bad = damaged(sound, "x", 200)
    for name, report in (("b", npzkit.diff(sound, bad)), ("a", npzkit.diff(bad, sound))):
        assert report
        assert not report.equal
        assert (report.changed, report.rows) == ((), ())
        (problem,) = report.problems
        assert (problem.archive, problem.key) == (name, "x")
        assert f"x: cannot be compared, in {name}: " in str(report)
        assert str(report).endswith("2 keys: 1 damaged")


def test_damage_that_comes_after_the_check(monkeypatch):
    """An array that fails while its values are read is a problem of its own archive."""
    a, b = packed({"x": np.zeros(3)}), packed({"x": np.ones(3)})
    monkeypatch.setattr(
        npzkit.NpzFile, "verify",
        lambda npz, keys, progress: npzkit.VerifyReport(None, (), 1, 0),
    )  # fmt: skip
    read = npzkit.LazyArray.__getitem__

    def fail(lazy, index):
        values = read(lazy, index)
        if values[0]:
            raise npzkit.errors.ZipFormatError("the stream ends early", offset=7)
        return values

    monkeypatch.setattr(npzkit.LazyArray, "__getitem__", fail)
    assert npzkit.diff(a, b).problems == (("b", "x", "the stream ends early", 7),)
    assert npzkit.diff(b, a).problems == (("a", "x", "the stream ends early", 7),)


def test_without_verify_equal_checksums_are_trusted():
    """Arrays whose recorded CRC-32s agree are not read, so that damage is not noticed."""
    sound = packed({"x": np.arange(1000)})
    assert npzkit.diff(sound, damaged(sound, "x"), verify=False).equal
    other = packed({"x": np.arange(1, 1001)})
    assert npzkit.diff(other, damaged(sound, "x"), verify=False).problems


def test_without_values_checksums_are_compared(monkeypatch):
    """Without values and verify no array is read: another CRC-32 is a difference."""
    a = packed({"x": np.zeros(3), "same": np.ones(3), "y": np.zeros(3), "z": np.zeros(3)})
    b = packed({"x": np.ones(3), "same": np.ones(3), "y": np.zeros(4), "new": np.zeros(3)})
    monkeypatch.setattr(npzkit.LazyArray, "__getitem__", None)
    monkeypatch.setattr("npzkit.maintenance.verify_rules.check_data", None)
    report = npzkit.diff(a, b, verify=False, values=False)
    assert (report.changed, report.added, report.removed) == (("x", "y"), ("new",), ("z",))
    assert [row.kind for row in report.rows] == ["checksum", "shape", "removed", "added"]
    assert (report.rows[0].a, report.rows[0].b) == tuple(
        npzkit.open(data).info("x").crc32 for data in (a, b)
    )


def test_members_that_are_no_arrays():
    """Bytes are compared by their CRC-32s, with each other and with arrays."""
    streams = []
    for text in (b"text", b"other"):
        streams.append(io.BytesIO())
        with zipfile.ZipFile(streams[-1], "w") as out:
            out.writestr("x", text)
    (row,) = npzkit.diff(*streams).rows
    assert (row.kind, row.a, row.b) == ("bytes", 4, 5)
    (row,) = npzkit.diff(streams[0], packed({"x": np.zeros(3)})).rows
    assert (row.kind, row.a, row.b) == ("bytes", 4, np.dtype(float))
    assert str(npzkit.diff(packed({"x": np.zeros(3)}), streams[0])).startswith(
        "x: bytes differ: an array of float64 and 4 bytes\n"
    )
    assert npzkit.diff(streams[0], streams[0]).equal


def test_pickles_are_not_read():
    """Python objects of different bytes differ, without being unpickled."""
    a, b = (packed({"x": np.array([n], object)}, allow_pickle=True) for n in range(2))
    assert [row.kind for row in npzkit.diff(a, b).rows] == ["objects"]
    assert str(npzkit.diff(a, b)).startswith("x: the pickles differ")
    assert npzkit.diff(a, a).equal


@pytest.mark.parametrize("value", [-1, np.nan])
@pytest.mark.parametrize("name", ["atol", "rtol"])
def test_wrong_tolerance(name, value):
    """A tolerance is a number, 0 or more."""
    data = packed({"x": np.zeros(3)})
    with pytest.raises(ValueError, match=name):
        npzkit.diff(data, data, **{name: value})


def test_progress_of_a_comparison():
    """Reading both archives and comparing are counted together, up to the total."""
    a, b = np.zeros((700, 600)), np.asfortranarray(np.ones((700, 600)))
    told = []
    npzkit.diff(
        packed({"x": a, "y": a}), packed({"x": b, "y": a}),
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert len(told) > 5
    assert told == sorted(told)
    assert told[-1] == (told[-1][1], told[0][1])


def test_progress_of_a_comparison_of_equal_archives():
    """Arrays that are not compared by value are counted as they are read, twice in all."""
    data = packed({key: np.zeros(50_000) for key in "abcdef"})
    told = []
    npzkit.diff(data, data, progress=lambda done, total: told.append((done, total)))
    assert {total for _, total in told} == {2 * 6 * 400_000}
    assert told[-1][0] == told[-1][1]


def test_a_report_as_json():
    """Whatever differs can be written as JSON."""
    dates = np.array(["2020-01-01", "2020-01-03"], "M8[D]")
    a = packed({"x": np.zeros(3), "y": np.zeros(3), "t": TABLE, "d": dates, "z": np.arange(3)})
    b = packed({"x": np.zeros(2), "y": np.ones(3, "f4"), "t": np.ones(3, TABLE.dtype),
                 "d": dates[::-1], "new": np.arange(3)})  # fmt: skip
    found = json.loads(npzkit.diff(a, damaged(b, "t", 0)).to_json())
    assert [problem["key"] for problem in found["problems"]] == ["t"]
    (row,) = npzkit.diff(packed({"x": np.array([np.nan])}), packed({"x": np.ones(1)})).rows
    assert (row.as_dict()["a"], row.as_dict()["max_difference"]) == (None, None)
    found = json.loads(npzkit.diff(a, b).to_json())
    assert (found["equal"], found["compared"]) == (False, 6)
    assert [(row["key"], row["kind"], row["a"], row["b"]) for row in found["rows"]] == [
        ("x", "shape", [3], [2]), ("y", "dtype", "float64", "float32"), ("y", "values", 0, 1),
        ("t", "values", str(TABLE[0]), str(np.ones(3, TABLE.dtype)[0])),
        ("d", "values", "2020-01-01", "2020-01-03"), ("z", "removed", None, None),
        ("new", "added", None, None),
    ]  # fmt: skip


def test_a_value_keeps_no_array_in_memory():
    """What the report has of an array is one value, a row of a table too."""
    a, b = packed({"x": TABLE}), packed({"x": np.ones(3, TABLE.dtype)})
    (row,) = npzkit.diff(a, b).rows
    assert row.a.base.nbytes == TABLE.dtype.itemsize
    assert row.a.base.base is None
    assert row.b["id"] == 1
    assert (row.field, row.max_difference) == ("id", 1)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1.5, 2.5), (True, False), ("abc", "abd"), (b"a", b"b"), (np.array((1, 2), "i4,f8"),
        np.array((1, 3), "i4,f8")), (np.datetime64("2020-01-01"), np.datetime64("2020-01-02")),
    ],
    ids=["float", "bool", "str", "bytes", "fields", "date"],
)  # fmt: skip
def test_arrays_without_axes(a, b):
    """A single value of any kind is compared, and both are reported."""
    (row,) = npzkit.diff(packed({"x": np.asarray(a)}), packed({"x": np.asarray(b)})).rows
    assert (row.kind, row.value_count, row.worst) == ("values", 1, ())
    assert (str(row.a), str(row.b)) == (str(a), str(b))


def test_arrays_of_one_crc_are_not_compared_by_value(monkeypatch):
    """Arrays whose CRC-32s agree are read once, for their CRC-32s, and no values of them."""
    data = packed({"x": np.arange(1000)})
    monkeypatch.setattr(npzkit.LazyArray, "__getitem__", None)
    assert npzkit.diff(data, data).equal
    assert npzkit.diff(data, data, verify=False).equal


@pytest.mark.slow
@each_row(
    ("a", "b", "what"),
    [
        (np.zeros(3), np.zeros(4), ["shape"]),
        (np.zeros(3), np.zeros(3, "f4"), ["dtype"]),
        (np.zeros(3), np.ones(3, "f4"), ["dtype", "values"]),
        (np.zeros(3), np.array(["a"] * 3), ["dtype"]),
        (np.array(["a"] * 3), np.array(["abc"] * 3), ["dtype", "values"]),
        (np.zeros(3), np.zeros(3, "M8[s]"), ["dtype"]),
        (np.zeros(3, "M8[D]"), np.zeros(3, "M8[s]"), ["dtype"]),
        (np.zeros(3, "M8[Y]"), np.zeros(3, "M8[as]"), ["dtype"]),
        (np.zeros(3, "m8[M]"), np.zeros(3, "m8[D]"), ["dtype"]),
        (np.zeros(3, "<i4"), np.zeros(3, ">i4"), []),
        (np.zeros((2, 3)), np.asfortranarray(np.zeros((2, 3))), []),
        (np.array([np.nan, 1]), np.array([np.nan, 1], ">f8"), []),
        (np.array([np.nan, 1]), np.array([2.0, 1]), ["values"]),
        (np.array([np.inf]), np.array([-np.inf]), ["values"]),
        (np.array(["NaT"], "M8[s]"), np.array(["NaT"], ">M8[s]"), []),
        (np.array(["NaT"], "M8[s]"), np.array([5], "M8[s]"), ["values"]),
        (NAN_TABLE, NAN_TABLE.astype([("x", ">f8")]), []),
        (TABLE, np.ones(3, TABLE.dtype), ["values"]),
        (np.zeros(3, "V5"), np.array([b"a" * 5] * 3).view("V5"), ["values"]),
        (np.array([True]), np.array([False]), ["values"]),
        (np.float64(3), np.float64(4), ["values"]),
        (np.zeros((0, 3)), np.zeros((0, 3), order="F"), []),
        (np.array([1 + 2j]), np.array([1 + 3j]), ["values"]),
        (np.array([b"a"]), np.array([b"b"]), ["values"]),
        (np.array([2**63 - 1]), np.array([2**63 - 2]), ["values"]),
        (np.array([2**64 - 1], "u8"), np.array([-1]), ["dtype", "values"]),
    ],
)  # fmt: skip
def test_two_arrays(a, b, what):
    """What differs is reported: shape, dtype, values; byte order and memory order do not count."""
    x, y = packed({"x": a}), packed({"x": b})
    assert [row.kind for row in npzkit.diff(x, y).rows] == what
    assert [row.kind for row in npzkit.diff(y, x).rows] == what


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_the_largest_difference(compression):
    """How many differ, which two most, where, and by how much, in arrays of many pieces."""
    a = np.random.default_rng(0).random((600, 700))
    b = a.copy()
    b[10, 20] += 1
    b[500, 600] += 9
    b[501, 0] -= 3
    x, y = (packed({"x": each}, compression=compression) for each in (a, np.asfortranarray(b)))
    (row,) = npzkit.diff(x, y).rows
    assert (row.value_count, row.worst) == (3, (500, 600))
    assert (row.a, row.b) == (a[500, 600], b[500, 600])
    assert row.max_difference == b[500, 600] - a[500, 600]


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 3), ({"atol": 0.15}, 2), ({"rtol": 0.05}, 2), ({"atol": 5}, 1), ({"rtol": 1}, 1),
     ({"atol": np.inf}, 1)],
)  # fmt: skip
def test_tolerance(options, count):
    """Values may differ by atol and by rtol of b's; a NaN by nothing."""
    a, b = np.array([1.0, 100.0, 2.0, 3.0]), np.array([1.1, 104.0, np.nan, 3.0])
    (row,) = npzkit.diff(packed({"x": a}), packed({"x": b}), **options).rows
    assert (row.value_count, row.nan_count) == (count, 1)
    worst = (2,) if count == 1 else (0,) if options == {"rtol": 0.05} else (1,)
    assert row.worst == worst
    assert (row.max_difference == np.inf) == (count == 1)


@each_row(
    ("dtype",), [("f8",), ("f2",), ("c16",), (np.longdouble,), ([("x", "f8"), ("name", "U1")],)]
)
def test_numbers_that_are_not_finite_hide_no_difference(dtype):
    """The largest difference is that of finite numbers; NaNs and infinities are counted."""
    a = np.zeros((200, 30), dtype)
    b = a.copy()
    x = b["x"] if b.dtype.names else b
    x[5, 5:8], x[9, 1:3], x[123, 17], x[150, 2] = np.nan, (np.inf, -np.inf), 0.5, -0.25
    if b.dtype.names:
        b["name"][7] = "n"
    (row,) = npzkit.diff(packed({"x": a}), packed({"x": b})).rows
    count = 7 + 30 * bool(b.dtype.names)
    assert (row.value_count, row.nan_count, row.inf_count) == (count, 3, 2)
    assert (row.worst, row.max_difference) == ((123, 17), 0.5)
    told = f"{count} values differ (3 NaN on one side, 2 infinite), most by 0.5"
    assert told in str(npzkit.diff(packed({"x": a}), packed({"x": b})))
    document = npzkit.diff(packed({"x": b}), packed({"x": a})).as_dict()["rows"][0]
    assert (document["nan_count"], document["inf_count"]) == (3, 2)


def test_numbers_that_are_not_finite_on_both_sides():
    """A NaN against an infinity is a NaN; finite numbers too far apart for a float are neither."""
    a = np.array([np.nan, np.inf, np.nan, np.inf, 1e308])
    b = np.array([np.inf, -np.inf, np.nan, np.inf, -1e308])
    (row,) = npzkit.diff(packed({"x": a}), packed({"x": b})).rows
    assert (row.value_count, row.nan_count, row.inf_count) == (3, 1, 1)
    assert (row.worst, row.max_difference) == ((4,), np.inf)
    dates = np.array(["2020", "NaT", "NaT"], "M8[Y]")
    (row,) = npzkit.diff(packed({"x": dates}), packed({"x": dates[[1, 0, 2]]})).rows
    assert (row.value_count, row.nan_count) == (2, 2)
    (row,) = npzkit.diff(packed({"x": a[:2]}), packed({"x": b[:2]})).rows
    assert (row.worst, row.max_difference, row.b) == ((0,), np.inf, np.inf)


def test_damage_in_a_header_is_no_other_shape():
    """An array whose header was changed is damaged: what it claims is not compared."""
    data = packed({"x": np.arange(3, dtype="i8")})
    for other in (data.replace(b"<i8", b"<f8"), data.replace(b"(3,)", b"(4,)")):
        report = npzkit.diff(data, other)
        assert (report.rows, len(report.problems)) == ((), 1)


def test_bfloat16():
    """Numbers that NPY cannot name are compared as numbers."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    a, b = packed({"x": np.zeros(3, bfloat16)}), packed({"x": np.full(3, 2, bfloat16)})
    (row,) = npzkit.diff(a, b).rows
    assert (row.a, row.b, row.max_difference) == (0, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("part_size", [1 << 17, 1 << 25])
def test_rows_against_columns_are_read_in_large_parts(part_size, tmp_path, monkeypatch):
    """An array that lies by rows is compared with one by columns in a few parts, right in each."""
    a = np.random.default_rng(0).random((350, 600))
    b = np.asfortranarray(a)
    b[3, 599] += 1
    b[349, 2] -= 2
    np.savez_compressed(tmp_path / "a.npz", x=a)
    np.savez_compressed(tmp_path / "b.npz", x=b)
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", part_size)
    read, parts = npzkit.LazyArray.__getitem__, []
    monkeypatch.setattr(
        npzkit.LazyArray, "__getitem__", lambda lazy, at: parts.append(at) or read(lazy, at)
    )
    for names in (("a.npz", "b.npz"), ("b.npz", "a.npz")):
        parts.clear()
        (row,) = npzkit.diff(*(tmp_path / name for name in names)).rows
        assert (row.value_count, row.worst) == (2, (349, 2))
        assert len(parts) <= 2 * (-(-a.nbytes // part_size) + 1)


@needs_peak
@pytest.mark.slow
def test_comparing_takes_little_memory(tmp_path):
    """More megabytes on either side are compared in no more memory."""
    for name, last in (("a", 1), ("b", 2)):
        with (
            npzkit.NpzWriter(tmp_path / f"{name}.npz", compression="deflated", level=1) as w,
            w.create("x", (None, 1 << 17), "f8") as rows,
        ):
            for _ in range(250):
                rows.append(np.zeros((1, 1 << 17)))
            rows.append(np.full((1, 1 << 17), last))
    code = (
        f"{PEAK}\nimport npzkit\n"
        f"report = npzkit.diff({str(tmp_path / 'a.npz')!r}, {str(tmp_path / 'b.npz')!r})\n"
        "assert report.rows[0].value_count == 131_072\n"
        "assert peak() < 240_000, peak()"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr


def test_fields_are_compared_one_by_one():
    """The field that differs most is named, and how far; tolerances hold for fields of numbers."""
    fields = [("t", "M8[s]"), ("T", "f8"), ("p", "f4", (3,)), ("in", [("x", "f8"), ("s", "U4")])]
    rows = np.zeros(3, fields)

    def report(change, **options):
        other = rows.copy()
        change(other)
        return npzkit.diff(packed({"rec": rows}), packed({"rec": other}), **options)

    def small(rows):
        rows["T"] = [1e-9, 5e-10, 1e-10]
        rows["p"][1, 2] = 1e-10
        rows["in"]["x"][0] = 1e-10

    found = report(small)
    line = "rec: 3 values differ, most by 1e-09 in 'T' at (0,): 0.0 and 1e-09"
    assert str(found).splitlines()[0] == line
    assert (found.rows[0].field, found.rows[0].max_difference) == ("T", 1e-9)
    assert report(small, atol=1e-8).equal
    for name, value, text in (
        ("p", [0, 0, 3], "by 3 in 'p' at (1,): [0. 0. 0.] and [0. 0. 3.]"),
        ("in", (0, "a"), "in 'in' at (1,): (0.0, '') and (0.0, 'a')"),
        ("T", np.nan, "in 'T' at (1,): 0.0 and nan"),
        ("t", 5, "in 't' at (1,): 1970-01-01T00:00:00 and 1970-01-01T00:00:05"),
    ):
        found = report(lambda rows, name=name, value=value: rows[name].__setitem__(1, value))
        assert str(found).splitlines()[0] == f"rec: 1 value differs, {text}"


def test_zeros_of_either_sign_are_equal_in_fields_too():
    """Rows are compared by their values, where their bytes differ."""
    a, b = (np.array([(1, zero)], [("id", "i4"), ("x", "f8")]) for zero in (0.0, -0.0))
    assert npzkit.diff(packed({"x": a}), packed({"x": b})).equal


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long doubles hold no 64 bits here")
def test_large_integers_are_told_apart():
    """A tolerance counts to the last digit of 64 bits."""
    a, b = packed({"x": np.array([2**62])}), packed({"x": np.array([2**62 + 2])})
    assert npzkit.diff(a, b, atol=1).changed == ("x",)
    assert npzkit.diff(a, b, atol=2).equal


def test_the_report_in_a_notebook():
    """A line per difference, a hundred at most, and the counts; text is escaped."""
    arrays = {f"<b>{i}": np.arange(2) for i in range(300)}
    stream, other = io.BytesIO(), io.BytesIO()
    npzkit.save(stream, arrays)
    npzkit.save(other, {})
    html = npzkit.diff(stream, other)._repr_html_()
    assert html.count("<div") == 101
    assert "&lt;b&gt;0: removed" in html
    assert "203 more lines" in html
    assert "300 keys: 300 removed" in html
