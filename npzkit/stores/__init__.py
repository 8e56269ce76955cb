"""Stores: archives on servers and in stores of objects, and folders of several files.

Implements the interfaces of `npzkit.files` for URLs. Knows nothing about zip or NPY.
"""
