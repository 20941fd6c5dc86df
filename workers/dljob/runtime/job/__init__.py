"""Start a job, join it, and answer for it.

In reading order: `launcher` (the entrypoint on the head), `versions`, `outline`, `launch`, `driver`, `admitting`,
`create_master`, `init_container`, `gateway`, `gateway_app`, `gateway_jobs`, `socket_relay`.
"""
