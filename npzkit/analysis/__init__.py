"""What is computed from the arrays of an archive: differences, statistics, speed.

Owns reading no more than the result needs, in pieces, and checking what is read.
Knows no command line.
"""

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - Equal arrays: `diff` reads both arrays and checks them. If their CRC-32s agree, they are
#   equal. Otherwise it compares values in parts. Parts are read unchecked, which is why the check
#   comes first.
# - Bins of `npzkit.statistics` have a power of two as width, and begin at multiples of it. Parts
#   that were counted separately then add up to the histogram of the array, although its range is
#   not known first. One pass is enough, and comparisons with the edges are exact.
# - Counting by comparisons is faster than `np.bincount`, which holds the interpreter's lock,
#   except for values of one byte.
