"""What people see of an array or a table: lines, images, histograms, pages of values.

Arrays are NumPy's, or anything lazy that has `shape`, `dtype` and indexing by integers
and slices. This room knows no archive, no server and no library that draws.
"""
