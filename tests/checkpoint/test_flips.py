"""Any flipped bit and any truncation of a step gives its tree, or the older step with a warning.

Each damage is done to one file of the newest step: the step's file, or the index or a shard
of its folder. A sample of the truncations and the bits is tried; NPZKIT_DEEP=10 tries each one.
`python tests/checkpoint/test_flips.py` counts the outcomes of all of them.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from deep import amount, extent
from npzkit.checkpoint import CheckpointStore
from npzkit.errors import DamagedCheckpointError, DamagedCheckpointWarning, is_damage

FORMS = {
    "file": {},
    "deflated": {"compression": "deflated"},
    "zstd": {"compression": "zstd"},
    "folder": {"shard_size": 400},
}
OLDER, NEWEST = 1, 2


def tree_of(step):
    """Return a tree whose arrays are as small as they can be, and differ from step to step."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return {
        "layers.0": np.full(2, step, "<f4"),
        "layers.1": np.full(2, step + 10, "<f4"),
        "half": np.full(3, step, ml_dtypes.bfloat16),
        "opt": {"m": [np.zeros((0, step)), np.full(64, step, "i1")], "lr": step / 2},
    }


def save(store, step, **options):
    store.save(
        step, tree_of(step), metrics={"loss": step / 4}, metadata={"run": f"r{step}"}, **options
    )


def is_same(found, expected):
    """Whether two trees have the same types, keys in order, dtypes, shapes and bytes."""
    if type(found) is not type(expected):
        return False
    if isinstance(found, dict):
        return list(found) == list(expected) and is_same([*found.values()], [*expected.values()])
    if isinstance(found, list):
        return len(found) == len(expected) and all(map(is_same, found, expected))
    if isinstance(found, np.ndarray):
        return (
            found.dtype == expected.dtype
            and found.shape == expected.shape
            and found.tobytes() == expected.tobytes()
        )
    return found == expected


