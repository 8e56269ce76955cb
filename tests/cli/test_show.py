"""show: values as NumPy prints them, statistics and pictures, of what is read alone."""

from __future__ import annotations

import io
import json
import pickle
import re
import shlex
import zipfile

import npzkit
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.cli.show import SliceIndex, parse_index

from tables import each_row

RNG = np.random.default_rng(0)
BIG = {
    "line": RNG.random(5000),
    "plane": RNG.normal(size=(60, 50)).astype("f4"),
    "block": RNG.integers(-50, 50, (7, 20, 30)),
    "thin": RNG.integers(0, 9, (2000, 2)),
    "fortran": np.asfortranarray(RNG.random((40, 60))),
    "deep": RNG.integers(0, 9, (4, 5, 6, 7, 8)),
    "complex": RNG.random(2000) + 1j,
    "when": np.arange("2020-01-01", "2024-01-01", dtype="M8[D]"),
    "text": np.array([f"item {n}" for n in range(1500)]),
    "bytes": np.array([b"\x00\xff"] * 1500),
    "flags": RNG.random(2000) < 0.5,
    "nan": np.where(RNG.random(3000) < 0.3, np.nan, 1e9),
    "table": np.zeros(1200, [("id", "<i4"), ("pos", "<f8", (2,))]),
    "big_endian": np.arange(3000, dtype=">i4"),
}


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("name", BIG)
def test_a_big_array_is_summarised_as_numpy_does(name, compression, cli, tmp_path):
    """The text is the whole array's, of which the corners alone were read."""
    npzkit.save(tmp_path / "a.npz", {"x": BIG[name]}, compression=compression)
    assert cli("show", tmp_path / "a.npz", "x").out == f"{BIG[name]}\n"


def test_small_arrays_of_every_kind(cli, tmp_path, arrays):
    """What NumPy prints whole is printed so."""
    npzkit.save(tmp_path / "a.npz", arrays)
    for key, array in arrays.items():
        assert cli("show", tmp_path / "a.npz", key).out == f"{np.asarray(array)}\n"


def test_the_only_array_needs_no_key(cli, tmp_path):
    """Without KEY the only array is shown; where there are others, they are named."""
    npzkit.save(tmp_path / "one.npz", {"x": np.arange(3)})
    assert cli("show", tmp_path / "one.npz").out == "[0 1 2]\n"
    npzkit.save(tmp_path / "many.npz", {f"x{i}": np.arange(3) for i in range(30)})
    result = cli("show", tmp_path / "many.npz")
    assert result.code == 2
    assert "one of x0, x1, " in result.err
    assert "x19 and 10 more." in result.err
    npzkit.save(tmp_path / "none.npz", {})
    result = cli("show", tmp_path / "none.npz")
    assert (result.code, "no arrays" in result.err) == (2, True)


def test_showing_reads_little(cli, tmp_path, monkeypatch):
    """The corners of 80 MB, and a slice of it, cost kilobytes."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w, w.create("x", (10_000_000,), "f8"):
        pass
    read = [0]
    source = npzkit.files.source.FileSource
    real = source.readinto_at
    monkeypatch.setattr(
        source, "readinto_at",
        lambda self, offset, view: (read.append(len(view)), real(self, offset, view))[1],
    )  # fmt: skip
    found = cli("show", path, "x")
    assert found.out == "[0. 0. 0. ... 0. 0. 0.]\n"
    assert "npzkit verify checks it" in found.err
    assert cli("show", path, "x", "5:9_000_000".replace("_", "")).out.startswith("[0. 0. 0. ...")
    assert sum(read) < 1_000_000


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_damaged_array_is_an_error(options, cli, tmp_path):
    """Of an array that is printed with dots, what is not printed is checked too, as its chunk is."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(9000)})
    data = bytearray(path.read_bytes())
    data[30_000] ^= 1
    path.write_bytes(data)
    found = cli("show", path, "x", *options)
    assert (found.code, found.out) == (1, "")
    assert "CRC-32 differs" in found.err
    assert "chunk 1 of 1 is damaged" in cli("show", path, "x", "0:2").err


SLICES = [
    "0",
    "-1",
    "2:5",
    "::-1",
    "::7, 3",
    "..., 0",
    "1:2, ..., ::2",
    "[3, 1], 2:4",
    "5:2",
    "-3:, -2:",
]


