"""What can be saved, and what is refused with a remedy."""

from __future__ import annotations

import argparse
import datetime
import decimal
import enum
import fractions
import io
import pathlib
import pickle
import random
import re
import uuid

import npzkit
import numpy as np
import pytest
from archives import files_in
from npzkit.checkpoint import CheckpointStore
from npzkit.errors import NpzkitError, PickleRefusedError, UnsupportedError
from numpy.lib.recfunctions import repack_fields

from tables import each_row

COMPRESSIONS = ["stored", "deflated"]


class Tensor:
    """An object that refuses to become an array, as tensors do."""

    def __init__(self, error):
        self.error = error

    def __array__(self, dtype=None, copy=None):
        raise self.error

    def numpy(self):
        return np.ones(2)


NO_ARRAYS = {
    "gradient": Tensor(RuntimeError("requires grad")),
    "another dtype": Tensor(TypeError("no bfloat16")),
    "anything": Tensor(KeyError("why")),
}


def check_no_array(value, remedy, tmp_path):
    """Hold every way to write an object against the one error it is to give."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(io.BytesIO()) as w:
        filled = w.create("filled", (2,), "f8")
        grown = w.create("k", (None,), "f8", compression="deflated")
        for write in (
            lambda: npzkit.save(path, {"k": value}),
            lambda: npzkit.save(path, {"k": value}, masked="split"),
            lambda: npzkit.savez(path, k=value),
            lambda: npzkit.savez_compressed(path, k=value),
            lambda: w.add("k", value),
            lambda: w.add("k", value, attrs={"unit": "m"}),
            lambda: w.__setitem__("k", value),
            lambda: filled.__setitem__(slice(None), value),
            lambda: grown.append(value),
        ):
            with pytest.raises(NpzkitError, match=remedy) as caught:
                write()
            assert isinstance(caught.value, ValueError)
            assert isinstance(caught.value, TypeError)
            assert caught.value.key in ("k", "filled")
            assert caught.value.found == type(value).__name__
            assert caught.value.__cause__ is not None
        grown.append(np.ones(2))
        grown.close()
        filled.close()
        w["more"] = np.eye(2)
    assert files_in(tmp_path) == []


@pytest.mark.remedy("Convert it to a NumPy array first.")
@pytest.mark.parametrize("kind", NO_ARRAYS)
def test_what_is_no_array(kind, tmp_path):
    """An object that NumPy makes no array of is one error with key and remedy, however written."""
    check_no_array(NO_ARRAYS[kind], "Convert it to a NumPy array first", tmp_path)
    stream = io.BytesIO()
    npzkit.save(stream, {"k": NO_ARRAYS[kind].numpy()})
    assert npzkit.open(stream)["k"].tolist() == [1, 1]


@pytest.mark.remedy("save each under its own key, or pad them to the same length.")
def test_a_ragged_list(tmp_path):
    """Its items are arrays of their own, or are padded."""
    check_no_array([1, [2, 3]], "different lengths", tmp_path)
    stream = io.BytesIO()
    npzkit.save(stream, {"first": 1, "second": [2, 3], "padded": [[1, 0], [2, 3]]})
    with npzkit.open(stream) as npz:
        found = [npz[key].tolist() for key in npz]
    assert found == [1, [2, 3], [[1, 0], [2, 3]]]


def test_tensors_that_are_arrays(tmp_path):
    """PyTorch's tensors are saved as arrays by every way to write, also with gradients, and bfloat16."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    gradient = torch.ones(2, requires_grad=True)
    bfloat16 = torch.full((2,), 1.5, dtype=torch.bfloat16)
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        w.add("unit", gradient, attrs={"unit": "m"})
        w["bfloat16"] = bfloat16
        with w.create("filled", (2,), "f4") as filled:
            filled[:] = gradient
        with w.create("grown", (None,), "f4", compression="deflated") as grown:
            grown.append(gradient)
        with pytest.raises(UnsupportedError, match=r"sparse_coo.*to_dense") as caught:
            w["sparse"] = gradient.to_sparse()
        assert caught.value.key == "sparse"
    with npzkit.open(path) as npz:
        assert npz.info("unit").attrs["unit"] == "m"
        assert npz.info("bfloat16").dtype == ml_dtypes.bfloat16
        assert [array.tolist() for array in npz.values()] == [[1, 1], [1.5, 1.5], [1, 1], [1, 1]]
        assert "npzkit.tree" not in npz.metadata
    npzkit.savez(path, gradient)
    assert np.load(path)["arr_0"].tolist() == [1, 1]


