"""Simulator of operators in a cluster: the real caches, work queue, passes and pollers, under virtual time and faults.

In reading order: `scenario` (a seed becomes a story, and is judged), `world` (everything in it), `simulated_operator`
(one operator process), `api_client` and `head_client` (where its calls end), `virtual_time` (its event loop),
`api_server`, `kuberay_model` and `head_process` (what answers), `faults`, `invariants`.
"""