@pytest.mark.slow
@pytest.mark.parametrize("text", SLICES)
@pytest.mark.parametrize("name", ["plane", "block", "fortran"])
def test_a_slice_is_numpys(name, text, cli, tmp_path):
    """SLICE chooses what it chooses between NumPy's brackets."""
    npzkit.save(tmp_path / "a.npz", {"x": BIG[name]}, compression="deflated")
    expected = eval(f"array[{text}]", {"array": BIG[name]})
    assert cli("show", tmp_path / "a.npz", "x", text).out == f"{expected}\n"


@pytest.mark.parametrize("text", [":2, :3", "..., 0", "1:2", "[1, 5], 0", "[1, 5]", "7, 0, :3"])
def test_a_slice_may_have_brackets(text):
    """As in NumPy; a list of integers keeps its meaning."""
    assert parse_index(f" [{text}]") == parse_index(text)
    assert parse_index("[1, 5]").items == ([1, 5],)


@pytest.mark.remedy("Put a space before SLICE: npzkit show FILE")
def test_a_slice_behind_the_key(cli, here):
    """The command that the error names shows it."""
    npzkit.save("a.npz", {"x": np.arange(9).reshape(3, 3)})
    (command,) = re.findall(r"npzkit (show .*)\.", cli("show", "a.npz", "x[1,:2]").err)
    assert cli(*shlex.split(command)).out == "[3 4]\n"
    assert "a space" not in cli("show", "a.npz", "y[1]").err


def test_fields(cli, fixtures):
    """A field is chosen by its name, quoted or not, before or behind the index."""
    path = fixtures / "numpy_records.npz"
    expected = f"{np.load(path)['table']['pos'][1:3]}\n"
    for text in ("pos, 1:3", "1:3, pos", "'pos', 1:3", '1:3,"pos"'):
        assert cli("show", path, "table", text).out == expected
    result = cli("show", path, "table", "size")
    assert result.code == 2
    assert "'id', 'pos', 'tag'" in result.err


@pytest.mark.parametrize(
    "text",
    ["x y", "1:2:3:4", "__import__('os')", "1,,2", "[1", "9" * 5000, "[1:2", "[1:2]]", "a, b", "[1],[2]", "",
     "1e3", "()", "--stat", "::0", "1, 2:5:0", "[1], ::-0"],
)  # fmt: skip
def test_what_is_no_slice_is_wrong_usage(text, cli, fixtures):
    """Nothing is evaluated: what is not an index is said to be none, in a line."""
    result = cli("show", fixtures / "digits.npz", "images", text)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("text", ["9999", "0,0,0,0", "..., ...", "[9999]"])
def test_what_the_array_does_not_have(text, cli, fixtures):
    """An index out of bounds is said in NumPy's words, with the array's shape."""
    result = cli("show", fixtures / "digits.npz", "images", text)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "(1797, 8, 8)" in result.err


def test_what_was_taken_for_something_else(cli, fixtures):
    """A slice in the place of KEY, and a file in that of SLICE, are said to be that."""
    path = fixtures / "digits.npz"
    result = cli("show", path, "::3")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert (
        "'::3' is a SLICE, not a key of FILE. Name the KEY before it: npzkit show FILE KEY"
        in result.err
    )
    result = cli("show", path, "images", path)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "is a file, but was taken for SLICE" in result.err


@given(st.text("0123456789:,.-+[]'\" ax"))
def test_parsing_gives_an_index_or_a_valueerror(text):
    """No text makes the parser raise anything else."""
    try:
        assert isinstance(parse_index(text), SliceIndex)
    except ValueError:
        pass


# -- what needs a word ----------------------------------------------------------


def test_objects_are_not_unpickled_unasked(cli, fixtures):
    """Python objects need --allow-pickle, which is said; with it they are shown."""
    path = fixtures / "numpy_object.npz"
    result = cli("show", path, "objects")
    assert (result.code, result.out) == (2, "")
    assert "--allow-pickle" in result.err
    assert cli("show", path, "objects", "--allow-pickle").out == "[1 'two' None]\n"
    assert cli("show", path, "objects", "1", "--allow-pickle").out == "two\n"


def test_a_member_that_is_no_array(cli, fixtures):
    """It is refused, with the command that writes its bytes."""
    found = cli("show", fixtures / "zipfile_names.npz", "readme.txt")
    assert (found.code, found.out) == (2, "")
    assert "is not an array" in found.err
    assert "zipfile_names.npz readme.txt -o -" in found.err


