"""Verifying, repairing and repacking complete archives.

Works below the public classes, because it handles members that those refuse.
"""

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - `repair` in place never cuts off committed data. It writes a new directory after a damaged
#   one.
