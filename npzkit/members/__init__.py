"""Members: keys, attributes, dtypes, and data that is stored in several members.

Knows nothing about files.
"""
