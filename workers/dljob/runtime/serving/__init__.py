"""Ranks that serve: `ports` chooses and reserves their ports, `probes` asks one question, `tally` counts the answers.

`monitor` runs the probes of a host's ranks; `endpoints` finds ranks that are ready.
Hosts of ranks use them; nothing here knows Ray.
"""
