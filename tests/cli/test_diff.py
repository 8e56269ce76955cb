"""diff: keys, shapes, dtypes and values, the last only where they can differ."""

from __future__ import annotations

import subprocess
import sys

import npzkit
import numpy as np
import pytest

TABLE = np.zeros(3, [("id", "<i4"), ("pos", "<f8", (2,))])
NAN_TABLE = np.full(3, np.nan, [("x", "<f8")])


@pytest.fixture
def differences(cli, tmp_path):
    """Save two archives and return what diff says of them as JSON, with the exit code."""

    def compare(a, b, *options, save=npzkit.save):
        npzkit.save(tmp_path / "a.npz", a)
        save(tmp_path / "b.npz", **b) if save is np.savez else save(tmp_path / "b.npz", b)
        result = cli("diff", tmp_path / "a.npz", tmp_path / "b.npz", "--json", *options)
        found = result.json()
        assert result.code == (0 if found["equal"] else 1)
        assert found["equal"] == (not found["differences"])
        assert result.err == ""
        return found["differences"]

    return compare


def test_equal_archives(differences, arrays, cli, tmp_path):
    """The same arrays have no difference, whoever wrote them, compressed or not."""
    assert differences(arrays, arrays) == []
    assert differences(arrays, arrays, "--fast") == []
    assert differences(arrays, arrays, save=np.savez) == []
    assert (
        cli("diff", tmp_path / "a.npz", tmp_path / "b.npz").out
        == "13 keys compared, no difference\n"
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1.5, 2.5), (True, False), ("abc", "abd"), (b"a", b"b"), (np.array((1, 2), "i4,f8"),
        np.array((1, 3), "i4,f8")), (np.datetime64("2020-01-01"), np.datetime64("2020-01-02")),
    ],
    ids=["float", "bool", "str", "bytes", "fields", "date"],
)  # fmt: skip
def test_arrays_without_axes(a, b, differences):
    """A single value of any kind is compared, and both are told."""
    (found,) = differences({"x": np.asarray(a)}, {"x": np.asarray(b)})
    assert (found["what"], found["value_count"], found["worst"]) == ("values", 1, [])
    assert (str(found["a"]), str(found["b"])) == (str(a), str(b))


def test_arrays_of_one_crc_are_not_compared_by_value(differences, monkeypatch):
    """Arrays whose CRC-32s agree are read once, for their CRC-32s, and no values of them."""
    array = {"x": np.arange(1000)}
    monkeypatch.setattr(npzkit.LazyArray, "__getitem__", None)
    assert differences(array, array) == []
    assert differences(array, array, "--fast") == []


