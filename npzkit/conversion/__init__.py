"""Archives from and to other formats: one module for each format.

Owns what becomes of arrays, attributes and metadata that the other side has no
place for. Knows no command line. `formats` lists the formats, and `refusals` says what
`convert` refuses of a file; `pack` and `extract` put files into archives and write arrays
to files.
"""

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - Skipping: `convert` and `extract` raise for the first array that cannot be kept or read,
#   because a caller may not look at the report. `skip=True` leaves such arrays out and reports
#   them; the command `extract` always does so.
# - Other libraries: a file of a stranger is read in a process of its own by all libraries with
#   parts in C (`Format.is_foreign`), because checks before cannot know their faults: a header of
#   200 bytes crashes scipy, and one byte stops HDF5. The child runs the same `read` as the check
#   of a new file, which stays in this process. The parent asks for parts of arrays, and gets
#   JSON, NPY headers and bytes, never a pickle. A timer of C in the child ends it if the parent
#   is dead.
# - Errors of other libraries: whatever a library raises for a damaged file becomes one
#   `FormatError`. Errors of the system pass through, and so does what the caller's `progress`
#   raises.
# - Streams: `pack` writes to a file object as to a pipe, so it needs only `write`.
