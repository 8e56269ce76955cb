"""Masked arrays and variable-width strings, saved as several plain arrays on request."""

from __future__ import annotations

import io
import math
import zipfile

import npzkit
import numpy as np
import pytest
from npzkit.errors import (
    KeyExistsError,
    MemberNotFoundError,
    NpyFormatError,
    PickleRefusedError,
    UnsafeNameError,
    UnsupportedError,
)
from npzkit.members.multipart import join

from tables import each_row

StringDType = np.dtypes.StringDType

MASKED = {
    "some": np.ma.array([1.5, 2, 3], mask=[0, 1, 0], fill_value=-1.0),
    "none": np.ma.array(np.arange(6).reshape(2, 3)),
    "all": np.ma.masked_all((2, 0), "i2"),
    "0-d": np.ma.array(7, mask=True),
    "texts": np.ma.array(["ab", "c"], mask=[1, 0], fill_value="no"),
    "bytes": np.ma.array([b"ab", b"c"], mask=[1, 0], fill_value=b"\xff"),
    "long": np.ma.array(np.zeros(2, "g"), mask=[1, 0], fill_value=7),
    "records": np.ma.array([(1, 2.5)], [("a", "i4"), ("b", "f8")], mask=[(0, 1)]),
    "times": np.ma.array(np.array(["2020-01-01"], "M8[D]"), mask=[True]),
    "fortran": np.ma.array(np.asfortranarray(np.eye(3)), mask=np.eye(3)),
}

STRINGS = {
    "some": np.array(["a", "", "ünï", "x" * 1000, "nul\0"], StringDType()),
    "none": np.array([], StringDType()),
    "0-d": np.array("text", StringDType()),
    "square": np.array([["a", "bb"], ["ccc", ""]], StringDType())[:, ::-1],
    "None": np.array(["a", None, ""], StringDType(na_object=None)),
    "nan": np.array(["a", math.nan, "nan"], StringDType(na_object=math.nan)),
    "strict": np.array(["a"], StringDType(coerce=False)),
}


def saved(arrays, **options):
    stream = io.BytesIO()
    npzkit.save(stream, arrays, masked="split", strings="split", **options)
    return stream


@each_row("compression", ["stored", "deflated"])
@each_row("array", MASKED.values())
def test_a_masked_array_comes_back(array, compression):
    """Data, including masked values, mask, dtype and a fill value that JSON has are restored."""
    found = npzkit.open(saved({"x": array}, compression=compression)).join("x")
    assert isinstance(found, np.ma.MaskedArray)
    assert found.dtype == array.dtype
    assert found.data.tobytes() == np.asarray(array.data).tobytes()
    assert np.array_equal(np.ma.getmaskarray(found), np.ma.getmaskarray(array))
    if array.dtype.char in "dSU":
        assert found.fill_value == array.fill_value


@pytest.mark.parametrize("array", STRINGS.values(), ids=STRINGS)
def test_strings_come_back(array):
    """Strings, their shape, missing values and the options of the dtype are restored."""
    found = npzkit.open(saved({"x": array})).join("x")
    assert found.dtype == array.dtype
    assert repr(found.tolist()) == repr(array.tolist())


def test_numpy_reads_the_parts():
    """np.load reads plain arrays with the documented keys."""
    stream = saved({"m": MASKED["some"], "s": STRINGS["None"], "x": np.eye(2)})
    with np.load(io.BytesIO(stream.getvalue())) as theirs:
        assert theirs.files == ["m", "m.mask", "s", "s.offsets", "s.missing", "x"]
        assert theirs["m"].tolist() == [1.5, 2, 3]
        assert theirs["m.mask"].tolist() == [False, True, False]
        assert bytes(theirs["s"]) == b"a"
        assert theirs["s.offsets"].tolist() == [0, 1, 1, 1]
        assert theirs["s.missing"].tolist() == [False, True, False]


