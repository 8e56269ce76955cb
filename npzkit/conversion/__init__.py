"""Archives from and to other formats.

Owns what becomes of arrays, attributes and metadata that the other side has no
place for. Knows no command line.
"""
