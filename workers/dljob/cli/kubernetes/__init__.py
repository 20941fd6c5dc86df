"""Parts of the command for clusters alone: checks for `dljob doctor`, and `run`, which watches a job there to its end.

A flag in `JobTarget` selects the cluster; a command never looks whether one happens to exist.
"""
