"""One damage anywhere in a committed archive: what verify says, and what repair saves.

Bits, bytes and sectors are damaged as in `test_single_damage.py`. Each state is verified, and
repaired to a copy and in place. By default that is a sample of some hundred states; NPZKIT_DEEP=1
makes it 20,000.
"""

from __future__ import annotations

import npzkit
import pytest
from damage import (
    ITS_OWN,
    Campaign,
    folder_in_memory,
    is_error,
    keys_of,
    read,
    sampled_damage,
)
from deep import amount
from grown_archives import CASES, made
from npzkit.errors import NpzkitError
from npzkit.zip.long_comment import COMMENT_NAME

STATE_COUNT = amount(250, 20_000)
"""Of all archives together."""
UNCHECKED = "local header", "alignment", "seek index"
"""Not every byte of these matters: of a time, or of padding."""


@pytest.fixture
def folder(tmp_path):
    with folder_in_memory(tmp_path) as place:
        yield place


def repaired(path, output):
    """Return the report of a repair, or None if nothing can be saved."""
    try:
        return npzkit.repair(path) if output is None else npzkit.repair(path, output)
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
        assert not left or found.is_torn, f"verify says nothing of {left[0].what}"


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
