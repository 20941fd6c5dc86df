"""Commands on a cluster: one file per concern; the pure functions of `show.py` format what they print.

A flag in `JobTarget` selects the cluster; a command never looks whether one happens to exist.
"""
