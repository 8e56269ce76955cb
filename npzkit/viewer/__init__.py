"""The page of `npzkit view`: a tree of keys, and the values of the array that is chosen.

`viewer` starts and ends it, `server` answers its requests, and `page` is one browser's page.
What is read and how it is summarised is `npzkit.display`'s. Only this room imports Bokeh.
"""

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - Bokeh, not Panel. The same page was made with both: a filtered tree of 10,000 keys, an image,
#   a slider. Panel draws the same figures of Bokeh, on the same server. It needs 16 more packages
#   and twice the disk space, and showed pictures and planes later. Its newer widgets and its
#   templates do not pass the page's content security policy, and its templates load fonts from
#   another server. Its table is better: Bokeh's keeps drawing old rows if there are as many new
#   ones, which `viewer/tree_panel` prevents.
# - The token is in the path, not in a cookie: cookies are sent to all servers of a machine,
#   whatever their ports, and a page in a notebook's frame may not have any. Each request has the
#   token then, also those for scripts and for the websocket. `find_handler` of the server checks
#   it, together with Host and Origin, before anything else is looked at.
# - The browser is opened with the address itself, token included. Jupyter writes a file that
#   leads to it, which the browsers that snap installs cannot read.
# - Of Bokeh's server, the page, the websocket and the scripts are used. Its other addresses are
#   refused.
# - The page's policy (`Content-Security-Policy`) allows scripts with the random value of this
#   answer. BokehJS makes functions of the code of callbacks, so `unsafe-eval` is allowed too.
#   Attributes such as `onerror` never run.
# - No text of an archive is drawn by a figure, because Bokeh takes dollars in titles for
#   formulas. It is in tables and in HTML, where it is escaped.
# - A link has no token. It is the query of the page's address, and names the array and what is
#   shown of it, so it can be sent. The command with `--link` opens it, or the complete address,
#   in a new server.
# - The tree sends 400 rows, and the last of them brings more. Filtering is done by Python over
#   one list, because sending 100,000 keys takes seconds.
# - Each request has a thread, three at most. A newer one does not wait for an older one, which
#   ends at its next read.
# - Colours that compared arrays share range over both. A difference has its own, around zero.
# - The image of a difference reads all values, where both arrays are quick to read, and shows the
#   largest of each pixel. Elsewhere it shows every so many values, as other images, and the line
#   below says so.
# - The panes of a comparison lie in as many columns as make them largest. The browser tells the
#   room that there is. Bokeh's own grid gives them one toolbar.
# - A fixed list of ticks labels the bar of colours, because its ends have signs if values lie
#   beyond them. Dates are drawn as milliseconds, which Bokeh's axes of dates take.
# - What was read of all values is kept while the page shows it: other colours or another scale of
#   counts read nothing again.
# - Bokeh is not in `all`, because it takes as much room as most of the others together.