def test_values_do_not_control_the_terminal(cli, tmp_path):
    """Text in arrays is shown escaped, a single one too."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"one": np.array("a\x1b[31m"), "many": np.array(["\x9b1m", "\u202e"])})
    for key in ("one", "many"):
        out = cli("show", path, key).out
        assert out.rstrip("\n").isprintable()
    assert cli("show", path, "one").out == "a\\x1b[31m\n"


def test_text_that_is_no_unicode(cli, tmp_path):
    """What NumPy can make no text of is said in a line, wherever it would be shown."""
    path = tmp_path / "a.npz"
    text = np.full(2000, 0x110000, "u4").view("U1")
    npzkit.save(path, {"x": text, "one": text[0:1].reshape(())})
    for arguments in (["x"], ["x", ":5"], ["x", "0"], ["x", "--json"], ["one"]):
        result = cli("show", path, *arguments)
        assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    npzkit.save(tmp_path / "b.npz", {"x": np.full(2000, "a"), "one": np.array("a")})
    assert "no Unicode" in cli("diff", path, tmp_path / "b.npz").out


def test_a_shape_that_is_only_claimed(cli, tmp_path):
    """Lists that no byte of the file stands for are not made, and a part of them can be shown."""
    npzkit.save(tmp_path / "a.npz", {"x": np.zeros((2**40, 0))})
    result = cli("show", tmp_path / "a.npz", "x", "--json")
    assert result.code == 1
    assert "cannot be shown: an array of its shape" in result.err
    assert cli("show", tmp_path / "a.npz", "x", "0:2", "--json").json()["values"] == [[], []]


def test_times_without_a_unit(cli, tmp_path):
    """They are numbers, of which NumPy makes no text."""
    npzkit.save(tmp_path / "a.npz", {"x": np.array([3, 5]).astype("m8").view("M8")})
    assert cli("show", tmp_path / "a.npz", "x", "--stats", "--json").json()["max"] == 5
    assert cli("show", tmp_path / "a.npz", "x").code == 1


def test_bfloat16(cli, tmp_path):
    """Numbers that NPY cannot name are shown and measured as numbers."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(9).astype(ml_dtypes.bfloat16)})
    assert cli("show", tmp_path / "a.npz", "x").out == "[0 1 2 3 4 5 6 7 8]\n"
    assert cli("show", tmp_path / "a.npz", "x", "--stats", "--json").json()["mean"] == 4


