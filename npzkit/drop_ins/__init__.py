"""The functions of NumPy that npzkit replaces: load, savez and savez_compressed."""
