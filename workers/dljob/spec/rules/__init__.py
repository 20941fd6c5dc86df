"""Rules between fields: `rules` runs them all (`spec.cel` has them for the API server).

One subject each: `annotations`, `machines`, `templates`, `outside`, `collectives`, `elastic`, `memory`, `resources`,
`quota`, `rejoin`, `coupled`, `tensorflow`, `failure_domains`, `head`, `reference`, `serving`, `interpreters`,
`weights`, `witnesses`, `launchers` (warnings). `findings` is what they report.
"""
