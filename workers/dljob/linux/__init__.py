"""Facts and controls of Linux: `descendants` and `reaping` of processes, `priority`, `memory_limit`, `socket_peer`."""
