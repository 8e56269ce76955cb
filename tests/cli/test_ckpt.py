"""npzkit ckpt: a folder of checkpoints at a prompt."""

from __future__ import annotations

import os
import re
import shlex

import npzkit
import numpy as np
import pytest
from npzkit.checkpoint import CheckpointStore, latest
from npzkit.cli.ckpt import ckpt
from npzkit.errors import format_size
from slow_folders import change_after_first_list


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A folder `run` with the steps 100, 200 and 300, in the working directory."""
    monkeypatch.chdir(tmp_path)
    with CheckpointStore("run", durable=False) as store:
        for step, loss in [(100, 0.5), (200, 0.25), (300, 0.75)]:
            tree = {"model": {"w": np.full(9, step), "b": np.zeros(3)}, "lr": 0.1}
            store.save(step, tree, metrics={"loss": loss}, metadata={"note": f"at {step}"})
    return tmp_path / "run"


def damage(path, *, metadata=False):
    data = bytearray(path.read_bytes())
    data[data.rindex(b'"loss"') + 2 if metadata else data.index(b"NUMPY") + 130] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", list(ckpt.commands))
def test_every_example_runs(name, run, cli):
    """What stands behind "Example:" in the help of each command works; the help is narrow."""
    (example,) = re.findall(r"^\s*Example: (.+)$", ckpt.commands[name].help, re.MULTILINE)
    program, *arguments = shlex.split(example)
    assert (program, arguments[:2]) == ("npzkit", ["ckpt", name])
    found = cli(*arguments)
    assert found.code in (0, 1)
    assert (bool(found.out), found.err) == (True, "")
    shown = cli("ckpt", name, "--help").out
    assert f"Example: npzkit ckpt {name}" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_ls(run, cli):
    """Each step is shown with its size, age and metrics; --json has them as numbers."""
    found = cli("ckpt", "ls", "run")
    assert (found.code, found.err) == (0, "")
    lines = found.out.splitlines()
    assert lines[0].split() == ["step", "size", "age", "metrics", "state"]
    assert re.fullmatch(r" +200 +[\d.]+ KiB +\d+ s +loss 0.25", lines[2])
    assert lines[-1].startswith("3 steps, ")
    rows = cli("ckpt", "ls", "run", "--json").json()["steps"]
    assert [row["step"] for row in rows] == [100, 200, 300]
    assert rows[1]["metrics"] == {"loss": 0.25}
    assert rows[1]["size"] == os.path.getsize(run / "step_00000200.npz")


def test_a_file_that_steps_share_counts_once(tmp_path, cli):
    """Each step has its whole size; the total is what the folder takes."""
    with CheckpointStore(tmp_path) as store:
        for step in range(3):
            store.save(step, {"w": np.ones(5000), "b": np.ones(step)}, frozen="w")
    rows = cli("ckpt", "ls", tmp_path, "--json").json()["steps"]
    assert min(row["size"] for row in rows) > 40_000
    total = sum(
        {os.stat(path).st_ino: path.stat().st_size for path in tmp_path.rglob("*.npz")}.values()
    )
    assert cli("ckpt", "ls", tmp_path).out.endswith(f"3 steps, {format_size(total)}\n")


def test_ls_marks_damaged_metadata(run, cli):
    """A step whose metadata cannot be trusted is listed as damaged, and the exit code is 1."""
    damage(run / "step_00000200.npz", metadata=True)
    found = cli("ckpt", "ls", "run")
    assert found.code == 1
    assert found.out.splitlines()[2].endswith("damaged")
    rows = cli("ckpt", "ls", "run", "--json").json()["steps"]
    assert "damaged" in rows[1]["error"]


def test_an_int_metric_above_the_range_of_floats(run, cli):
    """A metric of any size is listed with six digits."""
    with CheckpointStore(run) as store:
        store.save(400, {}, metrics={"loss": -(10**400)})
    found = cli("ckpt", "ls", "run")
    assert (found.code, found.err) == (0, "")
    assert "loss -1.00000e+400" in found.out
    assert cli("ckpt", "ls", "run", "--json").json()["steps"][3]["metrics"] == {"loss": -(10**400)}


def test_prune_by_a_metric_that_no_step_has(run, cli):
    """Nothing is removed, and the metric that may be meant is shown."""
    found = cli("ckpt", "prune", "run", "--latest", "1", "--lowest", "Loss", "1")
    assert (found.code, found.out) == (2, "")
    assert len([*run.glob("*.npz")]) == 3
    assert "no step has the metric 'Loss'" in found.err
    assert "Did you mean 'loss'?" in found.err


def test_an_empty_folder(tmp_path, cli):
    """A folder without steps is listed as such; what needs a step exits with 2."""
    found = cli("ckpt", "ls", tmp_path)
    assert (found.code, found.err) == (0, "")
    assert "no checkpoints" in found.out
    found = cli("ckpt", "verify", tmp_path)
    assert found.code == 2
    assert "there is no checkpoint" in found.err
    assert cli("ckpt", "ls", tmp_path / "none").code == 2
    assert os.listdir(tmp_path) == []


def test_verify(run, cli):
    """Every byte is checked: 0 if all steps are sound, 1 if one is damaged."""
    found = cli("ckpt", "verify", "run")
    assert (found.code, found.err) == (0, "")
    assert found.out.count(": sound") == 3
    damage(run / "step_00000200.npz")
    found = cli("ckpt", "verify", "run")
    assert found.code == 1
    assert "step 200: NOT sound" in found.out
    assert "model/w: the data is damaged" in found.out
    quiet = cli("ckpt", "verify", "run", "-q")
    assert (quiet.code, quiet.out.count("step ")) == (1, 1)
    assert quiet.out.startswith("step 200: NOT sound")
    document = cli("ckpt", "verify", "run", "--json").json()
    assert not document["ok"]
    assert [report["ok"] for report in document["steps"].values()] == [True, False, True]
    assert cli("ckpt", "verify", "run", "--step", "100", "--step", "300").code == 0
    missing = cli("ckpt", "verify", "run", "--step", "7")
    assert missing.code == 2
    assert "there is no step 7" in missing.err
    assert missing.err.endswith("npzkit ckpt ls FOLDER lists them.\n")


def test_other_commands_take_a_step(run, cli):
    """A step's file is an archive: its metrics and arrays are listed, and two are compared."""
    first, last = (f"run/step_00000{step}.npz" for step in (100, 300))
    shown = cli("ls", last).out
    for text in ('"loss": 0.75', '"at 300"', "model/w", "3 members"):
        assert text in shown
    found = cli("diff", first, last, "--fast")
    assert (found.code, "model/w" in found.out, "model/b" in found.out) == (1, True, False)


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_steps_that_a_run_removes_meanwhile(command, run, cli, monkeypatch):
    """If a run has removed all steps that were listed, the commands list again."""
    with CheckpointStore(run, keep=latest(1)) as store:
        change_after_first_list(monkeypatch, lambda: store.save(400, {"w": np.ones(3)}))
        found = cli("ckpt", command, "run", "--json")
    assert (found.code, found.err) == (0, "")
    assert '"step": 400' in found.out or '"400": {' in found.out


