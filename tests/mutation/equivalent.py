"""Faults that change nothing which a test could see, each with the reason."""

from __future__ import annotations

__all__ = ["EQUIVALENT"]

EQUIVALENT: dict[tuple[str, str, str], str] = {}
"""Reasons, by module, line before and line after."""
