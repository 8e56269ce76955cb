"""What users hold: archives open for reading or writing, and arrays that are read in part.

Owns what users call. `NpzFile` uses `opened_archive`, and `NpzWriter` uses `written_archive`.
`reading` makes arrays of members, and `writing` makes members of arrays.
"""
