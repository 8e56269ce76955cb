"""A page about an archive that can be mailed or kept: `npzkit.report`."""