def test_an_archive_tells_what_was_masked():
    """info tells masked arrays from strings and from other arrays, in Python and in words."""
    stream = io.BytesIO()
    arrays = {"m": MASKED["some"], "s": STRINGS["some"], "x": np.arange(2)}
    npzkit.save(stream, arrays, masked="split", strings="split")
    with npzkit.open(stream) as npz:
        assert [npz.info(key).is_masked for key in "msx"] == [True, False, False]
        texts = [npz.info(key).split_text() for key in "msx"]
    assert texts == ["masked, see m.mask", "strings, see s.offsets", ""]


def test_a_writer_splits_too(tmp_path):
    """NpzWriter stores attributes with the first part, and a rename keeps the description of the array."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, masked="split") as w:
        w.add("x", MASKED["some"], attrs={"unit": "m"})
        w["plain"] = np.arange(2)
    with npzkit.NpzWriter(path, "a") as w:
        assert w.attrs("x") == {"unit": "m"}
        w.attrs("x")["unit"] = "km"
        w.rename("x", "y")
    with npzkit.open(path) as npz:
        assert npz.info("y").attrs == {"unit": "km"}
        assert npz.join("y").tolist() == [1.5, None, 3]
        assert npz.join("plain").tolist() == [0, 1]
        assert sorted(npzkit.load_tree(npz)) == ["plain", "y"]


@pytest.mark.parametrize(("array", "parts"), [
    (MASKED["some"], [".mask"]), (STRINGS["some"], [".offsets"]),
    (STRINGS["None"], [".offsets", ".missing"]),
], ids=["masked", "strings", "missing"])  # fmt: skip
def test_parts_move_and_go_together(array, parts):
    """A rename, a removal and a replacement act on all parts of an array, in their places."""
    stream = saved({"d": array, "last": np.eye(2), "t": [array, None]})
    with npzkit.NpzWriter(stream, "a", masked="split", strings="split") as w:
        w.rename("d", "e")
        w.rename("t/0", "u")
        others = [f"u{part}" for part in parts]
        assert w.files == ["e", *[f"e{part}" for part in parts], "last", "u", *others]
        w["d"] = array
        del w["d"]
        w["d"] = array
        w.add("d", array, overwrite=True)
        w.add("d", np.arange(2), overwrite=True)
        w["m"] = array
        w.add("m", {"inner": np.arange(3)}, overwrite=True)
        assert w.files[-3:] == [others[-1], "d", "m/inner"]
    with npzkit.open(stream) as npz:
        assert npz.join("e").tolist() == array.tolist()
        assert npz["d"].tolist() == [0, 1]
        assert npzkit.load_tree(npz)["u"].tolist() == array.tolist()


def test_an_array_with_the_name_of_a_part_is_left_alone():
    """Beside a plain array, x.mask is an array like others; a rename that it blocks does nothing."""
    stream = saved({"d": MASKED["some"], "x": np.arange(2), "x.mask": np.arange(3)})
    with npzkit.NpzWriter(stream, "a") as w:
        del w["x"]
        with pytest.raises(KeyExistsError, match=r"x\.mask"):
            w.rename("d", "x")
        assert w.files == ["d", "d.mask", "x.mask"]
        w.add("x.mask", np.eye(2), overwrite=True)
        assert len(w) == 3


def test_no_part_is_written_without_the_others(tmp_path):
    """If the key of a part already exists, the existing array stays, with its attributes."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, masked="split", strings="split") as w:
        w["x.mask"] = np.arange(2)
        with pytest.raises(UnsafeNameError, match=r"x\.mask"):
            w["x"] = MASKED["some"]
        assert w.files == ["x.mask"]
        w["y"] = np.arange(5)
        w.attrs("y")["unit"] = "m"
        dst = w.create("y.offsets", 3, "i8")
        with pytest.raises(ValueError, match="being created"):
            w.add("y", STRINGS["some"], overwrite=True)
        dst.close()
    with npzkit.open(path) as npz:
        assert npz.files == ["x.mask", "y", "y.offsets"]
        assert npz["y"].tolist() == [0, 1, 2, 3, 4]
        assert npz.info("y").attrs == {"unit": "m"}
    with npzkit.NpzWriter(path, "a", masked="split") as w:
        w.add("x", MASKED["some"], overwrite=True)
    with npzkit.open(path) as npz:
        assert npz.join("x").tolist() == [1.5, None, 3]