@pytest.mark.parametrize("error", [OSError("disk"), MemoryError()], ids=repr)
def test_errors_of_the_system_pass_through_an_object(error):
    """What the system says while an object becomes an array is not renamed."""
    with pytest.raises(type(error)) as caught:
        npzkit.save(io.BytesIO(), {"k": Tensor(error)})
    assert caught.value is error


@pytest.mark.parametrize(
    ("array", "error"),
    [
        (np.array([None]), PickleRefusedError),
        (np.zeros(1, [("a", object)]), PickleRefusedError),
        (np.ma.masked_array([1, 2], [0, 1]), UnsupportedError),
        (np.array(["text"], dtype=np.dtypes.StringDType()), PickleRefusedError),
    ],
    ids=["object", "object in a structure", "masked", "StringDType"],
)
def test_arrays_that_cannot_be_saved(array, error, tmp_path):
    """Objects, masks and variable strings are refused before a byte is written, with a remedy."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    before = path.read_bytes()
    with pytest.raises(error) as caught:
        npzkit.save(path, {"good": np.zeros(3), "bad": array})
    assert caught.value.key == "bad"
    assert caught.value.remedy
    assert path.read_bytes() == before
    with npzkit.NpzWriter(path) as w:
        w["good"] = np.zeros(3)
        with pytest.raises(error):
            w["bad"] = array
        w["after"] = np.ones(3)
    with npzkit.open(path) as npz:
        assert npz.files == ["good", "after"]
    assert files_in(tmp_path) == ["a.npz"]


def test_pickle_on_request(tmp_path):
    """allow_pickle=True writes objects that np.load reads."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.array([1, "x", None], dtype=object)}, allow_pickle=True)
    with np.load(path, allow_pickle=True) as theirs:
        assert theirs["a"].tolist() == [1, "x", None]


OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i4"], "offsets": [0, 2]})
OUT_OF_ORDER = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i4"], "offsets": [4, 0]})


@pytest.mark.remedy("Save numpy.lib.recfunctions.repack_fields(array, recurse=True), or each field")
@pytest.mark.parametrize(
    ("dtype", "outer"),
    [
        (OVERLAPPING, None),
        (OUT_OF_ORDER, None),
        ([("x", OUT_OF_ORDER)], "x"),
        ([("parts", OVERLAPPING, (2,))], "parts"),
    ],
)
def test_fields_that_npy_cannot_describe(dtype, outer):
    """Fields that overlap or lie out of order are refused up front, with a remedy that works."""
    stream = io.BytesIO()
    array = np.ones(3, dtype)
    for save in (npzkit.save, lambda file, arrays: npzkit.savez(file, **arrays)):
        with pytest.raises(UnsupportedError, match="overlapping or out-of-order") as caught:
            save(stream, {"good": np.arange(3), "bad": array})
        assert caught.value.key == "bad"
    assert stream.getvalue() == b""

    fields = array if outer is None else array[outer]
    npzkit.save(stream, {name: fields[name] for name in "ab"})
    found = npzkit.open(stream)
    assert all(np.array_equal(found[name], fields[name]) for name in "ab")
    if outer != "parts":
        # In subarrays, fields stay as they are.
        stream = io.BytesIO()
        npzkit.save(stream, {"a": repack_fields(array, recurse=True)})
        assert npzkit.open(stream)["a"].tolist() == array.tolist()


def test_objects_that_cannot_be_pickled():
    """Objects that pickle refuses are found before a stream is touched."""
    stream = io.BytesIO()
    bad = np.array([lambda: 0], dtype=object)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        npzkit.save(stream, {"good": np.arange(3), "bad": bad}, allow_pickle=True)
    assert stream.getvalue() == b""


def test_large_rows_of_transposed_arrays(tmp_path, monkeypatch):
    """An array whose rows are larger than a piece, and lie transposed, is written in its order."""
    monkeypatch.setattr("npzkit.format.array.PIECE_SIZE", 64)
    array = np.arange(2 * 30 * 40).reshape(2, 30, 40).transpose(0, 2, 1)
    for compression in COMPRESSIONS:
        npzkit.save(tmp_path / "a.npz", {"a": array}, compression=compression)
        with npzkit.open(tmp_path / "a.npz") as ours, np.load(tmp_path / "a.npz") as theirs:
            assert np.array_equal(ours["a"], array)
            assert np.array_equal(theirs["a"], array)


