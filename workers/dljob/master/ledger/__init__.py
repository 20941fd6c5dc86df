"""Goodput: `rules` says which time counts as productive, `view` shows the sums."""
