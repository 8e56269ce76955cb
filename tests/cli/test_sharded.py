"""Commands that read a sharded archive, by its folder."""

from __future__ import annotations

import os
import re

import npzkit
import numpy as np
import pytest
from archives import damage
from npzkit.cli.messages import as_word
from sharded import WHOLE, write_run


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "run")


COMMANDS = {
    "ls -l": "stored in 4 parts",
    "ls --json": '"key": "layer/1"',
    "ls --tree": "layer",
    "verify": "sound, 3 members",
    "info": '{"step": 7}',
    "info w": "no: it is stored in 4 parts",
    "show w": "[36. 37. 38. 39. 40. 41.]",
    "show w 1:3 --stats": "11.5",
}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "expected"), COMMANDS.items())
def test_reading_commands_take_the_folder(folder, cli, command, expected):
    """Each command that reads an archive reads a folder with an index."""
    name, *rest = command.split()
    options = [option for option in rest if option.startswith("-")]
    result = cli(name, *options, str(folder), *[word for word in rest if word not in options])
    assert result.code == 0, result
    assert expected in result.out


@pytest.mark.parametrize("command", ["ls", "info", "verify", "diff"])
@pytest.mark.parametrize("name", ["run", "one.npz", "more.npy"])
@pytest.mark.usefixtures("folder")
def test_urls_of_local_files_are_paths(cli, tmp_path, command, name):
    """file:// and local:// mean the path, to a folder with an index as to a file."""
    np.savez(tmp_path / "one.npz", x=np.arange(3))
    np.save(tmp_path / "more.npy", np.arange(3))
    path = tmp_path / name
    count = 2 if command == "diff" else 1
    for url in path.as_uri(), f"local://{path.as_posix()}":
        assert cli(command, *[url] * count) == cli(command, *[path.as_posix()] * count)


def test_what_no_commit_has_listed_is_named(folder, cli):
    """verify has a note on shards beside an archive, and is not silent about a lost index."""
    with npzkit.ShardedWriter(folder, attempt="b") as w:
        w["x"] = np.ones(3)
    found = cli("verify", "-v", folder)
    assert (found.code, f"does not list: {w.shards[0]}\n" in found.out) == (0, True)
    assert w.shards[0] not in cli("verify", "-v", folder, "-k", "w").out
    os.remove(folder / "index.npz")
    for command in ("verify", folder), ("verify", "-r", folder.parent):
        found = cli(*command)
        assert (found.code, found.err.count("has shards, but no index.npz")) == (2, 1)
        assert found.err.endswith("run the writers again as a new attempt, then commit.\n")
        assert "sound" not in found.out
    assert cli("verify", folder / w.shards[0]).code == 0


def test_arrays_of_a_missing_shard_are_named_when_skipped(folder, cli, tmp_path):
    """extract says of each array that it skips which one it is."""
    with npzkit.open(folder) as npz:
        (part,) = npz.parts("layer/1")
    os.remove(folder / part.shard)
    found = cli("extract", folder, "-o", tmp_path / "out")
    assert found.code == 1
    assert re.findall("key '(.*?)'", found.err) == ["w", "layer/1"]


@pytest.mark.remedy("npz.lazy(key)[a:b], or isel of xarray, reads the sound rows.")
def test_the_advice_on_a_damaged_shard_works(cli, tmp_path, remedies_met):
    """verify says what reads the sound rows, and what saves the sound arrays."""
    folder, array = tmp_path / "run", np.arange(1 << 17)
    with npzkit.ShardedWriter(folder) as w:
        w["x"], w["y"] = array, np.arange(3)
        w.commit()
    damage(folder / w.shards[0], "x", 100)
    (row,) = npzkit.verify(folder).rows
    remedies_met.texts.append(row.remedy)
    with npzkit.open(folder) as npz:
        assert (npz.lazy("x")[100_000:] == array[100_000:]).all()
    told = cli("verify", folder).out
    assert "in Python, npzkit.open(path).lazy(key)[a:b] reads the sound rows of this one." in told
    (command,) = re.findall("npzkit (extract .* -o) FOLDER", told)
    assert cli(*command.split(), tmp_path / "out").code == 1
    assert np.load(tmp_path / "out" / "y.npy").tolist() == [0, 1, 2]