def test_json(cli, tmp_path):
    """--json has the values as lists, NaN as null."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.array([[1.5, np.nan]]), "when": np.array(["2020-01"], "M8[M]")})
    assert cli("show", path, "x", "--json").json() == {
        "key": "x", "shape": [1, 2], "dtype": "float64", "values": [[1.5, None]]
    }  # fmt: skip
    assert cli("show", path, "when", "--json").json()["values"] == ["2020-01"]


def test_too_many_corners(cli, tmp_path):
    """An array of 20 axes is not printed by the million: SLICE is asked for."""
    npzkit.save(tmp_path / "a.npz", {"x": np.zeros((3,) * 12, "u1")}, compression="deflated")
    result = cli("show", tmp_path / "a.npz", "x")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "SLICE" in result.err


# -- statistics -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([2**64 - 1, 0], "u8"), {"min": 0, "max": 2**64 - 1, "count": 2}),
        (np.array([-1.7e308, 1.7e308]), {"mean": 0.0, "std": None, "inf_count": 0}),
        (np.array([np.nan]), {"min": None, "mean": None, "count": 1, "nan_count": 1}),
        (np.array(["2020-01", "NaT"], "M8[M]"), {"min": "2020-01", "nan_count": 1}),
        (np.array([True, False]), {"min": False, "max": True, "mean": 0.5}),
    ],
)
def test_statistics_as_json(array, expected, cli, tmp_path):
    """Integers are exact, dates are text, and what is not finite is null."""
    npzkit.save(tmp_path / "a.npz", {"x": array})
    result = cli("show", tmp_path / "a.npz", "x", "--stats", "--json")
    found = result.json()
    assert (result.code, result.err) == (0, "")
    assert {name: found[name] for name in expected} == expected
    assert cli("show", tmp_path / "a.npz", "x", "--stats").code == 0


def test_statistics_as_a_table(cli, tmp_path, monkeypatch):
    """Few integers have a bin each; on a narrow terminal the bars are shorter."""
    npzkit.save(tmp_path / "a.npz", {"x": np.repeat([1, 2, 4], [10, 20, 5])})
    out = cli("show", tmp_path / "a.npz", "x", "--stats").out
    assert [line.split()[:2] for line in out.splitlines()[-5:]] == [
        ["value", "count"], ["1", "10"], ["2", "20"], ["3", "0"], ["4", "5"]
    ]  # fmt: skip
    assert "█" * 40 in out
    monkeypatch.setenv("COLUMNS", "60")
    narrow = cli("show", tmp_path / "a.npz", "x", "--stats").out
    assert max(map(len, narrow.splitlines())) <= 60


def test_bins_have_different_names(cli, tmp_path):
    """Of numbers that are close to each other, as many digits are shown as tell bins apart."""
    npzkit.save(tmp_path / "a.npz", {"x": 1e9 + np.linspace(0, 1, 500), "one": np.full(9, 2.5)})
    out = cli("show", tmp_path / "a.npz", "x", "--stats").out
    assert "1000000000.94 to 1000000001 " in out
    names = [line.split()[0] for line in out.splitlines()[-15:]]
    assert len(set(names)) == len(names)
    assert cli("show", tmp_path / "a.npz", "one", "--stats").out.splitlines()[-1].split()[:2] == [
        "2.5", "9"
    ]  # fmt: skip


def test_statistics_are_not_rounded_more_than_the_values(cli, tmp_path):
    """Minimum and maximum are shown as Python shows them, and the mean in digits of the values."""
    arrays = {
        "t": 1.7e9 + np.arange(100) * 0.01, "f": np.float32([0.1, 0.3]), "h": np.float16([0.1, 2]),
        "i": np.array([2**62 + 1, 5]), "one": np.full(9, 1700000000.99),
        "s": np.full(9, np.float32(0.1)), "c": np.complex64([0.1]),
    }  # fmt: skip
    npzkit.save(tmp_path / "a.npz", arrays)
    for key, array in arrays.items():
        out = cli("show", tmp_path / "a.npz", key, "--stats").out
        found = dict(line.split(":") for line in out.splitlines() if ":" in line)
        least, most = abs(array).min(), abs(array).max()
        assert (found["min"].strip(), found["max"].strip()) == (str(least), str(most))
        mean = abs(array).mean(dtype=np.float64)
        assert abs(float(found["mean"]) - mean) <= abs(np.spacing(most)) * 2
        if least == most:
            assert out.splitlines()[-1].split()[0] == str(least)


def test_statistics_of_a_part(cli, fixtures):
    """SLICE chooses what is measured, of a table by a field."""
    path = fixtures / "numpy_records.npz"
    assert cli("show", path, "table", "id, 2:", "--stats", "--json").json()["mean"] == 3
    result = cli("show", path, "table", "--stats")
    assert result.code == 2
    assert "Choose a field that holds numbers: 'id', 'pos'." in result.err


def test_standard_input(cli):
    """- is the standard input, a pipe too."""
    stream = io.BytesIO()
    npzkit.save(stream, {"top": np.arange(3)})
    assert cli("show", "-", "top", data=stream.getvalue()).out == "[0 1 2]\n"


def test_a_narrow_terminal(cli, tmp_path, monkeypatch):
    """Lines are broken where NumPy would break them for so few columns."""
    npzkit.save(tmp_path / "a.npz", {"x": RNG.random(100), "y": RNG.random((50, 50))})
    monkeypatch.setenv("COLUMNS", "40")
    for key in ("x", "y"):
        out = cli("show", tmp_path / "a.npz", key).out
        assert max(map(len, out.splitlines())) <= 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "option"),
    [
        ((), None),
        ((5, 6), None),
        ((5, 6), "--json"),
        ((5, 6), "--stats"),
        ((3000, 1000), "--stats"),
    ],
    ids=str,
)
def test_a_whole_array_is_held_against_its_crc(cli, tmp_path, shape, option):
    """Damage is an error where its chunk is read; a part in other chunks is shown."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.ones(shape)})
    data = bytearray(path.read_bytes())
    with npzkit.open(path) as npz:
        data[npz.info("x").data_offset + 3] ^= 1
    path.write_bytes(data)
    more = [option] if option else []
    result = cli("show", path, "x", *more)
    assert (result.code, result.out) == (1, "")
    assert "CRC-32 differs" in result.err or "chunk 1 of 367 is damaged" in result.err
    assert not shape or cli("show", path, "x", "1:", *more).code == 1
    assert len(shape) < 2 or shape[0] < 99 or cli("show", path, "x", "99:", *more).code == 0


