"""Verifying, repairing and repacking complete archives.

Works below the public classes, because it handles members that those refuse.
"""