@pytest.mark.remedy(", which takes its parts along.")
@pytest.mark.parametrize("array", [MASKED["some"], STRINGS["some"]], ids=["masked", "strings"])
def test_no_part_is_renamed_or_removed_alone(array):
    """The others could not be read then; the first part takes them along."""
    stream = saved({"x": array, "y.mask": np.ones(2)})
    with npzkit.NpzWriter(stream, "a") as w:
        part = next(key for key in w.files if key.startswith("x."))
        for edit in (lambda: w.rename(part, "z"), lambda: w.__delitem__(part)):
            with pytest.raises(UnsupportedError, match="Rename or remove 'x'"):
                edit()
        w.rename("y.mask", "y")
        w.rename("x", "z")
    with npzkit.open(stream) as npz:
        assert npz.join("z").tolist() == array.tolist()
    with npzkit.NpzWriter(stream, "a") as w:
        del w["z"], w["y"]
        assert w.files == []


def test_a_mask_is_found_by_its_key():
    """Masked arrays that were loaded and saved again as their parts are joined, and nothing else."""
    first, second = io.BytesIO(), io.BytesIO()
    array = np.ma.array([1.0, 2.0], mask=[False, True])
    npzkit.save(first, {"t": array}, masked="split")
    with npzkit.open(first) as npz:
        np.savez(
            second,
            **npz.load_all(),
            other=[1, 2],
            **{"other.mask": [1, 0], "x": 1, "x.mask": [True]},
        )
    with npzkit.open(second) as npz:
        np.testing.assert_array_equal(npz.join("t").mask, array.mask)
        assert not any(isinstance(npz.join(key), np.ma.MaskedArray) for key in ("other", "x"))


def test_a_tree_joins_them():
    """load_tree restores nested masked arrays and strings, and hides their parts."""
    tree = npzkit.load_tree(saved({"a": {"m": MASKED["some"]}, "s": [STRINGS["some"], None]}))
    assert list(tree) == ["a", "s"]
    assert list(tree["a"]) == ["m"]
    assert tree["a"]["m"].tolist() == [1.5, None, 3]
    assert tree["s"][0].tolist() == STRINGS["some"].tolist()


@pytest.mark.remedy("='split' to npzkit.save or NpzWriter, which saves it in parts (")
@pytest.mark.parametrize(
    ("array", "option", "plain"),
    [
        (MASKED["some"], "masked", lambda array: array.filled()),
        (STRINGS["some"], "strings", lambda array: array.astype(object).astype("U")),
    ],
)
def test_by_default_they_are_refused(tmp_path, array, option, plain):
    """Without the option, an error names it, and nothing is written; with it, all comes back."""
    with pytest.raises(npzkit.NpzkitError, match=f"{option}='split'"):
        npzkit.save(tmp_path / "a.npz", {"x": array})
    assert not list(tmp_path.iterdir())
    npzkit.save(tmp_path / "a.npz", {"x": array}, **{option: "split"})
    with npzkit.NpzWriter(tmp_path / "b.npz", **{option: "split"}) as w:
        w["x"] = array
        w["plain"] = plain(array)
    with npzkit.ShardedWriter(tmp_path / "c") as w:
        with pytest.raises(
            npzkit.NpzkitError, match=rf"^[^;]* Save array\.\w+\([^;]*; or pass {option}"
        ):
            w["x"] = array
        w["plain"] = plain(array)
    for name in ("a.npz", "b.npz"):
        with npzkit.open(tmp_path / name) as npz:
            assert npz.join("x").tolist() == array.tolist()
    for name in ("b.npz", "c"):
        with npzkit.open(tmp_path / name) as npz:
            assert np.array_equal(npz["plain"], plain(array))


