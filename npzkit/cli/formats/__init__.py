"""The file formats that archives are converted from and to, a module each.

Owns nothing itself.
Every module has ``read(path, say)``, a context manager that gives the file's
`Contents`; ``why_unfit(array)``, the reason why an array cannot be kept, or
None; and ``write(path, contents, options, say)``, which makes a file, or a
folder, that was not there. A module is imported when a file of its kind is met,
and with it the library it needs.
"""
