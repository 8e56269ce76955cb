"""Arrays to members: checked, written, appended, created piece by piece, copied.

Where the NPY layer and the zip layer meet. Knows nothing of the reader's side.
"""