def test_what_is_left_of_a_damaged_one_is_saved(folder, cli, tmp_path):
    """repair says what saves the sound arrays, and the sound rows of a damaged one; both work."""
    with npzkit.open(folder) as npz:
        part = npz.parts("w")[0]
    with npzkit.open(folder / part.shard) as shard:
        offset = shard.info(part.key).data_offset
    data = bytearray((folder / part.shard).read_bytes())
    data[offset] ^= 1
    (folder / part.shard).write_bytes(data)
    in_place = cli("repair", folder)
    refused = cli("repair", folder, "-o", tmp_path / "a.npz")
    assert (in_place.code, refused.code) == (1, 2)
    for told in in_place.out, refused.err:
        assert "repair does not take a sharded archive" in told
        assert f"npzkit extract {folder} -o FOLDER" in told
        assert f"npzkit.open({str(folder)!r}).lazy(key)[a:b]" in told
    cli("extract", folder, "-o", tmp_path / "arrays")
    assert os.listdir(tmp_path / "arrays") == ["layer"]
    rows = npzkit.open(str(folder)).lazy("w")[part.shape[0] :]
    np.testing.assert_array_equal(rows, WHOLE[part.shape[0] :])


def test_repair_saves_no_columns_of_an_index(folder, cli, tmp_path):
    """The index is not taken for an archive, also if no shard is left; what is missing is named."""
    shards = sorted(folder.glob("shard-*.npz"))
    for shard in shards:
        shard.unlink()
    for given in folder, folder / "index.npz":
        in_place, into = cli("repair", given), cli("repair", given, "-o", f"{tmp_path}/out/")
        refused = cli("repair", given, "-o", tmp_path / "a.npz")
        assert (in_place.code, into.code, refused.code) == (1, 1, 2)
        for told in in_place.out, into.out:
            assert all(shard.name in told for shard in shards)
            assert "not take a sharded archive or its index" in told
            assert f"npzkit extract {folder} -o" in told
        assert f"npzkit verify {folder} names missing and damaged shards" in refused.err
        assert f"npzkit extract {folder} -o" in refused.err
    assert all(shard.name in cli("verify", folder).out for shard in shards)
    assert not (tmp_path / "a.npz").exists()


def test_a_damaged_index_is_not_repaired(folder, cli, tmp_path):
    """It would get another directory, without what makes it an index. A user's file of that name is repaired."""
    index, other = folder / "index.npz", tmp_path / "index.npz"
    npzkit.save(other, {"x": np.arange(3)})
    for path in index, other:
        os.truncate(path, path.stat().st_size - 10)
    data = index.read_bytes()
    result = cli("repair", index)
    assert result.code == 1
    assert "not take a sharded archive or its index" in result.out
    with pytest.raises(npzkit.errors.UnsupportedError):
        npzkit.repair(index)
    assert index.read_bytes() == data
    npzkit.repair(other)
    with npzkit.open(other) as npz:
        assert npz["x"].tolist() == [0, 1, 2]


def test_repack_of_an_index_is_that_of_its_folder(folder, cli):
    """The shards are written again, not the index alone."""
    before = {*folder.glob("shard-*.npz")}
    assert cli("repack", folder / "index.npz").code == 0
    assert before.isdisjoint(folder.glob("shard-*.npz"))
    assert cli("verify", folder).code == 0


def test_files_are_made_of_the_folder(folder, cli, tmp_path):
    """convert, extract, pack and diff read a folder with an index."""
    one = tmp_path / "one.npz"
    assert cli("convert", folder, one).code == 0
    with np.load(one) as npz:
        np.testing.assert_array_equal(npz["w"], WHOLE)
    assert cli("diff", folder, one).code == 0
    assert cli("extract", folder, "w", "-o", tmp_path / "out").code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "w.npy"), WHOLE)
    assert cli("pack", tmp_path / "packed.npz", folder).code == 0
    with np.load(tmp_path / "packed.npz") as npz:
        np.testing.assert_array_equal(npz["w"], WHOLE)