class Failing:
    """An object whose pickle runs code that fails."""

    def __reduce__(self):
        return eval, ("1 / 0",)


class Unprintable:
    """An object that cannot be shown."""

    def __repr__(self):
        raise ValueError("nothing to show")


@pytest.mark.parametrize(
    ("value", "told", "code"),
    [(Failing(), "ZeroDivisionError: division by zero", 2), (Unprintable(), "nothing to show", 1),
     (np.dtype("f8"), None, 0)],
)  # fmt: skip
def test_an_object_whose_code_fails_is_reported_in_a_line(cli, tmp_path, value, told, code):
    """What the code of a Python object raises is the object's fault: a line; 2 if it is not read."""
    array = np.empty(1, object)
    array[0] = value
    np.savez(tmp_path / "a.npz", x=array)
    found = cli("show", tmp_path / "a.npz", "x", "--allow-pickle")
    assert (found.code, found.err.count("\n")) == (code, int(told is not None))
    assert told is None or told in found.err
    if isinstance(value, Failing):
        assert told in cli("pack", tmp_path / "b.npz", tmp_path / "a.npz", "--allow-pickle").err
        npz = npzkit.open(tmp_path / "a.npz", allow_pickle=True)
        with npz, pytest.raises(ZeroDivisionError) as caught:
            npz["x"]
        assert "'x.npy'" in caught.value.__notes__[0] and "a.npz" in caught.value.__notes__[0]


def test_an_object_whose_module_is_gone_is_reported(cli, tmp_path):
    """The message names the module."""
    data = pickle.dumps(np.array([Unprintable()], object)).replace(b"test_show", b"gone_mods")
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": (1,)})  # fmt: skip
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", stream.getvalue() + data)
    found = cli("show", tmp_path / "a.npz", "--allow-pickle")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "needs the module" in found.err


def test_objects_of_python_2_have_an_encoding(cli, fixtures, here):
    """Without it, the message names the option; with it, text is read, by load_tree too."""
    path = fixtures / "python2_object.npz"
    found = cli("show", path, "--allow-pickle")
    assert (found.code, "--encoding latin1" in found.err) == (2, True)
    assert "\u00e9" in cli("show", path, "--allow-pickle", "--encoding", "latin1").out
    with pytest.raises(UnicodeError, match=r"npzkit\.load_tree"):
        npzkit.load_tree(path, allow_pickle=True)
    assert "\u00e9" in npzkit.load_tree(path, allow_pickle=True, encoding="latin1")["x"].tolist()
    found = cli("pack", "a.npz", path, "--allow-pickle", "--encoding", "latin1")
    assert found.code == 0, found.err
    assert "\u00e9" in npzkit.load_tree("a.npz", allow_pickle=True)["x"].tolist()


@each_row(
    ("key", "text", "values"),
    [
        ("opt/lr", "0.1", 0.1),
        ("opt/betas", "(0.9, 0.99)", [0.9, 0.99]),
        ("opt", "{'lr': 0.1, 'betas': (0.9, 0.99)}", {"lr": 0.1, "betas": [0.9, 0.99]}),
    ],
)
def test_values_of_nested_data(cli, tmp_path, key, text, values):
    """A number, or a container without arrays, is printed by its key as Python has it."""
    npzkit.save(tmp_path / "a.npz", {"w": np.eye(2), "opt": {"lr": 0.1, "betas": (0.9, 0.99)}})
    assert cli("show", tmp_path / "a.npz", key).out == f"{text}\n"
    assert cli("show", tmp_path / "a.npz", key, "--json").json() == {"key": key, "values": values}
    assert cli("show", tmp_path / "a.npz", "op").code == 2
    for option in ("0", "--stats"):
        found = cli("show", tmp_path / "a.npz", key, option)
        assert (found.code, found.out, "is no array" in found.err) == (2, "", True)


