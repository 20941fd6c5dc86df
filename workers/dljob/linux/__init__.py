"""Facts and controls of Linux: `descendants` and `reaping` of processes, `priority`, `memory_limit`, `socket_peer`.

`interpreter` finds the Pythons of the machine.
"""
