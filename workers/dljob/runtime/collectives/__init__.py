"""Collectives across roles: which backends there are, who meets whom, and what a lost member does to a group."""
