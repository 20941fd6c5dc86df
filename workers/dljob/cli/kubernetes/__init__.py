"""Commands on a cluster: one file a concern; what they print is made by the pure functions of `show.py`.

A command comes here when `Where` says so, never by looking whether a cluster happens to be there.
"""