def test_ls_names_what_killed_saves_left(run, cli):
    """As npzkit ls does; the next save to the folder removes it."""
    left = run / ".npzkit-0123456789abcdef.tmp"
    left.write_bytes(bytes(2048))
    told = f"npzkit: warning: {left}: 2.0 KiB of a save that was killed."
    assert cli("ckpt", "ls", run).err.startswith(told)
    with CheckpointStore(run) as store:
        store.save(400, {"w": np.ones(2)})
    assert cli("ckpt", "ls", run).err == ""


def test_prune(run, cli):
    """Steps that no option keeps are removed, or named by a dry run."""
    found = cli("ckpt", "prune", "run", "--latest", "1", "--lowest", "loss", "1", "-n")
    assert (found.code, found.err) == (0, "")
    assert found.out.splitlines() == [
        "step 100: would be removed", "1 step would be removed, 2 kept",
    ]  # fmt: skip
    assert len(list(run.glob("*.npz"))) == 3
    found = cli("ckpt", "prune", "run", "--highest", "loss", "1", "--json")
    assert found.json() == {"removed": [100, 200], "kept": [300], "dry_run": False}
    assert [path.name for path in run.glob("*.npz")] == ["step_00000300.npz"]
    assert cli("ckpt", "prune", "run", "--every", "100").out == "0 steps removed, 1 kept\n"


def test_prune_says_that_the_newest_step_stays(run, cli):
    """If no option keeps it, the output says why it stays, and how it is removed."""
    newest = run / "step_00000300.npz"
    told = f"1 step removed, 2 kept, step 300 only as the newest. To remove it, delete {newest}."
    assert cli("ckpt", "prune", run, "--lowest", "loss", "1").out.splitlines()[-1] == told
    assert "newest" not in cli("ckpt", "prune", run, "--highest", "loss", "1", "-n").out
    newest.unlink()
    found = cli("ckpt", "prune", run, "--lowest", "loss", "1")
    assert (found.out, CheckpointStore(run).steps) == ("0 steps removed, 1 kept\n", (200,))


@pytest.mark.parametrize("option", [(), ("--json",), ("-n",)])
def test_prune_says_which_steps_are_damaged(option, run, cli):
    """They count for no option, and stay: more steps are kept than the option says."""
    path = run / "step_00000300.npz"
    damage(path)
    found = cli("ckpt", "prune", "run", "--latest", "1", *option)
    assert found.code == 0
    what = "step 300 is damaged and not removed. To remove what is damaged, delete"
    assert found.err == f"npzkit: {what} {path}.\n"
    path.unlink()
    found = cli("ckpt", "prune", "run", "--latest", "1")
    assert (found.err, CheckpointStore(run).steps) == ("", (200,))


def test_prune_needs_to_know_what_to_keep(run, cli):
    """Without an option nothing is removed."""
    found = cli("ckpt", "prune", "run")
    assert found.code == 2
    assert "pass what to keep" in found.err
    assert len(list(run.glob("*.npz"))) == 3


def test_prune_while_a_run_writes(run, cli):
    """A folder that a store writes to is locked."""
    with CheckpointStore(run, durable=False) as store:
        store.save(400, {})
        found = cli("ckpt", "prune", "run", "--latest", "1")
    assert found.code == 2
    assert "another checkpoint store writes to this folder" in found.err
    assert npzkit.checkpoint.CheckpointStore(run).steps == (100, 200, 300, 400)


def test_without_a_subcommand(cli):
    """npzkit ckpt alone is wrong usage, said in a line; its help lists the commands."""
    found = cli("ckpt")
    assert (found.code, found.out) == (2, "")
    assert found.err == "npzkit: Missing command. Try: npzkit ckpt --help\n"
    for name in ckpt.commands:
        assert f"\n  {name} " in cli("ckpt", "--help").out


def test_prune_refuses_a_period_that_divides_no_step(cli, tmp_path):
    """A typing error would remove all steps but one."""
    with CheckpointStore(tmp_path / "run") as store:
        for step in (1000, 2000):
            store.save(step, {"w": np.ones(2)})
    found = cli("ckpt", "prune", tmp_path / "run", "--every", 7000)
    assert (found.code, found.err) == (2, "npzkit: no step is a multiple of 7000.\n")
    assert len(os.listdir(tmp_path / "run")) >= 2
