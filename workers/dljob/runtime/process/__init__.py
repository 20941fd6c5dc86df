"""Parts that every process of a job uses, in reading order.

Messages: `messages`, `frames`, `wire`, `arrays`. A process and its end: `environment`, `entrypoint`, `extensions`,
`preload`, `guard`, `outcome`, `process_end`, `evidence`, `logfile`. Time and threads: `clock`, `loop`, `handover`,
`making`, `thread_interrupt`. A rank: `worker_context`, `context`, `rank_link`, `job_control`, `step_counters`,
`service_descriptor`, `device_probe`.
"""
