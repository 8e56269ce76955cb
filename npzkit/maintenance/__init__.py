"""Archives as a whole: verified, repaired, repacked.

Works below the public classes, on members that those would refuse.
"""
