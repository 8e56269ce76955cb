# For checkers of types: the names of the drop-in, which are imported on first use.
from npzkit.drop_ins.numpy_format import *  # noqa: F403
