"""Facts and controls of Linux: `descendants` and `reaping` of processes, `priority`, `memory_limit`, `socket_peer`.

`shared_memory` says what is free of it, and what Ray's store has not got yet of what it was promised.
`interpreter` finds the Pythons of the machine, `device_drivers` the drivers that a process has loaded.
"""
