"""Ray workers that are forked instead of started: Ray, numpy, dljob, and torch where needed, are imported once.

A raylet of ours runs `raylet_command`'s words for each worker it wants. They start `starter`, which hands the start to
a `server`, or does as Ray does. docs/adr/0135-forked-ray-workers.md has the reasons and figures.
"""
