"""Operators and what they meet, simulated.

In reading order: `api_server`, `kuberay_model`, `heads`, `world`, `operator_process`, `observe`, `poll`, `execute`,
`faults`, `invariants`, `scenario`.
"""
