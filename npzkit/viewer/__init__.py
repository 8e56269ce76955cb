"""The page of `npzkit view`: a tree of keys, and the values of the array that is chosen.

`viewer` starts and ends it, `server` answers its requests, and `page` is one browser's page.
What is read and how it is summarised is `npzkit.display`'s. Only this room imports Bokeh.
"""
