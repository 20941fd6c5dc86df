"""Simulator of operators in a cluster: the real caches, work queue, passes and pollers, under virtual time and faults.

In reading order: `scenario` (a seed becomes a story, and is judged), `checked_story` (the story under `invariants`),
`world` (everything in it), `simulated_operator` (what runs in a `simulated_process`), `api_client` and `head_client`
(where its calls end, if need be as `slow_calls`), `virtual_time` (its event loop), `api_server`, `kuberay_model` and
`head_process` (what answers), `faults`.
"""
