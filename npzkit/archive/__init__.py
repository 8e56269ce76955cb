"""What users hold: archives open for reading or writing, and arrays that are read in part.

Owns what users call. `NpzFile` uses `opened_archive`, and `NpzWriter` uses `written_archive`.
`reading` makes arrays of members, and `writing` makes members of arrays.
"""

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - `auto_repack` copies members without checking their CRC-32. Damage stays in the file for
#   `repair`; closing a writer is not the moment to report it.
# - `rename` copies the member, because its name also stands before its data. Committed bytes are
#   not changed.
