"""Trees: nested data from the arrays of an archive, as it was saved or like an example."""
