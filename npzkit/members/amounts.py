"""Counts and sizes as text.

Owns their form, in tables and in messages. Does not import NumPy.
"""

from __future__ import annotations


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 member``, ``2,000 members``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_size(size: int) -> str:
    """Return a size in bytes as text with a unit: ``64.0 MiB``."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def format_ratio(compressed_size: int, size: int) -> str:
    """Return the compressed size as a share of the size: ``38 %``."""
    return f"{100 * compressed_size / size:.0f} %" if size else "-"
