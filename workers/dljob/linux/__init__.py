"""Facts and controls of Linux: `descendants` and `reaping` of processes, `priority`, `memory_limit`, `socket_peer`.

`process_title` is what ps shows. `shared_memory` says what is free of it, and what Ray's store was promised and has not
got yet.
`interpreter` finds the Pythons of the machine, `device_drivers` the drivers that a process has loaded.
"""
