"""What users hold: archives open for reading or writing, and arrays in them that are read in part.

Owns keys, and what users call. How a member becomes an array, or an array a
member, is the business of `reading` and `writing`.
"""
