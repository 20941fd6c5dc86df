"""Actors and commands of one node.

In reading order: `node_agent` (heartbeats of all hosts of a node), `host_channel` and `node_hosts` (the agent's
connections to the hosts), `stacks`, `node_checker` and `node_checks` (checks before a start), `readers`,
`log_tails`, `prestop` (the preStop hook of a pod).
"""
