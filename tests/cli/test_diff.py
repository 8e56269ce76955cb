"""diff: what the command prints of a comparison, and its exit codes."""

from __future__ import annotations

import npzkit
import numpy as np
import pytest
from archives import damage


@pytest.fixture
def differences(cli, tmp_path):
    """Save two archives and return what diff says of them as JSON, with the exit code."""

    def compare(a, b, *options, save=npzkit.save):
        npzkit.save(tmp_path / "a.npz", a)
        save(tmp_path / "b.npz", **b) if save is np.savez else save(tmp_path / "b.npz", b)
        result = cli("diff", tmp_path / "a.npz", tmp_path / "b.npz", "--json", *options)
        found = result.json()
        assert result.code == (0 if found["equal"] else 1)
        assert found["equal"] == (not found["rows"])
        assert result.err == ""
        return found["rows"]

    return compare


def test_equal_archives(differences, arrays, cli, tmp_path):
    """The same arrays have no difference, whoever wrote them, compressed or not."""
    assert differences(arrays, arrays) == []
    assert differences(arrays, arrays, "--fast") == []
    assert differences(arrays, arrays, save=np.savez) == []
    assert (
        cli("diff", tmp_path / "a.npz", tmp_path / "b.npz").out
        == "13 keys: no difference; metadata differ: --metadata shows them\n"
    )


def test_other_units_are_mentioned(cli, tmp_path):
    """A unit that differs is no difference of values, and the last line says how to see it."""
    for name, unit in (("a", "V"), ("b", "mV")):
        npzkit.save(tmp_path / f"{name}.npz", {"v": np.ones(3)}, attrs={"v": {"unit": unit}})
    found = cli("diff", tmp_path / "a.npz", tmp_path / "b.npz")
    told = "1 key: no difference; attributes differ: --metadata shows them\n"
    assert (found.code, found.out) == (0, told)
    assert "unit" in cli("diff", tmp_path / "a.npz", tmp_path / "b.npz", "--metadata").out


def test_keys_that_are_named(cli, tmp_path):
    """Only KEYS are compared; one that neither archive has is trouble."""
    a, b = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(a, {"x": np.arange(3), "y": np.zeros(2)})
    npzkit.save(b, {"x": np.arange(3), "y": np.ones(2)})
    assert cli("diff", a, b, "x").out == "1 key: no difference\n"
    assert cli("diff", a, b, "x", "y").code == 1
    assert (absent := cli("diff", a, b, "z")).code == 2
    assert "neither archive has an array named 'z' (key 'z'). Existing keys" in absent.err
    assert "b.npz" not in absent.err + cli("diff", a, b, "z*").err


def test_the_worst_value_is_told(differences, cli, tmp_path):
    """How many differ, which two most, and where, in arrays of many pieces."""
    a = np.random.default_rng(0).random((600, 700))
    b = a.copy()
    b[10, 20] += 1
    b[500, 600] += 9
    b[501, 0] -= 3
    (row,) = differences({"x": a}, {"x": np.asfortranarray(b)})
    assert (row["value_count"], row["worst"]) == (3, [500, 600])
    assert (row["a"], row["b"]) == (a[500, 600], b[500, 600])
    assert row["max_difference"] == pytest.approx(9)
    out = cli("diff", tmp_path / "a.npz", tmp_path / "b.npz").out
    values = f"{a[500, 600]} and {b[500, 600]}"
    assert out == f"x: 3 values differ, most by 9 at (500, 600): {values}\n1 key: 1 changed\n"


def test_metadata_and_attributes(cli, tmp_path):
    """They are compared where --metadata asks for it."""
    for name, unit in (("a", "m"), ("b", "km")):
        metadata = {"name": name, "same": 1, f"only {name}": 1}
        with npzkit.NpzWriter(tmp_path / f"{name}.npz", metadata=metadata) as w:
            w.add("x", np.zeros(3), attrs={"unit": unit})
    files = tmp_path / "a.npz", tmp_path / "b.npz"
    assert cli("diff", *files).code == 0
    found = cli("diff", *files, "--metadata", "--json").json()["rows"]
    assert [(row["key"], row["kind"], row["a"]) for row in found] == [
        (None, "metadata", {"name": "a", "same": 1, "only a": 1}), ("x", "attributes", {"unit": "m"})
    ]  # fmt: skip
    a, b = files
    assert cli("diff", a, b, "--metadata").out.splitlines() == [
        "metadata name: 'a' and 'b'", f"metadata only a: removed (only in {a})",
        f"metadata only b: added (only in {b})", "x: attribute unit: 'm' and 'km'", "1 key: 1 changed",
    ]  # fmt: skip


