"""Trees: nested data as arrays and a note, and back: as it was saved, or like an example."""

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - An example of `load_tree` leaves open what its empty dicts and lists hold, because the state
#   of a new optimizer is empty.
# - The note says what is a tree. The writer changes it with each array that is added, renamed or
#   removed, so that no entry outlives its array. Loading follows it, and places the arrays that
#   it does not describe by their keys. For a list that lacks an item, the note keeps the place:
#   whether all arrays below the item are gone is known only from all keys, and looking through
#   them for each removal would make removing many arrays quadratic.
# - Names with slashes are listed in the note, and a key leads to the longest that fits
#   (`name_in`, for loading and for edits). A tree in which this finds another item is refused
#   when it is saved. A flat dict whose keys have slashes gets the note `["flat"]`, which stands
#   for all of them, so that it costs nothing per array. A flat dict without slashes gets no note.
# - A part of a tree is looked for from the top: only names that can lead to what a pattern
#   matches are followed (`KeySelection.names_in`), and only their branches are made from keys.
#   Names that contain slashes are always followed, because a pattern has only the keys, not where
#   their names end.
# - Filling in place comes after all checks, so that an error leaves the example as it was. It
#   takes one copy of the arrays in memory.
