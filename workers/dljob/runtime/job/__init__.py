"""Start a job, find it again, and answer for it from the cluster's head.

In reading order: `launcher` (the entrypoint on the head), `versions`, `outline`, `launch`, `driver`, `admitting`,
`create_master`, `init_container`, `gateway`, `gateway_app`, `gateway_jobs`, `socket_relay`.
"""
