"""Arrays to members: prepared, appended, filled piece by piece, copied; and the listing of them.

Where the NPY layer and the zip layer meet. Knows nothing of the reader's side.
"""
