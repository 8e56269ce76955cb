"""What users hold: archives open for reading or writing, and arrays that are read in part.

Owns what users call. `NpzFile` and `NpzWriter` stand on `opened_archive` and `written_archive`,
the archive on either side. How a member becomes an array, or an array a member,
is the business of `reading` and `writing`.
"""
