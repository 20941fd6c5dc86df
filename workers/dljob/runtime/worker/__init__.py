"""A worker host and the ranks in it.

The host, in reading order: `host`, `thread_host`, `fork_host`, `host_socket`, `helper`, `forkserver`, `early_imports`,
`supervise`, `heartbeat`, `usage`, `reports`. A rank: `lifecycle`, `script`, `worker`, `typed`, `torch_group`,
`role_store`, `elastic_master`, `rank_settings`, `numa`, `device_memory`, `last_save`. One process for a role of
scripts: `sub_master`, `sub_master_host`.
"""
