"""Arrays to members: prepared, appended, filled piece by piece, copied; and the listing of them.

Where the NPY layer and the zip layer meet. Knows nothing of the reader's side.
"""

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - Growing arrays: the NPY header of an array that grows is in a stored block of deflate. It can
#   be patched when the number of rows is known. Its local header keeps room for a zip64 field.
# - `create` writes rows with `pwrite`, and anything else through a map whose pages are given
#   back. Memory stays small, and several processes may write.
