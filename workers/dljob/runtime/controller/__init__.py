"""PrimeMaster: events in, decisions of `dljob.master` out, actions carried out on the cluster.

In reading order: `prime_actor`, `prime`, `standby`, `rebuild`, `master_loop`, `executor`, `worker_hosts`, `admission`,
`peers`, `decisions`, `master_log`. Watches: `heartbeat_log`, `hang_watch`, `stack_collector`, `group_watch`,
`node_watch`, `node_change_filter`, `evidence_inquiry`, `prestop_listener`. Services for ranks: `services`,
`group_rendezvous`, `checking`, `relauncher`. For readers: `sampler`, `metric_feed`.
"""
