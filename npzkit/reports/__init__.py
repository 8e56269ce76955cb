"""An archive as a page of HTML that needs nothing else: `npzkit.report`."""
