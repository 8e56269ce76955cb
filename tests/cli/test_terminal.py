"""What only a terminal gets: colours, where NO_COLOR does not forbid them, and bars."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import npzkit
import numpy as np
import pytest
from children import forked, read_rest

pty = pytest.importorskip("pty")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def model(tmp_path):
    """A path with two arrays."""
    npzkit.save(tmp_path / "a.npz", {"layer/w": np.zeros((100, 200)), "b": np.arange(3)})
    return tmp_path / "a.npz"


def on_a_terminal(*arguments, code="from npzkit.__main__ import main; main()", **env):
    """Run a command on a terminal of 80 columns; return all that it showed there.

    It runs in a forked child, which need not import everything again.
    """
    leader, follower = pty.openpty()

    def work(pipe):
        for number, mode in enumerate("rww"):
            os.dup2(follower, number)
            setattr(sys, ("stdin", "stdout", "stderr")[number], open(number, mode))
        os.close(follower)
        os.environ.update({"TERM": "xterm", "COLUMNS": "80", **env})
        sys.argv[1:] = map(str, arguments)
        with contextlib.suppress(SystemExit):
            exec(code, {})
        sys.stdout.flush()

    shown = b""
    with forked(work) as (_, pipe):
        os.close(follower)
        with contextlib.suppress(OSError):  # Linux's word for the other end being closed
            while data := os.read(leader, 1 << 16):
                shown += data
        assert read_rest(pipe) == b""
    os.close(leader)
    return shown.decode()


@pytest.mark.slow
def test_long_pages_are_shown_by_a_pager(cli, tmp_path):
    """A page that is longer than the terminal goes to $PAGER, a short one and a pipe do not."""
    # A program without arguments, which some versions of click lose.
    program = tmp_path / "pager"
    program.write_text("#!/bin/sh\nexec sed s/^/paged:/\n")
    program.chmod(0o755)
    pager = {"PAGER": str(program), "LINES": "24"}
    assert "paged:" in on_a_terminal("help", "shell", **pager)
    assert "paged:" not in on_a_terminal("help", "errors", **pager | {"LINES": "200"})
    assert "paged:" not in cli("help", "shell", env=pager).out


@pytest.mark.slow
@pytest.mark.parametrize("command", [["ls"], ["ls", "--tree"]])
def test_colours_only_on_a_terminal_that_wants_them(command, model, cli):
    """Headings are bold on a terminal, and plain under NO_COLOR and in a pipe."""
    assert "\x1b[1m" in on_a_terminal(*command, model)
    assert "\x1b" not in on_a_terminal(*command, model, NO_COLOR="1")
    assert "\x1b" not in cli(*command, model).out


@pytest.mark.slow
def test_a_bar_for_long_work_alone(model):
    """Work over a second shows a bar on a terminal; shorter work none."""
    code = (
        "import sys, time, npzkit.cli.output as o\n"
        "with o.ProgressBar('measure') as tell:\n"
        "    tell(1, 100)\n"
        "    time.sleep({})\n"
        "    tell(50, 100)\n"
        "    tell(100, 100)\n"
    )
    assert on_a_terminal(code=code.format(0.01)) == ""
    assert "measure" in on_a_terminal(code=code.format(1.1))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["ls", "info"])
def test_a_bar_for_many_headers(command, tmp_path):
    """Reading the headers of very many members shows how many are left, members and not bytes."""
    npzkit.save(tmp_path / "a.npz", dict.fromkeys(map(str, range(2500)), np.int8(1)))
    code = (
        "import npzkit.cli.output as o; o._BAR_AFTER = 0\nfrom npzkit.__main__ import main; main()"
    )
    shown = on_a_terminal(command, tmp_path / "a.npz", code=code)
    assert "read headers" in shown
    assert "/2500" in shown
    assert "read headers" not in on_a_terminal(command, tmp_path / "a.npz")


def test_no_bar_in_a_pipe():
    """Where the standard error stream is no terminal nothing is drawn, however long it takes."""
    code = (
        "import time, npzkit.cli.output as o\n"
        "with o.ProgressBar('measure') as tell:\n"
        "    time.sleep(1.1)\n"
        "    tell(50, 100)\n"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (found.stdout, found.stderr) == (b"", b"")


@pytest.mark.parametrize("command", [["show", "--stats"], ["diff", "--metadata"]])
def test_an_interrupt_is_a_word(command, model, cli, monkeypatch):
    """Ctrl-C ends a command with 130 and a word, not a trace."""

    def read(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(npzkit.LazyArray, "__getitem__", read)
    monkeypatch.setattr(npzkit.NpzFile, "read", read)
    monkeypatch.setattr(npzkit.NpzFile, "verify", read)
    monkeypatch.setattr(npzkit.NpzFile, "stream", read)
    name, option = command
    result = cli(name, model, model if name == "diff" else "b", option)
    assert (result.code, result.out) == (130, "")
    assert result.err.strip() == "npzkit: interrupted"


@pytest.mark.slow
def test_an_interrupt_is_not_lost():
    """One whose exception Python drops, as in a callback, ends the work a moment later."""
    code = (
        "import signal, npzkit.cli.output as o\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from npzkit.cli import commands\n"
        "class Dropped:\n"
        "    def __del__(self):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "def ls(*args, **options):\n"
        "    with o.ProgressBar('work') as tell:\n"
        "        tell(1, 3)\n"
        "        Dropped()\n"
        "        tell(2, 3)\n"
        "        print('went on')\n"
        "import npzkit.cli.listings as listing\n"
        "listing.ls.callback = ls\n"
        "raise SystemExit(commands.run(['ls', 'a.npz']))\n"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout) == (130, "")
    assert found.stderr.split() == ["npzkit:", "interrupted"]


def test_a_bar_counts_bytes(model):
    """Work that is counted by its bytes shows how many are done, and ends with all of them."""
    code = (
        "import npzkit.cli.output as o; o._BAR_AFTER = 0\n"
        "with o.ProgressBar('measure') as tell:\n"
        "    tell(2 << 20, 5 << 20)\n"
        "    tell(5 << 20, 5 << 20)\n"
    )
    shown = on_a_terminal(code=code)
    assert "measure" in shown
    assert "5.0/5.0 MiB" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["verify"], ["repair", "-o", "c.npz"], ["repack", "-c", "deflated"]], ids=" ".join
)
def test_a_bar_for_one_large_array(arguments, tmp_path, monkeypatch):
    """Commands show bytes done within one array, before it is complete."""
    monkeypatch.chdir(tmp_path)
    npzkit.save("a.npz", {"x": np.zeros(50 << 20, np.uint8)})
    code = (
        "import npzkit.cli.output as o; o._BAR_AFTER = 0\n"
        "real, seen = o.ProgressBar.__call__, []\n"
        "def show(bar, done, total):\n"
        "    seen.append(done / total)\n"
        "    real(bar, done, total)\n"
        "o.ProgressBar.__call__ = show\n"
        "from npzkit.cli.commands import run; import sys\n"
        "code = run(sys.argv[1:])\n"
        "print(code, len([share for share in seen if 0 < share < 0.9]) > 1)\n"
    )
    shown = on_a_terminal(arguments[0], "a.npz", *arguments[1:], code=code)
    assert arguments[0] in shown
    assert "MiB" in shown
    assert "0 True" in shown


@pytest.mark.slow
def test_a_bar_takes_nothing_from_the_output():
    """What is printed while a bar is shown goes to the standard output, and the bar does not."""
    leader, follower = pty.openpty()
    code = (
        "import click, npzkit.cli.output as o; o._BAR_AFTER = 0\n"
        "with o.ProgressBar('measure') as tell:\n"
        "    tell(1, 100)\n"
        "    click.echo('first')\n"
        "    tell.hide()\n"
        "    click.echo('second')\n"
        "    tell(2, 100)\n"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=follower, timeout=60, check=False
    )
    os.close(follower)
    assert b"measure" in os.read(leader, 1 << 16)
    os.close(leader)
    assert found.stdout.split() == [b"first", b"second"]
