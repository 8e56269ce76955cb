"""Archives from and to other formats: one module for each format.

Owns what becomes of arrays, attributes and metadata that the other side has no
place for. Knows no command line. `convert` lists the formats; `pack` and
`extract` put files into archives and write arrays to files.
"""
