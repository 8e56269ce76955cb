"""What a member means: its key, its attributes, its dtype, and data that takes several.

Knows no file.
"""
