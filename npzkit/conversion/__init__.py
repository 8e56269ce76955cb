"""Archives from and to other formats: one module for each format.

Owns what becomes of arrays, attributes and metadata that the other side has no
place for. Knows no command line. `formats` lists the formats, and `refusals` says what
`convert` refuses of a file; `pack` and `extract` put files into archives and write arrays
to files.
"""