@pytest.mark.parametrize(
    ("a", "b", "what"),
    [
        (np.zeros(3), np.zeros(4), ["shape"]),
        (np.zeros(3), np.zeros(3, "f4"), ["dtype"]),
        (np.zeros(3), np.ones(3, "f4"), ["dtype", "values"]),
        (np.zeros(3), np.array(["a"] * 3), ["dtype"]),
        (np.array(["a"] * 3), np.array(["abc"] * 3), ["dtype", "values"]),
        (np.zeros(3), np.zeros(3, "M8[s]"), ["dtype"]),
        (np.zeros(3, "M8[D]"), np.zeros(3, "M8[s]"), ["dtype"]),
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
def test_two_arrays(a, b, what, differences):
    """What differs is said: shape, dtype, values; byte order and memory order are no difference."""
    assert [row["what"] for row in differences({"x": a}, {"x": b})] == what
    assert [row["what"] for row in differences({"x": b}, {"x": a})] == what


def test_keys_of_one_archive_alone(differences):
    """A key that only one archive has is named, with which one."""
    rows = differences({"x": np.zeros(3), "y": np.zeros(3)}, {"y": np.zeros(3), "z": np.zeros(3)})
    assert [(row["key"], row["what"]) for row in rows] == [("x", "only in A"), ("z", "only in B")]


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_the_worst_value_is_told(compression, differences, cli, tmp_path):
    """How many differ, which two most, and where, in arrays of many pieces."""
    a = np.random.default_rng(0).random((600, 700))
    b = a.copy()
    b[10, 20] += 1
    b[500, 600] += 9
    b[501, 0] -= 3
    save = lambda path, arrays: npzkit.save(path, arrays, compression=compression)  # noqa: E731
    (row,) = differences({"x": a}, {"x": np.asfortranarray(b)}, save=save)
    assert (row["value_count"], row["worst"]) == (3, [500, 600])
    assert (row["a"], row["b"]) == (a[500, 600], b[500, 600])
    out = cli("diff", tmp_path / "a.npz", tmp_path / "b.npz").out
    assert "(500, 600)" in out
    assert out.endswith("1 key compared, 1 of them different\n")


@pytest.mark.parametrize(
    ("options", "count"),
    [([], 3), (["--atol", "0.15"], 2), (["--rtol", "0.05"], 2), (["--atol", "5"], 1),
     (["--rtol", "1"], 1), (["--atol", "inf"], 1)],
)  # fmt: skip
def test_tolerance(options, count, differences):
    """Values may differ by atol and by rtol of B's; a NaN by nothing."""
    a, b = np.array([1.0, 100.0, 2.0, 3.0]), np.array([1.1, 104.0, np.nan, 3.0])
    (row,) = differences({"x": a}, {"x": b}, *options)
    assert row["value_count"] == count
    assert row["worst"] == [2]


def test_metadata_and_attributes(cli, tmp_path):
    """They are compared where --metadata asks for it."""
    for name, unit in (("a", "m"), ("b", "km")):
        with npzkit.NpzWriter(tmp_path / f"{name}.npz", metadata={"name": name}) as w:
            w.add("x", np.zeros(3), attrs={"unit": unit})
    files = tmp_path / "a.npz", tmp_path / "b.npz"
    assert cli("diff", *files).code == 0
    found = cli("diff", *files, "--metadata", "--json").json()["differences"]
    assert [(row["key"], row["what"], row["a"]) for row in found] == [
        (None, "metadata", '{"name": "a"}'), ("x", "attributes", '{"unit": "m"}')
    ]  # fmt: skip


def test_objects_and_members_that_are_no_arrays(cli, tmp_path, fixtures):
    """Pickles are held against each other by their CRC-32s alone, as other bytes are."""
    objects, names = fixtures / "numpy_object.npz", fixtures / "zipfile_names.npz"
    assert cli("diff", objects, objects).code == 0
    npzkit.save(tmp_path / "a.npz", {"objects": np.array([1, 2, 3], object)}, allow_pickle=True)
    assert "pickles, which are not read" in cli("diff", objects, tmp_path / "a.npz").out
    assert cli("diff", names, names).code == 0


@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("other", [0, 1], ids=["equal", "different"])
def test_damage_is_no_difference_and_no_equality(compression, other, cli, tmp_path):
    """A damaged array is an error with its key and exit code 2; the other arrays are compared."""
    path, copy = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(path, {"x": np.arange(9000), "y": np.arange(3)}, compression=compression)
    npzkit.save(copy, {"x": np.arange(9000), "y": np.arange(other, other + 3)})
    if compression == "stored" and not other:
        copy.write_bytes(path.read_bytes())
    _damage(copy, "x", 200)
    for names in ((path, copy), (copy, path)):
        found = cli("diff", *names)
        assert found.code == 2
        (line,) = found.err.splitlines()
        assert str(copy) in line
        assert "'x'" in line
        assert "damaged" in line
        assert "no difference" not in found.out
        assert ("1 of them different" in found.out) is bool(other)
        document = cli("diff", *names, "--json").json()
        assert document["equal"] is False
        assert [(row["path"], row["key"]) for row in document["problems"]] == [(str(copy), "x")]
        assert [row["key"] for row in document["differences"]] == ["y"] * other


def _damage(path, key, offset):
    """Change one byte of a member's data."""
    data = bytearray(path.read_bytes())
    with npzkit.open(path) as npz:
        data[npz.info(key).data_offset + offset] ^= 1
    path.write_bytes(data)


def test_damage_in_a_header_is_no_other_shape(cli, tmp_path):
    """An array whose header was changed is damaged: what it claims is not compared."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(3)})
    data = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "b.npz").write_bytes(data.replace(b"<i8", b"<f8"))
    (tmp_path / "c.npz").write_bytes(data.replace(b"(3,)", b"(4,)"))
    for name in ("b.npz", "c.npz"):
        found = cli("diff", tmp_path / "a.npz", tmp_path / name)
        assert (found.code, found.err.count("\n")) == (2, 1)
        assert found.out == "1 key compared, 1 of them damaged\n"


def test_fast_trusts_recorded_checksums_and_says_so(cli, tmp_path):
    """With --fast arrays of the same recorded CRC-32 are not read; what is read is checked."""
    path, copy = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(path, {"x": np.arange(1000)})
    copy.write_bytes(path.read_bytes())
    _damage(copy, "x", 0)
    found = cli("diff", path, copy, "--fast")
    assert found.code == 0
    assert "recorded CRC-32s" in found.out
    assert "were not read" in found.out
    assert cli("diff", path, copy, "--fast", "--json").json()["fast"] is True
    npzkit.save(path, {"x": np.arange(1, 1001)})
    assert cli("diff", path, copy, "--fast").code == 2


@pytest.mark.parametrize("content", [None, b"", b"<html>"], ids=["missing", "empty", "a page"])
def test_a_file_that_cannot_be_read_is_trouble(content, cli, tmp_path):
    """As with diff and cmp, exit code 2 says that nothing was compared."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(3)})
    if content is not None:
        (tmp_path / "b.npz").write_bytes(content)
    for names in (("a.npz", "b.npz"), ("b.npz", "a.npz")):
        found = cli("diff", *(tmp_path / name for name in names))
        assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)


def test_bfloat16(differences):
    """Numbers that NPY cannot name are compared as numbers."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    (row,) = differences({"x": np.zeros(3, bfloat16)}, {"x": np.full(3, 2, bfloat16)})
    assert (row["a"], row["b"]) == (0, 2)


@pytest.mark.parametrize("options", [["--atol", "-1"], ["--rtol", "nan"], ["--atol", "x"]])
def test_wrong_tolerance(options, cli, fixtures):
    """A tolerance is a number, 0 or more."""
    path = fixtures / "digits.npz"
    result = cli("diff", path, path, *options)
    assert (result.code, result.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("part_size", [1 << 17, 1 << 25])
def test_rows_against_columns_are_read_in_large_parts(part_size, tmp_path, cli, monkeypatch):
    """An array that lies by rows is compared with one by columns in a few parts, right in each."""
    a = np.random.default_rng(0).random((700, 600))
    b = np.asfortranarray(a)
    b[3, 599] += 1
    b[699, 2] -= 2
    np.savez_compressed(tmp_path / "a.npz", x=a)
    np.savez_compressed(tmp_path / "b.npz", x=b)
    monkeypatch.setattr("npzkit.reading.blocks.BLOCK_SIZE", part_size)
    read, parts = npzkit.LazyArray.__getitem__, []
    monkeypatch.setattr(
        npzkit.LazyArray, "__getitem__", lambda lazy, at: parts.append(at) or read(lazy, at)
    )
    for names in (("a.npz", "b.npz"), ("b.npz", "a.npz")):
        parts.clear()
        (row,) = cli("diff", *(tmp_path / name for name in names), "--json").json()["differences"]
        assert (row["value_count"], row["worst"]) == (2, [699, 2])
        assert len(parts) <= 2 * (-(-a.nbytes // part_size) + 1)


def test_comparing_takes_little_memory(tmp_path):
    """A hundred megabytes on either side are compared in some."""
    pytest.importorskip("resource")
    for name, last in (("a", 1), ("b", 2)):
        with (
            npzkit.NpzWriter(tmp_path / f"{name}.npz", compression="deflated", level=1) as w,
            w.create("x", (None, 1 << 17), "f8") as rows,
        ):
            for _ in range(100):
                rows.append(np.zeros((1, 1 << 17)))
            rows.append(np.full((1, 1 << 17), last))
    code = (
        "import resource, sys; from npzkit.cli.commands import run; "
        "import npzkit.archive.lazyarray, npzkit.cli.diff; "
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        f"code = run(['diff', {str(tmp_path / 'a.npz')!r}, {str(tmp_path / 'b.npz')!r}]); "
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        "assert code == 1; assert after - before < 60_000, after - before"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr
    assert "131,072" in found.stdout


def test_zeros_of_either_sign_are_equal_in_fields_too(differences):
    """Rows are compared by their values, where their bytes differ."""
    a, b = (np.array([(1, zero)], [("id", "i4"), ("x", "f8")]) for zero in (0.0, -0.0))
    assert differences({"x": a}, {"x": b}) == []


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long doubles hold no 64 bits here")
def test_large_integers_are_told_apart(differences):
    """A tolerance counts to the last digit of 64 bits."""
    a, b = {"x": np.array([2**62])}, {"x": np.array([2**62 + 2])}
    assert len(differences(a, b, "--atol", "1")) == 1
    assert differences(a, b, "--atol", "2") == []


def test_the_standard_input_is_one_archive(cli):
    """- cannot be both."""
    found = cli("diff", "-", "-")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "one archive" in found.err