@pytest.mark.remedy("Save array.astype(numpy.dtypes.StringDType(na_object=None)).")
def test_what_cannot_be_split_is_refused(tmp_path):
    """Existing keys, object arrays, other values for missing strings, and invalid options are refused."""
    path = tmp_path / "a.npz"
    with pytest.raises(npzkit.errors.UnsafeNameError, match=r"x\.mask"):
        npzkit.save(path, {"x": MASKED["some"], "x.mask": np.eye(2)}, masked="split")
    with pytest.raises(npzkit.errors.PickleRefusedError):
        npzkit.save(path, {"x": np.ma.array([None, {}], mask=[0, 1])}, masked="split")
    strings = np.array(["a", "none"], StringDType(na_object="none"))
    with pytest.raises(UnsupportedError, match="na_object='none'"):
        npzkit.save(path, {"x": strings}, strings="split")
    converted = strings.astype(StringDType(na_object=None))
    assert npzkit.open(saved({"x": converted})).join("x").tolist() == ["a", None]
    for option in ("masked", "strings"):
        with pytest.raises(ValueError, match=f"{option} must be 'refuse' or 'split'"):
            npzkit.save(path, {}, **{option: True})
    assert not path.exists()


def test_the_attribute_is_npzkits_own(tmp_path):
    """A user's attribute cannot imitate the description of an array."""
    with (
        pytest.raises(ValueError, match=r"'npzkit\.parts' is reserved"),
        npzkit.NpzWriter(tmp_path / "a.npz") as w,
    ):
        w.add("x", np.eye(2), attrs={"npzkit.parts": {}})


def edited(array, **changes):
    """An archive of an array in parts, with some parts replaced."""
    stream = saved({"x": array})
    with npzkit.NpzWriter(stream, "a") as w:
        for suffix, part in changes.items():
            key = "x" if suffix == "data" else f"x.{suffix}"
            w.add(key, part, overwrite=True, attrs=None)
    return npzkit.open(stream)


@pytest.mark.remedy("Read the parts one by one: npz[key].")
@each_row(
    ("array", "changes"),
    [
        (MASKED["some"], {"mask": np.zeros(4, bool)}),
        (MASKED["some"], {"mask": np.zeros(3)}),
        (STRINGS["some"], {"offsets": np.zeros(6, "i4")}),
        (STRINGS["some"], {"offsets": np.zeros(5, "i8")}),
        (STRINGS["some"], {"offsets": np.array([0, 9, 1, 1, 1, 1])}),
        (STRINGS["some"], {"offsets": np.array([-1, 0, 0, 0, 0, 1011])}),
        (STRINGS["some"], {"offsets": np.array([0, 0, 0, 0, 0, 10**9])}),
        (STRINGS["some"], {"offsets": np.array([0, 1, 2, 5, 1005, 1010])}),
        (STRINGS["some"], {"offsets": np.array([0, 1007, 1, 6, 1006, 1010])}),
        (STRINGS["some"], {"offsets": np.array([1, 1, 1, 6, 1006, 1010])}),
        (STRINGS["None"], {"missing": np.zeros(3)}),
    ],
)
def test_parts_that_do_not_fit(array, changes):
    """Parts of another shape, dtype or content raise one error that names the part."""
    npz = edited(array, **changes)
    with pytest.raises(NpyFormatError, match="parts of the array do not match") as caught:
        npz.join("x")
    assert caught.value.key
    for suffix, part in changes.items():
        assert np.array_equal(npz[f"x.{suffix}"], part)


FILL_VALUES = [
    None, True, -1, 10**30, 1e300, float("nan"), "é", "€", "1" * 5000,
    [], [1], [[1], [1, 2]], {}, {"a": 1},
]  # fmt: skip


@each_row("dtype", ["i4", "u1", "f2", "f8", "g", "c16", "?", "U1", "S1", "M8[s]", "V3", "i1,f4"])
def test_a_fill_value_of_another_make(dtype):
    """Any fill value in a file is restored with the dtype, or raises one error."""
    data = np.zeros(2, dtype)
    arrays = {"x": data, "x.mask": np.ma.getmaskarray(np.ma.array(data))}
    for value in FILL_VALUES:
        attrs = {"npzkit.parts": {"kind": "masked", "fill_value": value}}
        try:
            found = join(arrays.__getitem__, "x", attrs)
        except NpyFormatError as error:
            assert error.key == "x"  # noqa: PT017 - either is right
        else:
            assert found.fill_value.dtype == data.dtype
            assert not isinstance(value, (list, dict))