def test_values_of_nested_data(cli, tmp_path):
    """Each value of a tree that differs is named, and with --metadata another structure is."""
    a, b, c = (tmp_path / f"{name}.npz" for name in "abc")
    tree = {"w": np.ones(2), "opt": {"lr": 0.1, "betas": [0.9, 0.99]}}
    npzkit.save(a, tree)
    npzkit.save(b, {**tree, "opt": {**tree["opt"], "lr": 0.2}})
    npzkit.save(c, {**tree, "opt": {**tree["opt"], "betas": (0.9, 0.99)}})
    for options in ((), ("--metadata",)):
        assert cli("diff", a, b, *options).out.startswith(
            "opt/lr: value differs: 0.1 and 0.2\n4 keys"
        )
    for key, code in (("opt", 1), ("opt/l*", 1), ("opt/betas/", 0)):
        assert cli("diff", a, b, key).code == code
    assert "other lists, tuples" in cli("diff", a, c, "--metadata").out
    np.savez(c, **{"w": np.ones(2), "opt/betas": [0.9, 0.99]})
    found = cli("diff", a, c)
    assert (found.code, found.out.splitlines()[0]) == (1, f"opt/lr: removed (only in {a})")


def test_objects_and_members_that_are_no_arrays(cli, tmp_path, fixtures):
    """Pickles are held against each other by their CRC-32s alone, as other bytes are."""
    objects, names = fixtures / "numpy_object.npz", fixtures / "zipfile_names.npz"
    assert cli("diff", objects, objects).code == 0
    npzkit.save(tmp_path / "a.npz", {"objects": np.array([1, 2, 3], object)}, allow_pickle=True)
    assert "objects: the pickles differ" in cli("diff", objects, tmp_path / "a.npz").out
    assert cli("diff", names, names).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("other", [0, 1], ids=["equal", "different"])
def test_damage_is_no_difference_and_no_equality(compression, other, cli, tmp_path):
    """A damaged array is told with its key, and exit code 2; the other arrays are compared."""
    path, copy = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(path, {"x": np.arange(9000), "y": np.arange(3)}, compression=compression)
    npzkit.save(copy, {"x": np.arange(9000), "y": np.arange(other, other + 3)})
    if compression == "stored" and not other:
        copy.write_bytes(path.read_bytes())
    damage(copy, "x", 200)
    for side, names in (("b", (path, copy)), ("a", (copy, path))):
        found = cli("diff", *names)
        assert found.code == 2
        *_, line, summary = found.out.splitlines()
        assert line.startswith(f"x: cannot be compared, in {side}: ")
        assert "damaged" in line
        assert summary == ("2 keys: 1 changed, 1 damaged" if other else "2 keys: 1 damaged")
        document = cli("diff", *names, "--json").json()
        assert document["equal"] is False
        assert [document["path_a"], document["path_b"]] == list(map(str, names))
        assert [(row["archive"], row["key"]) for row in document["problems"]] == [(side, "x")]
        assert [row["key"] for row in document["rows"]] == ["y"] * other


def test_fast_trusts_recorded_checksums_and_says_so(cli, tmp_path):
    """With --fast arrays of the same recorded CRC-32 are not read; what is read is checked."""
    path, copy = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(path, {"x": np.arange(1000)})
    copy.write_bytes(path.read_bytes())
    damage(copy, "x", 0)
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


def test_a_tolerance_is_passed_on(differences):
    """--atol and --rtol say how far values may differ; the largest difference is shown."""
    a, b = np.array([1.0, 100.0]), np.array([1.1, 104.0])
    assert differences({"x": a}, {"x": b}, "--atol", "0.2", "--rtol", "0.05") == []
    assert differences({"x": a}, {"x": b}, "--atol", "0.2") == [
        {
            "key": "x",
            "kind": "values",
            "a": 100,
            "b": 104,
            "value_count": 1,
            "worst": [1],
            "max_difference": 4,
            "field": None,
            "nan_count": 0,
            "inf_count": 0,
        }
    ]


def test_values_that_are_not_finite(differences, cli, tmp_path):
    """The text shows them; JSON, which has no such numbers, has null."""
    (row,) = differences({"x": np.array([np.nan])}, {"x": np.array([np.inf])})
    assert (row["a"], row["b"], row["nan_count"], row["inf_count"]) == (None, None, 1, 0)
    out = cli("diff", tmp_path / "a.npz", tmp_path / "b.npz").out
    assert out.startswith("x: 1 value differs, at (0,): nan and inf\n")


@pytest.mark.parametrize("options", [["--atol", "-1"], ["--rtol", "nan"], ["--atol", "x"]])
def test_wrong_tolerance(options, cli, fixtures):
    """A tolerance is a number, 0 or more."""
    path = fixtures / "digits.npz"
    result = cli("diff", path, path, *options)
    assert (result.code, result.err.count("\n")) == (2, 1)


def test_the_standard_input_is_one_archive(cli):
    """- cannot be both."""
    found = cli("diff", "-", "-")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "one archive" in found.err


def test_metadata_that_are_not_compared_are_told(cli, here):
    """Equal arrays with other metadata have no difference, and a word on the metadata."""
    for name, step in (("a.npz", 1), ("b.npz", 2)):
        npzkit.save(name, {"x": np.arange(3), "p": {"lr": 1}}, metadata={"step": step})
    found = cli("diff", "a.npz", "b.npz")
    told = "2 keys: no difference; metadata differ: --metadata shows them\n"
    assert (found.code, found.out) == (0, told)
    assert cli("diff", "a.npz", "b.npz", "--metadata").code == 1
    assert cli("diff", "a.npz", "a.npz").out == "2 keys: no difference\n"
