"""Have a checker of types read what users write: ``python check.py mypy --strict``.

It must find nothing in good.py, and a mistake in each line of bad.py that says so.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def lines_with_errors(command: list[str], path: Path) -> set[int]:
    """Return the numbers of the lines in which a checker finds errors."""
    done = subprocess.run([*command, str(path)], capture_output=True, text=True)
    found = re.findall(rf"{path.name}:(\d+)(?::\d+)?:? (?:- )?error", done.stdout)
    assert bool(found) == bool(done.returncode), done.stdout + done.stderr
    return set(map(int, found))


def main(command: list[str]) -> None:
    assert lines_with_errors(command, FOLDER / "good.py") == set()
    bad = FOLDER / "bad.py"
    lines = bad.read_text(encoding="utf-8").splitlines()
    mistakes = {number for number, line in enumerate(lines, 1) if "  # " in line}
    assert len(mistakes) == 12
    assert lines_with_errors(command, bad) == mistakes
    print(f"{' '.join(command)}: finds nothing in good code, and each of twelve mistakes")


if __name__ == "__main__":
    main(sys.argv[1:])
