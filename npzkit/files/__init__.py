"""Bytes at rest: sources, sinks, locks, and several threads at work on one file.

Knows neither zip nor NPY.
"""