def test_each_kind_is_split_where_asked(tmp_path):
    """masked= and strings= each apply to their own kind of arrays."""
    path = tmp_path / "a.npz"
    with pytest.raises(PickleRefusedError):
        npzkit.save(path, {"s": STRINGS["some"]}, masked="split")
    with pytest.raises(UnsupportedError):
        npzkit.save(path, {"m": MASKED["some"]}, strings="split")


STRING_PARTS = {"x": np.frombuffer(b"a", np.uint8), "x.offsets": np.array([0, 1], "i8")}


@each_row("shape", [[True], [1.0], ["1"], [-1, -1], None, {}, 1, [1] * 65])
def test_shapes_that_are_none(shape):
    """A shape of strings must be a list of sizes, with no more axes than NumPy supports."""
    attrs = {"npzkit.parts": {"kind": "strings", "shape": shape}}
    with pytest.raises(NpyFormatError, match=r"found .the shape .* expected 'a list of sizes'"):
        join(STRING_PARTS.__getitem__, "x", attrs)


@pytest.mark.parametrize(
    "change",
    [{"x": np.zeros(1, "i4")}, {"x": np.zeros((1, 1), "u1")}, {"x": b"a"}, {"x.offsets": b"a"}],
)
def test_parts_of_another_make(change):
    """Text that is not plain bytes, or a part that is not an array, raises an error that names it."""
    attrs = {"npzkit.parts": {"kind": "strings", "shape": [1]}}
    assert join(STRING_PARTS.__getitem__, "x", attrs).tolist() == ["a"]
    with pytest.raises(NpyFormatError, match="do not match") as caught:
        join((STRING_PARTS | change).__getitem__, "x", attrs)
    assert caught.value.key == next(iter(change))


@pytest.mark.parametrize("shape", [[2**63, 0], [0, 10**30], [0, 2**62, 2**62]])
def test_axes_that_no_array_has(shape):
    """Empty strings arrays with huge axes are an error too."""
    arrays = {"x": np.zeros(0, np.uint8), "x.offsets": np.zeros(1, "i8")}
    attrs = {"npzkit.parts": {"kind": "strings", "shape": shape}}
    with pytest.raises(NpyFormatError, match="parts of the array do not match") as caught:
        join(arrays.__getitem__, "x", attrs)
    assert caught.value.key == "x"


@pytest.mark.parametrize("shape", [[9] * 5000, [10**4300 - 1], [2**32] * 4, [2**63]])
def test_more_strings_than_any_array_has(shape):
    """A count of strings that is only claimed is an error, however large it is."""
    attrs = {"npzkit.parts": {"kind": "strings", "shape": shape}}
    with pytest.raises(NpyFormatError, match=r"found .the shape .* expected 'a list of sizes'"):
        join(STRING_PARTS.__getitem__, "x", attrs)


def test_a_part_that_is_gone_is_named():
    """A mask that another program removed is a missing member, and the data can still be read."""
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(saved({"x": MASKED["some"]})) as source,
        zipfile.ZipFile(stream, "w") as out,
    ):
        out.writestr(source.getinfo("x.npy"), source.read("x.npy"))
    npz = npzkit.open(stream)
    with pytest.raises(MemberNotFoundError, match=r"x\.mask"):
        npz.join("x")
    assert npz["x"].tolist() == [1.5, 2, 3]


@pytest.mark.parametrize("order", "<>")
def test_parts_of_either_byte_order(order):
    """A machine of the other byte order joins strings, too."""
    stream = io.BytesIO()
    texts = np.array(["a", "bcd", ""], np.dtypes.StringDType())
    npzkit.save(stream, {"s": texts}, strings="split")
    arrays = dict(np.load(io.BytesIO(stream.getvalue())))
    attrs = {"npzkit.parts": {"kind": "strings", "shape": [3]}}
    arrays["s.offsets"] = arrays["s.offsets"].astype(f"{order}i8")
    assert join(arrays.__getitem__, "s", attrs).tolist() == texts.tolist()
