"""One damage anywhere in a committed archive: what verify says, and what repair saves.

Bits, bytes and sectors are damaged as in `test_single_damage.py`. Each state is verified, and
repaired to a copy and in place. By default that is a sample of some hundred states; NPZKIT_DEEP=1
makes it 20,000.
"""

from __future__ import annotations

import contextlib
import io
import random

import npzkit
import numpy as np
import pytest
from damage import (
    ITS_OWN,
    Campaign,
    Damage,
    differences,
    folder_in_memory,
    is_error,
    keys_of,
    read,
    sampled_damage,
    sector_damage,
)
from deep import amount, extent
from grown_archives import (
    CASES,
    Case,
    by_numpy_compressed,
    by_zipfile,
    deflated,
    durable,
    made,
    noise,
    random_commits,
    stored,
    with_changed_members,
    with_created_arrays,
    with_edited_attributes,
    with_long_comments,
    with_zip64,
)
from history import History, held_as
from npzkit.errors import NpzkitError
from npzkit.zip.commit import COMMENT_NAME

STATE_COUNT = amount(80, 8_000)
"""Of all archives together."""
SWEPT_COUNT = amount(5, 150)
"""Archives of random sizes whose sectors are zeroed."""
UNCHECKED = "local header", "alignment", "chunks", "data"
"""Not every bit of these matters: of a time, of padding, behind the end of a deflate stream."""


@pytest.fixture
def folder(tmp_path):
    with folder_in_memory(tmp_path) as place:
        yield place


def repaired(path, output):
    """Return the report of a repair, or None if nothing can be saved."""
    try:
        return (
            npzkit.repair(path) if output is None else npzkit.repair(path, output, overwrite=True)
        )
    except NpzkitError:
        return None


def unsound(touched):
    """Return the keys of arrays whose data, or both of whose headers, are damaged."""
    headers = keys_of(touched, "local header") & keys_of(touched, "entry")
    return keys_of(touched, "data") | headers


def check_repaired(commit, touched, report, path, *, is_copy):
    """Whatever is sound is as it was committed; whatever is lost or may be older is named."""
    found = read(path)
    assert not found.is_torn
    lost = {row.key for row in report.lost}
    named = lost | set(report.uncertain)
    hit = unsound(touched)
    # Without a copy no array is checked: a damaged one stays listed.
    left = set() if is_copy else keys_of(touched, *ITS_OWN, "entry") & set(found.keys)
    # Of what was zeroed completely, all that is left is that no directory is known.
    is_any_named = report.uncertain == report.kept
    for key, (array, attrs) in commit.held.items():
        if key in left and is_error(found.arrays[key]):
            continue
        is_kept = key in found.keys and found.arrays[key] == array
        assert is_kept or key in hit, f"{key} is lost, {report}"
        assert is_kept or key in named or is_any_named, f"{key} is lost silently, {report}"
        if is_kept and found.attrs[key] != attrs:
            assert key in keys_of(touched, "entry"), f"attributes of {key} are lost, {report}"
            assert key in named, f"attributes of {key} are lost silently, {report}"
    for key in set(found.keys) - set(commit.held):
        assert key in report.uncertain, f"{key} came back silently, {report}"
    if not named - {COMMENT_NAME}:
        assert found.keys == list(commit.held), f"keys {found.keys}"
    if found.metadata != commit.metadata:
        kinds = {part.what for part in touched}
        assert kinds & {"metadata", "comment", "end", "zip64", "footer"}, "metadata"
        is_named = COMMENT_NAME in lost or (is_any_named and not found.metadata)
        assert is_named, f"metadata {str(found.metadata)[:50]}, silently"