class Campaign:
    """A store of two steps, the newest of which is damaged and loaded in every way."""

    def __init__(self, folder, form):
        options = dict(FORMS[form])
        size = options.pop("shard_size", None)
        self.store = CheckpointStore(folder, durable=False, **options)
        for step in (OLDER, NEWEST):
            save(self.store, step, shard_size=size)
        self.store.close()
        self.options = {"folder": folder, "durable": False, **options}
        path = Path(self.store.path(NEWEST))
        self.files = sorted(path.iterdir()) if path.is_dir() else [path]
        self.trees = {step: tree_of(step) for step in (OLDER, NEWEST)}

    def truncations(self):
        """Yield files and their bytes, before and after each truncation, and what it is."""
        for path in self.files:
            data = path.read_bytes()
            for size in range(len(data)):
                yield path, data, data[:size], f"{path.name} cut to {size} bytes"

    def flips(self, count=None, seed=0):
        """Yield files and their bytes, before and after a bit of them changed; `count` of each."""
        for path in self.files:
            data = path.read_bytes()
            bits = range(8 * len(data))
            if count is not None:
                bits = random.Random(seed).sample(bits, min(count, len(bits)))
            for bit in bits:
                changed = bytearray(data)
                changed[bit // 8] ^= 1 << bit % 8
                yield path, data, bytes(changed), f"{path.name} bit {bit % 8} of byte {bit // 8}"

    def outcome(self, path, sound, damaged):
        """Return what happens to a damaged step: "newest", "older", or what is wrong."""
        path.write_bytes(damaged)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with CheckpointStore(**self.options) as store:
                    return self._checked(store, self._loaded(store, caught))
        finally:
            path.write_bytes(sound)

    def _loaded(self, store, caught):
        found = self.attempt(store.load)
        if not isinstance(found, tuple):
            return f"load: {found}"
        kinds = [warning.category for warning in caught]
        expected = [DamagedCheckpointWarning] * (found.step == OLDER)
        if kinds != expected:
            return f"load of step {found.step} warns {[str(each.message) for each in caught]}"
        if not is_same(found.tree, self.trees[found.step]):
            return f"wrong tree of step {found.step}"
        if (found.metrics, found.metadata) != (
            {"loss": found.step / 4}, {"run": f"r{found.step}"},
        ):  # fmt: skip
            return "wrong metrics or metadata"
        return "newest" if found.step == NEWEST else "older"

    def _checked(self, store, loaded):
        """Verify the newest step, and read it in parts; return what is wrong, or `loaded`."""
        report = store.verify(NEWEST).steps[NEWEST]
        errors = [row for row in report.rows if row.severity == "error"]
        # The array index, which the tree is read without.
        is_index = bool(errors) and all("array index" in row.what for row in errors)
        if (report.ok or is_index) == (loaded == "newest"):
            return self._parts(store) or loaded
        return f"{loaded} is loaded, and verify says {report}"

    def _parts(self, store):
        """Read the newest step in parts, and return what is wrong."""
        tree = self.trees[NEWEST]
        some = ["layers.1", "half"]
        requests = [{"only": some}]
        if "compression" not in self.options:
            requests.append({"only": some, "mmap_mode": "r"})
        for options in requests:
            found = self.attempt(store.load, NEWEST, **options)
            part = {key: tree[key] for key in some}
            if isinstance(found, tuple) and not is_same(_plain(found.tree), part):
                return f"wrong tree of load({options})"
            if isinstance(found, Exception) and not isinstance(found, DamagedCheckpointError):
                return f"load({options}): {found!r}"
        found = self.attempt(self._lazily, store)
        if isinstance(found, str):
            return found
        if isinstance(found, Exception) and not is_damage(found):
            return f"store[step]: {found!r}"
        return None

    def _lazily(self, store):
        tree = self.trees[NEWEST]
        with store[NEWEST] as npz:
            if set(npz.files) != {"layers.0", "layers.1", "half", "opt/m/0", "opt/m/1"}:
                return f"wrong keys: {npz.files}"
            for key in ("layers.0", "layers.1", "half"):
                if not is_same(npz[key], tree[key]):
                    return f"store[step] has another {key!r}"
                if npz.lazy(key).dtype != tree[key].dtype:
                    return f"store[step].lazy has another {key!r}"
        return None

    def attempt(self, call, *args, **kwargs):
        try:
            return call(*args, **kwargs)
        except (Exception, Warning) as error:
            return error


def _plain(tree):
    """Return a tree with arrays for maps."""
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_plain(value) for value in tree]
    return np.array(tree) if isinstance(tree, np.ndarray) else tree


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_flipped_bit_is_no_wrong_step(tmp_path, form):
    """The newest step is loaded as it was saved, or the older one with one warning.

    No other error or warning, no wrong or missing array, metric or metadata; `verify` agrees.
    """
    campaign = Campaign(tmp_path, form)
    right = {"newest", "older"}
    found = {
        what: campaign.outcome(path, sound, damaged)
        for path, sound, damaged, what in campaign.flips(amount(24, 2_000))
    }
    assert {what: outcome for what, outcome in found.items() if outcome not in right} == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "place"),
    [(b"layers.0", 7), (b"KeyValuePairs", -4), (b"KeyValuePairs", 3), (b"bfloat16", 0),
     (b"NPZX", 0)],
    ids=["key", "attributes", "signature", "dtype", "footer"],
)  # fmt: skip
@pytest.mark.parametrize("form", ["file", "deflated"])
def test_a_flipped_bit_of_the_directory_is_found(tmp_path, form, text, place):
    """A key that becomes its sibling's, and an attribute that goes away, are damage.

    So is a step whose footer is gone, which would find them.
    """
    campaign = Campaign(tmp_path, form)
    (path,) = campaign.files
    sound = path.read_bytes()
    damaged = bytearray(sound)
    damaged[damaged.rindex(text) + place] ^= 1
    assert campaign.outcome(path, sound, bytes(damaged)) == "older"


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_truncated_step_is_damaged(tmp_path, form):
    """A step of which bytes at the end are missing is damaged, however many are left."""
    campaign = Campaign(tmp_path, form)
    with CheckpointStore(**campaign.options) as store:
        for path in campaign.files:
            data = path.read_bytes()
            for size in reversed(range(0, len(data), extent(19, 1))):
                os.truncate(path, size)
                with pytest.raises(DamagedCheckpointError):
                    store.load(NEWEST)
            path.write_bytes(data)


def main():
    import tempfile
    import time

    for form in sys.argv[1:] or FORMS:
        with tempfile.TemporaryDirectory() as folder:
            campaign = Campaign(folder, form)
            begin = time.perf_counter()
            counts, examples = Counter(), {}
            for path, sound, damaged, what in chain(campaign.truncations(), campaign.flips()):
                outcome = campaign.outcome(path, sound, damaged)
                kind = "cut" if len(damaged) < len(sound) else "bit"
                counts[kind, outcome[:90]] += 1
                examples.setdefault(outcome[:90], f"{what}: {outcome}")
        print(f"{form}: {counts.total()} damages in {time.perf_counter() - begin:.0f} s")
        for (kind, outcome), count in counts.most_common():
            print(f"  {count:6} {kind}: {outcome}   ({examples[outcome][:160]})")


if __name__ == "__main__":
    main()
