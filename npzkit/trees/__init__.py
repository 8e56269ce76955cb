"""Trees: nested data as arrays and a note, and back: as it was saved, or like an example."""