def check_verified(case, outcome, commit, touched, damaged):
    report = npzkit.verify(damaged)
    if outcome == "error":
        assert not report.ok
    elif outcome == "new" and report.ok:
        found = read(damaged)
        assert not any(map(is_error, [*found.arrays.values(), found.metadata])), report
        left = [part for part in touched if part.what not in UNCHECKED]
        # What the kill of a writer leaves too is no error, nor is an index without a footer.
        footers = [damaged[part.start : part.stop] for part in touched if part.what == "footer"]
        is_told = found.is_torn or any(not footer.strip(b"\0") for footer in footers)
        is_told |= any("not marked as complete" in row.what for row in report.rows)
        assert not left or is_told, f"verify says nothing of {left[0].what}"


def check_repair(case, outcome, commit, damaged, touched, folder, where):
    is_small = sum(map(int.__ne__, damaged, case.data)) == 1
    path, output = folder / "damaged.npz", folder / "repaired.npz"
    path.write_bytes(damaged)
    report = repaired(path, output if where == "copy" else None)
    if report is not None:
        place = output if where == "copy" else path
        check_repaired(commit, touched, report, place, is_copy=place is output)
    elif where == "copy":
        assert set(commit.held) <= unsound(touched), "nothing is saved"
    else:
        assert path.read_bytes() == damaged
        # Other programs read no file whose first signature is damaged.
        # Of a lost sector no directory may be left.
        is_readable = damaged[:4] == case.data[:4] and is_small
        assert not is_readable, "it is not repaired"


def repairing_in(folder) -> Campaign:
    def check(case, damage, outcome, commit, number):
        damaged = damage.of(case.data)
        touched = case.touched(damaged)
        check_verified(case, outcome, commit, touched, damaged)
        for where in ("copy", "in place"):
            try:
                check_repair(case, outcome, commit, damaged, touched, folder, where)
            except AssertionError as error:
                raise AssertionError(f"{where}: {error}") from error

    return Campaign(check)


def part_of(case, what, key=""):
    """Return where the first part of a kind is."""
    return next(p for p in case.parts if p.what == what and p.name.startswith(key.encode()))


def repaired_both(case, damage, folder):
    """Repair to a copy and in place; return the reports, and what is read then."""
    path, output = folder / "damaged.npz", folder / "repaired.npz"
    path.write_bytes(damage.of(case.data))
    reports = npzkit.repair(path, output, overwrite=True), npzkit.repair(path)
    return [(report, read(report.output)) for report in reports]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "key", "place", "data"),
    [
        (stored, "d", 0, bytes(35)),
        (stored, "d", 28, b"\xff"),
        (deflated, "seekable", 0, bytes(35)),
        (by_numpy_compressed, "c", 28, b"\xff"),
        (by_zipfile, "c", 6, b"\0"),
        (by_zipfile, "c", -1, b"\xff"),
    ],
)
def test_a_local_header_that_is_lost(make, key, place, data, tmp_path):
    """A copy finds the data where the array index or the directory says, and needs no descriptor."""
    case = made(make, tmp_path)
    headers = [
        p for p in case.parts if p.what == "local header" and p.name == f"{key}.npy".encode()
    ]
    start = headers[0].start + place if place >= 0 else headers[-1].stop + place
    report, found = repaired_both(case, Damage(start, data), tmp_path)[0]
    assert not report.lost
    assert not differences(found, case.commits[-1])


def test_an_array_that_was_created_over_a_commit(tmp_path):
    """If the signature of its entry is damaged, it is listed where it was, though the commit before lacks it."""
    case = made(with_created_arrays, tmp_path)
    for key in ("later", "now", "grown"):
        start = part_of(case, "entry", key).start
        for report, found in repaired_both(case, Damage(start, b"p"), tmp_path):
            assert not report.uncertain
            assert not differences(found, case.commits[-1])


def test_edited_attributes_that_are_lost_are_named(tmp_path):
    """Attributes that stood in a damaged entry alone may be older, and the array is uncertain."""
    case = made(with_edited_attributes, tmp_path)
    entry = part_of(case, "entry", "d")
    for start, size in ((entry.start, 512), (entry.stop - 10, 1)):
        damage = Damage(start, bytes(min(size, len(case.data) - start)))
        for report, found in repaired_both(case, damage, tmp_path):
            assert found.arrays["d"] == case.commits[-1].held["d"].array
            assert found.attrs["d"] != case.commits[-1].held["d"].attrs
            assert "d" in report.uncertain


