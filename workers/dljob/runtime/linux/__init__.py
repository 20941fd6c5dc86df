"""Linux tells about processes and memory: `descendants`, `reaping`, `priority`, `memory_limit`."""
