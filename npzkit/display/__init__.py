"""What people see of an array or a table: lines, images, histograms, pages of values.

Arrays are NumPy's, or anything lazy that has `shape`, `dtype` and indexing by integers
and slices. Only `blocks` is given archives, and calls what users can. This room knows no server
and no library that draws.
"""