def test_the_crc_32_of_an_entry_costs_no_edited_attribute(tmp_path):
    """If only the CRC-32 in an entry is damaged, the attributes in it are the ones that are kept."""
    case = made(with_edited_attributes, tmp_path)
    start = part_of(case, "entry", "d").start + 16
    damage = Damage(start, bytes([case.data[start] ^ 1]))
    for _, found in repaired_both(case, damage, tmp_path):
        assert not differences(found, case.commits[-1])


def test_a_long_comment_that_is_lost_is_named(tmp_path):
    """Metadata whose sectors are lost, with all that follows, is reported."""
    case = made(with_long_comments, tmp_path)
    start = part_of(case, "footer").start
    for report, found in repaired_both(
        case, Damage(start, bytes(len(case.data) - start)), tmp_path
    ):
        assert found.metadata == case.commits[-2].metadata
        assert COMMENT_NAME in {row.key for row in report.lost}


def test_older_versions_are_uncertain(tmp_path):
    """If the newest version of an array is damaged, and its directory, an older one that is kept is named."""
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(path, {"a": np.arange(3.0), "b": np.arange(4)})
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w.add("a", np.arange(3.0) + 9, overwrite=True)
    data = bytearray(path.read_bytes())
    data[data.rindex((np.arange(3.0) + 9).tobytes())] ^= 1
    end = data.rindex(b"NPZX") - 72
    path.write_bytes(data[:end] + bytes(len(data) - end))
    for place in (output, None):
        report = npzkit.repair(path, place, overwrite=True) if place else npzkit.repair(path)
        assert "a" in report.uncertain
    assert read(output).arrays["a"] == held_as(np.arange(3.0))


# By its counts, that of zip64 would have a shorter end: see `zip64_from`.
@pytest.mark.slow
@pytest.mark.parametrize("make", [make for make in CASES if make is not with_zip64])
def test_a_file_that_is_cut_off(make, folder):
    """Cut within the end of any commit, a file is not read; all that repair saves of it is uncertain."""
    case = made(make, folder)
    path, output = folder / "damaged.npz", folder / "repaired.npz"
    for commit in case.commits:
        for lacking in range(1, 100, extent(60, 1)):
            path.write_bytes(case.data[: commit.size - lacking])
            with pytest.raises(NpzkitError, match=r"cut off|damaged"):
                npzkit.open(path)
            for report in filter(None, (repaired(path, output), repaired(path, None))):
                found = read(report.output)
                assert report.uncertain == report.kept == tuple(found.keys)
                for key in found.keys:
                    versions = [one.held[key].array for one in case.commits if key in one.held]
                    assert found.arrays[key] in versions


def version(path, number, **options):
    """Return an archive of which another version has the same keys and shapes, and what it holds."""
    history = History(path)
    with history.edit("w", **options) as e:
        for key in "abcd":
            e.add(key, noise(700, number), attrs={"version": number})
        e.edit_metadata(version=number)
    with history.edit(**options) as e:
        e.add("b", noise(500, number + 10), overwrite=True)
    return history.content, history.newest


