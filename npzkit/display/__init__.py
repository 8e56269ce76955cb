"""What people see of an array or a table: lines, images, histograms, pages of values.

Arrays are NumPy's, or anything lazy that has `shape`, `dtype` and indexing by integers
and slices. Only `blocks` is given archives, and calls what users can. This room knows no server
and no library that draws.
"""

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - An image has every so-many-th value, not means: what is shown, and what the cursor tells, are
#   values of the array.
# - A sample is blocks of 64 KiB (from a server, 128 KiB), one in each equal stretch of the array,
#   at places without a period. Single values would cost a read each. The beginning alone would
#   not be like the rest.
# - The budget counts bytes that are read, also those of gaps that are shorter than
#   `ReadHabits.gap_size`. If an image would cost more, its steps double.
# - A member without a seek index is seen from its beginning up to 64 MiB, over a network 8 MiB:
#   reaching its middle means decompressing all before it.
