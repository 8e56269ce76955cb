"""The command line, on click and rich: each command a thin layer over the public API.

Owns arguments, output, and what becomes of errors. Exit codes: 0 where all is
fine, 1 where a problem was found, 2 for wrong usage. An error is one line on
the standard error stream; ``--debug`` shows the trace.
"""
