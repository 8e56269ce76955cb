"""Record the guide's pictures of a terminal: ``python tests/pictures/draw.py``.

Each command runs in a terminal of its own, as a user would run it.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).parent
FIXTURES = FOLDER.parent.parent / "fixtures"
WIDTH = 84

COMMANDS = {
    "ls": "npzkit ls digits.npz photographs.npz",
    "show": "npzkit show --stats digits.npz images",
}
"""What is typed, by the name of its picture."""

_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def record(command: str) -> str:
    """Run a command in a terminal and return what it writes there."""
    arguments = [sys.executable, "-m", *shlex.split(command)]
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    ignored = ("NO_COLOR", "COLUMNS", "FORCE_COLOR")
    environment = {name: value for name, value in os.environ.items() if name not in ignored}
    environment["TERM"] = "xterm-256color"
    with subprocess.Popen(
        arguments, stdin=slave, stdout=slave, stderr=slave, cwd=FIXTURES, env=environment
    ) as process:
        os.close(slave)
        output = bytearray()
        while True:
            try:
                data = os.read(master, 1 << 16)
            except OSError:
                # Linux's sign that nobody has the other end any more.
                break
            if not data:
                break
            output += data
    os.close(master)
    if process.returncode:
        raise SystemExit(output.decode())
    return output.decode().replace("\r\n", "\n")


def draw(name: str) -> str:
    """Return the picture of a command and its output, in SVG."""
    command = COMMANDS[name]
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi(f"$ {command}\n{record(command)}".rstrip()))
    # The reader's own font: none is fetched.
    return _FONT_FACE.sub("", console.export_svg(title="npzkit", unique_id=name))


if __name__ == "__main__":
    for name in COMMANDS:
        (FOLDER / f"{name}.svg").write_text(draw(name), encoding="utf-8")
