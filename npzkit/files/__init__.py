"""Files: where bytes are read from and written to, locks, and threads that share a file.

Knows nothing about zip or NPY, but how an end record is found (`append_room`).
"""
