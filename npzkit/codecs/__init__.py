"""Compression: a zip method number to its compressor and decompressor, and CRC-32.

Knows no archive.
"""
