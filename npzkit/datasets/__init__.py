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

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - A `ShardedFile` is an `NpzFile`, so that every function that takes one takes the other. Each
#   public method is its own; a test compares the two classes.
# - Tiling is checked with random weights. The weight of a box is a product over its axes, so that
#   the weights of parts add up to that of their array if they tile it, and otherwise differ with
#   a probability below 2^-70. It takes linear time for any arrangement, and one call checks
#   thousands of arrays. Sorting would find overlaps in two dimensions, but not in any number of
#   them.
# - The index is an archive, so it has the checksums, limits and checks of one, and a damaged one
#   is damage like any. Each array of it takes 5 µs to read, so it has six and one per dtype, not
#   one per column. 60,000 arrays in 140,000 parts are 5 MiB and take a fifth of a second, imports
#   included (`python tests/benchmarks/hostile.py`). Its size and its number of strings say what
#   it may cost, before it becomes objects.
# - A user's archive may be called index.npz, too. What is opened is told by its metadata; lists,
#   which open nothing, by npzkit's shards beside it. A damaged index is replaced only where such
#   shards are.
# - A part says where it belongs, in an attribute of its member. The index is made of the shards'
#   own records, so no process talks to another. Whoever commits needs the records, or the names,
#   or the right to list.
# - Names of shards are random within their attempt. A task that runs twice writes two shards, and
#   the record that reaches the commit names the one that counts.
# - A part that is read has the CRC-32, size and method of the index, in a shard that is the one
#   of the index. Where it belongs is the index's to say; `verify` compares place, shape and
#   dtype with what the shard says. An array without items has no part, so the index names a shard
#   that has it. Attributes are not compared, because a commit may add to those of the parts.
# - An index that was durable says so: a commit that adds to it syncs only what is new. Otherwise
#   the thousandth append would wait for a thousand shards.
# - Leftovers of another attempt are removed when they are a day older than the shards of the
#   commit. A lock would not tell more: a shard is complete while its attempt goes on, and stores
#   have no locks. If an attempt loses shards in this way, its commit is an error. Where
#   such shards are but no index, they may be all of an archive: nothing is added there.
# - What was not used for long, shards and files alike, is dropped, not closed. A thread that
#   reads it keeps it open until it is done, so neither a lock nor a count is needed. All owners
#   share one room, because the system bounds the files of a process, not of an object.
# - Before a shard is used, its size and the CRC-32 of its directory are compared with the index.
#   Data of two attempts is never mixed.
# - Files that are alike: the first file of its size is read and checked like any archive. If all
#   bytes of another one are equal, except for data, CRC-32s and times, its headers are those of
#   the first one. Opening 3,000 files of np.savez then takes 15 µs each instead of 75, and a
#   sample 15 µs instead of 70. The data is always compared with its CRC-32. Compressed files
#   differ in their sizes, so each is parsed.
# - A file is compared by size and time at each access, which takes 2 µs. So a replaced file is an
#   error whether or not it is still open.
# - Samples are a sequence of their own, because `many[key]` is a mapping of joined arrays, and
#   its length is the number of keys.