def test_values_beside_arrays(cli, tmp_path):
    """A key of both shows both; a file of values alone shows them without a key."""
    opt = {"lr": 0.1, "betas": [1, 2]}
    npzkit.save(tmp_path / "a.npz", {"opt": {"w": np.arange(2), **opt}, "other": 3})
    found = cli("show", tmp_path / "a.npz", "opt")
    assert found.out.split("\n")[:-1] == [
        "opt/w:",
        "[0 1]",
        "opt/lr:",
        "0.1",
        "opt/betas:",
        "[1, 2]",
    ]
    rows = cli("show", tmp_path / "a.npz", "opt", "--json").json()
    assert [row["values"] for row in rows] == [[0, 1], 0.1, [1, 2]]
    npzkit.save(tmp_path / "b.npz", {"opt": opt})
    assert cli("show", tmp_path / "b.npz").out == "{'opt': {'lr': 0.1, 'betas': [1, 2]}}\n"


@pytest.mark.parametrize("option", [(), ("--json",), ("--stats",)])
def test_an_array_of_several_that_cannot_be_shown(cli, tmp_path, option):
    """It has a line, the others are shown, and the exit code is that of the failure."""
    arrays = {"a": np.arange(3), "b": np.array([{}]), "c": np.array(["t"]), "d": np.arange(2)}
    np.savez(tmp_path / "a.npz", **arrays)
    found = cli("show", tmp_path / "a.npz", "*", *option)
    assert found.code == 2
    assert "key 'b'" in found.err
    assert "3" in found.out if option else "[0 1]" in found.out


def test_statistics_of_several_arrays_are_a_table(cli, tmp_path):
    """Each array has a line, without a histogram; a date has no mean, and a text no numbers."""
    days = np.array(["2024-01-01", "2024-01-03"], "M8[D]")
    arrays = {"w": np.array([1.0, np.nan, 2.0]), "days": days, "t": np.array(["a"]), "c": [1j]}
    npzkit.save(tmp_path / "a.npz", arrays)
    found = cli("show", tmp_path / "a.npz", "*", "--stats")
    assert cli("show", tmp_path / "a.npz", "--stats") == found
    assert found.code == 0
    assert [line.split() for line in found.out.splitlines()] == [
        ["key", "shape", "dtype", "min", "max", "mean", "std", "NaN"],
        ["w", "(3,)", "float64", "1", "2", "1.5", "0.5", "1"],
        ["days", "(2,)", "datetime64[D]", "2024-01-01", "2024-01-03", "0"],
        ["t", "(1,)", "<U1"],
        ["c", "(1,)", "complex128,", "by", "magnitude", "1", "1", "1", "0", "0"],
    ]
    rows = json.loads(cli("show", tmp_path / "a.npz", "*", "--stats", "--json").out)
    assert rows[2] == {"key": "t", "shape": [1], "dtype": "<U1"}
    assert cli("show", tmp_path / "a.npz", "t", "--stats").code == 2


def test_a_tied_tensor_is_shown(cli, tmp_path):
    """The array of the other key is, also a slice and its statistics, with a word about it."""
    path, weight = tmp_path / "a.npz", np.arange(6.0).reshape(2, 3)
    note = {"m": {"first": ["as", "tensor"], "second": ["same", "m/first"]}}
    npzkit.save(path, {"m/first": weight}, metadata={"npzkit.tree": note})
    for options in ([], ["1,:2"], ["--stats"]):
        found = cli("show", path, "m/second", *options)
        assert found == cli("show", path, "m/first", *options)._replace(
            err="npzkit: m/second is tied to m/first, which has the array.\n"
        )


@pytest.mark.filterwarnings("default:the header of this array")
def test_a_large_header_is_not_said_to_need_pickle(cli, tmp_path):
    """The remedy for a limit is no option that may run code, when it is written or read."""
    np.savez(tmp_path / "a.npz", x=np.zeros(2, [(f"field_{n:04}", "f8") for n in range(900)]))
    told = "read it in Python, with a larger limit (max_header_size of np.load).\n"
    found = cli("show", tmp_path / "a.npz", "x")
    assert (found.code, "pickle" in found.err) == (2, False)
    assert found.err.endswith(told)
    found = cli("pack", tmp_path / "b.npz", tmp_path / "a.npz", "--allow-pickle")
    assert (found.code, "pickle" in found.err) == (0, False)
    assert found.err.endswith(told.capitalize().replace("python", "Python"))
