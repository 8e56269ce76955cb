"""Many files as one: a folder, or a prefix in a store, of archives and their index.

A *sharded archive* is a folder of plain ``.npz`` files, the *shards*, and the file
``index.json``, which is written last. Each array has one part or several, and each part
is an array in a shard. Parts tile their array. The index says which shards count: others
in the folder are left of attempts that failed, or belong to one that is under way.
"""
