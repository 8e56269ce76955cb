"""Entry point of the command line: ``npzkit`` and ``python -m npzkit``."""

from __future__ import annotations

import gc
import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command line, or print how to install it."""
    if not (find_spec("click") and find_spec("rich")):
        sys.exit(
            "npzkit: the command line needs click and rich; "
            'install them: python -m pip install "npzkit[cli]"'
        )
    from npzkit.cli.commands import run

    # Lists of a hundred thousand arrays have no circles to search for.
    gc.set_threshold(100_000)
    sys.exit(run())


if __name__ == "__main__":
    main()
