"""Many archives as one: the files of a data set, one sample or one time step each.

Owns `npzkit.open_many`. Its files are ordinary archives of any program.
"""
