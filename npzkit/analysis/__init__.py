"""What is computed from the arrays of an archive: differences, statistics, speed.

Owns reading no more than the result needs, in pieces, and checking what is read.
Knows no command line.
"""
