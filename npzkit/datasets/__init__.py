"""Many files as one: sharded archives, and data sets of ordinary ones (`npzkit.open_many`).

A *sharded archive* is a folder of plain ``.npz`` files, the *shards*, and the archive
``index.npz``, which is written last. Each array has one part or several, and each part
is an array in a shard. Parts tile their array. The index says which shards count: others
in the folder are left of attempts that failed, or belong to one that is under way.
"""

INDEX_NAME = "index.npz"
SHARDS_KEY = "npzkit.shards"
"""The item of the metadata by which an index is told from other archives of this name."""
NOT_AN_INDEX = "the archive is not the index of a sharded archive"
"""What the error says that is raised for them."""
