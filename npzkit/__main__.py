"""Entry of the command line: ``npzkit`` and ``python -m npzkit``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        from npzkit.cli import npzkit_command
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("click", "rich"):
            raise
        sys.exit(
            "npzkit: the command line needs click and rich; "
            "install it: python -m pip install 'npzkit[cli]'"
        )
    npzkit_command()


if __name__ == "__main__":
    main()
