"""The colours of values that are not finite.

Owns that figures, and the notes below them, use the same ones.
"""

from __future__ import annotations

NAN_COLOUR, PLUS_COLOUR, MINUS_COLOUR = "#ff4fd8", "#ff3b30", "#2f7bff"
"""No palette has them."""
