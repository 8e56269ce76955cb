"""Many files as one: sharded archives, and data sets of ordinary ones (`npzkit.open_many`).

A *sharded archive* is a folder of plain ``.npz`` files, the *shards*, and the file
``index.json``, which is written last. Each array has one part or several, and each part
is an array in a shard. Parts tile their array. The index says which shards count: others
in the folder are left of attempts that failed, or belong to one that is under way.
"""

INDEX_NAME = "index.json"
