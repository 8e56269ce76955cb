"""The functions of NumPy that npzkit replaces: load, savez, savez_compressed, numpy.lib.format."""