def fitting(versions, arrays, attrs):
    """Return the versions that have all of these arrays and attributes, errors apart."""
    return [
        one for one in versions
        if all(is_error(arrays[key]) or one.held[key] == (arrays[key], attrs[key]) for key in arrays)
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_half_of_another_version(compression, folder):
    """Of a copy over another version that broke off, no array is a mixture, and what is certain is of one version."""
    path, output = folder / "damaged.npz", folder / "repaired.npz"
    (old, *versions), (new, newer) = (
        version(folder / f"{number}.npz", number, compression=compression) for number in (1, 2)
    )
    versions.append(newer)
    told = 0
    for cut in range(1, min(len(old), len(new)), extent(97, 1)):
        path.write_bytes(new[:cut] + old[cut:])
        with contextlib.suppress(NpzkitError):
            found = read(path)
            assert fitting(versions, found.arrays, found.attrs)
        for report in filter(None, (repaired(path, output), repaired(path, None))):
            found = read(report.output)
            named = {*report.uncertain, *(row.key for row in report.lost)}
            certain = {key: array for key, array in found.arrays.items() if key not in named}
            assert fitting(versions, certain, found.attrs)
            told += bool(report.uncertain)
    assert told


def test_an_older_directory_over_the_newest(tmp_path):
    """If the newest directory was overwritten by an older one, nothing that this lists is certain."""
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(path, {"a": np.arange(3), "b": np.arange(4)})
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w["c"] = np.arange(5)
    older = path.read_bytes()
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        del w["b"]
        w["d"] = np.arange(7)
    data = path.read_bytes()
    begin, end = older.rindex(b"PK\1\2"), data.rindex(b"PK\5\6")
    block = older[begin : older.rindex(b"PK\5\6")]
    path.write_bytes(data[: end - len(block)] + block + data[end:])
    for report in (npzkit.repair(path, output, overwrite=True), npzkit.repair(path)):
        assert report.uncertain == report.kept


def test_an_end_record_before_the_last_commit(tmp_path):
    """If bytes were inserted behind a commit, what follows is found, and everything is uncertain."""
    case = made(with_changed_members, tmp_path)
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    for commit in case.commits[:-1]:
        path.write_bytes(case.data[: commit.size] + b"PK\5\6" + case.data[commit.size :])
        report = npzkit.repair(path, output, overwrite=True)
        found = read(output)
        for key, (array, _) in case.commits[-1].held.items():
            assert found.arrays[key] == array
        assert report.uncertain == report.kept


@pytest.mark.slow
def test_every_byte_of_an_intent_is_checked(tmp_path):
    """verify reports any byte of the newest intent that was flipped, and nothing of a sound one."""
    case = made(durable, tmp_path)
    assert npzkit.verify(case.data).ok
    intent = part_of(case, "intent")
    for start in range(intent.start, intent.stop):
        damage = Damage(start, bytes([case.data[start] ^ 0x10]))
        report = npzkit.verify(damage.of(case.data))
        assert not report.ok, start - intent.start
        assert "marks the last commit" in str(report)


@pytest.mark.parametrize("size", [0, 4])
def test_an_index_of_which_a_sector_is_lost(size, tmp_path):
    """verify reports an index whose beginning became zeros; if all of it did, that is dead space."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"zeros": np.zeros(4000)})
    data = path.read_bytes()
    start, stop = data.rindex(b".npzkit") - 46, data.index(b"NPZX") + size
    report = npzkit.verify(data[:start] + bytes(stop - start) + data[stop:])
    assert report.ok == bool(size)
    assert ("dead space" if size else "index is damaged") in str(report)


@pytest.mark.slow
@pytest.mark.parametrize("make", CASES)
def test_what_is_sound_is_kept(make, folder):
    """Whatever one bit, byte or sector becomes, repair keeps what is sound, and names all else."""
    case = made(make, folder)
    campaign = repairing_in(folder)
    damages = sampled_damage(case)
    step = max(len(damages) * len(CASES) // STATE_COUNT, 1)
    for damage in damages[sum(map(ord, case.name)) % step :: step]:
        campaign.run(case, damage)
    campaign.finish()


@pytest.mark.slow
def test_lost_sectors_of_archives_of_all_sizes(folder):
    """Wherever commits begin and end within sectors, a lost one costs no sound array, and is reported."""
    campaign = repairing_in(folder)
    for number in range(SWEPT_COUNT):
        history = random_commits(random.Random(number), io.BytesIO())
        case = Case(f"seed {number}", history.content, history.commits)
        for damage in list(sector_damage(case))[:: extent(4, 1)]:
            campaign.run(case, damage)
    campaign.finish()
