"""Members to arrays: one, many, a part of one, or a map of it.

Where the zip layer and the NPY layer meet. Knows entries; keys are the
callers' names for them, except in `stream`.
"""