def test_dtypes_that_numpy_misspells():
    """Where numpy's header has a dtype that no reader knows, npzkit.format writes bytes."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1, 2], ml_dtypes.float8_e5m2)
    for version in (None, (1, 0), (2, 0)):
        theirs, ours = io.BytesIO(), io.BytesIO()
        np.lib.format.write_array(theirs, array, version)
        npzkit.format.write_array(ours, array, version)
        assert b"<f1" in theirs.getvalue()
        assert ours.getvalue() == theirs.getvalue().replace(b"<f1", b"|V1")
        ours.seek(0)
        assert np.load(ours).tobytes() == array.tobytes()


@pytest.mark.remedy("Change the title to a string.")
@pytest.mark.parametrize("title", [1.5, b"x", (1, 2.5)])
def test_titles_that_no_header_could_be_read_with(tmp_path, title):
    """A title that is no plain literal is refused before anything is written, nested or not."""
    inner = np.dtype({"names": ["a"], "formats": ["i4"], "titles": [title]})
    for dtype in (inner, np.dtype([("b", inner, (2,))])):
        with pytest.raises(UnsupportedError, match="a field's title"):
            npzkit.save(tmp_path / "a.npz", {"x": np.zeros(2, dtype)})
    assert not list(tmp_path.iterdir())
    titled = np.dtype({"names": ["a"], "formats": ["i4"], "titles": [str(title)]})
    npzkit.save(tmp_path / "a.npz", {"x": np.zeros(2, inner).view(titled)})
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz["x"][str(title)].tolist() == [0, 0]


class Kind(enum.Enum):
    """Any enumeration."""

    SMALL = "s"


class Slots:
    """An object without a dict, of which nothing is known."""

    __slots__ = ()


def stated(name, **methods):
    """Return an object with a method, as those of PyTorch have."""
    return type(
        name, (), {method: lambda self, found=found: found for method, found in methods.items()}
    )()


def of_pandas(name):
    """Return an object that looks like one of pandas with texts."""

    def to_numpy(self, dtype=object):
        return np.array(["a", "größe"], dtype)

    index = type("RangeIndex", (), {"start": 0, "step": 1})
    made = type(
        name, (), {
            "__array__": lambda self, dtype=None, copy=None: to_numpy(self),
            "to_numpy": to_numpy, "get_level_values": lambda self, level: self, "index": index(),
            "astype": lambda self, dtype: self, "fillna": lambda self, value: self,
            "__init__": lambda self: setattr(self, "name", "x"), "__module__": "pandas.core.base",
        },
    )  # fmt: skip
    return type(name, (made,), {})()


PANDAS_TEXT = "astype(object).fillna('').to_numpy(str)"
INSTEAD = [
    (pathlib.PurePosixPath("a"), ["str(value)"]),
    (uuid.UUID(int=1), ["str(value)"]),
    (re.compile("a+"), ["value.pattern"]),
    (np.dtype("<f4"), ["value.str"]),
    (np.dtype([("a", "<f4")]), ["value.descr"]),
    (np.float32, ["value.__name__", "np.dtype(value)"]),
    ({2, 1}, ["list(value)"]),
    (2**70, ["str(value)"]),
    ([1, 2**70], ["str(value)"]),
    (decimal.Decimal("1.5"), ["str(value)", "float(value)"]),
    (fractions.Fraction(1, 2), ["str(value)", "float(value)"]),
    (datetime.date(2026, 1, 2), ["np.datetime64(value)", "value.isoformat()"]),
    (datetime.datetime(2026, 1, 2, 3), ["np.datetime64(value)", "value.isoformat()"]),
    (datetime.time(3), ["value.isoformat()"]),
    (datetime.timedelta(1), ["np.timedelta64(value)", "value.total_seconds()"]),
    (Kind.SMALL, ["value.value", "value.name"]),
    (random.Random(0), ["value.getstate()"]),
    (np.random.default_rng(0), ["value.bit_generator.state"]),
    (np.random.RandomState(0), ["value.get_state()"]),
    (stated("Adam", state_dict={"step": 1}), ["value.state_dict()"]),
    (argparse.Namespace(a=1), ["vars(value)"]),
    ({1: 2}.values(), ["list(value)"]),
    (of_pandas("Series"), [f"value.{PANDAS_TEXT}", "value.to_numpy(dtype)"]),
    (of_pandas("Index"), [f"value.{PANDAS_TEXT}", "value.to_numpy(dtype)"]),
    (of_pandas("ExtensionArray"), ["np.asarray(value, object).astype(str)"]),
    (of_pandas("MultiIndex"), [f"value.get_level_values(i).{PANDAS_TEXT}"]),
    (Slots(), []),
    (lambda: 1, []),
    (re, []),
]  # fmt: skip


KEPT = (int, set, np.dtype, datetime.date, datetime.time, datetime.timedelta)
"""What nested data has a place for."""


@each_row(("value", "expressions"), INSTEAD)
def test_what_to_save_instead_is_said(value, expressions, tmp_path):
    """A value that is no array is refused by its key and type; what the error names can be saved."""

    def add(key, value):
        with npzkit.NpzWriter(io.BytesIO()) as writer:
            writer.add(key, value)

    saves = {
        "cfg/v": lambda: npzkit.save(tmp_path / "a.npz", {"cfg": {"v": value}}),
        "v": lambda: npzkit.savez(tmp_path / "a.npz", v=value, allow_pickle=False),
        "x/v": lambda: add("x", {"v": value}),
        "k": lambda: add("k", value),
        "s/v": lambda: CheckpointStore(tmp_path / "s").save(1, {"s": {"v": value}}),
        "b/v": lambda: CheckpointStore(tmp_path / "b", background=True).save(
            1, {"b": {"v": value}}
        ),
    }
    one = value[1] if isinstance(value, list) else value
    for key, save in saves.items():
        if isinstance(one, KEPT) and "/" in key:
            continue
        with pytest.raises(PickleRefusedError) as caught:
            save()
        assert caught.value.key == key
        assert f"type {type(one).__name__} " in caught.value.what
        for expression in expressions or ["the arrays, numbers and strings"]:
            assert expression in caught.value.remedy
    names = {"value": one, "np": np, "dtype": "U9", "i": 0}
    for expression in expressions:
        npzkit.save(io.BytesIO(), {"cfg": {"v": eval(expression, names)}})


def labelled(module, name, **attributes):
    """Return an object of a class that looks like one of another package."""
    made = type(name, (), {"__array__": lambda self, dtype=None, copy=None: np.zeros(2)})
    made.__module__ = module
    value = type("Derived", (made,), {})()
    value.__dict__.update(attributes)
    return value


@pytest.mark.parametrize("dtype", ["str", "object", "string", "category"])
def test_texts_of_pandas_are_saved_whole(dtype, tmp_path):
    """What the errors name keeps all of each text, though some are missing."""
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    series = pd.Series(["Köln", "Paris", None]).astype(dtype)
    levels = pd.MultiIndex.from_arrays([series, [1, 2, 3]])
    frame = pd.DataFrame({"a": series})
    for value in (series, pd.Index(series), series.array, levels, frame):
        with pytest.raises((PickleRefusedError, UnsupportedError)) as caught:
            npzkit.save(tmp_path / "a.npz", {"x": value})
        code = re.search(
            r"(?:by|Save) ((?:df|value|np\.)\S*(?: obj\S*)?\(str\))", str(caught.value)
        )
        names = {"value": value, "df": value, "name": "a", "i": 0, "np": np}
        file = io.BytesIO()
        npzkit.save(file, {"x": eval(code[1], names)})
        assert npzkit.open(file)["x"].tolist()[:2] == ["Köln", "Paris"]


@pytest.mark.remedy("Save value.fillna(0). Or, to keep them missing in a file (such an array ")
def test_integers_with_missing_values(tmp_path):
    """They are refused if float64, which pandas makes of them, has other values."""
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    path, large = tmp_path / "a.npz", 2**62 + 1
    for value in (pd.array([large, None], "Int64"), pd.Series([large, None], dtype="UInt64")):
        for tree in ({"x": value}, {"x": {"y": [value]}}):
            with pytest.raises(UnsupportedError, match="missing values") as caught:
                npzkit.save(path, tree)
        with npzkit.ShardedWriter(tmp_path / "folder") as w:
            with pytest.raises(UnsupportedError, match=r"Save value\.fillna\(0\)"):
                w["x"] = value
            w["x"] = value.fillna(0)
        assert npzkit.open(tmp_path / "folder")["x"].tolist() == [large, 0]
        instead = re.search(r"save (np\.ma\.array.*)\.$", caught.value.remedy)[1]
        npzkit.save(path, {"x": eval(instead, {"np": np, "value": value})}, masked="split")
        assert npzkit.load_tree(path)["x"].tolist() == [large, None]
    npzkit.save(path, {"x": pd.array([1, None], "Int64"), "y": pd.array([large], "Int64")})
    with npzkit.open(path) as npz:
        assert npz["x"].tolist()[0] == 1 and npz["y"].tolist() == [large]


@pytest.mark.remedy(
    "Fill the missing texts, and save array.astype(str). Or, to keep them missing in a "
)
@pytest.mark.parametrize("missing", [None, np.nan])
def test_texts_of_which_some_are_missing(tmp_path, missing):
    """The error names the dtype that keeps the missing ones."""
    array = np.array(["a", missing, "bc"], object)
    with pytest.raises(PickleRefusedError, match="Fill the missing texts") as caught:
        npzkit.save(tmp_path / "a.npz", {"x": array})
    instead = re.search(r"NpzWriter, and save (array\.astype.*)\.$", caught.value.remedy)[1]
    with npzkit.ShardedWriter(tmp_path / "folder") as w:
        with pytest.raises(PickleRefusedError, match=r"Fill the .*, and save array\.astype\(str\)"):
            w["x"] = array
        w["x"] = np.where(array == "bc", array, "").astype(str)
    assert npzkit.open(tmp_path / "folder")["x"].tolist() == ["", "", "bc"]
    array = eval(instead, {"numpy": np, "array": array})
    npzkit.save(tmp_path / "a.npz", {"x": array}, strings="split")
    found = npzkit.load_tree(tmp_path / "a.npz")["x"].tolist()
    assert found[::2] == ["a", "bc"] and str(found[1]) == str(missing)


LABELLED = {
    "pandas": (labelled("pandas.core.frame", "DataFrame"), r"df\.to_records\(\)"),
    "polars": (labelled("polars.dataframe.frame", "DataFrame"), r"to_numpy\(structured=True\)"),
    "lazy": (labelled("polars.lazyframe.frame", "LazyFrame"), r"frame\.collect\(\)"),
    "pyarrow": (labelled("pyarrow.lib", "Table"), r"table\.column_names"),
    "batch": (labelled("pyarrow.lib", "RecordBatch"), r"batch\.schema\.names"),
    "table": (labelled("astropy.table.table", "Table"), r"table\.as_array\(\)"),
    "unit": (labelled("astropy.units.quantity", "Quantity"), r"quantity\.value"),
    "coordinates": (labelled("xarray.core.dataarray", "DataArray", coords=[1], attrs={}), "to_npz"),
    "attributes": (labelled("xarray.core.dataarray", "DataArray", coords=[], attrs={1: 2}), "to_npz"),
    "neither": (labelled("xarray.core.dataarray", "DataArray", coords=[], attrs={}), None),
    "another": (labelled("my.pandas", "DataFrame"), None),
}  # fmt: skip


@each_row("name", LABELLED)
def test_what_has_labels_is_refused(name, tmp_path):
    """Tables, units and coordinates are never dropped: the error names the way to save them."""
    value, remedy = LABELLED[name]
    path = tmp_path / "a.npz"

    def add(value):
        with npzkit.NpzWriter(path) as writer:
            writer["x"] = value

    for save in (
        lambda: npzkit.save(path, {"x": value}),
        lambda: npzkit.save(path, {"x": {"y": [value]}}),
        lambda: npzkit.savez(path, x=value),
        lambda: add(value),
    ):
        if remedy is None:
            save()
            continue
        with pytest.raises(UnsupportedError, match=remedy) as caught:
            save()
        assert caught.value.key.startswith("x")
        assert not path.exists()
    if remedy is not None:
        with pytest.raises(UnsupportedError, match=remedy):
            npzkit.save(path, value)