def test_damage_is_reported(folder, cli):
    """`verify` names the shard that does not exist, and exits with 1."""
    gone = min(folder.glob("shard-*.npz"))
    gone.unlink()
    result = cli("verify", folder)
    assert result.code == 1
    assert gone.name in result.out


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "deflated"])
def test_repack_joins_shards(folder, cli, compression):
    """An array that has grown by many parts is one again; keys, values and attributes stay."""
    for number in range(3):
        with npzkit.ShardedWriter(folder, mode="a", metadata={"step": number}) as writer:
            writer.add(f"new{number}", np.full(2, number), attrs={"unit": "m"})
            writer.commit()
    with npzkit.open(folder) as npz:
        before = npz.load_all()
    result = cli("repack", folder, *(() if compression is None else ("-c", compression)))
    assert (result.code, result.err) == (0, "")
    assert "5 -> 1 shard" in result.out
    assert len(list(folder.glob("shard-*.npz"))) == 1
    with npzkit.open(folder) as npz:
        assert {key: array.tolist() for key, array in npz.load_all().items()} == {
            key: array.tolist() for key, array in before.items()
        }
        assert npz.metadata["step"] == 2
        assert npz.info("new1").attrs == {"unit": "m"}
    assert cli("verify", folder).code == 0
    (found,) = cli("repack", folder, "--json").json()
    assert (found["shards_before"], found["shards"]) == (1, 1)


def test_repack_of_a_damaged_folder_changes_nothing(folder, cli):
    """A shard that is missing is an error, and the others stay."""
    min(folder.glob("shard-*.npz")).unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert cli("repack", folder).code != 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("options", [(), ("-o", "fixed/")])
def test_repair_of_a_sound_one(folder, cli, monkeypatch, options):
    """It is checked, and called sound, or counted among other files."""
    monkeypatch.chdir(folder.parent)
    found = cli("repair", "run", *options)
    assert (found.code, found.err) == (0, "")
    assert "run: sound, 3 members" in found.out
    np.savez("other.npz", x=np.arange(3))
    assert cli("repair", "-r", ".", *options) == (0, "2 files: 2 sound\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["repack -o out/", "repair"])
@pytest.mark.parametrize("place", ["run", "run -r", ". -r"])
def test_shards_are_not_changed_one_by_one(folder, cli, monkeypatch, command, place):
    """A changed shard would not fit the index, so the folder is an error, and other files are done."""
    monkeypatch.chdir(folder.parent)
    np.savez("other.npz", x=np.arange(3))
    min(folder.glob("shard-*.npz")).unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = cli(*command.split(), *place.split())
    assert result.code == (2 if "repack" in command else 1)
    assert f"{command.split()[0]} does not" in result.out or "only in place" in result.err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    done = "1 sound" if command == "repair" else "other.npz"
    assert (done in result.out) == place.startswith(".")


def test_verify_finds_folders_within_folders(folder, cli):
    """With -r a sharded archive is one archive, checked with its index."""
    np.savez(folder.parent / "other.npz", x=np.arange(3))
    result = cli("verify", "-r", folder.parent)
    assert result.code == 0
    assert "2 files: 2 sound" in result.out
    for shard in folder.glob("shard-*.npz"):
        shard.unlink()
        break
    assert cli("verify", "-r", folder.parent).code == 1


def test_commands_that_take_one_file(folder, cli, tmp_path):
    """The error says how to make one file of the folder, which they take."""
    np.save(tmp_path / "x.npy", np.ones(2))
    one = tmp_path / "one.npz"
    told = f"sharded archive. npzkit convert {as_word(str(folder))} FILE.npz makes one file of it"
    commands = [("add", str(tmp_path / "x.npy"))]
    for command, *rest in commands:
        found = cli(command, str(folder), *rest)
        assert (found.code, told in found.err) == (2, True), found
    assert cli("convert", str(folder), str(one)).code == 0
    for command, *rest in commands:
        assert cli(command, str(one), *rest).code == 0


def test_arrays_of_a_folder_are_removed_and_renamed(folder, cli):
    """rm and mv change the index alone, and rm says how the bytes go."""
    shards = {path.name: path.read_bytes() for path in folder.glob("shard-*.npz")}
    assert cli("mv", folder, "w", "layer/w").out == f"{folder}: renamed w to layer/w\n"
    result = cli("rm", folder, "layer/[0-9]*")
    assert (result.code, f"shards: npzkit repack {as_word(str(folder))}" in result.out) == (0, True)
    with npzkit.open(folder) as npz:
        assert npz.files == ["layer/w"]
        assert np.array_equal(npz["layer/w"], WHOLE)
    left = {path.name: path.read_bytes() for path in folder.glob("shard-*.npz")}
    assert left.items() <= shards.items()
    found = cli("rm", folder, "layer/w", "typo")
    assert (found.code, "'layer/w'" in found.err) == (2, True)
    assert cli("verify", folder).code == 0
