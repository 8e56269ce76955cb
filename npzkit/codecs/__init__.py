"""Compression methods, encoders and decoders, and CRC-32.

Knows nothing about archives.
"""
