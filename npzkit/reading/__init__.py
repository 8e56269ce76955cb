"""Members to arrays: one, many, a part of one, or a map of it.

Where the zip layer and the NPY layer meet. Knows entries, not keys.
"""
