"""The command line, built on click and rich. Each command is a thin layer over the public API.

Owns arguments, output, and how errors are reported. Exit codes: 0 if there is no
problem, 1 if there is one, 2 for wrong usage and for what cannot be read. An error is
one line on the standard error stream; ``--debug`` shows the traceback.
"""
